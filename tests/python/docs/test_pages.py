"""The code on every page of the documentation runs, and prints what the page says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import FORKING, OF_TRAINERS, OTHERS, PAGES, ROOT, Block, blocks_of, compare, guide, run_page

RUN = {"python", "sh", "cpp", "cmake", "yaml", "toml"}


def names_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_run(block: Block) -> bool:
    return not block.mark and block.language in RUN


def has_code(page: Path) -> bool:
    return any(map(is_run, blocks_of(page.read_text())))


def starts_processes(page: Path) -> bool:
    return any(is_run(block) and "torchrun " in block.text for block in blocks_of(page.read_text()))


def pages() -> Iterator[Any]:
    """With the commands that they use. Each is run with torch's own torchrun, but in `make test` only one."""
    for page in PAGES:
        if not has_code(page) or page.stem in OF_TRAINERS:
            continue
        if starts_processes(page) and page.stem != "fsdp2":
            yield pytest.param(page, FORKING, id=f"{names_of(page)}-forked")
            yield pytest.param(page, None, id=names_of(page), marks=pytest.mark.long)
        else:
            yield pytest.param(page, None, id=names_of(page))


@pytest.mark.parametrize(("page", "commands"), list(pages()))
def test_a_page_runs_from_top_to_bottom(
    page: Path, commands: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_page(page, tmp_path, commands)


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_a_guide_that_is_left_out_above_is_run_by_its_trainers_tests(name: str) -> None:
    assert has_code(guide(name))
    tests = (ROOT / "tests" / "python" / "trainers").glob("test_*.py")
    assert any(f'run_guide("{name}", ' in test.read_text() for test in tests)


@pytest.mark.parametrize("page", PAGES + OTHERS, ids=names_of)
def test_every_block_is_run_or_says_who_runs_it(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        assert block.language in RUN | {"text"} or block.language.startswith("{"), block
        assert block.mark or block.language == "text" or page in PAGES, f"{page}, line {block.line}"
        if block.mark == "tested by":
            assert all((ROOT / path).exists() for path in block.words.split(", ")), block.words
    fences = [line.strip() for line in page.read_text().splitlines() if line.strip().startswith("```")]
    assert "```" not in fences[::2], f"{page}: a block without a language"


def test_what_a_page_shows_is_compared_with_what_is_printed() -> None:
    compare("a 1\n...\nb\n", "a  1\nx\ny\nb\n", "here")
    with pytest.raises(AssertionError, match="here: the page shows"):
        compare("a 1\n", "a 2\n", "here")


def test_marks_files_and_indented_blocks_are_told_apart() -> None:
    page = "<!-- not run: slow -->\n```sh\nsleep 9\n```\n\n  ```python\n  # train.py\n  x = 1\n  ```\n"
    first, second = blocks_of(page)
    assert (first.mark, first.words, first.line, first.file) == ("not run", "slow", 3, None)
    assert (second.mark, second.text, second.file) == ("", "# train.py\nx = 1\n", "train.py")
