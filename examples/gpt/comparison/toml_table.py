"""TOML files as tables whose values are taken one by one, with one sentence for what cannot be."""

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from errors import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def based(path: Path, studies: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's table, laid over that of its `base`, another file of its folder or else of `studies`.

    Raises:
        Problem: it is no TOML, or its own base.
    """
    if path in above:
        raise Problem(f"{path} is its own base")
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Problem(f"{path} is no TOML: {error}") from error
    base = table.pop("base", None)
    if base is not None and not re.fullmatch(r"[\w.-]+", str(base)):
        raise Problem(f"{path}: base must be the name of a study, got {base!r}")
    if base is None:
        return table
    beside = path.with_name(f"{base}.toml")
    others = [file for file in (beside, studies / beside.name) if file.exists() and file != path]
    below = next(iter(others), beside)
    return _over(based(below, studies, (*above, path)), table)


def _over(below: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Tables are laid over tables, name by name; anything else takes the place of what was there."""
    result = dict(below)
    for name, value in table.items():
        both = isinstance(value, dict) and isinstance(below.get(name), dict)
        result[name] = _over(below[name], value) if both else value
    return result


SWITCHES = ("compress", "compile")
# Flags that take one kind of value.
KINDS: dict[str, type] = {**dict.fromkeys(SWITCHES, bool), **dict.fromkeys(("dp", "fs", "tp"), int)}


class Table:
    """A TOML table whose values are taken one by one; what nobody took is unknown."""

    def __init__(self, values: dict[str, Any], place: str) -> None:
        self._left = dict(values)
        self.place = place

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None, *, needed: bool = False) -> Any:
        if name not in self._left:
            if needed:
                raise Problem(f"{self.place}: {name} is missing")
            return default
        value = self._left.pop(name)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Problem(f"{self.place}: {name} is {value!r}, which should be {_words(kinds)}")
        return value

    def count(self, name: str, default: int, least: int = 1) -> int:
        value: int = self.take(name, int, default)
        if value < least:
            raise Problem(f"{self.place}: {name} must be at least {least}, got {value}")
        return value

    def names(self, name: str, known: Collection[str], default: list[str] | None = None) -> list[str]:
        """A list of different names, all of them known."""
        values: list[Any] = self.take(name, list, default, needed=default is None)
        if not values:
            raise Problem(f"{self.place}: {name} is empty")
        for value in values:
            if not isinstance(value, str) or value not in known:
                raise Problem(f"{self.place}: {name} has {value!r}, which is none of {', '.join(known)}")
            if values.count(value) > 1:
                raise Problem(f"{self.place}: {name} has {value!r} twice")
        return values

    def counts(self, name: str) -> tuple[int, ...]:
        values = self.take(name, list, needed=True)
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)
        if not values or not whole or len(set(values)) < len(values):
            raise Problem(f"{self.place}: {name} must be a list of different positive whole numbers, got {values!r}")
        return tuple(values)

    def each(
        self, name: str, of: str, count: int, default: int | None = None, least: int | None = 1
    ) -> tuple[int, ...]:
        """One whole number for all of so many, or one for each; any, where `least` is None."""
        given = self.take(name, (int, list), default, needed=default is None)
        values = given if isinstance(given, list) else [given] * count
        whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
        if len(values) != count or not whole or (least is not None and min(values) < least):
            kind = "whole" if least is None else "positive"
            raise Problem(f"{self.place}: {name} must be one {kind} number, or one for each {of}, got {given!r}")
        return tuple(values)

    def table(self, name: str) -> "Table":
        return Table(self.take(name, dict, {}), f"{self.place}, {name}")

    def flags(self, refused: set[str]) -> dict[str, Any]:
        """What is left, as flags of train.py."""
        flags, self._left = self._left, {}
        for name, value in flags.items():
            if name in refused:
                raise Problem(f"{self.place}: {name} cannot be set here; it is the study's, or the same for all")
            kind = KINDS.get(name, (str, int, float, list))
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
                raise Problem(f"{self.place}: {name} is {value!r}, which is no value of a flag")
        return flags

    def end(self) -> None:
        for name in self._left:
            raise Problem(f"{self.place}: {name} is not known here")


def _words(kinds: tuple[type, ...]) -> str:
    names = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "a table",
             bool: "true or false"}  # fmt: skip
    return " or ".join(names[kind] for kind in kinds)
