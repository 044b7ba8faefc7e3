"""Keys that are written into a group are looked at when it is added and at each step: obeyed, or warned of once."""

from collections.abc import Iterable
from operator import is_, itemgetter
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


class Look:
    """A group as it was when it was looked at last.

    Args:
        said: its values then; None: those that it has.
        told: the warnings that were given of it.
    """

    def __init__(self, group: Group, said: Group | None = None, told: Iterable[tuple[str, str]] = ()) -> None:
        self.group = group
        self._take(group if said is None else said)
        self.united: set[str] = set()  # the keys that are two names of one option
        self._count: int | None = None
        self.told = set(told)

    @property
    def is_first(self) -> bool:
        """True if nobody has looked at the group itself yet."""
        return self._count is None

    def remember(self) -> None:
        self._take(self.group)
        self._count = len(self.group)

    def _take(self, values: Group) -> None:
        self.said = {key: value for key, value in values.items() if key not in _PASSED_OVER}
        self._read = itemgetter(*self.said) if len(self.said) > 1 else tuple

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
        before = self.said.get
        return {
            key
            for key, value in group.items()
            if (old := before(key, _ABSENT)) is not value
            and key not in _PASSED_OVER
            and isinstance(key, str)
            and (old is _ABSENT or not is_same(value, old))
        }

    def tell(self, sentences: Sentences) -> None:
        """Warns of each key once for each reason."""
        for about in sorted(sentences.keys() - self.told):
            warn(f"{front()}: {sentences[about]}")
            self.told.add(about)


class _News(NamedTuple):
    """The keys that a group gets and loses, and the warnings about it."""

    changes: Group
    removed: set[str]
    sentences: Sentences


def look_at(groups: list[Group], looks: list[Look], defaults: Group, states: dict[Tensor, dict[str, Tensor]]) -> None:
    """Obeys what was written into groups since the last time, or warns of it.

    Args:
        looks: the last ones at these groups, which become the next ones.
        defaults: of the optimizer.

    Raises:
        ValueError: a value that no option may have, or keys that contradict each other; the sentence names the group.
    """
    if len(looks) != len(groups) or any(look.group is not group for look, group in zip(looks, groups, strict=True)):
        looks[:] = _looks_of(groups, looks)
    news = []
    for index, look in enumerate(looks):
        if not look.is_current() and OPTIONS.keys() <= look.group.keys():  # else the step says what the group lacks
            news.append((look, _news_of(look, defaults, states, f" (parameter group {index})")))
    for look, (changes, removed, sentences) in news:  # now that none is refused
        for key in removed:
            del look.group[key]
        look.group |= changes
        look.remember()
        look.tell(sentences)


def heed_at_the_door(group: Group, given: Group, entries: list[Any], defaults: Group, where: str) -> Sentences:
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
    kept = _kept(given.keys(), names, group, dion_package.tensors_of(entries), where)
    return kept | _by_reason(of_others=options_of_others(options, group, defaults, where))


def algorithms_of(params: list[Tensor], group: Group) -> set[str]:
    """The algorithms that update a parameter."""
    if not params or any(map(is_lazy, params)):  # a lazy module's has no shape before its first input
        return possible_algorithms(group)
    return {algorithm_of(param, group).name for param in params}


def _looks_of(groups: list[Group], looks: list[Look]) -> list[Look]:
    """The looks at these groups, of which a new dict goes on from the group that had its parameters before."""
    known = {id(look.group): look for look in looks}
    present = set(map(id, groups))
    gone = {
        id(param): look for look in looks if id(look.group) not in present for param in look.group.get("params", ())
    }

    def look_of(group: Group) -> Look:
        before = next((gone[id(param)] for param in group.get("params", ()) if id(param) in gone), None)
        return Look(group) if before is None else Look(group, before.said, before.told)

    return [known.get(id(group)) or look_of(group) for group in groups]


def _news_of(look: Look, defaults: Group, states: States, where: str) -> _News:
    before, written = look.said, look.written_in(look.group)
    is_known = not look.is_first and written <= before.keys()
    if is_known and written.isdisjoint(_MORE_THAN_VALUES) and written.isdisjoint(look.united):
        return _news_of_values(look.group, written & OPTIONS.keys(), before, where)
    group = dict(look.group)
    group |= as_plain_numbers({key: group[key] for key in written})
    if not written.isdisjoint(_DTYPES):
        name_dtypes(group)
        written = look.written_in(group)
    if not written.isdisjoint(_OF_DION_PACKAGE):
        group = _with_our_names(group, written & _OF_DION_PACKAGE, where)
        written = look.written_in(group)
    options = {key: group[key] for key in written if key in OPTIONS or key in BETAS}
    check_options(options if written.isdisjoint(SIDES) else group, where)  # sides that contradict others may be kept
    if look.is_first or not written.isdisjoint(_CHOOSING):
        chooses = not written.isdisjoint(SELECTORS)
        choose_algorithm(group, defaults["algorithm"], not chooses or "algorithm" in written, where)
    if group["betas"] is None and not group.keys().isdisjoint(BETAS):
        resolve_betas(group)
    names = Names(group, written, possible_algorithms(group), where)
    contradictions = {key: f"{names.contradiction(key)}, which holds" for key in names.contradictions()}
    names.unite()
    look.united = {*names.meant, *names.meant.values()}
    options = {key: group[key] for key in written & before.keys() if key in OPTIONS and key not in names.meant}
    sentences = _by_reason(
        contradiction=contradictions,
        torch=without_effect(written & TORCH_OPTIONS.keys(), group, where),
        of_others=options_of_others(options, group, before, where),
        fixed=warnings_of(group, written, before, states, where),
    )
    new = written - before.keys()
    if new:
        sentences |= _kept(new, names, group, group["params"], where)
    changes = {key: value for key, value in group.items() if look.group.get(key, _ABSENT) is not value}
    return _News(changes, look.group.keys() - group.keys(), sentences)


def _news_of_values(group: Group, written: set[str], before: Group, where: str) -> _News:
    """The same where values of options alone have changed, as schedules do it at each step."""
    values = as_plain_numbers({key: group[key] for key in written})
    if not values:
        return _News({}, set(), {})  # counters of others, which were looked at when they came
    check_options(values, where)
    sentences = _by_reason(of_others=options_of_others(values, group, before, where))
    if "betas" in written:
        sentences |= _by_reason(fixed=warnings_of({**group, **values}, written, before, {}, where))
    return _News(values, set(), sentences)


def _by_reason(**sentences: dict[str, str]) -> Sentences:
    return {(key, reason): sentence for reason, each in sentences.items() for key, sentence in each.items()}


def _kept(keys: Iterable[Any], names: Names, group: Group, params: list[Tensor], where: str) -> Sentences:
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
