"""The directive ``{command-line} MODULE:FUNCTION``: a table of what an argparse parser takes, made by FUNCTION()."""

import argparse
import importlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from docutils.nodes import Node
from option_tables import table
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def flags(action: argparse.Action) -> str:
    """As they are typed, with what follows them."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = ""
    if action.nargs != 0:
        choices = ",".join(map(str, action.choices)) if action.choices else ""
        value = " " + str(action.metavar or choices or action.dest.upper())
    return ", ".join(f"`{flag}{value}`" for flag in action.option_strings)


def meaning(action: argparse.Action, prog: str) -> str:
    words = (action.help or "") % {**vars(action), "prog": prog}
    words = re.sub(r"([*_<])", r"\\\1", words)
    default = f"{action.default:.3g}" if isinstance(action.default, float) else action.default
    told = default in (None, False, argparse.SUPPRESS, {}, ()) or str(default) in words or words.endswith(")")
    return words if told or action.nargs == 0 else f"{words} ({default})".strip()


def rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            yield flags(action), meaning(action, parser.prog)


class CommandLine(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[Node]:
        module, function = self.arguments[0].split(":")
        parser: argparse.ArgumentParser = getattr(importlib.import_module(module), function)()
        text = f"{parser.description}\n\n" + table(rows(parser), ("argument", "meaning"))
        return self.parse_text_to_nodes(text)


def setup(app: "Sphinx") -> dict[str, bool]:
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
