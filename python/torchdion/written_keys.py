"""Keys that are written into a group are looked at when it is added and at each step: obeyed, or warned of once."""

from collections.abc import Iterable, Set
from operator import is_, is_not, itemgetter
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.parameter import is_lazy

from torchdion import dion_package
from torchdion.fixed_options import NOT_VALUES, SIDES, States, warnings_of
from torchdion.mixed_precision import name_dtypes, state_dtypes
from torchdion.options import (
    OTHER_NAMES,
    TORCH_KEYS,
    as_plain_numbers,
    check_options,
    near_misses,
    options_of_others,
    resolve_betas,
)
from torchdion.other_muons import SELECTORS, choose_algorithm
from torchdion.other_names import BETAS, Names, is_same, meaningless, possible_algorithms
from torchdion.other_optimizers import TORCH_OPTIONS, without_effect
from torchdion.table import OPTIONS, STATE_DTYPES, Group, algorithm_of
from torchdion.warning import warn
from torchdion.words import front

Sentences = dict[tuple[str, str], str]
"""By the key that each is about, and its reason."""

_ABSENT = object()
_PASSED_OVER = {*TORCH_KEYS, "lr"}
"""Keys that are no news, however often they are written: schedules write the rate at each step."""

_DTYPES = {option for option in STATE_DTYPES.values() if option}
_OF_DION_PACKAGE = {*dion_package.KEYS, "mixed_precision_config", "algorithm", "blocks", "batch_dims"}
_CHOOSING = {*SELECTORS, "algorithm"}
_MORE_THAN_VALUES = {*OTHER_NAMES, *TORCH_OPTIONS, *_OF_DION_PACKAGE, *_CHOOSING, *NOT_VALUES} - {"mu"}


class Snapshot:
    """A group as it was when it was looked at last.

    Args:
        values: its keys and values then; None: those that it has.
        warned: the warnings that were given of it.
    """

    def __init__(self, group: Group, values: Group | None = None, warned: Iterable[tuple[str, str]] = ()) -> None:
        self.group = group
        self._take(group if values is None else values)
        self.synonyms: set[str] = set()  # the keys that are two names of one option
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
        if len(self.group) != self._count:
            return False
        try:
            return all(map(is_, self._read(self.group), self.values.values()))
        except KeyError:
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


class _Changes(NamedTuple):
    """The keys that a group gets and loses, and the warnings about it."""

    changes: Group
    removed: set[str]
    sentences: Sentences


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
        if not snapshot.is_current() and OPTIONS.keys() <= snapshot.group.keys():
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
        group: with all options, which were checked; gets what its keys mean.
        given: what the caller has put into it, with our names.
        entries: its tensors or (name, tensor) pairs.

    Returns:
        A sentence for each key that is to be warned of.
    """
    choose_algorithm(group, defaults["algorithm"], "algorithm" in given, where)
    resolve_betas(group)
    possible = possible_algorithms(group)
    written = {key for key in given if given[key] is not None}
    if "scalar_algorithm" in given:  # a whole group of another optimizer here, whose options may have their defaults
        written = {key for key in written if key not in OPTIONS or not is_same(given[key], defaults[key])}
    names = Names(group, written, possible, where)
    for key in names.contradictions():
        raise ValueError(f"{front()}: {names.contradiction(key)}")
    names.unite()
    options = {key: value for key, value in given.items() if key not in names.meant}
    unused = _unused(given.keys(), names, group, dion_package.tensors_of(entries), where)
    return unused | _by_reason(of_others=options_of_others(options, group, defaults, where))


def algorithms_of(params: list[Tensor], group: Group) -> set[str]:
    """The algorithms that update a parameter."""
    if not params or any(map(is_lazy, params)):  # a lazy module's has no shape before its first input
        return possible_algorithms(group)
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


def _changes_of(snapshot: Snapshot, put_off: Set[str], defaults: Group, states: States, where: str) -> _Changes:
    """The changes that a group asks for by what was written into it; the group itself stays as it is."""
    before, written = snapshot.values, snapshot.written_in(snapshot.group) - put_off
    is_known = not snapshot.is_first and written <= before.keys()
    if is_known and written.isdisjoint(_MORE_THAN_VALUES) and written.isdisjoint(snapshot.synonyms):
        return _changes_of_values(snapshot.group, written & OPTIONS.keys(), before, where)
    group = dict(snapshot.group)
    group |= as_plain_numbers({key: group[key] for key in written})
    if not written.isdisjoint(_DTYPES):
        name_dtypes(group)
        written = snapshot.written_in(group) - put_off
    if not written.isdisjoint(_OF_DION_PACKAGE):
        group = _with_our_names(group, written & _OF_DION_PACKAGE, where)
        written = snapshot.written_in(group) - put_off
    options = {key: group[key] for key in written if key in OPTIONS or key in BETAS}
    check_options(options if written.isdisjoint(SIDES) else group, where)  # sides that contradict others may be kept
    if snapshot.is_first or not written.isdisjoint(_CHOOSING):
        chooses = not written.isdisjoint(SELECTORS)
        choose_algorithm(group, defaults["algorithm"], not chooses or "algorithm" in written, where)
    if group["betas"] is None and not group.keys().isdisjoint(BETAS):
        resolve_betas(group)
    said_nothing = {key for key, value in snapshot.group.items() if value is None}
    names = Names(group, written - said_nothing, possible_algorithms(group), where)
    contradictions = {key: names.held(key) for key in names.contradictions()}
    names.unite()
    snapshot.synonyms = {*names.meant, *names.meant.values()}
    without = written & TORCH_OPTIONS.keys()
    if "decoupled_weight_decay" in group:  # which says something once there is one
        snapshot.synonyms.add("weight_decay")
        without |= {"decoupled_weight_decay"} if "weight_decay" in written else set()
    options = {key: group[key] for key in written & before.keys() if key in OPTIONS and key not in names.meant}
    sentences = _by_reason(
        contradiction=contradictions,
        torch=without_effect(without, group, where),
        of_others=options_of_others(options, group, before, where),
        fixed=warnings_of(group, written, before, states, where),
    )
    new = written - before.keys()
    if new:
        sentences |= _unused(new, names, group, group["params"], where)
    changes = {key: value for key, value in group.items() if snapshot.group.get(key, _ABSENT) is not value}
    return _Changes(changes, snapshot.group.keys() - group.keys(), sentences)


def _changes_of_values(group: Group, written: set[str], before: Group, where: str) -> _Changes:
    """The same where values of options alone have changed, as schedules do it at each step."""
    values = as_plain_numbers({key: group[key] for key in written})
    if not values:
        return _Changes({}, set(), {})  # counters of others, which were looked at when they came
    check_options(values, where)
    sentences = _by_reason(of_others=options_of_others(values, group, before, where))
    if "betas" in written:
        sentences |= _by_reason(fixed=warnings_of({**group, **values}, written, before, {}, where))
    return _Changes(values, set(), sentences)


def _by_reason(**sentences: dict[str, str]) -> Sentences:
    return {(key, reason): sentence for reason, each in sentences.items() for key, sentence in each.items()}


def _unused(keys: Iterable[Any], names: Names, group: Group, params: list[Tensor], where: str) -> Sentences:
    """The warnings about new keys that change nothing."""
    unused: dict[str, str] = {}
    for key in keys:
        if key in OTHER_NAMES and key not in OPTIONS and group[key] is not None:
            sentence = meaningless(key, names.meant.get(key), algorithms_of(params, group), where)
            unused |= {key: sentence} if sentence else {}
    foreign = {key for key in keys if key not in SELECTORS and key not in OTHER_NAMES}
    return _by_reason(
        meaningless=unused,
        torch=without_effect(foreign, group, where),
        misspelt=near_misses(foreign - TORCH_OPTIONS.keys(), where),
    )


def _with_our_names(group: Group, keys: set[str], where: str) -> Group:
    """The group with our keys in the place of those of the dion package among these, which say the same."""
    theirs = {key: group[key] for key in keys}
    ours = dion_package.named_as_here(theirs, group["params"], where)
    dion_package.check_scope(ours, where)
    dion_package.resolve_flatten(ours, group["params"], None, where)
    if "mixed_precision_config" in ours:
        ours |= state_dtypes(ours.pop("mixed_precision_config"), where)
    named = {key: value for key, value in group.items() if key not in keys or key in ours} | ours
    name_dtypes(named)
    return named
