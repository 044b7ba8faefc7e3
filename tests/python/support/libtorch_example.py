"""The C++ example as its README builds and runs it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
README = (ROOT / "examples" / "libtorch" / "README.md").read_text()
SHAPE = ["--layers", "1", "--d-model", "64", "--context", "64", "--batch", "16"]


def blocks(language: str) -> list[str]:
    """The README's code, which is to be run elsewhere than in the repository's root."""
    code: list[str] = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [block.replace("examples/", f"{ROOT}/examples/") for block in code]


BUILD, MAKE_TEXT, TRAIN = blocks("sh")[0].splitlines()
(RESUME,) = blocks("sh")[1].splitlines()
(TRAIN_WITH_MUON,) = blocks("sh")[2].splitlines()
(TRAIN_WITH_RESIDUAL,) = blocks("sh")[3].splitlines()
(TRAIN_IN_FOUR,) = blocks("sh")[4].splitlines()
(PYTHON,) = blocks("python")


def environment() -> dict[str, str]:
    changes = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CXXFLAGS": "-Werror",
        "CMAKE_BUILD_TYPE": "Unoptimized",  # no flags of CMake's: compiled sooner
    }
    if shutil.which("ccache"):
        changes["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    return os.environ | changes


def run(place: Path, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A command of the README with more flags, in `place` instead of the repository's root."""
    return subprocess.run(["bash", "-c", f"{command} {shlex.join(flags)}"], cwd=place, env=environment(), timeout=500,
                          capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)  # fmt: skip


def succeed(place: Path, command: str, *flags: str) -> str:
    done = run(place, command, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's first two commands were run."""
    folder = tmp_path_factory.mktemp("libtorch")
    for command in (BUILD, MAKE_TEXT):
        succeed(folder, command)
    return folder


def losses(output: str) -> list[str]:
    """All that must not differ: steps, losses and text, without the speeds."""
    return [
        line.split(" tokens/s")[0].rpartition(",")[0] if "tokens/s" in line else line for line in output.splitlines()
    ]


def checkpoint(folder: Path, step: int) -> dict[str, Any]:
    assert [path.name for path in folder.iterdir()] == [f"checkpoint-{step:08d}.pt"]
    state: dict[str, Any] = torch.load(folder / f"checkpoint-{step:08d}.pt", weights_only=True)
    return state


def ended_after(
    place: Path, line: str, end: Callable[[subprocess.Popen[str]], object], *command: str
) -> tuple[int, str]:
    """Exit status and output of a command that is to end after it has printed a line that begins so."""
    process = subprocess.Popen(
        command, cwd=place, env=environment(), stdout=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stdout is not None
    output = ""
    for printed in process.stdout:
        output += printed
        if printed.startswith(line):
            end(process)
    return process.wait(timeout=60), output
