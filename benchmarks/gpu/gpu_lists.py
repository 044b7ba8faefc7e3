"""Which matrices are updated on a GPU, at which ranks and with which states, and what that takes at least.

Memory of the largest: the "3b" list has 3.17·10⁹ entries, so in FP32 weights, gradients and momenta take 38.1 GB, and
Q at r = d, 9 d² entries a layer, 9.5 GB more; with AdamW they take 50.7 GB.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
from matrices import Shape, gpt_shapes, roofline_flops

LISTS: dict[str, Callable[[], list[Shape]]] = {
    "tiny": partial(gpt_shapes, 2, 64),
    "120m": partial(gpt_shapes, 12, 768),
    "1.3b": partial(gpt_shapes, 24, 2048),
    "3b": partial(gpt_shapes, 28, 3072),
}
RANKS = {"d": 1.0, "d/4": 1 / 4, "d/16": 1 / 16}
STATES = {"FP32": torch.float32, "BF16": torch.bfloat16}
TASK = 456 << 20  # bytes that the matrices updated together may take: kDeviceWorkspace of csrc/engine/batches.cpp
CONDITIONS = (1e0, 1e2, 1e4, 1e6, 1e8)  # of P where its orthogonality is measured
METHODS = ("auto", "rcqr")
FEW = 8  # matrices that may take more: kFewMatrices


def groups_of(shapes: list[Shape]) -> int:
    """How many shapes there are: what one launch could update at most is one of these groups."""
    return len(set(shapes))


def batches_of(shapes: list[Shape], fraction: float) -> list[tuple[int, int, int, int]]:
    """(count, m, n, r) of the m×n matrices that a step updates at once at the default precision."""
    found = []
    for (m, n), count in Counter(shapes).items():
        r = round(fraction * min(m, n))
        factoring = 4 * (r * r + 10 * 64 * 64) + 2 * 4 * r * r + 4 * n * r  # P of n rows
        each = 4 * (m + n) * r + factoring
        tasks = -(-count // max(FEW, TASK // each))
        found.append((-(-count // tasks), m, n, r))
    return found


def factors_of(shapes: list[Shape], fraction: float) -> list[tuple[int, int, int]]:
    """(count, rows, r) of the P that a step orthonormalizes at once.

    The default orientation runs on the transposed matrices, so that P has a row for each of their columns.
    """
    return sorted({(count, n, r) for count, _, n, r in batches_of(shapes, fraction)}, reverse=True)


def least_ms(
    shapes: list[Shape], fraction: float, state: str, precision: str, rates: tuple[float, float, float]
) -> float:
    """The roofline: the longer of arithmetic and traffic, each at the rate measured in the same run.

    Arithmetic is 8mnr + 6.5mr² + 13/6 r³ operations for each matrix, m the longer side (the paper's Table 1 and
    Appendix I). The four products with the matrix, 8mnr, count at the rate of BF16 where their operands are rounded to
    that, which precision="medium" asks for and BF16 states are already; else, and for the rest, at the rate of TF32.
    Traffic is the momentum read three times (for P, for R, for its update) and written twice (as M + G, and updated),
    the weights read and written, and the gradient read: 32 bytes an entry, of FP32 states, or 22, of BF16 ones.

    Args:
        rates: operations per second of TF32 and BF16 products, bytes per second of a copy.
    """
    tf32, bf16, copy = rates
    products = sum(8 * m * n * round(fraction * min(m, n)) for m, n in shapes)
    rest = roofline_flops(shapes, fraction) - products
    arithmetic = products / (bf16 if state == "BF16" or precision == "medium" else tf32) + rest / tf32
    entry_bytes = 5 * STATES[state].itemsize + 3 * torch.float32.itemsize
    return 1e3 * max(arithmetic, sum(m * n for m, n in shapes) * entry_bytes / copy)


def bytes_of_passes(state: str, precision: str) -> int:
    """What passes over whole matrices read and write of every entry, where no two of them are one.

    The momentum is read and written as M + G and again for its update, and read for P and for R; the weights are read
    and written, and the gradient is read: 36 bytes of FP32 states. At medium they are copied to BF16 on the way, and
    the copy is read for P and R: 34 bytes.
    """
    momentum, weight, operand = STATES[state].itemsize, torch.float32.itemsize, torch.bfloat16.itemsize
    copies = precision == "medium" and momentum != operand
    return 4 * momentum + 3 * weight + (3 * operand if copies else 2 * momentum)


def bytes_of_iterations(m: int, n: int) -> int:
    """What five Newton–Schulz steps read and write of an m×n matrix in BF16, each operand of each product once.

    One by one: X Xᵀ, the polynomial of it, and its product with X, five times. On Gram matrices, which are fewer bytes
    where one side is at least twice the other: two steps, two steps and one, with two products with X for each.
    """
    p, q = min(m, n), max(m, n)
    if q < 2 * p:
        return torch.bfloat16.itemsize * 5 * (3 * p * q + 4 * p * p)
    return torch.bfloat16.itemsize * (9 * p * q + 36 * p * p)


def least_bytes_of(optimizer: str, shapes: list[Shape]) -> int:
    """What a step of other optimizers with FP32 states cannot do without.

    AdamW reads the gradient, and reads and writes the weights and both moments; Lion has one. The others read the
    gradient, read and write the momentum and the weights, and write and read what is orthonormalized, or what has
    become of it, in BF16: of Dion2 and Dion3 a quarter of the slices, which the momentum loses a part of in a pass of
    their own. NorMuon and Dion3 read the update once more for the norms of its rows. Iterations:
    bytes_of_iterations().
    """
    entries = sum(m * n for m, n in shapes)
    if optimizer == "AdamW":
        return 28 * entries
    if optimizer == "Lion":
        return 20 * entries
    norms = 2 if optimizer in ("NorMuon", "Dion3") else 0
    if optimizer in ("Muon", "NorMuon"):
        return (24 + norms) * entries + sum(bytes_of_iterations(m, n) for m, n in shapes)
    chosen = [(m // 4, n) if optimizer == "Dion3" or m <= n else (m, n // 4) for m, n in shapes]
    slices = sum(m * n for m, n in chosen)
    return 20 * entries + (8 + 4 + norms) * slices + sum(bytes_of_iterations(m, n) for m, n in chosen)
