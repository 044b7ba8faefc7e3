"""Training steps over limited links, on the ranks: contenders take turns at each rate."""

import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from links import DEVICE, Links, sent_bytes
from measure import interleaved
from trainer import Trainer

import torchdion

WARM_UP = 3  # steps: after the first one DistributedDataParallel makes its buckets anew
PROBE_SECONDS = 0.25  # how long the all-reduce that measures the links should take


def meet(links: Links, rank: int, world_size: int, store: str) -> None:
    """Leaves the group on the host's loopback device for one on the rank's own link; `store` is a file's path."""
    dist.destroy_process_group()
    links.enter(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    file = dist.FileStore(store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file, rank=rank, world_size=world_size)


class Contender:
    """One optimizer's training, and what its last steps took."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.is_delayed = bool(trainer.recipe.hyperparameters.get("delayed"))
        self.forget()

    def forget(self) -> None:
        self.seconds: list[float] = []
        self.optimizer_seconds: list[float] = []
        self.megabytes: list[float] = []

    def turn(self) -> None:
        """A timed step. Of delayed ones it is one of many: it waits for what the step before has left in flight, which
        began when that step ended, and leaves as much."""
        if self.is_delayed:
            self.trainer.train_step()
        before, start = sent_bytes(), time.perf_counter()
        report = self.trainer.train_step()
        self.seconds.append(time.perf_counter() - start)
        self.optimizer_seconds.append(report.optimizer_ms / 1e3)
        self.megabytes.append((sent_bytes() - before) / 1e6)
        self.end()

    def end(self) -> None:
        """Nothing is in flight beside the turns of others."""
        optimizer = self.trainer.optimizers[0]
        if isinstance(optimizer, torchdion.optimizer.Optimizer):
            optimizer.stats()

    def train_until(self, step: int) -> None:
        while self.trainer.step < step:
            self.trainer.train_step()
        self.end()

    def counted_megabytes(self) -> float | None:
        """What a step sends by the optimizer's own counters, where the optimizer sends it."""
        optimizer = self.trainer.optimizers[0]
        if not isinstance(optimizer, torchdion.optimizer.Optimizer):
            return None
        traffic = optimizer.stats()["traffic"]
        total: int = sum(kind["bytes"] for axis in traffic.values() for kind in axis.values())
        return total / self.trainer.step / 1e6 if total else None

    def slowest(self) -> dict[str, float]:
        """The medians of the slowest rank."""
        own = [statistics.median(values) for values in (self.seconds, self.optimizer_seconds, self.megabytes)]
        slowest = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return dict(zip(("seconds", "optimizer seconds", "megabytes"), slowest.tolist(), strict=True))


def set_rate(links: Links, rate: float | None) -> None:
    """On all ranks at once; None: full speed."""
    dist.barrier()
    if dist.get_rank() == 0:
        links.throttle(rate)
    dist.barrier()


def at_rate(links: Links, rate: float | None, contenders: dict[str, Contender], rounds: int) -> list[dict[str, Any]]:
    """Steps in turn over links of this rate."""
    set_rate(links, rate)
    of_link = {} if rate is None else {"Mbit/s": rate / 1e6, "measured Mbit/s": measured_rate(rate) / 1e6}
    for contender in contenders.values():
        contender.forget()
    turns = {name: contender.turn for name, contender in contenders.items()}
    _, gflops = interleaved(turns, rounds, lambda index: dist.barrier())
    return [
        {**of_link, "optimizer": name, **contender.slowest(), "counted megabytes": contender.counted_megabytes(),
         "gflops": gflops / 1e9}
        for name, contender in contenders.items()
    ]  # fmt: skip


def measured_rate(rate: float) -> float:
    """Bits per second and direction of a plain all-reduce, of which a rank sends 2 (n − 1) / n of its tensor."""
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    tensor = torch.zeros(int(PROBE_SECONDS * rate / 32 / share))
    dist.all_reduce(tensor[:1])  # all are here
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return share * tensor.nbytes * 8 / (time.perf_counter() - start)
