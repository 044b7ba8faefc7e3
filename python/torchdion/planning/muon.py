"""What a rank spends with Muon, in the two ways in which it is run on shards."""

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
    return _muon(alike, alike.count, alike.numel, elements, sent)


def muon_owned(alike: Alike, cutting: str) -> Cost:
    """Each rank orthonormalizes some whole matrices of those that are alike.

    Shards send their pieces of a matrix to its owner and get the pieces of its update back, both all-to-all in BF16.
    Where nothing is cut, the replicas are the owners: gradients are reduce-scattered and parameters all-gathered, in
    place of the averaging (ZeRO-2 style, as nanochat's DistMuon); then the owner alone has the momentum.

    Args:
        cutting: the name of all the axes that cut the matrices, taken as one.
    """
    elements: dict[str, int] = {}
    sent: dict[str, int] = {}
    m, n = alike.matrix
    owners = 1
    for axis in alike.cutting:
        owners *= axis.size
    if owners > 1:
        owned = -(-alike.count // owners)
        elements[cutting] = owned * m * n
        sent[cutting] = ring((alike.numel + owned * m * n) * BF16_BYTES, owners)
        add_dense(alike, elements, sent)
        return _muon(alike, owned, alike.numel, elements, sent)
    owned = -(-alike.count // alike.replicas.size)
    if not alike.replicas.absent:
        padded = -(-alike.count // alike.replicas.size) * alike.replicas.size * m * n
        elements[alike.replicas.name] = padded
        sent[alike.replicas.name] = ring(2 * padded * alike.bytes_of("param"), alike.replicas.size)
    return _muon(alike, owned, owned * m * n, elements, sent)


def _muon(alike: Alike, matrices: int, momentum: int, elements: dict[str, int], sent: dict[str, int]) -> Cost:
    """So many whole matrices to orthonormalize, and so many entries of momentum."""
    item = alike.bytes_of("momentum")
    return Cost(
        state_bytes=momentum * item + len(alike.names) * STEP_BYTES,
        flops=matrices * newton_schulz_flops(*alike.matrix),
        memory_bytes=momentum * 2 * item + alike.numel * 3 * alike.bytes_of("param"),
        elements=elements,
        bytes=sent,
    )
