"""What each rank of slow_link.py does: it trains one GPT with every optimizer, at full speed and over limited links."""

from dataclasses import dataclass
from typing import Any

import corpus
import options
import torch
from data import Windows
from link_steps import WARM_UP, Contender, at_rate, meet, set_rate
from links import Links
from parallel import ManyProcesses
from processes import Job
from trainer import Trainer

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


@dataclass(frozen=True)
class Plan:
    flags: dict[str, Any]  # of examples/gpt, for all contenders
    steps: int  # of each contender
    rates: tuple[float, ...]  # bits per second
    rounds: int  # steps timed at full speed, and at each rate
    store: str  # a file where the ranks meet


def train(rank: int, world_size: int, links: Links, plan: Plan) -> list[dict[str, Any]]:
    """One row for each rate and contender."""
    meet(links, rank, world_size, plan.store)
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
