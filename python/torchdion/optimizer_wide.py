"""Options that hold for the whole optimizer: its groups have the same."""

from typing import Any

from torchdion.options import DEFAULTS, OF_RUN, OPTIMIZER_WIDE
from torchdion.words import front


def optimizer_wide(groups: list[dict[str, Any]], whose: str = "") -> dict[str, Any]:
    """The options that hold for the whole optimizer: those of its groups, which have the same.

    Raises:
        ValueError: they have not; the sentence names the first group that differs.
    """
    wide = {name: groups[0][name] for name in OPTIMIZER_WIDE}
    for index, group in enumerate(groups):
        for name, value in wide.items():
            if group[name] != value:
                raise ValueError(
                    f"{front()}: {name} must be the same in all groups, got {group[name]!r} (parameter group "
                    f"{index}{whose}) beside {value!r}"
                )
    return wide


def optimizer_wide_with(
    group: dict[str, Any], groups: list[dict[str, Any]], defaults: dict[str, Any]
) -> dict[str, Any]:
    """The same for a group that is to be added: as the others have it, whoever has set or loaded it there.

    The first group may ask for what the constructor's arguments leave at their defaults.
    """
    if groups:
        return optimizer_wide(groups)
    wide = {name: defaults[name] for name in OPTIMIZER_WIDE}
    asked = {name: group[name] for name in wide if name in group and wide[name] == DEFAULTS[name]}
    return {**wide, **asked}


def check_optimizer_wide(group: dict[str, Any], wide: dict[str, Any], where: str) -> None:
    """Raises ValueError where a checked group differs from the optimizer in what all of its groups share."""
    for name, value in wide.items():
        if group[name] != value:
            raise ValueError(f"{front()}: {name} holds for the whole optimizer, got {group[name]!r}{where}")


def check_of_run(groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
    """Raises ValueError where what no checkpoint changes has been changed."""
    for group in groups:
        for name in OF_RUN:
            if group[name] != defaults[name]:
                raise ValueError(f"{front()}: {name} must be what it was at construction, got {group[name]!r}")
