"""What each rank of slow_link.py does: it trains one GPT with every optimizer, at full speed and over limited links."""

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import corpus
import options
import torch
import torch.distributed as dist
from data import Windows
from links import DEVICE, Links, sent_bytes
from measure import interleaved
from parallel import ManyProcesses
from processes import Job
from trainer import Trainer

import torchdion

# By name: the flags of examples/gpt, and whether the optimizer averages what it needs where the others have DDP average
# gradients.
# Learning rates are examples/gpt's, except AdamW's: of 0.0005, 0.001, 0.002 and 0.005 the one of the lowest loss after
# 60 steps.
DOUBLE_DION = {"optimizer": "double_dion", "replicate_rank_fraction": 1 / 64, "rank_fraction": 1 / 4}
CONTENDERS: dict[str, tuple[dict[str, Any], bool]] = {
    "Dion r = d/16": ({"optimizer": "dion", "rank_fraction": 1 / 16}, True),
    "Dion r = d/4": ({"optimizer": "dion", "rank_fraction": 1 / 4}, True),
    "Double Dion d/64, d/4": ({**DOUBLE_DION, "delayed": False}, True),
    "Double Dion d/64, d/4, delayed": ({**DOUBLE_DION, "delayed": True}, True),
    "Dion r = d/16, dense": ({"optimizer": "dion", "rank_fraction": 1 / 16}, False),
    "Muon (torch)": ({"optimizer": "torch_muon"}, False),
    "AdamW": ({"optimizer": "torch_adamw", "lr": 0.001}, False),
}
WARM_UP = 3  # steps: after the first one DistributedDataParallel makes its buckets anew
PROBE_SECONDS = 0.25  # how long the all-reduce that measures the links should take


@dataclass(frozen=True)
class Plan:
    flags: dict[str, Any]  # of examples/gpt, for all contenders
    steps: int  # of each contender
    rates: tuple[float, ...]  # bits per second
    rounds: int  # steps timed at full speed, and at each rate
    store: str  # a file where the ranks meet


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


def train(rank: int, world_size: int, links: Links, plan: Plan) -> list[dict[str, Any]]:
    """One row for each rate and contender."""
    dist.destroy_process_group()  # through the host's loopback device
    links.enter(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    store = dist.FileStore(plan.store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    contenders = enlist(world_size, plan)
    for contender in contenders.values():
        contender.train_until(WARM_UP)
    at_full_speed = at_rate(links, None, contenders, plan.rounds)
    computing = {row["optimizer"]: row["seconds"] for row in at_full_speed}
    rows = [row for rate in plan.rates for row in at_rate(links, rate, contenders, plan.rounds)]
    set_rate(links, None)
    for contender in contenders.values():
        contender.train_until(plan.steps)
    losses = {name: contender.trainer.validate() for name, contender in contenders.items()}
    parameters = sum(parameter.numel() for parameter in contenders["AdamW"].trainer.model.parameters())
    recipe = contenders["AdamW"].trainer.recipe
    tokens = recipe.batch // world_size * recipe.context
    common = {"parameters": parameters, "tokens": tokens, "dtype": recipe.dtype, "steps": plan.steps}
    for row in rows:
        name = row["optimizer"]
        computation, communication = computing[name], row["megabytes"] * 8 / row["measured Mbit/s"]
        row |= {
            "computation": computation,
            "communication": communication,
            "this / larger": row["seconds"] / max(computation, communication),
            "this / sum": row["seconds"] / (computation + communication),
            "loss": losses[name],
        }
    return [{"ranks": world_size, **row, **common} for row in rows]


def enlist(world_size: int, plan: Plan) -> dict[str, Contender]:
    """Each with a model of its own, all from the same weights."""
    device = torch.device("cpu")
    sources = corpus.standard_library()
    processes = {compress: ManyProcesses(Job(dp=world_size, compress=compress), "cpu") for compress in (True, False)}
    contenders = {}
    for name, (flags, compress) in CONTENDERS.items():
        recipe = options.recipe(plan.flags | flags | {"steps": plan.steps}, device)
        train, validation = (Windows(source, recipe.context, recipe.vocab) for source in sources)
        contenders[name] = Contender(Trainer(recipe, device, train, validation, False, processes[compress]))
    return contenders


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
