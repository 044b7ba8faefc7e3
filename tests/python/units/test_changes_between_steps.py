"""Whatever a program changes between two steps is noticed: the next step is that of an optimizer that is made then."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import torchdion
from torchdion.optimizer import Optimizer

SHAPES = [(6, 4), (4, 6), (5,), (3, 4, 4)]
MADE: dict[str, Callable[..., Optimizer]] = {
    "dion": lambda groups: torchdion.Dion(groups, lr=0.1, rank_fraction=0.5),
    "muon": lambda groups: torchdion.Muon(groups, lr=0.1),
    "adamw": lambda groups: torchdion.AdamW(groups, lr=0.1),
}


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def give_gradients(optimizer: Optimizer, seed: int) -> None:
    for group in optimizer.param_groups:
        for index, param in enumerate(group["params"]):
            if param.requires_grad:
                param.grad = numbers(tuple(param.shape), seed + index).to(param.dtype)


def trained(name: str) -> Optimizer:
    """After three steps in which nothing has changed, in two groups."""
    params = [Parameter(numbers(shape, index)) for index, shape in enumerate(SHAPES)]
    optimizer = MADE[name]([{"params": params[:2]}, {"params": params[2:], "batch_dims": 1}])
    for step in range(3):
        give_gradients(optimizer, 10 * step)
        optimizer.step()
    return optimizer


def copy_of(tensor: Tensor) -> Tensor:
    """With strides of its own."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor.detach())


def made_now(name: str, optimizer: Optimizer) -> Optimizer:
    """An optimizer of copies of all that the other one's program has."""
    groups: list[dict[str, Any]] = []
    states: list[tuple[Parameter, dict[str, Tensor]]] = []
    for group in optimizer.param_groups:
        groups.append({key: value for key, value in group.items() if key != "params"} | {"params": []})
        for param in group["params"]:
            twin = Parameter(copy_of(param), requires_grad=param.requires_grad)
            if param.grad is not None:
                twin.grad = copy_of(param.grad)
            groups[-1]["params"].append(twin)
            if param in optimizer.state:
                states.append((twin, {key: value.clone() for key, value in optimizer.state[param].items()}))
    fresh = MADE[name](groups)
    fresh.state.update(states)
    return fresh


def first(optimizer: Optimizer) -> Parameter:
    param: Parameter = optimizer.param_groups[0]["params"][0]
    return param


def write(**options: Any) -> Callable[[Optimizer], object]:
    return lambda optimizer: optimizer.param_groups[0].update(options)


def exchange_dict(optimizer: Optimizer) -> None:
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.3}


def exchange_list(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["params"] = list(optimizer.param_groups[0]["params"])[:1]


def exchange_parameter(optimizer: Optimizer) -> None:
    """As wrappers do, which take the state along."""
    old, new = first(optimizer), Parameter(first(optimizer).detach() * 2)
    new.grad = old.grad
    optimizer.state[new] = optimizer.state.pop(old)
    optimizer.param_groups[0]["params"][0] = new


def exchange_order(optimizer: Optimizer) -> None:
    optimizer.param_groups.reverse()


def exchange_data(optimizer: Optimizer) -> None:
    first(optimizer).data = first(optimizer).detach() * 2


def turn_data(optimizer: Optimizer) -> None:
    param = first(optimizer)
    param.data = param.detach().t().contiguous().t()


def turn_gradient(optimizer: Optimizer) -> None:
    param = first(optimizer)
    param.grad = param.grad.t().contiguous().t()


def halve_data(optimizer: Optimizer) -> None:
    param = first(optimizer)
    param.grad = None
    param.data = param.detach().to(torch.bfloat16)
    param.grad = numbers((6, 4), 77).to(torch.bfloat16)


def no_gradient(optimizer: Optimizer) -> None:
    first(optimizer).grad = None


def freeze(optimizer: Optimizer) -> None:
    """With the gradient that it had."""
    first(optimizer).requires_grad_(False)


def exchange_momentum(optimizer: Optimizer) -> None:
    state = optimizer.state[first(optimizer)]
    state["momentum"] = state["momentum"] * 2


_KEPT: list[Tensor] = []


def exchange_and_keep_momentum(optimizer: Optimizer) -> None:
    """The old tensor lives on: that it is gone tells nothing."""
    _KEPT.append(optimizer.state[first(optimizer)]["momentum"])
    exchange_momentum(optimizer)


def write_momentum(optimizer: Optimizer) -> None:
    optimizer.state[first(optimizer)]["momentum"].mul_(2)


def exchange_state(optimizer: Optimizer) -> None:
    optimizer.state[first(optimizer)] = {key: value * 2 for key, value in optimizer.state[first(optimizer)].items()}


def count_otherwise(optimizer: Optimizer) -> None:
    optimizer.state[first(optimizer)]["step"] = torch.tensor(40, dtype=torch.int64)


def drop_state(optimizer: Optimizer) -> None:
    del optimizer.state[first(optimizer)]


def add_group(optimizer: Optimizer) -> None:
    more = Parameter(numbers((4, 4), 5))
    more.grad = numbers((4, 4), 6)
    optimizer.add_param_group({"params": [more]})


def remove_group(optimizer: Optimizer) -> None:
    for param in optimizer.param_groups.pop()["params"]:
        del optimizer.state[param]


CHANGES: dict[str, Callable[[Optimizer], object]] = {
    "nothing": lambda optimizer: None,
    "a rate": write(lr=0.3),
    "a rate that is a tensor": write(lr=torch.tensor(0.3)),
    "weight decay": write(weight_decay=0.2),
    "a flag": write(maximize=True),
    "an array": write(weight_decay=np.array(0.2)),
    "betas": write(betas=(0.5, 0.6)),
    "a group for another dict": exchange_dict,
    "the list of parameters": exchange_list,
    "a parameter": exchange_parameter,
    "the order of groups": exchange_order,
    "data": exchange_data,
    "strides": turn_data,
    "strides of a gradient": turn_gradient,
    "the dtype": halve_data,
    "no gradient": no_gradient,
    "requires_grad": freeze,
    "a state": exchange_momentum,
    "a state that the program keeps": exchange_and_keep_momentum,
    "numbers of a state": write_momentum,
    "the dict of a state": exchange_state,
    "a count": count_otherwise,
    "no state": drop_state,
    "another group": add_group,
    "a group less": remove_group,
}


@pytest.mark.filterwarnings("ignore:.*betas.*another β₁")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", MADE)
def test_a_change_is_noticed(name: str, change: Callable[[Optimizer], object]) -> None:
    optimizer = trained(name)
    give_gradients(optimizer, 100)
    change(optimizer)
    fresh = made_now(name, optimizer)
    for step in range(2):
        for each in (optimizer, fresh):
            if step:
                give_gradients(each, 200)
            each.step()
        for group, other in zip(optimizer.param_groups, fresh.param_groups, strict=True):
            for param, twin in zip(group["params"], other["params"], strict=True):
                assert torch.equal(param, twin)
                states = optimizer.state.get(param, {}), fresh.state.get(twin, {})
                assert states[0].keys() == states[1].keys()
                assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", MADE)
def test_a_rate_that_is_a_tensor_is_read_anew(name: str) -> None:
    optimizer = trained(name)
    rate = torch.tensor(0.25)
    optimizer.param_groups[0]["lr"] = rate
    give_gradients(optimizer, 100)
    optimizer.step()
    rate.fill_(0.75)
    give_gradients(optimizer, 200)
    fresh = made_now(name, optimizer)
    fresh.param_groups[0]["lr"] = 0.75
    optimizer.step()
    fresh.step()
    assert torch.equal(first(optimizer), first(fresh))


@pytest.mark.parametrize("name", MADE)
def test_a_hook_before_the_step_is_heard(name: str) -> None:
    optimizer = trained(name)
    give_gradients(optimizer, 100)
    fresh = made_now(name, optimizer)
    fresh.param_groups[0]["lr"] = 0.3
    optimizer.register_step_pre_hook(lambda own, *_: own.param_groups[0].update(lr=0.3))
    optimizer.step()
    fresh.step()
    assert torch.equal(first(optimizer), first(fresh))
