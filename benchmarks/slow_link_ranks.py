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

# By name: the flags of examples/gpt, and whether Dion averages its factors where the others have DDP average gradients.
# Learning rates are examples/gpt's, except AdamW's: of 0.0005, 0.001, 0.002 and 0.005 the one of the lowest loss after
# 60 steps.
CONTENDERS: dict[str, tuple[dict[str, Any], bool]] = {
    "Dion r = d/16": ({"optimizer": "dion", "rank_fraction": 1 / 16}, True),
    "Dion r = d/4": ({"optimizer": "dion", "rank_fraction": 1 / 4}, True),
    "Dion r = d/16, dense": ({"optimizer": "dion", "rank_fraction": 1 / 16}, False),
    "Muon (torch)": ({"optimizer": "torch_muon"}, False),
    "AdamW": ({"optimizer": "torch_adamw", "lr": 0.001}, False),
}
PROBE_SECONDS = 0.25  # how long the all-reduce that measures the links should take


@dataclass(frozen=True)
class Plan:
    flags: dict[str, Any]  # of examples/gpt, for all contenders
    steps: int  # of each contender, those at full speed and those timed
    rates: tuple[float, ...]  # bits per second
    rounds: int  # steps timed at each rate
    store: str  # a file where the ranks meet


class Contender:
    """One optimizer's training, and what its last steps took."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.forget()

    def forget(self) -> None:
        self.optimizer_seconds: list[float] = []
        self.megabytes: list[float] = []

    def step(self) -> None:
        before = sent_bytes()
        report = self.trainer.train_step()
        self.optimizer_seconds.append(report.optimizer_ms / 1e3)
        self.megabytes.append((sent_bytes() - before) / 1e6)

    def counted_megabytes(self) -> float | None:
        """What a step sends by the optimizer's own counters, where the optimizer sends it."""
        optimizer = self.trainer.optimizers[0]
        traffic = optimizer.stats()["traffic"] if isinstance(optimizer, torchdion.Dion) else {}
        total: int = sum(kind["bytes"] for axis in traffic.values() for kind in axis.values())
        return total / self.trainer.step / 1e6 if total else None


def train(rank: int, world_size: int, links: Links, plan: Plan) -> list[dict[str, Any]]:
    """One row for each rate and contender."""
    dist.destroy_process_group()  # through the host's loopback device
    links.enter(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    store = dist.FileStore(plan.store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    contenders = enlist(world_size, plan)
    for _ in range(plan.steps - plan.rounds * len(plan.rates)):
        for contender in contenders.values():
            contender.step()
    rows = [row for rate in plan.rates for row in at_rate(links, rate, contenders, plan.rounds)]
    losses = {name: contender.trainer.validate() for name, contender in contenders.items()}
    parameters = sum(parameter.numel() for parameter in contenders["AdamW"].trainer.model.parameters())
    recipe = contenders["AdamW"].trainer.recipe
    tokens = recipe.batch // world_size * recipe.context
    common = {"parameters": parameters, "tokens": tokens, "dtype": recipe.dtype, "steps": plan.steps}
    return [{"ranks": world_size, **row, "loss": losses[row["optimizer"]], **common} for row in rows]


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


def at_rate(links: Links, rate: float, contenders: dict[str, Contender], rounds: int) -> list[dict[str, Any]]:
    """Steps in turn over links of this rate; the slowest rank's medians."""
    dist.barrier()
    if dist.get_rank() == 0:
        links.throttle(rate)
    dist.barrier()
    link = measured_rate(rate)
    for contender in contenders.values():
        contender.forget()
    steps = {name: contender.step for name, contender in contenders.items()}
    seconds, gflops = interleaved(steps, rounds, lambda index: dist.barrier())
    rows = []
    for name, contender in contenders.items():
        own = (seconds[name], *map(statistics.median, (contender.optimizer_seconds, contender.megabytes)))
        slowest = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        columns = dict(zip(("seconds", "optimizer seconds", "megabytes"), slowest.tolist(), strict=True))
        row = {"Mbit/s": rate / 1e6, "measured Mbit/s": link / 1e6, "optimizer": name, **columns}
        rows.append({**row, "counted megabytes": contender.counted_megabytes(), "gflops": gflops / 1e9})
    return rows


def measured_rate(rate: float) -> float:
    """Bits per second and direction of a plain all-reduce, of which a rank sends 2 (n − 1) / n of its tensor."""
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    tensor = torch.zeros(int(PROBE_SECONDS * rate / 32 / share))
    dist.all_reduce(tensor[:1])  # all are here
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return share * tensor.nbytes * 8 / (time.perf_counter() - start)
