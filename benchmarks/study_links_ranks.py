"""What each rank of study_links.py does: it trains with every contender, at full speed and over limited links."""

from dataclasses import dataclass
from typing import Any

import options
import torch
from link_steps import WARM_UP, Contender, at_rate, meet
from links import Links
from parallel import ManyProcesses
from processes import Job
from train import open_data
from trainer import Trainer


@dataclass(frozen=True)
class Plan:
    flags: dict[str, dict[str, Any]]  # by contender, those of a cell
    rates: tuple[float, ...]  # bits per second
    rounds: int
    store: str  # a file where the ranks meet


def time_steps(rank: int, world_size: int, links: Links, plan: Plan) -> list[dict[str, Any]]:
    """On each rank: rows of all contenders, at full speed and at each rate."""
    meet(links, rank, world_size, plan.store)
    processes = {compress: ManyProcesses(Job(dp=world_size, compress=compress), "cpu") for compress in (True, False)}
    contenders = {}
    device = torch.device("cpu")
    for name, flags in plan.flags.items():
        own = {flag: value for flag, value in flags.items() if flag not in ("dp", "compress", "until_loss")}
        recipe = options.recipe(own, device)
        train, validation = open_data(recipe)
        trainer = Trainer(recipe, device, train, validation, False, processes[flags.get("compress", False)])
        contenders[name] = Contender(trainer)
        contenders[name].train_until(WARM_UP)
    rows = [
        row | {"rate": rate} for rate in (None, *plan.rates) for row in at_rate(links, rate, contenders, plan.rounds)
    ]
    return rows
