"""What the model reads: English that every Python brings, the docstrings of its standard library."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
PROSE = re.compile(r"[A-Z][\w ,.;:'()-]{39,}[.:]", re.ASCII)
"""A paragraph in one line: sentences, not an example, a table or a list of marked-up names."""
DRAWN = re.compile(r"(.)\1{3}")
"""Four of one character in a row are a line, not a word."""
LEFT_OUT = {"test", "idlelib", "site-packages", "dist-packages"}
"""Folders whose docstrings speak of other things, or differ from user to user."""

PIECE = re.compile(r"\n| ?\w+| ?[^\w\s]+|\s")
"""A word, or marks, with the space before it."""
RARE = 0
"""The token of every piece that is not in the vocabulary."""
VOCABULARY = 2048


class NoText(Exception):
    """The installation was stripped of its sources."""


def prose(library: Path | None = None) -> str:
    """The paragraphs of the library's docstrings, each once and in one line.

    Args:
        library: its folder; None: that of this Python.

    Raises:
        NoText: there are no such paragraphs.
    """
    root = library or Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]) if path.parent.name not in LEFT_OUT)
    found = dict.fromkeys(paragraph for path in files for paragraph in _paragraphs(path))
    if not found:
        raise NoText(f"no docstrings of the standard library, which the demo reads, lie in {root}")
    return "\n".join(found)


def _paragraphs(path: Path) -> Iterable[str]:
    for docstring in DOCSTRING.findall(path.read_text(encoding="utf-8", errors="ignore")):
        for lines in re.split(r"\n\s*\n", docstring):
            paragraph = " ".join(lines.split())
            if PROSE.fullmatch(paragraph) and not DRAWN.search(paragraph):
                yield paragraph


class Vocabulary:
    """The most frequent pieces of a text, of which each is a token; all others are the token RARE.

    Args:
        text: what it is made of.
        size: how many tokens there may be.
    """

    def __init__(self, text: str, size: int = VOCABULARY) -> None:
        counts = Counter(PIECE.findall(text))
        frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
        self._pieces = ["…", *frequent[: size - 1]]
        self._tokens = {piece: token for token, piece in enumerate(self._pieces)}

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        return [self._tokens.get(piece, RARE) for piece in PIECE.findall(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self._pieces[token] for token in tokens)
