"""benchmarks/gpu/predicted.py: the committed table is what steps launch now, and adds up to what the paper counts."""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from gpu_lists import LISTS, RANKS
from kernel_names import short
from predicted import OTHERS, markdown

Row = dict[str, Any]
OF_RANKS = list(product(("d/4", "d/16", "d"), ("high", "medium")))
CASES = [(name, *of_rank) for name in ("120m", "1.3b") for of_rank in OF_RANKS]
OTHER_CASES = list(product(("120m", "1.3b"), OTHERS))
OF_OTHER = pytest.mark.parametrize(("name", "optimizer"), OTHER_CASES)
OF_STEP = pytest.mark.parametrize(("name", "rank", "precision"), CASES)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
COMMITTED = BENCHMARKS / "results" / "gpu"
ARITHMETIC = ("cuBLAS TF32", "cuBLAS BF16", "cuBLAS FP32")
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


def select(rows: list[Row], kind: str, *case: str) -> list[Row]:
    """Rows of one kind and one case: its list, rank and precision."""
    labels = ("kind", "list", "rank", "precision")
    return [row for row in rows if tuple(map(row.get, labels)) == (kind, *case)]


def select_other(rows: list[Row], kind: str, name: str, optimizer: str) -> list[Row]:
    """The same of an optimizer without a rank."""
    return [row for row in rows if tuple(map(row.get, ("kind", "list", "optimizer"))) == (kind, name, optimizer)]


@OF_STEP
def test_the_committed_rows_are_what_a_step_asks_for_now(rows: list[Row], name: str, rank: str, precision: str) -> None:
    """If not: python benchmarks/gpu/predicted.py --write benchmarks/results/gpu."""
    committed = lines_of((COMMITTED / "predicted.jsonl").read_text())
    for kind in ("predicted", "predicted_product", "predicted_step"):
        now = [row for row in select(rows, kind, name, rank, precision) if row.get("share", 1) >= LEAST_SHARE]
        assert now == select(committed, kind, name, rank, precision)


@OF_OTHER
def test_so_are_those_of_other_optimizers(rows: list[Row], name: str, optimizer: str) -> None:
    committed = lines_of((COMMITTED / "predicted.jsonl").read_text())
    for kind in ("predicted", "predicted_product", "predicted_step"):
        now = [row for row in select_other(rows, kind, name, optimizer) if row.get("share", 1) >= LEAST_SHARE]
        assert now == select_other(committed, kind, name, optimizer)


def test_the_committed_table_is_that_of_the_committed_rows() -> None:
    committed = lines_of((COMMITTED / "predicted.jsonl").read_text())
    cases = {(row["list"], row["rank"], row["precision"]) for row in committed if row["optimizer"] == "Dion"}
    assert cases == {*CASES, *(("3b", *of_rank) for of_rank in OF_RANKS)}
    others = {(row["list"], row["optimizer"]) for row in committed if row["optimizer"] != "Dion"}
    assert others == {*OTHER_CASES, *(("3b", optimizer) for optimizer in OTHERS)}
    assert (COMMITTED / "predicted.md").read_text() == markdown(committed)


@OF_STEP
def test_the_products_with_the_matrices_are_the_papers_and_the_rest_is_of_two_passes(
    rows: list[Row], name: str, rank: str, precision: str
) -> None:
    """8mnr a matrix exactly: P, R and two updates. With p the rows of P, the paper counts 6.5 pr² and 13/6 r³ more.

    Here each of two passes makes a whole Gram matrix (2pr², not its half) and multiplies P by two parts of a triangle
    stored as squares (4pr²). What is left of factors of more than 512 columns is freed of each 512 by a product. A
    kernel updates by BF16 factors of up to 192 columns.
    """
    shapes, fraction = LISTS[name](), RANKS[rank]
    ranked = [(m, n, round(fraction * min(m, n))) for m, n in shapes]
    products = select(rows, "predicted_product", name, rank, precision)
    arithmetic = {"high": "cuBLAS TF32", "medium": "cuBLAS BF16"}[precision]
    operations = {kind: sum(row["operations"] for row in products if row["name"] == kind) for kind in ARITHMETIC}
    kernels = select(rows, "predicted", name, rank, precision)
    of_updates = sum(row["operations"] for row in kernels if row["name"] == "AddProduct<BFloat16>")
    assert of_updates == sum(4 * m * n * r for m, n, r in ranked if precision == "medium" and r <= 192)
    assert operations[arithmetic] + of_updates == sum(8 * m * n * r + 12 * n * r**2 for m, n, r in ranked)
    panels = [(r, r - end) for _, _, r in ranked for end in range(512, r, 512)]
    assert operations["cuBLAS FP32"] == sum(2 * 2 * r * below * 512 for r, below in panels)
    assert sum(operations.values()) == sum(row["operations"] for row in products)


@OF_STEP
def test_every_entry_is_accumulated_once(rows: list[Row], name: str, rank: str, precision: str) -> None:
    """M and G are read and M is written; at medium a copy in BF16 is written on the way."""
    kernel, each = {"high": ("Accumulate", 12), "medium": ("LookAhead", 14)}[precision]
    [pass_over_M] = [row for row in select(rows, "predicted", name, rank, precision) if row["name"].startswith(kernel)]
    assert pass_over_M["bytes"] == each * sum(m * n for m, n in LISTS[name]())


@OF_STEP
def test_sums_are_those_of_the_rows(rows: list[Row], name: str, rank: str, precision: str) -> None:
    [total] = select(rows, "predicted_step", name, rank, precision)
    of_step = select(rows, "predicted", name, rank, precision)
    for key in ("launches", "blocks", "bytes", "operations"):
        assert total[key] == sum(row[key] for row in of_step)
    assert total["least_ms"] == pytest.approx(sum(row["least_ms"] for row in of_step), rel=1e-4)
    assert total["least_ms"] > total["roofline_ms"]


@OF_STEP
def test_a_batch_takes_few_launches_and_nothing_in_fp64(rows: list[Row], name: str, rank: str, precision: str) -> None:
    """16, four more for every further 512 columns, and three for the whole step; nothing is uploaded again."""
    [total] = select(rows, "predicted_step", name, rank, precision)
    assert total["fp64_operations"] == 0
    shapes, fraction = LISTS[name](), RANKS[rank]
    widest = max(round(fraction * min(shape)) for shape in shapes)
    assert total["launches"] == total["batches"] * (16 + 4 * ((widest - 1) // 512)) + 3
    assert not [row for row in select(rows, "predicted", name, rank, precision) if row["name"].startswith("Upload")]


@pytest.mark.parametrize(
    ("rank", "precision", "most"),
    [("d/4", "high", 1.6), ("d/4", "medium", 1.4), ("d/16", "high", 1.15), ("d/16", "medium", 1.1)],
)
def test_factors_add_little_to_the_bytes_of_whole_matrices(
    rows: list[Row], rank: str, precision: str, most: float
) -> None:
    [total] = select(rows, "predicted_step", "1.3b", rank, precision)
    assert 1 < total["bytes_over_least"] < most


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_step_of_1_3b_allocates_at_most_12_percent_of_the_weights(rows: list[Row], precision: str) -> None:
    [total] = select(rows, "predicted_step", "1.3b", "d/4", precision)
    assert total["peak_bytes"] / total["parameter_bytes"] <= 0.12


@cache
def rows_with_residuals(feeds_back: bool) -> list[Row]:
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    asked = [
        "--list",
        "1.3b",
        "--rank",
        "d/4",
        "d/16",
        "--optimizer",
        "Dion",
        "--nesterov",
        "--residual",
        "none",
        "scaled",
        "sign",
    ]
    asked += [] if feeds_back else ["--no-error-feedback"]
    program = [sys.executable, str(BENCHMARKS / "gpu" / "predicted.py"), *asked]
    return lines_of(subprocess.run(program, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("rank", ["d/4", "d/16"])
@pytest.mark.parametrize(
    ("precision", "feeds_back", "launches", "of_scaled", "of_sign"),
    [
        ("medium", True, (16, 19, 18), (1.9, 3), (1.9, 3)),
        ("medium", False, (15, 18, 18), (1.9, 3), (1.9, 4)),
        ("high", True, (17, 20, 19), (3.9, 6), (0, 2)),
        ("high", False, (15, 18, 18), (3.9, 6), (3.9, 8)),
    ],
)
def test_a_residual_reads_what_was_factored_once_more(
    rank: str,
    precision: str,
    feeds_back: bool,
    launches: tuple[int, int, int],
    of_scaled: tuple[float, float],
    of_sign: tuple[float, float],
) -> None:
    """In one pass; and R's columns are measured, in three launches, or the rows of P and R, in two.

    At "high" with error feedback L lies in the momentum, which the pass of signs writes in the place of a product.
    """
    none, scaled, sign = select(rows_with_residuals(feeds_back), "predicted_step", "1.3b", rank, precision)
    assert "residual" not in none and (scaled["residual"], sign["residual"]) == ("scaled", "sign")
    entries = none["parameter_bytes"] / 4
    for step, (least, most) in ((scaled, of_scaled), (sign, of_sign)):
        assert least <= (step["bytes"] - none["bytes"]) / entries <= most
        assert step["peak_over_parameters"] <= none["peak_over_parameters"] + 0.03
    for step, of_batch in zip((none, scaled, sign), launches, strict=True):
        assert step["launches"] == of_batch * step["batches"] + 3
        assert step["batches"] <= none["batches"] + 2  # R lies apart from L, beside its copy


@pytest.mark.parametrize("orthonormalize", ["auto", pytest.param("rcqr", marks=pytest.mark.long)])
def test_thousands_of_small_matrices_take_no_more_workspace_than_large_ones(orthonormalize: str) -> None:
    """456 MiB for a task's factors and what factors them, of however few columns, and what torch rounds up."""
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    program = f"""
import predicted
from torchdion import _C
predicted.load(predicted.LIBRARY)
optimizer = predicted.optimizer_of([(64, 64)] * 8192, 0.25, "high", nesterov=False)
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


@pytest.mark.parametrize("name", ["120m", "1.3b"])
@pytest.mark.parametrize(("optimizer", "bytes_of_entry"), [("AdamW", 28), ("Lion", 20)])
def test_a_rule_by_entry_is_one_launch(rows: list[Row], name: str, optimizer: str, bytes_of_entry: int) -> None:
    """For matrices of all shapes, whose pointers lie on the device already."""
    [total] = select_other(rows, "predicted_step", name, optimizer)
    assert (total["launches"], total["allocations"]) == (1, 0)
    assert total["bytes"] == bytes_of_entry * total["parameter_bytes"] // 4


MOST_OVER_LEAST = {"Muon": 1.06, "NorMuon": 1.06, "Dion2": 1.08, "Dion3": 1.06}


@pytest.mark.parametrize("name", ["120m", "1.3b"])
@pytest.mark.parametrize("optimizer", MOST_OVER_LEAST)
def test_iterations_copy_nothing_and_take_few_launches(rows: list[Row], name: str, optimizer: str) -> None:
    """At most 33 a batch, all kernels of ours or cuBLAS's; temporaries of the 1.3B list at most 12% of the weights."""
    [total] = select_other(rows, "predicted_step", name, optimizer)
    assert 1 <= total["bytes_over_least"] <= MOST_OVER_LEAST[optimizer]
    assert total["launches"] <= 33 * total["batches"]
    assert name != "1.3b" or total["peak_over_parameters"] <= 0.12
    kernels = {row["name"].partition("<")[0] for row in select_other(rows, "predicted", name, optimizer)}
    passes = {
        "Muon": {"LookAhead", "Axpby"},
        "NorMuon": {"LookAhead", "RowSums", "RowVariances", "KeepNorms", "AxpbyRows"},
        "Dion2": {"AccumulateRows", "AccumulateColumns", "ChooseRows", "TakeRows", "RowSums", "AxpbyRows"},
        "Dion3": {"AccumulateRows", "ChooseRows", "TakeRows", "RowSums", "RowVariances", "KeepNorms", "AxpbyRows"},
    }
    of_all = {"FrobeniusFactors", "cuBLAS BF16", "AddIdentity", "StepFactors"}
    assert kernels - {"ColumnSums", "symmetric BF16"} == passes[optimizer] | of_all


def iterations(m: int, n: int, of_square: int) -> int:
    """Operations of Muon's five polynomials, where a symmetric product has so many entries.

    One by one each takes X Xᵀ, its square and a product with X. On Gram matrices, which are fewer operations where one
    side is at least 1.5 times the other, two, two and one take five, five and one of p×p matrices, and two with X.
    """
    p, q = min(m, n), max(m, n)
    if 2 * q < 3 * p:
        return 5 * 2 * (of_square * (q + p) + p * p * q)
    return 2 * (3 * (of_square * q + p * p * q) + 11 * of_square * p)


def below_diagonal(p: int, tile: int = 256) -> int:
    """Entries of the square tiles on and below a diagonal."""
    return sum((min(p, top + tile) - top) * min(p, top + tile) for top in range(0, p, tile))


@pytest.mark.parametrize("name", ["120m", "1.3b"])
def test_symmetric_products_are_computed_by_half(rows: list[Row], name: str) -> None:
    shapes = LISTS[name]()
    [total] = select_other(rows, "predicted_step", name, "Muon")
    assert total["operations"] == sum(iterations(m, n, below_diagonal(min(m, n))) for m, n in shapes)
    program = [sys.executable, str(BENCHMARKS / "gpu" / "predicted.py"), "--list", name, "--optimizer", "Muon"]
    run = subprocess.run([*program, "--cublas-alone"], capture_output=True, text=True, check=True)
    *kernels, whole = (row for row in lines_of(run.stdout) if row["kind"] != "predicted_product")
    assert whole["cublas_alone"] and "symmetric BF16" not in [row["name"] for row in kernels]
    assert whole["operations"] == sum(iterations(m, n, min(m, n) ** 2) for m, n in shapes)
    assert (whole["launches"], whole["batches"]) == (total["launches"], total["batches"])


@OF_STEP
def test_no_launch_is_empty(rows: list[Row], name: str, rank: str, precision: str) -> None:
    for row in select(rows, "predicted", name, rank, precision):
        is_kernel = not row["name"].startswith(("cuBLAS", "aten::"))
        assert (row["blocks"] > 0) == is_kernel
        assert row["bytes"] > 0
    for row in select(rows, "predicted_product", name, rank, precision):
        assert min(row[key] for key in ("m", "n", "k", "count", "launches")) > 0


@OF_STEP
def test_torch_does_nothing_but_make_and_add_up_counts(rows: list[Row], name: str, rank: str, precision: str) -> None:
    """No copy from or to the host, and nothing that waits for the device; items of Meta tensors would be errors."""
    operators = [row for row in select(rows, "predicted", name, rank, precision) if "::" in row["name"]]
    assert {row["name"] for row in operators} <= {"aten::zeros", "aten::add"}
    assert sum(row["bytes"] for row in operators) <= 64


@OF_STEP
def test_names_are_those_that_the_profilers_rows_have(rows: list[Row], name: str, rank: str, precision: str) -> None:
    for row in select(rows, "predicted", name, rank, precision):
        if row["name"].startswith("cuBLAS"):
            assert row["name"].split()[1] in ("FP32", "TF32", "BF16")
        elif "::" not in row["name"]:
            types = row["name"].replace("<", "<torchdion::linalg::cuda::")
            run = "run_cluster_program" if row["name"].startswith("FactorGram") else "run_program"
            whole = f"void torchdion::linalg::cuda::{run}<torchdion::linalg::cuda::{types} >(torchdion)"
            assert short(whole) == row["name"]
