"""A group is looked at at every step, which costs little where nobody wrote into it."""

import copy
import gc
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy
import pytest
import torch
from torch.nn import Parameter

import torchdion
from torchdion.written_keys import Snapshot, look_at


def parameters() -> list[Parameter]:
    return [Parameter(torch.linspace(-1, 1, 24).reshape(6, 4).clone()), Parameter(torch.ones(5))]


def step(optimizer: torch.optim.Optimizer, salt: int = 1) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.cos(torch.arange(float(param.numel())) * salt).reshape(param.shape)
    optimizer.step()


def test_a_snapshot_is_current_until_someone_writes() -> None:
    group: dict[str, Any] = {"params": [], "lr": 0.1, "mu": 0.9, "weight_decay": torch.tensor(0.1)}
    snapshot = Snapshot(group)
    assert not snapshot.is_current()  # never looked at
    snapshot.remember()
    assert snapshot.is_current()
    group.update(lr=0.2, params=[1], initial_lr=0.1)  # rates and parameters are no news, but a key is
    assert not snapshot.is_current()
    assert snapshot.written_in(group) == set()
    snapshot.remember()
    for written in ({"mu": 0.8}, {"momentum": 0.8}, {"weight_decay": torch.tensor(0.2)}):
        group.update(written)
        assert not snapshot.is_current()
        assert snapshot.written_in(group) == written.keys()
        snapshot.remember()
        assert snapshot.is_current()
    del group["momentum"]
    group["other"] = 1
    assert not snapshot.is_current()


def calls_of(act: Callable[[], object]) -> int:
    """How many functions of Python, or of C that it calls, the act runs through."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_a_step_with_unchanged_groups_looks_at_each_by_a_few_calls() -> None:
    optimizer = torchdion.Muon(parameters())
    step(optimizer)
    [snapshot] = optimizer._snapshots
    assert calls_of(lambda: look_at([snapshot.group], [snapshot], optimizer.defaults, {})) < 20
    assert snapshot.is_current()


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


def sentences_of(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in caught]


def test_a_dict_in_the_place_of_a_group_says_what_it_says_as_if_it_were_written_into_the_group() -> None:
    params = parameters()
    optimizer = torchdion.Dion([{"params": params, "momentum": 0.9}])
    step(optimizer)
    written = {"momentum": 0.4, "rank_fraction": 0.25, "weight_deca": 0.1}
    optimizer.param_groups[0] = {**optimizer.param_groups[0], **written}
    sentences = sentences_of(lambda: step(optimizer))
    assert optimizer.param_groups[0]["mu"] == 0.4
    assert [
        words for words in ("until resize_rank()", "did you mean 'weight_decay'?") for one in sentences if words in one
    ] == [
        "until resize_rank()",
        "did you mean 'weight_decay'?",
    ]
    assert len(sentences) == 2
    optimizer.param_groups = [{**group, "weight_deca": 0.2, "rank_fraction": 0.125} for group in optimizer.param_groups]
    assert sentences_of(lambda: step(optimizer)) == []  # which was said of the dict before


def test_parts_of_a_group_that_a_program_has_split_go_on_from_it() -> None:
    optimizer = torchdion.Muon([{"params": parameters(), "momentum": 0.9}])
    step(optimizer)
    [group] = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": [param], "momentum": 0.5} for param in group["params"]]
    assert sentences_of(lambda: step(optimizer)) == []
    assert [part["mu"] for part in optimizer.param_groups] == [0.5, 0.5]


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.deepcopy,
    "pickled": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_refuses_what_the_original_refuses(how: str) -> None:
    optimizer = torchdion.Muon(parameters())
    step(optimizer)
    optimizer.param_groups[0]["momentum"] = 1.5
    other = COPIES[how](optimizer)
    for each in (optimizer, other):
        with pytest.raises(
            ValueError, match=r"^torchdion.Muon: mu must be in \[0, 1\), got 1.5 .*, given as 'momentum'"
        ):
            step(each)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_does_not_repeat_a_warning(how: str) -> None:
    optimizer = torchdion.Dion(parameters())
    step(optimizer)
    optimizer.param_groups[0]["rank_fraction"] = 0.5
    assert len(sentences_of(lambda: step(optimizer))) == 1
    other = COPIES[how](optimizer)
    other.param_groups[0]["rank_fraction"] = 0.25
    assert sentences_of(lambda: step(other)) == []


def test_a_key_is_warned_of_once_for_each_reason() -> None:
    optimizer = torchdion.Dion(parameters()[:1])
    step(optimizer)
    [group] = optimizer.param_groups
    group["rank_fraction"] = 0.5
    [fixed] = sentences_of(lambda: step(optimizer))
    optimizer.state.clear()
    group.update(algorithm="muon", rank_fraction=0.25)
    [of_others] = sentences_of(lambda: step(optimizer))
    assert "keep their rank until resize_rank() is called" in fixed
    assert "is kept and ignored: it is an option of dion, double_dion, which no parameter" in of_others


@pytest.mark.filterwarnings("error")
def test_numpys_values_of_keys_of_the_dion_package_are_taken_later_as_they_are_at_the_door() -> None:
    params = [Parameter(torch.ones(2, 8, 3))]
    written = {"num_heads": numpy.int64(4), "flatten": numpy.bool_(False)}
    [group] = torchdion.Muon([{"params": params, **written}]).param_groups
    assert (group["blocks"], group["batch_dims"]) == (4, 1)
    optimizer = torchdion.Muon([{"params": params, "batch_dims": 1}])
    optimizer.param_groups[0].update(written)
    step(optimizer)
    [group] = optimizer.param_groups
    assert (group["blocks"], group["batch_dims"]) == (4, 1)


@pytest.mark.parametrize(("key", "most"), [("count", 120), ("weight_decay", 200), ("momentum", 200)])
def test_a_look_at_a_schedule_takes_few_calls_and_fewer_where_nothing_is_ours(key: str, most: int) -> None:
    optimizer = torchdion.Muon([{"params": parameters(), "momentum": 0.5, "use_muon": True, "count": 0.5}])
    step(optimizer)
    [group] = optimizer.param_groups
    group[key] = 1.1 - group[key]
    assert calls_of(lambda: look_at([group], optimizer._snapshots, optimizer.defaults, optimizer.state)) < most


@pytest.mark.parametrize("made_by", [torchdion.Muon, torchdion.AdamW])
def test_a_parameter_that_a_program_takes_out_of_a_group_is_freed(made_by: Any) -> None:
    optimizer = made_by(parameters())
    step(optimizer)
    gone = weakref.ref(optimizer.param_groups[0]["params"][0])
    del optimizer.state[optimizer.param_groups[0]["params"].pop(0)]
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: (tensor, 0.5)], ids=["alone", "in a pair"])
def test_a_tensor_without_memory_that_replaces_another_is_compared_with_nothing(wrap: Any) -> None:
    freed = torch.tensor(0.25)
    freed.untyped_storage().resize_(0)
    X = torch.nn.Parameter(torch.ones(6, 4))
    optimizer = torchdion.Muon([{"params": [X], "theirs": wrap(torch.tensor(0.25))}])
    for _ in range(2):
        X.grad = torch.ones(6, 4)
        optimizer.step()
        optimizer.param_groups[0]["theirs"] = wrap(freed)
    assert optimizer.state[X]["step"] == 2
