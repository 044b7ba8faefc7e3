"""Looks at the site's main pages in Chromium: `python docs/site/look.py FOLDER [--site build/docs/html]`.

Takes a picture of each at desktop and phone width, light and dark, into FOLDER; names every page that is wider than its
window and every picture that did not load; asks the search for a word. Needs playwright and a chromium on PATH
(`pip install playwright`). Exits with 1 where something does not hold.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PAGES = ("index", "start/first-training", "concepts/one-step", "guides/choosing", "reference/options")
WIDTHS = {"desktop": 1280, "phone": 390}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNLOADED = "[...document.images].filter(image => image.complete && image.naturalWidth === 0).map(image => image.src)"


def complaints(browser: Browser, site: Path, pages: list[str], folder: Path) -> Iterator[str]:
    for name in pages:
        for size, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto((site / "docs" / f"{name}.html").as_uri())
                page.wait_for_load_state("load")
                picture = f"{name.replace('/', '-')}-{size}-{scheme}.png"
                page.screenshot(path=folder / picture, full_page=True)
                if (more := page.evaluate(WIDER)) > 0:
                    yield f"{picture}: the page is {more} pixels wider than its window"
                for source in page.evaluate(UNLOADED):
                    yield f"{picture}: {source} did not load"
                page.close()


def search_complaints(browser: Browser, site: Path, word: str) -> Iterator[str]:
    page = browser.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q={word}")
    page.wait_for_timeout(2000)
    found = page.locator("ul.search li").count()
    print(f"search for {word!r}: {found} results")
    if found == 0:
        yield f"search for {word!r}: nothing"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="look.py", description="Look at the site's main pages in Chromium.")
    parser.add_argument("folder", type=Path, help="of the pictures")
    parser.add_argument("--site", type=Path, default=Path(__file__).resolve().parents[2] / "build" / "docs" / "html")
    parser.add_argument("--pages", nargs="+", default=list(PAGES), help="in docs, without .html")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [
            *complaints(browser, given.site, given.pages, given.folder),
            *search_complaints(browser, given.site, "rank"),
        ]
        browser.close()
    print(
        "\n".join(found)
        or f"{len(given.pages)} pages fit, at both widths and in both colors; pictures in {given.folder}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
