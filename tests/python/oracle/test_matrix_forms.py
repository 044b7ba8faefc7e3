"""Stacks, fused blocks, convolutions and strides: each equals the plain matrices that it holds."""

import pytest
import torch
from runs import error, follow, normals, start
from torch import Tensor
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS

METHODS = ["auto", "rcqr", "cholesky_qr", "qr"]
ORIENTATIONS = ["left", "right"]


def follow_both(
    whole: Tensor, gradients: list[Tensor], pieces, options: dict, form: dict
) -> tuple[Tensor, list[Tensor]]:
    """One parameter in the given form, and its matrices as parameters of their own, from the same Q.

    Args:
        pieces: takes a tensor like the parameter apart into its m×n matrices, in the order of Q's stack.
    """
    X = Parameter(whole.clone(memory_format=torch.preserve_format))
    optimizer = torchdion.Dion([{"params": [X], **form}], **options)
    start(optimizer)
    matrices = [Parameter(piece.clone()) for piece in pieces(whole)]
    plain = torchdion.Dion([{"params": matrices, "batch_dims": 0}], **options)
    start(plain)
    Q = optimizer.state[X]["Q"]
    for matrix, own in zip(matrices, Q.reshape(-1, *Q.shape[-2:]), strict=True):
        plain.state[matrix]["Q"].copy_(own)
    follow(optimizer, [X], [[G] for G in gradients])
    follow(plain, matrices, [pieces(G) for G in gradients])
    return X.detach(), [matrix.detach() for matrix in matrices]


FORMS = {
    "stack": ((5, 14, 9), {"batch_dims": 1}, lambda X: list(X)),
    "stack of stacks": ((2, 3, 9, 14), {"batch_dims": 2}, lambda X: list(X.flatten(0, 1))),
    "fused QKV": ((36, 20), {"blocks": 3}, lambda X: list(X.chunk(3))),
    "stack of fused": ((2, 24, 20), {"batch_dims": 1, "blocks": 2}, lambda X: list(X.reshape(4, 12, 20))),
    "convolution": ((12, 5, 3, 2), {}, lambda X: [X.flatten(1)]),
    "1-D convolution": ((12, 5, 3), {"batch_dims": 0}, lambda X: [X.flatten(1)]),
    "stack of convolutions": ((3, 8, 4, 3, 2), {"batch_dims": 1}, lambda X: list(X.flatten(2))),
    "transposed convolution": ((6, 10, 3, 2), {"fan_in_first": True}, lambda X: [X.flatten(1).mT]),
    "fan-in first": ((12, 20), {"fan_in_first": True}, lambda X: [X.mT]),
    "stack of fan-in first": ((4, 12, 20), {"batch_dims": 1, "fan_in_first": True}, lambda X: list(X.mT)),
    "5-D convolution": ((7, 2, 3, 2, 2), {}, lambda X: [X.flatten(1)]),
    "one filter": ((1, 6, 3, 3), {}, lambda X: [X.flatten(1)]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_its_matrices(form, orientation, method):
    shape, keys, pieces = FORMS[form]
    tensors = [step[0] for step in normals(6, shape)]
    options = {"rank_fraction": 0.5, "orientation": orientation, "orthonormalize": method}
    X, matrices = follow_both(tensors[0], tensors[1:], pieces, options, keys)
    for piece, matrix, first in zip(pieces(X), matrices, pieces(tensors[0]), strict=True):
        assert error(piece, matrix, first) <= 1e-12


@pytest.mark.parametrize("gradient_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last])
def test_the_memory_format_of_a_convolution_does_not_matter(weight_format, gradient_format):
    tensors = [step[0] for step in normals(6, (12, 5, 3, 2))]
    options = {"rank_fraction": 0.5}
    start_, gradients = (
        tensors[0].to(memory_format=weight_format),
        [G.to(memory_format=gradient_format) for G in tensors[1:]],
    )
    X, [matrix] = follow_both(start_, gradients, lambda X: [X.flatten(1).contiguous()], options, {})
    assert error(X.flatten(1), matrix, tensors[0].flatten(1)) <= 1e-12
    assert X.is_contiguous(memory_format=weight_format)


def strided(tensor: Tensor, kind: str) -> Tensor:
    """The same values with other strides."""
    if kind == "transposed":
        return tensor.mT.contiguous().mT
    if kind == "rows of a wider matrix":
        return torch.zeros(tensor.shape[0], 3 * tensor.shape[1], dtype=tensor.dtype)[:, 2 : 2 + tensor.shape[1]].copy_(
            tensor
        )
    if kind == "every second element":
        return torch.zeros(2 * tensor.shape[0], 2 * tensor.shape[1], dtype=tensor.dtype)[::2, ::2].copy_(tensor)
    return tensor.clone()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("nonfinite", ["propagate", "zero"])
@pytest.mark.parametrize(
    "gradient_kind", ["contiguous", "transposed", "rows of a wider matrix", "every second element"]
)
@pytest.mark.parametrize("kind", ["contiguous", "transposed", "rows of a wider matrix", "every second element"])
def test_strides_of_parameters_and_gradients_do_not_matter(kind, gradient_kind, nonfinite, algorithm):
    [X0], *gradients = normals(4, (14, 9))
    expected = Parameter(X0.clone())
    options = {"rank_fraction": 0.5, "nonfinite": nonfinite}
    follow(torchdion.Dion([{"params": [expected], "algorithm": algorithm}], **options), [expected], gradients)
    X = Parameter(strided(X0, kind))
    strides = X.stride()
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], **options)
    for [G] in gradients:
        X.grad = strided(G, gradient_kind)
        optimizer.step()
    assert error(X, expected, X0) <= 1e-13
    assert X.stride() == strides


def test_neighbours_of_a_strided_parameter_stay():
    buffer = torch.full((14, 27), 7.0)
    X = Parameter(buffer[:, 9:18])
    assert X.data_ptr() == buffer[:, 9:18].data_ptr()
    follow(torchdion.Dion([X]), [X], normals(3, (14, 9), dtype=torch.float32))
    assert (buffer[:, :9] == 7).all() and (buffer[:, 18:] == 7).all()
    assert (buffer[:, 9:18] != 7).all()


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (6,)])
def test_an_expanded_gradient_is_the_gradient_it_looks_like(shape):
    results = []
    for gradient in (torch.tensor(2.0).expand(shape), torch.full(shape, 2.0)):
        X = Parameter(torch.zeros(shape))
        X.grad = gradient
        torchdion.Dion([{"params": [X], "batch_dims": 0}]).step()
        results.append(X.detach())
    assert results[0].abs().max() > 0
    assert torch.equal(*results)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_stack_of_unequal_difficulty_equals_its_matrices(orientation):
    """One matrix of the stack has a gradient of rank 1, one none at all."""
    tensors = [step[0] for step in normals(5, (4, 14, 9))]
    for G in tensors[1:]:
        G[1] = torch.arange(14.0)[:, None] * torch.arange(9.0)
        G[2] = 0
    options = {"rank_fraction": 0.5, "orientation": orientation}
    X, matrices = follow_both(tensors[0], tensors[1:], list, options, {"batch_dims": 1})
    for piece, matrix, first in zip(X, matrices, tensors[0], strict=True):
        assert error(piece, matrix, first) <= 1e-12
    assert torch.allclose(X[2], tensors[0][2] * (1 - 0.01 * 0.01) ** 4, rtol=1e-14)


def test_forms_have_the_shape_factor_of_their_matrices():
    """3 blocks of 8×32 have the factor sqrt(8/32), not sqrt(24/32); a transposed convolution that of (out·k)×in."""
    for shape, form, m, n, count in (
        ((24, 32), {"blocks": 3}, 8, 32, 3),
        ((5, 8, 32), {"batch_dims": 1}, 8, 32, 5),
        ((16, 4, 3, 3), {"fan_in_first": True}, 36, 16, 1),
        ((16, 4, 3, 3), {}, 16, 36, 1),
    ):
        [[X0], [G]] = normals(2, shape)
        X = Parameter(X0.clone())
        follow(torchdion.Dion([{"params": [X], **form}], 0.1, weight_decay=0.0), [X], [[G]])
        moved = torch.linalg.vector_norm(X.detach() - X0).item()
        assert moved == pytest.approx(0.1 * (m / n) ** 0.5 * (count * min(m, n)) ** 0.5, rel=1e-12)
