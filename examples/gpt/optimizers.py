"""The optimizers to compare: each name gives one or two that together own every parameter."""

from typing import Any

import own_optimizer
from errors import Problem
from model import GPT
from presets import TORCHDION
from torch import nn
from torch.optim import AdamW, Muon, Optimizer


def build(name: str, model: GPT, hyperparameters: dict[str, Any], seed: int) -> list[Optimizer]:
    """The optimizers called `name`; `hyperparameters` are those that presets.py lists for it."""
    if name in TORCHDION:
        return [_torchdion(name, model, hyperparameters, seed)]
    if own_optimizer.is_own(name):
        return own_optimizer.build(name, model, hyperparameters, seed)
    if name == "torch_adamw":
        return [_adamw(model, hyperparameters)]
    return _torch_muon(model, hyperparameters)


def matrices(model: GPT) -> list[nn.Parameter]:
    """The blocks' weights; the embedding and the head are matrices in shape alone."""
    return list(model.blocks.parameters())


def _torchdion(name: str, model: GPT, hyperparameters: dict[str, Any], seed: int) -> Optimizer:
    """Its own algorithm for the blocks' matrices; for embedding and head Lion or AdamW, one of which may be its own."""
    try:
        import torchdion
    except ImportError as error:
        raise Problem(f"torchdion cannot be imported ({error}); run `make build` first") from error
    own = dict(hyperparameters)
    groups: list[dict[str, Any]] = _by_weight_decay(model, own["weight_decay"])
    of_entries = name in ("lion", "adamw")  # which leave nothing to another rule unless they are told so
    scalar_lr = own.pop("scalar_lr", None)
    scalar_algorithm = own.pop("scalar_algorithm", None) if of_entries else own.get("scalar_algorithm")
    if name != "dist_adamw" and not (of_entries and scalar_lr is scalar_algorithm is None):
        groups = torchdion.param_groups(
            model, weight_decay=own["weight_decay"], scalar_algorithm=scalar_algorithm or name
        )
        for group in groups:
            if group["kind"] != "matrix":
                group["lr_multiplier"] *= (scalar_lr or own["lr"]) / own["lr"]
    try:
        if name in ("dion", "double_dion"):
            own["seed"] = seed
        for option in ("adjust_lr", "residual"):
            if own.get(option) == "none":
                own[option] = None
        of_name = {
            "dion": torchdion.Dion,
            "double_dion": torchdion.DoubleDion,
            "muon": torchdion.Muon,
            "normuon": torchdion.NorMuon,
            "dion2": torchdion.Dion2,
            "dion3": torchdion.Dion3,
            "demo": torchdion.DeMo,
            "lion": torchdion.Lion,
            "adamw": torchdion.AdamW,
            "dist_muon": torchdion.DistMuon,
            "dist_adamw": torchdion.DistAdamW,
        }
        optimizer: Optimizer = of_name[name](groups, **own)
        return optimizer
    except (ValueError, NotImplementedError) as error:
        raise Problem(str(error)) from error


def _by_weight_decay(model: GPT, weight_decay: float) -> list[dict[str, Any]]:
    return [
        {"params": matrices(model), "weight_decay": weight_decay},
        {"params": [model.embedding.weight, model.head.weight], "weight_decay": 0.0},
    ]


def _adamw(model: GPT, hyperparameters: dict[str, Any]) -> Optimizer:
    groups = _by_weight_decay(model, hyperparameters["weight_decay"])
    return AdamW(groups, lr=hyperparameters["lr"], betas=hyperparameters["betas"], eps=hyperparameters["epsilon"])


def _torch_muon(model: GPT, hyperparameters: dict[str, Any]) -> list[Optimizer]:
    muon = Muon(
        matrices(model),
        lr=hyperparameters["lr"],
        weight_decay=hyperparameters["weight_decay"],
        momentum=hyperparameters["mu"],
        nesterov=hyperparameters["nesterov"],
        ns_steps=hyperparameters["ns_steps"],
        adjust_lr_fn=hyperparameters["adjust_lr"],
    )
    others = AdamW(
        [model.embedding.weight, model.head.weight],
        lr=hyperparameters["adamw_lr"],
        betas=hyperparameters["betas"],
        eps=hyperparameters["epsilon"],
        weight_decay=0.0,
    )
    return [muon, others]
