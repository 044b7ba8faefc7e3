"""How this copy of torchdion was built, and whether it fits the torch that is installed."""

import json
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
    """Refuses another torch than the one that the library was compiled against; its C++ interface is not stable.

    Raises:
        ImportError: naming both versions.
    """
    if torch.__version__ != record["torch"]:
        raise ImportError(
            f"torchdion {record['version']} was built for torch {record['torch']}, but this is torch "
            f"{torch.__version__}: reinstall it with `pip install --no-build-isolation --force-reinstall --no-deps .`"
        )
