"""How this copy of torchdion was built, and whether it fits the torch that is installed."""

import json
import re
from pathlib import Path

import torch

RECORD = Path(__file__).parent / "_build.json"


def read_build() -> dict[str, str]:
    """The record that the build left: versions of torch, Python, compiler and CUDA toolkit.

    Raises:
        ImportError: the package's sources are here but its library was never built.
    """
    try:
        record: dict[str, str] = json.loads(RECORD.read_text())
    except FileNotFoundError:
        raise ImportError(
            "torchdion: the library has not been built: run `pip install --no-build-isolation -e .` in its repository"
        ) from None
    return record


def check_torch(record: dict[str, str]) -> None:
    """Refuses a torch whose C++ interface may not be the one that the library was compiled against.

    Patch releases keep it. CUDA kernels also need CUDA libraries of the major version that they were linked to.

    Raises:
        ImportError: naming both versions.
    """
    again = "reinstall it with `pip install --no-build-isolation --force-reinstall --no-deps .`"
    if interface(torch.__version__) != interface(record["torch"]):
        raise ImportError(
            f"torchdion {record['version']} was built for torch {interface(record['torch'])}, but this is torch "
            f"{torch.__version__}: {again}"
        )
    if record["cuda_toolkit"] != "none" and _major(torch.version.cuda or "none") != _major(record["torch_cuda"]):
        raise ImportError(
            f"torchdion {record['version']} was built for CUDA {_major(record['torch_cuda'])}, but this torch "
            f"{torch.__version__} is for CUDA {torch.version.cuda or 'none'}: {again}"
        )


def interface(version: str) -> str:
    """What stands for a version's C++ interface: 2.15 for its releases, all of a development build's version."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", version)
    return release[1] if release else version


def _major(version: str) -> str:
    return version.partition(".")[0]
