"""examples/gpt/compare.py as a user runs it: to its end, stopped, killed, resumed, and given wrong arguments."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from long_cases import all_but

from .studies import SMALL, written

COMPARE = Path(__file__).parents[5] / "examples" / "gpt" / "compare.py"
FIGURES = 'figures = ["losses", "curves", "ranks", "rates", "costs"]'
# Eight trainings that any signal finds with checkpoints.
CHECKPOINTS = (
    SMALL.replace("seeds = 3", f"seeds = 2\n{FIGURES}")
    .replace("widen = 3", "widen = 0")
    .replace("[common]", "[common]\ncheckpoint_every = 2")
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(COMPARE), *map(str, arguments)]


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was run without interruption."""
    folder = tmp_path_factory.mktemp("finished")
    done = compare(written(folder, CHECKPOINTS), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_a_study_ends_with_rows_tables_and_a_report(finished: Path) -> None:
    head, *rows = [json.loads(line) for line in (finished / "cells.jsonl").read_text().splitlines()]
    assert set(head["made_with"]) == {"torch", "torchdion", "Python", "data"}
    assert len(rows) == 2 * (3 + 1)
    assert all(len(row["validation"]) == 4 and row["validation"][-1][0] == 8 for row in rows)
    steps = [json.loads(line) for line in (finished / "steps.jsonl").read_text().splitlines()]
    assert {row["contender"]: row["parameters"] for row in steps} == {"A": 12 * 16**2 + 512 * 16, "B r = d/2": 11264}
    # Two moments of each number, or one of those of matrices and Q of half the rank; embedding and head are Lion's.
    state = {row["contender"]: row["state_bytes"] for row in steps}
    assert state["A"] >= 8 * 11264
    tables = (finished / "tables.txt").read_text()
    assert "B r = d/2" in tables
    assert "Width 16, 32 tokens a batch" in tables
    assert not (finished / "unfinished").exists()


def test_the_report_needs_nothing_else_and_shows_every_figure(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    assert "@import" not in page
    figures = sorted(path.name for path in (finished / "figures").glob("*.svg"))
    assert figures == [f"one-{kind}.svg" for kind in ("costs", "curves", "losses", "ranks", "rates")]
    assert page.count("<img ") == page.count('alt="') == len(figures)
    text = (finished / "report.md").read_text()
    for path in re.findall(r"\]\((.*?)\)", text):
        assert (finished / path).exists(), path


@pytest.mark.parametrize("number", all_but([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], [signal.SIGINT]))
def test_a_study_that_was_stopped_goes_on_to_the_same_rows(
    number: signal.Signals, finished: Path, tmp_path: Path
) -> None:
    arguments = written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out"
    running = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = tmp_path / "out" / "cells.jsonl"
    until(rows.exists)  # the first has ended, others are under way
    time.sleep(0.3)
    running.send_signal(number)
    said, _ = running.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert running.returncode == -signal.SIGKILL
    else:
        assert running.returncode == 128 + number
        assert "the same command goes on" in said
    assert len(rows.read_text()) < len((finished / "cells.jsonl").read_text())
    done = compare(*arguments)
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes() == (finished / "cells.jsonl").read_bytes()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_no_training_outlives_a_study_that_was_killed(tmp_path: Path) -> None:
    long = CHECKPOINTS.replace("steps = 8", "steps = 1000000")
    running = subprocess.Popen(command(written(tmp_path, long), "--out", tmp_path / "out"), stdout=subprocess.DEVNULL)
    until(lambda: any((tmp_path / "out" / "unfinished").glob("*/checkpoint-*")))
    running.kill()
    running.wait()
    until(lambda: not processes_that_name(tmp_path))


def processes_that_name(folder: Path) -> list[str]:
    """Processes that have a file of the folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(folder) in os.readlink(file) for file in (process / "fd").iterdir()):
                found.append(process.name)
        except OSError:
            continue
    return found


def test_the_report_is_drawn_anew_without_training(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    for path in (tmp_path / "out").glob("report.*"):
        path.unlink()
    done = compare(written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out", "--report")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").read_bytes() == (finished / "report.html").read_bytes()


def test_what_would_be_trained_is_listed(tmp_path: Path) -> None:
    done = compare(written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out", "--dry-run")
    assert done.stdout.splitlines()[1] == "one: 8 trainings, at most 0 million tokens"
    assert not (tmp_path / "out").exists()


def test_two_do_not_train_in_one_folder(tmp_path: Path) -> None:
    long = CHECKPOINTS.replace("steps = 8", "steps = 1000000")
    arguments = written(tmp_path, long), "--out", tmp_path / "out"
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL) as running:
        until((tmp_path / "out" / "unfinished").exists)
        second = compare(*arguments)
        running.terminate()
    assert second.returncode == 2
    assert second.stderr == f"compare.py: another compare.py is at work in {tmp_path / 'out'}\n"


def test_a_training_that_fails_ends_the_study_with_its_sentence(tmp_path: Path) -> None:
    text = CHECKPOINTS.replace("context = 16", 'context = 16\ndata = "shards/*.bin"\nvocab = 256')
    done = compare(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert re.fullmatch(r"compare.py: .*shards/\*.bin.*\n", done.stderr)


WRONG = {
    ("nothing",): "the studies here are",
    ("small", "--parts", "one"): "the parts of small are all, batch; 'one' is none of them",
    ("small", "--report"): "holds no rows to report",
    ("small", "--hours", "0"): "argument --hours: must be a number above 0",
    ("small", "--jobs", "0"): "argument --jobs: must be a whole number of at least 1",
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.items(), ids=[" ".join(arguments) for arguments in WRONG])
def test_wrong_arguments_are_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = compare(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("compare.py: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
