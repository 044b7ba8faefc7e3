"""examples/gpt/comparison/results.py: rows that are whole, sorted, and of one kind."""

import json
import math
from pathlib import Path

import pytest
from comparison.cells import Cell
from comparison.results import Result, Results, of_log
from errors import Problem


def cell(seed: int) -> Cell:
    return Cell(json.dumps({"lr": 0.1, "seed": seed}))


def test_steps_to_a_target_are_linear_between_validations() -> None:
    result = Result(((10, 3.0), (20, 2.0), (30, 2.2), (40, 1.0)))
    assert result.steps_to(2.25) == 17.5
    assert result.steps_to(2.0) == 20
    assert result.steps_to(1.3) == pytest.approx(37.5)
    assert result.steps_to(3.5) == 10
    assert result.steps_to(0.9) == math.inf


def test_a_loss_that_diverged_is_infinite() -> None:
    assert Result(((10, 3.0),), diverged_at=12).loss == math.inf


def test_rows_are_read_back_and_do_not_tell_in_which_order_they_came(tmp_path: Path) -> None:
    texts = []
    for order in ((0, 1, 2), (2, 0, 1)):
        (tmp_path / "cells.jsonl").unlink(missing_ok=True)
        results = Results(tmp_path, {"torch": "9"})
        for seed in order:
            results.add(cell(seed), Result(((5, 1.5 + seed),), diverged_at=7 if seed == 1 else None))
        texts.append((tmp_path / "cells.jsonl").read_text())
    assert texts[0] == texts[1]
    again = Results(tmp_path, {"torch": "9"})
    assert {each.flags["seed"]: again[each].validation for each in again} == {
        seed: ((5, 1.5 + seed),) for seed in range(3)
    }
    assert again[cell(1)].diverged_at == 7


def test_rows_of_another_torch_are_not_mixed_with_these(tmp_path: Path) -> None:
    Results(tmp_path, {"torch": "9"}).add(cell(0), Result(((5, 1.5),)))
    with pytest.raises(Problem, match="were made with torch 9, here it is 10"):
        Results(tmp_path, {"torch": "10"})
    assert len(Results(tmp_path, None)) == 1


def test_what_rows_are_made_with_is_known_before_the_first(tmp_path: Path) -> None:
    Results(tmp_path, {"torch": "9"})
    with pytest.raises(Problem, match="were made with torch 9, here it is 10"):
        Results(tmp_path, {"torch": "10"})


@pytest.mark.parametrize("row", ['{"flags": {}}', "3", '{"flags": {}, "validation": [3]}'])
def test_a_row_that_is_no_trainings_is_refused(row: str, tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").write_text('{"made_with": {}}\n' + row + "\n")
    with pytest.raises(Problem, match="holds a row that is no training's"):
        Results(tmp_path, {})


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").write_text('{"kind": "run"}\n')
    with pytest.raises(Problem, match="does not begin with what its rows were made with"):
        Results(tmp_path, {})


LOG = [
    {"kind": "train", "step": 1, "loss": 5.0},
    {"kind": "validation", "step": 2, "loss": 3.0},
    {"kind": "validation", "step": 4, "loss": 2.0},
]


@pytest.mark.parametrize(
    ("records", "steps", "until", "ended"),
    [(LOG, 4, None, True), (LOG, 5, None, False), (LOG, 5, 2.0, True), (LOG, 5, 1.9, False), (LOG[:1], 1, None, False),
     ([*LOG[:2], {"kind": "validation", "step": 4, "loss": 2.00000001}], 5, 2.0, False),
     ([*LOG, {"kind": "diverged", "step": 5}], 9, None, True)],
)  # fmt: skip
def test_a_log_has_a_result_when_its_training_is_at_its_end(
    records: list[dict[str, object]], steps: int, until: float | None, ended: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = of_log(path, steps, until)
    assert (result is not None) == ended
    if result is not None:
        assert result.validation == ((2, 3.0), (4, 2.0))


def test_no_log_is_no_result(tmp_path: Path) -> None:
    assert of_log(tmp_path / "log.jsonl", 1, None) is None
