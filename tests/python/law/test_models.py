"""The law for models as users cut them: fully_shard and parallelize_module, and the gradients of their backward."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from gathered import gathered
from law import BOUND, CONDITION, HYPER, mesh_of, normal
from long_cases import grid
from oracle import DionState, dion, lion
from ranks import run_ranks
from runs import error, start
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torchdion

WIDTH, HIDDEN, STEPS = 22, 40, 20
EXAMPLES = 48  # of each rank that has data of its own
STARTS = {"fsdp": (2, 3, 1), "tp": (2, 1, 2), "fsdp on tp": (2, 2, 2), "fsdp beside tp": (2, 2, 2), "hsdp": (2, 3, 1)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).double()


def loss(model: nn.Module, step: int, shard: int) -> Tensor:
    """On the data of one rank of dp and fs."""
    x, y = (normal((EXAMPLES, WIDTH), torch.float64, step, shard, which) for which in (0, 1))
    return (model(x) - y).square().mean()


def off_the_other_axis(param: nn.Parameter) -> Shard:
    """fs cuts the dimension that tp does not."""
    placements = param.placements if isinstance(param, DTensor) else ()
    return Shard(1) if param.dim() == 2 and Shard(0) in placements else Shard(0)


def cut(model: nn.Module, style: str, mesh: DeviceMesh) -> None:
    if "tp" in style:
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if "fsdp" in style:
        placement = off_the_other_axis if style == "fsdp beside tp" else None
        for module in (*model, model):
            fully_shard(module, mesh=mesh["fs"], shard_placement_fn=placement)
    if style == "hsdp":
        for module in (*model, model):
            fully_shard(module, mesh=mesh["dp", "fs"])


class Trained(NamedTuple):
    weights: dict[str, Tensor]  # whole
    placements: dict[str, str]
    local_sizes: list[torch.Size]
    sent: int  # elements over dp


def train(rank: int, world_size: int, style: str, options: dict[str, Any]) -> Trained:
    mesh = mesh_of(STARTS[style])
    model = new_model()
    cut(model, style, mesh)
    replicas = {} if style == "hsdp" else {"replicate_mesh": mesh["dp"]}
    optimizer = torchdion.Dion(model.parameters(), **HYPER, **options, **replicas)
    shard = mesh.get_local_rank("dp") * STARTS[style][1] + mesh.get_local_rank("fs")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step, shard).backward()
        optimizer.step()
    named = list(model.named_parameters())
    sent = optimizer.stats()["traffic"].get("dp", {})
    return Trained(
        {name: gathered(param) for name, param in named},
        {name: str(getattr(param, "placements", "")) for name, param in named},
        [param.to_local().shape if isinstance(param, DTensor) else param.shape for _, param in named],
        sum(kind["elements"] for kind in sent.values()),
    )


def one_process(style: str, options: dict[str, Any]) -> tuple[dict[str, Tensor], float]:
    """The oracle's weights, with gradients of the loss over all data, and the worst κ(BQ)."""
    model, (dp, fs, _) = new_model(), STARTS[style]
    params = dict(model.named_parameters())
    optimizer = torchdion.Dion(model.parameters(), **HYPER, **options)
    start(optimizer)
    lr, mu, decay, betas = HYPER["lr"], HYPER["mu"], HYPER["weight_decay"], HYPER["betas"]
    momenta = {name: torch.zeros_like(param) for name, param in params.items()}
    Qs = {name: optimizer.state[param].get("Q") for name, param in params.items()}
    worst = 1.0
    for step in range(STEPS):
        model.zero_grad()
        sum(loss(model, step, shard) / (dp * fs) for shard in range(dp * fs)).backward()
        for name, param in params.items():
            if Qs[name] is None:
                X, momenta[name] = lion(param.detach(), momenta[name], param.grad, lr, *betas, decay)
            else:
                state = DionState(param.detach(), momenta[name], Qs[name])
                state = dion(state, param.grad, lr, mu, decay, options["orientation"])
                X, momenta[name], Qs[name], condition = state
                worst = max(worst, condition)
            param.data.copy_(X)
    return {name: param.detach() for name, param in params.items()}, worst


PLACEMENTS = {
    "fsdp": ("(Shard(dim=0),)", "(Shard(dim=0),)"),
    "tp": ("(Shard(dim=0),)", "(Shard(dim=1),)"),
    "fsdp on tp": ("(_StridedShard(dim=0, sf=2), Shard(dim=0))", "(Shard(dim=0), Shard(dim=1))"),
    "fsdp beside tp": ("(Shard(dim=1), Shard(dim=0))", "(Shard(dim=0), Shard(dim=1))"),
    "hsdp": ("(Replicate(), Shard(dim=0))", "(Replicate(), Shard(dim=0))"),
}


def averaged_elements(local_sizes: list[torch.Size], rank_fraction: float) -> int:
    """What a step sends over dp: P and R of a matrix when compressed, else all of it."""
    r = math.ceil(rank_fraction * WIDTH)
    compressed = rank_fraction < 0.5
    return sum(
        (sum(sizes) * r if compressed else sizes.numel()) if len(sizes) == 2 else sizes.numel() for sizes in local_sizes
    )


@pytest.mark.parametrize(
    ("style", "orientation", "rank_fraction"),
    grid(
        {style: style for style in STARTS},
        {"left": "left", "right": "right"},
        {"compressed": 0.15, "dense": 0.75},
        long=["fsdp", "fsdp beside tp", "tp"],
    ),
)
def test_a_model_that_is_cut_trains_as_a_whole_one(style: str, orientation: str, rank_fraction: float) -> None:
    options = {"orientation": orientation, "rank_fraction": rank_fraction}
    dp, fs, tp = STARTS[style]
    ranks = run_ranks(train, dp * fs * tp, style, options)
    expected, condition = one_process(style, options)
    begin = dict(new_model().named_parameters())
    assert condition <= CONDITION
    for one in ranks:
        assert (one.placements["0.up.weight"], one.placements["0.down.weight"]) == PLACEMENTS[style]
        most = 0 if style == "hsdp" else STEPS * averaged_elements(one.local_sizes, rank_fraction)
        assert one.sent <= most  # of P a rank may sum a share alone
        assert one.sent == most or rank_fraction == 0.15
        for name, X in one.weights.items():
            off = error(X, expected[name], begin[name].detach())
            assert off <= BOUND[torch.float64], f"{name} is off by {off:.1e}"
