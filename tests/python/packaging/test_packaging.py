"""What is built and installed: with and without a CUDA toolkit, as a wheel, for C++ users, and under another torch."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import torchdion
from torchdion.installation import interface

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(torchdion.__file__).parent
VERSION = torchdion.__version__


def run(*command: str | Path, timeout: int = 60, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command with a time limit and keeps what it prints."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        **options,
    )


def succeed(*command: str | Path, **options: object) -> str:
    done = run(*command, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the installed package ----


def test_python_m_torchdion_says_what_was_built_and_found() -> None:
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in succeed(sys.executable, "-m", "torchdion").splitlines())
    assert lines["torchdion"].startswith(f"{VERSION} at ")
    assert lines["torch"].startswith(torch.__version__)
    assert f"torch {torch.__version__}" in lines["built with"]
    assert {"CUDA toolkit", "GPUs", "threads", "Python", "system"} <= lines.keys()


@pytest.fixture
def copied_sources(tmp_path: Path) -> Path:
    """A folder to put on PYTHONPATH: the package's Python files without its library."""
    (tmp_path / "torchdion").mkdir()
    for path in [*PACKAGE.glob("*.py"), PACKAGE / "_build.json"]:
        shutil.copy(path, tmp_path / "torchdion")
    return tmp_path


def import_error(folder: Path) -> str:
    """The last line of what `import torchdion` prints with `folder` first on the path."""
    done = run(sys.executable, "-c", "import torchdion", env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_import_under_another_torch_is_refused_in_one_sentence_that_names_both(copied_sources: Path) -> None:
    record = json.loads((copied_sources / "torchdion" / "_build.json").read_text())
    record["torch"] = "2.9.1+cpu"
    (copied_sources / "torchdion" / "_build.json").write_text(json.dumps(record))
    message = import_error(copied_sources)
    assert message.startswith("ImportError: torchdion")
    assert "built for torch 2.9, but this is torch " + torch.__version__ in message
    assert "pip install" in message


def test_import_of_a_package_that_was_never_built_says_how_to_build_it(copied_sources: Path) -> None:
    (copied_sources / "torchdion" / "_build.json").unlink()
    message = import_error(copied_sources)
    assert message.startswith("ImportError: torchdion")
    assert "pip install" in message


# ---- configuring with and without a CUDA toolkit ----


@pytest.fixture(scope="module")
def without_nvcc(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which nvcc cannot be found: folders that hold one are replaced by links to all else there."""
    folders = []
    for folder in os.environ["PATH"].split(os.pathsep):
        if not (Path(folder) / "nvcc").exists():
            folders.append(folder)
            continue
        stand_in = tmp_path_factory.mktemp("bin")
        for path in Path(folder).iterdir():
            if path.name != "nvcc":
                (stand_in / path.name).symlink_to(path)
        folders.append(str(stand_in))
    hidden = ("CUDACXX", "CUDA_HOME", "CUDA_PATH")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**kept, "PATH": os.pathsep.join(folders)}
    assert shutil.which("nvcc", path=environment["PATH"]) is None
    return environment


def configure(tree: Path, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run(
        "cmake", "-S", ROOT, "-B", tree, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options, env=env
    )


def toolkit_of(tree: Path) -> str:
    record: dict[str, str] = json.loads((tree / "_build.json").read_text())
    return record["cuda_toolkit"]


@pytest.mark.long
def test_configuring_finds_the_toolkit_that_is_there_unless_told_not_to(tmp_path: Path) -> None:
    expected = "none" if shutil.which("nvcc") is None else r"\d+\.\d+.*"
    for options, toolkit in ((), expected), (("-DTORCHDION_CUDA=OFF",), "none"):
        tree = tmp_path / toolkit[:2].strip("\\")
        done = configure(tree, *options, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(toolkit, toolkit_of(tree))


def test_configuring_without_nvcc_works(tmp_path: Path, without_nvcc: dict[str, str]) -> None:
    done = configure(tmp_path / "tree", env=without_nvcc)
    assert done.returncode == 0, done.stderr
    assert toolkit_of(tmp_path / "tree") == "none"


def test_demanding_cuda_without_nvcc_is_refused_with_what_to_do(tmp_path: Path, without_nvcc: dict[str, str]) -> None:
    done = configure(tmp_path / "tree", "-DTORCHDION_CUDA=ON", env=without_nvcc)
    assert done.returncode != 0
    assert "TORCHDION_CUDA=ON, but no nvcc was found" in " ".join(done.stderr.split())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs a CUDA toolkit")
@pytest.mark.parametrize(
    ("version", "given", "found"),
    [
        ("4.2.1", "-DCMAKE_CUDA_ARCHITECTURES=90-real", "4.2.1"),
        # which have no such kernel
        pytest.param("4.2.1", "-DCMAKE_CUDA_ARCHITECTURES=80-real;86", "none", marks=pytest.mark.long),
        pytest.param("4.1.0", "-DCMAKE_CUDA_ARCHITECTURES=90", "none", marks=pytest.mark.long),
        pytest.param(None, "-DCMAKE_CUDA_ARCHITECTURES=90", None, marks=pytest.mark.long),
    ],
)
def test_configuring_takes_cutlass_from_a_folder(
    tmp_path: Path, version: str | None, given: str, found: str | None
) -> None:
    header = tmp_path / "cutlass" / "version.h"
    header.parent.mkdir()
    if version:
        parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
        header.write_text("/* Copyright of theirs */\n" + "".join(f"#define CUTLASS_{a} {b}\n" for a, b in parts))
    tree = tmp_path / "tree"
    done = configure(tree, f"-DTORCHDION_CUTLASS={tmp_path}", given, env=dict(os.environ))
    said = " ".join(done.stderr.split())
    assert (done.returncode == 0) == (found is not None), said
    if found is None:
        assert f"TORCHDION_CUTLASS={tmp_path} holds no cutlass/version.h" in said
        return
    record = json.loads((tree / "_build.json").read_text())
    assert (record["cutlass"], record["symmetric_products"]) == (found, "" if found == "none" else "sm90")
    assert ("symmetric products take 4.2 or newer" in said) == (version == "4.1.0")
    notice = tree / "licenses" / "CUTLASS.txt"
    assert notice.exists() == (found != "none")
    assert found == "none" or notice.read_text() == "/* Copyright of theirs */\n"


@pytest.mark.parametrize(
    ("device", "instruction"), [("sm_90a", "HGMMA.64x256x16.F32.BF16"), ("sm_100a", "UTCHMMA.2CTA")]
)
def test_kernels_for_symmetric_products_multiply_by_the_instructions_of_their_gpu(
    tmp_path: Path, device: str, instruction: str
) -> None:
    """For H100 wgmma, for B200 tcgen05.mma of two blocks."""
    triton = importlib.util.find_spec("triton")  # torch's wheels for CUDA bring it, and it brings the tool
    folders = (triton and triton.submodule_search_locations) or []
    tools = [shutil.which("cuobjdump"), *(f"{folder}/backends/nvidia/bin/cuobjdump" for folder in folders)]
    tool = next((name for name in tools if name and Path(name).exists()), None)
    if tool is None:
        pytest.skip("needs cuobjdump")
    library = PACKAGE / "lib" / "libtorchdion.so"
    cubins = re.findall(rf"\S+{device}\.cubin", succeed(tool, "-lelf", library))
    if torchdion.build["cutlass"] == "none" or not cubins:
        pytest.skip(f"this build has no such kernel for {device}")
    [cubin] = cubins
    succeed(tool, "-xelf", cubin, library, cwd=tmp_path)
    kernels = succeed(tool, "-sass", tmp_path / cubin).split("Function : ")[1:]
    assert len(kernels) == 3
    assert all("SymmetricProduct" in kernel and instruction in kernel for kernel in kernels)


def test_setup_hands_its_environment_variables_to_cmake(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    log = tmp_path / "log"
    fake = tmp_path / "bin" / "cmake"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    fake.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}",
        "TORCHDION_NO_CUDA": "1",
        "TORCHDION_BUILD_DIR": str(tmp_path / "tree"),
        "CMAKE_ARGS": "-DTORCHDION_WERROR=ON",
        "MAX_JOBS": "3",
    }
    succeed(sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={tmp_path / 'lib'}", cwd=ROOT, env=environment)
    configuring, building, installing = log.read_text().splitlines()
    for option in ("-DTORCHDION_CUDA=OFF", "-DTORCHDION_WERROR=ON", f"-B {tmp_path / 'tree'}"):
        assert option in configuring
    assert building.endswith("-j3")
    assert installing == f"--install {tmp_path / 'tree'}"


# ---- the wheel, and C++ users ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, without_nvcc: dict[str, str]) -> zipfile.ZipFile:
    """A wheel of the sources, built without a CUDA toolkit in a tree that keeps its objects for the next time."""
    tree = ROOT / "build" / "wheel"
    (tree / "CMakeCache.txt").unlink(missing_ok=True)
    folder = tmp_path_factory.mktemp("wheel")
    configuration = folder / "setuptools.cfg"  # what setuptools assembles stays out of the sources
    configuration.write_text(f"[build]\nbuild_base = {folder / 'assembled'}\n")
    environment = {
        **without_nvcc,
        "TORCHDION_BUILD_DIR": str(tree),
        "DIST_EXTRA_CONFIG": str(configuration),
    }
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder, ROOT)
    succeed(*pip, env=environment, timeout=900)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.timeout(1000)
def test_wheel_holds_the_library_headers_types_and_cmake_package(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"torchdion-{VERSION}.dist-info/METADATA").decode().splitlines()
    assert f"Requires-Dist: torch=={interface(torch.__version__)}.*" in metadata
    assert 'Requires-Dist: matplotlib; extra == "demo"' in metadata
    assert "License-Expression: MIT" in metadata
    names = {name.removeprefix("torchdion/") for name in wheel.namelist() if name.startswith("torchdion/")}
    assert {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} <= names
    assert any(re.fullmatch(r"_C\.cpython-.*\.so", name) for name in names)
    cmake = {f"share/cmake/torchdion/{name}.cmake" for name in ("torchdionConfig", "torchdionConfigVersion")}
    headers = {f"include/torchdion/{path.name}" for path in (ROOT / "include" / "torchdion").iterdir()}
    assert {"lib/libtorchdion.so", "py.typed", "_C.pyi", "_build.json", *cmake, *headers} <= names
    assert not [
        name for name in wheel.namelist() if name.split("/")[0] not in ("torchdion", f"torchdion-{VERSION}.dist-info")
    ]
    assert json.loads(wheel.read("torchdion/_build.json"))["cuda_toolkit"] == "none"
    (tag,) = re.findall(r"^Tag: (.*)$", wheel.read(f"torchdion-{VERSION}.dist-info/WHEEL").decode(), re.MULTILINE)
    assert tag.startswith(f"cp{sys.version_info.major}{sys.version_info.minor}-")


@pytest.mark.timeout(1000)
def test_wheel_takes_a_step_from_where_it_is_unpacked(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = (
        "import torch, torchdion; p = torch.nn.Parameter(torch.ones(4, 3)); p.grad = torch.eye(4, 3);"
        "torchdion.Dion([p], lr=1.0).step(); print(torchdion.__file__); print(p.isfinite().all() and p.ne(1).any())"
    )
    lines = succeed(sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path).split()
    assert lines == [str(tmp_path / "torchdion" / "__init__.py"), "tensor(True)"]
