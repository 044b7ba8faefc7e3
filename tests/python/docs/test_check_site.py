"""The check of the built site finds links that lead nowhere, pictures without words, pages that no one reaches."""

from pathlib import Path

import pytest
from check_site import complaints

FRONT = '<h1 id="top">x</h1><a href="guide.html#part">g</a><a href="https://example.org/none">e</a>'


def site(folder: Path, front: str, guide: str = '<h2 id="part">p</h2>') -> list[str]:
    (folder / "docs").mkdir()
    (folder / "docs" / "index.html").write_text(front)
    (folder / "docs" / "guide.html").write_text(guide)
    (folder / "docs" / "picture.svg").write_text("<svg/>")
    return list(complaints(folder))


@pytest.mark.parametrize(
    ("front", "found"),
    [
        (FRONT, []),
        (FRONT + '<img src="picture.svg" alt="A step">', []),
        (FRONT + '<a href="../docs/guide.html">g</a>', []),
        (FRONT + '<a href="gone.html">g</a>', ["docs/index.html: gone.html leads nowhere"]),
        (FRONT + '<a href="#none">g</a>', ["docs/index.html: #none leads to no anchor"]),
        (FRONT + '<a href="guide.html#none">g</a>', ["docs/index.html: guide.html#none leads to no anchor"]),
        (FRONT + '<img src="gone.svg" alt="A step">', ["docs/index.html: the picture gone.svg is missing"]),
        (FRONT + '<img src="picture.svg">', ["docs/index.html: the picture picture.svg has no alternative text"]),
        ("<p>x</p>", ["docs/guide.html: no link leads to it"]),
    ],
)
def test_what_does_not_hold_is_named(tmp_path: Path, front: str, found: list[str]) -> None:
    assert site(tmp_path, front) == found


def test_a_folder_without_a_site_is_named(tmp_path: Path) -> None:
    assert list(complaints(tmp_path)) == [f"{tmp_path}: no docs/index.html"]
