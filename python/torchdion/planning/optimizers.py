"""The optimizers that a plan compares: both forms of Dion, every other one here, and Muon as it is elsewhere."""

from torchdion.optimizer import Optimizer
from torchdion.owners import with_owners
from torchdion.table import ALGORITHMS

OF_MATRICES = tuple(name for name, of_name in ALGORITHMS.items() if of_name.takes_matrices and name != "dion")
"""The algorithms beside Dion that update the same matrices."""

OF_ENTRIES = tuple(name for name, of_name in ALGORITHMS.items() if not of_name.takes_matrices)
"""The algorithms that update any parameter entry by entry."""

WITH_OWNERS = {name: made_by.algorithm for name, made_by in with_owners().items()}
"""The optimizers whose states have owners, and the algorithm of each. They refuse parameters that are cut, and are not
compared where there are any."""

OPTIMIZERS = {
    "dion_compressed": "replicas exchange P and R where that is less than gradients (replicate_mesh)",
    "dion_dense": "gradients are averaged over replicas during backward",
    **{name: Optimizer.of(name).exchanges for name in OF_MATRICES},
    "muon_gathering": "elsewhere: every shard gathers every matrix and repeats Newton–Schulz on it",
    **{name: made_by.exchanges for name, made_by in with_owners().items()},
    **dict.fromkeys(OF_ENTRIES, "gradients are averaged"),
}
"""Optimizer in a plan → its messages between ranks."""


_ALGORITHMS = {"dion_compressed": "dion", "dion_dense": "dion", "muon_gathering": "muon", **WITH_OWNERS}


def own_precision(name: str) -> str:
    """The default for the products of an optimizer."""
    return ALGORITHMS[_ALGORITHMS.get(name, name)].precision
