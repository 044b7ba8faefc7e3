"""The fenced blocks of the pages under docs/guides."""

import re
from dataclasses import dataclass
from pathlib import Path

GUIDES = Path(__file__).resolve().parents[3] / "docs" / "guides"
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    reason: str | None  # why no test runs it


def blocks(page: str) -> list[Block]:
    """Those of docs/guides/PAGE.md, in their order."""
    found = BLOCK.finditer((GUIDES / f"{page}.md").read_text())
    return [Block(each["language"], each["text"], each["reason"]) for each in found]


def run_blocks(page: str, language: str) -> list[str]:
    """The texts of the blocks of a language that tests run."""
    return [block.text for block in blocks(page) if block.language == language and block.reason is None]
