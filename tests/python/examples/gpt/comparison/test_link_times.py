"""examples/gpt/comparison/links.py: times of steps over links, in the report of a study."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from comparison import links, report, summary
from comparison.cells import settings
from comparison.links import LinkTime
from comparison.results import Results
from comparison.step_times import timed
from comparison.study import Study

from .studies import SMALL, TARGETS, loss_of, read, run, steps_of


@pytest.fixture
def asked(tmp_path: Path) -> Study:
    return read(tmp_path, SMALL + TARGETS)


@pytest.fixture
def results(asked: Study, tmp_path: Path) -> Results:
    found = Results(tmp_path, {"torch": "9"})
    run(asked, found, loss_of)
    return found


def test_links_make_steps_to_a_target_seconds_and_megabytes(asked: Study, results: Results, tmp_path: Path) -> None:
    setting = next(settings(asked, asked.parts[1]))  # A at the smaller batch
    of_link = LinkTime(timed(setting), "two", "A", 4, 100.0, 0.25, 0.2, 1.2, 1.0, 80.0)
    (tmp_path / links.NAME).write_text(json.dumps(asdict(of_link)) + "\n")
    assert links.read(tmp_path) == [of_link]
    assert of_link.modelled == (0.2, pytest.approx(0.3))  # 1 MB at 80 Mbit/s take 0.1 s
    rows = summary.groups(asked, asked.parts[1], results)[0].rows
    [found] = links.to_target(links.read(tmp_path), rows)
    steps = next(row.mean for row in rows if row.name == "A")
    assert found.seconds.value == pytest.approx(steps.value * 0.25)
    assert found.megabytes.value == pytest.approx(steps.value * 1.0)
    report.write(asked, results, tmp_path)
    assert (tmp_path / "figures" / "two-links.svg").exists()
    assert "Over links, 4 ranks" in (tmp_path / "report.md").read_text()


def test_a_link_of_one_setting_says_nothing_of_another(asked: Study, results: Results, tmp_path: Path) -> None:
    large = list(settings(asked, asked.parts[1]))[3]
    assert (large.contender.name, large.batch) == ("B r = d/2", 64)
    of_link = LinkTime(timed(large), "two", large.contender.name, 4, 100.0, 0.25, 0.2, 1.2, 1.0, 80.0)
    rows = [row for group in summary.groups(asked, asked.parts[1], results) for row in group]
    [found] = links.to_target([of_link], rows)
    assert found.seconds.value == next(row.mean.value for row in rows if row.setting == large) * 0.25
    other = read(tmp_path, (SMALL + TARGETS).replace("layers = 1", "layers = 2"))
    run(other, results, loss_of)
    rows = [row for group in summary.groups(other, other.parts[1], results) for row in group]
    assert rows
    assert links.to_target([of_link], rows) == []


def test_a_link_of_one_part_says_nothing_of_another(asked: Study, results: Results, tmp_path: Path) -> None:
    setting = next(settings(asked, asked.parts[1]))
    of_link = LinkTime(timed(setting), "three", "A", 4, 100.0, 0.25, 0.2, 1.2, 1.0, 80.0)
    rows = [row for group in summary.groups(asked, asked.parts[1], results) for row in group]
    assert links.to_target([of_link], rows) == []
    assert links.to_target([replace(of_link, part="two")], rows)


def test_the_table_of_links_has_seconds_and_megabytes_to_the_target(tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL[: SMALL.index("[[parts]]")] + TARGETS.replace("batches = [32, 64]", "batches = [32]"))
    results = Results(tmp_path, {})
    run(asked, results, steps_of({"adamw": (200, 200, 200), "dion": (100, 100, 100)}))
    rows = [LinkTime(timed(setting), "two", setting.contender.name, 4, 1000.0, 0.5, 0.4, 3.2, 3.0, 80.0)
            for setting in settings(asked, asked.parts[0])]  # fmt: skip
    (tmp_path / links.NAME).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    report.write(asked, results, tmp_path)
    text = (tmp_path / "tables.txt").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("1 Gbit/s  A ")]
    # 3 MB at 80 Mbit/s take 0.3 s beside 0.4 s of computation; 200 steps of 0.5 s and 3 MB.
    assert re.split(r"  +", line) == ["1 Gbit/s", "A", "0.500", "0.400 to 0.700", "100 ± 0", "600 ± 0"]
