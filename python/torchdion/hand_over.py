"""What a step hands to the C++ engine: parameters, gradients, states and hyperparameters, by algorithm."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.parameters import algorithm_of, check_gradient
from torchdion.state import check_keys, create_state

_STATES = {
    "dion": ("momentum", "Q", "step"),
    "lion": ("momentum", "step"),
    "adamw": ("momentum", "variance", "step"),
}


def engine_groups(optimizer: Optimizer) -> _C.Groups:
    """The parameters that have gradients, in the engine's terms. Creates states that are missing."""
    groups = _C.Groups()
    for group in optimizer.param_groups:
        params: dict[str, list[Tensor]] = {algorithm: [] for algorithm in _STATES}
        for param in group["params"]:
            if param.grad is not None:
                check_gradient(param)
                params[algorithm_of(param, group)].append(param)
        for algorithm, members in params.items():
            if members:
                _ADD[algorithm](groups, _lists(optimizer, members, group, _STATES[algorithm]), group)
    return groups


def _shared(group: dict[str, Any]) -> dict[str, Any]:
    lr = float(group["lr"]) * group["lr_scale"]
    return {"lr": lr, "weight_decay": group["weight_decay"], "maximize": group["maximize"]}


def _add_dion(groups: _C.Groups, lists: list[list[Tensor]], group: dict[str, Any]) -> None:
    hyper = _C.DionHyperparameters(
        **_shared(group),
        mu=group["mu"],
        orthonormalize=_C.Orthonormalize.__members__[group["orthonormalize"]],
        rcqr_oversample=group["rcqr_oversample"],
        seed=group["seed"],
    )
    form = (group["batch_dims"] or 0, group["blocks"], group["fan_in_first"])
    groups.add_dion(*lists, hyper, *form, _C.Orientation.__members__[group["orientation"]])


def _add_lion(groups: _C.Groups, lists: list[list[Tensor]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    groups.add_lion(*lists, _C.LionHyperparameters(**_shared(group), beta1=beta1, beta2=beta2))


def _add_adamw(groups: _C.Groups, lists: list[list[Tensor]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    hyper = _C.AdamWHyperparameters(**_shared(group), beta1=beta1, beta2=beta2, epsilon=group["epsilon"])
    groups.add_adamw(*lists, hyper)


_ADD = {"dion": _add_dion, "lion": _add_lion, "adamw": _add_adamw}


def _lists(
    optimizer: Optimizer, params: list[Tensor], group: dict[str, Any], keys: tuple[str, ...]
) -> list[list[Tensor]]:
    """The parameters, their gradients and the named states, each as a list."""
    states = [optimizer.state[param] for param in params]
    if not all(states):
        indices = _indices(optimizer)
        for param, state in zip(params, states, strict=True):
            if not state:
                state.update(create_state(param, group, indices[param]))
    for param, state in zip(params, states, strict=True):
        check_keys(param, state, keys)
    gradients = [param.grad for param in params if param.grad is not None]
    return [params, gradients, *([state[key] for state in states] for key in keys)]


def _indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """Each parameter's place among all: what Q's start is drawn by."""
    every = (param for group in optimizer.param_groups for param in group["params"])
    return {param: index for index, param in enumerate(every)}
