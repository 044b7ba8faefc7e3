"""Many names of parameters in few words."""

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of its own


def pattern(names: Sequence[str]) -> str:
    """Joins names that differ in numbers, or else in one part.

    >>> pattern(["layers.0.mlp.up.weight", "layers.0.mlp.gate.weight", "layers.1.mlp.up.weight"])
    'layers.*.mlp.{up,gate}.weight'
    """
    joined: list[list[list[str]]] = []  # of each pattern the parts, of each part its words
    for name in dict.fromkeys(_NUMBER.sub("*", name) for name in names):
        parts = name.split(".")
        for pattern in joined:
            position = _one_difference(pattern, parts)
            if position is not None:
                pattern[position].append(parts[position])
                break
        else:
            joined.append([[part] for part in parts])
    return ", ".join(".".join(map(_alternatives, parts)) for parts in joined)


def _one_difference(pattern: list[list[str]], parts: list[str]) -> int | None:
    """Where a name differs from a pattern, if it can join it there."""
    if len(pattern) != len(parts):
        return None
    positions = [position for position, words in enumerate(pattern) if words != [parts[position]]]
    return positions[0] if len(positions) == 1 else None


def _alternatives(words: list[str]) -> str:
    return words[0] if len(words) == 1 else "{" + ",".join(words) + "}"
