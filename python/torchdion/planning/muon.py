"""What a rank spends with Muon as it is elsewhere run on shards, for comparison with the library's own."""

import torch

from torchdion.planning.costs import STEP_BYTES, Alike, Cost, add_dense, ring

BF16_BYTES = torch.bfloat16.itemsize
"""Of what Newton–Schulz iterations compute in, and what is sent for them (arXiv 2502.16982, Section 2.3)."""


def newton_schulz_flops(m: int, n: int) -> int:
    """Of five Newton–Schulz iterations: 20mn² + 10n³ for n ≤ m (Appendix H of arXiv 2504.05295)."""
    long, short = max(m, n), min(m, n)
    return 20 * long * short**2 + 10 * short**3


def muon_gathering(alike: Alike) -> Cost:
    """Every shard gathers the whole momentum in BF16 and orthonormalizes it, as all others do (arXiv 2502.16982)."""
    elements: dict[str, int] = {}
    sent: dict[str, int] = {}
    layout = alike.first.piece.layout
    m, n = alike.matrix
    sizes = {"rows": layout.rows.piece(m)[1], "cols": layout.cols.piece(n)[1]}
    for axis in alike.cutting:  # along the outermost, and slowest, while the pieces are small
        side, whole = ("rows", m) if axis.name == layout.rows.name else ("cols", n)
        sizes[side] = whole
        elements[axis.name] = alike.count * sizes["rows"] * sizes["cols"]
        sent[axis.name] = ring(elements[axis.name] * BF16_BYTES, axis.size)
    add_dense(alike, elements, sent)
    item = alike.bytes_of("momentum")
    return Cost(
        state_bytes=alike.numel * item + len(alike.names) * STEP_BYTES,
        flops=alike.count * newton_schulz_flops(m, n),
        memory_bytes=alike.numel * (2 * item + 3 * alike.bytes_of("param")),
        elements=elements,
        bytes=sent,
    )
