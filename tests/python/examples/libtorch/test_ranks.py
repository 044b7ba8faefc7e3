"""The C++ example in several processes: the losses of one, one sentence when something fails, no process left over."""

import os
import re
import shlex
import signal
import subprocess
import time

import pytest
from libtorch_example import (
    SHAPE,
    TRAIN,
    TRAIN_IN_FOUR,
    TRAIN_WITH_MUON,
    checkpoint,
    ended_after,
    environment,
    losses,
    run,
    succeed,
)

WITH_OWNERS = f"{TRAIN_WITH_MUON.replace('muon', 'dist_adamw')} --lr 0.002"

pytestmark = pytest.mark.timeout(600)

IN_RANKS = [*SHAPE, "--steps", "20", "--clip", "0", "--validate-every", "10", "--checkpoint-every", "5",
            "--sample-length", "0"]  # fmt: skip


def printed_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]


@pytest.mark.parametrize(
    ("in_one", "in_four", "of_losses", "of_momenta"),
    [
        pytest.param(f"{TRAIN} --rank-fraction 0.25", TRAIN_IN_FOUR, 2e-4, 1e-4, id="dion"),
        # Muon's momenta are rounded to BF16 by each replica, and multiplied in it: on one process the same run ends
        # with momenta 5e-2 apart where a processor adds in another order, and these are 8e-2 apart.
        pytest.param(TRAIN_WITH_MUON, f"{TRAIN_WITH_MUON} --ranks 4", 1e-3, 0.15, id="muon"),
        # Gradients that FP32 sums in another order; AdamW divides them by their own size.
        pytest.param(WITH_OWNERS, f"{WITH_OWNERS} --ranks 4", 2e-4, 2e-3, id="dist_adamw", marks=pytest.mark.long),
    ],
)
def test_four_processes_train_to_the_losses_of_one_and_the_first_alone_prints(
    place, tmp_path, in_one, in_four, of_losses, of_momenta
):
    one = succeed(place, in_one, *IN_RANKS, "--run", str(tmp_path / "one"))
    four = succeed(place, in_four, *IN_RANKS, "--run", str(tmp_path / "four"))
    assert [line.split(":")[0] for line in four.splitlines()] == [line.split(":")[0] for line in one.splitlines()]
    assert len(printed_losses(one)) == 20 + 2
    assert printed_losses(four) == pytest.approx(printed_losses(one), abs=of_losses)  # of 5.5 to 3, printed to 1e-4
    states = [checkpoint(tmp_path / run, 20)["optimizer"]["state"] for run in ("one", "four")]
    for index, state in states[0].items():
        error = (states[1][index]["momentum"] - state["momentum"]).norm() / state["momentum"].norm()
        assert error < of_momenta


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(TRAIN_IN_FOUR, id="dion"),
        pytest.param(f"{TRAIN} --ranks 2 --optimizer double_dion --delayed on", id="delayed", marks=pytest.mark.long),
    ],
)
def test_interrupted_processes_agree_on_a_step_and_go_on_as_the_whole_run(place, tmp_path, train):
    whole = losses(succeed(place, train, *IN_RANKS, "--run", str(tmp_path / "whole")))
    command = [*shlex.split(train), *IN_RANKS, "--run", str(tmp_path / "stopped")]
    status, output = ended_after(place, "step 7/20: loss", lambda process: process.terminate(), *command)
    assert status == 128 + signal.SIGTERM
    *begun, last = losses(output)
    match = re.fullmatch(r"interrupted after step (\d+); to go on: (.*)", last)
    assert match is not None and 7 <= int(match[1]) < 20
    _, *rest = losses(succeed(place, match[2]))
    # The interruption averaged the momenta at another step than the whole run did.
    assert printed_losses("\n".join([*begun, *rest])) == pytest.approx(printed_losses("\n".join(whole)), abs=2e-4)


def test_processes_that_fail_say_so_once(place):
    done = run(place, TRAIN_IN_FOUR, *SHAPE, "--run", "failing four", "--lr", "1e300")
    assert re.fullmatch(r"train: the loss is not finite after \d steps; a lower --lr may help\n", done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("after", [0.0, 0.1, 0.5])
def test_processes_interrupted_before_the_first_step_end_at_once_with_one_sentence(place, number, after):
    folder = f"early {number.name} {after}"
    command = [*shlex.split(TRAIN_IN_FOUR), *IN_RANKS, "--steps", "2000", "--run", folder]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=place, env=environment(), start_new_session=True, **output)
    while process.poll() is None and not subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True).stdout:
        pass  # reading the text
    time.sleep(after)
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    printed = [line for line in (out + error).splitlines() if not line.startswith("step ")]
    assert len(printed) == 1 and re.match(r"train: interrupted$|interrupted after step \d+; to go on", printed[0])
    assert subprocess.run(["pgrep", "-f", folder], capture_output=True).stdout == b""


def test_no_process_outlives_one_that_is_killed(place):
    def processes(*pattern: str) -> list[int]:
        return [int(line) for line in subprocess.run(["pgrep", *pattern], capture_output=True).stdout.split()]

    def kill_the_last(process: subprocess.Popen[str]) -> None:
        children = processes("-P", str(process.pid))
        assert len(children) == 4
        os.kill(max(children), signal.SIGKILL)

    command = [*shlex.split(TRAIN_IN_FOUR), *IN_RANKS, "--steps", "2000", "--run", "killed four"]
    status, output = ended_after(place, "step 1/2000: loss", kill_the_last, *command)
    assert status in (1, 128 + signal.SIGKILL)  # of another that found its peer gone, or of its own
    assert "step 2000/2000" not in output
    assert processes("-f", "killed four") == []


def test_more_processes_than_there_are_cores_and_memory_for_are_refused_before_any_starts(place):
    flags = ["--ranks", "300", "--batch", "300", "--run", "refused"]
    done = run(place, f"taskset --cpu-list 0 {TRAIN}", *flags)
    match = re.fullmatch(
        r"train: --ranks must be at most (\d+), for which there are cores and memory, got 300\n", done.stderr
    )
    assert match and 1 <= int(match[1]) <= 16
    assert done.returncode == 2
    assert not (place / "refused").exists()
