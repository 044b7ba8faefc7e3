"""The engine's layouts are those of the DTensors: what a rank holds is what its axes say."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from fake_world import COLWISE, ROWWISE, fake_world, mesh_of, numbered, placed, wrapped
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part, local_piece
from torchdion.layouts import Layouts
from torchdion.meshes import Meshes, read_meshes
from torchdion.options import DEFAULTS

PARTS = {
    "FSDP2": ({"fs": 4}, {"shards": ("fs",)}, "fs", ""),
    "FSDP2, dim 1": ({"fs": 2}, {"shards": ("fs",), "shard_dim": 1}, "", "fs"),
    "HSDP": ({"rep": 2, "fs": 2}, {"shards": ("rep", "fs")}, "fs", ""),
    "colwise": ({"tp": 3}, {"tensor_parallel": COLWISE}, "tp", ""),
    "rowwise": ({"tp": 3}, {"tensor_parallel": ROWWISE}, "", "tp"),
    "FSDP2 and rowwise": ({"fs": 2, "tp": 3}, {"shards": ("fs",), "tensor_parallel": ROWWISE}, "fs", "tp"),
    "FSDP2, dim 1, and colwise": (
        {"fs": 2, "tp": 3},
        {"shards": ("fs",), "tensor_parallel": COLWISE, "shard_dim": 1},
        "tp",
        "fs",
    ),
    "FSDP2 and colwise": ({"fs": 3, "tp": 2}, {"shards": ("fs",), "tensor_parallel": COLWISE}, "fs_tp", ""),
    "HSDP and colwise": (
        {"rep": 2, "fs": 2, "tp": 2},
        {"shards": ("rep", "fs"), "tensor_parallel": COLWISE},
        "fs_tp",
        "",
    ),
    "HSDP and rowwise": (
        {"rep": 2, "fs": 2, "tp": 2},
        {"shards": ("rep", "fs"), "tensor_parallel": ROWWISE},
        "fs",
        "tp",
    ),
    "meshes of size 1": ({"rep": 1, "fs": 2, "tp": 1}, {"shards": ("rep", "fs"), "tensor_parallel": COLWISE}, "fs", ""),
}


def read(param: torch.Tensor, meshes: Meshes | None = None, **options: object) -> torchdion._C.Layout:
    return Layouts(meshes or Meshes()).of(param, DEFAULTS | options, "parameter 'weight'").layout


def piece_of(whole: torch.Tensor, layout: torchdion._C.Layout) -> torch.Tensor:
    (row, rows), (col, cols) = layout.rows.piece(whole.shape[0]), layout.cols.piece(whole.shape[1])
    return whole[row : row + rows, col : col + cols]


@pytest.mark.parametrize("shape", [(12, 12), (7, 6), (2, 6)], ids=["even", "uneven", "empty pieces"])
@pytest.mark.parametrize("how", PARTS)
def test_a_rank_holds_the_piece_that_its_layout_says(how, shape):
    sizes, options, rows, cols = PARTS[how]
    world = torch.Size(sizes.values()).numel()
    held = []
    for rank in range(world):
        with fake_world(rank, world):
            param = wrapped(numbered(*shape), mesh_of(**sizes), **options)
            layout = read(param)
            assert (layout.rows.name, layout.cols.name) == (rows, cols)
            assert layout.sizes == list(shape)
            assert layout.batch.absent
            assert layout.replicas.absent
            assert layout.has_averaged_copies == (sizes.get("rep", 1) > 1)
            expected = piece_of(numbered(*shape), layout)
            assert torch.equal(local_piece(param, expected.shape), expected)
            held.append(expected.numel())
    assert sum(held) == sizes.get("rep", 1) * shape[0] * shape[1]
    assert max(held) < shape[0] * shape[1]


@pytest.mark.parametrize(
    ("placements", "expected"),
    [
        ((Shard(0), Shard(0), Shard(1)), ("a_b", "c")),
        ((Shard(1), Shard(0), Shard(1)), ("b", "a_c")),
        ((Shard(0), Shard(0), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=2), Replicate(), Shard(0)), ("a_c", "")),
        ((_StridedShard(0, split_factor=6), Shard(0), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=2), Shard(0)), ("a_b_c", "")),
        ((_StridedShard(0, split_factor=3), Shard(0), Shard(1)), ("a_b", "c")),
        ((_StridedShard(1, split_factor=2), Shard(0), Shard(1)), ("b", "a_c")),
    ],
    ids=str,
)
def test_several_cuts_of_one_side_nest_in_the_order_of_their_placements(placements, expected):
    whole = numbered(24, 12)
    for rank in range(12):
        with fake_world(rank, 12):
            param = placed(whole, mesh_of(a=2, b=3, c=2), *placements)
            layout = read(param)
            assert (layout.rows.name, layout.cols.name) == expected
            assert torch.equal(local_part(param), piece_of(whole, layout))


def test_a_line_over_two_dimensions_is_no_split_of_the_world_which_all_its_ranks_would_have_to_enter(monkeypatch):
    made, new_group = [], dist.new_group

    def spy(*args, **options):
        made.append(dist.group.WORLD.bound_device_id)
        return new_group(*args, **options)

    with fake_world(1, 4):
        param = wrapped(numbered(8, 4), mesh_of(fs=2, tp=2), shards=("fs",), tensor_parallel=COLWISE)
        dist.group.WORLD.bound_device_id = torch.device("cuda:3")
        monkeypatch.setattr(dist, "new_group", spy)
        assert read(param).rows.name == "fs_tp"
        assert made == [None]
        assert dist.group.WORLD.bound_device_id == torch.device("cuda:3")


FORMS = {
    "expert": ((4, 6, 8), {"batch_dims": 1}, (Shard(0), Shard(1), Shard(2)), ("b", "c", "a")),
    "conv": ((8, 3, 2, 2), {}, (Shard(0), Replicate(), Shard(0)), ("a_c", "", "")),
    "transposed conv": ((8, 3, 2, 2), {"fan_in_first": True}, (Shard(0), Replicate(), Replicate()), ("", "a", "")),
    "fan-in first": ((8, 6), {"fan_in_first": True}, (Shard(0), Shard(1), Replicate()), ("b", "a", "")),
    "blocks": ((6, 8), {"blocks": 3}, (Replicate(), Shard(1), Shard(1)), ("", "b_c", "")),
    "Lion vector": ((8,), {}, (Shard(0), Replicate(), Shard(0)), ("a_c", "", "")),
    "Lion conv": ((8, 4, 2, 2), {"algorithm": "lion"}, (Shard(2), Shard(0), Shard(1)), ("b", "c", "a")),
    "Lion blocks": ((6, 8), {"blocks": 3, "algorithm": "lion"}, (Shard(0), Shard(1), Shard(1)), ("a", "b_c", "")),
}


@pytest.mark.parametrize("form", FORMS)
def test_axes_cut_the_sides_that_a_form_gives_to_the_dimensions(form):
    shape, options, placements, expected = FORMS[form]
    with fake_world(5, 8):
        layout = read(placed(numbered(*shape), mesh_of(a=2, b=2, c=2), *placements), **options)
        assert (layout.rows.name, layout.cols.name, layout.batch.name) == expected


QR, LEFT = {"orthonormalize": "qr"}, {"orthonormalize": "qr", "orientation": "left"}
REFUSED = {
    "convolution": ((8, 4, 2), {}, Shard(1), r"a convolution \(batch_dims=0\), .* dimension 0, got .* dimension 1$"),
    "experts' kernel": (
        (8, 4, 2, 2),
        {"batch_dims": 1},
        Shard(3),
        r"may be cut on dimension 0 or 1, got .* dimension 3$",
    ),
    "second of a stack": (
        (2, 4, 6, 8),
        {"batch_dims": 2},
        Shard(1),
        r"is a stack \(batch_dims=2\), .* 0 or 2 or 3, got",
    ),
    "blocks": ((6, 8), {"blocks": 3}, Shard(0), r"has blocks=3 along its rows, which may not be cut, got"),
    "Partial": ((6, 8), {}, Partial(), r"must be Shard or Replicate, got P"),
    "Partial vector": ((6,), {}, Partial(), r"must be Shard or Replicate, got P"),
    "qr, right": ((6, 8), QR, Shard(1), r"whose columns are cut \(orientation='right'\), got 'qr'$"),
    "qr, left": ((6, 8), LEFT, Shard(0), r"whose rows are cut \(orientation='left'\), got 'qr'$"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_be_updated_is_refused_by_name_on_every_rank(how):
    shape, options, placement, sentence = REFUSED[how]
    for rank in range(2):
        with fake_world(rank, 2):
            placements = [placement if placement.is_shard() else Replicate()]
            param = placed(torch.zeros(shape), mesh_of(fs=2), *placements)
            if placement.is_partial():
                param = Parameter(DTensor.from_local(torch.zeros(shape), param.device_mesh, [placement]))
            param.grad = torch.zeros_like(param)
            groups = [{"params": [("weight", param)], "batch_dims": 0, **options}]
            optimizer = torchdion.Dion(groups, rank_fraction=0.1)
            with pytest.raises(ValueError, match=sentence) as refusal:
                optimizer.step()
            assert "parameter 'weight' (parameter group 0)" in str(refusal.value)
            assert optimizer.state == {}


def test_householder_qr_takes_what_leaves_the_rows_of_P_whole():
    with fake_world(0, 2):
        for options, dim in ((QR, 0), (LEFT, 1)):
            param = placed(torch.zeros(6, 8), mesh_of(fs=2), Shard(dim))
            param.grad = torch.zeros_like(param)
            optimizer = torchdion.Dion([param], **options)
            optimizer._core.make_states(optimizer)


def test_a_split_factor_that_no_mesh_dimensions_make_up_is_refused():
    with fake_world(0, 12):
        param = placed(numbered(24, 12), mesh_of(a=2, b=3, c=2), _StridedShard(0, split_factor=2), Shard(0), Shard(0))
        with pytest.raises(ValueError, match=r"^torchdion: _S\(0, 2\) of parameter 'weight' must have a split factor"):
            read(param)


def test_a_piece_that_is_no_nested_chunk_is_refused():
    """7 rows over 2 chunks, and each over 3: 2, 2, 0 and 1, 1, 1 as FSDP2 cuts, but not as distribute_tensor does."""
    placements = (_StridedShard(0, split_factor=2), Shard(0))
    refused = []
    for rank in range(6):
        with fake_world(rank, 6):
            try:
                read(placed(numbered(7, 2), mesh_of(fs=3, tp=2), *placements))
            except ValueError as error:
                assert "must have the shape (0, 2), as nested chunks have, got (1, 2)" in str(error) or (
                    "must have the shape (1, 2), as nested chunks have, got (0, 2)" in str(error)
                )
                refused.append(rank)
    assert refused == [4, 5]


def test_a_rank_outside_the_mesh_of_a_parameter_is_refused():
    with fake_world(3, 4):
        param = placed(numbered(4, 4), DeviceMesh("cpu", [0, 1]), Shard(0))
        with pytest.raises(ValueError, match=r"^torchdion: parameter 'weight' must lie on a mesh that holds"):
            read(param)


def test_a_replicate_mesh_among_the_dimensions_of_a_native_HSDP_mesh_is_refused_with_advice():
    with fake_world(1, 4):
        mesh = mesh_of(rep=2, fs=2)
        native, flat = wrapped(numbered(4, 4), mesh, ("rep", "fs")), wrapped(numbered(4, 4), mesh, ("fs",))
        optimizer = torchdion.Dion([("native", native)], replicate_mesh=mesh["rep"])
        native.grad = torch.zeros_like(native)
        sentence = r"parameter 'native' .* got the ranks \[1, 3\] .* leave replicate_mesh out .* 1-D shard mesh$"
        with pytest.raises(ValueError, match=sentence):
            optimizer.step()
        native.grad = None  # what set_requires_all_reduce(False) leaves
        with pytest.raises(ValueError, match=sentence):
            optimizer.step()
        averaged = read(native, read_meshes(mesh["rep"], None, None, False))
        assert averaged.replicas.absent
        assert averaged.has_averaged_copies
        compressed = read(flat, read_meshes(mesh["rep"], None, None, True))
        assert (compressed.replicas.name, compressed.rows.name) == ("rep", "fs")
        assert not compressed.has_averaged_copies


MUON = {"algorithm": "muon"}
WHOLE, ROWS = Replicate(), Shard(0)
COPIES = {
    "HSDP": (("rep", "fs"), (WHOLE, ROWS), None, "rep", 2),
    "two mesh dimensions": (("pod", "rep", "fs"), (WHOLE, WHOLE, ROWS), None, "pod_rep", 6),
    "all mesh dimensions": (("rep", "fs"), (WHOLE, WHOLE), None, "rep_fs", 4),
    "cut by all": (("rep", "fs"), (ROWS, ROWS), None, "", 1),
    "the mesh's own, declared too": (("rep", "fs"), (WHOLE, ROWS), ("rep",), "rep", 2),
    "beside the mesh": (("fs",), (ROWS,), ("rep",), "rep", 2),
    "beside as many of the mesh": (("rep", "fs"), (WHOLE, ROWS), ("tp",), "rep", 2),
    "beside fewer of the mesh": (("rep", "fs"), (WHOLE, ROWS), ("pod",), "pod", 3),
    "the mesh's own and others": (("rep", "fs"), (WHOLE, ROWS), ("pod", "rep"), "pod_rep", 6),
    "with other pieces": (("rep", "fs"), (WHOLE, ROWS), ("rep", "fs", "tp"), "rep", 2),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_the_ranks_of_the_mesh_that_have_the_same_piece_or_the_replicate_mesh_if_those_are_more(how):
    of_param, placements, declared, name, size = COPIES[how]
    for rank in (0, 7, 23):
        with fake_world(rank, 24):
            mesh = mesh_of(pod=3, rep=2, fs=2, tp=2)
            meshes = read_meshes(declared and mesh[declared], None, None, False)
            param = placed(numbered(8, 6), mesh[of_param], *placements)
            layouts = Layouts(meshes)
            layout = layouts.of(param, DEFAULTS | MUON, "parameter 'weight'").layout
            assert (layout.copies.name, layout.copies.size) == (name, size)
            assert layout.replicas.absent
            assert layout.has_averaged_copies
            assert read(param, meshes).copies.absent  # of Dion


def test_beside_replicas_that_the_optimizer_averages_there_are_the_copies_of_the_mesh():
    with fake_world(0, 8):
        mesh = mesh_of(rep=2, fs=2, tp=2)
        param = placed(numbered(8, 6), mesh["fs", "tp"], ROWS, WHOLE)
        layout = read(param, read_meshes(mesh["rep"], None, None, True), **MUON)
        assert (layout.replicas.name, layout.copies.name, layout.rows.name) == ("rep", "tp", "fs")


def test_a_replicate_mesh_that_is_a_dimension_of_other_parameters_is_one_axis_which_counts_for_all():
    with fake_world(0, 4):
        mesh = mesh_of(rep=2, fs=2)
        param = placed(numbered(8, 6), mesh, WHOLE, ROWS)
        layouts = Layouts(read_meshes(mesh["rep"], None, None, False))
        for each in (param, Parameter(torch.zeros(4, 4))):
            assert layouts.of(each, DEFAULTS | MUON, "parameter 'weight'").layout.copies.name == "rep"
        assert {axis.name for axis in layouts.axes.of(param)} == {"rep", "fs"}
        assert len(layouts.axes._axes) == 2


def test_parameters_with_the_same_cuts_share_an_axis_and_so_its_counters():
    with fake_world(0, 8):
        mesh = mesh_of(rep=2, fs=2, tp=2)
        layouts = Layouts(read_meshes(mesh["rep"], None, None, True))
        makers = [
            lambda: wrapped(numbered(8, 6), mesh, ("fs",), ROWWISE),
            lambda: wrapped(numbered(4, 6), mesh, ("fs",), COLWISE),
            lambda: wrapped(numbered(8, 4), mesh, ("fs",), COLWISE, shard_dim=1),
            lambda: wrapped(numbered(8, 4), mesh, (), ROWWISE),
            lambda: Parameter(torch.zeros(3)),
        ]
        for _ in range(2):
            for make in makers:
                layouts.of(make(), DEFAULTS, "weight")
        assert len(layouts.axes._axes) == 4
        kinds = dict.fromkeys(
            ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "completion", "agreement"),
            dict.fromkeys(("calls", "elements", "bytes"), 0),
        )
        assert layouts.axes.traffic() == dict.fromkeys(("rep", "fs", "tp", "fs_tp"), kinds)


def test_a_layout_is_read_anew_when_a_parameter_was_replaced():
    with fake_world(1, 2):
        optimizer = torchdion.Dion([("weight", Parameter(numbered(4, 4)))])
        group = optimizer.param_groups[0]
        mesh = mesh_of(fs=2)
        for replacement, rows, cols in (
            (wrapped(numbered(4, 4), mesh, ("fs",)), 2, 1),
            (wrapped(numbered(4, 4), mesh, ("fs",), shard_dim=1), 1, 2),
            (Parameter(numbered(4, 4)), 1, 1),
            (wrapped(numbered(6, 4), mesh, ("fs",)), 2, 1),
        ):
            group["params"][0] = replacement
            layout, shape, _ = optimizer._layouts.of(replacement, group, "weight")
            assert (layout.rows.size, layout.cols.size) == (rows, cols)
            assert shape == local_part(replacement).shape


def test_copies_of_an_optimizer_read_layouts_of_their_own():
    with fake_world(1, 2):
        param = wrapped(numbered(4, 4), mesh_of(fs=2), ("fs",))
        optimizer = torchdion.Dion([param])
        optimizer._layouts.of(param, optimizer.param_groups[0], "weight")
        for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert twin.stats()["traffic"] == {}
            (theirs,) = twin.param_groups[0]["params"]
            assert theirs is not param
            assert twin._layouts.of(theirs, twin.param_groups[0], "weight").layout.rows.name == "fs"
