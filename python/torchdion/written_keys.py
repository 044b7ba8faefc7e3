"""Keys that are written into a group are looked at when it is added and at each step: obeyed, or warned of once."""

from collections.abc import Iterable
from operator import is_, itemgetter
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion import dion_package
from torchdion.fixed_options import Group, States, unheard
from torchdion.mixed_precision import name_dtypes, state_dtypes
from torchdion.options import (
    TORCH_KEYS,
    as_plain_numbers,
    check_options,
    near_misses,
    options_of_others,
    resolve_betas,
)
from torchdion.other_muons import SELECTORS, choose_algorithm
from torchdion.other_names import BETAS, OTHER_NAMES, Names, is_same, meaningless, option_meant, possible_algorithms
from torchdion.table import OPTIONS, algorithm_of
from torchdion.warning import warn
from torchdion.words import front

_ABSENT = object()
_PASSED_OVER = {*TORCH_KEYS, "lr"}
"""Keys that are no news, however often they are written: schedules write the rate at each step."""


class Look:
    """A group as it was when it was looked at last."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.remember()
        self._count = -1  # not looked at yet
        self._told: set[str] = set()

    def remember(self) -> None:
        self.said = {key: value for key, value in self.group.items() if key not in _PASSED_OVER}
        self._read = itemgetter(*self.said) if len(self.said) > 1 else tuple
        self._count = len(self.group)

    def is_current(self) -> bool:
        """True if nobody has written into the group since. Asked at each step, so that it compares no values."""
        if len(self.group) != self._count:
            return False
        try:
            return all(map(is_, self._read(self.group), self.said.values()))
        except KeyError:
            return False

    def written_in(self, group: Group) -> set[str]:
        """The keys of the group as it is now that are new, or have another value."""
        said = self.said
        others = [key for key, value in group.items() if said.get(key, _ABSENT) is not value]
        return {
            key
            for key in others
            if isinstance(key, str) and key not in _PASSED_OVER and not (key in said and is_same(group[key], said[key]))
        }

    def tell(self, sentences: dict[str, str]) -> None:
        """Warns of keys, of each once."""
        for key in sorted(sentences.keys() - self._told):
            warn(f"{front()}: {sentences[key]}")
            self._told.add(key)


def look_at(groups: list[Group], looks: list[Look], defaults: Group, states: dict[Tensor, dict[str, Tensor]]) -> None:
    """Obeys what was written into groups since the last time, or warns of it.

    Args:
        looks: the last ones at these groups, which become the next ones.
        defaults: of the optimizer.

    Raises:
        ValueError: a value that no option may have, or keys that contradict each other; the sentence names the group.
    """
    if len(looks) != len(groups) or any(look.group is not group for look, group in zip(looks, groups, strict=True)):
        known = {id(look.group): look for look in looks}
        looks[:] = [known.get(id(group)) or Look(group) for group in groups]
    heard = []
    for index, look in enumerate(looks):
        if not look.is_current() and OPTIONS.keys() <= look.group.keys():  # else the step says what the group lacks
            heard.append((look, *_heed(look, defaults, states, f" (parameter group {index})")))
    for look, meant, sentences in heard:  # now that none is refused
        _replace(look.group, meant)
        look.remember()
        look.tell(sentences)


def heed_at_the_door(group: Group, given: Group, entries: list[Any], defaults: Group, where: str) -> dict[str, str]:
    """The same for a group that is to be added, of which nothing was said before.

    Args:
        group: with all options, which were checked; gets what its keys mean.
        given: what the caller has put into it, with our names.
        entries: its tensors or (name, tensor) pairs.

    Returns:
        A sentence for each key that is to be warned of.
    """
    choose_algorithm(group, defaults["algorithm"], "algorithm" in given, where)
    resolve_betas(group)
    possible = possible_algorithms(group)
    written = {key for key in given if key not in OPTIONS or not is_same(given[key], defaults[key])}
    if "scalar_algorithm" not in given:  # else it is a whole group of another optimizer here
        written |= {key for key in given.keys() & OTHER_NAMES.keys() if option_meant(key, group, possible)}
    names = Names(group, written, possible, where)
    for key in names.contradictions():
        raise ValueError(f"{front()}: {names.contradiction(key)}")
    names.unite()
    options = {key: value for key, value in given.items() if key not in names.meant}
    kept = _kept(given.keys(), names, group, dion_package.tensors_of(entries), where)
    return kept | options_of_others(options, group, defaults, where)


def _heed(look: Look, defaults: Group, states: States, where: str) -> tuple[Group, dict[str, str]]:
    """The group as it will be, and a sentence for each key that is to be warned of."""
    group = dict(look.group)
    name_dtypes(group)
    written = look.written_in(group)
    if _take_keys_of_dion_package(group, written, where):
        written = look.written_in(group)
    group |= as_plain_numbers({key: group[key] for key in written})
    check_options({key: group[key] for key in written if key in OPTIONS}, where)
    chooses = not written.isdisjoint(SELECTORS)
    choose_algorithm(group, defaults["algorithm"], not chooses or "algorithm" in written, where)
    if group["betas"] is None and not group.keys().isdisjoint(BETAS):
        resolve_betas(group)
    names = Names(group, written, possible_algorithms(group), where)
    sentences = {key: f"{names.contradiction(key)}, which holds" for key in names.contradictions()}
    names.unite()
    sentences |= _kept(written - look.said.keys(), names, group, group["params"], where)
    options = {key: group[key] for key in written & look.said.keys() if key not in names.meant}
    sentences |= options_of_others(options, group, look.said, where)
    return group, sentences | unheard(group, written, look.said, states, where)


def _replace(group: Group, meant: Group) -> None:
    """Writes what is different, and nothing else: other hands may hold the rest."""
    for key in group.keys() - meant.keys():
        del group[key]
    group |= {key: value for key, value in meant.items() if key not in group or group[key] is not value}


def _kept(keys: Iterable[Any], names: Names, group: Group, params: list[Tensor], where: str) -> dict[str, str]:
    """The warnings about keys that change nothing."""
    sentences: dict[str, str] = {}
    for key in keys:
        if key in OTHER_NAMES and key not in OPTIONS:
            possible, own = possible_algorithms(group), algorithms_of(params, group)
            sentence = meaningless(key, names.meant.get(key), possible, own, where)
            sentences |= {key: sentence} if sentence else {}
    foreign = (key for key in keys if key not in SELECTORS and key not in OTHER_NAMES)
    return sentences | near_misses(foreign, where)


def algorithms_of(params: list[Tensor], group: Group) -> set[str]:
    """The algorithms that update a parameter."""
    if not params or any(map(is_lazy, params)):  # a lazy module's has no shape before its first input
        return possible_algorithms(group)
    return {algorithm_of(param, group).name for param in params}


def _take_keys_of_dion_package(group: Group, written: set[str], where: str) -> bool:
    """Gives a group our keys in the place of those that say the same and do not stay. Whether there were any."""
    keys = written & {*dion_package.KEYS, "mixed_precision_config", "algorithm", "blocks", "batch_dims"}
    if not keys:
        return False
    theirs = {key: group[key] for key in keys}
    ours = dion_package.named_as_here(theirs, group["params"], where)
    dion_package.check_scope(ours, where)
    dion_package.resolve_flatten(ours, group["params"], None, where)
    if "mixed_precision_config" in ours:
        ours |= state_dtypes(ours.pop("mixed_precision_config"), where)
    for key in keys - ours.keys():
        del group[key]
    group |= ours
    name_dtypes(group)
    return True
