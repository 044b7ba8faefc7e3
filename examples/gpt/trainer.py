"""The training state and what happens to it: one step, one validation, saved and restored."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optimizers
import torch
from data import Batch, Windows
from errors import Diverged
from model import GPT
from options import Recipe
from processes import OneProcess
from schedule import schedules
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class StepReport:
    loss: float  # nats per token, before the update
    lr: float
    grad_norm: float  # before clipping
    tokens_per_second: float
    optimizer_ms: float


def build_model(recipe: Recipe, device: torch.device) -> GPT:
    """The recipe's model with its first weights, on `device`."""
    # On the meta device no memory is filled twice.
    with torch.device("meta"):
        model = GPT(recipe.shape)
    model.to_empty(device=device)
    model.initialize(torch.Generator().manual_seed(recipe.seed))
    return model.double() if recipe.dtype == "float64" else model


class Trainer:
    """`step` counts the updates made; everything that the next one depends on is saved."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        train: Windows,
        validation: Windows,
        compiled: bool,
        processes: OneProcess,
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.processes = processes
        self.step = 0
        self.seconds = 0.0  # spent in train_step
        self.model = build_model(recipe, device)
        forward = processes.distribute(self.model)
        self._train = train
        self._validation = processes.share(validation.evenly_spaced(recipe.val_sequences), "--val-sequences")
        own = recipe.hyperparameters | processes.optimizer_options(recipe.optimizer)
        self.optimizers = optimizers.build(recipe.optimizer, self.model, own, recipe.seed)
        processes.connect(forward, self.optimizers[0])
        self._forward = torch.compile(forward) if compiled else forward
        self.schedules = schedules(self.optimizers, recipe.steps, recipe.warmup, recipe.decay)

    def train_step(self) -> StepReport:
        """One update from the next batch."""
        start = self._clock()
        lr = float(self.optimizers[0].param_groups[0]["lr"])
        loss = self.accumulate_gradients()
        grad_norm = self.processes.clip(self.model.parameters(), self.recipe.clip)
        before_update = self._clock()
        for optimizer in self.optimizers:
            optimizer.step()
        updated = self._clock()
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.zero_grad()
            schedule.step()
        self.step += 1
        elapsed = self._clock() - start
        self.seconds += elapsed
        tokens = self.recipe.batch * self.recipe.context
        return StepReport(loss, lr, grad_norm, tokens / elapsed, 1000 * (updated - before_update))

    def accumulate_gradients(self) -> float:
        """Add up the gradient of the batch's mean loss, one micro-batch at a time; return that loss."""
        whole = self._train.batch(self.recipe.seed, self.step, self.recipe.batch)
        batch = self.processes.share(whole, "--batch")
        mean = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self._micro_batches(batch):
            share = self._loss(part) * (len(part.inputs) / len(batch.inputs))
            share.backward()  # type: ignore[no-untyped-call]
            mean += share.detach()
        return self._finite(self.processes.mean(mean.item()))

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss, in nats per token, over the same validation windows every time."""
        total = 0.0
        for part in self._micro_batches(self._validation):
            total += self._loss(part).item() * len(part.inputs)
        return self._finite(self.processes.mean(total / len(self._validation.inputs)))

    def save(self, folder: Path, keep: int, more: dict[str, Any]) -> None:
        """A checkpoint in `folder`, with `more` beside what load_state_dict() takes. On all processes."""
        self.processes.save(folder, self.step, keep, self.model, self.optimizers, self._rest() | more)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What checkpoint.load() returns."""
        self.step = state["step"]
        self.seconds = state["seconds"]
        self.processes.load(state, self.model, self.optimizers)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda" and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.device)

    def _rest(self) -> dict[str, Any]:
        """All but weights and optimizers. The batches need no more than `step`; see data.py."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        size = self.recipe.micro_batch
        parts = zip(torch.split(batch.inputs, size), torch.split(batch.targets, size), strict=True)
        return [Batch(inputs, targets) for inputs, targets in parts]

    def _loss(self, batch: Batch) -> Tensor:
        inputs, targets = batch.inputs.to(self.device), batch.targets.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.dtype == "bfloat16"):
            logits = self._forward(inputs)
        if logits.dtype != torch.float64:
            logits = logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} after {self.step} steps; a lower --lr may help", code=1)
        return loss

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
