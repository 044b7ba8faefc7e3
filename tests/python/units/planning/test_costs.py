"""What torchdion.plan says of operations, memory, traffic and time: the paper's tables, and textbook counts."""

import time
from dataclasses import replace

import pytest
import torch
from plan_models import block_model
from torch import nn

import torchdion
from torchdion.planning.machines import MACHINES, Machine
from torchdion.planning.models import MODELS, PLAN_OF_MATRICES, first_stage, matrices

# ---- the paper ----


def one_matrix(m: int, n: int, count: int = 1) -> nn.Module:
    return matrices(f"{m}x{n}*{count}:colwise")


COLWISE = PLAN_OF_MATRICES


def test_table_2_of_the_paper() -> None:
    m, n, r = 4096, 1024, 128
    found = torchdion.plan(
        one_matrix(m, n),
        {"dp": 4, "fs": 2, "tp": 8},
        rank_fraction=0.125,
        orientation="left",
        orthonormalize="rcqr",
        fs_cuts="other",
        tp_plan=COLWISE,
    )
    [row] = found.rows
    m_j, n_i = m // 8, n // 2  # the full tensors of a collective are those of a rank
    k = 160
    elements = {name: cost.elements for name, cost in row.costs.items()}
    assert row.compresses
    assert elements["dion_compressed"] == {
        "dp": (m_j + n_i) * r,
        "fs": (m_j + 1) * r,
        "tp": 2 * n_i * r + k * r + r * (r + 1) // 2,  # of the paper's r² a triangle travels: the matrix is symmetric
    }
    assert elements["dion_dense"] == {**elements["dion_compressed"], "dp": m_j * n_i}
    assert elements["adamw"] == {"dp": m_j * n_i}
    assert elements["muon_gathering"] == {"dp": m_j * n_i, "fs": m_j * n, "tp": m * n}
    shards, step = 2 * 8, 1
    entries = {"dion_compressed": m * n + n * r, "muon_gathering": m * n, "adamw": 2 * m * n}
    assert {name: row.costs[name].state_bytes for name in entries} == {
        name: 4 * (count // shards + step) for name, count in entries.items()
    }


@pytest.mark.parametrize(
    ("orientation", "P", "Q", "of_P", "of_Q"), [("left", 4096, 1024, 8, 2), ("right", 1024, 4096, 2, 8)]
)
def test_operations_of_dion_are_those_of_the_papers_appendix_h(
    orientation: str, P: int, Q: int, of_P: int, of_Q: int
) -> None:
    r = 256
    found = torchdion.plan(
        one_matrix(4096, 1024),
        {"fs": 2, "tp": 8},
        rank_fraction=0.25,
        orientation=orientation,
        orthonormalize="rcqr",
        fs_cuts="other",
        tp_plan=COLWISE,
    )
    expected = 8 * P * Q * r / (of_P * of_Q) + 13 * P * r**2 / (2 * of_P) + 13 * r**3 / 6
    assert found.rows[0].costs["dion_dense"].flops == pytest.approx(expected, rel=1e-6)
    assert found.rows[0].costs["muon_gathering"].flops == one_by_one(4096, 1024)


def one_by_one(m: int, n: int) -> int:
    """Operations of five Newton–Schulz iterations for n ≤ m."""
    return 20 * m * n**2 + 10 * n**3


def on_gram(m: int, n: int) -> int:
    """The same in BF16 on Gram matrices: two, two and one, with two products with the matrix for each."""
    return 3 * 4 * m * n**2 + (5 + 5 + 1) * 2 * n**3


def test_appendix_a_of_the_paper_muon_would_add_278_days_to_llama_3_405b() -> None:
    """TP 8 × FS 128, 16 pipeline stages, about a second for five iterations on an H100, a million steps."""
    found = torchdion.plan(first_stage(MODELS["llama3-405b"], 16), {"fs": 128, "tp": 8}, rank_fraction=0.25)
    mlp = [row for row in found.rows if any(".mlp." in name for name in row.names)]
    assert sum(len(row.names) for row in mlp) == 24
    assert {tuple(sorted(row.shape)) for row in mlp} == {(16384, 53248)}
    rate = found.efficiency * found.machine.bf16

    def days(optimizer: str, rate: float) -> float:
        return sum(row.costs[optimizer].flops for row in mlp) / rate * 1e6 / 86400

    assert days("muon_gathering", rate) / 24 * 86400 / 1e6 == pytest.approx(1, rel=0.01)  # seconds for each
    assert round(days("muon_gathering", rate)) == 278
    fewer = on_gram(53248, 16384) / one_by_one(53248, 16384)
    assert days("muon", rate) == pytest.approx(278 / 24 * fewer, rel=0.01)  # one of the 24
    assert days("dion_dense", found.efficiency * found.machine.tf32) < 1
    assert found.estimates["muon_gathering"].seconds > 24


@pytest.mark.parametrize(("method", "dtype"), [("qr", torch.float32), ("auto", torch.float32), ("auto", torch.float64)])
def test_operations_of_the_other_ways_to_orthonormalize(method: str, dtype: torch.dtype) -> None:
    model = matrices("512x256", dtype)
    found = torchdion.plan(model, {}, rank_fraction=0.25, orthonormalize=method, orientation="left")
    m, r = 512, 64
    cholesky = 3 * m * r**2 + r**3 / 3  # Gram, factor, solve
    expected = 2 * (2 * m * r**2 - 2 / 3 * r**3) if method == "qr" else (2 + (dtype == torch.float64)) * cholesky
    assert found.rows[0].costs["dion_dense"].flops - 8 * m * 256 * r == pytest.approx(expected, abs=3)


# ---- optimizers beside it ----


def test_passes_over_memory() -> None:
    """In matrices: M and X updated, G read; by Dion M read for two products and updated twice; what Muon
    orthonormalizes is written in the same pass in BF16, read, and read again as the result; Double Dion has two
    momenta; DeMo decays its momentum, takes coefficients off it and reads it for them, of which it makes three passes,
    as does the update. NorMuon reads the result once more; Dion2 reads its momentum for norms, and has a quarter of a
    matrix in BF16 for each of what Muon has."""
    costs = torchdion.plan(matrices("512x256"), {}).rows[0].costs
    passes = {name: cost.memory_bytes / (4 * 512 * 256) for name, cost in costs.items()}
    assert passes == {
        "dion_compressed": 9, "dion_dense": 9, "muon": 6.5, "muon_gathering": 5, "adamw": 7,
        "double_dion": 15, "demo": 14, "lion": 5, "dist_muon": 6.5, "dist_adamw": 7,
        "normuon": 7, "dion2": 6 + 3 / 8, "dion3": 6 + 3 / 8,
    }  # fmt: skip


def test_matrices_that_are_cut_are_handed_out_over_their_shards() -> None:
    sizes = {"dp": 2, "fs": 2, "tp": 2}
    found = torchdion.plan(one_matrix(512, 256, count=5), sizes, fs_cuts="other", tp_plan=COLWISE)
    costs = found.rows[0].costs
    piece = 256 * 128
    assert costs["muon"].flops == on_gram(512, 256)  # one of five, on eight ranks
    assert costs["muon"].state_bytes == 4 * (5 * piece + 5)
    # of five this rank's replica sums three, its column of the grid puts two together, and it the first of them
    assert costs["muon"].elements == {"dp": 5 * piece, "fs": 3 * piece, "tp": 2 * 2 * piece}
    # in BF16 to the replicas that sum it, to owners, and back
    assert costs["muon"].bytes == {
        "dp": (2 + 3) * piece * 2, "fs": (1 + 2) * piece * 2, "tp": (1 + 1) * 2 * piece * 2
    }  # fmt: skip


def test_matrices_that_are_not_cut_are_handed_out_over_the_replicas() -> None:
    found = torchdion.plan(one_matrix(512, 256, count=10), {"dp": 4}, rank_fraction=0.25, orthonormalize="cholesky_qr")
    costs = found.rows[0].costs
    owned, entries = 3, 512 * 256
    assert costs["muon"].flops == owned * on_gram(512, 256)
    assert costs["muon_gathering"].flops == 10 * one_by_one(512, 256)
    assert costs["muon"].state_bytes == 4 * (10 * entries + 10)
    assert costs["muon"].elements == {"dp": 10 * entries}
    assert costs["muon"].bytes == {"dp": (10 - owned + 3 * owned) * entries * 2}
    products, factored = 8 * 512 * 256 * 64, 2 * (3 * 256 * 64**2 + 64**3 // 3)
    assert costs["dion_compressed"].flops == 10 * products + owned * factored
    assert costs["dion_dense"].flops == 10 * (products + factored)


def test_vectors_and_embeddings_cost_the_same_with_dion_and_muon_and_more_with_adamw() -> None:
    found = torchdion.plan(block_model(), {"dp": 2, "fs": 2})
    costs = found.row_of("embedding.weight").costs
    assert costs["dion_compressed"] == costs["muon_gathering"] == costs["muon"]
    assert costs["adamw"].state_bytes - 4 == 2 * (costs["dion_dense"].state_bytes - 4) == 8 * 48 * 64
    with_adamw = torchdion.plan(block_model(), {"dp": 2, "fs": 2}, scalar_algorithm="adamw")
    assert with_adamw.row_of("embedding.weight").costs["dion_dense"] == costs["adamw"]


def test_state_in_bf16_and_parameters_in_bf16_halve_what_they_are_counted_by() -> None:
    full = torchdion.plan(matrices("512x256"), {"dp": 2}, rank_fraction=0.25)
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype="bfloat16", Q_dtype="bfloat16")
    mixed = torchdion.plan(matrices("512x256"), {"dp": 2}, rank_fraction=0.25, mixed_precision_config=config)
    half = torchdion.plan(matrices("512x256", torch.bfloat16), {"dp": 2}, rank_fraction=0.25)
    states = [found.rows[0].costs["dion_dense"].state_bytes - 4 for found in (full, mixed, half)]
    assert states == [4 * (512 * 256 + 512 * 64), states[0] / 2, states[0] / 2]
    sent = [found.rows[0].costs["dion_dense"].bytes["dp"] for found in (full, mixed, half)]
    assert sent == [512 * 256 * 4, 512 * 256 * 4, 512 * 256 * 2]
    assert half.rows[0].costs["dion_compressed"].bytes == full.rows[0].costs["dion_compressed"].bytes  # FP32 factors


@pytest.mark.parametrize(
    ("algorithm", "residual", "compresses"),
    [("dion", None, True), ("dion", "sign", False), ("demo", "sign", True), ("double_dion", "scaled", True)],
)
def test_replicas_of_a_residual_average_gradients_where_the_algorithm_has_one(
    algorithm: str, residual: str | None, compresses: bool
) -> None:
    param = nn.Parameter(torch.empty(64, 48, device="meta"))
    group = {"params": [("a", param)], "algorithm": algorithm, "residual": residual, "rank_fraction": 0.25}
    found = torchdion.plan([group], {"dp": 2})
    assert ("dion_compressed" in found.estimates) == compresses
    assert found.rows[0].compresses == compresses
    assert "dion_dense" in found.estimates


# ---- time ----


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_each_figure_of_a_machine_has_a_public_source(machine: Machine) -> None:
    figures = {name for name, value in vars(machine).items() if isinstance(value, float)}
    assert figures == set(machine.sources)
    assert all(source.startswith("https://") for source in machine.sources.values())
    assert machine.fp32 < machine.tf32 <= machine.bf16 / 2 * 1.01
    assert machine.network < machine.node < machine.memory


def test_an_axis_that_leaves_the_node_uses_the_cards_of_its_ranks_there() -> None:
    h100 = MACHINES["h100"]
    found = torchdion.plan(block_model(), {"dp": 4, "fs": 8, "tp": 4}, machine="h100")
    links = {axis: (link.size, link.ranks_in_node, link.bandwidth) for axis, link in found.links.items()}
    assert links == {
        "dp": (4, 1, h100.network),
        "fs": (8, 2, 2 * h100.network),
        "fs_tp": (32, 8, 8 * h100.network),
        "tp": (4, 4, h100.node),
    }


def test_many_cards_are_no_faster_than_the_node() -> None:
    machine = replace(MACHINES["h100"], network=100e9)
    found = torchdion.plan(block_model(), {"dp": 16}, machine=machine)
    assert found.links["dp"].bandwidth == 450e9
    assert torchdion.plan(block_model(), {"dp": 16}).links["dp"].bandwidth == 8 * 50e9


def test_the_estimated_time_is_between_the_largest_term_and_their_sum() -> None:
    model = matrices("4096x4096*8:colwise,64x64")
    found = torchdion.plan(model, {"dp": 8, "tp": 2}, rank_fraction=0.25, tp_plan=COLWISE, efficiency=0.5)
    estimate, h100 = found.estimates["muon_gathering"], MACHINES["h100"]
    large = 8 * 30 * 4096**3 / (0.5 * h100.bf16)
    small = 5 * 4 * 64 * 64 / h100.memory  # its passes over memory take longer than its products
    assert estimate.compute_seconds == pytest.approx(large + small, rel=1e-9)
    over_tp = 8 * 4096 * 4096 * 2 / 2 / h100.node
    over_dp = 2 * (8 * 2048 * 4096 + 64 * 64) * 4 * 7 / 8 / (4 * h100.network)
    assert estimate.axis_seconds == pytest.approx({"tp": over_tp, "dp": over_dp}, rel=1e-9)
    assert estimate.seconds == pytest.approx(large + small + over_tp + over_dp, rel=1e-9)
    assert estimate.overlapped_seconds == estimate.compute_seconds
    high = torchdion.plan(model, {}, rank_fraction=0.25, tp_plan=COLWISE).estimates["dion_dense"]
    medium = torchdion.plan(model, {}, rank_fraction=0.25, tp_plan=COLWISE, precision="medium").estimates["dion_dense"]
    assert high.compute_seconds / medium.compute_seconds == pytest.approx(2, rel=0.01)


def test_405b_parameters_on_16384_ranks_take_a_second() -> None:
    start = time.perf_counter()
    found = torchdion.plan(first_stage(MODELS["llama3-405b"]), {"dp": 16, "fs": 128, "tp": 8}, rank_fraction=0.25)
    text = str(found)
    assert time.perf_counter() - start < 5  # 0.4 on an idle machine
    assert sum(len(row.names) for row in found.rows) == 126 * 9 + 3
    assert "layers.*.mlp.{gate_proj,up_proj}.weight" in text
