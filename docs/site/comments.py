"""HTML comments of a page, with which it tells its tests about blocks of code, stay out of the site."""

from typing import TYPE_CHECKING

from docutils.nodes import raw

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx


def remove_comments(app: "Sphinx", page: "document") -> None:
    for node in list(page.findall(raw)):
        if node.astext().lstrip().startswith("<!--"):
            node.parent.remove(node)


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("doctree-read", remove_comments)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
