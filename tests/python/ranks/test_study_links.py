"""benchmarks/study_links.py: a part's steps over links that limit, in the file that the study's report reads."""

import subprocess
import sys
from pathlib import Path

import pytest
from comparison import links
from errors import Problem
from links import joined

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "study_links.py"
STUDY = """
title = "A test"
[model]
layers = 1
context = 16
head_width = 8
[common]
val_sequences = 8
[contenders.Dense]
optimizer = "adamw"
rates = [0.01, 0.02, 0.04]
[contenders."Few r = d/4"]
optimizer = "dion"
rank_fraction = 0.25
compress = true
rates = [0.01, 0.02, 0.04]
[[parts]]
name = "replicas"
title = "Replicas"
contenders = ["Dense", "Few r = d/4"]
widths = [64]
batches = [32]
steps = 8
until_loss = 1.0
flags = { dp = 2, clip = 0.0 }
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces_can_be_made() -> None:
    try:
        with joined(1) as found:
            found.throttle(1e8)
    except Problem as problem:
        pytest.skip(str(problem))


def test_a_parts_steps_are_timed_over_links(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    command = [sys.executable, str(SCRIPT), str(path), "--part", "replicas", "--out", str(tmp_path), "--rounds", "2"]
    done = subprocess.run([*command, "--rates", "100"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row.contender: row for row in links.read(tmp_path)}
    assert set(rows) == {"Dense", "Few r = d/4"}
    for row in rows.values():
        assert (row.part, row.ranks, row.megabits) == ("replicas", 2, 100.0)
        assert row.planned_megabytes is not None
        assert 1 < row.megabytes / row.planned_megabytes < 1.5  # headers, and what the ranks agree on
        assert row.seconds > row.planned_megabytes * 8 / 100 * 0.9  # nothing passes faster than the link
    assert rows["Few r = d/4"].megabytes < rows["Dense"].megabytes


def test_an_unknown_part_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    command = [sys.executable, str(SCRIPT), str(path), "--part", "none", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (2, "study_links.py: the parts of study are replicas\n")
