"""What the commands of ``python -m torchdion`` share."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Refuses in one sentence, without the usage in front of it, and with exit status 2; --help keeps line breaks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def mesh_sizes(text: str) -> dict[str, int]:
    """The sizes in "dp=2,fs=4,tp=8"."""
    sizes: dict[str, int] = {}
    for word in text.split(","):
        name, _, size = word.partition("=")
        if name in sizes or not size.isascii() or not size.isdigit() or len(size) > 9:
            raise argparse.ArgumentTypeError(f"must be sizes such as dp=2,fs=4,tp=8, each name once, got {text!r}")
        sizes[name] = int(size)
    return sizes


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
