"""python -m torchdion demo, as a user runs it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from torchdion.__main__ import main
from torchdion.demonstration import command, optimizers, picture


def demo(*arguments: str) -> int:
    try:
        return main(["demo", *arguments])
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "sample", lambda model, vocabulary, seed: "Return.")  # which takes a second
    return tmp_path


def test_it_prints_losses_samples_and_a_comparison_and_draws_them(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "torchdion", "demo", "--steps", "3", "--optimizer", "muon"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^ *(\d+) +(\d\.\d{3}) +(\d\.\d{3})$", done.stdout, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    assert all(6 < float(loss) < 8 for row in rows for loss in row[1:])  # ln 2048 = 7.6
    assert done.stdout.count("it writes:\n\n    Return") == 2
    [line] = [line for line in done.stdout.splitlines() if "nats per token after 3 steps" in line]
    assert line.startswith("torchdion.Muon ")
    assert {rows[-1][1], rows[-1][2]} <= set(re.findall(r"\d\.\d{3}", line))
    assert "picture: torchdion-demo.svg\n" in done.stdout
    content = (tmp_path / "torchdion-demo.svg").read_text()
    assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    assert "torch.optim.AdamW" in content


def test_what_next_has_the_options_of_the_dion_that_was_shown() -> None:
    said = command.WHAT_NEXT.replace("'", '"')
    assert all(f"{name}={value!r}".replace("'", '"') in said for name, value in optimizers.DION.items())


def test_its_own_picture_is_drawn_anew_and_no_other_file_is_touched(here: Path, capsys) -> None:
    for _ in range(2):
        assert demo("--steps", "1", "--plot", "mine.svg") == 0
    assert picture.CREATOR in (here / "mine.svg").read_text()
    capsys.readouterr()
    (here / "mine.svg").write_text("<svg/>")
    assert demo("--steps", "1", "--plot", "mine.svg") == 2
    assert capsys.readouterr().err == (
        "python -m torchdion demo: argument --plot: must not be a file that the demo has not drawn, got mine.svg\n"
    )
    assert (here / "mine.svg").read_text() == "<svg/>"


def test_without_a_plot_nothing_is_written(here: Path, capsys) -> None:
    assert demo("--steps", "1", "--no-plot") == 0
    assert "picture" not in capsys.readouterr().out
    assert list(here.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert demo("--steps", "1") == 0
    assert "A picture of both needs matplotlib: pip install matplotlib.\n" in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--steps 0", "argument --steps: must be a whole number from 1 to below a million, got '0'"),
        ("--seed -1", "argument --seed: must be a whole number from 0 to below a million, got '-1'"),
        ("--seed x", "argument --seed: must be a whole number from 0 to below a million, got 'x'"),
        ("--optimizer sgd", "argument --optimizer: invalid choice: 'sgd'"),
        ("--device tpu", "argument --device: invalid choice: 'tpu'"),
        ("--plot loss.png", "argument --plot: must end in .svg, got loss.png"),
        ("--plot nowhere/loss.svg", "argument --plot: must be in a folder that can be written to, got nowhere"),
        ("--plot loss.svg --no-plot", "argument --no-plot: not allowed with argument --plot"),
        ("--step 1", "unrecognized arguments: --step 1"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence_with_status_2(
    arguments: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(*arguments.split()) == 2
    captured = capsys.readouterr()
    [sentence] = captured.err.splitlines()
    assert words in sentence
    assert captured.out == ""


def test_a_gpu_that_is_not_there_is_refused(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert demo("--device", "cuda") == 2
    assert capsys.readouterr().err.endswith("must be cpu, as no GPU was found, got cuda\n")


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_it_trains_on_a_gpu_where_there_is_one_that_it_was_built_for(
    is_there: bool, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    monkeypatch.setattr(command._C, "has_kernels_for", lambda device: has_kernels and device == "cuda")
    assert command.parser().parse_args([]).device == ("cuda" if is_there and has_kernels else "cpu")


def test_a_python_without_docstrings_is_said_so(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(here)})
    assert demo("--steps", "1") == 1
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.startswith("python -m torchdion demo: no docstrings of the standard library")


def test_ctrl_c_ends_it_with_one_line_and_status_130(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # it may be ignored, as in the background of a shell
    try:
        assert demo("--steps", "1") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "python -m torchdion demo: interrupted\n"
    assert list(here.iterdir()) == []


ROWS = ["step  torchdion.Dion  torch.optim.AdamW\n", "  20           5.694              5.583\n"]


def show() -> None:
    table = command.Table(240, ["torchdion.Dion", "torch.optim.AdamW"])
    table.show(19)
    table.row(20, [5.69409, 5.583])


def test_without_a_terminal_rows_alone_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show()
    assert capsys.readouterr().out == "".join(ROWS)


def test_a_terminal_sees_the_step_until_a_row_takes_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show()
    assert capsys.readouterr().out == "19 of 240\r".join(ROWS)
