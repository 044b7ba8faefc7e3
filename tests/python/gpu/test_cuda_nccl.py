"""NCCL on one GPU, with groups of one rank that communicate."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cuda_ranks import ALONE, DEVICE, cut, normal, take_the_gpu
from on_gpu import needs_gpu
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion import _C, layouts
from torchdion.dtensor import Cuts, local_part

pytestmark = pytest.mark.skipif(not dist.is_backend_available(ALONE), reason="needs a torch with NCCL")


@contextmanager
def real_axes(has_copies: bool = False) -> Iterator[None]:
    """Axes of one rank communicate and count as cuts. `has_copies`: sums go in the order of the ranks."""
    axis = _C.Axis

    def real(*group: Any, **options: Any) -> _C.Axis:
        return axis(*group, **options, real_when_alone=True) if group else axis()

    def cuts_of(param: Any, name: str) -> Cuts:
        return {placement.dim: (dim,) for dim, placement in enumerate(param.placements)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C, "Axis", real)
        patch.setattr(layouts, "cuts_of", cuts_of)
        if has_copies:
            patch.setattr(layouts, "_world_size", lambda: 2)
        yield


def alone(*names: str) -> DeviceMesh:
    """A mesh whose dimensions have this one rank, each a group of its own that moves CUDA tensors alone."""
    take_the_gpu()
    groups = [dist.new_group([0], backend=f"{DEVICE}:{ALONE}") for _ in names]
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], DEVICE, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, DEVICE, mesh=torch.zeros(1, 1, dtype=torch.int), mesh_dim_names=names)


SHAPES = ((40, 24), (40, 24), (24, 33), (33, 33), (17,))


def trained(
    mesh: DeviceMesh | None, dtype: torch.dtype, steps: int, placements: tuple[Any, ...] = (), **options: Any
) -> tuple[list[Tensor], torchdion.Dion]:
    """The weights after so many steps on random gradients, cut as the placements say."""

    def placed(tensor: Tensor) -> Tensor:
        if not placements or tensor.dim() < 2:
            return tensor
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)

    params = [Parameter(placed(normal(*shape, seed=i, dtype=dtype))) for i, shape in enumerate(SHAPES)]
    optimizer = torchdion.Dion(params, lr=0.05, precision="highest", **options)
    for step in range(steps):
        for index, (param, shape) in enumerate(zip(params, SHAPES, strict=True)):
            param.grad = placed(normal(*shape, seed=100 + 10 * step + index, dtype=dtype))
        optimizer.step()
    weights = [param.detach() for param in params]
    return [weight.full_tensor() if placements and weight.dim() > 1 else weight for weight in weights], optimizer


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype, allowed: float) -> None:
    for index, (X, end) in enumerate(zip(found, expected, strict=True)):
        assert error(X, end, normal(*SHAPES[index], seed=index, dtype=dtype)) <= allowed


CUTS = {"rows": (("fs",), (Shard(0),)), "columns": (("tp",), (Shard(1),)), "both": (("fs", "tp"), (Shard(0), Shard(1)))}


def cut_alone(rank: int, world: int, how: str, orientation: str, has_copies: bool) -> dict[str, dict[str, int]]:
    """Compares with a run without axes; returns the calls by axis and kind."""
    names, placements = CUTS[how]
    options = {"orientation": orientation, "rank_fraction": 0.3}
    mesh = alone(*names)
    with real_axes(has_copies):
        found, optimizer = trained(mesh, torch.float64, 4, placements, **options)
    expected, _ = trained(None, torch.float64, 4, **options)
    assert_close(found, expected, torch.float64, 1e-10)
    traffic = optimizer.stats()["traffic"]
    return {axis: {kind: counts["calls"] for kind, counts in kinds.items()} for axis, kinds in traffic.items()}


@pytest.mark.parametrize("has_copies", [False, True], ids=["any order", "the ranks' order"])
@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize("how", CUTS)
def test_cut_parameters_take_the_steps_of_whole_ones(how: str, orientation: str, has_copies: bool) -> None:
    [calls] = run_ranks(cut_alone, 1, how, orientation, has_copies)
    assert set(calls) == set(CUTS[how][0])
    for kinds in calls.values():
        assert kinds["all_reduce"] + kinds["reduce_scatter"] > 0
        assert (kinds["completion"] > 0) or not has_copies


def half_precision_alone(rank: int, world: int) -> None:
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.bfloat16, Q_dtype=torch.bfloat16)
    mesh = alone("fs", "tp")
    options = {"rank_fraction": 0.3, "mixed_precision_config": config}
    with real_axes():
        found, optimizer = trained(mesh, torch.float32, 4, (Shard(0), Shard(1)), **options)
    expected, _ = trained(None, torch.float32, 4, **options)
    assert_close(found, expected, torch.float32, 0.05)
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["Q"].dtype == torch.bfloat16


def test_half_precision_states_are_cut_too() -> None:
    run_ranks(half_precision_alone, 1)


def replicated_alone(rank: int, world: int) -> None:
    """Steps, refusals and what is done for a checkpoint, over a group that moves nothing from the CPU."""
    mesh = alone("dp")
    options = {"rank_fraction": 0.2, "replicate_mesh": mesh}
    expected, _ = trained(None, torch.float64, 4, rank_fraction=0.2)
    with real_axes():
        found, optimizer = trained(mesh, torch.float64, 4, **options)
        assert_close(found, expected, torch.float64, 1e-10)
        calls = {kind: counts["calls"] for kind, counts in optimizer.stats()["traffic"]["dp"].items()}
        assert calls["agreement"] == 4  # before each step
        assert calls["all_reduce"] + calls["reduce_scatter"] > 0

        optimizer.param_groups[0]["mu"] = 2.0
        with pytest.raises(ValueError, match=r"^torchdion.Dion: mu must be in \[0, 1\), got 2.0"):
            optimizer.step()
        optimizer.param_groups[0]["mu"] = 0.95
        with pytest.raises(RuntimeError, match=r"^torchdion.Dion: the momenta are each replica's own"):
            optimizer.state_dict()
        optimizer.synchronize_for_checkpoint()
        optimizer.synchronize_replicas()
        optimizer.check_replicas()
        states = optimizer.state_dict()["state"]
        assert all(torch.equal(states[i]["momentum"], optimizer.state[param]["momentum"])
                   for i, param in enumerate(optimizer.param_groups[0]["params"]))  # fmt: skip
        optimizer.step()


def test_replicas_agree_refuse_and_synchronize_over_nccl_alone() -> None:
    run_ranks(replicated_alone, 1)


def refuse_on_the_cpu(rank: int, world: int) -> str:
    mesh = alone("dp")
    weight = Parameter(torch.ones(4, 3))
    weight.grad = torch.ones(4, 3)
    with real_axes():
        optimizer = torchdion.Dion([("weight", weight)], replicate_mesh=mesh)
        with pytest.raises(ValueError, match="process group moves") as refused:
            optimizer.step()
    return str(refused.value)


@needs_gpu
def test_parameters_on_the_cpu_are_refused_where_nccl_alone_would_have_to_move_them() -> None:
    assert run_ranks(refuse_on_the_cpu, 1) == [
        "torchdion.Dion: parameter 'weight' (parameter group 0) must lie on cuda, whose tensors its process group "
        "moves, got cpu; the backend 'cpu:gloo,cuda:nccl' moves both"
    ]


def without_waiting(rank: int, world: int) -> None:
    """A step of cut parameters under gloo and NCCL both: the first for agreement, the second for all else."""
    take_the_gpu()
    group = dist.new_group([0], backend=f"cpu:gloo,{DEVICE}:{ALONE}")
    mesh = DeviceMesh.from_group(group, DEVICE, mesh_dim_names=("dp",))
    with real_axes():
        _, optimizer = trained(mesh, torch.float32, 2, rank_fraction=0.2, replicate_mesh=mesh)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_the_host_waits_for_no_collective_of_nccl() -> None:
    run_ranks(without_waiting, 1)


def captured(rank: int, world: int, is_cut: bool) -> None:
    """Steps of cut or replicated parameters, replayed from a graph, against steps of whole ones."""
    mesh = alone("fs" if is_cut else "dp")
    starts = [normal(*shape, seed=i) for i, shape in enumerate(SHAPES[:4])]
    gradients = [[normal(*shape, seed=100 + 10 * step + i) for i, shape in enumerate(SHAPES[:4])] for step in range(7)]
    rates = [1 / 16, 1 / 16, 1 / 16, 1 / 16, 1 / 32, 3 / 64, 1 / 64]  # FP32 has them exactly

    whole = [Parameter(start.clone()) for start in starts]
    expected = torchdion.Dion(whole, rank_fraction=0.3)
    for step, rate in zip(gradients, rates, strict=True):
        for param, gradient in zip(whole, step, strict=True):
            param.grad = gradient
        expected.param_groups[0]["lr"] = rate
        expected.step()

    with real_axes():
        params = [cut(start.clone(), mesh) if is_cut else Parameter(start.clone()) for start in starts]
        lr = torch.tensor(rates[0], device=DEVICE)
        replicas = None if is_cut else mesh
        optimizer = torchdion.Dion(params, lr=lr, rank_fraction=0.3, capturable=True, replicate_mesh=replicas)
        for param in params:
            param.grad = torch.zeros_like(param)

        def give(step: int) -> None:
            lr.fill_(rates[step])
            for param, gradient in zip(params, gradients[step], strict=True):
                local_part(param.grad).copy_(gradient)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in range(3):
                give(step)
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            optimizer.step()
        for step in range(3, len(rates)):
            give(step)
            graph.replay()
    for param, end, start in zip(params, whole, starts, strict=True):
        assert error(local_part(param.detach()), end.detach(), start) <= 1e-10


@needs_gpu
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "replicated"])
def test_a_graph_replays_steps_with_their_collectives(is_cut: bool) -> None:
    run_ranks(captured, 1, is_cut)
