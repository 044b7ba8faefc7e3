"""The shortest columns of B Q that a step keeps: layouts agree about their directions as far as FP32 knows them.

How far that is follows from the model of the noise that decides which columns are kept (csrc/linalg/noise.h), not from
a number chosen for the test: each orthonormal column is made of columns of B Q, whose rounding adds up.
"""

import pytest
import torch
from long_cases import some_of
from orthonormality import conditioned
from ranks import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

SIZE = 64
CUTS = {
    "rows": ((1, 2), [Replicate(), Shard(0)]),
    "cols": ((1, 2), [Replicate(), Shard(1)]),
    "both": ((2, 2), [Shard(0), Shard(1)]),
}
METHODS = ("auto", "rcqr")
CONDITIONS = (1e2, 1e5)


def momentum(condition: float) -> Tensor:
    return conditioned(SIZE, SIZE, condition, torch.float32)


def disagreement(product: Tensor) -> float:
    """How far updates P Qᵀ of two layouts may part, relative to their length.

    The product of unit columns has R⁻¹ of orthonormal ones: column j of it says how many units of noise add up.
    """
    unit = product / torch.linalg.vector_norm(product, dim=0)
    R = torch.linalg.qr(unit)[1]
    made_of = torch.linalg.solve_triangular(R, torch.eye(SIZE, dtype=R.dtype), upper=True)
    noise = 2.0**-24 * (8 + SIZE**0.5 / 4) * torch.linalg.vector_norm(made_of, dim=0)
    return 2 * float(noise.square().mean().sqrt())  # each of the two has noise of its own


def updates(place) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """For each method and condition; no column is dropped."""
    found = []
    for method in METHODS:
        for condition in CONDITIONS:
            X = Parameter(place(torch.zeros(SIZE, SIZE)))
            optimizer = torchdion.Dion([X], lr=1.0, weight_decay=0.0, orthonormalize=method)
            X.grad = place(torch.zeros(SIZE, SIZE))
            optimizer.step()
            before = optimizer.stats()["columns_without_signal"]
            for name, whole in (("momentum", momentum(condition)), ("Q", torch.eye(SIZE))):
                state = optimizer.state[X][name]
                if isinstance(state, DTensor):
                    whole = distribute_tensor(whole, state.device_mesh, state.placements, src_data_rank=None)
                state.copy_(whole)
            optimizer.step()
            assert optimizer.stats()["columns_without_signal"] == before
            found.append(X.full_tensor().detach() if isinstance(X, DTensor) else X.detach())
    return found


def on_ranks(rank: int, world_size: int, layout: str) -> list[Tensor]:
    sizes, cuts = CUTS[layout]
    mesh = init_device_mesh("cpu", sizes)
    return updates(lambda whole: distribute_tensor(whole, mesh, cuts, src_data_rank=None))


@pytest.mark.parametrize("layout", some_of(CUTS, ["both"]))
def test_short_columns_are_kept_and_point_the_same_way_on_every_layout(layout: str) -> None:
    alone = updates(torch.clone)
    sizes, _ = CUTS[layout]
    for found in run_ranks(on_ranks, sizes[0] * sizes[1], layout):
        cases = [condition for _ in METHODS for condition in CONDITIONS]
        for update, expected, condition in zip(found, alone, cases, strict=True):
            allowed = disagreement(momentum(condition).mT.double())  # B Q of the orientation "right"
            assert allowed < 0.1 * SIZE**-0.5, "or a dropped column would go unseen"
            difference = torch.linalg.vector_norm(update - expected) / torch.linalg.vector_norm(expected)
            assert difference <= allowed
