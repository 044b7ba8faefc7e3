"""Keys that are written into a group are looked at when it is added and at each step: obeyed, or warned of once."""

from collections.abc import Iterable, Set
from operator import is_, is_not, itemgetter
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion import _C, dion_package
from torchdion.mixed_precision import name_dtypes
from torchdion.options import (
    DEFAULTS,
    OTHER_NAMES,
    SELECTORS,
    TORCH_KEYS,
    as_plain_numbers,
    check_options,
    near_misses,
    options_of_group,
    resolve_betas,
    without_others,
)
from torchdion.other_optimizers import TORCH_OPTIONS, without_effect
from torchdion.plain_values import is_same
from torchdion.state import States
from torchdion.table import ALGORITHMS, OPTIONS, STATE_DTYPES, Group, algorithm_of
from torchdion.warning import warn
from torchdion.words import front

Sentences = dict[tuple[str, str], str]
"""By the key that each is about, and its reason."""

_ABSENT = object()
_PASSED_OVER = {*TORCH_KEYS, "lr"}
"""Keys that are no news, however often they are written: schedules write the rate at each step."""

_OF_DION_PACKAGE = {*dion_package.KEYS, "mixed_precision_config", "algorithm", "blocks", "batch_dims"}
_TRANSLATED = {*_OF_DION_PACKAGE, *filter(None, STATE_DTYPES.values())}
_CHOOSING = {*SELECTORS, "algorithm"}
_NAMES = {*OTHER_NAMES, *OPTIONS}
_OF_OTHERS = {*OTHER_NAMES, *TORCH_OPTIONS, *SELECTORS}
_KNOWN = {*_OF_OTHERS, *_TRANSLATED, *OPTIONS}


class Snapshot:
    """A group as it was when it was looked at last.

    Args:
        values: its keys and values then; None: those that it has.
        warned: the warnings that were given of it.
    """

    def __init__(self, group: Group, values: Group | None = None, warned: Iterable[tuple[str, str]] = ()) -> None:
        self.group = group
        self._take(group if values is None else values)
        self.meant: dict[str, str] = {}  # by their other names, the options that are there under both
        self._count: int | None = None
        self.warned = set(warned)

    @property
    def is_first(self) -> bool:
        """True if nobody has looked at the group itself yet."""
        return self._count is None

    def remember(self, put_off: Set[str] = frozenset()) -> None:
        """The group as it is now, but for these keys, which keep what they had when they were looked at last."""
        kept = {key: self.values[key] for key in put_off & self.values.keys()}
        self._take(self.group)
        self.values |= kept
        self._count = len(self.group)

    def _take(self, values: Group) -> None:
        self.values = {key: value for key, value in values.items() if key not in _PASSED_OVER}
        self._read = itemgetter(*self.values) if len(self.values) > 1 else tuple

    def is_current(self) -> bool:
        """True if nobody has written into the group since. Asked at each step, so that it compares no values."""
        try:
            return len(self.group) == self._count and all(map(is_, self._read(self.group), self.values.values()))
        except KeyError:
            return False

    def has_its_options(self) -> bool:
        """True if the group still has all that its algorithms had when it was looked at last."""
        try:
            return options_of_group(self.values) <= self.group.keys()
        except (KeyError, TypeError):  # a group of others, whose algorithm is none
            return False

    def written_in(self, group: Group) -> set[str]:
        """The keys of the group as it is now that are new, or have another value."""
        before = self.values.get
        return {
            key
            for key, value in group.items()
            if (old := before(key, _ABSENT)) is not value
            and key not in _PASSED_OVER
            and isinstance(key, str)
            and (old is _ABSENT or not is_same(value, old))
        }

    def warn_once(self, sentences: Sentences) -> None:
        """Warns of each key once for each reason."""
        for about in sorted(sentences.keys() - self.warned):
            warn(f"{front()}: {sentences[about]}")
            self.warned.add(about)


def look_at(
    groups: list[Group],
    snapshots: list[Snapshot],
    defaults: Group,
    states: States,
    put_off: Set[str] = frozenset(),
) -> None:
    """Obeys what was written into groups since the last time, or warns of it.

    Args:
        snapshots: the last ones at these groups, which become the next ones.
        defaults: of the optimizer.
        put_off: options of ours that are left for the next look.

    Raises:
        ValueError: a value that no option may have, or keys that contradict each other; the sentence names the group.
    """
    if len(snapshots) != len(groups) or any(map(is_not, groups, (snapshot.group for snapshot in snapshots))):
        snapshots[:] = _snapshots_of(groups, snapshots)
    found = []
    for index, snapshot in enumerate(snapshots):
        # The step says what a group lacks.
        if not snapshot.is_current() and snapshot.has_its_options():
            where = f" (parameter group {index})"
            found.append((snapshot, _changes_of(snapshot, put_off, defaults, states, where)))
    for snapshot, (changes, removed, sentences) in found:  # now that none is refused
        for key in removed:
            del snapshot.group[key]
        snapshot.group |= changes
        snapshot.remember(put_off)
        snapshot.warn_once(sentences)


def look_at_added_group(group: Group, given: Group, entries: list[Any], defaults: Group, where: str) -> Sentences:
    """The same for a group that is to be added, of which nothing was said before.

    Args:
        group: with all options, which were checked; gets what its keys mean, and loses options of other algorithms.
        given: what the caller has put into it, with our names.
        entries: its tensors or (name, tensor) pairs.

    Returns:
        A sentence for each key that is to be warned of.
    """
    _C.GroupKeys.choose_algorithm(group, defaults["algorithm"], "algorithm" in given, where)
    resolve_betas(group)
    for key in group.keys() - without_others(group, defaults.keys() | given.keys()):
        del group[key]
    all_defaults = {**DEFAULTS, **defaults}
    written = {key for key in given.keys() & _NAMES if given[key] is not None}
    if "scalar_algorithm" in given:  # a whole group of another optimizer here, whose options may have their defaults
        written = {key for key in written if key not in OPTIONS or not is_same(given[key], all_defaults[key])}
    meant, _ = _C.GroupKeys.unite(group, written, True, where)
    before = {key: all_defaults[key] for key in given.keys() & OPTIONS.keys() - meant.keys()}
    unused = _unused(given.keys(), meant, group, dion_package.tensors_of(entries), where)
    return unused | _remarks({**group, "params": []}, before, {}, where)


def algorithms_of(params: list[Tensor], group: Group) -> set[str]:
    """The algorithms that update a parameter."""
    if not params or any(map(is_lazy, params)):  # a lazy module's has no shape before its first input
        own = ALGORITHMS[group["algorithm"]]
        return {own.name, group["scalar_algorithm"]} if own.takes_matrices else {own.name}
    return {algorithm_of(param, group).name for param in params}


def _snapshots_of(groups: list[Group], snapshots: list[Snapshot]) -> list[Snapshot]:
    """The snapshots of these groups, of which a new dict goes on from the group that had its parameters before."""
    known = {id(snapshot.group): snapshot for snapshot in snapshots}
    present = set(map(id, groups))
    gone = {
        id(param): snapshot
        for snapshot in snapshots
        if id(snapshot.group) not in present
        for param in snapshot.group.get("params", ())
    }

    def snapshot_of(group: Group) -> Snapshot:
        before = next((gone[id(param)] for param in group.get("params", ()) if id(param) in gone), None)
        return Snapshot(group) if before is None else Snapshot(group, before.values, before.warned)

    return [known.get(id(group)) or snapshot_of(group) for group in groups]


def _changes_of(
    snapshot: Snapshot, put_off: Set[str], defaults: Group, states: States, where: str
) -> tuple[Group, set[str], Sentences]:
    """The keys that a group gets and loses for what was written into it, and warnings; the group stays as it is."""
    before, written = {**DEFAULTS, **defaults, **snapshot.values}, snapshot.written_in(snapshot.group) - put_off
    if not snapshot.is_first and written <= before.keys() and written.isdisjoint(_KNOWN):
        return {}, set(), {}  # counters of others, which were looked at when they came
    group = dict(snapshot.group)
    group |= as_plain_numbers({key: group[key] for key in written})
    if not written.isdisjoint(_TRANSLATED):
        group = _with_our_names(group, written & _OF_DION_PACKAGE, where)
        written = snapshot.written_in(group) - put_off
    check_options({key: group[key] for key in written & OPTIONS.keys()}, where)
    if snapshot.is_first or not written.isdisjoint(_CHOOSING):
        chooses = not written.isdisjoint(SELECTORS)
        _C.GroupKeys.choose_algorithm(group, defaults["algorithm"], not chooses or "algorithm" in written, where)
    group = _with_own_options(group, snapshot, defaults)
    meant = snapshot.meant
    contradictions: dict[str, str] = {}
    if snapshot.is_first or not written.isdisjoint({*OTHER_NAMES, *_CHOOSING, "scalar_algorithm", *meant.values()}):
        said = {key for key in written & _NAMES if snapshot.group.get(key, key) is not None}
        meant, contradictions = _C.GroupKeys.unite(group, said, False, where)
        snapshot.meant = meant
    new = written - before.keys() | written & TORCH_OPTIONS.keys()
    if "weight_decay" in written and "decoupled_weight_decay" in group:  # which says something once there is one
        new.add("decoupled_weight_decay")
    sentences = _by_reason(contradiction=contradictions)
    if new:
        sentences |= _unused(new, meant, group, group["params"], where)
    silent = {*put_off, *meant, *({"betas"} - written)}  # one of betas alone is written by who knows whose it is
    sentences |= _remarks(group, {key: before[key] for key in OPTIONS.keys() - silent}, states, where)
    changes = {key: value for key, value in group.items() if snapshot.group.get(key, _ABSENT) is not value}
    return changes, snapshot.group.keys() - group.keys(), sentences


def _with_own_options(group: Group, snapshot: Snapshot, defaults: Group) -> Group:
    """The group with the options of its algorithms, and without those of the ones that it had before."""
    own = options_of_group(group)
    if own == options_of_group(snapshot.values):
        return group
    given = group.keys() - options_of_group(snapshot.values)
    whole = {name: defaults.get(name, DEFAULTS[name]) for name in own} | group
    return without_others(whole, defaults.keys() | given)


def _remarks(group: Group, before: Group, states: States, where: str) -> Sentences:
    """About options that are other ones than before. Those that stay as they were get their value back."""
    sentences = {}
    for option, reason, sentence in _C.GroupOptions.remarks(before, group, states, where):
        sentences[option, reason] = sentence
        if reason == "kept":
            group[option] = before[option]
    return sentences


def _unused(keys: Set[Any], meant: dict[str, str], group: Group, params: list[Tensor], where: str) -> Sentences:
    """The warnings about new keys that change nothing."""
    own = algorithms_of(params, group)
    others = [key for key in OTHER_NAMES if key in keys - OPTIONS.keys() and group[key] is not None]
    return _by_reason(
        meaningless={key: sentence for key in others if (sentence := _meaningless(key, meant.get(key), own, where))},
        torch=without_effect(keys, group, where),
        misspelt=near_misses(keys - _OF_OTHERS, where),
    )


def _meaningless(key: str, option: str | None, own: set[str], where: str) -> str | None:
    """A sentence for a key that others call an option by, where nothing in the group has it; None: something has.

    Args:
        option: that it means here; None: none.
        own: the algorithms that update parameters of the group.
    """
    named = option or OTHER_NAMES[key][0]
    algorithms = OPTIONS[named]["algorithms"]
    if not own.isdisjoint(algorithms):
        return None
    return (
        f"the key {key!r}{where} is kept and {'has no effect' if option else 'ignored'}: it is {named!r} here, an "
        f"option of {', '.join(algorithms)}, which no parameter of the group has"
    )


def _by_reason(**sentences: dict[str, str]) -> Sentences:
    return {(key, reason): sentence for reason, each in sentences.items() for key, sentence in each.items()}


def _with_our_names(group: Group, keys: set[str], where: str) -> Group:
    """The group with our keys in the place of those of the dion package among these, which say the same."""
    theirs = {key: group[key] for key in keys}
    ours = dion_package.named_as_here(theirs, group["params"], None, where)
    named = {key: value for key, value in group.items() if key not in keys or key in ours} | ours
    name_dtypes(named)
    return named
