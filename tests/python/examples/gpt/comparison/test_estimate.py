"""How long a study still takes, by trainings that have ended."""

from pathlib import Path

import pytest
from comparison.cells import Cell, settings
from comparison.estimate import Estimate, cost, duration
from model import Shape, parameters

from .studies import read


def _cell(folder: Path, **replaced: str) -> Cell:
    asked = read(folder, **replaced)
    return next(settings(asked, asked.parts[0])).cell(0.01, 0)


def test_a_cost_is_tokens_times_parameters(tmp_path: Path) -> None:
    wide = _cell(tmp_path, widths="widths = [64]")
    assert cost(wide) == 8 * 32 * parameters(Shape(vocab=256, layers=1, d_model=64, heads=8))


def test_nothing_is_known_before_a_training_has_ended(tmp_path: Path) -> None:
    assert Estimate(2).seconds_left([_cell(tmp_path)]) is None


def test_a_wider_model_takes_as_much_longer_as_it_has_parameters(tmp_path: Path) -> None:
    narrow, wide = _cell(tmp_path), _cell(tmp_path, widths="widths = [64]")
    estimate = Estimate(1)
    estimate.learn(narrow, 8, 10.0)
    assert estimate.seconds_left([wide]) == pytest.approx(10.0 * cost(wide) / cost(narrow))
    estimate.learn(wide, 8, 30.0)
    assert estimate.seconds_left([narrow, wide, wide]) == pytest.approx(10.0 + 2 * 30.0)


def test_jobs_share_what_is_left_and_a_training_on_many_processes_takes_several(tmp_path: Path) -> None:
    alone = _cell(tmp_path)
    four = _cell(tmp_path, batches="batches = [64]\nflags = { dp = 4, clip = 0.0 }")
    assert four.processes == 4
    estimate = Estimate(2)
    estimate.learn(alone, 8, 10.0)
    assert estimate.seconds_left([alone, alone]) == pytest.approx(10.0)
    estimate.learn(four, 8, 60.0)
    assert estimate.seconds_left([four]) == pytest.approx(60.0)
    assert estimate.seconds_left([four, alone, alone]) == pytest.approx(70.0)


def test_steps_that_a_target_saved_count_for_trainings_with_targets_alone(tmp_path: Path) -> None:
    whole, early = _cell(tmp_path), _cell(tmp_path, validations="validations = 4\nuntil_loss = 2.0")
    estimate = Estimate(1)
    estimate.learn(early, 2, 10.0)
    assert estimate.seconds_left([early]) == pytest.approx(10.0)
    assert estimate.seconds_left([whole]) == pytest.approx(40.0)


def test_durations_are_for_people() -> None:
    assert [duration(seconds) for seconds in (50.2, 89.0, 720.0, 11520.0)] == ["50 s", "89 s", "12 min", "3.2 h"]
