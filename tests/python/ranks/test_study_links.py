"""benchmarks/study_links.py: a part's steps over links that limit, in the file that the study's report reads."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import study_links
from comparison import links

from ..examples.gpt.comparison.studies import SMALL, written

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "study_links.py"
COMPRESSED = SMALL.replace("rank_fraction = 0.5", "rank_fraction = 0.5\ncompress = true")
STUDY = COMPRESSED.replace("widths = [16]", "widths = [64]") + "until_loss = 1.0\nflags = { dp = 2, clip = 0.0 }\n"


@pytest.mark.long
@pytest.mark.usefixtures("throttled_links")
def test_a_parts_steps_are_timed_over_links(tmp_path: Path) -> None:
    flags = ["--out", str(tmp_path), "--part", "one", "--rounds", "2", "--rates", "100"]
    command = [sys.executable, str(SCRIPT), str(written(tmp_path, STUDY)), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row.contender: row for row in links.read(tmp_path)}
    assert set(rows) == {"A", "B r = d/2"}
    for row in rows.values():
        assert (row.part, row.ranks, row.megabits) == ("one", 2, 100.0)
        assert row.planned_megabytes is not None
        assert 1 < row.megabytes / row.planned_megabytes < 1.5  # headers, and what the ranks agree on
        assert row.seconds > row.planned_megabytes * 8 / 100 * 0.9  # nothing passes faster than the link
    assert rows["B r = d/2"].megabytes < rows["A"].megabytes


def test_an_unknown_part_is_one_sentence(tmp_path: Path, outcome: Callable[..., tuple[int, str, str]]) -> None:
    code, _, said = outcome(study_links.main, written(tmp_path, STUDY), "--out", tmp_path, "--part", "none")
    assert (code, said) == (2, "script.py: the parts of study are one\n")
