"""The directives ``{options} CLASS`` and ``{group-keys}``: tables of options, from the declarations of csrc/algorithms.

What an option means and what is allowed stands in its declaration; what a class has as its default, in its signature.
"""

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

import torchdion
from torchdion.table import ALGORITHMS, OPTIONS, STATE_DTYPES

if TYPE_CHECKING:
    from sphinx.application import Sphinx

OF_GROUPS = ("algorithm", "batch_dims", "blocks", "fan_in_first", "lr_multiplier", "skip_zero_gradients")
"""Options that say something about parameters: groups take them, constructors do not."""


def table(rows: Iterable[tuple[str, ...]], titles: tuple[str, ...]) -> str:
    """In Markdown."""
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def defaults_of(algorithm: str, front: type) -> dict[str, Any]:
    """Of the options that the constructor takes and the algorithm has, in the order of their declarations."""
    parameters = inspect.signature(front).parameters
    taken = {name: parameters[name].default for name in parameters if name in OPTIONS}
    scalar = {"epsilon", "betas"} if ALGORITHMS[algorithm].takes_matrices else set()
    own = {name for name, declared in OPTIONS.items() if algorithm in declared["algorithms"]} | scalar
    return {name: taken[name] for name in OPTIONS if name in own & set(taken)}


def row(name: str, default: Any, algorithm: str | None = None) -> tuple[str, ...]:
    """Of one option, as the algorithm declares it: several may have options of one name."""
    declared = OPTIONS[name]
    own = ALGORITHMS[algorithm].docs if algorithm else {}
    return f"`{name}`", f"`{default!r}`", own.get(name, declared["doc"]), declared["words"].replace("'", "`")


class OptionsTable(SphinxDirective):
    """``{options} CLASS``: what the constructor of an optimizer takes beside meshes and dtypes."""

    required_arguments = 1

    def run(self) -> list[Node]:
        front = getattr(torchdion, self.arguments[0])
        rows = [row(*each, front.algorithm) for each in defaults_of(front.algorithm, front).items()]
        return self.parse_text_to_nodes(table(rows, ("option", "default", "meaning", "allowed")))


class GroupKeysTable(SphinxDirective):
    """``{group-keys}``: options that only a parameter group takes."""

    def run(self) -> list[Node]:
        rows = [row(name, OPTIONS[name]["default"]) for name in OF_GROUPS]
        return self.parse_text_to_nodes(table(rows, ("group key", "default", "meaning", "allowed")))


class StatesTable(SphinxDirective):
    """``{states}``: what each algorithm keeps of a parameter between steps."""

    def run(self) -> list[Node]:
        shapes = {"like_parameter": "the parameter's", "factor": "[stack…, m or n, r]", "rows": "[stack…, m, 1]"}
        rows = [
            (f"`{algorithm.name}`", f"`{state.name}`", shapes[state.shape], f"`{STATE_DTYPES[state.name]}`")
            for algorithm in ALGORITHMS.values()
            for state in algorithm.states
        ]
        return self.parse_text_to_nodes(table(rows, ("algorithm", "state", "shape", "its dtype is set by")))


def setup(app: "Sphinx") -> dict[str, bool]:
    app.add_directive("options", OptionsTable)
    app.add_directive("group-keys", GroupKeysTable)
    app.add_directive("states", StatesTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
