"""examples/gpt/compare.py as a user runs it: to its end, stopped, killed, resumed, and given wrong arguments."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from checkpoint import saved
from comparison import study, sweep
from comparison.cells import Cell
from comparison.command import check_gpus
from comparison.results import Results
from comparison.training import OUTPUT, Training
from errors import Problem
from long_cases import all_but

from .studies import SMALL, written

COMPARE = Path(__file__).parents[5] / "examples" / "gpt" / "compare.py"
FIGURES = 'figures = ["losses", "curves", "ranks", "rates", "costs"]'
# Ten trainings that any signal finds with checkpoints.
CHECKPOINTS = (
    SMALL.replace("seeds = 3", f"seeds = 2\n{FIGURES}")
    .replace("widen = 3", "widen = 0")
    .replace("[common]", "[common]\ncheckpoint_every = 2")
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(COMPARE), *map(str, arguments)]


def compare(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was run without interruption, in a folder with modules that are called as its own."""
    folder = tmp_path_factory.mktemp("finished")
    for name in ("train.py", "model.py", "comparison.py"):
        (folder / name).write_text("raise RuntimeError('the module of another program')\n")
    done = compare(written(folder, CHECKPOINTS), "--out", folder / "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    *first, last = done.stdout.partition("step times")[0].splitlines()
    assert re.fullmatch(r"10/10, about 0 s left: (A|B r = d/2), width 16, batch 32, lr 0.0\d, seed [12]: loss .*", last)
    assert len(first) == 9
    return folder / "out"


def test_a_study_ends_with_rows_tables_and_a_report(finished: Path) -> None:
    head, *rows = [json.loads(line) for line in (finished / "cells.jsonl").read_text().splitlines()]
    assert set(head["made_with"]) == {"torch", "torchdion", "Python", "device", "data"}
    assert len(rows) == 2 * (3 + 2)
    assert all(len(row["validation"]) == 4 and row["validation"][-1][0] == 8 for row in rows)
    steps = [json.loads(line) for line in (finished / "steps.jsonl").read_text().splitlines()]
    assert {row["contender"]: row["parameters"] for row in steps} == {"A": 12 * 16**2 + 512 * 16, "B r = d/2": 11264}
    state = {row["contender"]: row["state_bytes"] for row in steps}
    assert state["A"] == pytest.approx(4 * 2 * 11264, rel=0.01)  # two moments
    # Momenta and Q of half the rank, m + r columns of m×n; of embedding and head Lion's momentum.
    matrices, factors = 12 * 16**2, 8 * (4 * 16 + 64 + 16)
    assert state["B r = d/2"] == pytest.approx(4 * (matrices + factors + 512 * 16), rel=0.01)
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


class Running:
    """compare.py in a process group of its own, as a shell starts it."""

    def __init__(self, text: str, folder: Path) -> None:
        self.arguments = written(folder, text), "--out", folder / "out"
        self.out = folder / "out"
        self.process = subprocess.Popen(
            command(*self.arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def end(self, number: signal.Signals) -> tuple[str, str]:
        """Sends the signal, a SIGINT to the whole group, as a terminal does; what was said then."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)
        output, errors = self.process.communicate(timeout=90)
        if number == signal.SIGKILL:
            assert self.process.returncode == -signal.SIGKILL
        else:
            assert (self.process.returncode, errors) == (128 + number, "")
            assert "the same command goes on" in output
        return output, errors


Start = Callable[[str, Path], Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts compare.py on a study in a folder; what a test leaves running is killed, and its trainings with it."""
    programs: list[Running] = []

    def started(text: str, folder: Path) -> Running:
        programs.append(Running(text, folder))
        return programs[-1]

    yield started
    for program in programs:
        program.process.kill()
        program.process.wait()


def any_checkpoint(folder: Path) -> bool:
    return any(saved(training) for training in (folder / "unfinished").glob("*"))


SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", all_but(SIGNALS, [signal.SIGINT]))
def test_a_study_that_was_stopped_goes_on_to_the_same_rows(
    number: signal.Signals, finished: Path, tmp_path: Path, start: Start
) -> None:
    running = start(CHECKPOINTS, tmp_path)
    rows = running.out / "cells.jsonl"
    until(lambda: rows.exists() and len(rows.read_text().splitlines()) > 1)  # one has ended, others are under way
    time.sleep(0.3)
    running.end(number)
    assert len(rows.read_text()) < len((finished / "cells.jsonl").read_text())
    done = compare(*running.arguments)
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes() == (finished / "cells.jsonl").read_bytes()


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


@pytest.mark.parametrize("number", all_but(SIGNALS, [signal.SIGINT, signal.SIGTERM]))
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


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_no_training_outlives_a_study_that_was_killed(tmp_path: Path, start: Start) -> None:
    running = start(CHECKPOINTS.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: any_checkpoint(running.out))
    running.end(signal.SIGKILL)
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
    assert done.stdout.splitlines()[1:] == [
        f"{name}: 10 trainings, 0.00256 million tokens; at most 10 trainings, 0.00256 million tokens"
        for name in ("one", "in all")
    ]
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


OWN = """
import torch

def failing(model, *, lr=0.5):
    return "no optimizer"

def sgd(model, *, lr=0.5):
    return torch.optim.SGD(model.parameters(), lr=lr)
"""


def test_a_training_that_fails_ends_the_study_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = CHECKPOINTS.replace('optimizer = "adamw"', f'optimizer = "{tmp_path}/own.py:failing"')
    done = compare(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 1
    sentence = "compare.py: a training failed: .*failing must return a torch.optim.Optimizer, or a list of them .*\n"
    assert re.fullmatch(sentence, done.stderr)


def test_a_training_that_is_killed_ends_the_study_with_the_signals_name(tmp_path: Path, start: Start) -> None:
    running = start(CHECKPOINTS.replace("steps = 8", "steps = 1000000"), tmp_path)
    until(lambda: any_checkpoint(running.out))
    victims = set(processes_that_name(running.out / "unfinished")) - {str(running.process.pid)}
    os.kill(int(victims.pop()), signal.SIGKILL)
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    said = errors.splitlines()[0]  # then Python may say which semaphores the killed process has left
    assert re.fullmatch(r"compare.py: a training failed: SIGKILL ended it \(.*output.txt\)", said)


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


def test_processes_have_a_gpu_each(tmp_path: Path) -> None:
    asked = study.read(written(tmp_path, CHECKPOINTS + "flags = { dp = 2 }\n"))
    check_gpus(asked, list(asked.parts), 2)
    with pytest.raises(Problem, match="part 'one': A trains on 2 processes, each on a GPU of its own; here are 1"):
        check_gpus(asked, list(asked.parts), 1)


@pytest.mark.parametrize("package", ["jinja2", "tqdm"])
def test_a_package_that_is_missing_is_one_sentence(package: str, tmp_path: Path) -> None:
    hide = f"import sys; sys.modules[{package!r}] = None; sys.path[0] = {str(COMPARE.parent)!r}; import runpy; "
    run = f"sys.argv = ['compare.py', 'small', '--dry-run']; runpy.run_path({str(COMPARE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hide + run], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        2, f"compare.py: the comparison needs the package {package}; `pip install {package}`\n"
    )  # fmt: skip


def test_an_optimizer_of_ones_own_is_compared(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = CHECKPOINTS.replace('optimizer = "adamw"', f'optimizer = "{tmp_path}/own.py:sgd"').replace(
        "seeds = 2", "seeds = 1"
    )
    done = compare(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.md").read_text()
    assert re.search(r"\| 1–2 \| A \| \d\.\d{3} \|", page)
    assert (tmp_path / "out" / "figures" / "one-costs.svg").exists()


def test_folders_of_trainings_whose_rows_are_kept_are_removed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    rows = (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    left = tmp_path / "out" / "unfinished" / Cell(json.dumps(json.loads(rows[1])["flags"], sort_keys=True)).key
    left.mkdir(parents=True)
    (left / "log.jsonl").write_text("")
    done = compare(written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / "unfinished").exists()


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


def test_data_that_are_not_there_are_said_before_anything_is_trained(tmp_path: Path) -> None:
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
