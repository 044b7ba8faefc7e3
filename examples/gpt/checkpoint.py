"""Checkpoints that are whole or absent: written beside their place, flushed to the disk, then renamed."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from errors import Problem

NAME = re.compile(r"checkpoint-(\d{8})\.pt")
UNFINISHED = ".unfinished"
# Raised, depending on where the damage is, when a file is no checkpoint or only part of one.
DAMAGED = (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill `path`; whatever happens meanwhile, `path` is the old file or the whole new one."""
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    # The new name is an entry of the folder, so it is durable only once the folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def saved(folder: Path) -> list[Path]:
    """The folder's checkpoints, newest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name)), reverse=True)


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write the state after `step` steps and remove all but the newest `keep` checkpoints."""
    path = folder / f"checkpoint-{step:08d}.pt"
    write_whole(path, lambda file: torch.save(state, file))
    for old in saved(folder)[keep:]:
        old.unlink()
    return path


def load(path: Path) -> dict[str, Any]:
    """One checkpoint's state, on the CPU; data only, no code is run."""
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
        path.unlink()
