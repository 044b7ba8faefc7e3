"""Builds and runs the programs of tests/consumer, a project of a C++ user."""

import shutil
import subprocess
from pathlib import Path

import torchdion

SOURCES = Path(__file__).parents[3] / "tests" / "consumer"


def run(*command: str | Path, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def configure(tree: Path, *options: str, sources: Path = SOURCES) -> subprocess.CompletedProcess[str]:
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    return run("cmake", "-S", sources, "-B", tree, "-G", "Ninja", *launcher, *options)


def prefix(*paths: str) -> str:
    return "-DCMAKE_PREFIX_PATH=" + ";".join(paths)


def build(tree: Path, target: str, *options: str, sources: Path = SOURCES) -> Path:
    """The program, or whatever else `target` makes, in `tree`."""
    for done in (configure(tree, *options, sources=sources), run("cmake", "--build", tree, "--target", target)):
        assert done.returncode == 0, done.stdout + done.stderr
    return tree / target


def build_with_package(tree: Path, target: str) -> Path:
    return build(tree, target, prefix(torchdion.cmake_prefix_path))
