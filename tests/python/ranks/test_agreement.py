"""Ranks that disagree, refuse or call something else: an error on every rank, and nothing is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_optimizers import (
    SIZES,
    copied,
    cut_parameters,
    give_gradients,
    give_other_gradients,
    local_weights,
    params_of,
    replicated,
    whole,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion


def with_other_options(rank: int) -> torchdion.Dion:
    return torchdion.Dion(cut_parameters(), lr=0.1 if rank else 0.2)


def with_another_algorithm(rank: int) -> torchdion.Dion:
    algorithm = "lion" if rank else "adamw"
    return torchdion.Dion([{"params": cut_parameters(), "algorithm": algorithm}], betas=(0.9, 0.95))


def with_another_cut(rank: int) -> torchdion.Dion:
    return torchdion.Dion(cut_parameters({"wide": rank % 2}), lr=0.1)


def with_fewer_parameters(rank: int) -> torchdion.Dion:
    return torchdion.Dion(cut_parameters()[: 3 if rank else 2], lr=0.1)


def with_another_order(rank: int) -> torchdion.Dion:
    params = cut_parameters()
    return torchdion.Dion(params if rank else [params[1], params[0], params[2]], lr=0.1)


def with_another_dtype(rank: int) -> torchdion.Dion:
    return torchdion.Dion([(name, Parameter(param.detach().to(torch.float32 if rank else torch.float64)))
                           for name, param in cut_parameters()], lr=0.1)  # fmt: skip


def with_a_state_on_one_rank(rank: int) -> torchdion.Dion:
    """A checkpoint that rank 0 alone has loaded."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    saved = optimizer.state_dict()
    fresh = torchdion.Dion(cut_parameters(), lr=0.1)
    if rank == 0:
        fresh.load_state_dict(saved)
    return fresh


def as_replicas(rank: int) -> torchdion.Dion:
    params = [(name, Parameter(whole(name))) for name in SIZES]
    return torchdion.Dion(params, rank_fraction=0.5 if rank else 0.25, replicate_mesh=dist.group.WORLD)


def as_copies(rank: int) -> torchdion.Muon:
    return copied(lr=0.1 if rank else 0.2)


def as_copies_of_other_algorithms(rank: int) -> torchdion.Muon:
    """Only one of them shares work."""
    [group] = copied().param_groups
    groups = [{"params": group["params"], "algorithm": "dion" if rank else "muon"}]
    return torchdion.Muon(groups, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False)


def as_copies_that_share_nothing(rank: int) -> torchdion.Dion:
    params = [(name, Parameter(whole(name))) for name in SIZES]
    fraction = 0.5 if rank else 0.25
    return torchdion.Dion(
        params, rank_fraction=fraction, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False
    )


def as_copies_of_vectors(rank: int) -> torchdion.Muon:
    params = params_of(copied())
    vectors = {"params": [Parameter(torch.zeros(3))], "lr": 0.1 if rank else 0.2}
    return torchdion.Muon(
        [{"params": params}, vectors], replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False
    )


DISAGREEMENTS = {
    "options": (with_other_options, "'fs' must agree on the lr of parameter group 0, got 0.[12]$"),
    "algorithm": (with_another_algorithm, "'fs' must agree on the algorithm of parameter group 0, got '(adamw|lion)'"),
    "cuts": (with_another_cut, "'fs' must agree on the layout of parameter 'wide' .*, got .Shard"),
    "count": (with_fewer_parameters, "'fs' must update as many parameters over it, got "),
    "order": (with_another_order, "'fs' must have the same parameters in the same order, got parameter '(tall|wide)'"),
    "dtype": (with_another_dtype, "'fs' must agree on the dtype of parameter 'tall' .*, got float"),
    "state": (with_a_state_on_one_rank, "'fs' must agree on the steps taken of parameter 'tall' .*, got [01]"),
    "replicas": (as_replicas, "'replicas' must agree on the rank_fraction of parameter group 0, got 0.(25|5)$"),
    "copies": (as_copies, "'replicas' must agree on the lr of parameter group 0, got 0.[12]$"),
    "copies' algorithm": (
        as_copies_of_other_algorithms,
        "'replicas' must agree on the algorithm of parameter group 0, got '(muon|dion)'$",
    ),
    "copies that share nothing": (
        as_copies_that_share_nothing,
        "'replicas' must agree on the rank_fraction of parameter group 0, got 0.(25|5)$",
    ),
    "copies of vectors": (as_copies_of_vectors, "'replicas' must agree on the lr of parameter group 1, got 0.[12]$"),
}


def disagree(rank: int, world_size: int, make: Callable[[int], torchdion.Dion], sentence: str) -> None:
    optimizer = make(rank)
    give_gradients(optimizer)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    before = [param.detach().clone() for param in params]
    for _ in range(2):  # it does not go away
        with pytest.raises(ValueError, match=f"^{optimizer.title}: the ranks of the axis {sentence}"):
            optimizer.step()
    for param, X in zip(params, before, strict=True):
        assert torch.equal(getattr(param, "_local_tensor", param), getattr(X, "_local_tensor", X))


@pytest.mark.parametrize(("make", "sentence"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_ranks_that_disagree_are_told_so_on_every_rank_and_nothing_is_written(
    make: Callable[[int], torchdion.Dion], sentence: str
) -> None:
    run_ranks(disagree, 2, make, sentence, time_limit=30)


def of_equal_numbers(rank: int, world_size: int) -> None:
    optimizer = torchdion.Dion(
        cut_parameters(), lr=(1, 1.0, torch.tensor(1.0))[rank], betas=((0, 0.5), [0.0, 0.5])[rank % 2]
    )
    give_gradients(optimizer)
    optimizer.step()


def test_ranks_agree_on_equal_numbers_of_different_types() -> None:
    run_ranks(of_equal_numbers, 3)


def of_pieces() -> torchdion.Dion:
    return torchdion.Dion(cut_parameters(), lr=0.1)


def one_refuses(rank: int, world_size: int, make: Callable[[], torchdion.Dion], option: str, value: Any) -> None:
    optimizer = make()
    give_gradients(optimizer)
    optimizer.step()
    before, good = local_weights(optimizer), optimizer.param_groups[0][option]
    if rank == 1:
        optimizer.param_groups[0][option] = value
    sentence = f"{option} must be " if rank == 1 else "another rank refused this step, and its error says why"
    with pytest.raises((ValueError, RuntimeError), match=f"^{optimizer.title}: {sentence}"):
        optimizer.step()
    optimizer.param_groups[0][option] = good
    assert all(map(torch.equal, local_weights(optimizer), before))
    optimizer.step()  # nothing was lost
    assert not torch.equal(local_weights(optimizer)[0], before[0])


@pytest.mark.parametrize(("option", "value"), [("mu", 2.0), ("algorithm", "none")])
@pytest.mark.parametrize("make", [of_pieces, copied])
def test_a_step_that_one_rank_refuses_is_an_error_on_all_and_may_be_tried_again(
    make: Callable[[], torchdion.Dion], option: str, value: Any
) -> None:
    run_ranks(one_refuses, 2, make, option, value, time_limit=30)


def freeze(optimizer: torchdion.Dion, rank: int) -> None:
    params_of(optimizer)[rank].requires_grad_(False)


def change_an_option(optimizer: torchdion.Dion, rank: int, name: str, value: Any) -> None:
    if rank == 1:
        optimizer.param_groups[0][name] = value


def scale(optimizer: torchdion.Dion, rank: int) -> None:
    optimizer.found_inf = torch.zeros(()) if rank == 1 else None


AFTER_A_STEP: dict[str, tuple[Any, ...]] = {
    "frozen": (freeze, (), "the requires_grad of parameter 0 "),
    "orthonormalize": (change_an_option, ("orthonormalize", "rcqr"), "the orthonormalize of parameter group 0"),
    "lr": (change_an_option, ("lr", 0.2), "the lr of parameter group 0, got 0.[12]$"),
    "mu": (change_an_option, ("mu", 0.9), "the mu of parameter group 0, got 0.9"),
}


def part_after_a_step(rank: int, world_size: int, make_them_part: Any, args: tuple[Any, ...], sentence: str) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    make_them_part(optimizer, rank, *args)
    before = [param.detach().clone() for param in params_of(optimizer)]
    with pytest.raises(ValueError, match=f"^torchdion.Dion: the ranks of the axis 'replicas' must agree on {sentence}"):
        optimizer.step()
    assert all(map(torch.equal, params_of(optimizer), before))


@pytest.mark.parametrize(("make_them_part", "args", "sentence"), AFTER_A_STEP.values(), ids=AFTER_A_STEP)
def test_ranks_that_part_after_a_step_are_told_so_on_every_rank(
    make_them_part: Any, args: tuple[Any, ...], sentence: str
) -> None:
    run_ranks(part_after_a_step, 2, make_them_part, args, sentence, time_limit=30)


def overflow_on_one(rank: int, world_size: int) -> None:
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    scale(optimizer, rank)
    with pytest.raises(ValueError, match=r"must agree on the found_inf of the optimizer, got (none|set)$"):
        optimizer.step()


def test_a_scaler_on_some_ranks_is_an_error_on_all() -> None:
    run_ranks(overflow_on_one, 2, time_limit=30)


def part_on_one_line(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fs", "tp"))
    matrix = Parameter(distribute_tensor(whole("wide"), mesh, [Shard(0), Shard(1)], src_data_rank=None))
    vector = Parameter(distribute_tensor(whole("vector"), mesh["tp"], [Shard(0)], src_data_rank=None))
    optimizer = torchdion.Dion([matrix, vector], lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    vector.requires_grad_(rank != 1)
    own = r"the ranks of the axis 'tp' must agree on the requires_grad of parameter 1 "
    with pytest.raises(ValueError, match=f"^torchdion.Dion: {own if rank < 2 else 'other ranks of the job disagree'}"):
        optimizer.step()
    vector.requires_grad_(True)
    if rank == 1:
        vector.grad = None  # zero there
    optimizer.step()
    assert optimizer.state[vector]["step"] == optimizer.state[matrix]["step"] == 2


def test_a_difference_on_one_line_of_the_last_axis_reaches_the_ranks_of_all_others() -> None:
    run_ranks(part_on_one_line, 4, time_limit=60)


OTHER_CALLS = {
    "resize_rank": lambda optimizer: optimizer.resize_rank(0.5),
    "synchronize_for_checkpoint": lambda optimizer: optimizer.synchronize_for_checkpoint(),
    "check_replicas": lambda optimizer: optimizer.check_replicas(),
    "synchronize_replicas": lambda optimizer: optimizer.synchronize_replicas(),
}


def one_does_something_else(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    for name, call in OTHER_CALLS.items():
        here, there = (f"{name}()", "step()") if rank == 1 else ("step()", f"{name}()")
        with pytest.raises(RuntimeError) as caught:
            call(optimizer) if rank == 1 else optimizer.step()
        sentence = f"every rank must call the same at the same time, got {here} here and {there} on another rank"
        assert str(caught.value).splitlines()[0] == f"torchdion.Dion: {sentence}"
    with pytest.raises(ValueError, match=r"must agree on the rank_fraction of parameter group 0, got 0\.(25|5)$"):
        optimizer.resize_rank(0.5 if rank == 1 else 0.25)
    sentence = "rank_fraction must be in" if rank == 1 else r"another rank refused resize_rank\(\), and its error"
    with pytest.raises((ValueError, RuntimeError), match=f"^torchdion.Dion: {sentence}"):
        optimizer.resize_rank(2.0 if rank == 1 else 0.25)
    assert optimizer.param_groups[0]["rank_fraction"] == 0.25
    optimizer.resize_rank(0.5)
    optimizer.step()
    optimizer.check_replicas()


def test_a_rank_that_calls_something_else_than_the_others_is_an_error_on_all() -> None:
    run_ranks(one_does_something_else, 2, time_limit=30)
