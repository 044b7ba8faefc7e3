"""Options of which a change between steps is not what it seems: what exists already stays as it is."""

from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion.mixed_precision import dtype_of
from torchdion.other_names import is_same
from torchdion.state import is_begun
from torchdion.table import ALGORITHMS, OPTIONS, STATE_DTYPES, Group, State, algorithm_of, options_of
from torchdion.words import shown

States = dict[Tensor, dict[str, Tensor]]

_RULE = ("algorithm", "scalar_algorithm", "batch_dims")
"""Options that say which algorithm updates a parameter."""

RANKS = frozenset({"rank_fraction", "replicate_rank_fraction", "rank_multiple_of"})
_DTYPES = {option for option in STATE_DTYPES.values() if option}
SIDES: dict[str, tuple[str, ...]] = {"orientation": ("factor",), "fan_in_first": ("factor", "rows")}
"""Options that say which side of a matrix a state belongs to, with the shapes of such states."""

_OF_STATES = {*RANKS, *_DTYPES, *SIDES, "seed"}

NOT_VALUES = {*_OF_STATES, *_RULE, "blocks"}
"""Options that more depends on than numbers of the next step."""


def warnings_of(group: Group, written: set[str], before: Group, states: States, where: str) -> dict[str, str]:
    """A sentence for each option that was written and does not do, or not do alone, what its name says.

    Args:
        group: its ``orientation`` and ``fan_in_first`` stay as they were, once there are states of one side.
        written: the keys that were.
        before: the group as it was.
    """
    changed = written & before.keys()
    sentences = _cycled(group, before, where) if "betas" in changed else {}
    if not all(is_same(group[option], before.get(option)) for option in _RULE):
        sentences |= _of_another_algorithm(group, before, states, where)
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
    for option in changed & RANKS:
        if any(_has_other_rank(*kept) for kept in factors):
            sentences[option] = (
                f"{option}={shown(group[option])}{where} is that of Q that are still to be made: those that there are "
                "keep their rank until resize_rank() is called"
            )
    if "seed" in changed and factors:
        sentences["seed"] = (
            f"seed={shown(group['seed'])}{where} is that of Q that are still to be made: those that there are keep "
            "their start"
        )
    for option in changed & SIDES.keys():
        sided = [kept[2].name for kept in existing if kept[2].shape in SIDES[option]]
        if sided:
            sentences[option] = (
                f"{option}={shown(group[option])}{where} is not taken: it stays {before[option]!r}, which {sided[0]} "
                "was made for"
            )
            group[option] = before[option]
    return sentences


def _of_another_algorithm(group: Group, before: Group, states: States, where: str) -> dict[str, str]:
    """About states that another algorithm goes on with, whose states have the same names; the step refuses others."""
    if not before.keys() >= {*_RULE}:
        return {}
    for param in group["params"]:
        state = states.get(param)
        if is_lazy(param) or not isinstance(state, dict) or not is_begun(state):
            continue
        old, new = algorithm_of(param, before), algorithm_of(param, group)
        if old is not new and [each.name for each in old.states] == [each.name for each in new.states]:
            option = next(option for option in _RULE if not is_same(group[option], before[option]))
            return {
                option: f"{option}={shown(group[option])}{where} makes {new.name!r} go on with the "
                f"{old.states[0].name} of {old.name!r}, which may mean something else"
            }
    return {}


def _existing(group: Group, states: States) -> list[tuple[Tensor, Group, State, Tensor]]:
    """The states that the parameters of a group have, with their declarations."""
    return [
        (param, group, declared, states[param][declared.name])
        for param in group["params"]
        if isinstance(states.get(param), dict) and not is_lazy(param) and param.numel() > 0
        for declared in algorithm_of(param, group).states
        if isinstance(states[param].get(declared.name), Tensor)
    ]


def _has_other_dtype(option: str, param: Tensor, group: Group, declared: State, state: Tensor) -> bool:
    return declared.dtype_option == option and state.dtype != dtype_of(declared.name, param, group)


def _has_other_rank(param: Tensor, group: Group, declared: State, state: Tensor) -> bool:
    whole = options_of(group).state_sizes(list(param.shape))[declared.name]
    return state.shape[-1] != whole[-1]


def _cycled(group: Group, before: Group, where: str) -> dict[str, str]:
    """About the momentum that CyclicLR and OneCycleLR cycle: β₁ wherever an optimizer has betas."""
    own = ALGORITHMS[group["algorithm"]]
    decay = next((name for name in ("mu", "ef_decay") if own.name in OPTIONS[name]["algorithms"]), None)
    if decay is None or not group["betas"] or not before["betas"]:
        return {}
    if is_same(group["betas"][0], before["betas"][0]) or not is_same(group[decay], before.get(decay)):
        return {}
    if not any(algorithm_of(param, group).takes_matrices for param in group["params"] if not is_lazy(param)):
        return {}
    return {
        "betas": f"betas{where} have another β₁, as under a scheduler with cycle_momentum: it is that of "
        f"{group['scalar_algorithm']!r}, while the momentum of {own.name!r} is {decay}, which stays {group[decay]}"
    }
