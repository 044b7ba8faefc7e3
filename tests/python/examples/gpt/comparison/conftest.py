"""A finished study, and studies under way."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .programs import CHECKPOINTS, Running, Start, compare
from .studies import written


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was run without interruption, in a folder with modules that are called as its own."""
    folder = tmp_path_factory.mktemp("finished")
    for name in ("train.py", "model.py", "comparison.py"):
        (folder / name).write_text("raise RuntimeError('the module of another program')\n")
    done = compare(written(folder, CHECKPOINTS), "--out", folder / "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    *first, last = done.stdout.partition("step times")[0].splitlines()
    assert re.fullmatch(r"10/10, about 0 s left: (A|B r = d/2), width 16, batch 32, lr 0.0\d, seed [12]: loss .*", last)
    assert len(first) == 9
    return folder / "out"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts compare.py on a study in a folder; what a test leaves running is killed, and its trainings with it."""
    programs: list[Running] = []

    def started(text: str, folder: Path) -> Running:
        programs.append(Running(text, folder))
        return programs[-1]

    yield started
    for program in programs:
        program.process.kill()
        program.process.wait()
