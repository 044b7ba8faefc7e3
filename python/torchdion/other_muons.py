"""Keys by which groups of other packages choose their update rule: ``use_muon``, ``kind``, ``optim_type`` and the like.

A group says by them which algorithm updates it. They stay in it, since loops read them.
"""

from typing import Any, NamedTuple

import torch

from torchdion.dion_package import is_one_of
from torchdion.table import ALGORITHMS, Group
from torchdion.words import front, shown


class _Choice(NamedTuple):
    """The rule that a key of a group asks for.

    Args:
        allowed: the algorithms that do what it says.
        name: the one that it means where the group and the optimizer have none of these.
    """

    allowed: tuple[str, ...]
    name: str


_MUON = _Choice(("muon", "normuon"), "muon")
_NO_MUON = _Choice(tuple(name for name, known in ALGORITHMS.items() if not known.takes_matrices), "adamw")

_ADAM = _Choice(("adamw",), "adamw")
_NO_ADAM = _Choice(tuple(name for name in ALGORITHMS if name != "adamw"), "muon")

FLAGS = {
    **dict.fromkeys(("use_muon", "is_muon"), (_NO_MUON, _MUON)),
    **dict.fromkeys(("use_adam", "use_adamw"), (_NO_ADAM, _ADAM)),
}
"""KellerJordan/Muon, NorMuon, ms-swift and others: the rules that False and True ask for."""

NAMES = ("optim_type", "optimizer_type", "optimizer", "optim")
"""Trainers that mix rules: the name of one."""

LABELS = ("kind",)
"""nanochat, and our own param_groups(): the name of a rule, or the kind of the parameters, which may begin with one."""

SELECTORS = (*NAMES, *LABELS, *FLAGS)
"""The most exact ones first: use_muon=False says only what a rule is not."""

_OTHER_NAMES = {"adam": "adamw", "nordion2": "dion3", **{name.replace("_", ""): name for name in ALGORITHMS}}

# Rules that there are elsewhere, and not here: torch's own, and those that trainers have beside a Muon.
_ELSEWHERE = {name.lower() for name, known in vars(torch.optim).items() if isinstance(known, type)} - {"optimizer"} | {
    *("ademamix", "adopt", "came", "galore", "kron", "lamb", "lars", "mars", "prodigy", "psgd"),
    *("scion", "shampoo", "soap", "sophia", "splus", "tiger"),
}


def choose_algorithm(group: Group, default: str, is_named: bool, where: str) -> None:
    """Gives a group the algorithm that keys of other packages ask for.

    Args:
        group: with a checked ``algorithm``.
        default: the optimizer's own.
        is_named: the group names its algorithm, which no other key then changes.

    Raises:
        ValueError: two keys contradict each other, or one has no equal here; the sentence names both.
    """
    own = group["algorithm"]
    for key in SELECTORS:
        choice = _choice(key, group.get(key), where)
        if choice is None:
            continue
        if own in choice.allowed:
            is_named = True
            continue
        means = f"{front()}: {key}={shown(group[key])} means algorithm={choice.name!r}"
        if is_named:
            raise ValueError(f"{means}, got algorithm={own!r} too{where}")
        is_beside = ALGORITHMS[default].takes_matrices and not ALGORITHMS[choice.name].takes_matrices
        if default not in choice.allowed and not is_beside:
            raise ValueError(
                f"{means}, and the optimizer's own is {default!r}{where}; leave {key} out, or name the algorithm"
            )
        own, is_named = default if default in choice.allowed else choice.name, True
    for key in LABELS:
        _refuse_other_rule(key, group.get(key), own, where)
    group["algorithm"] = own


def says_muon(group: Group) -> bool:
    """True if a group that was checked asks for Muon in the words of another package."""
    return any(_choice(key, group.get(key), "") is _MUON for key in SELECTORS)


def _choice(key: str, value: Any, where: str) -> _Choice | None:
    """None: the value asks for no rule."""
    if value is None:
        return None
    if key in FLAGS:
        if not is_one_of(value, True, False):
            raise ValueError(f"{front()}: {key} must be True or False, got {shown(value)}{where}")
        return FLAGS[key][bool(value)]
    text = _text_of(value)
    name = None if text is None else _OTHER_NAMES.get(_joined(text))
    if name is not None:
        return _MUON if name == "muon" else _Choice((name,), name)
    if key in LABELS and text not in _ELSEWHERE:
        return None
    known = ", ".join(map(repr, ("adam", *ALGORITHMS)))
    raise ValueError(f"{front()}: {key} must be one of {known}, got {shown(value)}{where}")


def _refuse_other_rule(key: str, value: Any, own: str, where: str) -> None:
    """Raises ValueError for a label such as "adam8bit" that begins with the name of another rule than the group's."""
    text = _text_of(value) or ""
    # The name ends where no letter follows: "lambda" is not LAMB. The longest one counts: "dion2_heads" is not Dion's.
    ends = [end for end in range(len(text), 0, -1) if text[end - 1].isalnum() and not text[end : end + 1].isalpha()]
    begin = next((text[:end] for end in ends if _joined(text[:end]) in _OTHER_NAMES or text[:end] in _ELSEWHERE), None)
    if begin is None:
        return
    name = _OTHER_NAMES.get(_joined(begin))
    if own not in (_MUON.allowed if name == "muon" else (name,)):
        raise ValueError(
            f"{front()}: {key}={shown(value)} says {begin!r}, got algorithm={own!r}{where}; name the algorithm, or "
            "another label"
        )


def _text_of(value: Any) -> str | None:
    """The name of a rule: a text, or that of an optimizer's class; None: the value has none."""
    if isinstance(value, torch.optim.Optimizer):
        value = type(value)
    if isinstance(value, type):
        return value.__name__.lower()
    return value.lower() if isinstance(value, str) else None


def _joined(text: str) -> str:
    return text.replace("_", "").replace("-", "")
