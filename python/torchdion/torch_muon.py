"""State dicts of torch.optim.Muon, as torchdion.Muon's."""

from typing import Any

from torchdion.options import is_share
from torchdion.words import front, shown

_JORDAN = (3.4445, -4.7750, 2.0315)
"""What torch calls ns_coefficients, of newton_schulz="jordan"."""

_ADJUST_LR = {None: "original", "original": "original", "match_rms_adamw": "rms_norm"}
"""What torch calls adjust_lr_fn."""


def with_our_names(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[int | str, float]]:
    """The same, but groups and states that torch.optim.Muon saved under the names that they have here.

    Returns:
        And, by the key of its parameter, what a momentum is to be divided by: torch's buffer is the mean of gradients
        that M = μ M + G is the sum of, (1 − μ) times ours.

    Raises:
        ValueError: other polynomials than Jordan's, or an option that torch does not have.
    """
    groups, states = list(state_dict["param_groups"]), dict(state_dict["state"])
    divisors: dict[int | str, float] = {}
    for index, saved in enumerate(groups):
        if not isinstance(saved, dict) or "ns_coefficients" not in saved:
            continue
        groups[index] = group = _group(saved, f" (parameter group {index} of the state dict)")
        keys = group.get("params")
        for key in keys if isinstance(keys, (list, tuple)) else ():
            state = states.get(key) if isinstance(key, (int, str)) else None
            if isinstance(state, dict) and "momentum_buffer" in state:
                others = {name: value for name, value in state.items() if name != "momentum_buffer"}
                states[key] = {**others, "momentum": state["momentum_buffer"]}
                divisors[key] = 1 - group["mu"]
    return {**state_dict, "state": states, "param_groups": groups}, divisors


def _group(saved: dict[str, Any], where: str) -> dict[str, Any]:
    group = dict(saved)
    coefficients, adjust, mu = (group.pop(name, None) for name in ("ns_coefficients", "adjust_lr_fn", "momentum"))
    group.pop("eps", None)  # a bound on the norm below which torch's updates vanish
    if not isinstance(coefficients, (tuple, list)) or not _are_jordans(coefficients):
        raise ValueError(
            f"{front()}: ns_coefficients must be {_JORDAN}, those of newton_schulz='jordan', got "
            f"{shown(coefficients)}{where}"
        )
    if not isinstance(adjust, (str, type(None))) or adjust not in _ADJUST_LR:
        raise ValueError(
            f"{front()}: adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got {shown(adjust)}{where}"
        )
    if not is_share(mu):
        raise ValueError(f"{front()}: momentum must be in [0, 1), got {shown(mu)}{where}")
    ours = {"algorithm": "muon", "mu": float(mu), "newton_schulz": "jordan", "adjust_lr": _ADJUST_LR[adjust]}
    return {**group, **ours}


def _are_jordans(coefficients: tuple[Any, ...] | list[Any]) -> bool:
    return all(isinstance(one, float) for one in coefficients) and tuple(coefficients) == _JORDAN
