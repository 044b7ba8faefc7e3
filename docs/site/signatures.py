"""Signatures without ``**unknown``, which constructors have to refuse keywords by their own sentence."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def without_unknown(
    app: "Sphinx", what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    return signature and signature.replace(", **unknown)", ")"), returned


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("autodoc-process-signature", without_unknown)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
