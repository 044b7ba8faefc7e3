"""The calls of benchmarks/gpu/run.sh: no part stops another, each ends in time, and what was found is kept."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gpu_child
import gpu_run
import pytest
from gpu_calls import CALLS, REPORT, ROOT, SANITIZED, Command, Part, Settings, parts_of

RUN = Path(__file__).parents[3] / "benchmarks" / "gpu" / "run.sh"
PARTS = [(call, part.name) for call in CALLS for part in parts_of(call, Settings("python", Path("folder")))]

# In place of Python, but for what runs the parts: a program writes a row with its words, and one of them fails.
PYTHON = """#!/bin/sh
case "$1" in *gpu_run.py) exec {python} "$@";; esac
echo "a warning of some kind"
echo "{{\\"kind\\": \\"run\\", \\"name\\": \\"$(basename "$1") $*\\"}}"
echo '{{"kind": "cut o'
case "$*" in *$FAILS*) exit 3;; esac
"""
# What only the command of a part has among its words.
WORDS = {
    **{"build": "gpu_build.py", "products": "gpu_products.py", "factors": "gpu_kernels.py", "steps": "gpu_step.py"},
    **{"tests": "--suite operations", "profile": "gpu_profile.py", "metrics": "gpu_metrics.py", "nccl": "--suite nccl"},
    **{"rivals": "--of torch", "accuracy": "gpu_accuracy.py", "ranks": "--suite ranks", "dion": "--of dion"},
    **{"memcheck": "--suite memcheck", "racecheck": "--suite racecheck", "verify": "torchdion verify"},
    **{REPORT: "gpu_report.py", "training": "gpu_training.py", "cublas": "--of cublas", "gram": "--of gram"},
    **{"siblings": "--of siblings"},
}


def run(tmp_path: Path, *arguments: str, fails: str = "nothing") -> subprocess.CompletedProcess[str]:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": "./python", "FAILS": fails}
    command = [str(RUN), *arguments]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("call", "broken"), PARTS)
def test_a_part_that_fails_leaves_the_rows_of_the_others_and_counts(tmp_path: Path, call: str, broken: str) -> None:
    ended = run(tmp_path, "--dry", call, str(tmp_path / "out"), fails=WORDS[broken].replace(" ", "?"))
    assert ended.returncode == 1
    names = [name for of, name in PARTS if of == call]
    rows = rows_in(tmp_path / "out")
    outcomes = {row["part"]: row.get("problem", row.get("outcome")) for row in rows if row["kind"] == "part"}
    assert outcomes == {name: "failed, status 3" if name == broken else "done" for name in names}
    words = [row["name"] for row in rows if row["kind"] == "run"]
    assert [sum(WORDS[name] in line for line in words) for name in names] == [1] * len(names)
    assert f"=== {call}: 1 of {len(names)} parts failed" in ended.stdout
    assert "a warning of some kind" in ended.stdout  # the end of what failed
    assert (tmp_path / "out" / "log.txt").read_text().count("a warning of some kind") == len(words)


def test_parts_run_one_by_one_with_flags_and_rows_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rows.jsonl").write_text('{"kind": "earlier"}\n{"kind": "cut o')
    ended = run(tmp_path, "--only", "steps,profile", "steps", str(tmp_path / "out"), "--", "--list", "120m")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "=== steps: done")
    first, cut, *lines = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert (first, cut) == ('{"kind": "earlier"}', '{"kind": "cut o')
    programs = [json.loads(line)["name"].split() for line in lines if json.loads(line)["kind"] == "run"]
    assert [words[0] for words in programs] == ["gpu_step.py", "gpu_profile.py"]
    assert all(words[2:4] == ["--list", "120m"] and words[4] == "--end" for words in programs)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "steps,test", "steps", "out"), "run.sh: no such part: test; steps has build steps training"),
        (("steps",), "run.sh: the following arguments are required: folder"),
        (("day", "out"), "run.sh: argument call: invalid choice: 'day'"),
        (("--onyl", "steps", "steps", "out"), "run.sh: unrecognized arguments: --onyl"),
    ],
)
def test_wrong_arguments_run_nothing(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ended = run(tmp_path, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(sentence)


def test_an_earlier_folder_that_is_not_there_ends_no_call(tmp_path: Path) -> None:
    ended = run(tmp_path, "--only", "build", "--earlier", str(tmp_path / "gone"), "steps", str(tmp_path / "out"))
    assert ended.returncode == 0
    assert f"run.sh: nothing is taken from {tmp_path}/gone, which is not there\n" in ended.stdout


def test_the_checkout_of_microsoft_dion_is_found_by_what_measures_it_alone() -> None:
    checkout = Path("checkout")
    parts = parts_of("peers", Settings("python", Path("folder"), dion=checkout))
    found = {part.name for part in parts for command in part.commands if checkout in command.paths}
    assert found == {"dion", "siblings"}


# ---- time ----


def shell(script: str) -> Command:
    return Command(["bash", "-c", script])


def call_of(folder: Path, seconds: float, monkeypatch: pytest.MonkeyPatch) -> gpu_run.Call:
    monkeypatch.setattr(gpu_child, "GRACE", 0.3)
    monkeypatch.setattr(gpu_run, "GRACE", 0.3)
    monkeypatch.setattr(gpu_run, "LEAST", 0.2)
    return gpu_run.Call("steps", Settings(sys.executable, folder), seconds)


def test_a_part_that_does_not_end_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(tmp_path, 600.0, monkeypatch)
    starts = f"sleep 300 & echo $! > {tmp_path}/pid"
    stubborn = f"trap '' TERM; echo '{{\"kind\": \"found\"}}'; {starts}; sleep 300; sleep 300"
    parts = [Part("hangs", 1.0, [shell(stubborn)]), Part("next", 60.0, [shell('echo \'{"kind": "other"}\'')])]
    assert [call.run(part) for part in parts] == [False, True]
    kinds = [(row["kind"], row.get("problem", "")[:13]) for row in rows_in(tmp_path)]
    assert kinds == [("found", ""), ("part", "stopped after"), ("other", ""), ("part", "")]
    assert not is_running(int((tmp_path / "pid").read_text()))


def is_running(pid: int) -> bool:
    """After at most thirty seconds, in which a busy system may end and reap it."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_who_left_the_group_and_holds_the_output_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(tmp_path, 600.0, monkeypatch)
    assert call.run(Part("leaves", 60.0, [shell(f"setsid sleep 30 & echo $! > {tmp_path}/pid; exit 0")]))
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_when_the_time_of_a_call_is_over_only_the_report_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(tmp_path, gpu_run.RESERVED + 0.1, monkeypatch)
    parts = [Part(name, 60.0, [shell("echo x")]) for name in ("steps", REPORT)]
    assert [call.run(part) for part in parts] == [False, True]
    assert rows_in(tmp_path)[0]["problem"] == "left out: the time of the call was over"


def test_what_is_left_of_the_call_bounds_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(tmp_path, gpu_run.RESERVED + 9.5, monkeypatch)
    given: list[float] = []
    monkeypatch.setattr(gpu_run, "run", lambda command, env, folder, seconds, line: given.append(seconds) or (0, False))
    for limit in (1000.0, 4.0):
        call.run(Part("steps", limit, [Command(["x"])]))
    assert 8.5 < given[0] < 9.5
    assert 3 < given[1] < 4


def test_a_call_ends_within_nine_minutes_whatever_happens() -> None:
    overrun = 4 * gpu_child.GRACE  # the group's two endings, each waited for twice, or the output
    assert gpu_run.SECONDS - gpu_run.RESERVED + overrun + gpu_run.RESERVED + overrun <= 9 * 60
    for call in CALLS:
        first, *_, last = parts_of(call, Settings("python", Path("folder")))
        assert (first.name, last.name) == ("build", REPORT)


def test_a_call_that_is_ended_from_outside_ends_its_command(tmp_path: Path) -> None:
    python = tmp_path / "python"
    waits = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 300"
    python.write_text(f'#!/bin/sh\ncase $1 in *gpu_run.py) exec {sys.executable} "$@";; esac\n{waits}\n')
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python)}
    with subprocess.Popen([str(RUN), "steps", str(tmp_path / "out")], env=environment, stdout=subprocess.PIPE) as call:
        while not (tmp_path / "pid").exists():
            assert call.poll() is None
            time.sleep(0.02)
        call.terminate()
        assert call.wait(30) == 143
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_signal_while_a_command_starts_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Signalled(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    def end(*_: object) -> None:
        raise SystemExit

    is_over = threading.Event()
    other = threading.Thread(target=is_over.wait)  # may receive the signal; its handler runs in this one
    other.start()
    before = signal.signal(signal.SIGTERM, end)
    try:
        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(subprocess, "Popen", Signalled)
            gpu_child.run(["sleep", "300"], dict(os.environ), tmp_path, 60.0, print)
    finally:
        signal.signal(signal.SIGTERM, before)
        is_over.set()
        other.join()
    assert started[0].wait(30) == -signal.SIGTERM


# ---- tests on the GPU ----


def test_the_sanitizer_gets_eleven_tests_that_exist() -> None:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", *SANITIZED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert set(listed.stdout.splitlines()) >= set(SANITIZED)
    assert len(set(SANITIZED)) == 11


def pytest_rows(tmp_path: Path, text: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_rows", "--suite", "s"]
    environment = os.environ | {"PYTHONPATH": str(RUN.parent)}
    ended = subprocess.run(
        [*command, *options, "test_it.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    return ended.returncode, [row for line in ended.stdout.splitlines() if (row := gpu_child.row_of(line))]


def test_every_test_is_a_row(tmp_path: Path) -> None:
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n@pytest.mark.skip\ndef test_c(): pass\n"
    status, rows = pytest_rows(tmp_path, text)
    assert rows[0] == {"kind": "tests", "suite": "s", "collected": 3}
    assert [(row["suite"], row["name"], row["outcome"], row.get("problem")) for row in rows[1:]] == [
        ("s", "test_it.py::test_a", "passed", None),
        ("s", "test_it.py::test_b", "failed", "assert 1 == 2"),
        ("s", "test_it.py::test_c", "skipped", None),
    ]
    assert status == 1


def test_tests_that_are_all_skipped_are_a_failure_where_there_should_be_a_gpu(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.skip\ndef test_c(): pass\n"
    status, rows = pytest_rows(tmp_path, text)
    assert (status, rows[-1]) == (1, {"kind": "tests", "suite": "s", "problem": "no test passed"})
    assert pytest_rows(tmp_path, text, "--may-skip-all")[0] == 0
    status, rows = pytest_rows(tmp_path, "import nowhere\n")
    assert (status, rows[0]["problem"]) == (1, "ModuleNotFoundError: No module named 'nowhere'")
