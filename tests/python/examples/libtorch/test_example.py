"""The C++ example: built and run by its README's own commands; what stops a run does not change its losses."""

import itertools
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from libtorch_example import (
    PYTHON,
    RESUME,
    ROOT,
    SHAPE,
    TRAIN,
    TRAIN_WITH_MUON,
    TRAIN_WITH_RESIDUAL,
    checkpoint,
    ended_after,
    environment,
    losses,
    run,
    succeed,
)
from long_cases import some_of
from same import assert_same
from torch.nn import functional as F

from torchdion import _C

SHORT = ["--layers", "2", "--d-model", "64", "--context", "64", "--batch", "32", "--steps", "60"]
DUE = ["--checkpoint-every", "7", "--validate-every", "10", "--validation-windows", "32", "--sample-length", "40"]

OF_README = "runs/libtorch/checkpoint-00000200.pt"  # after all steps of its third command

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def briefly_trained(place: Path) -> str:
    """What its third command prints, of a smaller model and fewer steps."""
    return succeed(place, TRAIN, *SHAPE, "--steps", "30", "--run", "runs/brief")


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> tuple[list[str], dict[str, Any]]:
    """The losses and the text of a whole run, and the checkpoint at its end."""
    printed = losses(succeed(place, TRAIN, *SHORT, *DUE, "--run", "whole"))
    assert len(printed) > 20 + 6
    return printed, checkpoint(place / "whole", 60)


def held_out(place: Path) -> bytes:
    text = (place / "build" / "library.txt").read_bytes()
    return text[len(text) - len(text) // 10 :]


def entropy(counts: Counter[Any]) -> float:
    return -sum(count / counts.total() * math.log(count / counts.total()) for count in counts.values())


def validation_loss(output: str) -> float:
    return float(re.findall(r"^step (\d+)/\1: validation loss ([\d.]+)$", output, re.MULTILINE)[-1][1])


@pytest.mark.long
def test_the_readme_trains_to_a_loss_that_no_table_of_byte_pairs_reaches(place):
    output = succeed(place, TRAIN, *SHAPE, "--validate-every", "200")
    text = held_out(place)
    given_the_last_byte = entropy(Counter(itertools.pairwise(text))) - entropy(Counter(text))
    assert 2.2 < given_the_last_byte < 2.6  # of the held-out text's own pairs, so no table does better
    assert validation_loss(output) < given_the_last_byte - 0.2
    assert (place / OF_README).exists()


def test_each_line_gives_loss_speed_and_the_time_of_the_optimizer(briefly_trained):
    line = r"^step (\d+)/30: loss (\d\.\d{4}), (\d+) tokens/s, optimizer (\d+\.\d) ms$"
    lines = re.findall(line, briefly_trained, re.MULTILINE)
    assert [int(line[0]) for line in lines] == list(range(1, 31))
    assert abs(float(lines[0][1]) - math.log(256)) < 0.2
    assert min(float(line[3]) for line in lines) > 0


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            f"{TRAIN} --rank-fraction 0.25 --residual scaled --right-factor orthonormal",
            {"residual": "scaled", "right_factor": "orthonormal"},
        ),
        (TRAIN_WITH_RESIDUAL, {"residual": "sign", "error_feedback": False}),
    ],
)
def test_flags_of_dions_residual_are_options_of_its_matrices(place, command, options):
    run = f"runs/{options['residual']}"
    succeed(place, command, *SHORT, *DUE, "--steps", "10", "--run", run)
    groups = checkpoint(place / run, 10)["optimizer"]["param_groups"]
    [of_matrices] = [group for group in groups if group["algorithm"] == "dion"]
    assert {name: of_matrices.get(name) for name in options} == options


def test_a_terminal_gets_one_line_that_renews_itself(place):
    controller, terminal = pty.openpty()
    command = [
        place / "build" / "libtorch" / "train",
        "build/library.txt",
        *SHAPE,
        "--steps",
        "30",
        "--run",
        "terminal",
    ]
    process = subprocess.Popen(command, cwd=place, env=environment(), stdout=terminal)
    os.close(terminal)
    output = b""
    try:
        while some := os.read(controller, 4096):
            output += some
    except OSError:  # EIO: the other end is closed
        pass
    os.close(controller)
    assert process.wait(timeout=60) == 0
    assert output.count(b"\r\x1b[Kstep ") == 30 + 1  # steps and the validation
    assert re.findall(rb"step (\d+)/30: loss", output) == [b"%d" % step for step in range(1, 31)]
    assert b"step 30/30: validation loss" in output


def test_python_reads_weights_and_optimizer_and_finds_the_same_validation_loss(place, briefly_trained, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict[str, Any] = {}
    assert OF_README in PYTHON
    exec(compile(PYTHON.replace(OF_README, "runs/brief/checkpoint-00000030.pt"), "README.md", "exec"), names)
    model, optimizer, saved = names["model"], names["optimizer"], names["saved"]
    assert_same(optimizer.state_dict()["state"], saved["optimizer"]["state"])
    assert {int(state["step"]) for state in optimizer.state_dict()["state"].values()} == {30}
    assert [group["algorithm"] for group in optimizer.param_groups] == ["dion", "lion", "lion"]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(saved["model"])

    text = torch.frombuffer(bytearray(held_out(place)), dtype=torch.uint8).long()
    windows = torch.stack(
        [text[i * 64 : i * 64 + 65] for i in (k * ((len(text) - 1) // 64) // 256 for k in range(256))]
    )
    with torch.no_grad():
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).item()
    assert loss == pytest.approx(validation_loss(briefly_trained), abs=1e-4)


def stopped(place: Path, number: signal.Signals, *flags: str) -> tuple[int, str]:
    """Exit status and output of a run that gets a signal after step 12."""
    command = [*shlex.split(TRAIN), *SHORT, *DUE, *flags]
    return ended_after(place, "step 12/60: loss", lambda process: process.send_signal(number), *command)


def test_a_killed_run_that_is_resumed_is_the_whole_run(place, uninterrupted):
    status, output = stopped(place, signal.SIGKILL, "--run", "killed")
    assert status == -signal.SIGKILL
    assert "step 60/60" not in output
    unfinished = place / "killed" / "checkpoint-00000042.pt.123.tmp"
    unfinished.write_bytes(b"half a checkpoint")
    first, *rest = losses(succeed(place, RESUME, *DUE, "--run", "killed"))
    match = re.fullmatch(r"resuming killed after step (\d+)", first)
    assert match is not None and int(match[1]) >= 7 and int(match[1]) % 7 == 0
    printed, state = uninterrupted
    assert rest == printed[-len(rest) :]
    assert_same(checkpoint(place / "killed", 60), state)


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.long)],
)
def test_an_interrupted_run_says_how_to_go_on_and_is_the_whole_run_then(place, uninterrupted, number):
    folder = f"a run's end by {number.name}"
    status, output = stopped(place, number, "--run", folder)
    assert status == 128 + number
    *begun, last = losses(output)
    match = re.fullmatch(r"interrupted after step (\d+); to go on: (.*)", last)
    assert match is not None and 12 <= int(match[1]) < 60
    checkpoint(place / folder, int(match[1]))
    _, *rest = losses(succeed(place, match[2]))
    printed, state = uninterrupted
    assert [*begun, *rest] == printed
    assert_same(checkpoint(place / folder, 60), state)


def test_muon_learns_and_goes_on_after_a_kill_as_the_whole_run(place, monkeypatch):
    flags = [*SHAPE, "--newton-schulz", "gram", "--ns-steps", "6", "--steps", "30", "--checkpoint-every", "7"]
    printed = losses(succeed(place, TRAIN_WITH_MUON, *flags, "--run", "whole-muon"))
    train_losses = [float(loss) for loss in re.findall(r"step \d+/30: loss ([\d.]+)", "\n".join(printed))]
    assert train_losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert train_losses[-1] < train_losses[0] - 2

    command = [*shlex.split(TRAIN_WITH_MUON), *flags, "--run", "killed-muon"]
    status, _ = ended_after(place, "step 12/30: loss", lambda process: process.kill(), *command)
    assert status == -signal.SIGKILL
    _, *rest = losses(succeed(place, RESUME, *flags[-2:], "--run", "killed-muon"))
    assert rest == printed[-len(rest) :]
    state = checkpoint(place / "whole-muon", 30)
    assert_same(checkpoint(place / "killed-muon", 30), state)

    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict[str, Any] = {}
    in_python = PYTHON.replace("Dion", "Muon").replace(OF_README, "whole-muon/checkpoint-00000030.pt")
    exec(compile(in_python, "README.md", "exec"), names)
    assert_same(names["optimizer"].state_dict()["state"], state["optimizer"]["state"])
    matrices, *others = names["optimizer"].param_groups
    assert (matrices["algorithm"], matrices["newton_schulz"], matrices["ns_steps"]) == ("muon", "gram", 6)
    assert [group["algorithm"] for group in others] == ["lion", "lion"]


@pytest.mark.parametrize(
    "optimizer",
    some_of(
        ["normuon", "dion2", "dion3", "double_dion", "demo", "lion", "adamw", "dist_muon", "dist_adamw"],
        ["dion3", "double_dion", "dist_muon"],
    ),
)
def test_every_other_optimizer_learns_and_names_itself(place, optimizer):
    flags = [*SHAPE, "--optimizer", optimizer, "--lr", "0.002", "--steps", "12", "--checkpoint-every", "12"]
    printed = losses(succeed(place, TRAIN, *flags, "--run", f"whole-{optimizer}"))
    train_losses = [float(loss) for loss in re.findall(r"step \d+/12: loss ([\d.]+)", "\n".join(printed))]
    assert train_losses[-1] < train_losses[0] - 0.3
    matrices, *_ = checkpoint(place / f"whole-{optimizer}", 12)["optimizer"]["param_groups"]
    assert matrices["algorithm"] == optimizer.removeprefix("dist_")


def test_a_run_that_is_prolonged_goes_on_with_its_flags(place, uninterrupted):
    shutil.copytree(place / "whole", place / "prolonged")
    assert "has all of its 60 steps already" in succeed(place, RESUME, "--run", "prolonged")
    output = succeed(place, RESUME, "--run", "prolonged", "--steps", "64")
    assert re.findall(r"^step (\d+)/64: loss", output, re.MULTILINE) == ["63", "64"]
    assert checkpoint(place / "prolonged", 64)["recipe"] == uninterrupted[1]["recipe"] | {"steps": 64}


def test_a_run_goes_on_with_the_random_state_of_a_checkpoint_that_python_wrote(place, uninterrupted):
    (place / "random").mkdir()
    drawn = torch.Generator().manual_seed(5).get_state()
    torch.save(uninterrupted[1] | {"random": drawn}, place / "random" / "checkpoint-00000060.pt")
    for folder in ("random", "other"):
        if folder == "other":
            shutil.copytree(place / "whole", place / folder)
        succeed(place, RESUME, "--run", folder, "--steps", "61", "--sample-length", "0")
    random, other = (checkpoint(place / folder, 61) for folder in ("random", "other"))
    assert torch.equal(random["random"], drawn)
    assert not torch.equal(other["random"], drawn)
    assert_same(random["model"], other["model"])


REFUSED = {
    "": "a text file is expected, as in: train text.txt; --help lists the flags",
    "absent.txt": "there is no file absent.txt",
    "build": "build is no file",
    "short.txt": "short.txt has 1000 bytes, but --context 256 needs at least 2570, as the last tenth is for validation",
    "short.txt short.txt": "one text is expected, got 'short.txt' and 'short.txt'",
    "text.txt --step 5": "--step is no flag; --help lists them",
    "text.txt -x": "-x is no flag; --help lists them",
    "text.txt --steps": "--steps needs a value after it",
    "text.txt --steps many": "--steps must be a whole number of at least 1 and at most 2147483647, got 'many'",
    "text.txt --steps 5.5": "--steps must be a whole number of at least 1 and at most 2147483647, got '5.5'",
    "text.txt --steps 0": "--steps must be a whole number of at least 1 and at most 2147483647, got '0'",
    "text.txt --lr 0": "--lr must be a number above 0, got '0'",
    "text.txt --lr nan": "--lr must be a number above 0, got 'nan'",
    "text.txt --lr 1e999": "--lr must be a number above 0, got '1e999'",
    "text.txt --rank-fraction 1.5": "--rank-fraction must be a number above 0 and at most 1, got '1.5'",
    "text.txt --warmup -0.1": "--warmup must be a number of at least 0 and at most 1, got '-0.1'",
    "text.txt --heads 3": "--d-model must be a multiple of twice --heads, as rotary positions turn pairs, got 128 and "
    "3 heads",
    "text.txt --ranks 0": "--ranks must be a whole number of at least 1 and at most 1024, got '0'",
    "text.txt --ranks 3": "--batch must be a multiple of --ranks, got 32 and 3",
    "text.txt --device gpu": "--device must be cpu or cuda, got 'gpu'",
    "text.txt --optimizer sgd": (
        "--optimizer must be dion, double_dion, muon, normuon, dion2, dion3, demo, lion, adamw, dist_muon or "
        "dist_adamw, got 'sgd'"
    ),
    "text.txt --newton-schulz gram": "--newton-schulz has no effect with --optimizer dion",
    "text.txt --optimizer muon --newton-schulz 5": (
        "--newton-schulz must be auto, jordan, polar_express or gram, got '5'"
    ),
    "text.txt --optimizer dion2 --nesterov on": "--nesterov has no effect with --optimizer dion2",
    "text.txt --residual signs": "--residual must be none, scaled or sign, got 'signs'",
    "text.txt --optimizer muon --residual sign": "--residual has no effect with --optimizer muon",
    "text.txt --right-factor qr": "--right-factor must be normalized or orthonormal, got 'qr'",
    "text.txt --optimizer muon --error-feedback off": "--error-feedback has no effect with --optimizer muon",
    "text.txt --fraction 0.5": "--fraction has no effect with --optimizer dion",
    "text.txt --delayed on": "--delayed has no effect with --optimizer dion",
    "text.txt --optimizer muon --ns-steps 0": "--ns-steps must be a whole number of at least 1 and at most 99, got '0'",
    "text.txt --optimizer muon --rank-fraction 0.5": "--rank-fraction has no effect with --optimizer muon",
    "text.txt --device": "--device needs a value after it",
    "text.txt --run ''": "--run must name a folder, got ''",
    "text.txt --resume --overwrite": "--resume and --overwrite exclude each other",
    "text.txt --run whole": "whole holds a run already; give --resume, --overwrite or another --run",
    "text.txt --run whole --resume": "text.txt is not the text of the run to be resumed",
    "text.txt --run whole --resume --lr 0.5": "--lr is 0.02 in the run to be resumed, got 0.5",
    "text.txt --run whole --resume --optimizer muon": "--optimizer is dion in the run to be resumed, got muon",
    "text.txt --run damaged --resume": "damaged/checkpoint-00000060.pt is damaged or no checkpoint of this program; "
    "--overwrite starts the run afresh",
}

if not _C.has_kernels_for("cuda"):
    REFUSED["text.txt --device cuda"] = "--device cuda needs a torchdion that was built with nvcc, and this one was not"
elif not torch.cuda.is_available():
    REFUSED["text.txt --device cuda"] = "--device cuda: 1 process needs 1 GPU, and 0 were found"
    REFUSED["text.txt --device cuda --ranks 2"] = "--device cuda: 2 processes need 1 GPU, and 0 were found"


@pytest.fixture(scope="module")
def wrong(place: Path, uninterrupted: object) -> Path:
    """Files that arguments may name wrongly."""
    (place / "short.txt").write_bytes(b"x" * 1000)
    (place / "text.txt").write_bytes(b"some text " * 1000)
    (place / "damaged").mkdir()
    whole = (place / "whole" / "checkpoint-00000060.pt").read_bytes()
    (place / "damaged" / "checkpoint-00000060.pt").write_bytes(whole[: len(whole) // 2])
    return place


@pytest.mark.parametrize("arguments", some_of(REFUSED, list(REFUSED)[::6]))
def test_a_wrong_argument_is_refused_in_one_sentence_with_status_2(wrong, arguments):
    done = run(wrong, f"build/libtorch/train --run refused {arguments}")
    assert done.stderr == f"train: {REFUSED[arguments]}\n"
    assert done.stdout == ""
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lr", "1e300"], r"train: the loss is not finite after \d steps; a lower --lr may help\n"),
        (["--run", "/dev/null/run"], r"train: /dev/null/run: Not a directory\n"),
    ],
)
def test_a_run_that_fails_says_so_in_one_sentence_with_status_1(wrong, arguments, sentence):
    done = run(wrong, "build/libtorch/train text.txt", *SHAPE, "--run", "failing", *arguments)
    assert re.fullmatch(sentence, done.stderr)
    assert done.returncode == 1


def test_help_lists_every_flag_that_the_program_takes(place):
    flags = set(re.findall(r"^  (--[\w-]+)", succeed(place, "build/libtorch/train --help"), re.MULTILINE))
    source = (ROOT / "examples" / "libtorch" / "options.cpp").read_text()
    named = {"--" + name.replace("_", "-") for name in re.findall(r'\{"(\w+)",\s*&', source)}
    assert flags == named | {"--run", "--resume", "--overwrite"}
