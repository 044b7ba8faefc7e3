"""examples/gpt/compare.py as a user runs it: to its end, for a list or a report alone, and given wrong arguments."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import compare as compare_script
import pytest
from comparison import study
from comparison.command import check_gpus
from errors import Problem

from .programs import CHECKPOINTS, COMPARE, FIGURES, compare
from .studies import written

Outcome = Callable[..., tuple[int, str, str]]


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


@pytest.mark.long
def test_the_report_is_drawn_anew_without_training(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    for path in (tmp_path / "out").glob("report.*"):
        path.unlink()
    done = compare(written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out", "--report")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").read_bytes() == (finished / "report.html").read_bytes()


def test_what_would_be_trained_is_listed(tmp_path: Path, outcome: Outcome) -> None:
    code, listed, _ = outcome(
        compare_script.main, written(tmp_path, CHECKPOINTS), "--out", tmp_path / "out", "--dry-run"
    )
    assert code == 0
    assert listed.splitlines()[1:] == [
        f"{name}: 10 trainings, 0.00256 million tokens; if every grid grows, about 10 trainings, 0.00256 million tokens"
        for name in ("one", "in all")
    ]
    assert not (tmp_path / "out").exists()


OWN = """
import torch

def failing(model, *, lr=0.5):
    return "no optimizer"

def sgd(model, *, lr=0.5):
    return torch.optim.SGD(model.parameters(), lr=lr)
"""


@pytest.mark.long
def test_a_training_that_fails_ends_the_study_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = CHECKPOINTS.replace('optimizer = "adamw"', f'optimizer = "{tmp_path}/own.py:failing"')
    done = compare(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 1
    sentence = "compare.py: a training failed: .*failing must return a torch.optim.Optimizer, or a list of them .*\n"
    assert re.fullmatch(sentence, done.stderr)


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


@pytest.mark.long
def test_an_optimizer_of_ones_own_is_compared(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = (
        CHECKPOINTS.replace('optimizer = "adamw"', f'optimizer = "{tmp_path}/own.py:sgd"')
        .replace("seeds = 2", "seeds = 1")
        .replace(FIGURES, 'figures = ["costs"]')
    )
    done = compare(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.md").read_text()
    assert re.search(r"\| 1–2 \| A \| \d\.\d{3} \|", page)
    assert (tmp_path / "out" / "figures" / "one-costs.svg").exists()


def test_data_that_are_not_there_are_said_before_anything_is_trained(tmp_path: Path, outcome: Outcome) -> None:
    text = CHECKPOINTS.replace("context = 16", 'context = 16\ndata = "shards/*.bin"\nvocab = 256')
    code, _, said = outcome(compare_script.main, written(tmp_path, text), "--out", tmp_path / "out")
    assert code == 2
    assert re.fullmatch(r"script.py: .*shards/\*.bin.*\n", said)


WRONG = {
    ("nothing",): "the studies here are",
    ("small", "--parts", "one"): "the parts of small are all, batch; 'one' is none of them",
    ("small", "--report"): "holds no rows to report",
    ("small", "--hours", "0"): "argument --hours: must be a number above 0",
    ("small", "--jobs", "0"): "argument --jobs: must be a whole number of at least 1",
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.items(), ids=[" ".join(arguments) for arguments in WRONG])
def test_wrong_arguments_are_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, outcome: Outcome
) -> None:
    code, _, said = outcome(compare_script.main, *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert said.startswith(("script.py: ", "compare.py: "))  # the script's name, or that of its parser
    assert sentence in said
    assert len(said.splitlines()) == 1
