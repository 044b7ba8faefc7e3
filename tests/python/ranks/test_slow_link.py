"""benchmarks/slow_link.py: links that limit, rows, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from errors import Problem
from links import joined, namespaces

pytestmark = pytest.mark.usefixtures("throttled_links")
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SHAPE = "--ranks 2 --rates 100 --layers 1 --d-model 64 --heads 2 --context 32 --sequences 2 --val-sequences 4"
HOLD = "import time; from links import joined\nwith joined(2): print(flush=True); time.sleep(60)"


class Program:
    """A process, and by a mark in their environment all that it starts."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.mark = f"TORCHDION_TEST={uuid.uuid4().hex}"
        marked = dict([self.mark.split("=")])
        path = os.pathsep.join([str(BENCHMARKS), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": path} | marked | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ranks(self) -> int:
        """How many of its processes are in a network namespace other than this one's."""
        return sum(namespace_of(process) not in (None, namespace_of("self")) for process in self.processes())

    def processes(self) -> list[str]:
        return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if self.mark in read(path)]

    def namespaces(self) -> list[str]:
        return [name for name in namespaces() if f"-{self.process.pid}-" in name]

    def assert_nothing_is_left(self) -> None:
        assert self.namespaces() == []
        wait_until(lambda: not self.processes())  # the kernel ends ranks when their parent is gone


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it ended in between
        return ""


def namespace_of(process: str) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return None


def wait_until(holds, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture
def started() -> Iterator[list[Program]]:
    """Ends the programs that a test puts in here."""
    programs: list[Program] = []
    yield programs
    for program in programs:
        program.process.kill()
        program.process.communicate()


@pytest.mark.long
def test_steps_are_timed_and_counted_over_links_that_limit(started: list[Program]) -> None:
    program = Program(str(BENCHMARKS / "slow_link.py"), *SHAPE.split(), "--steps", "7", "--rounds", "1")
    started.append(program)
    output, errors = program.process.communicate(timeout=200)
    assert (program.process.returncode, errors) == (0, "")
    program.assert_nothing_is_left()
    rows = {row["optimizer"]: row for row in map(json.loads, filter(lambda line: line[0] == "{", output.splitlines()))}
    assert len(rows) == 7
    assert 30 < rows["AdamW"]["measured Mbit/s"] <= 100
    for row in rows.values():
        assert row["AdamW / this"] == pytest.approx(rows["AdamW"]["seconds"] / row["seconds"], rel=1e-3)
        assert row["seconds"] > row["megabytes"] * 8 / 100 * 0.9  # nothing passes faster than the link
        parts = row["computation"], row["communication"]
        assert row["communication"] == pytest.approx(row["megabytes"] * 8 / row["measured Mbit/s"], rel=1e-3)
        for ratio, of in {"this / larger": max(parts), "this / sum": sum(parts)}.items():
            assert row[ratio] == pytest.approx(row["seconds"] / of, rel=1e-3)
    few, dense = rows["Dion r = d/16"], rows["Dion r = d/16, dense"]
    assert 1 < few["megabytes"] / few["counted megabytes"] < 1.3  # headers and acknowledgements
    assert dense["megabytes"] > dense["parameters"] * 4 / 1e6
    assert few["loss"] == pytest.approx(dense["loss"], abs=1e-3)


@pytest.mark.long
def test_a_run_that_is_asked_to_end_leaves_nothing(started: list[Program]) -> None:
    program = Program(str(BENCHMARKS / "slow_link.py"), *SHAPE.split(), "--steps", "100000")
    started.append(program)
    wait_until(lambda: program.ranks() == 2)
    assert len(program.namespaces()) == 3
    program.process.send_signal(signal.SIGTERM)
    _, errors = program.process.communicate(timeout=60)
    assert (program.process.returncode, errors) == (128 + signal.SIGTERM, "slow_link.py: ended by SIGTERM\n")
    program.assert_nothing_is_left()


def test_what_a_killed_run_left_goes_with_the_next_and_a_running_ones_links_stay(started: list[Program]) -> None:
    killed, running = Program("-c", HOLD), Program("-c", HOLD)
    started.extend((killed, running))
    for program in started:
        assert program.process.stdout is not None
        program.process.stdout.readline()
    killed.process.kill()
    killed.process.wait()
    assert len(killed.namespaces()) == 3
    with joined(2):
        assert (len(killed.namespaces()), len(running.namespaces())) == (0, 3)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=60) != 0
    running.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("programs", "problem"),
    [
        ((), "network namespaces need `ip` and `tc` (Debian's package iproute2); `ip` was not found"),
        (("ip", "tc"), "`ip netns list` failed (not permitted); links of limited rates need Linux and root's rights"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], problem: str
) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Problem) as caught, joined(2):
        pass
    assert (str(caught.value), caught.value.code) == (problem, 2)
