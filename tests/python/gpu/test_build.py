"""benchmarks/gpu/gpu_build.py: a build is packed once, and unpacked where it fits."""

import json
import os
from pathlib import Path

import gpu_build
import pytest

LIBRARY = b"\x7fELF" + bytes(range(256)) * 40


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with sources; building installs a library."""
    return fresh(tmp_path / "checkout", monkeypatch)


def fresh(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = root / "python" / "torchdion"
    for folder in (package, root / "csrc", root / "cmake", root / "include"):
        folder.mkdir(parents=True)
    (root / "CMakeLists.txt").write_text("project(x)")
    (root / "csrc" / "a.cpp").write_text("int a;")
    (root / "csrc" / "README.md").write_text("a map")

    def build(dry: bool) -> None:
        (package / "lib").mkdir(exist_ok=True)
        (package / "lib" / "libtorchdion.so").write_bytes(LIBRARY)
        (package / "_C.cpython-3.so").write_bytes(LIBRARY[::-1])
        (package / "_build.json").write_text("{}")

    monkeypatch.setattr(gpu_build, "ROOT", root)
    monkeypatch.setattr(gpu_build, "PACKAGE", package)
    monkeypatch.setattr(gpu_build, "build", build)
    monkeypatch.setattr(gpu_build, "works", lambda dry: (package / "lib" / "libtorchdion.so").exists())
    return root


def provided(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    folder.mkdir(exist_ok=True)
    assert gpu_build.main([str(folder), "--dry", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def test_a_build_is_made_once_packed_and_unpacked_on_a_bare_machine(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert [row["how"] for row in provided(first, capsys)] == ["built", "built"]  # and packed
    assert [row["how"] for row in provided(first, capsys)] == ["installed"]
    bare = fresh(tmp_path / "bare", monkeypatch)
    rows = provided(second, capsys, "--earlier", str(tmp_path / "gone"), "--earlier", str(first))
    assert [row["how"] for row in rows] == ["unpacked", "unpacked"]
    assert 0 < rows[-1]["packed_mb"] < 0.01
    assert (bare / "python" / "torchdion" / "lib" / "libtorchdion.so").read_bytes() == LIBRARY
    (bare / "csrc" / "a.cpp").write_text("int b;")
    assert provided(third, capsys, "--earlier", str(second))[0]["how"] == "built"


@pytest.mark.parametrize("damage", ["cut off", "empty", "no archive"])
def test_a_damaged_pack_is_built_anew(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    provided(tmp_path / "first", capsys)
    pack = tmp_path / "first" / gpu_build.PACKED
    whole = pack.read_bytes()
    pack.write_bytes({"cut off": whole[: len(whole) // 2], "empty": b"", "no archive": b"x" * 999}[damage])
    fresh(tmp_path / "bare", monkeypatch)
    assert [row["how"] for row in provided(tmp_path / "first", capsys)] == ["built", "built"]
    assert gpu_build.packed_key(pack) == gpu_build.key(dry=True)


def test_a_library_that_something_else_installed_is_no_build_of_this_key(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provided(tmp_path / "first", capsys)
    (checkout / "python" / "torchdion" / "lib" / "libtorchdion.so").write_bytes(b"without CUDA")
    assert provided(tmp_path / "first", capsys)[0]["how"] == "unpacked"


def test_the_key_changes_with_sources_torch_and_architecture_alone(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [gpu_build.key(dry=False)]
    assert gpu_build.key(dry=False) == keys[0]
    (checkout / "csrc" / "README.md").write_text("another map")
    (checkout / "python" / "torchdion" / "dion.py").write_text("x = 1")
    assert gpu_build.key(dry=False) == keys[0]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "12.0")
    keys.append(gpu_build.key(dry=False))
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("__version__ = '2.99'")
    monkeypatch.setattr(gpu_build, "torch_folder", lambda: torch)
    keys.append(gpu_build.key(dry=False))
    (checkout / "csrc" / "b.cu").write_text("")
    keys.append(gpu_build.key(dry=False))
    assert len(set(keys)) == 4


def test_a_pack_that_would_not_come_back_is_a_problem_and_not_left(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_build, "LARGEST_MB", 1e-5)
    assert "was not kept" in str(provided(tmp_path / "first", capsys)[-1]["problem"])
    assert os.listdir(tmp_path / "first") == []


def test_a_build_that_sees_no_gpu_is_refused(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_build, "works", lambda dry: False)
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit, match="needs a GPU that torch can use, and a build with CUDA"):
        gpu_build.main([str(tmp_path / "out")])
