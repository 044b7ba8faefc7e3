"""Keys and state dicts of torch.optim's optimizers and of the dion package, with the names that they have here."""

from collections.abc import Iterable
from typing import Any

from torchdion import _C
from torchdion.dion_package import shapes_of
from torchdion.options import DEFAULTS, as_plain_numbers
from torchdion.parameters import is_passed_over
from torchdion.plain_values import is_same
from torchdion.table import OPTIONS, Group
from torchdion.words import shown

TORCH_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "amsgrad": ((False, None), "AdamW has no maximum of second moments"),
    "dampening": ((0, None), "no momentum is dampened"),
    "ns_coefficients": (((3.4445, -4.7750, 2.0315), None), "newton_schulz names the coefficients"),
    "adjust_lr_fn": ((None, "original"), "it is adjust_lr"),
    "decoupled_weight_decay": ((True, None), "weight decay is decoupled"),
}
"""Options of torch's optimizers that mean something and are none here: values that ask for nothing, and why."""


def without_effect(keys: Iterable[Any], group: Group, where: str) -> dict[str, str]:
    """A sentence for each option of torch's optimizers among the keys that asks for what there is not."""
    sentences = {}
    for key in keys:
        if key not in TORCH_OPTIONS:
            continue
        usual, reason = TORCH_OPTIONS[key]
        value = tuple(group[key]) if isinstance(group[key], list) else group[key]
        is_adams = key == "decoupled_weight_decay" and is_same(group["weight_decay"], 0)
        if not is_adams and not any(is_same(value, each) for each in usual):
            sentences[key] = f"the key {key!r}{where} is kept and ignored: {reason} here, got {shown(group[key])}"
    return sentences


def with_our_names(
    state_dict: dict[str, Any], own_groups: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[int | str, float]]:
    """The same, but with groups and states that others saved under the names that they have here.

    Args:
        own_groups: of the optimizer that loads them, whose options hold where a saved group has none. State of
            torch.optim.AdamW is left as it is where they have other algorithms.

    Returns:
        And, by the key of its parameter, what a momentum is to be divided by: the buffer of torch.optim.Muon is the
        mean of gradients that M = μ M + G is the sum of, (1 − μ) times ours.

    Raises:
        ValueError: an option whose value has no equal here.
    """
    groups, states = list(state_dict["param_groups"]), dict(state_dict["state"])
    divisors: dict[int | str, float] = {}
    for index, (saved, own) in enumerate(zip(groups, own_groups, strict=False)):  # their numbers are checked later
        if not isinstance(saved, dict) or "scalar_algorithm" in saved:  # our own
            continue
        where = f" (parameter group {index} of the state dict)"
        own, group = {**DEFAULTS, **own}, as_plain_numbers(saved)
        options = {name: own[name] for name in OPTIONS}
        params = [param for param in own["params"] if not is_passed_over(param)]
        shapes = shapes_of(group, params, group.get("batch_dims", own["batch_dims"]), where)
        of_others, names = _C.GroupKeys.rename_saved(group, options, shapes, where)
        step = group.pop("step", None) if of_others else None  # the dion package counts in the group
        groups[index] = options | group if of_others else group
        keys = group.get("params")
        for key in keys if of_others and isinstance(keys, (list, tuple)) else ():
            state = states.get(key) if isinstance(key, (int, str)) else None
            if not isinstance(state, dict) or not state:
                continue
            theirs = {ours: state[name] for name, ours in names.items() if name in state}
            counted = {"step": step} if step is not None and "step" not in state else {}
            states[key] = counted | {name: value for name, value in state.items() if name not in names} | theirs
            if "momentum_buffer" in names and "momentum_buffer" in state:
                divisors[key] = 1 - group["mu"]
    return {**state_dict, "state": states, "param_groups": groups}, divisors
