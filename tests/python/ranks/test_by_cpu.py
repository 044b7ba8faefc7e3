"""Nothing of ours gives a device's tensors to gloo: they go by the CPU, in one place."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from stand_in_device import KIND, OnDevice, Refused, moved, stand_in_mesh
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

import torchdion
from torchdion import by_cpu
from torchdion.verification.command import parser, trainings_of
from torchdion.verification.verify import verify

ROOT = Path(__file__).parents[3]
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def terms(rank: int, placements: tuple[Placement, ...], mesh: Any) -> DTensor:
    """Each rank's own term of a sum that is still due; pieces of one tensor for other placements."""
    if any(placement.is_partial() for placement in placements):
        return DTensor.from_local(numbers(7, 5, seed=rank), mesh, placements)
    if any(isinstance(placement, _StridedShard) for placement in placements):  # as FSDP2 cuts what tp has cut
        of_tp = distribute_tensor(numbers(7, 5), mesh, [R, S0], src_data_rank=None).to_local()
        own = of_tp.chunk(mesh.size(0))[mesh.get_local_rank(0)]
        return DTensor.from_local(own, mesh, placements, shape=torch.Size((7, 5)), stride=(5, 1))
    return distribute_tensor(numbers(7, 5), mesh, placements, src_data_rank=None)


def gather(rank: int, world: int, sizes: dict[str, int], placements: tuple[Placement, ...]) -> None:
    on_cpu = terms(rank, placements, init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes)))
    on_device = moved(on_cpu, stand_in_mesh(**sizes))
    found = by_cpu.whole(on_device)
    assert isinstance(found, OnDevice) and found.device.type == KIND
    assert torch.equal(found.held, on_cpu.full_tensor())
    assert torch.equal(by_cpu.whole(on_cpu), on_cpu.full_tensor())
    if any(not placement.is_replicate() for placement in placements):
        with pytest.raises(Refused):  # what torch itself would do
            on_device.full_tensor()


@pytest.mark.parametrize(
    ("sizes", "placements"),
    [
        ({"fs": 2}, (S0,)),
        ({"fs": 2}, (Partial(),)),
        ({"fs": 2}, (R,)),
        ({"fs": 3}, (S1,)),
        ({"fs": 2, "tp": 2}, (S1, S0)),
        ({"fs": 2, "tp": 2}, (_StridedShard(0, split_factor=2), S0)),
        ({"dp": 2, "fs": 2}, (R, S0)),
    ],
    ids=str,
)
def test_a_DTensor_of_a_device_is_made_whole_by_the_cpu_and_on_its_device(
    sizes: dict[str, int], placements: tuple[Placement, ...]
) -> None:
    run_ranks(gather, torch.Size(sizes.values()).numel(), sizes, placements)


def redistribute(rank: int, world: int, before: tuple[Placement, ...], after: tuple[Placement, ...]) -> None:
    on_cpu = terms(rank, before, init_device_mesh("cpu", (2,), mesh_dim_names=("fs",)))
    on_device = moved(on_cpu, stand_in_mesh(fs=2))
    found, expected = by_cpu.redistributed(on_device, after), on_cpu.redistribute(placements=after)
    local = found.to_local()
    assert isinstance(local, OnDevice)
    assert torch.equal(local.held, expected.to_local())
    assert (found.placements, found.shape, found.device_mesh) == (after, on_cpu.shape, on_device.device_mesh)
    with pytest.raises(Refused):
        on_device.redistribute(placements=after)


@pytest.mark.parametrize(
    ("before", "after"), [((Partial(),), (S0,)), ((Partial(),), (R,)), ((S0,), (R,)), ((S0,), (S1,))], ids=str
)
def test_other_placements_are_given_by_the_cpu(before: tuple[Placement, ...], after: tuple[Placement, ...]) -> None:
    run_ranks(redistribute, 2, before, after)


def redistribute_again(rank: int, world: int) -> None:
    before = terms(rank, (Partial(),), init_device_mesh("cpu", (2,), mesh_dim_names=("fs",)))
    meshes = [stand_in_mesh(fs=2), stand_in_mesh(fs=2)]
    made: list[Any] = []
    from_group = DeviceMesh.from_group

    def note(*args: Any, **kwargs: Any) -> Any:
        made.append(from_group(*args, **kwargs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceMesh, "from_group", note)
        for on_device in [moved(before, mesh) for mesh in meshes]:
            for _ in range(3):  # as steps do
                by_cpu.redistributed(on_device, (S0,))
    assert len(made) == 2  # of either mesh its own: what else is equal may have other groups


def test_a_mesh_of_the_cpu_is_made_once() -> None:
    run_ranks(redistribute_again, 2)


class Taken(Exception):
    """The tensors that the engine was given."""


def hand_over(rank: int, world: int) -> None:
    """The engine has no kernels for the stand-in: what it would get is looked at on its way."""
    mesh = stand_in_mesh(fs=2)
    cut = distribute_tensor(numbers(6, 4), init_device_mesh("cpu", (2,)), [S0], src_data_rank=None)
    param = nn.Parameter(moved(cut, mesh), requires_grad=False)
    gradient = DTensor.from_local(OnDevice(numbers(6, 4, seed=rank)), mesh, [Partial()])
    optimizer = torchdion.Dion([nn.Parameter(torch.zeros(2, 2))])
    optimizer.param_groups[0]["params"] = [param]
    param.grad = gradient

    def take(tensor: Tensor, what: str) -> Tensor:
        raise Taken(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdion.core_optimizer.readable", take)
        with pytest.raises(Taken) as taken:
            optimizer._local_gradient(param, "parameter 0", [3, 4])
    [given] = taken.value.args
    total = numbers(6, 4, seed=0) + numbers(6, 4, seed=1)
    assert torch.equal(given.held, total[3 * rank : 3 * rank + 3])


def test_a_step_sums_gradients_that_are_due_yet_by_the_cpu() -> None:
    run_ranks(hand_over, 2)


def sum_up(rank: int, world: int) -> None:
    tensor = OnDevice(torch.full((3,), rank + 1.0))
    with pytest.raises(Refused):
        dist.all_reduce(tensor)
    by_cpu.sum_over(dist.group.WORLD, tensor)
    assert torch.equal(tensor.held, torch.full((3,), 3.0))


def test_sums_of_gradients_of_others_go_by_the_cpu() -> None:
    run_ranks(sum_up, 2)


def which_go(rank: int, world: int) -> dict[str, list[bool]]:
    backends = ("gloo", "cpu:gloo", "cpu:gloo,cuda:fake", "cuda:gloo", "fake")
    groups = {name: dist.new_group(backend=name) for name in backends}
    return {name: [by_cpu.goes_by_cpu(group, kind) for kind in ("cpu", "cuda")] for name, group in groups.items()}


def test_the_backend_of_a_device_says_whether_its_tensors_go_by_the_cpu() -> None:
    assert run_ranks(which_go, 1) == [
        {
            "gloo": [False, True],
            "cpu:gloo": [False, True],  # which has nothing for the device
            "cpu:gloo,cuda:fake": [False, False],
            "cuda:gloo": [False, False],  # which has no CPU to go by
            "fake": [False, False],
        }
    ]


@contextmanager
def every_device_by_the_cpu() -> Iterator[list[DTensor]]:
    """As if the CPU's own tensors were a device's: only a DTensor that has gone by the CPU may communicate."""
    gone: list[DTensor] = []
    on_cpu, full_tensor, redistribute = by_cpu._on_cpu, DTensor.full_tensor, DTensor.redistribute

    def note(tensor: DTensor) -> DTensor:
        gone.append(on_cpu(tensor))
        return gone[-1]

    def refusing(right: Any) -> Any:
        def call(tensor: DTensor, *args: Any, **kwargs: Any) -> Any:
            if not any(tensor is other for other in gone):
                raise Refused(right.__name__)
            return right(tensor, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_cpu, "goes_by_cpu", lambda group, device_type: True)
        patch.setattr(by_cpu, "_on_cpu", note)
        patch.setattr(DTensor, "full_tensor", refusing(full_tensor))
        patch.setattr(DTensor, "redistribute", refusing(redistribute))
        yield gone


def verify_by_the_cpu(rank: int, world: int, mesh: str, folder: Path) -> tuple[int, list[tuple[str, bool]]]:
    words = ["--mesh", mesh, "--steps", "3", "--orientation", "right", "--orthonormalize", "auto"]
    options = parser().parse_args(words)
    with every_device_by_the_cpu() as gone:
        rows = verify(rank, trainings_of(options), folder)
    return len(gone), [(row.what, row.passes) for _, row in rows]


@pytest.mark.parametrize(("mesh", "ranks"), [("fs=2", 2), ("dp=2", 2), ("dp=2,fs=2", 4)])
def test_verify_trains_compares_saves_and_loads_where_no_device_reaches_gloo(
    mesh: str, ranks: int, tmp_path: Path
) -> None:
    for gone, rows in run_ranks(verify_by_the_cpu, ranks, mesh, tmp_path):
        assert all(passes for _, passes in rows), rows
        assert (gone > 20) == ("fs" in mesh)  # the parameters, at their start and end, and after either checkpoint


def test_one_module_alone_lets_DTensors_communicate() -> None:
    calls = re.compile(r"\.(full_tensor|redistribute)\(|\b(all_gather|reduce_scatter)\w*\(|_functional_collectives")
    folders = ("python/torchdion", "examples", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(file.relative_to(ROOT)) for file in files if calls.search(file.read_text())}
    assert found - {"examples/gpt/sharded.py"} == {"python/torchdion/by_cpu.py"}  # which gathers words, not tensors
