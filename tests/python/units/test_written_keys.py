"""A group is looked at at every step, which costs little where nobody wrote into it."""

import timeit
import warnings
from typing import Any

import numpy
import pytest
import torch
from torch.nn import Parameter

import torchdion
from torchdion.written_keys import Look, look_at


def parameters() -> list[Parameter]:
    return [Parameter(torch.linspace(-1, 1, 24).reshape(6, 4).clone()), Parameter(torch.ones(5))]


def step(optimizer: torch.optim.Optimizer, salt: int = 1) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.cos(torch.arange(float(param.numel())) * salt).reshape(param.shape)
    optimizer.step()


def test_a_look_is_current_until_someone_writes() -> None:
    group: dict[str, Any] = {"params": [], "lr": 0.1, "mu": 0.9, "weight_decay": torch.tensor(0.1)}
    look = Look(group)
    assert not look.is_current()  # never looked at
    look.remember()
    assert look.is_current()
    group.update(lr=0.2, params=[1], initial_lr=0.1)  # rates and parameters are no news, but a key is
    assert not look.is_current()
    assert look.written_in(group) == set()
    look.remember()
    for written in ({"mu": 0.8}, {"momentum": 0.8}, {"weight_decay": torch.tensor(0.2)}):
        group.update(written)
        assert not look.is_current()
        assert look.written_in(group) == written.keys()
        look.remember()
        assert look.is_current()
    del group["momentum"]
    group["other"] = 1
    assert not look.is_current()


def test_a_step_with_unchanged_groups_looks_for_some_microseconds_a_group() -> None:
    optimizer = torchdion.Muon(parameters())
    step(optimizer)
    [look] = optimizer._looks
    of_all = min(timeit.repeat(lambda: look_at([look.group], [look], optimizer.defaults, {}), number=200, repeat=5))
    assert of_all / 200 < 30e-6  # 3 on an idle core; an option read by the engine takes as long
    assert look.is_current()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rate", [0.02, torch.tensor(0.02)])
def test_a_schedule_of_rates_and_decays_says_nothing_and_holds(rate: Any) -> None:
    optimizer = torchdion.Muon([{"params": parameters(), "weight_decay": rate}], lr=rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for salt in range(4):
        step(optimizer, salt)
        scheduler.step()
        optimizer.param_groups[0]["weight_decay"] = rate * salt
        optimizer.param_groups[0]["note"] = salt
    assert optimizer.param_groups[0]["note"] == 3


def test_a_misspelt_key_that_is_written_later_is_one_warning() -> None:
    optimizer = torchdion.Muon(parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for salt in range(3):
            optimizer.param_groups[0]["weight_decya"] = 0.1 * salt
            step(optimizer, salt)
        optimizer.add_param_group({"params": [Parameter(torch.ones(3))]})
        step(optimizer)
    [sentence] = [str(one.message) for one in caught]
    assert sentence == (
        "torchdion.Muon: unknown option 'weight_decya' (parameter group 0) is kept and ignored; did you mean "
        "'weight_decay'?"
    )


@pytest.mark.filterwarnings("error")
def test_keys_of_the_dion_package_mean_the_same_when_they_are_written_later() -> None:
    optimizer = torchdion.Muon(parameters()[:1])
    [group] = optimizer.param_groups
    group.update(num_heads=3, flatten=True, algorithm="nordion2", selection_scope="global")
    group["mixed_precision_config"] = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.bfloat16)
    step(optimizer)
    assert (group["blocks"], group["batch_dims"], group["algorithm"]) == (3, 0, "dion3")
    assert optimizer.state[group["params"][0]]["momentum"].dtype == torch.bfloat16
    assert not {"num_heads", "flatten", "selection_scope", "mixed_precision_config"} & group.keys()
    expected = torchdion.Dion3([{"params": parameters()[:1], "blocks": 3, "batch_dims": 0,
                                "momentum_dtype": "bfloat16"}])  # fmt: skip
    step(expected)
    assert torch.equal(group["params"][0], expected.param_groups[0]["params"][0])
    group["num_heads"] = 0
    with pytest.raises(ValueError, match=r"^torchdion.Muon: num_heads must be an integer ≥ 1, got 0 \(parameter group"):
        step(optimizer)
    assert group["num_heads"] == 0


@pytest.mark.filterwarnings("error")
def test_groups_that_a_program_puts_in_the_place_of_others_are_looked_at_from_then_on() -> None:
    optimizer = torchdion.Muon([{"params": [param]} for param in parameters()])
    step(optimizer)
    optimizer.param_groups = [dict(group) for group in reversed(optimizer.param_groups)]
    step(optimizer)
    optimizer.param_groups[1]["momentum"] = 0.5
    step(optimizer)
    assert [group["mu"] for group in optimizer.param_groups] == [0.95, 0.5]
    optimizer.param_groups.pop(0)
    optimizer.param_groups[0]["momentum"] = numpy.float64(0.25)
    step(optimizer)
    assert type(optimizer.param_groups[0]["mu"]) is float
    assert optimizer.param_groups[0]["mu"] == 0.25


def test_where_one_group_is_refused_nothing_is_written_into_another() -> None:
    optimizer = torchdion.Muon([{"params": [param]} for param in parameters()])
    first, second = optimizer.param_groups
    first["momentum"], second["kind"] = 0.5, "shampoo"
    with pytest.raises(ValueError, match=r"^torchdion.Muon: kind must be one of .* \(parameter group 1\)$"):
        step(optimizer)
    assert first["mu"] == 0.95
    second["kind"] = "vector"
    step(optimizer)
    assert first["mu"] == 0.5
