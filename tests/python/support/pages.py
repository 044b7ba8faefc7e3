"""The documentation's pages as their readers run them: block after block, in one folder.

- A ```python block runs in the page's namespace. If its first line names a file in a comment (`# train.py`), it
  is that file.
- A ```cpp, ```cmake, ```toml or ```yaml block is the file that its first line names.
- A ```sh block is tested by bash, with the virtual environment's commands.
- A ```text block behind one of these is what it prints; `...` stands for anything.
- `<!-- not run: REASON -->` before a block leaves it out; `<!-- tested by: PATH -->` too: tests of that
  path do the same, or run the block with a model and data of their own.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
# Those whose blocks are run one after another.
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# What else the site has, whose blocks have tests of their own.
OTHERS = sorted([ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
# Guides that tests/python/trainers runs, which looks at the namespace that they leave.
OF_TRAINERS = ("accelerate", "hugging-face", "lightning")
BLOCK = re.compile(
    r"(?:^ *<!-- (not run|tested by): (.*?) -->\n)?^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"(?:#|//) ([\w.-]+\.\w+)\n")
SECONDS = 200.0
FORKING = Path(__file__).parent / "forking"
"""Where a torchrun is whose processes share one import of torch."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. mark: "not run", "tested by" or "", with its words; line: of its first one."""

    language: str
    text: str
    mark: str
    words: str
    line: int

    @property
    def file(self) -> str | None:
        """The name that its first line gives it."""
        named = FILE.match(self.text)
        return named[1] if named else None


def blocks_of(page: str) -> list[Block]:
    """In their order; those of lists without their indentation."""
    found = []
    for match in BLOCK.finditer(page):
        mark, words, indent, language, text = match.groups()
        plain = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        found.append(Block(language, plain, mark or "", words or "", page.count("\n", 0, match.start(5)) + 1))
    return found


def run_page(page: Path, folder: Path, commands: Path | None = None) -> dict[str, Any]:
    """Runs a page in an empty folder, the current one; returns its namespace.

    Args:
        commands: a folder whose commands come before all others.
    """
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed: str | None = None
    for block in blocks_of(page.read_text()):
        where = f"{page.relative_to(ROOT)}, line {block.line}"
        if block.mark:
            printed = None
        elif block.language == "text":
            if printed is not None:
                compare(block.text, printed, where)
            printed = None
        elif block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            printed = run_python(block, namespace, where)
        elif block.language == "sh":
            printed = run_commands(block.text, folder, where, commands)
        else:
            raise AssertionError(f"{where}: a {block.language} block must name its file, or say who runs it")
    return namespace


def run_guide(name: str, folder: Path) -> dict[str, Any]:
    """Runs a page of docs/guides, one of OF_TRAINERS; returns its namespace."""
    assert name in OF_TRAINERS
    return run_page(guide(name), folder)


def run_python(block: Block, namespace: dict[str, Any], where: str) -> str:
    printed = io.StringIO()
    lines = "\n" * (block.line - 1) + block.text
    with contextlib.redirect_stdout(printed):
        exec(compile(lines, where, "exec"), namespace)
    return printed.getvalue()


def run_commands(text: str, folder: Path, where: str, commands: Path | None = None) -> str:
    paths = [*([str(commands)] if commands else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "CMAKE_COLOR_DIAGNOSTICS": "0"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    with running(command, folder, environment) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"{where}: exit status {process.returncode}\n{out}\n{err}"
    return out


@contextlib.contextmanager
def running(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process group that ends with the block."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def compare(wanted: str, printed: str, where: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output(wanted, printed, flags)
    assert same, f"{where}: the page shows\n{wanted}\nbut this was printed:\n{printed}"


def guide(name: str) -> Path:
    return ROOT / "docs" / "guides" / f"{name}.md"


def blocks_in_guide(name: str, language: str) -> list[str]:
    """Those of a page of docs/guides in one language, but for those that are not run."""
    blocks = blocks_of(guide(name).read_text())
    return [block.text for block in blocks if block.language == language and block.mark != "not run"]


def block_with(name: str, text: str) -> str:
    """The one Python block of a page of docs/guides that contains `text`."""
    [found] = [block for block in blocks_in_guide(name, "python") if text in block]
    return found
