"""State dicts of torch.optim.Muon, of torch.optim.AdamW and of the dion package, with the names that they have here."""

from collections.abc import Iterable
from typing import Any

from torch.nn.parameter import is_lazy

from torchdion.dion_package import is_one_of, matrices_of, named_as_here, resolve_flatten
from torchdion.options import OTHER_NAMES, as_plain_numbers, check_options, is_share, resolve_betas
from torchdion.other_muons import SELECTORS
from torchdion.other_names import Names, is_same, possible_algorithms
from torchdion.parameters import is_passed_over
from torchdion.table import OPTIONS, Group, algorithm_of
from torchdion.words import front, shown

_JORDAN = (3.4445, -4.7750, 2.0315)
"""What torch calls ns_coefficients, of newton_schulz="jordan"."""

_ADJUST_LR = {None: "original", "original": "original", "match_rms_adamw": "rms_norm"}
"""What torch calls adjust_lr_fn."""

_STATES = {
    "torch.optim.Muon": {"momentum_buffer": "momentum"},
    "torch.optim.AdamW": {"exp_avg": "momentum", "exp_avg_sq": "variance"},
    "dion": {"step_dev": "step"},
}
"""What they call states."""


TORCH_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "amsgrad": ((False, None), "AdamW has no maximum of second moments"),
    "dampening": ((0, None), "no momentum is dampened"),
    "ns_coefficients": ((_JORDAN, None), "newton_schulz names the coefficients"),
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
    for index, saved in enumerate(groups):
        own = own_groups[index] if index < len(own_groups) else {}
        source = _source_of(saved, own)
        where = f" (parameter group {index} of the state dict)"
        if source is None:
            groups[index] = _with_options(saved, own, where)
            continue
        renamed = _RENAMED[source](saved, own, where)
        step = renamed.pop("step", None)  # the dion package counts in the group
        groups[index] = group = {**{name: own[name] for name in OPTIONS if name in own}, **renamed}
        keys = group.get("params")
        for key in keys if isinstance(keys, (list, tuple)) else ():
            state = states.get(key) if isinstance(key, (int, str)) else None
            if not isinstance(state, dict) or not state:
                continue
            theirs = {ours: state[name] for name, ours in _STATES[source].items() if name in state}
            counted = {"step": step} if step is not None and "step" not in state else {}
            states[key] = (
                counted | {name: value for name, value in state.items() if name not in _STATES[source]} | theirs
            )
            if "momentum_buffer" in state and source == "torch.optim.Muon":
                divisors[key] = 1 - group["mu"]
    return {**state_dict, "state": states, "param_groups": groups}, divisors


def _source_of(saved: Any, own: dict[str, Any]) -> str | None:
    """Which of the others has saved a group; None: none of them."""
    if not isinstance(saved, dict) or "scalar_algorithm" in saved:  # our own
        return None
    if "ns_coefficients" in saved:
        return "torch.optim.Muon"
    if "amsgrad" in saved:
        algorithms = {algorithm_of(param, own).name for param in own.get("params", ()) if not is_lazy(param)}
        return "torch.optim.AdamW" if algorithms == {"adamw"} else None
    return "dion" if "algorithm" in saved else None


def _with_options(saved: Any, own: dict[str, Any], where: str) -> Any:
    """A group of a program that is not known, with the options that its keys mean; our own as it is."""
    if not own or not isinstance(saved, dict) or "scalar_algorithm" in saved:
        return saved
    if saved.keys().isdisjoint({*(OTHER_NAMES.keys() - OPTIONS.keys()), *SELECTORS}):
        return saved
    group = {**{name: own[name] for name in OPTIONS}, **as_plain_numbers(saved)}
    check_options(group, where)
    resolve_betas(group)
    names = Names(group, {key for key, value in saved.items() if value is not None}, possible_algorithms(group), where)
    for key in names.contradictions():
        raise ValueError(f"{front()}: {names.contradiction(key)}")
    names.unite()
    del group["scalar_algorithm"]  # by which groups of ours are known
    return group


def _of_dion(saved: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
    entries = [param for param in own.get("params", ()) if not is_passed_over(param)]
    group = named_as_here(saved, entries, where)
    first, second = (group.pop(name, None) for name in ("beta1", "beta2"))
    if first is not None and second is not None:
        group.setdefault("betas", (first, second))
    for theirs, ours in (("mu", "ef_decay"), ("oversample", "rcqr_oversample")):
        is_theirs = theirs != "mu" or is_one_of(group["algorithm"], "dion3")
        value = group.pop(theirs, None) if is_theirs else None
        if value is not None:
            group.setdefault(ours, value)
    group.pop("selection_scope", None)  # states are the same
    algorithm, flatten = group["algorithm"], group.get("flatten")
    if is_one_of(algorithm, "normuon") and saved.get("split_sizes") is not None and group.get("adjust_lr") is not None:
        raise ValueError(
            f"{front()}: split_sizes of NorMuon must not be beside adjust_lr, which scales its mean squares, got "
            f"{shown(saved['split_sizes'])} and {shown(group['adjust_lr'])}{where}"
        )
    is_flattened = flatten is True and any(matrix.dim() > 2 for matrix in matrices_of(entries))
    if is_flattened and is_one_of(algorithm, "normuon", "dion2", "dion3"):
        raise ValueError(
            f"{front()}: flatten must be False where {algorithm} has updated parameters of more than two dimensions, "
            f"whose last two are rows and columns in the dion package, got True{where}"
        )
    if is_one_of(algorithm, "muon", "normuon", "dion2", "dion3"):
        group.setdefault("batch_dims", own.get("batch_dims"))
        resolve_flatten(group, entries, None, where)
    group.pop("flatten", None)
    return group


def _of_torch_muon(saved: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
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


def _of_torch_adamw(saved: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
    """torch.optim.Adam's too, where no weight decays."""
    group = dict(saved)
    if group.pop("amsgrad") is not False:
        raise ValueError(f"{front()}: amsgrad must be False, got {shown(saved['amsgrad'])}{where}")
    for name in ("foreach", "fused"):
        group.pop(name, None)
    if group.pop("decoupled_weight_decay", True) is not True and not is_one_of(group.get("weight_decay"), 0):
        raise ValueError(
            f"{front()}: weight_decay must be decoupled, as of torch.optim.AdamW, or 0, got "
            f"{shown(group.get('weight_decay'))}{where}"
        )
    if "eps" in group:
        group["epsilon"] = group.pop("eps")
    return group


_RENAMED = {"torch.optim.Muon": _of_torch_muon, "torch.optim.AdamW": _of_torch_adamw, "dion": _of_dion}
