"""Several ranks on CUDA: over gloo, of which two share a GPU, and over NCCL, of which a group of one communicates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from law import Job, Run, assert_equal_to_one_process, one_process, run_on_mesh
from ranks import run_ranks
from roles import CORE
from runs import error
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion import _C, layout
from torchdion.dtensor import Cuts, local_part

DEVICE, ALONE = "cuda", "nccl"

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and _C.has_kernels_for(DEVICE)), reason="needs a GPU and a build with nvcc"
)
needs_nccl = pytest.mark.skipif(not dist.is_backend_available(ALONE), reason="needs a torch with NCCL")


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same numbers on every device."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(DEVICE, dtype)


# ---- two processes on one GPU, over gloo ----


def take_the_gpu() -> None:
    """All ranks the same one."""
    if DEVICE == "cuda":
        torch.cuda.set_device(0)


def run_job(rank: int, world: int, job: Job) -> Run:
    take_the_gpu()
    return run_on_mesh(job)


@pytest.mark.parametrize("orientation", ["left", "right"])
@pytest.mark.parametrize(
    ("sizes", "rank_fraction"),
    [((1, 2, 1), 0.15), ((1, 1, 2), 0.15), ((2, 1, 1), 0.15), ((2, 1, 1), 0.75)],
    ids=["fs", "tp", "dp compressed", "dp dense"],
)
def test_two_ranks_equal_one_process_on_the_cpu(
    sizes: tuple[int, int, int], rank_fraction: float, orientation: str
) -> None:
    options = {"orientation": orientation, "rank_fraction": rank_fraction}
    job = Job(sizes, CORE, torch.float64, 20, options, device=DEVICE)
    runs = run_ranks(run_job, 2, job)
    assert_equal_to_one_process(job, runs, one_process(job))
    for run in runs:
        sent = {axis: kinds for axis, kinds in run.stats["traffic"].items() if any(k["calls"] for k in kinds.values())}
        assert set(sent) == {name for name, size in zip(("dp", "fs", "tp"), sizes, strict=True) if size > 1}


def cut(whole: Tensor, mesh: DeviceMesh) -> Parameter:
    return Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))


def refuse_on_one(rank: int, world: int) -> tuple[str, bool]:
    """What a step says that rank 1 refuses, and whether the next one, which it takes, moved the weight."""
    take_the_gpu()
    mesh = init_device_mesh(DEVICE, (world,), mesh_dim_names=("fs",))
    weight = cut(normal(9, 5, seed=1), mesh)
    before = weight.detach().to_local().clone()
    optimizer = torchdion.Dion([("weight", weight)], lr=0.1)
    weight.grad = torch.ones_like(weight)
    if rank == 1:
        optimizer.param_groups[0]["mu"] = 2.0
    with pytest.raises((ValueError, RuntimeError)) as refused:
        optimizer.step()
    assert torch.equal(weight.detach().to_local(), before)
    optimizer.param_groups[0]["mu"] = 0.95
    optimizer.step()
    return str(refused.value), not torch.equal(weight.detach().to_local(), before)


def test_a_step_that_one_rank_refuses_is_an_error_on_both_and_the_next_is_taken() -> None:
    (other, other_moved), (own, own_moved) = run_ranks(refuse_on_one, 2)
    assert other == "torchdion.Dion: another rank refused this step, and its error says why"
    assert own.startswith("torchdion.Dion: mu must be in [0, 1), got 2.0")
    assert other_moved and own_moved


def with_a_nan_on_one(rank: int, world: int, policy: str) -> tuple[bool, str]:
    """Whether the weight stayed as it was, and the error."""
    take_the_gpu()
    mesh = init_device_mesh(DEVICE, (world,), mesh_dim_names=("fs",))
    weight = cut(normal(9, 5, seed=1), mesh)
    before = weight.detach().to_local().clone()
    optimizer = torchdion.Dion([weight], lr=0.1, nonfinite=policy)
    weight.grad = torch.ones_like(weight)
    if rank == 1:
        weight.grad.to_local()[0, 0] = torch.nan
    said = ""
    try:
        optimizer.step()
    except ValueError as refused:
        said = str(refused)
    return torch.equal(weight.detach().to_local(), before), said


def test_both_ranks_leave_out_or_refuse_a_step_whose_gradient_is_not_finite_on_one() -> None:
    assert run_ranks(with_a_nan_on_one, 2, "skip_step") == [(True, "")] * 2
    (other_stayed, other), (own_stayed, own) = run_ranks(with_a_nan_on_one, 2, "raise")
    assert other_stayed and own_stayed
    assert "another rank's gradient entries are NaN" in other
    assert "1 gradient entries are NaN" in own


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 22), nn.GELU(), nn.Linear(22, 7)).double().to(DEVICE)


class Training:
    """A network that FSDP2 cuts, or, without a mesh, one process with the sequences of all."""

    def __init__(self, mesh: DeviceMesh | None, rank_fraction: float) -> None:
        self.mesh, self.network = mesh, network()
        if mesh is not None:
            fully_shard(self.network, mesh=mesh)
        self.optimizer = torchdion.Dion(torchdion.param_groups(self.network), lr=0.05, rank_fraction=rank_fraction)

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            inputs = normal(8, 13, seed=step)
            if self.mesh is not None:
                inputs = inputs.chunk(self.mesh.size())[self.mesh.get_local_rank()]
            self.network(inputs).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        return [
            (param.full_tensor() if self.mesh is not None else param).detach().cpu()
            for param in self.network.parameters()
        ]

    def checkpoint(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder: Path) -> None:
        save(self.checkpoint(), checkpoint_id=str(folder), no_dist=self.mesh is None)

    def load(self, folder: Path) -> None:
        state = self.checkpoint()
        load(state, checkpoint_id=str(folder), no_dist=self.mesh is None)
        set_state_dict(
            self.network, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def errors(training: Training, expected: list[Tensor]) -> list[float]:
    start = [param.detach().cpu() for param in network().parameters()]
    found = training.weights()
    return [error(X, end, begin) for X, end, begin in zip(found, expected, start, strict=True)]


def go_on(rank: int, world: int, folder: Path) -> list[float]:
    """Errors of the weights after a checkpoint: of this mesh's own, of one process's, and after a change of rank."""
    take_the_gpu()
    mesh = init_device_mesh(DEVICE, (world,), mesh_dim_names=("fs",))
    whole = Training(None, 0.3)
    whole.train(0, 4)
    if rank == 0:
        whole.save(folder / "one")
    interrupted = Training(mesh, 0.3)
    interrupted.train(0, 4)
    interrupted.save(folder / "two")
    dist.barrier()
    whole.train(4, 7)
    found = []
    for name in ("one", "two"):
        resumed = Training(mesh, 0.3)
        resumed.load(folder / name)
        resumed.train(4, 7)
        found += errors(resumed, whole.weights())
    other = Training(None, 0.3)
    other.load(folder / "one")
    for training in (other, interrupted):
        training.optimizer.resize_rank(rank_fraction=0.6)
        training.train(4, 7)
    return found + errors(interrupted, other.weights())


def test_checkpoints_go_on_on_the_mesh_whoever_wrote_them_and_with_another_rank(tmp_path: Path) -> None:
    for found in run_ranks(go_on, 2, tmp_path):
        assert len(found) == 3 * 4
        assert max(found) <= 1e-10


# ---- NCCL, with a group of one that communicates ----


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
        patch.setattr(layout, "cuts_of", cuts_of)
        if has_copies:
            patch.setattr(layout, "_world_size", lambda: 2)
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


@needs_nccl
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


@needs_nccl
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
        assert calls["agreement"] > 4  # before each step, and what the parameters are taken for
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


@needs_nccl
def test_replicas_agree_refuse_and_synchronize_over_nccl_alone() -> None:
    run_ranks(replicated_alone, 1)


def engine_alone(rank: int, world: int) -> None:
    """What ranks tell each other in numbers that lie on the CPU."""
    mesh = alone("fs")
    axis = _C.Axis(mesh.get_group(), name="fs", real_when_alone=True)
    assert _C.open_step(False, True, [True, False], [[axis], [axis]], [axis]) == (False, True, False)
    assert _C.open_step(True, False, [True], [[axis]], []) == (True, False, False)
    assert _C.any_of_ranks([True, False, True], [[axis]] * 3) == [True, False, True]
    _C.check_agreement([("weight", [("shape", "(3, 4)")], [axis])])
    piece = torch.arange(15.0).view(5, 3)
    for lies_on in ("cpu", DEVICE):
        for dim in (0, 1):
            whole = _C.gather_pieces(piece.to(lies_on), dim, piece.shape[dim], axis)
            assert whole.device.type == lies_on
            assert torch.equal(whole.cpu(), piece)


@needs_nccl
def test_numbers_on_the_cpu_go_by_way_of_the_gpu() -> None:
    run_ranks(engine_alone, 1)


def refuse_on_the_cpu(rank: int, world: int) -> str:
    mesh = alone("dp")
    weight = Parameter(torch.ones(4, 3))
    weight.grad = torch.ones(4, 3)
    with real_axes():
        optimizer = torchdion.Dion([("weight", weight)], replicate_mesh=mesh)
        with pytest.raises(ValueError, match="process group moves") as refused:
            optimizer.step()
    return str(refused.value)


@needs_nccl
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


@needs_nccl
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


@needs_nccl
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "replicated"])
def test_a_graph_replays_steps_with_their_collectives(is_cut: bool) -> None:
    run_ranks(captured, 1, is_cut)
