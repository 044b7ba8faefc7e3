"""torchdion.plan lays parameters out as the library does, counts what a real job counts, and refuses what cannot be."""

from typing import Any, NamedTuple

import pytest
import torch
from fake_world import fake_world, mesh_of, numbered
from law import piece
from plan_models import block_model, distribute
from ranks import run_ranks
from roles import ROLES
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part
from torchdion.planning.models import MODELS, first_stage
from torchdion.planning.plan import Plan

# ---- layouts ----


@pytest.mark.parametrize("orientation", ["right", "left"])
@pytest.mark.parametrize("fs_cuts", ["rows", "other"])
@pytest.mark.parametrize(
    "sizes", [{"dp": 2, "fs": 4, "tp": 2}, {"dp": 3, "fs": 5}, {"tp": 4, "dp": 2}, {"fs": 2, "tp": 8}]
)
def test_a_described_mesh_lays_plain_parameters_as_fsdp2_and_tensor_parallelism_do(
    sizes: dict[str, int], fs_cuts: str, orientation: str
) -> None:
    options = {"rank_fraction": 0.25, "orientation": orientation}
    described = torchdion.plan(block_model(), sizes, fs_cuts=fs_cuts, **options)
    with fake_world(0, torch.Size(sizes.values()).numel()):
        mesh = mesh_of(**sizes)
        found = torchdion.plan(distribute(block_model(), mesh, fs_cuts), mesh, **options)
    assert found.rows == described.rows
    assert found.estimates == described.estimates
    assert found.links == described.links
    tp = sizes.get("tp", 1)
    assert found.row_of("blocks.1.down.weight").piece[1] == 160 // tp
    assert {row.algorithm for row in found.rows} == {"dion", "lion"}


@pytest.mark.parametrize("replicas", [None, ()])
def test_copies_of_a_native_hsdp_mesh_are_those_that_it_does_not_cut(replicas: tuple[str, ...] | None) -> None:
    described = torchdion.plan(block_model(), {"dp": 4, "fs": 2}, rank_fraction=0.25, replicas=replicas)
    with fake_world(0, 8):
        mesh = mesh_of(dp=4, fs=2)
        model = fully_shard(block_model(), mesh=mesh)
        found = torchdion.plan(model, mesh, rank_fraction=0.25, replicas=replicas)
    assert found.rows == described.rows
    assert found.estimates == described.estimates
    assert found.links["dp"].size == 4
    assert "dp" in found.estimates["muon"].cost.elements


def test_matrices_that_no_rule_lets_tp_cut_are_whole_and_named() -> None:
    found = torchdion.plan(block_model(), {"fs": 2, "tp": 2})
    assert found.row_of("blocks.0.router.weight").piece == (12, 64)
    assert "but not blocks.*.router.weight" in str(found)


def test_a_plan_of_tensor_parallelism_replaces_the_rule() -> None:
    styles = {
        "router": "rowwise",
        "blocks.*.up": ColwiseParallel(),
        "embedding": "colwise",
        "blocks.2.query": "replicate",
    }
    found = torchdion.plan(block_model(), {"tp": 4}, tp_plan=styles)
    pieces = {"router": (24, 16), "up": (40, 64), "query": (64, 64)}
    assert {name: found.row_of(f"blocks.2.{name}.weight").piece for name in pieces} == pieces
    assert found.row_of("embedding.weight").piece == (96, 16)
    assert "but not blocks.*.{query,down}.weight, head.weight" in str(found)


def test_matrices_of_one_shape_that_are_cut_differently_have_rows_of_their_own() -> None:
    found = torchdion.plan(first_stage(MODELS["gpt-120m"]), {"fs": 2, "tp": 2}, fs_cuts="other")
    query, output = (found.row_of(f"blocks.7.attention.{name}.weight") for name in ("query", "output"))
    assert query.piece == output.piece == (384, 384)
    assert (query.cuts, output.cuts) == ({"rows": "tp", "columns": "fs"}, {"rows": "fs", "columns": "tp"})
    assert (len(query.names), len(output.names)) == (36, 12)


def test_the_rank_is_rounded_up_and_q_has_the_rows_of_its_orientation() -> None:
    options = {"rank_fraction": 0.3, "rank_multiple_of": 16}
    right = torchdion.plan(block_model(), {"fs": 4}, **options).row_of("blocks.0.up.weight")
    left = torchdion.plan(block_model(), {"fs": 4}, orientation="left", **options).row_of("blocks.0.up.weight")
    assert right.rank == left.rank == 32  # of 64
    assert (right.Q, right.piece_of_Q) == ((160, 32), (40, 32))
    assert (left.Q, left.piece_of_Q) == ((64, 32), (64, 8))


def test_matrices_whose_factors_are_larger_than_their_pieces_are_marked_dense() -> None:
    found = torchdion.plan(block_model(), {"dp": 2, "fs": 8}, rank_fraction=0.125)
    compresses = {name: found.row_of(f"blocks.0.{name}.weight").compresses for name in ("query", "up", "router")}
    assert compresses == {"query": False, "up": True, "router": False}
    lines = [line.split() for line in str(found).splitlines() if line.startswith("blocks")]
    assert ["blocks.*.query.weight", "3", "dion", "right,", "dense", "64×64", "8×64", "rows", "fs", "8", "8×8"] in lines
    assert ["blocks.*.up.weight", "3", "dion", "right", "160×64", "20×64", "rows", "fs", "8", "20×8"] in lines
    cost = found.row_of("blocks.0.up.weight").costs["dion_compressed"]
    assert cost.elements == {"dp": 3 * 20 * 8, "fs": 3 * (64 + 1) * 8}  # of three P none is summed here
    assert ["blocks.*.up.weight", "17.3", "kB", "246", "k", "480", "1.56", "k"] in lines


def test_a_stack_of_experts_is_cut_by_fs_and_its_matrices_by_tp() -> None:
    experts = nn.Parameter(torch.empty(6, 40, 24, device="meta"))
    group = {"params": [("experts.up", experts)], "batch_dims": 1}
    found = torchdion.plan([group], {"dp": 2, "fs": 3, "tp": 2}, rank_fraction=0.25, tp_plan={"experts": "rowwise"})
    row = found.row_of("experts.up")
    assert row.piece == (2, 40, 12)
    assert row.cuts == {"columns": "tp", "stack": "fs"}
    assert row.piece_of_Q == (2, 40, 3)
    dion, muon = row.costs["dion_compressed"], row.costs["muon_gathering"]
    assert dion.elements == {"tp": 2 * (2 * 40 * 6 + 2 * 21), "dp": 2 * (40 + 12) * 6}
    assert muon.elements == {"tp": 2 * 40 * 24, "dp": 2 * 40 * 12}


# ---- against a real job ----

OPTIONS = ("fs_cuts", "orientation", "rank_fraction", "orthonormalize")
UNEVEN = 3  # blocks, whose matrices cannot be handed out evenly


class Case(NamedTuple):
    """A model of so many blocks on eight ranks, and the options of its plan."""

    sizes: dict[str, int]
    blocks: int
    options: dict[str, Any]


def case(sizes: dict[str, int], blocks: int, *options: Any) -> Case:
    return Case(sizes, blocks, dict(zip(OPTIONS, options, strict=True)))


CASES = [
    case({"dp": 2, "fs": 2, "tp": 2}, 4, "other", "right", 0.25, "rcqr"),
    case({"dp": 2, "fs": 2, "tp": 2}, 4, "rows", "left", 1.0, "auto"),
    case({"dp": 2, "fs": 2, "tp": 2}, UNEVEN, "rows", "right", 0.2, "auto"),
    case({"dp": 2, "fs": 4}, 8, "rows", "right", 0.125, "rcqr"),
]


@pytest.mark.parametrize("rank", [0, 5, 11])
@pytest.mark.parametrize("orientation", ["right", "left"])
@pytest.mark.parametrize("rank_fraction", [0.15, 0.75], ids=["compressed", "dense"])
def test_the_plan_of_every_role_equals_a_step_on_one_rank_of_a_fake_world(
    rank_fraction: float, orientation: str, rank: int
) -> None:
    options = {"orientation": orientation, "rank_fraction": rank_fraction}
    with fake_world(rank, 12):
        mesh = mesh_of(dp=2, fs=3, tp=2)
        groups = []
        for role in ROLES:
            params = [Parameter(piece(numbered(*role.shape), role, mesh["fs", "tp"])) for _ in range(role.count)]
            groups.append({"params": [(f"{role.name} {i}", param) for i, param in enumerate(params)], **role.options})
        found = torchdion.plan(groups, mesh, **options)
        for group in groups:
            for _, param in group["params"]:
                param.grad = param.detach().clone()
        optimizer = torchdion.Dion([dict(group) for group in groups], replicate_mesh=mesh["dp"], **options)
        optimizer.step()
        cost = found.estimates["dion_compressed"].cost
        assert cost.elements == counted(optimizer.stats(), "elements")
        assert cost.state_bytes == optimizer.stats()["state_bytes"]
        for role, group in zip(ROLES, groups, strict=True):  # which of them a rank owns depends on the others
            row = found.row_of(f"{role.name} 0").costs["dion_compressed"]
            state = (value for _, param in group["params"] for value in optimizer.state[param].values())
            assert row.state_bytes == sum(local_part(value).nbytes for value in state), role.name


def measured_and_planned(rank: int, world_size: int) -> list[tuple[dict[str, Any], Plan]]:
    """One step of each model, by what the optimizer then says of it and by this rank's plan."""
    found = []
    for sizes, blocks, case in CASES:
        mesh = mesh_of(**sizes)
        options = {name: value for name, value in case.items() if name != "fs_cuts"}
        model = distribute(block_model(blocks, device="cpu"), mesh, case["fs_cuts"])
        for param in model.parameters():
            param.grad = param.detach().clone()
        optimizer = torchdion.Dion(torchdion.param_groups(model), replicate_mesh=mesh["dp"], **options)
        optimizer.step()
        found.append((optimizer.stats(), torchdion.plan(model, mesh, **options)))
    return found


def counted(stats: dict[str, Any], unit: str) -> dict[str, int]:
    """By axis, without those that carried nothing but the flags on which ranks agree."""
    sums = {
        axis: sum(counts[unit] for kind, counts in kinds.items() if kind != "agreement")
        for axis, kinds in stats["traffic"].items()
    }
    return {axis: count for axis, count in sums.items() if count}


def test_the_plan_equals_what_eight_processes_count() -> None:
    results = run_ranks(measured_and_planned, 8)
    for rank, of_rank in enumerate(results):
        for (sizes, blocks, options), (stats, found) in zip(CASES, of_rank, strict=True):
            cost = found.estimates["dion_compressed"].cost
            assert cost.elements == counted(stats, "elements"), (rank, sizes, options)
            assert cost.state_bytes == stats["state_bytes"], (rank, sizes, options)
            if blocks != UNEVEN:
                assert cost.bytes == counted(stats, "bytes"), (rank, sizes, options)
    for (sizes, blocks, options), (_, found) in zip(CASES, results[0], strict=True):
        assert torchdion.plan(block_model(blocks), sizes, **options).estimates == found.estimates, (sizes, options)


def with_owners_and_planned(rank: int, world_size: int) -> list[tuple[str, dict[str, Any], Plan]]:
    """The same of optimizers whose states the ranks share out."""
    mesh = mesh_of(dp=world_size)
    found = []
    for name, made_by in (("dist_muon", torchdion.DistMuon), ("dist_adamw", torchdion.DistAdamW)):
        model = block_model(device="cpu")
        groups = torchdion.param_groups(model)
        if name == "dist_adamw":
            groups = [group | {"algorithm": "adamw"} for group in groups]
        for param in model.parameters():
            param.grad = param.detach().clone()
        optimizer = made_by(groups, replicate_mesh=mesh)
        optimizer.step()
        found.append((name, optimizer.stats(), torchdion.plan(model, mesh)))
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_plan_of_states_with_owners_equals_what_processes_count(ranks: int) -> None:
    for of_rank in run_ranks(with_owners_and_planned, ranks):
        for name, stats, found in of_rank:
            cost = found.estimates[name].cost
            assert cost.state_bytes == stats["state_bytes"]
            assert cost.elements == counted(stats, "elements")
            assert cost.bytes == counted(stats, "bytes")


def test_what_takes_whole_parameters_alone_is_compared_where_nothing_is_cut() -> None:
    names = {"dist_muon", "dist_adamw"}
    for mesh in ({"dp": 4}, {}):
        found = torchdion.plan(block_model(), mesh)
        assert names <= set(found.estimates)
        assert all(names <= set(row.costs) for row in found.rows)
    for mesh in ({"dp": 4, "fs": 2}, {"tp": 2}):
        found = torchdion.plan(block_model(), mesh)
        assert not names & set(found.estimates)
        assert not any(names & set(row.costs) for row in found.rows)
        assert "dist" not in str(found)


@pytest.mark.parametrize("precision", [None, "highest"])
def test_muon_takes_the_same_time_whoever_owns_its_states(precision: str | None) -> None:
    estimates = torchdion.plan(torch.nn.Linear(512, 512, bias=False), {}, precision=precision).estimates
    assert estimates["dist_muon"].cost.flops == estimates["muon"].cost.flops > 0
    assert estimates["dist_muon"].seconds == estimates["muon"].seconds


# ---- refusals ----


@pytest.mark.parametrize(
    ("mesh", "options", "words"),
    [
        ({"pp": 2}, {}, "the dimensions of mesh must be named dp, fs, tp"),
        ({"dp": 0}, {}, "the sizes of mesh must be integers ≥ 1, got dp=0"),
        ("dp=2", {}, "mesh must be a DeviceMesh or sizes by name"),
        ({}, {"rank_fraction": 2}, "rank_fraction must be in (0, 1], got 2"),
        ({}, {"orientation": "up"}, "orientation must be one of"),
        ({}, {"machine": "abacus"}, "machine must be a Machine or one of a100, h100"),
        ({}, {"efficiency": 0}, "efficiency must be in (0, 1], got 0"),
        (
            {"dp": 2, "fs": 2},
            {"replicas": "fs"},
            "replicas must be dimensions of mesh that cut no parameter, among dp,",
        ),
        ({"tp": 2}, {"replicas": ["dp"]}, "among none, got 'dp'"),
        ({}, {"fs_cuts": "columns"}, "fs_cuts must be one of rows, other"),
        ({}, {"tp_plan": {"up": "diagonal"}}, "the styles of tp_plan must be"),
        ({"tp": 2}, {"orthonormalize": "qr", "orientation": "left"}, "orthonormalize must be one of 'auto', 'rcqr'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_sentence(mesh: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        torchdion.plan(block_model(), mesh, **options)
    assert words in str(caught.value)
    assert str(caught.value).startswith("torchdion.")


def test_distributed_parameters_need_the_mesh_itself_and_no_rules() -> None:
    with fake_world(0, 4):
        mesh = mesh_of(fs=4)
        model = distribute(block_model(), mesh, "rows")
        with pytest.raises(ValueError, match="mesh must be the DeviceMesh of a model with DTensors"):
            torchdion.plan(model, {"fs": 4})
        with pytest.raises(ValueError, match="fs_cuts and tp_plan must be left out"):
            torchdion.plan(model, mesh, fs_cuts="other")
        with pytest.raises(ValueError, match="mesh must hold the mesh dimensions 'fs'"):
            torchdion.plan(model, mesh_of(shards=4))
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
            torchdion.plan("gpt", mesh)


def test_groups_need_names() -> None:
    with pytest.raises(ValueError, match=r"must hold \(name, parameter\) pairs, got Parameter \(parameter group 0\)"):
        torchdion.plan([{"params": [Parameter(torch.empty(2, 2))]}], {})


@pytest.mark.parametrize("groups", [[torch.zeros(3, 3)], [("weight", torch.zeros(3, 3))], [{"lr": 1.0}]])
def test_a_list_that_holds_no_groups_is_refused_in_one_sentence(groups):
    sentence = r"^torchdion.plan: model must be a module or a list of groups of \(name, parameter\) pairs, such as "
    with pytest.raises(TypeError, match=sentence + rf".*got a list that holds {type(groups[0]).__name__}$"):
        torchdion.plan(groups, {"dp": 2})


def test_groups_of_other_muons_are_planned_as_the_algorithms_that_they_mean() -> None:
    def planned(*choices: dict[str, Any]) -> str:
        params = [nn.Parameter(torch.empty(64, 32)), nn.Parameter(torch.empty(96, 32))]
        groups = [{"params": [(f"p{i}", p)], **choices[i]} for i, p in enumerate(params)]
        return str(torchdion.plan(groups, {"dp": 2}))

    ours = planned({"algorithm": "muon"}, {"algorithm": "adamw"})
    assert planned({"use_muon": True}, {"use_muon": False}) == planned({"kind": "muon"}, {"kind": "adam"}) == ours
    with pytest.raises(ValueError, match=r"^torchdion.plan: use_muon=False means algorithm='adamw', got .* \(param"):
        planned({"use_muon": False, "algorithm": "muon"}, {})
