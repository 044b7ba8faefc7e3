"""What an optimizer gets after its first step, states or parameters, is compared over replicas as its start was."""

import warnings
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_optimizers import params_of
from torch.nn import LazyLinear, Parameter
from unequal_replicas import (
    calls_of_agreement,
    equal_on_all_ranks,
    flip_a_bit,
    made,
    parameters,
    said_by,
    sentence,
    step,
)


def loaded(rank: int, world_size: int) -> None:
    optimizer = made("Lion", parameters())
    for number in range(2):
        step(optimizer, rank, number)
    state = optimizer.state_dict()
    if rank == 1:
        state["state"][0]["momentum"] = state["state"][0]["momentum"] * 2
    optimizer.load_state_dict(state)
    if rank == 1:
        flip_a_bit(params_of(optimizer)[2])
    [said] = said_by(lambda: step(optimizer, rank, 2))
    names = "parameter 'tall' (parameter group 0), parameter 'vector' (parameter group 0)"
    assert said == sentence("torchdion.Lion", names)
    optimizer.check_replicas()


def test_weights_and_states_after_loading_are_compared_again() -> None:
    run_ranks(loaded, 2)


def loaded_on_one(rank: int, world_size: int, differs: bool) -> None:
    optimizer = made("Lion", parameters())
    step(optimizer, rank)
    optimizer.synchronize_for_checkpoint()
    if rank == 1:
        state = optimizer.state_dict()
        if differs:
            state["state"][1]["momentum"] = -state["state"][1]["momentum"]
        optimizer.load_state_dict(state)
    said = [sentence("torchdion.Lion", "parameter 'square' (parameter group 0)")] if differs else []
    assert said_by(lambda: step(optimizer, rank, 1)) == said
    optimizer.check_replicas()


@pytest.mark.parametrize("differs", [False, True])
def test_what_one_rank_alone_has_loaded_all_compare(differs: bool) -> None:
    run_ranks(loaded_on_one, 2, differs)


def added(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    optimizer.add_param_group({"params": [("more", Parameter(torch.full((6, 4), 1.0 + rank)))]})
    said = said_by(lambda: step(optimizer, rank, 1))
    assert said == [sentence("torchdion.Muon", "parameter 'more' (parameter group 1)")]
    optimizer.check_replicas()


def test_a_group_that_is_added_is_compared_too() -> None:
    run_ranks(added, 2)


def appended(rank: int, world_size: int, name: str, options: dict[str, Any]) -> None:
    """As loops do that grow a model: the list of the group is theirs too."""
    optimizer = made(name, parameters(), **options)
    step(optimizer, rank)
    for value in (1.0, 2.0):
        optimizer.param_groups[0]["params"].append(Parameter(torch.full((6, 4), value + rank)))
        said = said_by(lambda: step(optimizer, rank, 1))
        assert said == [sentence(f"torchdion.{name}", f"parameter {len(params_of(optimizer)) - 1} (parameter group 0)")]
    assert all(map(equal_on_all_ranks, params_of(optimizer)))
    before = calls_of_agreement(optimizer)
    assert said_by(lambda: step(optimizer, rank, 2)) == []
    assert calls_of_agreement(optimizer) == before + (0 if options.get("capturable") else 1)


APPENDED: list[tuple[str, dict[str, Any]]] = [
    ("Muon", {}),
    ("DoubleDion", {"delayed": True}),
    ("AdamW", {"capturable": True}),
]


@pytest.mark.parametrize(("name", "options"), APPENDED, ids=[" ".join((name, *given)) for name, given in APPENDED])
def test_a_parameter_that_is_appended_to_a_group_is_compared_too(name: str, options: dict[str, Any]) -> None:
    run_ranks(appended, 2, name, options)


def replaced(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    optimizer.param_groups[0]["params"][0] = Parameter(torch.full((6, 4), 1.0 + rank))
    assert said_by(lambda: step(optimizer, rank, 1)) == [
        sentence("torchdion.Muon", "parameter 'tall' (parameter group 0)")
    ]


def test_a_parameter_that_takes_the_place_of_another_is_compared_too() -> None:
    run_ranks(replaced, 2)


def materialized(rank: int, world_size: int) -> None:
    layer = LazyLinear(4, bias=False)
    optimizer = made("Muon", [*parameters(), ("lazy", layer.weight)])
    for param in params_of(optimizer)[:-1]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    torch.manual_seed(rank)
    layer(torch.ones(2, 6))
    assert said_by(lambda: step(optimizer, rank, 1)) == [
        sentence("torchdion.Muon", "parameter 'lazy' (parameter group 0)")
    ]


def test_a_parameter_that_had_no_shape_yet_is_compared_once_it_has_one() -> None:
    run_ranks(materialized, 2)


def refused_by_a_filter(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    group = {"params": [("more", Parameter(torch.full((6, 4), 1.0 + rank)))], "weight_deca": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="unknown option 'weight_deca'"):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    assert group.keys() == {"params", "weight_deca"}
    said = said_by(lambda: optimizer.add_param_group(group)) + said_by(lambda: step(optimizer, rank, 1))
    assert [text.partition(" (")[0] for text in said] == [
        "torchdion.Muon: unknown option 'weight_deca'",
        "torchdion.Muon: replicas must start alike, and differ in parameter 'more'",
    ]


def test_a_group_whose_warning_is_an_error_is_not_added_and_can_be_added_later() -> None:
    run_ranks(refused_by_a_filter, 2)
