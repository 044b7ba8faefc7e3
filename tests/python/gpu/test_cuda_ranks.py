"""Two processes that share a GPU, over gloo."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cuda_ranks import DEVICE, cut, normal, take_the_gpu
from gathered import gathered
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
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.by_cpu import whole
from torchdion.verification.command import main


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


def share_among_copies(rank: int, world: int) -> list[Tensor]:
    """Momenta, which the owner of a matrix accumulates otherwise than those who hold copies."""
    take_the_gpu()
    params = [nn.Parameter(normal(12, 7 + i, seed=i).float().to(DEVICE)) for i in range(3)]
    optimizer = torchdion.Muon(params, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=False)
    for step in range(3):
        for i, param in enumerate(params):
            param.grad = normal(12, 7 + i, seed=10 * step + i).float().to(DEVICE)
        optimizer.step()
    optimizer.check_replicas()
    return [optimizer.state[param]["momentum"].cpu() for param in params]


def test_copies_that_share_the_work_of_muon_have_momenta_of_the_same_bits() -> None:
    first, second = run_ranks(share_among_copies, 2)
    assert all(map(torch.equal, first, second))


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
        return [gathered(param) for param in self.network.parameters()]

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


def gather_uneven(rank: int, world: int, sizes: tuple[int, ...], placements: tuple[Shard, ...]) -> Tensor:
    take_the_gpu()
    mesh = init_device_mesh(DEVICE, sizes, mesh_dim_names=("fs", "tp")[: len(sizes)])
    gathered_by_cpu = whole(distribute_tensor(normal(7, 5, seed=0), mesh, placements, src_data_rank=None))
    assert gathered_by_cpu.device.type == DEVICE
    return gathered_by_cpu.cpu()


@pytest.mark.parametrize(
    ("sizes", "placements"), [((2,), (Shard(0),)), ((2, 1), (Shard(1), Shard(0))), ((1, 2), (Shard(0), Shard(1)))]
)
def test_pieces_are_gathered_by_the_cpu(sizes: tuple[int, ...], placements: tuple[Shard, ...]) -> None:
    for found in run_ranks(gather_uneven, 2, sizes, placements):
        assert torch.equal(found, normal(7, 5, seed=0).cpu())


def sum_pieces(rank: int, world: int) -> Tensor:
    take_the_gpu()
    mesh = init_device_mesh(DEVICE, (world,), mesh_dim_names=("fs",))
    weight = cut(normal(9, 5, seed=1), mesh)
    weight.grad = DTensor.from_local(normal(9, 5, seed=2 + rank), mesh, [Partial()])
    torchdion.AdamW([weight], lr=0.1, weight_decay=0.0).step()
    return gathered(weight)


def test_gradients_whose_sum_is_due_yet_are_summed() -> None:
    alone = Parameter(normal(9, 5, seed=1).cpu())
    alone.grad = (normal(9, 5, seed=2) + normal(9, 5, seed=3)).cpu()
    torchdion.AdamW([alone], lr=0.1, weight_decay=0.0).step()
    for found in run_ranks(sum_pieces, 2):
        torch.testing.assert_close(found, alone.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "mesh", ["fs=2", pytest.param("fs=2,tp=2", marks=pytest.mark.long), pytest.param("dp=2", marks=pytest.mark.long)]
)
def test_verify_passes_on_ranks_that_share_a_device(mesh: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mesh", mesh, "--device", DEVICE, "--steps", "3", "--orientation", "right", "--orthonormalize", "auto"]
    status = main(words)
    said = capsys.readouterr()
    assert status == 0, said.out + said.err
    assert ("on CUDA" in said.out) == (DEVICE == "cuda")
