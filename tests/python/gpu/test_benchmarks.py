"""The programs of benchmarks/gpu on a CPU: what they write, and that nothing in the way of one row ends all."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import gpu_accuracy
import gpu_kernels
import gpu_products
import gpu_profile
import gpu_rivals
import gpu_step
import pytest
import torch
from gpu_case import Case
from gpu_lists import LISTS, RANKS, factors_of, groups_of, least_ms
from kernel_names import shares, short
from machine import Host, Kernel, Rates, on_device
from matrices import roofline_flops

import torchdion

DRY = ["--device", "cpu", "--list", "tiny", "--rounds", "1"]
OWN = {f"torchdion.{name}" for name in ("Muon", "NorMuon", "Dion2", "Dion3", "AdamW", "Lion")}


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# ---- programs ----


def written(capsys: pytest.CaptureFixture[str], program: Any, *arguments: str) -> list[dict[str, Any]]:
    """The rows of a program that succeeds, without those of the machine."""
    assert program.main([*DRY, *arguments]) == 0
    first, *rows = rows_of(capsys.readouterr().out)
    assert first["kind"] == "machine"
    return rows


def test_steps_are_timed_in_every_mode_in_the_order_of_what_targets_need(capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(capsys, gpu_step)
    eager = [row for row in rows if row["mode"] == "eager"]
    ranks, states = ("d/4", "d/16", "d"), ("FP32", "BF16")
    assert [(row["state"], row["rank"], row["precision"]) for row in eager] == list(
        product(states, ranks, ("high", "medium"))
    )
    modes = ["eager", "back to back"] * 2 + ["capturable", "graph", "graphs back to back"]
    assert [row["mode"] for row in rows] == modes * 6
    halves = {row["state"]: row["state_mb"] for row in eager if row["rank"] == "d"}
    assert halves["BF16"] == pytest.approx(halves["FP32"] / 2, rel=1e-3)
    assert all(row["ms"] > 0 and row["least_ms"] > 0 for row in rows)


def test_the_largest_list_is_measured_if_time_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_step.main(["--device", "cpu", "--list", "3b", "1.3b", "120m", "--end", "1"]) == 0
    rows = rows_of(capsys.readouterr().out)[1:]
    assert list(dict.fromkeys((row["list"], row["state"]) for row in rows)) == [
        *product(("1.3b",), ("FP32",)),
        *product(("120m",), ("FP32",)),
        ("1.3b", "BF16"),
        ("120m", "BF16"),
        ("3b", "FP32"),
        ("3b", "BF16"),
    ]
    assert {row["problem"] for row in rows} == {"left out: the time limit was over"}


def test_factors_are_orthonormal_and_steps_close_to_fp64(capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(capsys, gpu_accuracy)
    factors = [row for row in rows if row["kind"] == "orthogonality"]
    assert {row["condition"] for row in factors} == {1e2, 1e4, 1e6, 1e8} | {1e0}
    for precision, bound in (("highest", 1e-6), ("high", 1e-6), ("medium", 1e-5)):
        assert 0 < max(row["error"] for row in factors if row["precision"] == precision) < bound
    assert len(factors) == 2 * 5 * 2 * 3  # sizes, conditions, methods, precisions
    assert gpu_accuracy.defect(torch.eye(3)[:, :0]) == gpu_accuracy.defect(torch.full((3, 1), torch.nan)) == torch.inf
    for row in factors:  # 1e-8 is below FP32's rounding; BF16 drops more
        assert row["precision"] == "medium" or (row["zero_columns"] > 0) == (row["condition"] == 1e8), row
    distances = {(row["state"], row["precision"]): row["error"] for row in rows if row["kind"] == "distance"}
    assert distances["FP32", "highest"] < 1e-4 < 1e-3 < distances["BF16", "high"] < 0.05
    assert 1e-4 < distances["FP32", "medium"] < 0.05


def test_every_operation_and_every_way_of_a_product_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    operations = {(row["operation"], row.get("method")) for row in written(capsys, gpu_kernels)}
    assert {name for name, _ in operations} == {
        *("gram", "linalg.cholesky", "orthonormalize", "column_normalize", "sketch_"),
    }
    assert {way for name, way in operations if name == "gram"} == {"strided", "pointers", "each"}
    rows = written(capsys, gpu_products)
    sizes = [(8, 64, 64, 16), (2, 256, 64, 16), (2, 64, 256, 16), (8, 64, 64, 4), (2, 256, 64, 4), (2, 64, 256, 4)]
    for kind in ("product", "product kernel"):
        found = [row for row in rows if row["kind"] == kind]
        assert {(row["count"], row["m"], row["n"], row["r"], row["precision"]) for row in found} == {
            (*size, precision) for size in sizes for precision in ("high", "medium")
        }
        assert [row["method"] for row in found] == ["strided", "pointers", "each", "torchdion"] * 48
    for row in (row for row in rows if row["kind"] == "product"):
        assert row["of_copy_rate"] * row["over_limit"] <= 1 + 1e-5, row  # 1 where traffic is the limit
    assert all(row["kernels"] for row in rows if row["kind"] == "product kernel")


@pytest.mark.parametrize("precision", gpu_products.PRECISIONS)
def test_products_by_each_way_are_those_of_torchdion(precision: str) -> None:
    machine = Host(1e99)
    torch.manual_seed(0)
    start = gpu_products.products_of(machine, precision, 3, 12, 8, 4)
    stored = {one.C.dtype for one in start.values()}
    assert stored == ({torch.float32} if precision == "high" else {torch.float32, torch.bfloat16})
    for name, one in start.items():
        C, A, B, alpha, beta, _ = one
        exact = alpha * A.double() @ B.double()
        expected = exact + beta * C.double() if beta else exact
        for method in gpu_products.METHODS:
            result = C.clone()
            one._replace(C=result).runner(machine, method)()
            error = (result - expected).abs().max() / expected.abs().max()
            assert error < (1e-5 if C.dtype == torch.float32 else 2**-8), (name, method)


def test_bytes_of_a_product_count_a_result_that_is_read_twice() -> None:
    of_one = gpu_products.products_of(Host(1e99), "medium", 1, 12, 8, 4)
    bytes_of_m = 4 * 12 * 8 * 2 + 2 * 4 * (12 + 8)  # FP32, read and written; BF16 factors
    assert [one.nbytes for one in of_one.values()][2:] == [bytes_of_m] * 2
    assert of_one["P = M Q"].nbytes == 2 * (12 * 8 + 4 * (12 + 8))


def test_rivals_get_the_same_matrices_and_are_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(capsys, gpu_rivals)
    steps = {(row["optimizer"], row["mode"]) for row in rows if row["kind"] == "step"}
    rivals = {"AdamW", "Muon", *OWN}
    graphs = {("torchdion.Muon", "graph"), ("Dion", "beside torch")}
    assert steps == {(optimizer, "eager") for optimizer in rivals} | graphs
    launches = {row["optimizer"]: row["launches"] for row in rows if row["kind"] == "launches"}
    assert set(launches) == rivals
    assert launches["Muon"] > launches["AdamW"] > 0


def test_symmetric_products_are_left_to_cublas_in_a_program_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDION_SYMMETRIC_PRODUCTS", "1")
    at_steps = []
    timed = Host.median_ms

    def watched(*arguments: Any, **options: Any) -> tuple[float, int]:
        at_steps.append(os.environ["TORCHDION_SYMMETRIC_PRODUCTS"])
        return timed(*arguments, **options)

    monkeypatch.setattr(Host, "median_ms", watched)
    for of, optimizer, mode in (("torch", "AdamW", "eager"), ("cublas", "torchdion.Muon", "cuBLAS alone")):
        row, *_ = written(capsys, gpu_rivals, "--of", of)
        assert [row[name] for name in ("optimizer", "mode")] == [optimizer, mode]
        assert set(at_steps) == {"1" if of == "torch" else "0"}
        at_steps.clear()


def package(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A package that can be imported."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_the_optimizers_that_a_package_has_are_timed_beside_ours_of_that_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package(monkeypatch, "dion", Muon=torchdion.Muon, Dion2=torchdion.Dion2, Dion=torchdion.Dion, NorDion2=print)
    rows = written(capsys, gpu_rivals, "--of", "siblings")
    assert [(row["optimizer"], row["mode"]) for row in rows] == [
        ("dion package Muon", "eager"),
        ("torchdion.Muon", "beside dion"),
        ("dion package Dion2", "eager"),
        ("torchdion.Dion2", "beside dion"),
    ]
    assert all(row["ms"] > 0 for row in rows)


def test_gram_newton_schulz_is_timed_as_an_optimizer_and_on_stacks_in_bf16(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[torch.Tensor] = []
    package(monkeypatch, "gram_newton_schulz", Muon=torchdion.Muon, GramNewtonSchulz=lambda: given.append)
    muon, beside, *stacks = written(capsys, gpu_rivals, "--of", "gram")
    assert [(row["optimizer"], row["mode"]) for row in (muon, beside)] == [
        ("gram-newton-schulz Muon", "eager"),
        ("torchdion.Muon", "beside gram"),
    ]
    sizes = [(8, 64, 64), (2, 256, 64), (2, 64, 256)]
    assert [tuple(row[name] for name in ("count", "m", "n")) for row in stacks] == sizes
    assert {(row["kind"], row["operation"]) for row in stacks} == {("operation", "GramNewtonSchulz")}
    assert list(dict.fromkeys(tuple(matrices.shape) for matrices in given)) == sizes
    assert {matrices.dtype for matrices in given} == {torch.bfloat16}


@pytest.mark.parametrize(("of", "name"), [("siblings", "dion"), ("gram", "gram_newton_schulz")])
def test_packages_that_may_be_missing_are_no_failure(capsys: pytest.CaptureFixture[str], of: str, name: str) -> None:
    assert gpu_rivals.main([*DRY, "--of", of]) == 0
    assert capsys.readouterr().out == f"gpu_rivals.py: nothing is measured of {of}: there is no package {name}\n"


def test_a_missing_package_is_a_failure_and_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_rivals.main([*DRY, "--of", "dion"]) == 1
    [row] = rows_of(capsys.readouterr().out)
    assert (row["optimizer"], row["problem"][:27]) == ("dion package", "no package dion is on PYTHO")


def test_what_is_in_the_way_of_a_row_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(error: Exception) -> Any:
        yield {"ms": 1.0}
        raise error

    def never() -> Any:
        raise AssertionError("measured after the time limit")
        yield

    machine, late = Host(1e99), Host(0.0)
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


class Graphs(Host):
    """Graphs that are calls, of a step or of nothing."""

    def __init__(self, captures: bool) -> None:
        super().__init__(1e99)
        self.captures = captures

    def captured(self, step: Callable[[], object], warm_up: int) -> Callable[[], object]:
        return step if self.captures else lambda: None


@pytest.mark.parametrize("captures", [True, False])
def test_a_graph_that_does_nothing_is_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    monkeypatch.setattr(gpu_step, "dion", lambda *_, **__: partial(torchdion.Dion, lr=0.1))
    machine = Graphs(captures)
    case = Case(machine, [(8, 4)], 3, Rates(1e9, 1e9, 1e9, 1e9))
    machine.attempt({"mode": "graph"}, gpu_step.graph_rows(case, "d", "FP32"))
    eager, row, *following = rows_of(capsys.readouterr().out)
    assert (eager["mode"], eager["rounds"], row["mode"]) == ("capturable", 3, "graph")
    assert machine.finish() == (0 if captures else 1)
    if captures:
        assert (row["rounds"], row["least_ms"]) == (3, pytest.approx(eager["least_ms"], rel=1e-5))
        assert [row["mode"] for row in following] == ["graphs back to back"]
    else:
        assert row["problem"] == "the replayed graph left the weights as they were"


def test_slow_steps_are_timed_less_often_but_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Host(1e99)
    monkeypatch.setattr(machine, "ms", lambda run, times=1: times * run())
    assert [machine.median_ms(lambda ms=ms: ms, 10, budget_ms=50)[1] for ms in (1.0, 10.0, 1000.0)] == [10, 5, 3]
    times = iter([9.0, 1.0, 2.0])
    assert machine.median_ms(lambda: next(times), 3) == (2.0, 3)
    assert [machine.back_to_back_ms(lambda ms=ms: ms, 10, 50) for ms in (1.0, 10.0, 1000.0)] == [
        (1.0, 30),
        (10.0, 5),
        (1000.0, 3),
    ]


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
    assert factors_of(LISTS["3b"](), 1.0) == [(8, 3072, 3072), (7, 12288, 3072), (7, 3072, 3072)]
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
        ("void splitKreduce_kernel<32, 16, int, float, float, float, float, true>(Params)", "cuBLAS sum of parts"),
        ("void cutlass::device_kernel<cutlass::tfloat32_t, float>(Params)", "cuBLAS TF32"),
        ("void n::run_program<n::Upload<(int)460> >(n)", "Upload<460>"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)", "cuBLAS TF32"),
        ("nvjet_sss_tf32_128x256_TNT", "cuBLAS TF32"),
        ("nvjet_sm90_sss_128x128_32x5_1x2_h_bz_NTN", "cuBLAS TF32"),
        ("nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", "cuBLAS BF16"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "cuBLAS BF16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "cuBLAS FP16"),
        ("nvjet_qqtst_128x256_64x4_NNT", "cuBLAS nvjet_qqtst"),
        ("void gemmSN_NN_kernel<float, 128, 2>(Params)", "cuBLAS FP32"),
        ("void gemv2T_kernel_val<int, int, double, double, double, 128>(Params)", "cuBLAS FP64"),
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
    monkeypatch.setattr(Host, "kernels", lambda self, run: profiled)
    case = Case(Host(1e99), LISTS["tiny"](), 1, Rates(1.0, 1.0, 1.0, copy=1e9))
    gpu_profile.profile({"tiny": case})
    rows = rows_of(capsys.readouterr().out)
    labels = ("optimizer", "rank", "state")
    launches = {tuple(map(row.get, labels)): row for row in rows if row["kind"] == "launches"}
    assert set(launches) == {
        *product(("Dion",), RANKS, ("FP32", "BF16")),
        *product(OWN, (None,), ("FP32",)),
    }
    assert {(row["launches"], row["groups"]) for row in launches.values()} == {(12, 3)}
    assert {row["optimizer"] for row in rows if row["kind"] == "kernel"} == OWN | {"Dion"}
    predicted = {row["optimizer"] for row in rows if row["kind"] == "predicted"}
    assert predicted >= {"Dion", "Muon", "NorMuon"}  # as predicted.py names them
    assert not predicted & OWN
    numel = 2 * 12 * 64 * 64
    for state, entry_bytes in (("FP32", 12), ("BF16", 8)):
        accumulate, product_row = (
            row for row in rows if (row["kind"], row.get("state"), row.get("rank")) == ("kernel", state, "d")
        )
        assert accumulate["over_copy"] == pytest.approx(3e-3 / (numel * entry_bytes / 1e9), rel=1e-5)
        assert (accumulate["share"], product_row["over_copy"]) == (0.75, None)


def test_only_dion_is_profiled_on_the_largest_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled = [Kernel("run_program<n::AccumulateRows<float, float> >", 3, 3.0)]
    monkeypatch.setattr(Host, "kernels", lambda self, run: profiled)
    case = Case(Host(1e99), LISTS["tiny"](), 1, Rates(1.0, 1.0, 1.0, 1.0))
    gpu_profile.profile({"120m": case, "3b": case})
    kernels = [row for row in rows_of(capsys.readouterr().out) if row["kind"] == "kernel"]
    assert {row["optimizer"] for row in kernels if row["list"] == "120m"} == OWN | {"Dion"}
    assert {row["optimizer"] for row in kernels if row["list"] == "3b"} == {"Dion"}
    assert {row["over_copy"] for row in kernels} == {None}  # whose bytes are not those of Dion's Accumulate


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
