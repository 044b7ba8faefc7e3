"""Options that hold for the whole optimizer: its groups have the same."""

from typing import Any

from torchdion.options import DEFAULTS, OF_RUN, OPTIMIZER_WIDE
from torchdion.words import front


def optimizer_wide_with(
    group: dict[str, Any], groups: list[dict[str, Any]], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Those options for a group that is to be added: as the others have them, whoever has set or loaded them there.

    The first group may ask for what the constructor's arguments leave at their defaults.
    """
    if groups:
        return {name: groups[0][name] for name in OPTIMIZER_WIDE}
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
