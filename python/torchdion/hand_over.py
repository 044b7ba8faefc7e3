"""What a step hands to the C++ engine: parameters, gradients, states and hyperparameters, by algorithm."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchdion import _C
from torchdion.options import check_group
from torchdion.parameters import algorithm_of, check_gradient, form_of
from torchdion.state import STATES, check_keys, create_state


def engine_groups(optimizer: Optimizer, created: list[Tensor]) -> _C.Groups:
    """The parameters that have gradients, in the engine's terms.

    Args:
        created: gets the parameters whose states were missing and are new.

    Raises:
        ValueError: an option that was set after construction is out of its range, or a state or a gradient cannot be.
    """
    groups = _C.Groups()
    for index, group in enumerate(optimizer.param_groups):
        check_group(group, f" (parameter group {index})")
        params: dict[str, list[Tensor]] = {algorithm: [] for algorithm in STATES}
        for param in group["params"]:
            if param.grad is not None:
                check_gradient(param)
                params[algorithm_of(param, group)].append(param)
        for algorithm, members in params.items():
            if members:
                _ADD[algorithm](groups, _lists(optimizer, members, group, STATES[algorithm], created), group)
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
    groups.add_dion(*lists, hyper, *form_of(group), _C.Orientation.__members__[group["orientation"]], [], [])


def _add_lion(groups: _C.Groups, lists: list[list[Tensor]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    groups.add_lion(*lists, _C.LionHyperparameters(**_shared(group), beta1=beta1, beta2=beta2), [])


def _add_adamw(groups: _C.Groups, lists: list[list[Tensor]], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    hyper = _C.AdamWHyperparameters(**_shared(group), beta1=beta1, beta2=beta2, epsilon=group["epsilon"])
    groups.add_adamw(*lists, hyper, [])


_ADD = {"dion": _add_dion, "lion": _add_lion, "adamw": _add_adamw}


def _lists(
    optimizer: Optimizer, params: list[Tensor], group: dict[str, Any], keys: tuple[str, ...], created: list[Tensor]
) -> list[list[Tensor]]:
    """The parameters, their gradients and the named states, each as a list."""
    states = [optimizer.state.get(param, {}) for param in params]
    if not all(states):
        indices = _indices(optimizer)
        for place, param in enumerate(params):
            if not states[place]:
                states[place] = create_state(param, group, indices[param])
                optimizer.state[param] = states[place]
                created.append(param)
    for param, state in zip(params, states, strict=True):
        check_keys(param, state, keys)
    gradients = [param.grad for param in params if param.grad is not None]
    return [params, gradients, *([state[key] for state in states] for key in keys)]


def _indices(optimizer: Optimizer) -> dict[Tensor, int]:
    """Each parameter's place among all: what Q's start is drawn by."""
    every = (param for group in optimizer.param_groups for param in group["params"])
    return {param: index for index, param in enumerate(every)}
