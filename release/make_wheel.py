"""Builds a wheel for other machines from the source distribution, and tries it: `make wheel`.

It holds the library, headers and CMake package, and leaves out the libraries of torch, of CUDA and of OpenMP, which
torch brings. Its platform tag names the oldest glibc that it runs with, its local version the torch and the CUDA
that it was built for (0.2.0+torch2.15cu132; cpu: without kernels). It is installed beside a copy of this environment's
packages, at another path, takes a step there, and a C++ program is linked with it. The wheel goes to dist/, all output
to build/release/log.txt.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import TextIO

from sources import ROOT, unpack

FOLDER = ROOT / "build" / "release"
# Found in the torch that is installed, never in the wheel: two copies would be two thread pools, two CUDA contexts.
BROUGHT_BY_TORCH = ("libtorch*.so", "libc10*.so", "libgomp.so.*", "libcudart.so.*", "libcublas*.so.*")
STEP = """
import torch, torchdion
weight = torch.nn.Parameter(torch.ones(4, 3))
weight.grad = torch.eye(4, 3)
torchdion.Dion([weight], lr=1.0).step()
assert weight.isfinite().all() and weight.ne(1).any()
print(torchdion.cmake_prefix_path)
"""


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "log.txt").open("w") as log:
        try:
            wheel = repaired(tagged(built(unpack(FOLDER), log), log), log)
            try_elsewhere(wheel, log)
        except subprocess.CalledProcessError as error:
            print(f"make wheel: {error}; see {log.name}", file=sys.stderr)
            return 1
    print(wheel.relative_to(ROOT))
    return 0


def run(log: TextIO, *command: str | Path, **environment: str) -> None:
    words = [str(word) for word in command]
    log.flush()
    subprocess.run(words, check=True, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def empty(name: str) -> Path:
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    (FOLDER / name).mkdir()
    return FOLDER / name


def built(sources: Path, log: TextIO) -> Path:
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-v")
    run(log, *pip, "-w", empty("built"), sources, TORCHDION_BUILD_DIR=str(FOLDER / "tree"))
    (wheel,) = (FOLDER / "built").iterdir()
    return wheel


def local_version(build: dict[str, str]) -> str:
    """torch2.15cu132 of a build's record, or torch2.15cpu where it has no kernels."""
    torch = ".".join(build["torch"].split(".")[:2])
    cuda = "cpu" if build["cuda_toolkit"] == "none" else "cu" + build["torch_cuda"].replace(".", "")
    return f"torch{torch}{cuda}"


def tagged(wheel: Path, log: TextIO) -> Path:
    """The wheel under its local version, which is known when it has been built."""
    with zipfile.ZipFile(wheel) as content:
        local = local_version(json.loads(content.read("torchdion/_build.json")))
    run(log, sys.executable, "-m", "wheel", "unpack", "-d", empty("unpacked"), wheel)
    (folder,) = (FOLDER / "unpacked").iterdir()
    (described,) = folder.glob("*.dist-info")
    metadata = described / "METADATA"
    metadata.write_text(re.sub(r"^(Version: .*)$", rf"\1+{local}", metadata.read_text(), count=1, flags=re.MULTILINE))
    described.rename(folder / described.name.replace(".dist-info", f"+{local}.dist-info"))
    run(log, sys.executable, "-m", "wheel", "pack", "-d", empty("tagged"), folder)
    (wheel,) = (FOLDER / "tagged").iterdir()
    return wheel


def repaired(wheel: Path, log: TextIO) -> Path:
    """The wheel with the tag of the oldest glibc that has its symbols, in dist/."""
    tools = FOLDER / "tools"
    run(log, sys.executable, "-m", "venv", tools)
    run(log, tools / "bin" / "python", "-m", "pip", "install", "-q", "-r", ROOT / "release" / "requirements.txt")
    excluded: list[str | Path] = [word for name in BROUGHT_BY_TORCH for word in ("--exclude", name)]
    audit = tools / "bin" / "auditwheel"
    run(log, audit, "repair", *excluded, "-w", empty("repaired"), wheel, PATH=f"{tools / 'bin'}:{os.environ['PATH']}")
    (wheel,) = (FOLDER / "repaired").iterdir()
    (ROOT / "dist").mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, ROOT / "dist"))


def try_elsewhere(wheel: Path, log: TextIO) -> None:
    """Installs the wheel into a fresh environment, takes a step, and builds a C++ program with its CMake package."""
    fresh = empty("elsewhere")
    run(log, sys.executable, "-m", "venv", "--without-pip", fresh)  # it comes with the rest
    python = fresh / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(fresh), "platbase": str(fresh)})
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "torchdion" not in path.name:
            run(log, "cp", "--archive", "--link", path, site)
    run(log, python, "-m", "pip", "install", "--no-index", wheel)
    for library in (Path(site) / "torchdion").rglob("*.so"):
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        (searched,) = re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic)
        assert all(folder.startswith("$ORIGIN") for folder in searched.split(":")), f"{library} looks in {searched}"
    step = subprocess.run([python, "-c", STEP], capture_output=True, text=True, cwd=fresh)
    log.write(step.stdout + step.stderr)
    step.check_returncode()
    prefix = step.stdout.strip()
    assert prefix.startswith(str(fresh)), prefix
    tree = empty("consumer")
    run(log, "cmake", "-S", ROOT / "tests" / "consumer", "-B", tree, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(log, "cmake", "--build", tree)
    assert f"{site}/torch/lib/libtorch_cpu.so" in (tree / "build.ninja").read_text()
    shutil.rmtree(fresh)


if __name__ == "__main__":
    sys.exit(main())
