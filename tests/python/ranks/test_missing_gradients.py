"""Gradients that are missing: zero where another rank has them, and no gradient where none has."""

import pytest
import torch
from ranks import run_ranks
from runs import error
from small_optimizers import (
    SIZES,
    copied,
    cut_parameters,
    give_gradients,
    give_other_gradients,
    params_of,
    replicated,
    whole,
)
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn import Parameter

import torchdion


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


def missing_on_one_of_the_copies(rank: int, world_size: int, native: bool) -> None:
    if native:
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("replicas",))
        optimizer = torchdion.Muon([Parameter(distribute_tensor(torch.ones(12, 8), mesh, [Replicate()]))])
    else:
        optimizer = copied()
    give_gradients(optimizer)
    if rank == 1:
        params_of(optimizer)[-1].grad = None
    sentence = r"^torchdion.Muon: the ranks of the axis 'replicas' must agree on the dtype of the gradient of parameter"
    with pytest.raises(ValueError, match=sentence):
        optimizer.step()
    assert not optimizer.state
    params_of(optimizer)[-1].grad = None
    optimizer.step()  # what none has a gradient of rests


@pytest.mark.parametrize("native", [False, True])
def test_a_gradient_that_one_of_the_copies_lacks_though_it_is_averaged_is_an_error_on_all(native: bool) -> None:
    run_ranks(missing_on_one_of_the_copies, 2, native, time_limit=30)


def gradients_of_another_dtype(rank: int, world_size: int, each: bool) -> list[Tensor]:
    """BF16 weights, FP32 gradients: each rank lacks another one, or one lacks one."""
    optimizer = replicated(dtype=torch.bfloat16)
    for _ in range(2):
        give_other_gradients(optimizer, rank, torch.float32)
        if each or rank == 1:
            params_of(optimizer)[1 + rank].grad = None
        optimizer.step()
    optimizer.check_replicas()
    give_other_gradients(optimizer, rank, torch.float32 if rank else torch.bfloat16)
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
        give_other_gradients(optimizer, rank)
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
