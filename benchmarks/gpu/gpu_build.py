"""The package with CUDA in python/torchdion: as it is there, unpacked from an earlier call's folder, or built.

    python benchmarks/gpu/gpu_build.py FOLDER [--earlier FOLDER ...] [--dry]

A build fits if its key does: Python, torch and where it lies, the GPU's architecture and all C++ sources. Wherever it
came from, a packed one is in FOLDER/build.tar.gz afterwards. JSON lines of `kind` "build": `how` it came to be
("installed", "unpacked", "built"), `seconds`, and `packed_mb`.

`--dry` is for machines without a GPU: whatever is installed fits, and building goes as far as CMake's configuration and
a list of what would be compiled.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "torchdion"
MARK = "lib/build_key.json"  # in the package, where git ignores it
PACKED = "build.tar.gz"
LARGEST_MB = 16  # of a file that a lent machine gives back
SOURCES = ("CMakeLists.txt", "cmake", "csrc", "include")


def torch_folder() -> Path:
    """Without importing torch, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"gpu_build.py: torch is not installed in {sys.prefix}")
    return Path(spec.submodule_search_locations[0])


def architectures() -> str:
    if "TORCH_CUDA_ARCH_LIST" in os.environ:
        return os.environ["TORCH_CUDA_ARCH_LIST"]
    try:
        command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def key(dry: bool) -> str:
    """What a build depends on."""
    torch = torch_folder()
    digest = hashlib.sha256()
    known = (sys.version, sysconfig.get_config_var("EXT_SUFFIX"), torch, architectures() if not dry else "none")
    digest.update(repr((*map(str, known), runpy.run_path(str(torch / "version.py"))["__version__"])).encode())
    for name in SOURCES:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix != ".md")
        for file in files:
            if file.is_file():
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def binaries() -> list[Path]:
    """What a build installs: the libraries, what CMake needs to find them, and how they were built."""
    found = [*PACKAGE.glob("_C.*.so"), PACKAGE / "_build.json"]
    found += [file for name in ("lib", "include", "share") for file in (PACKAGE / name).rglob("*") if file.is_file()]
    return sorted(file for file in found if file != PACKAGE / MARK)


def digests() -> dict[str, str]:
    return {
        str(file.relative_to(PACKAGE)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in binaries()
        if file.suffix == ".so"
    }


def mark(wanted: str) -> None:
    """Says which build this is; a build that another program puts in its place differs in its libraries."""
    (PACKAGE / MARK).write_text(json.dumps({"key": wanted, "libraries": digests()}), encoding="utf-8")


def is_installed(wanted: str) -> bool:
    try:
        marked = json.loads((PACKAGE / MARK).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return marked == {"key": wanted, "libraries": digests()} and bool(digests())


def packed_key(pack: Path) -> str | None:
    try:
        with tarfile.open(pack) as tar:
            file = tar.extractfile(f"python/torchdion/{MARK}")
            return str(json.load(file)["key"]) if file else None
    except (OSError, KeyError, ValueError, EOFError, tarfile.TarError):
        return None  # none there, or cut off


def unpack(pack: Path) -> None:
    with tarfile.open(pack) as tar:
        tar.extractall(ROOT, filter="data")


def pack(folder: Path) -> float:
    """Megabytes of what was packed, whole or not at all."""
    made = folder / f"{PACKED}.{os.getpid()}"
    with tarfile.open(made, "w:gz", compresslevel=6) as tar:
        for file in [PACKAGE / MARK, *binaries()]:
            tar.add(file, str(file.relative_to(ROOT)))
    size = made.stat().st_size / 2**20
    if size > LARGEST_MB:
        made.unlink()
    else:
        os.replace(made, folder / PACKED)
    return size


def run(*command: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def build(dry: bool) -> None:
    tree = "build/gpu/dry" if dry else "build/gpu/tree"
    options = {
        "TORCHDION_EDITABLE": "ON",
        "TORCHDION_TESTS": "OFF",
        "TORCHDION_CUDA": "OFF" if dry else "ON",
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_INSTALL_PREFIX": str(PACKAGE),
    }
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    run("cmake", "-S", ".", "-B", tree, *generator, *definitions)
    run("cmake", "--build", tree, "--parallel", *(("--", "-n") if dry else ()))
    if not dry:
        run("cmake", "--install", tree)


def works(dry: bool) -> bool:
    """Whether the package can be imported and, but for a dry run, sees the GPU."""
    sees = "torch.cuda.is_available() and _C.has_kernels_for('cuda')"
    program = f"import sys, torch; from torchdion import _C; sys.exit(not ({sees}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", "import torchdion" if dry else program]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def provide(folder: Path, earlier: list[Path], dry: bool) -> str:
    """How the package came to be in its place, where it then is."""
    wanted = key(dry)
    if is_installed(wanted) and works(dry):
        return "installed"
    for found in (place / PACKED for place in [folder, *reversed(earlier)]):
        if packed_key(found) == wanted:
            unpack(found)
            if is_installed(wanted) and works(dry):
                return "unpacked"
            print(f"gpu_build.py: {found} was unpacked but does not work", flush=True)
    build(dry)
    mark(wanted)
    if not works(dry):
        sys.exit("gpu_build.py: needs a GPU that torch can use, and a build with CUDA")
    return "built"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the packed build goes")
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="where one may be")
    parser.add_argument("--dry", action="store_true", help="without a GPU")
    given = parser.parse_args(arguments)
    toolkit = Path("/usr/local/cuda/bin")
    if shutil.which("nvcc") is None and toolkit.is_dir():
        os.environ["PATH"] += f"{os.pathsep}{toolkit}"
    begin = time.monotonic()
    how = provide(given.folder, given.earlier, given.dry)
    row = {"kind": "build", "how": how, "seconds": round(time.monotonic() - begin, 1)}
    print(json.dumps(row), flush=True)
    if packed_key(given.folder / PACKED) != key(given.dry):
        size = pack(given.folder)
        too_large = {"problem": f"packed, it has more than {LARGEST_MB} MiB, and was not kept"}
        print(json.dumps({**row, "packed_mb": round(size, 4), **(too_large if size > LARGEST_MB else {})}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
