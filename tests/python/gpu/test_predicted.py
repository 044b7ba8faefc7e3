"""benchmarks/gpu/predicted.py: the committed table is what steps launch now, and adds up to what the paper counts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_lists import LISTS, RANKS
from kernel_names import short
from matrices import roofline_flops
from predicted import markdown

Row = dict[str, Any]
CASES = [(name, rank) for name in ("120m", "1.3b") for rank in ("d/4", "d/16")]
OF_STEP = pytest.mark.parametrize(("name", "rank"), CASES)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
COMMITTED = BENCHMARKS / "results" / "gpu"
LEAST_SHARE = 0.01  # of the committed products


def lines_of(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Of a process of its own, in which nothing but Meta tensors is computed by the library."""
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    program = [sys.executable, str(BENCHMARKS / "gpu" / "predicted.py"), "--list", "120m", "1.3b"]
    run = subprocess.run([*program, "--least-share", "0"], capture_output=True, text=True, check=True)
    return lines_of(run.stdout)


def select(rows: list[Row], kind: str, name: str, rank: str) -> list[Row]:
    return [row for row in rows if (row["kind"], row["list"], row["rank"]) == (kind, name, rank)]


@OF_STEP
def test_the_committed_rows_are_what_a_step_asks_for_now(rows: list[Row], name: str, rank: str) -> None:
    """If not: python benchmarks/gpu/predicted.py --write benchmarks/results/gpu."""
    committed = lines_of((COMMITTED / "predicted.jsonl").read_text())
    for kind in ("predicted", "predicted_product", "predicted_step"):
        now = [row for row in select(rows, kind, name, rank) if row.get("share", 1) >= LEAST_SHARE]
        assert now == select(committed, kind, name, rank)


def test_the_committed_table_is_that_of_the_committed_rows() -> None:
    committed = lines_of((COMMITTED / "predicted.jsonl").read_text())
    assert {(row["list"], row["rank"]) for row in committed} == {*CASES, ("3b", "d/4"), ("3b", "d/16")}
    assert (COMMITTED / "predicted.md").read_text() == markdown(committed)


@OF_STEP
def test_the_products_with_the_matrices_are_the_papers_and_the_rest_is_of_two_passes(
    rows: list[Row], name: str, rank: str
) -> None:
    """8mnr a matrix exactly: P, R and two updates. With p the rows of P, the paper counts 6.5 pr² and 13/6 r³ more.

    Here each of two passes makes a whole Gram matrix (2pr², not its half) and multiplies P by a triangle stored as a
    square (2pr², once or in two parts), and products of panels of 64 columns make each factor and its inverse
    (r³ and about as many panels again).
    """
    shapes, fraction = LISTS[name](), RANKS[rank]
    ranked = [(m, n, round(fraction * min(m, n))) for m, n in shapes]
    sizes = {tuple(sorted(each)) for each in ranked}
    products = select(rows, "predicted_product", name, rank)
    with_matrices = [row for row in products if tuple(sorted((row["m"], row["n"], row["k"]))) in sizes]
    assert sum(row["operations"] for row in with_matrices) == sum(8 * m * n * r for m, n, r in ranked)
    assert {row["name"] for row in with_matrices} == {"cuBLAS TF32"}

    rest = sum(row["operations"] for row in products) - sum(row["operations"] for row in with_matrices)
    least = sum(8 * n * r**2 for _, n, r in ranked)
    assert least < rest <= sum(12 * n * r**2 + 2 * (r**3 + 5 * 64 * r**2) for _, n, r in ranked)
    paper = roofline_flops(shapes, fraction) - sum(8 * m * n * r for m, n, r in ranked)
    assert 0.5 < rest / paper < 2.5


@OF_STEP
def test_every_entry_is_accumulated_once_for_twelve_bytes(rows: list[Row], name: str, rank: str) -> None:
    [accumulate] = [row for row in select(rows, "predicted", name, rank) if row["name"].startswith("Accumulate")]
    assert accumulate["bytes"] == 12 * sum(m * n for m, n in LISTS[name]())


@OF_STEP
def test_sums_are_those_of_the_rows(rows: list[Row], name: str, rank: str) -> None:
    [total] = select(rows, "predicted_step", name, rank)
    of_step = select(rows, "predicted", name, rank)
    for key in ("launches", "blocks", "bytes", "operations"):
        assert total[key] == sum(row[key] for row in of_step)
    assert total["least_ms"] == pytest.approx(sum(row["least_ms"] for row in of_step), rel=1e-4)
    assert total["least_ms"] > total["roofline_ms"]


def test_120m_takes_at_most_forty_launches_for_each_shape(rows: list[Row]) -> None:
    [total] = select(rows, "predicted_step", "120m", "d/4")
    assert total["launches"] / total["groups"] <= 40


def test_a_step_of_1_3b_allocates_at_most_12_percent_of_the_weights(rows: list[Row]) -> None:
    [total] = select(rows, "predicted_step", "1.3b", "d/4")
    assert total["peak_bytes"] / total["parameter_bytes"] <= 0.12


@pytest.mark.parametrize("orthonormalize", ["auto", pytest.param("rcqr", marks=pytest.mark.long)])
def test_thousands_of_small_matrices_take_no_more_workspace_than_large_ones(orthonormalize: str) -> None:
    """456 MiB for a task's factors and what factors them, of however few columns, and what torch rounds up."""
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    program = f"""
import predicted
from torchdion import _C
predicted.load(predicted.LIBRARY)
optimizer = predicted.optimizer_of([(64, 64)] * 8192, 0.25)
optimizer.param_groups[0]["orthonormalize"] = "{orthonormalize}"
print(_C.launches_of(optimizer.step, "meta")[-1]["peak_bytes"])
"""
    path = os.pathsep.join(map(str, [BENCHMARKS / "gpu", BENCHMARKS]))
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert 300e6 < int(run.stdout) < 550e6


@OF_STEP
def test_no_launch_is_empty(rows: list[Row], name: str, rank: str) -> None:
    for row in select(rows, "predicted", name, rank):
        is_kernel = not row["name"].startswith(("cuBLAS", "aten::"))
        assert (row["blocks"] > 0) == is_kernel
        assert row["bytes"] > 0
    for row in select(rows, "predicted_product", name, rank):
        assert min(row[key] for key in ("m", "n", "k", "count", "launches")) > 0


@OF_STEP
def test_torch_does_nothing_but_make_and_add_up_counts(rows: list[Row], name: str, rank: str) -> None:
    """No copy from or to the host, and nothing that waits for the device; items of Meta tensors would be errors."""
    operators = [row for row in select(rows, "predicted", name, rank) if "::" in row["name"]]
    assert {row["name"] for row in operators} <= {"aten::zeros", "aten::add"}
    assert sum(row["bytes"] for row in operators) <= 64


@OF_STEP
def test_names_are_those_that_the_profilers_rows_have(rows: list[Row], name: str, rank: str) -> None:
    for row in select(rows, "predicted", name, rank):
        if row["name"].startswith("cuBLAS"):
            assert row["name"].split()[1] in ("FP64", "FP32", "TF32", "BF16")
        elif "::" not in row["name"]:
            types = row["name"].replace("<", "<torchdion::linalg::cuda::")
            whole = f"void torchdion::linalg::cuda::run_program<torchdion::linalg::cuda::{types} >(torchdion)"
            assert short(whole) == row["name"]
