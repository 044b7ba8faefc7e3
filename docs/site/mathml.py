"""Formulas as MathML, which browsers draw themselves: no script, no network."""

import re
from typing import TYPE_CHECKING

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

if TYPE_CHECKING:
    from docutils.nodes import math, math_block
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def inline(translator: "HTML5Translator", node: "math") -> None:
    translator.body.append(convert(node.astext()))
    raise SkipNode


def block(translator: "HTML5Translator", node: "math_block") -> None:
    """Equations that a comma and a space of \\quad part stand on lines of their own: pages are narrow."""
    for equation in re.split(r",\s*\\quad\s*", node.astext()):
        translator.body.append(f'<div class="formula">{convert(equation, display="block")}</div>\n')
    raise SkipNode


def setup(app: "Sphinx") -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
