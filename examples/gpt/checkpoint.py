"""Checkpoints that are whole or absent: written beside their place, flushed to the disk, then renamed.

A run on one process writes files, one on many folders (sharded.py); either goes on from both.
"""

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from errors import Problem, writing

NAME = re.compile(r"checkpoint-(\d{8})(\.pt)?")
UNFINISHED = ".unfinished"
# Raised, depending on where the damage is, when a file is no checkpoint or only part of one.
DAMAGED = (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill `path`; whatever happens meanwhile, `path` is the old file or the whole new one.

    Raises:
        Problem: the disk is full, say.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with writing(path), unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        with writing(path):
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def saved(folder: Path) -> list[Path]:
    """The folder's checkpoints, newest first."""
    paths = (path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name))
    return sorted(paths, key=lambda path: path.name[: len("checkpoint-00000000")], reverse=True)


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write the state after `step` steps and remove all but the newest `keep` checkpoints."""
    path = folder / f"checkpoint-{step:08d}.pt"
    write_whole(path, lambda file: torch.save(state, file))
    remove_all_but(folder, keep)
    return path


def finish(unfinished: Path, keep: int) -> None:
    """Gives a folder that has been written its name, and removes all but the newest `keep` checkpoints."""
    for path in unfinished.iterdir():
        flush(path)
    flush(unfinished)
    path = unfinished.with_name(unfinished.name.removesuffix(UNFINISHED))
    remove(path)
    unfinished.rename(path)
    flush(path.parent)
    remove_all_but(path.parent, keep)


def remove_all_but(folder: Path, keep: int) -> None:
    for old in saved(folder)[keep:]:
        remove(old)


def remove(path: Path) -> None:
    """A checkpoint, at once: what is killed on its way leaves an unfinished one."""
    if path.is_dir():
        leaving = path.with_name(path.name + ".leaving" + UNFINISHED)
        path.rename(leaving)
        shutil.rmtree(leaving)
    else:
        path.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """One checkpoint's state, on the CPU; data only, no code is run. Of a folder: all but the tensors, and its path."""
    if path.is_dir():
        import sharded  # torch.distributed takes a while to import

        return sharded.read_rest(path) | {"folder": path}
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def newest(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None where there is none; `say` is told of damaged ones."""
    paths = saved(folder)
    for path in paths:
        try:
            return load(path)
        except DAMAGED:
            say(f"{path} is damaged and passed over")
    if paths:
        raise Problem(f"no checkpoint in {folder} can be read; --overwrite starts the run afresh")
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for path in folder.glob("*" + UNFINISHED):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
