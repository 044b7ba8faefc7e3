"""Gradients of DTensors: of every placement, missing, and such as cannot be."""

import copy
from typing import Any

import pytest
import torch
from fake_world import fake_world, mesh_of, numbered, placed
from ranks import run_ranks
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

import torchdion

STRIDED, S0, S1 = _StridedShard(0, split_factor=2), Shard(0), Shard(1)


def test_the_engine_writes_into_the_pieces_of_parameters_and_states():
    with fake_world(1, 2):
        param = placed(numbered(4, 6), mesh_of(fs=2), S0)
        param.grad = torch.ones_like(param)
        optimizer = torchdion.Dion([{"params": [param], "algorithm": "lion"}], lr=0.5, weight_decay=0.0)
        version = param._version
        optimizer.step()
        assert torch.equal(param.to_local(), numbered(4, 6)[2:] - 0.5)
        assert (optimizer.state[param]["momentum"].to_local() > 0).all()
        assert optimizer.stats()["state_bytes"] == 4 * (12 + 1)
        assert param._version > version


def test_a_missing_gradient_of_a_DTensor_leaves_it_as_it_is():
    with fake_world(1, 2):
        params = [placed(numbered(4, 6), mesh_of(fs=2), S0) for _ in range(3)]
        for param in params[:2]:  # one for each rank: torch 2.13's and 2.14's fake groups send nothing that is empty
            param.grad = torch.ones_like(param)
        optimizer = torchdion.Dion(params, rank_fraction=0.5)
        optimizer.step()
        assert list(optimizer.state) == params[:2]
        assert torch.equal(params[2].to_local(), numbered(4, 6)[2:])


@pytest.mark.parametrize("is_dtensor", [False, True])
def test_a_gradient_that_is_a_DTensor_where_its_parameter_is_none_or_the_reverse_is_refused_by_name(is_dtensor):
    with fake_world(1, 2):
        sharded = placed(torch.zeros(4, 4), mesh_of(fs=2), S0)
        plain = Parameter(torch.zeros(4, 4))
        param, gradient = (plain, sharded.data) if is_dtensor else (sharded, plain.data)
        sentence = r"^torchdion.Dion: the gradient of parameter 'weight' \(parameter group 0\) must be a "
        sentence += "plain tensor .* got a DTensor$" if is_dtensor else "DTensor .* got a plain tensor$"
        param.grad = gradient
        optimizer = torchdion.Dion([("weight", param)])
        with pytest.raises(ValueError, match=sentence):
            optimizer.step()
        assert optimizer.state == {}


def test_a_gradient_on_another_mesh_is_refused_by_name():
    with fake_world(1, 4):
        mesh = mesh_of(a=2, b=2)
        param = placed(torch.zeros(4, 4), mesh["a"], S0)
        param.grad = placed(torch.zeros(4, 4), mesh["b"], S0).data
        with pytest.raises(
            ValueError, match=r"the gradient of parameter 'weight' .* must be placed as .*a=2.* got .*b=2"
        ):
            torchdion.Dion([("weight", param)]).step()


def redistributed(rank: int, world_size: int, placements: Any, gradient_placements: Any) -> bool:
    """Whether the step is handed the sum of what the ranks hold, cut as the parameter is."""
    mesh = mesh_of(a=2, b=2)
    param = placed(torch.zeros(6, 4), mesh, *placements)
    if any(placement.is_partial() for placement in gradient_placements):
        gradient = DTensor.from_local(numbered(6, 4) * (1 + rank), mesh, gradient_placements)
        total = gradient.full_tensor()
    else:
        total = numbered(6, 4)
        gradient = placed(total, mesh, *gradient_placements).data
    param.grad = gradient
    optimizer = torchdion.Dion([{"params": [param], "algorithm": "lion"}], lr=1.0, weight_decay=0.0, betas=(0.0, 0.0))
    optimizer.step()
    assert param.grad is gradient
    expected = placed(total, mesh, *placements).to_local()
    return torch.equal(optimizer.state[param]["momentum"].to_local(), expected)


GRADIENTS = [
    ((S0, Replicate()), (Partial(), Replicate())),
    ((S0, S1), (Partial(), Partial())),
    ((Replicate(), Replicate()), (Partial(), Partial("avg"))),
    ((S0, S1), (Replicate(), S0)),
    ((S0, S0), (S1, S0)),
    ((STRIDED, S0), (Partial(), Replicate())),
]


@pytest.mark.parametrize(("placements", "gradient_placements"), GRADIENTS, ids=str)
def test_a_gradient_that_lies_elsewhere_is_redistributed_to_the_placements_of_its_parameter(
    placements, gradient_placements
):
    assert all(run_ranks(redistributed, 4, placements, gradient_placements))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)))


def sequence_parallel(model: nn.Module, mesh: Any, x: torch.Tensor) -> DTensor:
    plan = {
        "up": ColwiseParallel(output_layouts=S0, use_local_output=False),
        "norm": SequenceParallel(sequence_dim=0),
        "down": RowwiseParallel(input_layouts=S0, use_local_output=False),
    }
    parallelize_module(model, mesh, plan, src_data_rank=None)
    return model(x)


def batch_sharded(model: nn.Module, mesh: Any, x: torch.Tensor) -> DTensor:
    distribute_module(model, mesh)
    return model(distribute_tensor(x, mesh, [S0], src_data_rank=None))


def trained_on_partial_gradients(rank: int, world_size: int, how: str) -> tuple[set[str], list[float]]:
    """The parameters whose gradients are Partial, and how far the momenta lie from the gradients of one process."""
    alone, x = Normed(), torch.randn(6, 6)
    model = copy.deepcopy(alone)
    output = {"sequence parallel": sequence_parallel, "batch sharded": batch_sharded}[how](
        model, mesh_of(tp=world_size), x
    )
    output.full_tensor().square().sum().backward()
    alone(x).square().sum().backward()
    optimizer = torchdion.Dion([{"params": model.parameters(), "algorithm": "lion"}], betas=(0.0, 0.0))
    optimizer.step()
    partial = {name for name, param in model.named_parameters() if any(p.is_partial() for p in param.grad.placements)}
    errors = [
        (optimizer.state[ours]["momentum"].full_tensor() - theirs.grad).abs().max().item()
        / theirs.grad.abs().max().item()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    ]
    return partial, errors


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sequence parallel", {"norm.weight", "norm.bias"}),
        ("batch sharded", {"up.weight", "up.bias", "norm.weight", "norm.bias", "down.weight", "down.bias"}),
    ],
)
def test_a_partial_gradient_is_summed_before_the_step(how, expected):
    for partial, errors in run_ranks(trained_on_partial_gradients, 2, how):
        assert partial == expected
        assert max(errors) < 1e-5
