"""FP64 gradients and momenta of any scale whose squares FP64 holds, alike on all ranks or not, follow one trajectory.

Dion does not see the scale of its gradients, and of parts that are 1e-20 as large as the others or less nothing reaches
the weights. So a run of ordinary gradients, with zeros in the place of such parts, says what to expect.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import torchdion

SHAPE = (16, 12)
STEPS = 6
SCALES = [  # of both parts of each gradient, which lie on different ranks
    (1e130, 1e130),
    (1e-130, 1e-130),
    (1e130, 1e-130),
    (1e-130, 1e130),
    (1e-80, 1e-110),
    (0.0, 1e-130),
    (1e130, 0.0),
    (1.0, 1.0),  # in one batch with all others
]
METHODS = ("cholesky_qr", "rcqr")
HOUSEHOLDER = ("qr",)  # of whole columns, which some layouts cut for one of the orientations
PARTS = ("rows", "cols", "both", "replicas")  # what two parts are: halves, quarters in turn, gradients of two replicas
BOUND = 1e-9


def normal(seed: int) -> Tensor:
    return torch.randn(*SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def is_second(parts: str) -> Tensor:
    """Which entries lie in the second part."""
    row, col = (torch.arange(size) >= size // 2 for size in SHAPE)
    whole = torch.zeros(SHAPE, dtype=torch.bool)
    return {"rows": whole | row[:, None], "cols": whole | col, "both": row[:, None] ^ col}[parts]


def gradient(step: int, place: int, parts: str, scales: tuple[float, float], replica: int) -> Tensor:
    G = normal(100 * step + 10 * place + replica + 1)
    if parts == "replicas":
        return G * scales[replica]
    return torch.where(is_second(parts), G * scales[1], G * scales[0])


def ordinary(scales: tuple[float, float]) -> tuple[float, float]:
    """The same without its scale, and without what is too small."""
    first, second = (scale / max(scales) for scale in scales)
    return first if first > 1e-20 else 0.0, second if second > 1e-20 else 0.0


def groups_of(methods: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"rank_fraction": fraction, "orthonormalize": method, "orientation": orientation}
        for fraction in (1.0, 0.25)
        for method in methods
        for orientation in (("left",) if methods == HOUSEHOLDER else ("right", "left"))
    ]


def trained(
    parts: str,
    replicas: list[int],
    place: Callable[[Tensor], Tensor] = torch.clone,
    seen_as: Callable[[tuple[float, float]], tuple[float, float]] = tuple,
    methods: tuple[str, ...] = METHODS,
    **options: Any,
) -> list[Parameter]:
    """After all steps: a parameter for each scale in each group. The gradients are means over replicas."""
    groups = [{"params": [Parameter(place(normal(0))) for _ in SCALES], **group} for group in groups_of(methods)]
    optimizer = torchdion.Dion(groups, lr=0.01, weight_decay=0.01, **options)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            for index, (scales, param) in enumerate(zip(SCALES, group["params"], strict=True)):
                each = [gradient(step, index, parts, seen_as(scales), replica) for replica in replicas]
                param.grad = place(sum(G / len(each) for G in each))
        optimizer.step()
    return [param for group in optimizer.param_groups for param in group["params"]]


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, tuple[str, ...]], list[Tensor]]:
    """By what parts are and by methods."""
    return {
        (parts, methods): [
            param.detach() for param in trained(parts, replicas_of(parts), seen_as=ordinary, methods=methods)
        ]
        for parts in PARTS
        for methods in (METHODS, HOUSEHOLDER)
    }


def replicas_of(parts: str) -> list[int]:
    return [0, 1] if parts == "replicas" else [0]


def assert_expected(weights: list[Tensor], expected: list[Tensor], methods: tuple[str, ...]) -> None:
    for place, (X, Y) in enumerate(zip(weights, expected, strict=True)):
        group, scales = groups_of(methods)[place // len(SCALES)], SCALES[place % len(SCALES)]
        assert error(X, Y, normal(0)) <= BOUND, (group, scales)


@pytest.mark.parametrize("methods", [METHODS, HOUSEHOLDER], ids=str)
@pytest.mark.parametrize("parts", PARTS)
def test_one_process_follows_the_trajectory_of_ordinary_gradients(parts, methods, expected):
    weights = [param.detach() for param in trained(parts, replicas_of(parts), methods=methods)]
    assert_expected(weights, expected[parts, methods], methods)


def on_ranks(rank: int, world_size: int) -> list[tuple[str, tuple[str, ...], list[Tensor]]]:
    """What is scaled, by which methods, and the weights, for each way to cut them."""
    found = []
    whole = init_device_mesh("cpu", (world_size,), mesh_dim_names=("all",))
    halves = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "fs"))
    replicas = {"replicate_mesh": halves["dp"]}
    cuts = [
        ("rows", whole, [Shard(0)], METHODS, {}),
        ("cols", whole, [Shard(1)], METHODS, {}),
        ("cols", whole, [Shard(1)], HOUSEHOLDER, {}),
        ("both", halves, [Shard(0), Shard(1)], METHODS, {}),
        ("rows", halves, [Replicate(), Shard(0)], METHODS, {}),
        ("replicas", halves["fs"], [Shard(0)], METHODS, replicas),
        ("replicas", halves["fs"], [Shard(1)], METHODS, replicas),
    ]
    for parts, mesh, placements, methods, options in cuts:

        def place(full: Tensor, mesh: Any = mesh, placements: Any = placements) -> Tensor:
            return distribute_tensor(full, mesh, placements, src_data_rank=None)

        own = [halves["dp"].get_local_rank()] if options else [0]
        weights = trained(parts, own, place, methods=methods, **options)
        found.append((parts, methods, [param.full_tensor().detach() for param in weights]))
    return found


@pytest.mark.long
def test_every_layout_follows_the_trajectory_of_ordinary_gradients(expected):
    for found in run_ranks(on_ranks, 4):
        for parts, methods, weights in found:
            assert_expected(weights, expected[parts, methods], methods)
