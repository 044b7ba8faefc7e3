"""Builds the source distribution under several versions of torch and Python, tests each build and prints a table.

    python release/try_versions.py [VERSION ...]

A VERSION is 2.10, the newest patch release of it, or 2.10/3.13, under Python 3.13; the default is every minor version
that PyPI has, from the oldest that is supported. Each gets a virtual environment of its own under build/versions, which
takes about 6 GB and is removed when it has been tested; --keep leaves it for the next time. What is tested is what a
stranger has: the sources are packed, unpacked elsewhere and installed by pip, without CUDA. The table goes to the
standard output, all else to build/versions/NAME.log. Exits with 1 if a build or a test failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sources import ROOT, unpack

FOLDER = ROOT / "build" / "versions"
OLDEST = (2, 10)
TOOLS = ("pybind11==3.1.0", "setuptools==80.9.0", "pytest==9.2.0", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0")

# Column of the table → arguments of pytest.
TESTS = {
    "oracle": ["oracle/test_differential.py", "--cases=60"],
    "drop-in": ["drop_in", "units/test_options.py"],
    "ranks": [
        "law/test_law.py",
        "ranks/test_dtensor.py",
        "ranks/test_meshes.py",
        "-k",
        "not every_mesh or (fp32 and right)",
    ],
    "checkpoints": ["ranks/test_checkpoints.py", "units/test_state.py"],
    "C++": ["packaging/test_cpp_front.py", "-k", "one_trajectory or another_torch or patch_release"],
}


@dataclass(frozen=True)
class Version:
    torch: str
    python: str

    @property
    def folder(self) -> Path:
        return FOLDER / f"torch-{self.torch}-python-{self.python}"


class Failed(Exception):
    """A command that ended with an error; its output is in the log."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="2.10 or 2.10/3.13; default: all that PyPI has")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    arguments = parser.parse_args()
    try:
        versions = [read_version(word) for word in arguments.versions or offered()]
    except ValueError as error:
        parser.error(str(error))
    sources = unpack(FOLDER)
    print("| " + " | ".join(["torch", "Python", "build", *TESTS]) + " |")
    print("| --- " * (3 + len(TESTS)) + "|", flush=True)
    passed = True
    for version in versions:
        cells, all_passed = try_version(version, sources)
        passed &= all_passed
        print("| " + " | ".join(cells) + " |", flush=True)
        if not arguments.keep:
            shutil.rmtree(version.folder, ignore_errors=True)
    return 0 if passed else 1


def read_version(word: str) -> Version:
    found = re.fullmatch(r"(\d+)\.(\d+)(?:/(3\.\d+))?", word)
    if not found or (int(found[1]), int(found[2])) < OLDEST:
        raise ValueError(f"VERSION must be 2.10 or newer, such as 2.11 or 2.11/3.13, got {word!r}")
    return Version(f"{found[1]}.{found[2]}", found[3] or f"{sys.version_info.major}.{sys.version_info.minor}")


def offered() -> list[str]:
    """The minor versions of torch that PyPI has, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    minors = {(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)\.\d+", listed)}
    return [f"{major}.{minor}" for major, minor in sorted(minors) if (major, minor) >= OLDEST]


def try_version(version: Version, sources: Path) -> tuple[list[str], bool]:
    """The cells of the version's row, and whether everything passed."""
    log = version.folder.with_suffix(version.folder.suffix + ".log")
    with log.open("w") as output:
        try:
            python = make_environment(version, output)
            release = installed_torch(python)
            started = time.monotonic()
            install(python, sources, version, output)
            built = f"{time.monotonic() - started:.0f} s"
        except Failed as failure:
            print(f"torch {version.torch}, Python {version.python}: {failure}; see {log}", file=sys.stderr)
            return [version.torch, version.python, "failed", *([""] * len(TESTS))], False
        results = [run_tests(python, name, sources, version, output) for name in TESTS]
    failed = [name for name, (passes, failures) in zip(TESTS, results, strict=True) if failures or not passes]
    if failed:
        print(f"torch {release}, Python {version.python}: {', '.join(failed)} failed; see {log}", file=sys.stderr)
    counts = [f"{passes} passed" + (f", {failures} failed" if failures else "") for passes, failures in results]
    return [release, version.python, built, *counts], not failed


def run(output: TextIO, *command: str | Path, **options: Any) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words[:5])} … ended with status {done.returncode}")


def make_environment(version: Version, output: TextIO) -> Path:
    """A virtual environment with the newest patch release of this torch, and its Python."""
    found = shutil.which(f"python{version.python}")
    if found is None:
        raise Failed(f"python{version.python} was not found")
    run(output, found, "-m", "venv", version.folder)
    python = version.folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
    run(output, *pip, f"torch=={version.torch}.*", "numpy", *TOOLS)
    return python


def installed_torch(python: Path) -> str:
    command = [str(python), "-c", "from importlib.metadata import version; print(version('torch'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(python: Path, sources: Path, version: Version, output: TextIO) -> None:
    """Installs the sources as a stranger does, but without CUDA, and with several files as one unit of compilation."""
    arguments = [os.environ.get("CMAKE_ARGS", ""), "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=40"]
    environment = {
        **os.environ,
        "CMAKE_ARGS": " ".join(arguments),
        "TORCHDION_BUILD_DIR": str(version.folder / "tree"),
        "TORCHDION_NO_CUDA": "1",
    }
    shutil.rmtree(sources / "build", ignore_errors=True)  # of the version before
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "--no-build-isolation", "--no-deps", "-v")
    run(output, *pip, sources, env=environment)


def run_tests(python: Path, name: str, sources: Path, version: Version, output: TextIO) -> tuple[int, int]:
    """How many of a column's tests passed and failed. They run beside the sources, whose Python files are not found."""
    tests = sources / "tests" / "python"
    report = version.folder / f"{name}.xml"
    pytest = (python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"--junitxml={report}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        run(output, *pytest, *TESTS[name], cwd=tests, env=environment)
    except Failed:
        if not report.exists():
            return 0, 1  # not even collected
    (suite,) = ElementTree.parse(report).iter("testsuite")
    failures = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return int(suite.get("tests", 0)) - failures - int(suite.get("skipped", 0)), failures


if __name__ == "__main__":
    sys.exit(main())
