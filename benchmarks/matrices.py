"""The lists of matrices that the benchmarks update, and their gradients."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

Shape = tuple[int, int]


def gpt_shapes(layers: int = 12, d: int = 768) -> list[Shape]:
    """The matrices of a GPT: query, key, value and output projections and a four times wider MLP in each layer."""
    return ([(d, d)] * 4 + [(4 * d, d), (d, 4 * d)]) * layers


def small_shapes(count: int = 200) -> list[Shape]:
    """Matrices of 128 to 256 rows and columns, all nine combinations of three sizes in turn."""
    sizes = itertools.cycle(itertools.product((128, 192, 256), (128, 192, 256)))
    return [next(sizes) for _ in range(count)]


def mlp_shapes(layers: int = 6, d: int = 768) -> list[Shape]:
    """The two matrices of an MLP in each layer, four times as long as wide and the other way round."""
    return [(4 * d, d), (d, 4 * d)] * layers


LISTS: dict[str, Callable[[], list[Shape]]] = {"gpt": gpt_shapes, "small": small_shapes, "mlp": mlp_shapes}


def parameters(shapes: list[Shape]) -> list[Parameter]:
    return [Parameter(torch.randn(shape) * 0.02) for shape in shapes]


def gradients(shapes: list[Shape], spectrum: str) -> list[Tensor]:
    """Random gradients.

    Args:
        shapes: of the matrices.
        spectrum: "flat" (independent normal entries) or "power" (singular values that fall like 1/k, as those of real
            gradients do: harder to orthonormalize).
    """
    if spectrum == "flat":
        return [torch.randn(shape) for shape in shapes]
    return [_power_law(*shape) for shape in shapes]


def _power_law(m: int, n: int) -> Tensor:
    d = min(m, n)
    weights = 1 / torch.arange(1, d + 1)
    return torch.mm(torch.randn(m, d) * weights, torch.randn(d, n)).div_(d**0.5)


def roofline_flops(shapes: list[Shape], rank_fraction: float) -> float:
    """8mnr + 6.5mr² + 13/6 r³ for each matrix, m the longer side: what Dion costs by the paper's count (Table 1 and
    Appendix I) when the orthonormalization is randomized Cholesky QR."""
    total = 0.0
    for m, n in shapes:
        long, r = max(m, n), round(rank_fraction * min(m, n))
        total += 8 * m * n * r + 6.5 * long * r**2 + 13 / 6 * r**3
    return total
