"""Studies that are stopped or killed, go on, and wait for each other."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from comparison import study, sweep
from comparison.cells import Cell
from comparison.results import Results

from .programs import CHECKPOINTS, FIGURES, Start, any_checkpoint, command, compare, processes_that_name, until
from .studies import written

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_a_study_that_was_stopped_goes_on_to_the_same_rows(
    number: signal.Signals, finished: Path, tmp_path: Path, start: Start
) -> None:
    running = start(CHECKPOINTS.replace(FIGURES, ""), tmp_path)
    rows = running.out / "cells.jsonl"
    until(lambda: rows.exists() and len(rows.read_text().splitlines()) > 1)  # one has ended, others are under way
    time.sleep(0.3)
    running.end(number)
    assert len(rows.read_text()) < len((finished / "cells.jsonl").read_text())
    done = compare(*running.arguments)
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes() == (finished / "cells.jsonl").read_bytes()


@pytest.mark.long
def test_a_training_under_way_goes_on_from_its_checkpoint(tmp_path: Path, start: Start) -> None:
    long = CHECKPOINTS.replace("steps = 8", "steps = 1000000")
    running = start(long, tmp_path)
    until(lambda: any_checkpoint(running.out))
    running.end(signal.SIGTERM)
    again = start(long, tmp_path)
    outputs = list((running.out / "unfinished").glob("*/output.txt"))
    until(lambda: any("resuming" in output.read_text() for output in outputs))
    again.end(signal.SIGTERM)


@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.8, 1.6, 2.4])
@pytest.mark.long
def test_ctrl_c_at_any_moment_is_no_traceback(seconds: float, tmp_path: Path, start: Start) -> None:
    running = start(CHECKPOINTS, tmp_path)
    until((running.out / "unfinished").exists)
    time.sleep(seconds)
    running.end(signal.SIGINT)


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_trainings_on_many_processes_stop_and_go_on_too(number: signal.Signals, tmp_path: Path, start: Start) -> None:
    two = CHECKPOINTS + "flags = { dp = 2 }\n"
    running = start(two.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: any_checkpoint(running.out))
    [folder] = (running.out / "unfinished").iterdir()
    with (folder / "lock").open("w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    running.end(number)
    until(lambda: not processes_that_name(tmp_path))  # else another training would begin
    again = start(two.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: "resuming" in (folder / "output.txt").read_text())
    again.end(signal.SIGTERM)
    until(lambda: not processes_that_name(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_compressed_trainings_that_were_stopped_end_with_the_same_rows(tmp_path: Path, start: Start) -> None:
    demo = CHECKPOINTS.replace('optimizer = "adamw"', 'optimizer = "demo"\ncompress = true').replace(
        '"A", "B r = d/2"', '"A"'
    )
    text = demo.replace("steps = 8", "steps = 40") + "flags = { dp = 2, clip = 0.0 }\n"
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    done = compare(written(whole, text), "--out", whole / "out")
    assert done.returncode == 0, done.stderr
    running = start(text, stopped)
    until(lambda: any_checkpoint(running.out))
    running.end(signal.SIGTERM)
    until(lambda: not processes_that_name(stopped))
    done = compare(*running.arguments)
    assert done.returncode == 0, done.stderr
    assert (running.out / "cells.jsonl").read_bytes() == (whole / "out" / "cells.jsonl").read_bytes()


@pytest.mark.long
def test_no_training_outlives_a_study_that_was_killed(tmp_path: Path, start: Start) -> None:
    running = start(CHECKPOINTS.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: any_checkpoint(running.out))
    running.end(signal.SIGKILL)
    until(lambda: not processes_that_name(tmp_path))


def test_two_do_not_train_in_one_folder(tmp_path: Path) -> None:
    long = CHECKPOINTS.replace("steps = 8", "steps = 1000000")
    arguments = written(tmp_path, long), "--out", tmp_path / "out"
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL) as running:
        until((tmp_path / "out" / "unfinished").exists)
        second = compare(*arguments)
        running.terminate()
    assert second.returncode == 2
    assert second.stderr == f"compare.py: another compare.py is at work in {tmp_path / 'out'}\n"


@pytest.mark.long
def test_a_training_that_is_killed_ends_the_study_with_the_signals_name(tmp_path: Path, start: Start) -> None:
    running = start(CHECKPOINTS.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: any_checkpoint(running.out))
    victims = set(processes_that_name(running.out / "unfinished")) - {str(running.process.pid)}
    os.kill(int(victims.pop()), signal.SIGKILL)
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    said = errors.splitlines()[0]  # then Python may say which semaphores the killed process has left
    assert re.fullmatch(r"compare.py: a training failed: SIGKILL ended it \(.*output.txt\)", said)


@pytest.mark.long
def test_folders_of_trainings_whose_rows_are_kept_are_removed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    rows = (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    left = tmp_path / "out" / "unfinished" / Cell(json.dumps(json.loads(rows[1])["flags"], sort_keys=True)).key
    left.mkdir(parents=True)
    (left / "log.jsonl").write_text("")
    done = compare(written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / "unfinished").exists()


@pytest.mark.long
def test_a_training_waits_for_an_earlier_process_in_its_folder(finished: Path, tmp_path: Path, start: Start) -> None:
    shutil.copytree(finished, tmp_path / "out")
    path = tmp_path / "out" / "cells.jsonl"
    head, missing, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, *rest]))
    folder = tmp_path / "out" / "unfinished" / Cell(json.dumps(json.loads(missing)["flags"], sort_keys=True)).key
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = start(CHECKPOINTS, tmp_path)
        time.sleep(5)
        assert running.process.poll() is None
        assert not (folder / "output.txt").exists()
    assert running.process.wait(timeout=60) == 0
    assert path.read_bytes() == (finished / "cells.jsonl").read_bytes()


@pytest.mark.long
def test_trainings_on_many_processes_wait_for_earlier_ones_too(tmp_path: Path, start: Start) -> None:
    two = CHECKPOINTS + "flags = { dp = 2 }\n"
    asked = study.read(written(tmp_path, two))
    none = Results(tmp_path / "out", None)
    keys = [cell.key for part in asked.parts for cell in sweep.wanted(asked, part, none)]
    folders = [tmp_path / "out" / "unfinished" / key for key in keys]
    with ExitStack() as locks:
        for folder in folders:
            folder.mkdir(parents=True)
            fcntl.flock(locks.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX)
        running = start(two, tmp_path)
        time.sleep(5)
        assert running.process.poll() is None
        assert not any((folder / "output.txt").exists() for folder in folders)
    until(lambda: any((folder / "output.txt").exists() for folder in folders))
    running.end(signal.SIGTERM)
    until(lambda: not processes_that_name(tmp_path))
