"""The default data: the source files of the running Python's standard library, byte by byte."""

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from data import Source, Tokens
from errors import Problem

# Tests and character tables are repetitive, and installed packages differ from user to user.
LEFT_OUT = {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}
BYTE_VOCABULARY = 256
# Source files hold no zero byte, so it marks where one ends and the next begins.
SEPARATOR = b"\0"
VALIDATION_SHARE = 0.1
# Code, of which a small model makes more of it; of "def " it makes prose, of nothing at all a rule of 79 "#".
PROMPT = "class Reader:\n    def __init__(self, name):\n        self."


def library_files(root: Path) -> list[Path]:
    """The .py files under `root`, sorted, without the folders in LEFT_OUT."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]  # which are not looked into
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def is_validation(name: str, share: float = VALIDATION_SHARE) -> bool:
    """Whether the file called `name` is for validation: a fixed coin per name, whatever other files exist."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def split_by_file(root: Path) -> tuple[list[Path], list[Path]]:
    """Training and validation files; no file is in both."""
    train: list[Path] = []
    validation: list[Path] = []
    for path in library_files(root):
        held_out = is_validation(path.relative_to(root).as_posix())
        (validation if held_out else train).append(path)
    return train, validation


def join(files: Iterable[Path]) -> Tokens:
    """All bytes of `files`, each file preceded by the separator."""
    return np.frombuffer(b"".join(SEPARATOR + path.read_bytes() for path in files), dtype=np.uint8)


def standard_library() -> tuple[Source, Source]:
    """Training and validation bytes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    train, validation = split_by_file(root)
    if not train or not validation:
        raise Problem(f"no standard library sources lie in {root}; give token shards with --data")
    return Source([join(train)], [str(root)]), Source([join(validation)], [str(root)])
