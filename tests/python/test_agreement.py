"""Ranks that disagree, refuse, miss gradients or end: an error on every rank, or the right step on all."""

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankDied, run_ranks
from runs import error
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

SIZES = {"tall": (12, 6), "wide": (6, 10), "vector": (8,)}


def whole(name: str, salt: int = 0) -> Tensor:
    seed = list(SIZES).index(name) + 100 * salt
    return torch.randn(SIZES[name], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cut(tensor: Tensor, dim: int = 0) -> Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fs",))
    return distribute_tensor(tensor, mesh, [Shard(dim)], src_data_rank=None)


def cut_parameters(dims: dict[str, int] | None = None) -> list[tuple[str, Parameter]]:
    return [(name, Parameter(cut(whole(name), (dims or {}).get(name, 0)))) for name in SIZES]


def give_gradients(optimizer: torchdion.Dion, salt: int = 1) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = param.detach().mul(salt).sin()


def local_weights(optimizer: torchdion.Dion) -> list[Tensor]:
    return [param.detach().to_local().clone() for group in optimizer.param_groups for param in group["params"]]


def with_other_options(rank: int) -> torchdion.Dion:
    return torchdion.Dion(cut_parameters(), lr=0.1 if rank else 0.2)


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


DISAGREEMENTS = {
    "options": (with_other_options, "'fs' must agree on the lr of parameter group 0, got 0.[12]$"),
    "cuts": (with_another_cut, "'fs' must agree on the placements of parameter 'wide' .*, got .Shard"),
    "count": (with_fewer_parameters, "'fs' must update as many parameters over it, got "),
    "order": (with_another_order, "'fs' must have the same parameters in the same order, got parameter '(tall|wide)'"),
    "dtype": (with_another_dtype, "'fs' must agree on the dtype of parameter 'tall' .*, got torch.float"),
    "state": (with_a_state_on_one_rank, "'fs' must agree on the steps taken of parameter 'tall' .*, got [01]"),
    "replicas": (as_replicas, "'replicas' must agree on the rank_fraction of parameter group 0, got 0.(25|5)$"),
}


def disagree(rank: int, world_size: int, make: Callable[[int], torchdion.Dion], sentence: str) -> None:
    optimizer = make(rank)
    give_gradients(optimizer)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    before = [param.detach().clone() for param in params]
    for _ in range(2):  # it does not go away
        with pytest.raises(ValueError, match=f"^torchdion.Dion: the ranks of the axis {sentence}"):
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


def one_refuses(rank: int, world_size: int) -> None:
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    before = local_weights(optimizer)
    if rank == 1:
        optimizer.param_groups[0]["mu"] = 2.0
    sentence = "mu must be in" if rank == 1 else "another rank refused this step, and its error says why"
    with pytest.raises((ValueError, RuntimeError), match=f"^torchdion.Dion: {sentence}"):
        optimizer.step()
    optimizer.param_groups[0]["mu"] = 0.95
    assert all(map(torch.equal, local_weights(optimizer), before))
    optimizer.step()  # nothing was lost
    assert not torch.equal(local_weights(optimizer)[0], before[0])


def test_a_step_that_one_rank_refuses_is_an_error_on_all_and_may_be_tried_again() -> None:
    run_ranks(one_refuses, 2, time_limit=30)


def partly_missing(rank: int, world_size: int) -> list[Tensor]:
    """The gradient of "tall" is missing on the last rank, that of "wide" everywhere, and a shard of the vector's is
    zero."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    tall, wide, vector = optimizer.param_groups[0]["params"]
    for _ in range(3):
        give_gradients(optimizer)
        wide.grad = None
        if rank == world_size - 1:
            tall.grad = None
            vector.grad.to_local().zero_()
        optimizer.step()
        assert (tall.grad is None) == (rank == world_size - 1)
    return [param.full_tensor().detach() for param in (tall, wide, vector)]


def test_a_gradient_that_only_other_ranks_have_is_zero_and_one_that_none_has_is_no_gradient() -> None:
    params = [(name, Parameter(whole(name))) for name in SIZES]
    alone = torchdion.Dion(params, lr=0.1)
    for _ in range(3):
        give_gradients(alone)
        dict(params)["tall"].grad[-4:] = 0
        dict(params)["wide"].grad = None
        dict(params)["vector"].grad[6:] = 0
        alone.step()
    for weights in run_ranks(partly_missing, 3):
        for (name, expected), X in zip(params, weights, strict=True):
            if name == "wide":
                assert torch.equal(X, whole(name))
            else:
                assert error(X, expected.detach(), whole(name)) <= 1e-12, name


def after_a_death(rank: int, world_size: int, folder: Path) -> None:
    """What the others say of it."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    optimizer.state_dict()  # nothing was written
    (folder / str(rank)).write_text(str(caught.value))


def test_a_rank_that_dies_is_noticed_by_the_others(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match="rank 1 died of SIGKILL"):
        run_ranks(after_a_death, 3, tmp_path, time_limit=30)
    for rank in (0, 2):
        sentence = (tmp_path / str(rank)).read_text()
        assert sentence.startswith("torchdion: the all_reduce over the axis 'fs' of 3 ranks failed: "), sentence


class Dying(torch.utils._python_dispatch.TorchDispatchMode):
    """Raises at the collective of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.remaining = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.remaining -= 1
            if self.remaining < 0:
                raise MemoryError("no room")
        return func(*args, **(kwargs or {}))


def in_the_middle(rank: int, world_size: int, folder: Path) -> None:
    """Rank 1 raises in the middle of a step and leaves; the others say where they were."""
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    saved = optimizer.state_dict()
    if rank == 1:
        with pytest.raises(RuntimeError, match="of 3 ranks failed: "), Dying(3):
            optimizer.step()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    sentence = str(caught.value)
    assert "over the axis 'fs' of 3 ranks failed: " in sentence
    assert "(in batch " in sentence
    assert " under " in sentence
    with pytest.raises(RuntimeError, match=r"the last step failed after [01] of 3 batches; load a checkpoint"):
        optimizer.state_dict()
    optimizer.load_state_dict(saved)
    optimizer.state_dict()
    (folder / str(rank)).touch()


def test_the_error_of_a_collective_names_axis_and_batch(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match="rank 1 died of SIGKILL"):
        run_ranks(in_the_middle, 3, tmp_path, time_limit=30)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "2"}


def one_does_not_come(rank: int, world_size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    params = [(name, Parameter(whole(name))) for name in SIZES]
    optimizer = torchdion.Dion(params, rank_fraction=0.25, replicate_mesh=group)
    give_gradients(optimizer)
    optimizer.step()
    if rank == 0:
        with pytest.raises(
            RuntimeError, match=r"^torchdion: the all_reduce over the axis 'replicas' of 2 ranks failed"
        ):
            optimizer.step()
    dist.barrier()  # where the other one waits meanwhile


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_time_limit_of_the_group() -> None:
    run_ranks(one_does_not_come, 2, time_limit=30)


def replicated(sizes: int = 4, dtype: torch.dtype = torch.float64) -> torchdion.Dion:
    generator = torch.Generator().manual_seed(3)
    params = [Parameter(torch.randn(12, 12, generator=generator).to(dtype)) for _ in range(sizes)]
    return torchdion.Dion(params, lr=0.1, rank_fraction=0.25, replicate_mesh=dist.group.WORLD)


def params_of(optimizer: torchdion.Dion) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def give(optimizer: torchdion.Dion, rank: int, dtype: torch.dtype | None = None) -> None:
    for param in params_of(optimizer):
        param.grad = None
        if dtype is not None:
            param.grad_dtype = dtype
        param.grad = param.detach().to(dtype).mul(rank + 1).sin()


def freeze(optimizer: torchdion.Dion, rank: int) -> None:
    params_of(optimizer)[rank].requires_grad_(False)


def change_an_option(optimizer: torchdion.Dion, rank: int, name: str, value: Any) -> None:
    if rank == 1:
        optimizer.param_groups[0][name] = value


def scale(optimizer: torchdion.Dion, rank: int) -> None:
    optimizer.found_inf = torch.zeros(()) if rank == 1 else None


AFTER_A_STEP: dict[str, tuple[Any, ...]] = {
    "frozen": (freeze, (), "the requires_grad of parameter 0 "),
    "algorithm": (change_an_option, ("algorithm", "lion"), "the algorithm of parameter group 0, got '(dion|lion)'"),
    "orthonormalize": (change_an_option, ("orthonormalize", "rcqr"), "the orthonormalize of parameter group 0"),
    "lr": (change_an_option, ("lr", 0.2), "the lr of parameter group 0, got 0.[12]$"),
    "mu": (change_an_option, ("mu", 0.9), "the mu of parameter group 0, got 0.9"),
}


def part_after_a_step(rank: int, world_size: int, make_them_part: Any, args: tuple[Any, ...], sentence: str) -> None:
    optimizer = replicated()
    give(optimizer, rank)
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


def gradients_of_another_dtype(rank: int, world_size: int, each: bool) -> list[Tensor]:
    """BF16 weights, FP32 gradients: each rank lacks another one, or one lacks one."""
    optimizer = replicated(dtype=torch.bfloat16)
    for _ in range(2):
        give(optimizer, rank, torch.float32)
        if each or rank == 1:
            params_of(optimizer)[1 + rank].grad = None
        optimizer.step()
    optimizer.check_replicas()
    give(optimizer, rank, torch.float32 if rank else torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"must agree on the dtype of the gradient of parameter 0 .*, got (bfloat16|float32)$"
    ):
        optimizer.step()
    return [param.detach() for param in params_of(optimizer)]


@pytest.mark.parametrize("each", [False, True])
def test_a_missing_gradient_is_zero_in_the_dtype_that_it_has_on_other_ranks(each: bool) -> None:
    first, second = run_ranks(gradients_of_another_dtype, 2, each, time_limit=30)
    assert all(map(torch.equal, first, second))


def unused(rank: int, world_size: int) -> None:
    """Parameter 1 has a gradient nowhere, parameter 2 on rank 1 alone."""
    optimizer = replicated()
    before = [param.detach().clone() for param in params_of(optimizer)]
    for _ in range(2):
        give(optimizer, rank)
        params_of(optimizer)[1].grad = None
        if rank == 0:
            params_of(optimizer)[2].grad = None
        optimizer.step()
    assert [torch.equal(*pair) for pair in zip(params_of(optimizer), before, strict=True)] == [
        False,
        True,
        False,
        False,
    ]
    assert params_of(optimizer)[1] not in optimizer.state
    optimizer.check_replicas()


def test_a_parameter_without_a_gradient_on_any_replica_is_skipped() -> None:
    run_ranks(unused, 2, time_limit=30)


OTHER_CALLS = {
    "resize_rank": lambda optimizer: optimizer.resize_rank(0.5),
    "synchronize_for_checkpoint": lambda optimizer: optimizer.synchronize_for_checkpoint(),
    "check_replicas": lambda optimizer: optimizer.check_replicas(),
    "synchronize_replicas": lambda optimizer: optimizer.synchronize_replicas(),
}


def one_does_something_else(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give(optimizer, rank)
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
