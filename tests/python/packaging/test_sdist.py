"""The source distribution: it holds what builds, tests and documents the library, and fits any torch."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("benchmarks", "cmake", "csrc", "docs", "examples", "include", "python", "release", "tests")
BUILT = ("python/torchdion/lib", "python/torchdion/include", "python/torchdion/share")  # by an editable install
SUFFIXES = {".cmake", ".cpp", ".cu", ".h", ".in", ".md", ".py", ".pyi", ".sh", ".txt", ".typed"}


def succeed(*command: str | Path, **options: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def written_by_people() -> set[str]:
    """The files of the repository's folders that no build has made."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    names = {str(path.relative_to(ROOT)) for path in paths}
    return {name for name in names if not name.startswith(BUILT) and ".egg-info/" not in name}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a stranger unpacks them."""
    folder = tmp_path_factory.mktemp("sdist")
    pack = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder)!r}))"
    succeed(sys.executable, "-c", pack, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_the_sdist_holds_every_file_that_people_wrote_and_none_that_was_built(unpacked: Path) -> None:
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert written_by_people() <= packed
    assert {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"} <= packed
    assert not [name for name in packed if name.startswith(BUILT) or name.endswith((".so", ".pyc", "_build.json"))]


def test_the_sdist_asks_for_no_version_of_torch_but_the_oldest_that_works(unpacked: Path) -> None:
    metadata = (unpacked / "PKG-INFO").read_text().splitlines()
    assert [line for line in metadata if line.startswith("Requires-Dist: torch")] == ["Requires-Dist: torch>=2.10"]
    assert "License-Expression: MIT" in metadata
    assert "License-File: LICENSE" in metadata
    assert not [line for line in metadata if line.startswith("Classifier: License")]


def test_the_library_can_be_configured_and_compiled_from_the_sdist(unpacked: Path) -> None:
    tree = unpacked / "build" / "package"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    succeed("cmake", "-S", unpacked, "-B", tree, "-G", "Ninja", python, "-DTORCHDION_CUDA=OFF")
    succeed("cmake", "--build", tree, "--target", "CMakeFiles/torchdion.dir/csrc/linalg/matrices.cpp.o")


@pytest.mark.parametrize(
    ("version", "required"),
    [("2.15.3+cu132", "torch==2.15.*"), ("2.16.0.dev20261101+cpu", "torch==2.16.0.dev20261101")],
)
def test_a_build_asks_for_the_torch_that_it_was_made_with(tmp_path: Path, version: str, required: str) -> None:
    (tmp_path / "torch.dist-info").mkdir()
    (tmp_path / "torch.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    succeed(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path, cwd=ROOT, env=environment)
    asked_for, _, extras = (tmp_path / "torchdion.egg-info" / "requires.txt").read_text().partition("\n\n")
    assert asked_for.splitlines() == [required, "numpy"]
    assert extras.split() == ["[demo]", "matplotlib"]
