"""capturable=True on the CPU: rates and counts are read where they lie, and the devices decide about skipped steps."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdion

SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "wide": ((12, 20), {}),
    "tall": ((20, 12), {"lr_multiplier": 0.5}),
    "vector": ((7,), {}),
    "head": ((9, 6), {"algorithm": "adamw"}),
}


def made(**options: Any) -> tuple[list[nn.Parameter], torchdion.Dion]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape, _ in SHAPES.values()]
    groups = [{"params": [param], **keys} for param, (_, keys) in zip(params, SHAPES.values(), strict=True)]
    return params, torchdion.Dion(groups, rank_fraction=0.5, **options)


def give_gradients(params: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)


def trained(steps: int, **options: Any) -> list[Tensor]:
    params, optimizer = made(**options)
    for step in range(steps):
        give_gradients(params, step)
        optimizer.step()
    return [param.detach() for param in params]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("orthonormalize", ["auto", "rcqr"])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_steps_are_those_of_any_other_optimizer(as_tensors: bool, orthonormalize: str) -> None:
    rates: dict[str, Any] = {"lr": 0.03125, "weight_decay": 0.125}
    expected = trained(3, **rates, orthonormalize=orthonormalize)
    if as_tensors:
        rates = {name: torch.tensor(value) for name, value in rates.items()}
    assert equal(trained(3, **rates, orthonormalize=orthonormalize, capturable=True), expected)


def test_rates_are_read_at_each_step() -> None:
    lr, weight_decay = torch.tensor(0.5), torch.tensor([0.5])
    params, optimizer = made(lr=lr, weight_decay=weight_decay, capturable=True)
    others, reference = made(lr=0.25, weight_decay=0.125)
    lr.fill_(0.25)
    weight_decay.fill_(0.125)
    for every in (params, others):
        give_gradients(every, 0)
    optimizer.step()
    reference.step()
    assert equal([param.detach() for param in params], [param.detach() for param in others])


def test_a_schedule_writes_into_the_tensor() -> None:
    params, optimizer = made(lr=torch.tensor(0.5), capturable=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    give_gradients(params, 0)
    optimizer.step()
    schedule.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        assert group["lr"] is rate
        assert float(rate) == 0.25


def test_a_skipped_step_changes_nothing_and_is_counted() -> None:
    params, optimizer = made(nonfinite="skip_step", capturable=True)
    give_gradients(params, 0)
    optimizer.step()
    before = copy.deepcopy((params, optimizer.state_dict()["state"]))
    give_gradients(params, 1)
    assert params[0].grad is not None
    params[0].grad[2, 3] = float("nan")
    optimizer.step()
    assert equal(params, before[0])
    for index, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[key], before[1][index][key]) for key in state)
    stats = optimizer.stats()
    assert (stats["steps"], stats["skipped_steps"], stats["nonfinite_entries"]) == (2, 1, 1)


def test_a_gradient_scaler_leaves_out_a_step_that_overflowed_and_undoes_its_scale() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    params, optimizer = made(capturable=True)
    for step, overflows in enumerate((False, True, False)):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        loss = sum((param * torch.randn(param.shape, generator=generator)).sum() for param in params)
        if overflows:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    others, reference = made()
    for step in (0, 2):
        give_gradients(others, step)
        reference.step()
    for param, other in zip(params, others, strict=True):
        assert torch.allclose(param, other, rtol=1e-5, atol=1e-6)
    assert optimizer.stats()["skipped_steps"] == 1
    assert all(float(state["step"]) == 2 for state in optimizer.state.values())


def test_checkpoints_move_between_optimizers_that_are_capturable_and_others() -> None:
    for first, second in ((True, False), (False, True)):
        params, optimizer = made(capturable=first)
        give_gradients(params, 0)
        optimizer.step()
        others, other = made(capturable=second)
        for param, source in zip(others, params, strict=True):
            param.data.copy_(source.data)
        other.load_state_dict(optimizer.state_dict())
        assert all(group["capturable"] is second for group in other.param_groups)
        for every, its in ((params, optimizer), (others, other)):
            give_gradients(every, 1)
            its.step()
        assert equal([param.detach() for param in params], [param.detach() for param in others])


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("nonfinite", "raise", "the host would wait for the device"),
        ("orthonormalize", "qr", "the host would wait for the device"),
        ("factorization", "svd", "the host would wait for the device"),
        ("delayed", True, "a part of its work goes on after the step"),
    ],
)
def test_what_no_graph_captures_is_refused(name: str, value: str | bool, why: str) -> None:
    made = torchdion.DoubleDion if name == "delayed" else torchdion.Dion
    with pytest.raises(ValueError, match=f"{name}={value!r} cannot be combined with capturable=True: {why}"):
        made([nn.Parameter(torch.randn(4, 5))], **{name: value}, capturable=True)


def test_a_rate_of_integers_on_the_device_is_refused() -> None:
    params, optimizer = made(lr=torch.tensor(1), capturable=True)
    give_gradients(params, 0)
    with pytest.raises(ValueError, match="lr must be floating-point as a tensor on the device"):
        optimizer.step()


def test_the_host_of_a_training_step_is_not_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(1, capturable=True)


def test_capturable_is_the_whole_optimizers_and_cannot_be_set_later() -> None:
    params, optimizer = made()
    give_gradients(params, 0)
    optimizer.param_groups[1]["capturable"] = True
    sentence = r"capturable must be the same in all groups, got True \(parameter group 1\) beside False$"
    with pytest.raises(ValueError, match=sentence):
        optimizer.step()
    for group in optimizer.param_groups:
        group["capturable"] = True
    with pytest.raises(ValueError, match=r"capturable must be what it was at construction, got True$"):
        optimizer.step()
