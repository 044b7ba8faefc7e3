"""Keys by which others call an option of a group: two names of one thing, of which the last one written holds.

docs/guides/migrating.md lists them. They stay in the group, since loops read them and ask whether they are there.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchdion import _C
from torchdion.options import OTHER_NAMES, an_option_of, check_options
from torchdion.other_muons import says_muon
from torchdion.table import ALGORITHMS, OPTIONS, Group
from torchdion.words import shown

BETAS = {"beta1": 0, "beta2": 1}
"""The entries of ``betas``."""


def is_same(one: Any, other: Any) -> bool:
    """True if two values are equal, without waiting for a device: tensors out of its reach equal only themselves."""
    if one is other:
        return True
    if type(one) is type(other) is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    if any(isinstance(value, Tensor) and not (value.is_cpu and _C.has_memory(value)) for value in (one, other)):
        return False
    try:
        return bool(one == other)
    except Exception:  # whatever a foreign class raises
        return False


def possible_algorithms(group: Group) -> set[str]:
    """The algorithms that may update a parameter of the group."""
    own = ALGORITHMS[group["algorithm"]]
    return {own.name, group["scalar_algorithm"]} if own.takes_matrices else {own.name}


def option_meant(key: str, group: Group, algorithms: Iterable[str]) -> str | None:
    """The option that the key is another name of in a group of these algorithms; None: of none."""
    names = set(algorithms)
    options = OTHER_NAMES[key]
    if key in OPTIONS and not names.isdisjoint(OPTIONS[key]["algorithms"]):
        return None  # it is itself
    if key == "beta2" and says_muon(group):  # NorMuon's, in its authors' groups
        options = ("muon_beta2", *options)
    return next((option for option in options if not names.isdisjoint(OPTIONS[option]["algorithms"])), None)


class Names:
    """The two names of each option in a group that has all options, and what was written since they were the same.

    Args:
        group: with checked options of ours; gets the values.
        written: the keys that were written.
        algorithms: those that a parameter of the group may have.
    """

    def __init__(self, group: Group, written: set[str], algorithms: Iterable[str], where: str) -> None:
        self._group, self._written, self._where = group, written, where
        # Configurations leave None where they say nothing.
        meant = {key: option_meant(key, group, algorithms) for key in OTHER_NAMES if group.get(key) is not None}
        self.meant = {key: option for key, option in meant.items() if option is not None}
        """The option that each key of the group means."""
        self._different = [key for key in self.meant if not is_same(group[key], self._own(key))]

    def contradictions(self) -> list[str]:
        """The keys that say something else than their option where both were written, or neither and yet they differ.

        An option of ours that others have by its name too has its default where nobody wrote it.
        """
        return [
            key
            for key in self._different
            if (key in self._written) == (self.meant[key] in self._written)
            and (key in self._written or key not in OPTIONS)
        ]

    def contradiction(self, key: str) -> str:
        option = self.meant[key]
        value = shown(self._group[key])
        means = f"{option}={value}" if option != "betas" else f"betas[{BETAS[key]}]={value}"
        return f"{key}={value} means {means}, got {option}={shown(self._group[option])} too{self._where}"

    def held(self, key: str) -> str:
        """The warning of a contradiction, in which our own option wins."""
        option = self.meant[key]
        return f"{self.contradiction(key)}; {option}={shown(self._group[option])} holds"

    def unite(self) -> None:
        """Gives an option the value that was written under its other name alone, and else the other name the option's.

        Raises:
            ValueError: a value that the option may not have; the sentence names both.
        """
        for key in self._different:
            if key in self._written and self.meant[key] not in self._written:
                self._check(key)
                self._group[self.meant[key]] = self._value(key)
        for key in self.meant:
            if not is_same(self._group[key], self._own(key)):
                self._group[key] = self._own(key)

    def _own(self, key: str) -> Any:
        """The value that the option has, as the key would say it."""
        value = self._group[self.meant[key]]
        return value[BETAS[key]] if self.meant[key] == "betas" else value

    def _value(self, key: str) -> Any:
        """The value that the key gives to the option."""
        given = self._group[key]
        if self.meant[key] != "betas":
            return given
        first, second = self._group["betas"]
        return (float(given), second) if key == "beta1" else (first, float(given))

    def _check(self, key: str) -> None:
        if self.meant[key] == "betas":
            check_options({key: self._group[key]}, self._where)
        else:
            where = f"{self._where.removesuffix(')')}, given as {key!r})"
            check_options({self.meant[key]: self._group[key]}, where)


def meaningless(key: str, option: str | None, own: set[str], where: str) -> str | None:
    """A sentence for a key that others call an option by, where nothing in the group has it; None: something has.

    Args:
        option: that it means here; None: none.
        own: the algorithms that update parameters of the group.
    """
    named = option or OTHER_NAMES[key][0]
    if not own.isdisjoint(OPTIONS[named]["algorithms"]):
        return None
    return (
        f"the key {key!r}{where} is kept and {'has no effect' if option else 'ignored'}: it is {named!r} here, "
        f"{an_option_of(named)}, which no parameter of the group has"
    )
