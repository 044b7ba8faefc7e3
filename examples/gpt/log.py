"""A run's log, one JSON object per line: the recipe first, then training steps and validations."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from checkpoint import write_whole
from errors import Problem, writing

Record = dict[str, Any]
NAME = "log.jsonl"


def read(path: Path) -> list[Record]:
    """The log's records; a last line that a kill cut short is left out."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from error
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise Problem(f"{path} is no training log: a line is not JSON") from error


def truncate(path: Path, step: int) -> None:
    """Drop the records of steps after `step`, which a resumed run writes again."""
    kept = "".join(json.dumps(record) + "\n" for record in read(path) if record["step"] <= step)
    write_whole(path, lambda file: file.write(kept.encode()))


class Log:
    """Appends records to a run's log file, and their numbers to TensorBoard if `tensorboard` is set.

    Without a folder they are discarded.
    """

    def __init__(self, folder: Path | None, step: int, tensorboard: bool) -> None:
        self._discards = folder is None
        self._path = folder / NAME if folder else Path(os.devnull)
        with writing(self._path):
            self._file = self._path.open("a")
            self._board = _board(folder / "tensorboard", step) if folder and tensorboard else None

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        try:
            with writing(self._path):
                self._file.close()
                if self._board is not None:
                    self._board.close()
        except Problem:
            if error is None:  # what could not be written before cannot be now
                raise

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add a record of `kind`; it survives the death of this process from here on."""
        with writing(self._path):
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in values.items():
                    if isinstance(value, float):
                        self._board.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> None:
        """Wait until the log is on the disk, so that no checkpoint is ahead of it."""
        if not self._discards:
            with writing(self._path):
                os.fsync(self._file.fileno())


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # it takes a second to import

    return SummaryWriter(folder, purge_step=step + 1)
