"""Which columns of an FP64 matrix carry no signal on a CPU: those that a model of their rounding, added up, says."""

import pytest
import torch
from orthonormality import conditioned, zero_columns
from torch import Tensor


def without_signal(A: Tensor, noise: float) -> list[int]:
    """The columns whose part outside the span of those before is no longer than what rounding makes of it.

    By Gram–Schmidt, which knows how each orthonormal column is made of the columns of A: each of these has rounding of
    its own, `noise` times its length, and what two orthonormal columns have of one rounding may cancel in a third.
    Rounding points anywhere among the m rows, of which the orthonormal columns have taken as many; the square of what
    is left of it is a sum of squares of normal errors.
    """
    m = A.shape[0]
    unit = A / A.norm(dim=0)
    orthonormal: list[tuple[Tensor, Tensor]] = []
    found = []
    for j, column in enumerate(unit.mT):
        rest, made_of = column.clone(), torch.eye(A.shape[1], dtype=A.dtype)[j]
        for other, other_made_of in orthonormal * 2:  # twice is enough
            along = other @ rest
            rest -= along * other
            made_of -= along * other_made_of
        length = rest.norm()
        left = ((m - len(orthonormal)) ** 0.5 + 2) / m**0.5  # at most, in all but one case of a thousand
        if noise * made_of.norm() * left >= length:
            found.append(j)
        else:
            orthonormal.append((rest / length, made_of / length))
    return found


@pytest.mark.parametrize("method", ["cholesky_qr", "qr"])
@pytest.mark.parametrize(("kappa", "noise"), [(1e12, 1e-10), (1e13, 1e-11), (1e12, 1e-9), (1e9, 1e-7), (1e6, 1e-11)])
@pytest.mark.parametrize("shape", [(96, 48), (48, 48)])
def test_the_rounding_of_columns_is_added_up_as_it_is_shared(shape, kappa, noise, method):
    differ = expected = 0
    for seed in range(4):
        A = conditioned(*shape, kappa, torch.float64, seed)
        dead = without_signal(A, noise)
        found = zero_columns(torch.ops.torchdion.orthonormalize(A, method, noise=noise))
        differ += len(set(dead) ^ set(found))
        expected += len(dead)
    assert (expected > 0) == (kappa * noise > 1)
    assert differ <= 4  # of some forty: for each seed a column at the edge
