"""The algorithms and their options, as csrc/algorithms declares them."""

from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from torchdion import _C

Group = dict[str, Any]
"""A parameter group: ``params``, options of ours, and what others keep there."""


class State(NamedTuple):
    """What is kept of a parameter between steps, beside the count of them ("step").

    Args:
        shape: "like_parameter", "factor" ([stack..., m or n, r]) or "rows" ([stack..., m, 1]).
        dtype_option: the group key that gives its dtype; empty: it is the parameter's.
    """

    name: str
    shape: str
    dtype_option: str


class Algorithm(NamedTuple):
    """An update rule of matrices, or of any tensors entry by entry.

    Args:
        shares_among_copies: what one rank computes for all is shared out among copies with averaged gradients too.
        betas: its default; None: it has no such option.
        precision: of its products, where a group says none.
        docs: what its own options mean, by their names; of options that all algorithms have, ``OPTIONS`` says it.
    """

    name: str
    takes_matrices: bool
    shares_among_copies: bool
    states: tuple[State, ...]
    betas: tuple[float, float] | None
    precision: str
    docs: dict[str, str]

    @property
    def factors(self) -> tuple[State, ...]:
        return tuple(state for state in self.states if state.shape == "factor")


_OPTIONS, _ALGORITHMS = _C.table()

ALGORITHMS = {
    declared["name"]: Algorithm(**declared | {"states": tuple(State(**state) for state in declared["states"])})
    for declared in _ALGORITHMS
}
"""By name, in the order in which a step updates their parameters."""

OPTIONS = {declared["name"]: declared for declared in _OPTIONS}
"""Each option of a group: its ``default``, the ``words`` for what is allowed, the ``algorithms`` that have it."""

STATE_DTYPES = {state.name: state.dtype_option for algorithm in ALGORITHMS.values() for state in algorithm.states}
"""The group key that gives the dtype of each state; empty: it is the parameter's."""


def algorithm_of(param: Tensor, group: dict[str, Any]) -> Algorithm:
    """The algorithm that updates a parameter of the group."""
    dims = group.get("batch_dims")
    return _algorithm_of(
        param.dim(), group["algorithm"], group["scalar_algorithm"], 0 if dims is None else int(dims)
    )  # an array may be written there, which has no hash


@lru_cache  # asked for several times a step
def _algorithm_of(dims: int, algorithm: str, scalar_algorithm: str, batch_dims: int) -> Algorithm:
    return ALGORITHMS[_C.algorithm_of(dims, algorithm, scalar_algorithm, batch_dims)]


def options_of(group: dict[str, Any], where: str = "") -> _C.GroupOptions:
    """The options of a group, checked, as the engine takes them.

    Raises:
        ValueError: the group lacks one, or it is out of its range; ``where`` names the group.
    """
    return _C.GroupOptions(group, where)
