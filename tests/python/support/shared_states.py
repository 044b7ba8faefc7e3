"""A model of every role and the optimizers whose states ranks share out, for the tests of owners="shard"."""

from typing import Any

import torch
import torch.distributed as dist
from runs import error
from torch import Tensor, nn

import torchdion

STEPS = 6
REPLICAS = 24  # gradients, which ranks average among themselves
MADE_BY: dict[str, tuple[Any, dict[str, Any]]] = {
    "DistMuon": (torchdion.DistMuon, {"lr": 0.02, "precision": "highest"}),
    "DistMuon, nanochat's": (
        torchdion.DistMuon,
        {"lr": 0.02, "precision": "highest", "newton_schulz": "jordan", "adjust_lr": "original", "weight_decay": 0},
    ),
    "DistAdamW": (torchdion.DistAdamW, {"lr": 0.01}),
    "Lion": (torchdion.Lion, {"lr": 0.003, "owners": "shard"}),
}


class Model(nn.Module):
    """Every role of a parameter, none of which any number of ranks here divides."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))

        self.matrices = nn.ParameterList([parameter(13, 7), parameter(7, 13), parameter(30, 30), parameter(5, 64)])
        self.fused = parameter(21, 11)
        self.experts = parameter(5, 6, 9)
        self.convolution = parameter(6, 3, 3, 3)
        self.embedding = parameter(101, 5)
        self.vector, self.number, self.nothing = parameter(17), parameter(), parameter(0, 3)

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [*self.matrices, self.convolution, self.vector, self.number, self.nothing]},
            {"params": [self.fused], "blocks": 3},
            {"params": [self.experts], "batch_dims": 1, "weight_decay": 0.1},
            {"params": [self.embedding], "algorithm": "lion", "lr_multiplier": 0.1},
        ]


def give_gradients(model: nn.Module, step: int, rank: int, ranks: int) -> None:
    """The mean of what falls to a rank of those that the step has."""
    for index, param in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(100 * step + index)
        every = torch.randn((REPLICAS, *param.shape), generator=generator, dtype=torch.float64)
        param.grad = every[rank::ranks].mean(0).to(param.dtype)


def made(name: str, model: Model, **more: Any) -> Any:
    made_by, options = MADE_BY[name]
    if options.get("owners") and "replicate_mesh" not in more and dist.is_initialized():
        more["replicate_mesh"] = dist.group.WORLD
    elif options.get("owners") and "replicate_mesh" not in more:
        more["owners"] = "all"
    return made_by(model.groups(), **options | more)


def trained(name: str, **more: Any) -> tuple[Model, Any]:
    """By one process."""
    model = Model()
    optimizer = made(name, model, **more)
    for step in range(STEPS):
        give_gradients(model, step, 0, 1)
        optimizer.step()
    return model, optimizer


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def check_close(found: list[Tensor], expected: list[Tensor], start: list[Tensor], most: float = 1e-10) -> None:
    for X, end, begin in zip(found, expected, start, strict=True):
        assert X.numel() == 0 or error(X, end, begin) <= most
