"""Checks a built site: `python docs/site/check_site.py [FOLDER]`.

Every link within it leads to a page that exists, and to an anchor on it. Every picture exists and has an alternative
text. Every page can be reached from the front page by links. Exits with 1 and one line for what does not hold.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FRONT = Path("docs/index.html")
MADE_BY_SPHINX = {"genindex.html", "search.html", "py-modindex.html"}


class Page(HTMLParser):
    """What a page links to, shows and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append((given.get("src", ""), given.get("alt", "")))


def target(page: Path, link: str) -> tuple[Path, str] | None:
    """The file, relative to the site, and the anchor that a link of the page leads to; None outside of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = page if not parts.path else Path(*normalized(page.parent / unquote(parts.path)))
    return path, unquote(parts.fragment)


def normalized(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    return parts


def complaints(site: Path) -> Iterator[str]:
    pages = {path.relative_to(site): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    if FRONT not in pages:
        yield f"{site}: no {FRONT}"
        return
    for name, page in pages.items():
        for link in page.links:
            yield from complaint_of_link(site, pages, name, link)
        for source, words in page.pictures:
            found = target(name, source)
            if found is not None and not (site / found[0]).exists():
                yield f"{name}: the picture {source} is missing"
            if not words or words.startswith(("../", "_images")):
                yield f"{name}: the picture {source} has no alternative text"
    for name in sorted(set(pages) - reachable(pages) - {Path(each) for each in MADE_BY_SPHINX} - {Path("index.html")}):
        yield f"{name}: no link leads to it"


def complaint_of_link(site: Path, pages: dict[Path, Page], name: Path, link: str) -> Iterator[str]:
    found = target(name, link)
    if found is None:
        return
    path, anchor = found
    if not (site / path).is_file():
        yield f"{name}: {link} leads nowhere"
    elif anchor and path in pages and anchor not in pages[path].anchors:
        yield f"{name}: {link} leads to no anchor"


def reachable(pages: dict[Path, Page]) -> set[Path]:
    seen, new = {FRONT}, [FRONT]
    while new:
        name = new.pop()
        for link in pages[name].links:
            found = target(name, link)
            if found is not None and found[0] in pages and found[0] not in seen:
                seen.add(found[0])
                new.append(found[0])
    return seen


def main(arguments: list[str]) -> int:
    default = Path(__file__).resolve().parents[2] / "build" / "docs" / "html"
    site = Path(arguments[0]) if arguments else default
    found = list(complaints(site))
    print("\n".join(found) or f"{site}: {sum(1 for _ in site.rglob('*.html'))} pages, every link and picture is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
