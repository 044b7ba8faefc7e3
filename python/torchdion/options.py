"""The options of a parameter group: their defaults and the checks at the door."""

import difflib
import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch

from torchdion import _C
from torchdion.mixed_precision import STATE_DTYPES, is_state_dtype
from torchdion.warning import warn
from torchdion.words import shown

BETAS = {"lion": (0.95, 0.98), "adamw": (0.9, 0.95)}

Algorithm = Literal["dion", "lion", "adamw"]
ScalarAlgorithm = Literal["lion", "adamw"]
Orientation = Literal["right", "left"]
Orthonormalize = Literal["auto", "rcqr", "cholesky_qr", "qr"]
Nonfinite = Literal["propagate", "zero", "skip_step", "raise"]
Precision = Literal["highest", "high", "medium"]

Check = tuple[Callable[[Any], bool], str]


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(_float(value))


def _is_int(value: Any) -> bool:
    """Of 64 bits: what the engine takes."""
    return isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def _is_rate(value: Any) -> bool:
    if isinstance(value, torch.Tensor):  # on another device it is not looked at, which would make the host wait
        is_number = _C.has_memory(value) and value.numel() == 1 and not value.is_complex()
        return is_number and (not value.is_cpu or (math.isfinite(value.item()) and value.item() >= 0))
    return _is_number(value) and value >= 0


def _is_betas(value: Any) -> bool:
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return value is None or (pair and all(_is_number(beta) and 0 <= beta < 1 for beta in value))


def _one_of(*allowed: Any) -> Check:
    return (lambda value: isinstance(value, str) and value in allowed), "one of " + ", ".join(map(repr, allowed))


_BETA: Check = (lambda value: _is_number(value) and 0 <= value < 1), "in [0, 1)"
_FLAG: Check = (lambda value: isinstance(value, bool)), "True or False"
_NOT_NEGATIVE: Check = (lambda value: _is_number(value) and value >= 0), "a number ≥ 0"
_RATE: Check = _is_rate, "a finite number ≥ 0 or a tensor of one"
_DTYPE: Check = is_state_dtype, "None, a floating-point torch.dtype or its name"

CHECKS: dict[str, Check] = {
    "lr": (_is_rate, "a finite number ≥ 0 (a Tensor lr must be 1-element)"),
    "mu": ((lambda value: _is_number(value) and 0 <= value < 1), "in [0, 1)"),
    "betas": (_is_betas, "None or two numbers in [0, 1)"),
    "beta1": _BETA,
    "beta2": _BETA,
    "weight_decay": _RATE,
    "epsilon": _NOT_NEGATIVE,
    "rank_fraction": ((lambda value: _is_number(value) and 0 < value <= 1), "in (0, 1]"),
    "rank_multiple_of": ((lambda value: _is_int(value) and value >= 1), "an integer ≥ 1"),
    "orientation": _one_of(*_C.Orientation.__members__),
    "orthonormalize": _one_of(*_C.Orthonormalize.__members__),
    "rcqr_oversample": ((lambda value: _is_number(value) and value >= 1), "a number ≥ 1"),
    "algorithm": _one_of(*get_args(Algorithm)),
    "scalar_algorithm": _one_of(*get_args(ScalarAlgorithm)),
    "lr_multiplier": _NOT_NEGATIVE,
    "batch_dims": (
        (lambda value: value is None or (_is_int(value) and value >= 0)),
        "None or an integer ≥ 0",
    ),
    "blocks": ((lambda value: _is_int(value) and value >= 1), "an integer ≥ 1"),
    "fan_in_first": _FLAG,
    "skip_zero_gradients": _FLAG,
    "maximize": _FLAG,
    "capturable": _FLAG,
    "differentiable": ((lambda value: value is False), "False (no graph goes through a step)"),
    "nonfinite": _one_of(*_C.Nonfinite.__members__),
    "precision": _one_of(*get_args(Precision)),
    "seed": (_is_int, "an integer of 64 bits"),
    "momentum_dtype": _DTYPE,
    "Q_dtype": _DTYPE,
    "variance_dtype": _DTYPE,
}
"""What each option of a group may be: a predicate, and its words in an error."""

DEFAULTS: dict[str, Any] = {
    "lr": 0.01,
    "mu": 0.95,
    "betas": None,
    "weight_decay": 0.01,
    "epsilon": 1e-8,
    "rank_fraction": 1.0,
    "rank_multiple_of": 1,
    "orientation": "right",
    "orthonormalize": "auto",
    "rcqr_oversample": 1.25,
    "algorithm": "dion",
    "scalar_algorithm": "lion",
    "lr_multiplier": 1.0,
    "batch_dims": None,
    "blocks": 1,
    "fan_in_first": False,
    "skip_zero_gradients": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "nonfinite": "propagate",
    "precision": "high",
    "seed": 0,
    "momentum_dtype": None,
    "Q_dtype": None,
    "variance_dtype": None,
}
"""Of a group that is given nothing."""

# Keys that torch itself puts into groups.
_TORCH_KEYS = (
    "params",
    "param_names",
    "initial_lr",
    "swa_lr",
    "max_lr",
    "min_lr",
    "base_momentum",
    "max_momentum",
)

# Of these parameters and of no others: the constructor, whose options are all groups' defaults, does not take them.
_OF_GROUPS = ("algorithm", "lr_multiplier", "batch_dims", "blocks", "fan_in_first", "skip_zero_gradients")

# What the constructor takes beside the defaults of groups.
_OF_THE_CONSTRUCTOR = (
    "replicate_mesh",
    "outer_shard_mesh",
    "inner_shard_mesh",
    "replicate_mesh_grad_sync",
    "mixed_precision_config",
)

# What others call an option.
_OTHER_NAMES = {"eps": "epsilon", "momentum": "mu", "oversample": "rcqr_oversample", "rank": "rank_fraction"}


def check_options(options: dict[str, Any], where: str) -> None:
    """Raises ValueError with one sentence for the first option outside its range; ``where`` names the group."""
    for name, (allowed, words) in CHECKS.items():
        if name in options and not allowed(options[name]):
            raise ValueError(f"torchdion.Dion: {name} must be {words}, got {shown(options[name])}{where}")
    if options.get("fan_in_first") and options.get("blocks", 1) > 1:
        raise ValueError(f"torchdion.Dion: blocks cannot be combined with fan_in_first{where}")
    for name, value in (("nonfinite", "raise"), ("orthonormalize", "qr")):
        if options.get("capturable") and options.get(name) == value:
            raise ValueError(
                f"torchdion.Dion: {name}={value!r} cannot be combined with capturable=True: the host would wait for "
                f"the device{where}"
            )


def check_group(group: dict[str, Any], where: str) -> None:
    """What a step asks of a group, whose options anyone may have changed since it was added."""
    for name in CHECKS:
        if name not in group and name not in ("beta1", "beta2"):
            raise ValueError(f"torchdion.Dion: {name} must be in the group, which lacks it{where}")
    check_options(group, where)
    if group["betas"] is None:
        raise ValueError(f"torchdion.Dion: betas must be two numbers in [0, 1), got None{where}")


def warn_of_near_misses(group: dict[str, Any], where: str) -> None:
    """torch keeps unknown group keys, and so do we; one that looks like a misspelt option gets a warning."""
    for key in group:
        if key in CHECKS or key in _TORCH_KEYS or not isinstance(key, str):
            continue
        near = _option_meant_by(key, CHECKS)
        if near:
            warn(f"torchdion.Dion: unknown option {key!r}{where} is kept and ignored; did you mean {near!r}?")


def refuse_unknown(options: Iterable[str]) -> None:
    """Raises TypeError for the first keyword that the constructor does not have, with what may be meant."""
    for name in options:
        raise TypeError(f"torchdion.Dion: unexpected keyword argument {name!r}{_advice_on(name)}")


def _advice_on(name: str) -> str:
    """What to do instead of giving the constructor this keyword, which it does not have."""
    if name in ("fused", "foreach"):
        return ": every step is fused, there is nothing to choose"
    if name == "differentiable":
        return ": no graph goes through a step"
    if name in _OF_GROUPS:
        return ": only a parameter group takes it"
    near = _option_meant_by(name, [*DEFAULTS, *_OF_THE_CONSTRUCTOR])
    if near in STATE_DTYPES.values():
        near = "mixed_precision_config"
    if near in _OF_GROUPS:
        return f"; did you mean {near!r} of a parameter group?"
    return f"; did you mean {near!r}?" if near else ""


def _option_meant_by(name: str, known: Iterable[str]) -> str | None:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return near[0] if near else None


def as_plain_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """NumPy's scalars as Python's own, which every unpickler knows; all else as it is."""
    return {name: _as_plain_number(value) for name, value in options.items()}


def _as_plain_number(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_plain_number, value))
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def rename_saved_options(group: dict[str, Any]) -> None:
    """Gives a saved group's options the names that they have now: those of the dion package, and older ones of ours."""
    if "oversample" in group:  # as the dion package calls it
        group.setdefault("rcqr_oversample", group["oversample"])
    # In a group without our other options lr_scale is that of timm's and MAE's schedules, which apply it themselves.
    if "lr_scale" in group and "lr_multiplier" not in group and "scalar_algorithm" in group:
        group["lr_multiplier"] = group.pop("lr_scale")


def resolve_betas(group: dict[str, Any], options: dict[str, Any]) -> None:
    """Gives a group its betas as a tuple: its own, from ``beta1`` and ``beta2``, or its algorithm's.

    Args:
        group: gets ``betas`` and loses ``beta1`` and ``beta2``, so that a schedule of betas has the last word.
        options: the group's with the defaults for those that it lacks.
    """
    algorithm = options["algorithm"] if options["algorithm"] != "dion" else options["scalar_algorithm"]
    first, second = options["betas"] if options["betas"] is not None else BETAS[algorithm]
    group["betas"] = float(options.get("beta1", first)), float(options.get("beta2", second))
    group.pop("beta1", None)
    group.pop("beta2", None)
