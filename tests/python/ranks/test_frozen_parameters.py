"""Several ranks leave alone what no step can compute with: they agree beside it, compare and copy its bytes."""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from frozen import KINDS, WITHOUT_GRADIENTS, frozen
from ranks import run_ranks
from small_optimizers import cut
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")

ALL = [*KINDS, *WITHOUT_GRADIENTS]
WITH_BYTES = ["uint8", "int64", "uint16", "bool", "float8", "complex", "uint4"]


def replicas(kinds: list[str], fill: float = 1.0, **options: Any) -> tuple[Parameter, dict[str, Parameter], Any]:
    X = Parameter(torch.ones(6, 4))
    odd = {kind: frozen(kind, (6, 4), fill) for kind in kinds}
    params = [("X", X), *odd.items()]
    return X, odd, torchdion.Muon([{"params": params, **options}], replicate_mesh=dist.group.WORLD)


def steps_and_copies(rank: int, world_size: int, owners: str) -> None:
    X, odd, optimizer = replicas(ALL, owners=owners)
    for _ in range(2):
        X.grad = torch.eye(6, 4) * (1 + rank)
        optimizer.step()
    for kind, param in odd.items():
        param.data = frozen(kind, (6, 4), 1.0 + rank).data  # replicas have compared what they began with
    assert set(optimizer.state) == {X}
    optimizer.synchronize_for_checkpoint()
    assert optimizer.whole_state_dict()["state"].keys() == {0}
    X.requires_grad_(False)  # frozen too: compared all the same
    X.grad = None
    with pytest.raises(RuntimeError) as refusal:
        optimizer.check_replicas()
    differing = [kind for kind in WITH_BYTES if kind not in ("bool", "uint4")]  # of which 1 and 2 are one value
    found = re.findall(r"parameter '([^']+)'", str(refusal.value))
    assert set(differing) <= set(found) <= set(WITH_BYTES)
    optimizer.synchronize_replicas()
    optimizer.check_replicas()
    for kind in differing:
        first = frozen(kind)
        assert torch.equal(odd[kind].detach().to(torch.complex64), first.detach().to(torch.complex64)), kind


@pytest.mark.parametrize("owners", ["all", "shard"])
def test_replicas_step_beside_frozen_parameters_and_are_made_equal_in_their_bytes(owners):
    run_ranks(steps_and_copies, 2, owners)


def given_a_gradient(rank: int, world_size: int, kind: str, owners: str) -> None:
    X, odd, optimizer = replicas([kind], owners=owners)
    X.grad = torch.eye(6, 4)
    before = X.detach().clone()
    if rank == 1:
        odd[kind].grad = odd[kind].detach().clone()
        with pytest.raises(KINDS[kind][1], match=rf"^torchdion.Muon: parameter '{kind}' .* {KINDS[kind][2]}$"):
            optimizer.step()
    else:
        with pytest.raises(RuntimeError, match=r"^torchdion.Muon: another rank refused"):
            optimizer.step()
    assert torch.equal(X, before)
    assert not optimizer.state
    odd[kind].grad = None
    optimizer.step()
    assert not torch.equal(X, before)


@pytest.mark.parametrize("owners", ["all", "shard"])
@pytest.mark.parametrize("kind", ["uint8", "float8", "meta", "sparse"])
def test_all_ranks_are_told_where_one_has_a_gradient_for_it(kind, owners):
    run_ranks(given_a_gradient, 2, kind, owners, time_limit=60)


def cut_beside_frozen_ones(rank: int, world_size: int) -> None:
    """A quantized weight in one column of bytes, and a frozen convolution that is cut as no algorithm can follow."""
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fs",))
    X = Parameter(cut(torch.ones(12, 6)))
    packed = Parameter(
        distribute_tensor(torch.ones(7, 1, dtype=torch.uint8), mesh, [Shard(0)], src_data_rank=None),
        requires_grad=False,
    )
    convolution = Parameter(
        distribute_tensor(torch.ones(4, 6, 3, 3), mesh, [Shard(2)], src_data_rank=None), requires_grad=False
    )
    optimizer = torchdion.Dion([{"params": [("X", X), ("packed", packed), ("convolution", convolution)], "blocks": 1}])
    for _ in range(2):
        X.grad = torch.ones_like(X)
        optimizer.step()
    assert set(optimizer.state) == {X}
    assert optimizer.whole_state_dict()["state"].keys() == {0}
    optimizer.resize_rank(0.5)
    convolution.grad = torch.ones_like(convolution)
    before = X.to_local().clone()
    with pytest.raises(ValueError, match=r"^torchdion.Dion: parameter 'convolution' .* is a convolution"):
        optimizer.step()
    assert torch.equal(X.to_local(), before)


def test_cut_parameters_step_beside_frozen_ones_however_those_lie():
    run_ranks(cut_beside_frozen_ones, 2)


def of_blocks(rank: int, world_size: int, owners: str) -> None:
    """Fused matrices beside a frozen one whose rows the blocks do not divide."""
    X, odd = Parameter(torch.ones(6, 4)), Parameter(torch.ones(5, 4), requires_grad=False)
    groups = [{"params": [X, odd], "blocks": 2, "owners": owners}]
    optimizer = torchdion.Muon(groups, replicate_mesh=dist.group.WORLD)
    X.grad = torch.eye(6, 4)
    optimizer.step()
    assert set(optimizer.state) == {X}
    odd.grad = torch.ones(5, 4)
    with pytest.raises(ValueError, match=r"^torchdion.Muon: blocks must divide the 5 rows of parameter 1 "):
        optimizer.step()


@pytest.mark.parametrize("owners", ["all", "shard"])
def test_a_frozen_matrix_that_the_blocks_of_its_group_do_not_divide_is_left_alone(owners):
    run_ranks(of_blocks, 2, owners)
