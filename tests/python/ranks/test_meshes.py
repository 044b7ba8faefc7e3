"""Explicit meshes: what they may be, what they declare, and what becomes of their groups in copies."""

import copy
import os
import pickle

import pytest
import torch
import torch.distributed as dist
from fake_world import COLWISE, fake_world, mesh_of, numbered, wrapped
from ranks import run_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.meshes import read_meshes


def vector() -> Parameter:
    return Parameter(torch.zeros(3))


def test_a_replicate_mesh_of_several_dimensions_is_one_line_of_ranks():
    with fake_world(5, 8):
        mesh = mesh_of(pod=2, rep=2, fs=2)
        line = read_meshes(mesh["pod", "rep"], None, None, True).replicas
        assert line.name == "pod_rep"
        assert line.ranks == {1, 3, 5, 7}
        again = torchdion.Dion([vector()], replicate_mesh=mesh["pod", "rep"])._layouts.meshes.replicas
        assert again.group is line.group


@pytest.mark.parametrize("grad_sync", [True, False])
@pytest.mark.parametrize("kind", ["mesh", "nameless mesh", "group"])
def test_plain_tensors_get_the_replicas_where_the_optimizer_averages(kind, grad_sync):
    with fake_world(1, 4):
        mesh = mesh_of(dp=4) if kind == "mesh" else DeviceMesh("cpu", torch.arange(4))
        given = mesh.get_group() if kind == "group" else mesh
        optimizer = torchdion.Dion([vector()], replicate_mesh=given, replicate_mesh_grad_sync=grad_sync)
        layout = optimizer._layouts.of(vector(), optimizer.param_groups[0], "vector").layout
        assert (layout.replicas.size, layout.replicas.rank) == ((4, 1) if grad_sync else (1, 0))
        assert layout.replicas.name == (("dp" if kind == "mesh" else "replicas") if grad_sync else "")
        assert layout.has_averaged_copies != grad_sync
        assert layout.copies.absent
        assert layout.rows.absent
        assert layout.cols.absent


@pytest.mark.parametrize("grad_sync", [True, False])
@pytest.mark.parametrize("optimizer_class", [torchdion.Dion, torchdion.Muon])
def test_only_matrices_of_muon_have_copies_and_only_where_the_optimizer_does_not_average(optimizer_class, grad_sync):
    with fake_world(1, 4):
        matrix, bias = Parameter(torch.zeros(4, 3)), vector()
        optimizer = optimizer_class([matrix, bias], replicate_mesh=mesh_of(dp=4), replicate_mesh_grad_sync=grad_sync)
        layouts = [optimizer._layouts.of(param, optimizer.param_groups[0], "weight").layout for param in (matrix, bias)]
        shares = optimizer_class is torchdion.Muon and not grad_sync
        assert [layout.copies.size for layout in layouts] == [4 if shares else 1, 1]
        assert [layout.is_local for layout in layouts] == [not shares and not grad_sync, not grad_sync]
        assert layouts[0].copies.name == ("dp" if shares else "")
        assert all(layout.has_averaged_copies != grad_sync for layout in layouts)


@pytest.mark.parametrize("argument", ["replicate_mesh", "outer_shard_mesh", "inner_shard_mesh"])
def test_a_group_that_this_rank_is_no_member_of_is_refused(argument):
    with fake_world(2, 4):
        for outside in (DeviceMesh("cpu", [0, 1]), dist.new_group([0, 1])):
            with pytest.raises(ValueError, match=rf"^torchdion.Dion: {argument} must (be|hold) .*this rank"):
                torchdion.Dion([vector()], **{argument: outside})


def step_over_a_group_that_moves_cuda_alone(rank: int, world: int) -> str:
    group = dist.new_group(backend="cuda:gloo")
    weight = vector()
    weight.grad = torch.ones(3)
    optimizer = torchdion.Dion([("bias", weight)], replicate_mesh=group)
    with pytest.raises(ValueError, match="process group moves") as refused:
        optimizer.step()
    assert not optimizer.state
    assert not weight.any()
    return str(refused.value)


def test_a_parameter_that_its_group_cannot_move_is_refused_by_name():
    sentence = (
        "torchdion.Dion: parameter 'bias' (parameter group 0) must lie on cuda, whose tensors its process group moves, "
        "got cpu; the backend 'cpu:gloo,cuda:nccl' moves both"
    )
    assert run_ranks(step_over_a_group_that_moves_cuda_alone, 2) == [sentence] * 2


@pytest.mark.parametrize("names", [("replicate_mesh", "outer_shard_mesh"), ("outer_shard_mesh", "inner_shard_mesh")])
def test_meshes_that_share_ranks_are_refused(names):
    with fake_world(1, 4):
        mesh = mesh_of(a=2, b=2)
        sentence = rf"^torchdion.Dion: {names[1]} must share no rank but this one with {names[0]}, got \[0, 1\] in both"
        with pytest.raises(ValueError, match=sentence):
            torchdion.Dion([vector()], **{names[0]: mesh["b"], names[1]: mesh})
        torchdion.Dion([vector()], **{names[0]: mesh["b"], names[1]: mesh["a"]})


def test_a_nameless_mesh_that_would_have_to_be_flattened_is_refused():
    with (
        fake_world(1, 4),
        pytest.raises(ValueError, match=r"^torchdion.Dion: replicate_mesh must have mesh_dim_names .* 2 dimensions"),
    ):
        torchdion.Dion([vector()], replicate_mesh=DeviceMesh("cpu", torch.arange(4).view(2, 2)))


@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        ({}, None),
        ({"outer_shard_mesh": "fs", "inner_shard_mesh": "tp"}, None),
        ({"outer_shard_mesh": "tp", "inner_shard_mesh": "fs"}, None),
        ({"outer_shard_mesh": "fs"}, r"\[4, 5\]"),
        ({"inner_shard_mesh": "tp"}, r"\[5, 7\]"),
        ({"outer_shard_mesh": ("fs", "tp")}, None),
        ({"outer_shard_mesh": "rep", "inner_shard_mesh": "tp"}, r"\[5, 7\]"),
    ],
)
@pytest.mark.parametrize("as_groups", [False, True])
def test_a_parameter_that_an_undeclared_group_cuts_is_refused_by_name(declared, refused, as_groups):
    with fake_world(5, 8):
        mesh = mesh_of(rep=2, fs=2, tp=2)
        param = wrapped(numbered(8, 6), mesh, ("fs",), COLWISE)
        param.grad = torch.zeros_like(param)
        meshes = {name: mesh[dims] for name, dims in declared.items()}
        if as_groups:
            meshes = {name: (sub if sub.ndim == 1 else sub._flatten()).get_group() for name, sub in meshes.items()}
        optimizer = torchdion.Dion([("weight", param)], **meshes, rank_fraction=0.1)
        if refused is None:
            optimizer._layouts.of(param, optimizer.param_groups[0], "weight")
            return
        sentence = (
            rf"^torchdion.Dion: parameter 'weight' .* must be cut by the declared meshes alone.* ranks {refused}$"
        )
        with pytest.raises(ValueError, match=sentence):
            optimizer.step()
        assert optimizer.state == {}


def test_a_deepcopy_shares_the_group_and_counts_anew():
    with fake_world(1, 4):
        mesh = mesh_of(rep=2, fs=2)
        optimizer = torchdion.Dion([vector()], replicate_mesh=mesh["rep"], outer_shard_mesh=mesh["fs"])
        twin = copy.deepcopy(optimizer)
        assert twin._layouts is not optimizer._layouts
        assert twin._layouts.meshes == optimizer._layouts.meshes
        assert twin._layouts.meshes.replicas.group is mesh["rep"].get_group()


def test_a_pickled_optimizer_finds_its_group_again_by_name():
    with fake_world(1, 4):
        mesh = mesh_of(rep=2, fs=2)
        optimizer = torchdion.Dion([vector()], replicate_mesh=mesh["rep"], outer_shard_mesh=mesh["fs"])
        pickled, name = pickle.dumps(optimizer), mesh["rep"].get_group().group_name
        assert pickle.loads(pickled)._layouts.meshes == optimizer._layouts.meshes
    with pytest.raises(RuntimeError, match=r"^torchdion: replicate_mesh 'rep' was the process group .*\[1, 3\]"):
        pickle.loads(pickled)
    with fake_world(1, 8):  # a group of this name has other ranks
        assert mesh_of(rep=4, fs=2)["rep"].get_group().group_name == name
        with pytest.raises(RuntimeError, match=r"make its meshes before unpickling"):
            pickle.loads(pickled)


def missing_gradients(rank: int, world_size: int) -> tuple[list[bool], list[bool]]:
    mesh = mesh_of(dp=world_size)
    params = [Parameter(torch.ones(4, 3)), Parameter(torch.ones(3)), Parameter(torch.ones(2), requires_grad=False)]
    stepped = []
    for meshes in ({"replicate_mesh": mesh}, {}):
        optimizer = torchdion.Dion(params, **meshes, weight_decay=0.0)
        for param in params[rank : rank + 1]:
            param.grad = torch.ones_like(param)
        optimizer.step()
        stepped.append([param in optimizer.state for param in params])
    return tuple(stepped)


def test_over_replicas_a_missing_gradient_counts_as_zero_and_elsewhere_the_parameter_is_left_alone():
    averaged, alone = [True, True, False], [[True, False, False], [False, True, False]]
    assert run_ranks(missing_gradients, 2) == [(averaged, alone[0]), (averaged, alone[1])]


def descriptors(rank: int, world_size: int) -> list[int]:
    """Open ones after a step of each of some optimizers, whose rows two mesh dimensions cut."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fs", "tp"))
    open_now = []
    for _ in range(5):
        X = Parameter(distribute_tensor(torch.ones(8, 6), mesh, [Shard(0), Shard(0)]))
        X.grad = X.detach().clone()
        torchdion.Dion([X]).step()
        open_now.append(len(os.listdir("/proc/self/fd")))
    return open_now


def test_lines_over_several_dimensions_are_made_once():
    for open_now in run_ranks(descriptors, 4):
        assert open_now == [open_now[0]] * 5
