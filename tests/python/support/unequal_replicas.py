"""Optimizers whose replicas may differ in a bit, and what a step says of those that do."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from small_optimizers import params_of
from torch import Tensor
from torch.nn import Parameter

import torchdion

SIZES = {"tall": (16, 6), "square": (12, 12), "vector": (5,)}
END = (
    "; all get the first one's weights and states now, as synchronize_replicas() before the first backward pass gives "
    "them"
)


def sentence(title: str, names: str) -> str:
    return f"{title}: replicas must start alike, and differ in {names}{END}"


def said_by(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in caught]


def parameters(dtype: torch.dtype = torch.float32) -> list[tuple[str, Parameter]]:
    generator = torch.Generator().manual_seed(1)
    return [(name, Parameter(torch.randn(size, generator=generator).to(dtype))) for name, size in SIZES.items()]


def flip_a_bit(weight: Tensor) -> None:
    """The last one of the last number."""
    weight.detach().view(torch.int32).view(-1)[-1] ^= 1


def made(name: str, params: Any, **options: Any) -> Any:
    return getattr(torchdion, name)(params, lr=0.1, **{"replicate_mesh": dist.group.WORLD, **options})


def step(optimizer: Any, rank: int, number: int = 0) -> None:
    own = 0 if not optimizer._layouts.meshes.averages else rank  # else gradients are averaged before
    for index, param in enumerate(params_of(optimizer)):
        if param.requires_grad:
            generator = torch.Generator().manual_seed(100 * number + 10 * index + own)
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def calls_of_agreement(optimizer: Any) -> int:
    return sum(kinds["agreement"]["calls"] for kinds in optimizer.stats()["traffic"].values())


def equal_on_all_ranks(tensor: Tensor) -> bool:
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, tensor.detach().contiguous())
    return all(torch.equal(piece, pieces[0]) for piece in pieces)
