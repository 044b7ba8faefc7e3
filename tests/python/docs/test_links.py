"""Links and pictures of the documentation lead to files that exist, and to headings in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    page for folder in (".", "docs", "examples", "benchmarks", "csrc", "tests", "release")
    for page in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)  # fmt: skip


def prose(page: Path) -> str:
    """The page without its code, whose brackets are no links and whose comments are no headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in words}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page if not path else page.parent / path
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    own = [link for link in links if not re.match(r"https?:|mailto:", link)]
    assert [link for link in own if not leads_somewhere(page, link)] == []


def test_the_pages_are_there_and_anchors_are_githubs() -> None:
    assert {"README.md", "choosing.md"} <= {page.name for page in PAGES}
    assert {"which-optimizer", "beside-others"} <= anchors(ROOT / "README.md")
