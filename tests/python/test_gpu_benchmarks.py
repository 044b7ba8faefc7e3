"""benchmarks/gpu on a CPU: what its programs write and what is made of it; nothing in the way of one row ends all."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(1, str(Path(__file__).parents[2] / "benchmarks" / "gpu"))
sys.path.insert(1, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_accuracy
import gpu_kernels
import gpu_report
import gpu_step
from gpu_lists import LISTS, RANKS, factors_of, groups_of, least_ms
from kernel_names import shares, short
from machine import Kernel, Machine, Rates, on_device
from matrices import roofline_flops
from measure import seconds

import torchdion

RUN = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.sh"
DRY = ["--device", "cpu", "--list", "tiny", "--rounds", "1"]


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# ---- programs ----


def test_all_programs_write_rows_that_make_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for program in (gpu_accuracy, gpu_kernels, gpu_step):
        assert program.main(DRY) == 0
    lines = capsys.readouterr().out
    (tmp_path / "rows.jsonl").write_text(lines + lines[:20])  # the last line was cut off
    assert gpu_report.main([str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "steps.png")]) == 0
    report = capsys.readouterr().out
    rows = rows_of(lines)

    eager = [row for row in rows if row["kind"] == "step" and row["mode"] == "eager" and row["optimizer"] == "Dion"]
    assert [(row["rank"], row["state"], row["precision"]) for row in eager] == list(
        product(RANKS, ("FP32", "BF16"), ("high", "medium"))
    )
    halves = {row["state"]: row["state_mb"] for row in eager if row["rank"] == "d"}
    assert halves["BF16"] == pytest.approx(halves["FP32"] / 2, rel=1e-3)
    assert {row["optimizer"] for row in rows if row["kind"] == "step"} == {"Dion", "AdamW", "Muon", "dion package"}

    factors = [row for row in rows if row["kind"] == "orthogonality"]
    assert {row["condition"] for row in factors} == {1e0, 1e2, 1e4, 1e6, 1e8}
    assert max(row["error"] for row in factors) < 1e-6
    assert all(
        (row["zero_columns"] > 0) == (row["condition"] == 1e8) for row in factors
    )  # 1e-8 is below FP32's rounding
    distances = {row["state"]: row["error"] for row in rows if row["kind"] == "distance"}
    assert distances["FP32"] < 1e-4 < 1e-3 < distances["BF16"] < 0.05

    operations = {row["operation"] for row in rows if row["kind"] == "operation"}
    assert operations == {"orthonormalize", "column_normalize", "sketch_", "gemm_"}
    assert (tmp_path / "steps.png").stat().st_size > 10_000
    for title in ("Targets", "Steps of Dion", "Other optimizers", "Operations", "‖PᵀP − I‖₂, the worst"):
        assert f"### {title}\n" in report
    assert "| tiny | d/16 | BF16 | medium |" in report


# In place of Python: one program fails after its row, the others say what they were given.
PYTHON = """#!/bin/sh
echo "{\\"program\\": \\"$(basename "$1")\\", \\"flags\\": \\"$2\\"}"
case $1 in *gpu_kernels.py) exit 3;; esac
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python)}
    return subprocess.run([str(RUN), *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_a_part_that_fails_stops_no_other_and_counts(tmp_path: Path) -> None:
    ended = run(tmp_path, "--only", "steps,kernels,report", str(tmp_path / "out"), "--", "--rounds=3")
    summary = ended.stdout.split("=== summary\n")[1].splitlines()
    assert [line.rsplit(", ", 1)[0] for line in summary] == ["kernels: failed, status 3", "steps: done", "report: done"]
    assert ended.returncode == 1
    rows = rows_of((tmp_path / "out" / "rows.jsonl").read_text())
    assert rows == [{"program": f"gpu_{name}.py", "flags": "--rounds=3"} for name in ("kernels", "step")]
    assert "gpu_report.py" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "log.txt").read_text() == ended.stdout


def test_parts_that_succeed_end_with_zero_and_rows_are_kept(tmp_path: Path) -> None:
    for part in ("accuracy", "steps"):
        assert run(tmp_path, "--only", part, str(tmp_path / "out")).returncode == 0
    rows = rows_of((tmp_path / "out" / "rows.jsonl").read_text())
    assert [row["program"] for row in rows] == ["gpu_accuracy.py", "gpu_step.py"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "steps,test"), "run.sh: no such part: test; there are build tests sanitizer accuracy"),
        (("--only",), "run.sh: --only needs parts"),
        (("--onyl", "steps"), "run.sh: no such option: --onyl"),
    ],
)
def test_wrong_arguments_run_nothing(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ended = run(tmp_path, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(sentence)


def test_without_a_gpu_tests_and_sanitizer_fail_instead_of_being_skipped(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = [str(RUN), "--only", "tests,sanitizer", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout.count("run.sh: needs a GPU that torch can use, and a build with CUDA\n") == 2


def test_what_is_in_the_way_of_a_row_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(error: Exception) -> Any:
        yield {"ms": 1.0}
        raise error

    def never() -> Any:
        raise AssertionError("measured after the time limit")
        yield

    machine, late = Machine("cpu", 60.0), Machine("cpu", -1.0)
    machine.attempt({"optimizer": "a"}, failing(torch.OutOfMemoryError("CUDA out of memory. Tried ...")))
    machine.attempt({"optimizer": "b"}, failing(RuntimeError("no kernel\nbacktrace")))
    late.attempt({"optimizer": "c"}, never())
    assert rows_of(capsys.readouterr().out) == [
        {"optimizer": "a", "ms": 1.0},
        {"optimizer": "a", "problem": "out of memory"},
        {"optimizer": "b", "ms": 1.0},
        {"optimizer": "b", "problem": "no kernel"},
        {"optimizer": "c", "problem": "left out: the time limit was over"},
    ]


class GraphsAsCalls(Machine):
    """A CPU whose graphs are calls, of a step or of nothing."""

    def __init__(self, captures: bool) -> None:
        super().__init__("cpu", 60.0)
        self.captures = captures

    def ms(self, run: Callable[[], object]) -> float:
        return seconds(run)

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], object]:
        return step if self.captures else lambda: None

    def free(self) -> None:
        pass


@pytest.mark.parametrize("captures", [True, False])
def test_a_graph_that_does_nothing_is_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    monkeypatch.setattr(gpu_step, "dion", lambda *_, **__: partial(torchdion.Dion, lr=0.1))
    machine = GraphsAsCalls(captures)
    case = gpu_step.Case(machine, [(8, 4)], 3, Rates(1e9, 1e9, 1e9, 1e9))
    rows = gpu_step.graph_rows(case, "d", "FP32")
    eager = next(rows)  # up to here as on a CPU
    machine.is_gpu = True
    machine.attempt({"mode": "graph"}, rows)
    [row] = rows_of(capsys.readouterr().out)
    assert (eager["mode"], eager["rounds"], row["mode"]) == ("capturable", 3, "graph")
    if captures:
        assert (row["rounds"], row["least_ms"]) == (3, pytest.approx(eager["least_ms"], rel=1e-5))
    else:
        assert row["problem"] == "the replayed graph left the weights as they were"


def test_slow_steps_are_timed_less_often_but_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("cpu", 60.0)
    monkeypatch.setattr(machine, "ms", lambda run: run())
    assert [machine.median_ms(lambda ms=ms: ms, 10, budget_ms=50)[1] for ms in (1.0, 10.0, 1000.0)] == [10, 5, 3]
    times = iter([9.0, 1.0, 2.0])
    assert machine.median_ms(lambda: next(times), 3) == (2.0, 3)


# ---- what the numbers mean ----


def test_the_roofline_is_the_longer_of_arithmetic_and_traffic() -> None:
    shapes = [(8, 4), (4, 8)]
    flops, products = roofline_flops(shapes, 0.5), 2 * 8 * 8 * 4 * 2
    assert least_ms(shapes, 0.5, "FP32", "high", (10.0, 1e9, 1e9)) == pytest.approx(1e3 * flops / 10)
    rounded = 1e3 * (products / 40 + (flops - products) / 10)
    assert least_ms(shapes, 0.5, "FP32", "medium", (10.0, 40.0, 1e9)) == pytest.approx(rounded)
    assert least_ms(shapes, 0.5, "BF16", "high", (10.0, 40.0, 1e9)) == pytest.approx(rounded)
    assert least_ms(shapes, 0.5, "FP32", "high", (1e9, 1e9, 10.0)) == pytest.approx(1e3 * 64 * 32 / 10)
    assert least_ms(shapes, 0.5, "BF16", "high", (1e9, 1e9, 10.0)) == pytest.approx(1e3 * 64 * 22 / 10)


def test_factors_are_those_that_a_step_orthonormalizes_at_once() -> None:
    assert factors_of(LISTS["120m"](), 1 / 4) == [(48, 768, 192), (12, 3072, 192), (12, 768, 192)]
    assert factors_of(LISTS["3b"](), 1.0) == [(7, 3072, 3072), (2, 12288, 3072), (2, 3072, 3072)]
    assert groups_of(LISTS["3b"]()) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void n::cuda::run_program<n::cuda::Accumulate<float, n::cuda::BFloat16> >(n)", "Accumulate<float, BFloat16>"),
        ("void n::run_program<n::Upload>(n::Upload)", "Upload"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4", "cuBLAS TF32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(Params)", "cuBLAS FP64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_nn>(Params)", "cuBLAS BF16"),
        ("ampere_sgemm_128x64_nn", "cuBLAS FP32"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "cuBLAS nvjet_tst"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("void at::native::vectorized_elementwise_kernel<4, at::X>(int)", "at::native::vectorized_elementwise_kernel"),
    ],
)
def test_names_of_kernels_say_what_they_do(name: str, expected: str) -> None:
    assert short(name) == expected


def test_a_profile_counts_launches_and_says_what_accumulating_took_over_a_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled = [Kernel("run_program<n::Accumulate<float, float> >", 3, 3.0), Kernel("ampere_sgemm_128x64_nn", 9, 1.0)]
    monkeypatch.setattr(Machine, "kernels", lambda self, run: profiled)
    case = gpu_step.Case(Machine("cpu", 60.0), LISTS["tiny"](), 1, Rates(1.0, 1.0, 1.0, copy=1e9))
    gpu_step.profile({"tiny": case})
    rows = rows_of(capsys.readouterr().out)
    launches = {(row.get("rank"), row.get("state")): row for row in rows if row["kind"] == "launches"}
    assert set(launches) == set(product(RANKS, ("FP32", "BF16"))) | {(None, None)}
    assert {(row["launches"], row["groups"]) for row in launches.values()} == {(12, 3)}
    numel = 2 * 12 * 64 * 64
    for state, entry_bytes in (("FP32", 12), ("BF16", 8)):
        accumulate, product_row = (
            row for row in rows if (row["kind"], row.get("state"), row.get("rank")) == ("kernel", state, "d")
        )
        assert accumulate["over_copy"] == pytest.approx(3e-3 / (numel * entry_bytes / 1e9), rel=1e-5)
        assert (accumulate["share"], product_row["over_copy"]) == (0.75, None)


def test_kernels_of_one_name_are_summed_and_spans_of_the_profiler_left_out() -> None:
    def event(key: str, device: str, is_span: bool, count: int, us: float) -> SimpleNamespace:
        return SimpleNamespace(
            key=key,
            count=count,
            self_device_time_total=us,
            device_type=SimpleNamespace(name=device),
            is_user_annotation=is_span,
        )

    events = [
        event("run_program<n::Upload>", "CUDA", False, 2, 1000.0),
        event("run_program<m::Upload>", "CUDA", False, 1, 500.0),
        event("ampere_sgemm_128x64_nn", "CUDA", False, 4, 4500.0),
        event("Optimizer.step#Dion.step", "CUDA", True, 1, 9000.0),
        event("cudaLaunchKernel", "CPU", False, 7, 0.0),
    ]
    kernels = on_device(events)
    assert sum(kernel.launches for kernel in kernels) == 7
    assert kernels[0] == Kernel("run_program<n::Upload>", 2, 1.0)
    assert shares(kernels) == [
        {"kernel": "cuBLAS FP32", "launches": 4, "ms": 4.5, "share": 0.75},
        {"kernel": "Upload", "launches": 3, "ms": 1.5, "share": 0.25},
    ]
