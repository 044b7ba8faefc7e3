"""benchmarks/gpu/gpu_report.py: targets, tables, rows that are merged and rows that are not there."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import gpu_predicted
import gpu_report
import pytest
from gpu_calls import CALLS
from gpu_lists import CONDITIONS, LISTS, METHODS, RANKS, factors_of
from gpu_targets import STEP_MS, targets
from kernel_names import short
from rows import merged, read

TARGETS = targets()
WITHOUT_RANK = {"Muon": 70.0, "NorMuon": 73.5, "Dion2": 16.5, "Dion3": 16.5, "AdamW": 7.5, "Lion": 6.3}


def step(name: str, optimizer: str, ms: float, **labels: Any) -> dict[str, Any]:
    known = {"rounds": 10, "state_mb": 1.0, "peak_mb": 2.0, "first_ms": 3 * ms}
    return {"kind": "step", "list": name, "optimizer": optimizer, "mode": "eager", "ms": ms, **known, **labels}


def measured() -> list[dict[str, Any]]:
    """What a GPU that reaches every target by a hair would write."""
    found = {"device": "H", "torch": "2.11", "date": "2026-01-01"}
    machine = {**found, "program": "steps", "tf32": 4e14, "bf16": 8e14, "fp64": 5e13, "copy": 3e12}
    rows: list[dict[str, Any]] = [{"kind": "machine", **machine}]
    default = {"state": "FP32", "precision": "high"}
    for name, rank in product(("120m", "1.3b"), RANKS):
        rows_of_dion = step(name, "Dion", 15.0, rank=rank, least_ms=10.0, **default)
        rows += [rows_of_dion, {**rows_of_dion, "mode": "back to back", "ms": 14.0}]
        rows.append(step(name, "Dion", 16.0, rank=rank, least_ms=10.0, **default) | {"mode": "capturable"})
        rows.append(step(name, "Dion", 20.0, rank=rank, least_ms=10.0, **default) | {"mode": "graph"})
        profile = {"kind": "launches", "list": name, "optimizer": "Dion", "launches": 120, "groups": 3}
        rows.append({**profile, "rank": rank, **default})
        medium = step(name, "Dion", float(STEP_MS[rank, "medium"][0]), rank=rank, least_ms=10.0, **default)
        rows.append(medium | {"precision": "medium"})
        if rank != "d":
            rows += [rows_of_dion | {"mode": mode} for mode in ("beside torch", "beside dion")]
    for name in ("120m", "1.3b"):
        rows += [step(name, "AdamW", 7.5), step(name, "Muon", 30.0)]
        rows.append(step(name, "dion package", 150.0, rank="d/4", state="FP32"))
        rows += [step(name, f"torchdion.{optimizer}", ms) for optimizer, ms in WITHOUT_RANK.items()]
        rows.append(step(name, "torchdion.Muon", 96.0) | {"mode": "cuBLAS alone"})
        rows.append(step(name, "torchdion.Muon", 3.0) | {"mode": "graph"})
    for precision, error in (("high", 2e-3), ("highest", 1e-5), ("medium", 1e-2)):
        of_factors = {size[1:] for name in ("120m", "1.3b") for size in factors_of(LISTS[name](), 1 / 4)}
        for (m, r), condition, method in product(of_factors, CONDITIONS, METHODS):
            labels = {"rows": m, "r": r, "condition": condition, "method": method, "precision": precision}
            rows.append({"kind": "orthogonality", **labels, "error": error, "zero_columns": 3 * (condition > 1e7)})
    return rows


def outcomes(rows: list[dict[str, Any]], after: str = CALLS[-1]) -> list[str]:
    return [row["outcome"] for row in gpu_report.checked(rows, TARGETS, after)]


def test_every_target_is_reached_at_its_bound() -> None:
    expected = ["reached for now"] * 2 + ["reached"] * 11 + ["reached for now"] * 3 + ["reached"] * 8
    assert outcomes(measured()) == expected
    assert [row["is"] for row in gpu_report.checked(measured(), TARGETS, CALLS[-1])] == pytest.approx(
        [
            *(1.5, 1.5, 10.0, 2.0, 2.0, 40.0, 2.0, 2e-3, 1e-5, 1e-2, 15.0, 15.0, 15.0, 20.0, 14.0, 85.0),
            *(96.0, 70.0, 1.05, 2.2, 2.2, 1.0, 6.3, 3.0),
        ]
    )
    bounds = [(row["now"], row["wanted"]) for row in gpu_report.checked([], TARGETS, CALLS[-1])]
    assert bounds[:3] == [("≤ 1.5", "≤ 1.15"), ("≤ 1.6", "≤ 1.3"), ("≥ 10", "≥ 10")]


@pytest.mark.parametrize(("ms", "outcome"), [(11.5, "reached"), (11.6, "reached for now"), (15.1, "missed")])
def test_a_bound_of_now_and_a_wanted_one_are_told_apart(ms: float, outcome: str) -> None:
    own = {"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "mode": "eager"}
    rows = [row | {"ms": ms} if own.items() <= row.items() else row for row in measured()]
    assert outcomes(rows)[0] == outcome


@pytest.mark.parametrize(
    ("labels", "change", "missed"),
    [
        ({"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "mode": "eager"}, {"ms": 15.1}, {0}),
        ({"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "mode": "beside torch"}, {"ms": 15.1}, {3}),
        ({"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "mode": "beside dion"}, {"ms": 15.1}, {2}),
        (
            {"list": "1.3b", "optimizer": "Dion", "rank": "d/16", "mode": "eager", "precision": "high"},
            {"ms": 16.1},
            {1, 11},
        ),
        ({"list": "1.3b", "rank": "d/16", "mode": "eager", "precision": "medium"}, {"ms": 14.1}, {14}),
        ({"list": "1.3b", "rank": "d", "mode": "eager", "precision": "medium"}, {"ms": 85.1}, {15}),
        ({"list": "1.3b", "optimizer": "Dion", "rank": "d/16", "mode": "beside torch"}, {"ms": 15.1}, {4}),
        ({"list": "1.3b", "optimizer": "dion package"}, {"ms": 149.0}, {2}),
        ({"list": "1.3b", "optimizer": "Muon"}, {"ms": 29.0}, {3}),
        ({"list": "1.3b", "optimizer": "AdamW"}, {"ms": 7.4}, {4, 19, 20, 21}),
        ({"list": "120m", "rank": "d/4", "kind": "launches"}, {"launches": 121}, {5}),
        ({"list": "120m", "rank": "d", "mode": "graph"}, {"ms": 20.1}, {6}),
        ({"kind": "orthogonality", "precision": "high"}, {"error": 2.1e-3}, {7}),
        ({"kind": "orthogonality", "precision": "highest"}, {"error": 1.1e-5}, {8}),
        ({"kind": "orthogonality", "precision": "medium"}, {"error": 1.1e-2}, {9}),
        ({"kind": "orthogonality", "precision": "highest", "condition": 1e2}, {"zero_columns": 1}, {8}),
        ({"kind": "orthogonality", "precision": "high", "condition": 1e0}, {"zero_columns": 1}, {7}),
        ({"kind": "orthogonality", "precision": "high", "condition": 1e4}, {"error": float("nan")}, {7}),
        ({"list": "120m", "optimizer": "Muon"}, {"ms": 1.0}, set()),
        ({"list": "1.3b", "mode": "graph"}, {"ms": 1e3}, set()),
        ({"list": "1.3b", "optimizer": "torchdion.Muon", "mode": "cuBLAS alone"}, {"ms": 96.1}, {16}),
        ({"list": "1.3b", "optimizer": "torchdion.Muon", "mode": "eager"}, {"ms": 70.1}, {17}),
        ({"list": "1.3b", "optimizer": "torchdion.Muon", "mode": "eager"}, {"ms": 69.9}, {18}),
        ({"list": "1.3b", "optimizer": "torchdion.NorMuon"}, {"ms": 73.6}, {18}),
        ({"list": "1.3b", "optimizer": "torchdion.Dion2"}, {"ms": 16.6}, {19}),
        ({"list": "1.3b", "optimizer": "torchdion.Dion3"}, {"ms": 16.6}, {20}),
        ({"list": "1.3b", "optimizer": "torchdion.AdamW"}, {"ms": 7.6}, {21}),
        ({"list": "1.3b", "optimizer": "torchdion.Lion"}, {"ms": 6.4}, {22}),
        ({"list": "120m", "optimizer": "torchdion.Muon", "mode": "graph"}, {"ms": 3.1}, {23}),
        ({"list": "120m", "mode": "cuBLAS alone"}, {"ms": 1e3}, set()),
        ({"list": "120m", "optimizer": "torchdion.Lion"}, {"ms": 1e3}, set()),
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
        ({"optimizer": "dion package"}, {2}),
        ({"optimizer": "Muon"}, {3}),
        ({"optimizer": "AdamW"}, {4, 19, 20, 21}),
        ({"optimizer": "torchdion.Muon"}, {16, 17, 18, 23}),
        ({"optimizer": "torchdion.Muon", "mode": "eager"}, {17, 18}),
        ({"mode": "cuBLAS alone"}, {16}),
        ({"optimizer": "torchdion.NorMuon"}, {18}),
        ({"optimizer": "torchdion.Dion2"}, {19}),
        ({"optimizer": "torchdion.Dion3"}, {20}),
        ({"optimizer": "torchdion.AdamW"}, {21}),
        ({"optimizer": "torchdion.Lion"}, {22}),
        ({"mode": "graph"}, {6, 23}),
        ({"mode": "graph", "rank": "d"}, {6}),
        ({"kind": "orthogonality", "condition": 1e0, "method": "rcqr"}, {7, 8, 9}),
        ({"kind": "launches"}, {5}),
        ({"list": "1.3b", "optimizer": "Dion"}, {0, 1, 2, 3, 4, *range(10, 16)}),
        ({"kind": "orthogonality"}, {7, 8, 9}),
        ({}, set(range(24))),
    ],
)
def test_a_target_without_rows_is_not_measured_and_a_failure(
    labels: dict[str, str], gone: set[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in measured() if not labels.items() <= row.items()]
    rows.append({"kind": "step", "list": "1.3b", "optimizer": "Dion", "mode": "eager", "problem": "out of memory"})
    assert {index for index, outcome in enumerate(outcomes(rows)) if outcome == "not measured"} == gone
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert gpu_report.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {line for line in lines if line.endswith(": not measured")} == {
        f"- {TARGETS[index].claim}: not measured" for index in gone
    }
    assert "- step, 1.3b, Dion, eager: out of memory" in lines


def test_what_a_later_call_measures_is_no_failure_before_it(tmp_path: Path) -> None:
    assert set(outcomes([], CALLS[0])) == {"by the call steps", "by the call peers"}
    assert outcomes([], CALLS[1]).count("not measured") == 10
    of_steps = [row for row in measured() if row.get("optimizer") == "Dion" and "beside" not in row.get("mode", "")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_steps))
    assert [gpu_report.main([str(tmp_path), "--after", call]) for call in CALLS] == [0, 0, 1]


def test_ratios_stand_in_the_tables_of_steps_and_graphs() -> None:
    labels = ("list", "r", "precision")
    found = {tuple(row[label] for label in labels): row for row in gpu_report.steps(measured())}
    row = found["1.3b", "d/4", "high"]
    assert (row["× roofline"], row["back to back × roofline"]) == (1.5, 1.4)
    assert [row[name] for name in ("× AdamW", "Muon / this", "dion / this", "first / ms")] == [2.0, 2.0, 10.0, 3.0]
    assert row["launches / shape"] == 40
    [row] = [row for row in gpu_report.graphs(measured()) if (row["list"], row["r"]) == ("120m", "d")]
    assert row["graph × roofline"] == 2.0
    assert [row["× eager"], row["graph × eager"]] == pytest.approx([16 / 15, 20 / 15])


def test_other_optimizers_stand_beside_those_of_their_own_run() -> None:
    rows = [row for row in measured() if row.get("list") == "1.3b"]
    for package, optimizer, ms, own in (
        ("dion package", "Dion2", 33.0, 11.0),
        ("gram-newton-schulz", "Muon", 80.0, 100.0),
    ):
        rows.append(step("1.3b", f"{package} {optimizer}", ms))
        rows.append(step("1.3b", f"torchdion.{optimizer}", own) | {"mode": f"beside {package[:4]}"})
    labels = {"kind": "launches", "list": "1.3b", "groups": 3}
    rows.append({**labels, "optimizer": "torchdion.Muon", "launches": 435})
    found = {
        (row["optimizer"], row["mode"]): [row[name] for name in ("× AdamW", "× torchdion", "launches")]
        for row in gpu_report.rivals(rows)
    }
    assert found["torchdion.Muon", "eager"] == [pytest.approx(70 / 7.5), None, 435]
    assert found["torchdion.Muon", "graph"] == [0.4, None, None]
    assert found["torchdion.Muon", "cuBLAS alone"] == [None, None, None]  # of another run than AdamW
    assert found["dion package", "eager"] == [None, 10.0, None]
    assert found["dion package Dion2", "eager"] == [None, 3.0, None]
    assert found["gram-newton-schulz Muon", "eager"] == [None, 0.8, None]
    assert {mode for _, mode in found} == {"eager", "graph", "cuBLAS alone"}
    assert {optimizer for optimizer, _ in found} >= {f"torchdion.{name}" for name in WITHOUT_RANK}


def test_the_longest_kernels_of_every_step_are_shown() -> None:
    known = {"kind": "kernel", "list": "120m", "state": "FP32", "launches": 1, "ms": 1.0, "over_copy": None}
    rows = [{**known, "optimizer": "torchdion.Lion", "kernel": "Lion<float>", "share": 1.0}]
    of_dion = {**known, "optimizer": "Dion", "rank": "d/4"}
    rows += [{**of_dion, "kernel": f"k{i}", "share": 0.01 * i} for i in range(10)]
    rows.append({**of_dion, "kernel": "k", "state": "BF16", "share": 1.0})
    shown = [(row["optimizer"], row["r"], row["kernel"]) for row in gpu_report.kernels(rows)]
    assert shown == [
        ("torchdion.Lion", None, "Lion<float>"),
        *(("Dion", "d/4", f"k{i}") for i in range(9, 1, -1)),
    ]


# ---- rows of several calls ----


def test_a_row_that_is_measured_again_replaces_the_one_before(tmp_path: Path) -> None:
    first, again = step("1.3b", "Muon", 9.0), step("1.3b", "Muon", 30.0)
    for index, row in enumerate((first, again)):
        (tmp_path / f"{index}.jsonl").write_text(json.dumps(row) + "\n" + '{"kind": "st')  # and one that was cut off
    assert read(sorted(tmp_path.iterdir())) == [again]


def test_a_problem_replaces_nothing_and_goes_when_its_rows_come() -> None:
    good = step("1.3b", "Dion", 9.0, rank="d/4", state="FP32", precision="high")
    labels = {"kind": "step", "list": "1.3b", "optimizer": "Dion", "mode": "eager", "rank": "d/4", "state": "FP32"}
    problem = {**labels, "problem": "out of memory"}
    assert merged([problem, good]) == [good]
    assert merged([good, problem]) == [good, problem]
    assert merged([problem, good | {"rank": "d/16"}]) == [problem, good | {"rank": "d/16"}]
    assert merged([problem, problem | {"problem": "left out"}]) == [problem | {"problem": "left out"}]


def test_rows_of_two_devices_are_no_comparison() -> None:
    machine = next(row for row in measured() if row["kind"] == "machine")
    assert gpu_report.problems([machine, machine | {"program": "other"}]) == []
    mixed = [machine, machine | {"program": "other", "device": "G"}]
    assert gpu_report.problems(mixed) == ["measured on different devices: H, G"]


def test_rates_that_differ_between_programs_are_said() -> None:
    machine = next(row for row in measured() if row["kind"] == "machine")
    near, far = ({"program": "other", "tf32": factor * machine["tf32"]} for factor in (1.04, 1.2))
    assert gpu_report.problems([machine, machine | near]) == []
    assert gpu_report.problems([machine, machine | far]) == ["rates of tf32 differ by 20% between programs"]


def test_of_many_failures_the_first_are_printed_and_the_targets_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [{"kind": "test", "suite": "s", "name": f"t{i}", "outcome": "failed", "problem": "no"} for i in range(99)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*measured(), *failed]))
    assert gpu_report.main([str(tmp_path), "--markdown", str(tmp_path / "report.md")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("- test, s, t") for line in lines) == 30
    assert lines[-1].startswith("| 120M: a step of torchdion.Muon in ms, as a CUDA graph |")
    assert "- and 69 more" in lines
    assert "- test, s, t98: no" in (tmp_path / "report.md").read_text()


def test_of_trainings_the_best_rate_of_each_optimizer_is_shown() -> None:
    known = {
        "kind": "training",
        "steps": 40,
        "tokens_per_second": 1e5,
        "step_ms": 200.0,
        "optimizer_ms": 10.0,
        "share": 0.05,
    }
    rows = [
        known | {"optimizer": "muon", "lr": lr, "loss": loss} for lr, loss in ((0.01, 2.1), (0.02, 2.0), (0.04, 2.2))
    ]
    rows.append(known | {"optimizer": "dion", "rank": "d/4", "precision": "medium", "lr": 0.02, "loss": 2.3})
    found = [(row["optimizer"], row["r"], row["lr"]) for row in gpu_report.trainings(rows)]
    assert found == [("muon", None, 0.02), ("dion", "d/4", 0.02)]
    assert "### Trainings of 12 layers of 768\n" in gpu_report.report(rows, TARGETS)


def test_tests_are_counted_by_suite_and_failures_named() -> None:
    rows = [
        {"kind": "test", "suite": "ranks", "name": f"t{i}", "outcome": outcome}
        for i, outcome in enumerate(["passed", "passed", "skipped"])
    ]
    rows.append({"kind": "test", "suite": "ranks", "name": "t9", "outcome": "failed", "problem": "1 != 2"})
    rows.append({"kind": "tests", "suite": "ranks", "collected": 9})
    assert gpu_report.tests(rows) == [{"suite": "ranks", "of": 9, "passed": 2, "failed": 1, "skipped": 1}]
    assert gpu_report.problems(rows) == ["test, ranks, t9: 1 != 2"]


# ---- predicted and measured ----


ACCUMULATE = "void n::run_program<n::Accumulate<float, float> >(n)"  # as the profiler says it


def recorded(step: object) -> list[dict[str, Any]]:
    """What a recorder says of any step: products of two sizes, one kernel, and the allocations."""
    assert callable(step)
    return [
        {"name": "cuBLAS TF32", "launches": 3, "blocks": 0, "bytes": 6_000_000, "operations": 4_000_000_000},
        {"name": "Accumulate<float, float>", "launches": 2, "blocks": 8, "bytes": 3_000_000, "operations": 0},
        {"name": "cuBLAS TF32", "launches": 1, "blocks": 0, "bytes": 3_000_000, "operations": 4_000_000_000},
        {"count": 5, "bytes": 77, "peak_bytes": 70},
    ]


def test_a_table_that_cannot_be_made_leaves_the_others() -> None:
    rows = [*measured(), {"kind": "kernel", "list": "120m", "optimizer": "Dion", "rank": "d", "state": "FP32"}]
    report = gpu_report.report(rows, TARGETS)
    assert "### Kernels\n\n- not made: KeyError('share')" in report
    assert "### Other optimizers\n\n| list" in report


def test_predicted_launches_stand_beside_what_the_profiler_saw() -> None:
    same = {"list": "1.3b", "optimizer": "Dion", "rank": "d/4", "state": "FP32", "precision": "high"}
    rows = [measured()[0] | {"program": "profile"}]
    rows += [{**row, **same} for row in gpu_predicted.recorded_rows(recorded, print)]
    rows += [row | {"precision": "medium", "launches": 99} for row in rows[1:]]  # which nobody profiles
    labels = {**same, "kind": "kernel", "over_copy": None}
    assert gpu_predicted.compared(rows) == []  # nothing was measured
    rows.append({**labels, "kernel": "cuBLAS TF32", "launches": 5, "ms": 0.06, "share": 0.9})
    rows.append({**labels, "kernel": "Memcpy HtoD", "launches": 1, "ms": 0.01, "share": 0.1})
    rows.append({**labels, "kernel": short(ACCUMULATE), "launches": 2, "ms": 0.002, "share": 0.1})
    product, copy, accumulate = gpu_predicted.compared(rows)
    assert (product["predicted launches"], product["launches"]) == (4, 5)
    assert (product["MB"], product["GFLOP"]) == (9.0, 8.0)
    assert product["least ms"] == pytest.approx(8e9 / 4e14 * 1e3)
    assert product["ms / least"] == pytest.approx(3.0)
    assert (copy["kernel"], copy["predicted launches"], copy["ms / least"]) == ("Memcpy HtoD", None, None)
    assert (accumulate["ms / least"], accumulate["least ms"]) == pytest.approx((2.0, 3e6 / 3e12 * 1e3))
    assert "### Kernels, predicted and measured\n" in gpu_report.report(rows, TARGETS)


def test_steps_without_a_rank_are_compared_with_what_the_profiler_saw_of_this_library() -> None:
    predicted = {"kind": "predicted", "list": "1.3b", "optimizer": "Muon", "state": "FP32", "launches": 150}
    rows = [measured()[0] | {"program": "profile"}]
    rows.append({**predicted, "name": "symmetric BF16", "bytes": 3_000_000, "operations": 8_000_000_000_000})
    rows.append({**predicted, "name": "LookAhead<float, float>", "bytes": 6_000_000_000, "operations": 0})
    seen = {"kind": "kernel", "list": "1.3b", "state": "FP32", "launches": 100, "share": 0.5, "over_copy": None}
    rows.append({**seen, "optimizer": "Muon", "kernel": "symmetric BF16", "ms": 1.0})  # torch's
    assert gpu_predicted.compared(rows) == []
    rows.append({**seen, "optimizer": "torchdion.Muon", "kernel": "symmetric BF16", "ms": 20.0})
    product, look_ahead = gpu_predicted.compared(rows)
    known = ("list", "optimizer", "r", "state", "kernel")
    assert [product[name] for name in known] == ["1.3b", "torchdion.Muon", None, "FP32", "symmetric BF16"]
    assert (product["predicted launches"], product["launches"]) == (150, 100)
    assert product["least ms"] == pytest.approx(8e12 / 8e14 * 1e3)  # the operations, at the rate of BF16
    assert product["ms / least"] == pytest.approx(2.0)
    assert (look_ahead["launches"], look_ahead["least ms"]) == (None, pytest.approx(6e9 / 3e12 * 1e3))
