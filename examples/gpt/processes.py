"""What the processes of a run share out among themselves, for one process: everything is its own."""

import math
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkpoint
from data import Batch
from interrupt import Interrupt
from model import GPT
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


@dataclass(frozen=True)
class Job:
    """Processes in three directions: dp replicas of the model, each cut into fs shards, each of these into tp."""

    dp: int = 1
    fs: int = 1
    tp: int = 1
    compress: bool = False  # what the replicas send is the optimizer's: Dion's factors, say, instead of gradients

    @property
    def processes(self) -> int:
        return self.dp * self.fs * self.tp

    @property
    def data_ranks(self) -> int:
        """How many parts a batch is cut into: tensor-parallel processes work on the same sequences."""
        return self.dp * self.fs


class OneProcess:
    """See parallel.py for the other implementation."""

    speaks = True
    """Whether this process writes the log and the lines on the screen."""
    repeated_signals: tuple[signal.Signals, ...] = Interrupt.CAUGHT
    """Those that end the process at once when they come after another one."""

    def check_folder(self, folder: Path) -> None:
        """Raises a Problem where the processes do not share the run's folder, and with it their checkpoints."""

    def distribute(self, model: GPT) -> nn.Module:
        """Leaves this process its pieces of the model; returns what computes the logits."""
        return model

    def optimizer_options(self, optimizer: str) -> dict[str, Any]:
        """What torchdion's optimizer of this name is told of the processes."""
        return {}

    def connect(self, forward: nn.Module, optimizer: Optimizer) -> None:
        """Tells the model whose gradients the optimizer will average by itself."""

    def share(self, batch: Batch, flag: str) -> Batch:
        """This process's sequences of a batch, equally many on each; `flag` says how many there are."""
        return batch

    def mean(self, loss: float) -> float:
        """Of all processes' shares."""
        return loss

    def clip(self, parameters: Iterable[Tensor], largest: float) -> float:
        """Scales the gradients to a norm of at most `largest` (0: any); returns the norm before."""
        return float(clip_grad_norm_(parameters, largest or math.inf))

    def largest(self, number: int) -> int:
        """Of all processes' numbers."""
        return number

    def save(
        self,
        folder: Path,
        step: int,
        keep: int,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        rest: dict[str, Any],
    ) -> None:
        """Writes the checkpoint after `step` steps and removes all but the newest `keep`."""
        states = [optimizer.state_dict() for optimizer in optimizers]
        checkpoint.save(folder, step, {"model": model.state_dict(), "optimizers": states, **rest}, keep)

    def load(self, state: dict[str, Any], model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Weights and optimizers of a checkpoint, whatever processes wrote it."""
        if "folder" in state:
            import sharded  # torch.distributed takes a while to import

            sharded.read(state["folder"], model, optimizers[0])
            return
        self._load_weights(model, state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _load_weights(self, model: nn.Module, weights: dict[str, Any]) -> None:
        model.load_state_dict(weights)

    def finish(self) -> None:
        """Waits for the others."""


def start(job: Job, device_type: str) -> OneProcess:
    """Meets the other processes of the job, if there are any."""
    if job.processes == 1:
        return OneProcess()
    from parallel import ManyProcesses  # torch.distributed takes a while to import

    return ManyProcesses(job, device_type)
