"""Where the programs of CUDA are: on PATH, or where they are installed."""

import shutil
from pathlib import Path

FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*", "/usr/local/cuda/nsight-compute*")


def find(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    for pattern in FOLDERS:
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            found = shutil.which(name, path=str(folder))
            if found:
                return found
    return None
