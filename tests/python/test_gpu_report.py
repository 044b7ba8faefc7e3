"""benchmarks/gpu/gpu_report.py: targets, tables, and rows that are not there."""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).parents[2] / "benchmarks" / "gpu"))
sys.path.insert(1, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_report
from gpu_lists import RANKS
from gpu_targets import TARGETS


def step(name: str, optimizer: str, ms: float, **labels: Any) -> dict[str, Any]:
    known = {"rounds": 10, "state_mb": 1.0, "peak_mb": 2.0, "first_ms": 3 * ms}
    return {"kind": "step", "list": name, "optimizer": optimizer, "mode": "eager", "ms": ms, **known, **labels}


def measured() -> list[dict[str, Any]]:
    """What a GPU that reaches every target by a hair would write."""
    machine = {"device": "H", "torch": "2.11", "tf32": 4e14, "bf16": 8e14, "fp64": 5e13, "copy": 3e12}
    rows: list[dict[str, Any]] = [{"kind": "machine", "list": "1.3b", **machine}]
    default = {"state": "FP32", "precision": "high"}
    for name, rank in product(("120m", "1.3b"), RANKS):
        rows.append(step(name, "Dion", 15.0, rank=rank, least_ms=10.0, **default))
        rows.append(step(name, "Dion", 16.0, rank=rank, least_ms=10.0, **default) | {"mode": "capturable"})
        rows.append(step(name, "Dion", 20.0, rank=rank, least_ms=10.0, **default) | {"mode": "graph"})
        profile = {"kind": "launches", "list": name, "optimizer": "Dion", "launches": 120, "groups": 3}
        rows.append({**profile, "rank": rank, **default})
    for name in ("120m", "1.3b"):
        rows += [step(name, "AdamW", 7.5), step(name, "Muon", 30.0)]
        rows.append(step(name, "dion package", 150.0, rank="d/4", state="FP32"))
    for precision, error in (("high", 2e-3), ("highest", 1e-5)):
        row = {"kind": "orthogonality", "condition": 1e8, "precision": precision, "error": error, "zero_columns": 3}
        rows.append(row)
    return rows


def outcomes(rows: list[dict[str, Any]]) -> list[str]:
    return [row["outcome"] for row in gpu_report.targets(rows)]


def test_every_target_is_reached_at_its_bound() -> None:
    assert outcomes(measured()) == ["reached"] * len(TARGETS) == ["reached"] * 8
    assert [row["is"] for row in gpu_report.targets(measured())] == pytest.approx(
        [1.5, 10.0, 2.0, 2.0, 40.0, 2.0, 2e-3, 1e-5]
    )


@pytest.mark.parametrize(
    ("labels", "change", "missed"),
    [
        ({"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "mode": "eager"}, {"ms": 15.1}, {0, 1, 2}),
        ({"list": "1.3b", "optimizer": "dion package"}, {"ms": 149.0}, {1}),
        ({"list": "1.3b", "optimizer": "Muon"}, {"ms": 29.0}, {2}),
        ({"list": "1.3b", "optimizer": "AdamW"}, {"ms": 7.4}, {3}),
        ({"list": "120m", "rank": "d/4", "kind": "launches"}, {"launches": 121}, {4}),
        ({"list": "120m", "rank": "d", "mode": "graph"}, {"ms": 20.1}, {5}),
        ({"kind": "orthogonality", "precision": "high"}, {"error": 2.1e-3}, {6}),
        ({"kind": "orthogonality", "precision": "highest"}, {"error": 1.1e-5}, {7}),
        ({"list": "120m", "optimizer": "Muon"}, {"ms": 1.0}, set()),
        ({"list": "1.3b", "mode": "graph"}, {"ms": 1e3}, set()),
    ],
)
def test_each_target_is_missed_by_its_own_rows_alone(
    labels: dict[str, str], change: dict[str, float], missed: set[int]
) -> None:
    rows = [row | change if labels.items() <= row.items() else row for row in measured()]
    assert rows != measured()
    assert {index for index, outcome in enumerate(outcomes(rows)) if outcome == "missed"} == missed


@pytest.mark.parametrize(
    ("labels", "gone"),
    [
        ({"optimizer": "dion package"}, {1}),
        ({"mode": "graph"}, {5}),
        ({"kind": "launches"}, {4}),
        ({"list": "1.3b", "optimizer": "Dion"}, {0, 1, 2, 3}),
        ({"kind": "orthogonality"}, {6, 7}),
        ({}, set(range(8))),
    ],
)
def test_a_target_without_rows_is_not_measured(labels: dict[str, str], gone: set[int]) -> None:
    rows = [row for row in measured() if not labels.items() <= row.items()]
    rows.append({"kind": "step", "list": "1.3b", "optimizer": "Dion", "mode": "eager", "problem": "out of memory"})
    assert {index for index, outcome in enumerate(outcomes(rows)) if outcome == "not measured"} == gone
    report = gpu_report.report(rows)
    assert "- step, 1.3b, Dion, eager: out of memory" in report


def test_ratios_stand_in_the_tables_of_steps_and_graphs() -> None:
    [row] = [row for row in gpu_report.steps(measured()) if (row["list"], row["r"]) == ("1.3b", "d/4")]
    assert row["× roofline"] == 1.5
    assert [row[name] for name in ("× AdamW", "Muon / this", "dion / this", "first / ms")] == [2.0, 2.0, 10.0, 3.0]
    assert row["launches / shape"] == 40
    [row] = [row for row in gpu_report.graphs(measured()) if (row["list"], row["r"]) == ("120m", "d")]
    assert row["graph × roofline"] == 2.0
    assert [row["× eager"], row["graph × eager"]] == pytest.approx([16 / 15, 20 / 15])


def test_a_row_that_is_measured_again_replaces_the_one_before(tmp_path: Path) -> None:
    first, again = step("1.3b", "Muon", 9.0), step("1.3b", "Muon", 30.0)
    for index, row in enumerate((first, again)):
        (tmp_path / f"{index}.jsonl").write_text(json.dumps(row) + "\n")
    assert gpu_report.read(sorted(tmp_path.iterdir())) == [again]
