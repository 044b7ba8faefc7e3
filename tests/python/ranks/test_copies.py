"""Means, copies and comparisons of what ranks hold copies of: tensors of any shapes, dtypes and memory formats."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from torchdion import _C


def tensors(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)

    def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return [
        normal(3, 5),
        normal(4, 4, dtype=torch.float32),
        normal(5, 3).t(),
        normal(),
        normal(0, 7),
        normal(6, dtype=torch.bfloat16),
        normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]


def everyone() -> _C.Axis:
    return _C.Axis(dist.group.WORLD)


def averaged(rank: int, world: int) -> None:
    given = tensors(rank)
    for tensor in given:
        _C.average(tensor, everyone())
    for index, tensor in enumerate(given):
        whole = [tensors(other)[index] for other in range(world)]
        assert tensor.stride() == whole[0].stride()
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        expected = torch.stack([each.to(dtype) for each in whole]).sum(0).div(world).to(tensor.dtype)
        torch.testing.assert_close(tensor, expected, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=0)


def copied(rank: int, world: int) -> None:
    given = tensors(rank)
    for tensor in given:
        _C.copy_from_first(tensor, everyone())
    assert all(map(torch.equal, given, tensors(0)))


def compared(rank: int, world: int, odd: int) -> list[bool]:
    given = tensors(0)
    if rank == odd:
        given[2][1, 1] += 1e-15
        given[5][0] *= -1
    return _C.differing(given, everyone())


def test_a_mean_is_that_of_all_ranks_summed_in_no_less_than_single_precision() -> None:
    run_ranks(averaged, 3)


def test_a_copy_is_that_of_the_first_rank() -> None:
    run_ranks(copied, 3)


@pytest.mark.parametrize("odd", [0, 2])
def test_what_differs_on_one_rank_by_one_bit_differs_on_all(odd: int) -> None:
    expected = [False, False, True, False, False, True, False]
    assert run_ranks(compared, 3, odd) == [expected] * 3
    assert run_ranks(compared, 3, -1) == [[False] * 7] * 3
