"""Options of which a change between steps is not what it seems: what exists already stays as it is."""

from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion import _C
from torchdion.mixed_precision import dtype_of
from torchdion.other_names import is_same
from torchdion.table import ALGORITHMS, OPTIONS, STATE_DTYPES, State, algorithm_of, options_of
from torchdion.words import shown

Group = dict[str, Any]
States = dict[Tensor, dict[str, Tensor]]

_RANKS = ("rank_fraction", "replicate_rank_fraction", "rank_multiple_of")
_DTYPES = {option for option in STATE_DTYPES.values() if option}
_OF_STATES = {*_RANKS, *_DTYPES, "orientation"}


def unheard(group: Group, written: set[str], said: Group, states: States, where: str) -> dict[str, str]:
    """A sentence for each option that was written and does not do, or not do alone, what its name says.

    Args:
        group: its ``orientation`` stays what it was, once there are factors.
        written: the keys that were.
        said: the group before.
    """
    changed = written & said.keys()
    sentences = _cycled(group, changed, said, where)
    if changed.isdisjoint(_OF_STATES):
        return sentences
    existing = _existing(group, states)
    for option in changed & _DTYPES:
        if any(_has_other_dtype(option, *kept) for kept in existing):
            sentences[option] = (
                f"{option}={shown(group[option])}{where} is the dtype of states that are still to be made: those that "
                "there are keep theirs until a state dict is loaded"
            )
    factors = [kept for kept in existing if kept[2].shape == "factor"]
    for option in changed.intersection(_RANKS):
        if any(_has_other_rank(*kept) for kept in factors):
            sentences[option] = (
                f"{option}={shown(group[option])}{where} is that of Q that are still to be made: those that there are "
                "keep their rank until resize_rank() is called"
            )
    if "orientation" in changed and factors:
        sentences["orientation"] = (
            f"orientation={shown(group['orientation'])}{where} is not taken: it stays {said['orientation']!r}, "
            "which Q was made for"
        )
        group["orientation"] = said["orientation"]
    return sentences


def _existing(group: Group, states: States) -> list[tuple[Tensor, Group, State, Tensor]]:
    """The states that the parameters of a group have, with their declarations."""
    return [
        (param, group, declared, states[param][declared.name])
        for param in group["params"]
        if param in states and not is_lazy(param) and param.numel() > 0
        for declared in algorithm_of(param, group).states
        if isinstance(states[param].get(declared.name), Tensor)
    ]


def _has_other_dtype(option: str, param: Tensor, group: Group, declared: State, state: Tensor) -> bool:
    return declared.dtype_option == option and state.dtype != dtype_of(declared.name, param, group)


def _has_other_rank(param: Tensor, group: Group, declared: State, state: Tensor) -> bool:
    algorithm = algorithm_of(param, group).name
    whole = _C.whole_state_sizes(algorithm, declared.name, list(param.shape), options_of(group))
    return state.shape[-1] != whole[-1]


def _cycled(group: Group, changed: set[str], said: Group, where: str) -> dict[str, str]:
    """About the momentum that CyclicLR and OneCycleLR cycle: β₁ wherever an optimizer has betas."""
    own = ALGORITHMS[group["algorithm"]]
    decay = next((name for name in ("mu", "ef_decay") if own.name in OPTIONS[name]["algorithms"]), None)
    if "betas" not in changed or decay is None or decay in changed or not group["betas"] or not said["betas"]:
        return {}
    if is_same(group["betas"][0], said["betas"][0]):
        return {}
    if not any(algorithm_of(param, group).takes_matrices for param in group["params"] if not is_lazy(param)):
        return {}
    return {
        "betas": f"betas{where} have another β₁, as under a scheduler with cycle_momentum: it is that of "
        f"{group['scalar_algorithm']!r}, while the momentum of {own.name!r} is {decay}, which stays {group[decay]}"
    }
