"""The options of a parameter group at the door: their names elsewhere, checks and near misses."""

import difflib
from collections.abc import Iterable, Set
from functools import lru_cache
from operator import is_not
from typing import Any, Literal

from torchdion import _C
from torchdion.plain_values import is_same, plain, plain_numbers
from torchdion.table import ALGORITHMS, OPTIONS, STATE_DTYPES
from torchdion.words import front, shown

Orientation = Literal["right", "left", "short"]
Orthonormalize = Literal["auto", "rcqr", "cholesky_qr", "qr"]
Factorization = Literal["power_iteration", "svd"]
RightFactor = Literal["normalized", "orthonormal"]
Residual = Literal["scaled", "sign"]
Nonfinite = Literal["propagate", "zero", "skip_step", "raise"]
Precision = Literal["highest", "high", "medium"]
Owners = Literal["all", "shard"]
NewtonSchulz = Literal["auto", "jordan", "polar_express", "gram"]
AdjustLr = Literal["spectral_norm", "rms_norm", "original"] | None
Select = Literal["auto", "rows", "columns"]

DEFAULTS: dict[str, Any] = {name: declared["default"] for name, declared in OPTIONS.items()} | {"differentiable": False}
"""Of a group that is given nothing, with the options of all algorithms."""

OPTIMIZER_WIDE = tuple(name for name, declared in OPTIONS.items() if declared["of_optimizer"])
"""Options that hold for the whole optimizer: its groups have the same."""

OF_RUN = tuple(name for name, declared in OPTIONS.items() if declared["of_run"])
"""Those of them that no checkpoint changes."""

RANKS = frozenset(name for name, declared in OPTIONS.items() if declared["of_ranks"])
"""Those by which factors get their rank."""

# Keys that torch itself puts into groups.
TORCH_KEYS = (
    "params",
    "param_names",
    "initial_lr",
    "swa_lr",
    "max_lr",
    "min_lr",
    "base_momentum",
    "max_momentum",
)

OTHER_NAMES = _C.GroupKeys.other_names
"""Other name → the options that it may mean: the first that an algorithm of the group has."""

SELECTORS = frozenset(_C.GroupKeys.selectors)
"""Keys by which other packages choose an update rule (``use_muon``); they stay in groups, since loops read them."""


def options_of_group(group: dict[str, Any]) -> frozenset[str]:
    """Those of the algorithms that may update its parameters, and those of the whole optimizer."""
    own = ALGORITHMS[group["algorithm"]]
    return _options_of(own.name, group["scalar_algorithm"] if own.takes_matrices else own.name)


@lru_cache
def _options_of(*algorithms: str) -> frozenset[str]:
    return frozenset(
        name
        for name, declared in OPTIONS.items()
        if declared["of_optimizer"] or not set(algorithms).isdisjoint(declared["algorithms"])
    )


def without_others(group: dict[str, Any], defaults: Set[str] = frozenset()) -> dict[str, Any]:
    """The group without the options of other algorithms, where they are as declared.

    Args:
        defaults: the keys of the optimizer's, which all of its groups have.
    """
    kept = defaults | options_of_group(group)
    return {
        key: value
        for key, value in group.items()
        if key not in OPTIONS or key in kept or not is_same(value, DEFAULTS[key])
    }


def check_options(options: dict[str, Any], where: str) -> None:
    """Raises ValueError with one sentence for the first option outside its range; ``where`` names the group."""
    _C.GroupOptions(options, where, whole=False)
    check_beside_table(options, where)


def check_beside_table(options: dict[str, Any], where: str) -> None:
    """The same for what a group may have beside the options of the table."""
    if options.get("differentiable", False) is not False:
        value = shown(options["differentiable"])
        raise ValueError(f"{front()}: differentiable must be False (no graph goes through a step), got {value}{where}")


def near_misses(keys: Iterable[Any], where: str) -> dict[str, str]:
    """A sentence for each unknown key that looks like a misspelt option; torch keeps unknown keys, and so do we."""
    unknown = [key for key in keys if isinstance(key, str) and key not in DEFAULTS and key not in TORCH_KEYS]
    return {
        key: f"unknown option {key!r}{where} is kept and ignored; did you mean {near!r}?"
        for key in unknown
        if (near := _option_meant_by(key, DEFAULTS))
    }


def refuse_unknown(options: Iterable[str], taken: Iterable[str]) -> None:
    """Raises TypeError for the first keyword that the constructor does not have, with what may be meant.

    Args:
        taken: those that it has.
    """
    for name in options:
        raise TypeError(f"{front()}: unexpected keyword argument {name!r}{_advice_on(name, set(taken))}")


def _advice_on(name: str, taken: set[str]) -> str:
    """What to do instead of giving the constructor this keyword, which it does not have."""
    if name in ("fused", "foreach"):
        return ": every step is fused, there is nothing to choose"
    if name == "differentiable":
        return ": no graph goes through a step"
    near = next((own for own in OTHER_NAMES.get(name, ()) if own in taken), None)
    if near is None and name in OPTIONS and name not in STATE_DTYPES.values():  # of parameters, or of another algorithm
        if OPTIONS[name]["of_optimizer"]:
            return f": it is one of {' and '.join(map(repr, OPTIONS[name]['algorithms']))}"
        return ": only a parameter group takes it"
    near = near or _option_meant_by(name, [*OPTIONS, *taken])
    if near in STATE_DTYPES.values():
        near = "mixed_precision_config"
    if near is None or near in taken:
        return f"; did you mean {near!r}?" if near else ""
    return f"; did you mean {near!r} of a parameter group?"


def _option_meant_by(name: str, known: Iterable[str]) -> str | None:
    if name in OTHER_NAMES and name not in OPTIONS:
        return OTHER_NAMES[name][0]
    if name == "rank":
        return "rank_fraction"
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return near[0] if near else None


def as_plain_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Numbers and flags as Python's own, which every unpickler knows; all else as it is.

    Under keys that are none of ours those of NumPy alone.
    """
    return {name: _as_plain(name, value) for name, value in options.items()}


def _as_plain(name: str, value: Any) -> Any:
    if name == "split_sizes" and isinstance(value, list):
        return list(map(plain, value))
    if name in ("betas", "split_sizes"):
        return plain_numbers(value)
    if name in OPTIONS or name in OTHER_NAMES:
        return plain(value)
    if type(value) is tuple:  # others have a class of their own
        numbers = tuple(_as_plain(name, one) for one in value)
        return numbers if any(map(is_not, numbers, value)) else value
    return plain(value) if type(value).__module__ == "numpy" else value


def rename_saved_options(group: dict[str, Any]) -> None:
    """Gives options that an older version saved the names that they have now."""
    # In a group without our other options lr_scale is that of timm's and MAE's schedules, which apply it themselves.
    if "lr_scale" in group and "lr_multiplier" not in group and "scalar_algorithm" in group:
        group["lr_multiplier"] = group.pop("lr_scale")


def resolve_betas(group: dict[str, Any]) -> None:
    """Gives a group that has all other options its betas as a tuple: its own, or its algorithm's."""
    own = ALGORITHMS[group["algorithm"]]
    first, second = group["betas"] or own.betas or ALGORITHMS[group["scalar_algorithm"]].betas or (0.0, 0.0)
    group["betas"] = float(first), float(second)


def optimizer_wide_with(
    group: dict[str, Any], groups: list[dict[str, Any]], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Those options for a group that is to be added: as the others have them, whoever has set or loaded them there.

    The first group may ask for what the constructor's arguments leave at their defaults.
    """
    if groups:
        return {name: groups[0][name] for name in OPTIMIZER_WIDE}
    wide = {name: defaults[name] for name in OPTIMIZER_WIDE}
    asked = {name: group[name] for name in wide if name in group and wide[name] == DEFAULTS[name]}
    return {**wide, **asked}


def check_optimizer_wide(group: dict[str, Any], wide: dict[str, Any], where: str) -> None:
    """Raises ValueError where a checked group differs from the optimizer in what all of its groups share."""
    for name, value in wide.items():
        if group[name] != value:
            raise ValueError(f"{front()}: {name} holds for the whole optimizer, got {group[name]!r}{where}")


def check_of_run(groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
    """Raises ValueError where what no checkpoint changes has been changed."""
    for group in groups:
        for name in OF_RUN:
            if group[name] != defaults[name]:
                raise ValueError(f"{front()}: {name} must be what it was at construction, got {group[name]!r}")
