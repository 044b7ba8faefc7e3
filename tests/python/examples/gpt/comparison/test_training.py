"""examples/gpt/comparison/training.py: what a training is told, and why it failed."""

import subprocess
from pathlib import Path

import pytest
from comparison.cells import Cell, settings
from comparison.training import OUTPUT, Pool, Training

from .studies import SMALL, read


@pytest.mark.parametrize("compress", [True, False])
def test_compressed_trainings_have_no_checkpoints_but_regular_ones(compress: bool, tmp_path: Path) -> None:
    flags = "flags = { dp = 2, clip = 0.0 }\n"
    own = "rank_fraction = 0.5\ncompress = true" if compress else "rank_fraction = 0.5"
    asked = read(tmp_path, SMALL.replace("rank_fraction = 0.5", own) + flags)
    cell = list(settings(asked, asked.parts[0]))[1].cell(0.02, 0)
    arguments = Pool(tmp_path / "unfinished", 1, "cpu").arguments(cell, tmp_path)
    assert ("--compress" in arguments, "--no-checkpoint-on-signal" in arguments) == (compress, compress)


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("train.py: old\n", 1, "it said nothing"),
        ("train.py: old\ntrain.py: new\nbye\n", 1, "new"),
        ("train.py: old\nstep 60\n", 1, "step 60"),
        ("train.py: old\nstep 60\n", -9, "SIGKILL ended it"),
        ("train.py: old\nSignal 15 (SIGTERM) received by PID 7\nSignal 9 (SIGKILL) received by PID 8\n===\n", 1,
         "SIGKILL ended a rank"),
        ("train.py: old\n[rank0]: train.py: a full disk\nSignal 15 (SIGTERM) received by PID 7\n", 1, "a full disk"),
    ],
)  # fmt: skip
def test_why_a_training_failed_is_what_its_own_processes_said(
    text: str, code: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / OUTPUT).write_text(text)
    training = Training(Cell("{}"), tmp_path, subprocess.Popen(["true"]), [], 0.0, True, len("train.py: old\n"))
    training.process.wait()  # type: ignore[union-attr]
    assert training.complaint(code) == sentence
