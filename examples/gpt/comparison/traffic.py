"""Bytes that a rank sends in a step of data parallelism, by torchdion.plan."""

from functools import cache
from typing import Any

import torch
from model import GPT, Shape

import torchdion
from comparison.cells import Setting, recipe_of

# Flags of train.py that the plan takes too.
PLANNED = ("rank_fraction", "rank_multiple_of", "replicate_rank_fraction", "fraction", "chunk_size", "top_k",
           "orientation", "orthonormalize", "rcqr_oversample", "right_factor", "residual",
           "scalar_algorithm")  # fmt: skip


def sent_bytes(setting: Setting, replicas: int, compress: bool = True) -> int | None:
    """Per rank and step over so many replicas; None for what the plan does not know.

    Args:
        compress: the replicas exchange what the optimizer makes of gradients (its replicate_mesh), not gradients.
    """
    recipe = recipe_of(setting.cell(setting.rates[0], 0))
    name = recipe.optimizer
    if name == "dion":
        has_residual = recipe.hyperparameters.get("residual") in ("scaled", "sign")  # replicas average gradients then
        name = "dion_compressed" if compress and not has_residual else "dion_dense"
    elif not compress or name.startswith("torch_"):
        name = "adamw"  # gradients are averaged, whatever the update
    options = {
        key: value for key, value in recipe.hyperparameters.items() if key in PLANNED and value not in (None, "none")
    }
    estimates = _estimates(recipe.shape, replicas, tuple(options.items()))
    return sum(estimates[name].cost.bytes.values()) if name in estimates else None


@cache
def _estimates(shape: Shape, replicas: int, options: tuple[tuple[str, Any], ...]) -> Any:
    with torch.device("meta"):
        model = GPT(shape)
    return torchdion.plan(model, {"dp": replicas}, **dict(options)).estimates
