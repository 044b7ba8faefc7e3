"""A run that is killed or interrupted, and resumed, has the losses of one that was not, bit for bit."""

import functools
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoint
import log
import pytest
from long_cases import some_of

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt"
SHAPE = ["--layers", "1", "--d-model", "32", "--heads", "2", "--context", "32"]
RUN = ["--batch", "4", "--micro-batch", "2", "--steps", "12", "--val-every", "5", "--val-sequences", "8"]
FOLDER = ["--checkpoint-every", "4", "--sample-length", "0"]

# A real signal, sent by the process to itself at a chosen place.
SIGNALLED = """
import os, signal, sys
{patch}
import errors, train
errors.run_script(train.main)
"""
DURING_STEP_7 = """
import model, trainer
forward, train_step = model.GPT.forward, trainer.Trainer.train_step
at_7 = False
def signalling_step(self):
    global at_7
    at_7 = self.step == 6
    return train_step(self)
def signalling_forward(self, tokens):
    global at_7
    if at_7:
        at_7 = False
        os.kill(os.getpid(), signal.{signal})
    return forward(self, tokens)
model.GPT.forward, trainer.Trainer.train_step = signalling_forward, signalling_step
"""
DURING_THE_CHECKPOINT_OF_STEP_8 = """
import checkpoint, torch
save = torch.save
def half_save(state, file):
    if state["step"] < 8:
        return save(state, file)
    file.write(b"half a checkpoint")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = half_save
"""


def train(*flags: str, patch: str = "") -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, changed by `patch` before it starts."""
    script = SIGNALLED.format(patch=patch) if patch else (EXAMPLE / "train.py").read_text()
    command = [sys.executable, "-c", script, *flags]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def losses(folder: Path) -> list[tuple[Any, ...]]:
    """All that must not differ: every record in its order, without the times."""
    names = ("kind", "step", "loss", "lr", "grad_norm")
    records = [record for record in log.read(folder / log.NAME) if record["kind"] != "run"]
    return [tuple(record.get(name) for name in names) for record in records]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory):
    """The losses of a whole run, by optimizer."""

    @functools.cache
    def whole_run(optimizer: str) -> list[tuple[Any, ...]]:
        folder = tmp_path_factory.mktemp(optimizer) / "whole"
        result = train(*SHAPE, *RUN, *FOLDER, "--optimizer", optimizer, "--run", str(folder))
        assert result.returncode == 0, result.stderr
        records = losses(folder)
        assert [record[1] for record in records if record[0] == "train"] == list(range(1, 13))
        assert [record[1] for record in records if record[0] == "validation"] == [5, 10, 12]
        assert len({record[2] for record in records}) == len(records)
        return records

    return whole_run


def resume_to_the_end(folder: Path) -> None:
    result = train("--run", str(folder), "--resume", *FOLDER)
    assert result.returncode == 0, result.stderr
    assert not list(folder.glob("*" + checkpoint.UNFINISHED))


@pytest.mark.long
@pytest.mark.parametrize(
    "optimizer", ["torch_adamw", "torch_muon", "muon", "normuon", "dion3", "double_dion", "demo", "dion"]
)
def test_after_sigkill(tmp_path: Path, uninterrupted, optimizer: str) -> None:
    folder = tmp_path / "run"
    flags = [*SHAPE, *RUN, *FOLDER, "--optimizer", optimizer, "--run", str(folder)]
    killed = train(*flags, patch=DURING_STEP_7.format(signal="SIGKILL"))
    assert killed.returncode == -9
    # Steps 5 and 6 are in the log but in no checkpoint, so they are made again.
    assert losses(folder)[-1][1] == 6
    assert [path.name for path in checkpoint.saved(folder)] == ["checkpoint-00000004.pt"]
    resume_to_the_end(folder)
    assert losses(folder) == uninterrupted(optimizer)


@pytest.mark.long
def test_after_sigkill_while_a_checkpoint_is_written(tmp_path: Path, uninterrupted) -> None:
    folder = tmp_path / "run"
    flags = [*SHAPE, *RUN, *FOLDER, "--optimizer", "dion", "--run", str(folder)]
    assert train(*flags, patch=DURING_THE_CHECKPOINT_OF_STEP_8).returncode == -9
    assert [path.name for path in checkpoint.saved(folder)] == ["checkpoint-00000004.pt"]
    assert list(folder.glob("*" + checkpoint.UNFINISHED))
    resume_to_the_end(folder)
    assert losses(folder) == uninterrupted("dion")


@pytest.mark.parametrize("optimizer", some_of(["torch_adamw", "dion"], ["dion"]))
def test_after_ctrl_c(tmp_path: Path, uninterrupted, optimizer: str) -> None:
    folder = tmp_path / "a run"
    flags = [*SHAPE, *RUN, *FOLDER, "--optimizer", optimizer, "--run", str(folder)]
    interrupted = train(*flags, patch=DURING_STEP_7.format(signal="SIGINT"))
    assert interrupted.returncode == 130, interrupted.stderr
    assert interrupted.stderr == ""
    assert losses(folder)[-1][1] == 7
    assert checkpoint.saved(folder)[0].name == "checkpoint-00000007.pt"
    # The command that it names is the one that goes on.
    line = interrupted.stdout.splitlines()[-1]
    assert line.startswith("interrupted after step 7; to go on: python ")
    result = train(*shlex.split(line.split("to go on: ")[1])[2:])
    assert result.returncode == 0, result.stderr
    assert losses(folder) == uninterrupted(optimizer)


@pytest.mark.long
def test_a_killed_run_without_a_checkpoint_starts_afresh_and_says_so(tmp_path: Path, uninterrupted) -> None:
    folder = tmp_path / "run"
    flags = [*SHAPE, *RUN, "--optimizer", "dion", "--run", str(folder), "--sample-length", "0"]
    assert train(*flags, patch=DURING_STEP_7.format(signal="SIGKILL")).returncode == -9
    result = train(*flags, "--resume")
    assert result.returncode == 0, result.stderr
    assert f"{folder} holds no checkpoint; starting from the first step" in result.stdout
    assert losses(folder) == uninterrupted("dion")
