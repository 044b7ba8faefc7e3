"""Trainings of the model that are the same but for the optimizer."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torchdion.demonstration.model import GPT
from torchdion.demonstration.outcome import Curve

CONTEXT = 64
BATCH = 24
"""Windows of a step."""
VALIDATION_WINDOWS = 128
HELD_OUT = 10
"""One window of so many is for validation."""
WARMUP, DECAY = 0.05, 0.5
"""Shares of the steps over which the rate rises at the start and falls to 0 at the end."""
CLIP = 1.0
"""Largest norm of the gradient."""
VALIDATIONS = 12


@dataclass(frozen=True)
class Windows:
    """Tokens cut into rows of ``CONTEXT`` ones and the one after: (rows, CONTEXT + 1)."""

    training: Tensor
    validation: Tensor

    @classmethod
    def of(cls, tokens: Sequence[int], device: torch.device) -> "Windows":
        count = len(tokens) // (CONTEXT + 1)
        rows = torch.tensor(tokens[: count * (CONTEXT + 1)], device=device).view(count, CONTEXT + 1)
        held_out = torch.arange(count, device=device) % HELD_OUT == HELD_OUT - 1
        return cls(rows[~held_out], rows[held_out][:VALIDATION_WINDOWS])

    def batch(self, step: int, seed: int) -> Tensor:
        """Of step 0, 1, …: every row once, in an order that depends on the seed, before any comes again."""
        places = range(step * BATCH, (step + 1) * BATCH)
        epochs = [divmod(place, len(self.training)) for place in places]
        orders = {epoch: _order(len(self.training), seed, epoch) for epoch, _ in epochs}
        return self.training[[int(orders[epoch][place]) for epoch, place in epochs]]


def _order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1000 + epoch))


@dataclass(frozen=True)
class Settings:
    """What two trainings share."""

    windows: Windows
    vocabulary: int
    steps: int
    seed: int
    device: torch.device

    @property
    def validated(self) -> list[int]:
        """The steps after which the validation loss is measured: about VALIDATIONS ones, the last among them."""
        every = max(1, self.steps // VALIDATIONS)
        return sorted({*range(every, self.steps + 1, every), self.steps})

    def model(self) -> GPT:
        """With the first weights of the seed; torch's own random numbers are left as they were."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return GPT(self.vocabulary, CONTEXT).to(self.device)


class Training:
    """Of the settings' model, one step at a time.

    Args:
        optimizer_of: makes the optimizer of the model.
        title: what the optimizer is called.
    """

    def __init__(self, settings: Settings, optimizer_of: Callable[[nn.Module], Optimizer], title: str) -> None:
        self.model = settings.model()
        self.title = title
        self.step = 0
        self.seconds: list[float] = []
        """Of each step, without validation."""
        self.losses: dict[int, float] = {}
        """Of validation, in nats per token, by steps made."""
        self._settings = settings
        self._optimizer = optimizer_of(self.model)
        self._schedule = LambdaLR(self._optimizer, lambda step: rate_factor(step, settings.steps))

    def advance(self) -> None:
        """Makes a step, and measures the validation loss where one is due."""
        began = self._clock()
        loss = _loss(self.model, self._settings.windows.batch(self.step, self._settings.seed))
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self.model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._schedule.step()
        self.step += 1
        self.seconds.append(self._clock() - began)
        if self.step in self._settings.validated:
            self.losses[self.step] = validate(self.model, self._settings.windows.validation)

    def _clock(self) -> float:
        """In seconds, when all that was started is done."""
        if self._settings.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @property
    def curve(self) -> Curve:
        return Curve(self.title, self.losses)


def rate_factor(step: int, steps: int) -> float:
    """What the rate of step 0, 1, … is multiplied by."""
    return min(1.0, (step + 1) / (WARMUP * steps), (steps - step) / (DECAY * steps))


@torch.no_grad()
def validate(model: GPT, rows: Tensor) -> float:
    parts = torch.split(rows, BATCH)
    return math.fsum(_loss(model, part).item() * len(part) for part in parts) / len(rows)


def _loss(model: GPT, rows: Tensor) -> Tensor:
    return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
