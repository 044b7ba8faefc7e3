"""Replicas that start from unequal weights: a sentence on every rank at the first step, and the first one's weights."""

import warnings
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_optimizers import copied, give_other_gradients, params_of, replicated
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn import Linear, Parameter, Sequential
from unequal_replicas import (
    SIZES,
    calls_of_agreement,
    equal_on_all_ranks,
    flip_a_bit,
    made,
    parameters,
    said_by,
    sentence,
    step,
)
from wrapped import Copying, Refusing

import torchdion
from torchdion.dtensor import local_part

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Dion", {"rank_fraction": 0.25}),
    ("Muon", {}),
    ("NorMuon", {}),
    ("Dion2", {}),
    ("Dion3", {}),
    ("DoubleDion", {}),
    ("DoubleDion", {"delayed": True}),
    ("DeMo", {}),
    ("Lion", {}),
    ("AdamW", {"capturable": True}),
    ("DistMuon", {}),
    ("DistAdamW", {"replicate_mesh_grad_sync": False}),
]


def of_one_bit(rank: int, world_size: int, name: str, options: dict[str, Any]) -> None:
    expected = made(name, parameters(), **options)
    assert said_by(lambda: [step(expected, rank, number) for number in range(3)]) == []
    optimizer = made(name, parameters(), **options)
    if rank == 1:
        flip_a_bit(params_of(optimizer)[1])
    said = said_by(lambda: [step(optimizer, rank, number) for number in range(3)])
    assert said == [sentence(f"torchdion.{name}", "parameter 'square' (parameter group 0)")]
    assert all(map(torch.equal, params_of(optimizer), params_of(expected)))
    optimizer.check_replicas()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=[" ".join((name, *given)) for name, given in OPTIMIZERS])
def test_replicas_of_which_one_bit_differs_say_so_once_and_train_as_the_first(
    name: str, options: dict[str, Any]
) -> None:
    run_ranks(of_one_bit, 2, name, options)


def of_many(rank: int, world_size: int) -> None:
    """The one that differs is neither first nor last."""
    params = [Parameter(torch.full((4, 3), float(rank == 1))) for _ in range(8)]
    optimizer = made("Muon", params)
    [said] = said_by(lambda: step(optimizer, rank))
    names = ", ".join(f"parameter {index} (parameter group 0)" for index in range(5))
    assert said == sentence("torchdion.Muon", names + " and 3 more")
    assert all(map(equal_on_all_ranks, params))


def test_of_many_parameters_that_differ_the_first_are_named() -> None:
    run_ranks(of_many, 3)


def alike(rank: int, world_size: int) -> None:
    params = parameters()
    with torch.no_grad():
        params[0][1][2, 3] = torch.nan  # whose bytes are equal
    optimizer = made("Lion", params)
    for number in range(3):
        before = calls_of_agreement(optimizer)
        assert said_by(lambda number=number: step(optimizer, rank, number)) == []
        assert calls_of_agreement(optimizer) == before + 1
    with torch.no_grad():
        params[1][1].add_(rank)
    assert said_by(lambda: step(optimizer, rank)) == []  # nobody looks
    optimizer.load_state_dict(optimizer.state_dict())
    [said] = said_by(lambda: step(optimizer, rank))
    assert f"replicas must start alike, and differ in parameter {params[1][0]!r} (parameter group 0)" in said


def test_starts_are_compared_at_the_first_step_and_after_a_load_alone_and_cost_no_message() -> None:
    run_ranks(alike, 2)


def owned(rank: int, world_size: int) -> None:
    optimizer = made("DistAdamW", parameters())
    for number in range(2):
        step(optimizer, rank, number)
    optimizer.load_state_dict(optimizer.state_dict())
    assert said_by(lambda: step(optimizer, rank, 2)) == []


def test_states_that_have_owners_are_nothing_to_compare() -> None:
    run_ranks(owned, 2)


def through_copies(rank: int, world_size: int) -> None:
    """Weights that a step does not write where they lie: what was planned for others is planned again."""

    def start(difference: int) -> list[Parameter]:
        strided = torch.arange(288.0).sin().view(12, 24)[:, ::2] + difference
        wrapped = torch.arange(96.0).cos().view(12, 8) + difference
        return [Parameter(torch.stack([strided, strided], -1)[..., 0]), Parameter(Copying(wrapped))]

    expected, params = start(0), start(rank)
    assert 1 not in params[0].stride()
    numbers = []
    for each in (expected, params):
        optimizer = made("Dion", each, rank_fraction=0.25)
        for number in range(2):
            said_by(lambda number=number, optimizer=optimizer: step(optimizer, rank, number))
        numbers.append([each[0].detach(), each[1].inner])
    assert all(map(torch.equal, *numbers))


def test_weights_that_are_written_through_copies_start_alike_too() -> None:
    run_ranks(through_copies, 2)


def in_pieces(rank: int, world_size: int) -> None:
    """One replica differs in the piece of one rank: all ranks are told, and the other pieces are as they were."""
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "fs"))
    torch.manual_seed(0)
    layers = Sequential(Linear(10, 7), Linear(7, 9), Linear(9, 2))
    fully_shard(layers, mesh=mesh["fs"])
    optimizer = made("Dion", layers.named_parameters(), rank_fraction=0.1, replicate_mesh=mesh["dp"])
    if rank == 4:
        flip_a_bit(local_part(params_of(optimizer)[2]))
    give_other_gradients(optimizer, rank)
    assert said_by(optimizer.step) == [sentence("torchdion.Dion", "parameter '1.weight' (parameter group 0)")]
    optimizer.check_replicas()
    give_other_gradients(optimizer, rank)
    before = calls_of_agreement(optimizer)
    assert said_by(optimizer.step) == []
    assert calls_of_agreement(optimizer) == before + 2


def test_a_piece_that_differs_is_told_to_the_ranks_of_all_pieces() -> None:
    run_ranks(in_pieces, 6)


def without_gradients(rank: int, world_size: int) -> None:
    params = parameters()
    params[1][1].requires_grad_(False)
    optimizer = made("Dion", params, rank_fraction=0.25)
    give_other_gradients(optimizer, rank)
    params[1][1].grad = None
    if rank == 1:
        params[0][1].grad = None  # counts as zero there
    params[2][1].grad = None  # nowhere
    if rank == 1:
        for _, param in params:
            flip_a_bit(param)
    untouched = params[2][1].detach().clone()
    [said] = said_by(optimizer.step)
    assert said == sentence("torchdion.Dion", ", ".join(f"parameter '{name}' (parameter group 0)" for name in SIZES))
    assert all(equal_on_all_ranks(param) for _, param in params)
    assert torch.equal(params[2][1], untouched) == (rank == 0)
    assert params[2][1] not in optimizer.state
    optimizer.check_replicas()


def test_parameters_that_are_frozen_or_have_no_gradient_start_alike_too() -> None:
    run_ranks(without_gradients, 2)


def made_equal_before(rank: int, world_size: int) -> None:
    optimizer = made("Dion", [Parameter(torch.full((6, 4), 1.0 + rank))])
    with pytest.raises(RuntimeError, match=r"replicas differ in parameter 0 .*; synchronize_replicas\(\) makes them"):
        optimizer.check_replicas()
    optimizer.synchronize_replicas()
    assert said_by(lambda: step(optimizer, rank)) == []
    assert equal_on_all_ranks(params_of(optimizer)[0])


def test_replicas_that_were_made_equal_before_the_first_step_have_nothing_to_say() -> None:
    run_ranks(made_equal_before, 2)


def as_errors(rank: int, world_size: int) -> None:
    optimizer = made("Dion", [Parameter(torch.full((6, 4), 1.0 + rank)), Parameter(torch.ones(3))])
    before = [param.detach().clone() for param in params_of(optimizer)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # it does not go away
            with pytest.raises(UserWarning, match=r"replicas must start alike, and differ in parameter 0"):
                step(optimizer, rank)
        assert all(map(torch.equal, params_of(optimizer), before))
        assert not optimizer.state
        optimizer.synchronize_replicas()
        step(optimizer, rank)


def test_a_warning_that_is_an_error_is_one_on_all_ranks_and_nothing_was_written() -> None:
    run_ranks(as_errors, 2)


def of_others(rank: int, world_size: int) -> None:
    """Whoever averages gradients before the step has made weights equal, or has not."""
    mesh = init_device_mesh("cpu", (2,))
    of_mesh = Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Replicate()]))
    for optimizer in (copied(), torchdion.Muon([of_mesh], lr=0.1)):
        local_part(params_of(optimizer)[0]).detach().add_(rank)
        for param in params_of(optimizer):
            param.grad = torch.ones_like(param)
        assert said_by(optimizer.step) == []
        assert not equal_on_all_ranks(local_part(params_of(optimizer)[0]))


def test_copies_that_the_optimizer_does_not_average_are_not_compared() -> None:
    run_ranks(of_others, 2)


def not_writable(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    frozen = params_of(optimizer)[1]
    frozen.grad = None
    if rank == 1:
        optimizer.param_groups[0]["params"][1] = Parameter(Refusing(frozen.detach()))
    before = [param.detach().clone() for param in params_of(optimizer) if type(param) is Parameter]
    own = "parameter 1 .* must have memory" if rank == 1 else r"another rank refused synchronize_replicas\(\), and its"
    with pytest.raises((ValueError, RuntimeError), match=f"^torchdion.Dion: {own}"):
        said_by(optimizer.step)
    after = [param for param in params_of(optimizer) if type(param) is Parameter]
    assert all(map(torch.equal, after, before))
    assert not optimizer.state


def test_a_copy_that_one_rank_cannot_write_is_an_error_on_all() -> None:
    run_ranks(not_writable, 2, time_limit=30)


def not_readable(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    params_of(optimizer)[1].grad = None
    optimizer.param_groups[0]["params"][1] = Parameter(Refusing(params_of(optimizer)[1].detach()))
    assert said_by(optimizer.step) == []


def test_what_no_rank_can_read_is_left_alone() -> None:
    run_ranks(not_readable, 2, time_limit=30)
