"""The dion package (microsoft/dion): its arguments and keys of groups are accepted, or refused in one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch.nn import Parameter

import torchdion
from torchdion.dion_package import _ALGORITHMS_OF, _ARGUMENTS

ARGUMENTS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "Polar Express": (torchdion.NorMuon, {"use_polar_express": True}, {"newton_schulz": "auto"}),
    "no Gram matrix": (torchdion.Muon, {"use_gram_newton_schulz": False}, {"newton_schulz": "polar_express"}),
    "on the Gram matrix": (
        torchdion.Dion2, {"use_polar_express": True, "use_gram_newton_schulz": True}, {"newton_schulz": "gram"},
    ),
    "kernels": (
        torchdion.Dion2, {"use_triton": True, "triton_post_ortho": True, "verbose": True, "newton_schulz_func": None},
        {},
    ),
    "choice": (torchdion.Dion3, {"selection_scope": "global", "mu": 0.5}, {"ef_decay": 0.5}),
    "both of the same polynomials": (
        torchdion.Muon, {"use_polar_express": True, "newton_schulz": "gram"}, {"newton_schulz": "gram"},
    ),
    "neither Gram matrix nor default": (
        torchdion.Muon, {"use_gram_newton_schulz": False, "newton_schulz": "jordan"}, {"newton_schulz": "jordan"},
    ),
    "flat": (torchdion.Muon, {"flatten": True}, {"batch_dims": 0}),
    "not flat": (torchdion.Muon, {"flatten": False}, {"batch_dims": 0}),
    "Dion": (
        torchdion.Dion,
        {"power_iters": 1, "qr_method": "cqr", "cqr_warmup_steps": 150},
        {"orthonormalize": "cholesky_qr"},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("made_by", "given", "means"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_its_arguments_are_accepted(made_by: Any, given: dict[str, Any], means: dict[str, Any]) -> None:
    optimizer = made_by([Parameter(torch.ones(6, 4))], **given)
    [group] = optimizer.param_groups
    assert {name: group[name] for name in means} == means
    assert group.keys() == made_by([Parameter(torch.ones(6, 4))]).param_groups[0].keys()


REFUSED: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "iteration": (
        torchdion.Muon,
        {"newton_schulz_func": torch.sign},
        "newton_schulz_func must be None, got .*: newton",
    ),
    "choice": (
        torchdion.Dion2,
        {"selection_scope": "local"},
        "selection_scope must be 'global', got 'local': slices are",
    ),
    "other polynomials": (
        torchdion.Muon,
        {"use_polar_express": False},
        "use_polar_express must be True, got False: the five",
    ),
    "flag": (torchdion.Muon, {"use_gram_newton_schulz": 1}, "use_gram_newton_schulz must be True or False, got 1"),
    "two iterations": (
        torchdion.Muon,
        {"use_gram_newton_schulz": True, "newton_schulz": "jordan"},
        "use_gram_newton_schulz=True means newton_schulz='gram', got newton_schulz='jordan' too",
    ),
    "other polynomials beside": (
        torchdion.Muon,
        {"use_polar_express": True, "newton_schulz": "jordan"},
        "use_polar_express=True means newton_schulz='polar_express', got newton_schulz='jordan' too",
    ),
    "no Gram matrix": (
        torchdion.Muon,
        {"use_gram_newton_schulz": False, "newton_schulz": "gram"},
        "use_gram_newton_schulz=False means newton_schulz='polar_express', got newton_schulz='gram' too",
    ),
    "two decays": (torchdion.Dion3, {"mu": 0.5, "ef_decay": 0.8}, "mu means ef_decay here, got 0.5 and 0.8"),
    "method": (torchdion.Dion, {"qr_method": "svd"}, "qr_method must be 'rcqr' or 'cqr' or 'qr', got 'svd'"),
    "mesh": (torchdion.Muon, {"distributed_mesh": 3}, "distributed_mesh must be None, a DeviceMesh or .*, got int"),
    "tensor": (torchdion.Dion, {"power_iters": torch.ones(2)}, "power_iters must be 1, got"),
    "decay": (torchdion.Dion3, {"mu": 1.5}, r"ef_decay must be in \[0, 1\), got 1.5"),
    "iterations": (torchdion.Dion, {"power_iters": 2}, "power_iters must be 1, got 2: there is one power iteration"),
    "flatten": (torchdion.Muon, {"flatten": "yes"}, "flatten must be True, or False of groups .*, got 'yes'"),
}


@pytest.mark.parametrize(("made_by", "given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_equal_is_refused_in_one_sentence(made_by: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{made_by.title}: {words}"):
        made_by([Parameter(torch.ones(6, 4))], **given)


@pytest.mark.parametrize(
    ("made_by", "given"), [(torchdion.Lion, {"flatten": True}), (torchdion.Muon, {"selection_scope": "global"}),
                           (torchdion.Dion, {"distributed_mesh": None}), (torchdion.Dion2, {"mu": 0.9})]
)  # fmt: skip
def test_arguments_of_its_other_classes_are_unknown(made_by: Any, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(given))}'"):
        made_by([Parameter(torch.ones(6, 4))], **given)


@pytest.mark.filterwarnings("error")
def test_its_groups_are_ours_with_other_names() -> None:
    def matrix(*shape: int) -> list[Parameter]:
        return [Parameter(torch.ones(shape))]

    optimizer = torchdion.Muon(
        [
            {"params": matrix(6, 4), "num_heads": 3},
            {"params": matrix(8, 4), "split_sizes": [4, 4]},
            {"params": matrix(6, 4), "algorithm": "nordion2", "mu": 0.5},
            {"params": matrix(8, 4), "num_heads": 1, "split_sizes": [4, 4]},
            {"params": matrix(2, 6, 4), "flatten": False},
            {"params": matrix(2, 6, 4) + matrix(5), "flatten": True, "beta1": 0.8},
        ]
    )
    heads, sizes, third, both, stack, convolution = optimizer.param_groups
    assert (heads["blocks"], sizes["blocks"], both["blocks"]) == (3, 2, 2)
    assert (third["algorithm"], third["ef_decay"], third["mu"]) == ("dion3", 0.5, 0.5)
    assert (stack["batch_dims"], convolution["batch_dims"], convolution["betas"][0]) == (1, 0, 0.8)
    assert not {"num_heads", "split_sizes", "flatten"} & {key for group in optimizer.param_groups for key in group}


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (
            {"split_sizes": [2, 4]},
            r"split_sizes must be integers ≥ 1 that are alike, got \[2, 4\] \(parameter group 0\)",
        ),
        (
            {"split_sizes": [2, 2]},
            r"split_sizes must sum to the rows of each matrix, got \[2, 2\] for the shape \(6, 4\)",
        ),
        ({"split_sizes": [2.5, 2.5]}, r"split_sizes must be integers ≥ 1 that are alike, got \[2.5, 2.5\]"),
        ({"algorithm": "dion3", "mu": 0.5, "ef_decay": 0.8}, r"mu=0.5 means ef_decay=0.5, got ef_decay=0.8 too"),
        (
            {"algorithm": "dion2", "selection_scope": "local"},
            r"selection_scope must be 'global', got 'local' \(param.*\):",
        ),
        ({"num_heads": 0}, r"num_heads must be an integer ≥ 1, got 0 \(parameter group 0\)"),
        ({"num_heads": 2, "blocks": 3}, r"num_heads=2 means blocks=2, got blocks=3 too \(parameter group 0\)"),
        ({"flatten": True, "batch_dims": 1}, r"flatten=True means batch_dims=0, got batch_dims=1 too"),
    ],
)
def test_groups_that_contradict_themselves_are_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^torchdion.Muon: {words}"):
        torchdion.Muon([{"params": [Parameter(torch.ones(6, 4))], **group}])


def test_stacks_and_matrices_of_one_group_are_not_told_apart() -> None:
    with pytest.raises(ValueError, match=r"got matrices of 2 and 3 dimensions \(parameter group 0\); batch_dims"):
        torchdion.Muon([Parameter(torch.ones(6, 4)), Parameter(torch.ones(2, 6, 4))], flatten=False)


@pytest.mark.parametrize("keys", [{"flatten": True}, {"flatten": False, "batch_dims": 0}])
def test_parameters_without_shape_yet_are_passed_over(keys: dict[str, Any]) -> None:
    lazy = torch.nn.LazyLinear(4)
    [group] = torchdion.Muon([{"params": [Parameter(torch.ones(6, 4)), *lazy.parameters()], **keys}]).param_groups
    assert group["batch_dims"] == 0
    group["flatten"] = True
    lazy(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize(("made_by", "keyword"), [(torchdion.Dion2, "distributed"), (torchdion.Dion, "replicate")])
def test_a_mesh_in_the_place_of_lr_is_told_from_it(made_by: Any, keyword: str) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh, params = torch.distributed.group.WORLD, [Parameter(torch.ones(6, 4))]
        with pytest.raises(ValueError, match=f"lr must be a number, got ProcessGroup; .* keyword {keyword}_mesh here"):
            made_by(params, mesh)
        assert made_by(params, **{f"{keyword}_mesh": mesh})._layouts.meshes.replicas.group == mesh
    finally:
        torch.distributed.destroy_process_group()


def test_the_table_of_arguments_is_whole() -> None:
    """docs/guides/migrating.md has each of them, with the classes that take it."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "migrating.md").read_text()
    rows = [
        line.split(" | ") for line in page.partition("\n## From other Muons")[0].splitlines() if line.startswith("| `")
    ]
    classes = {title: of for of, title in (("dion", "Dion"), ("muon", "Muon"), ("normuon", "NorMuon"),
                                           ("dion2", "Dion2"), ("dion3", "Dion3"))}  # fmt: skip
    of_page = {
        name: {classes[title] for title in whose.partition("; ")[0].split(", ") if title in classes}
        for names, whose, _ in rows
        for name in re.findall("`([^`]+)`", names)
    }
    for name in _ARGUMENTS:
        assert of_page[name] == set(_ALGORITHMS_OF[name]), name


def meshes_of(rank: int, world_size: int) -> list[tuple[bool, bool, str]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("ranks",))
    found = []
    for given, param in (
        (mesh.get_group(), Parameter(torch.ones(6, 4))),
        (mesh, Parameter(torch.ones(6, 4))),
        (mesh, Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]))),
    ):
        optimizer = torchdion.Dion2([param], distributed_mesh=given)
        param.grad = torch.ones_like(param)
        optimizer.step()
        meshes = optimizer._layouts.meshes
        found.append((meshes.replicas is not None, meshes.averages, ",".join(name for name, _ in meshes.shards)))
    for made_by in (torchdion.Dion2, torchdion.DistMuon):
        with pytest.raises(ValueError, match="distributed_mesh means replicate_mesh here, got both"):
            made_by([Parameter(torch.ones(6, 4))], distributed_mesh=mesh, replicate_mesh=mesh)
    optimizer = torchdion.DistMuon([Parameter(torch.ones(6, 4))], distributed_mesh=mesh)
    assert optimizer.defaults["owners"] == "shard"
    return found


def test_its_mesh_is_that_of_shards_or_of_copies_that_share_the_work() -> None:
    for found in run_ranks(meshes_of, 2):
        assert found == [(True, False, ""), (True, False, ""), (False, True, "outer_shard_mesh")]


@pytest.mark.parametrize("says", [{"flatten": False}, {"split_sizes": [4, 4]}], ids=str)
def test_what_the_shape_of_a_parameter_decides_is_refused_before_it_has_one(says: dict[str, Any]) -> None:
    layer = torch.nn.LazyLinear(8, bias=False)
    group = {"params": [Parameter(torch.ones(8, 4)), layer.weight], **says}
    with pytest.raises(
        ValueError,
        match=rf"^torchdion.Muon: {next(iter(says))} must be of parameters that have a shape, .* \(parameter group 0\)",
    ):
        torchdion.Muon([group])
    layer(torch.ones(2, 4))
    torchdion.Muon([group])


@pytest.mark.parametrize("at_the_group", [False, True])
@pytest.mark.parametrize("dims", [0, 1])
def test_stacks_without_a_shape_are_those_that_batch_dims_says(dims: int, at_the_group: bool) -> None:
    group = {"params": [torch.nn.LazyConv1d(4, 3).weight], "batch_dims": dims}
    flat = {"flatten": False}
    optimizer = torchdion.Muon([group | flat]) if at_the_group else torchdion.Muon([group], **flat)
    assert optimizer.param_groups[0]["batch_dims"] == dims
    assert "flatten" not in optimizer.param_groups[0]


def test_flat_parameters_need_no_shape() -> None:
    [group] = torchdion.Muon([torch.nn.LazyLinear(8, bias=False).weight], flatten=True).param_groups
    assert group["batch_dims"] == 0
