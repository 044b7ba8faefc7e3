"""torchdion.ddp_comm_hook: gradients that stay local, gradients that are averaged, and what is refused."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from runs import error
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import torchdion

WIDTH = 12


class Model(nn.Module):
    """A matrix and a vector for Dion, the same for another optimizer, and a layer that may be left unused."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.foreign = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        x = self.own(self.foreign(x).relu()).square()
        y: Tensor = self.unused(x) if use else x
        return y.mean()


def model() -> Model:
    torch.manual_seed(3)
    return Model().double()


def inputs(rank: int, count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    for _ in range(count):
        yield torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)


class Sent:
    """Counts the numbers that all-reduces from Python carry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: list[int] = []
        all_reduce = dist.all_reduce

        def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.numbers.append(tensor.numel())
            return all_reduce(tensor, *args, **kwargs)

        monkeypatch.setattr(dist, "all_reduce", counting)


def backward(wrapped: nn.Module, rank: int, accumulated: int, **call: Any) -> None:
    """One synchronized backward pass after some under no_sync().

    Before them one that is forgotten: after the first DistributedDataParallel makes its buckets anew, and with
    static_graph it must not be under no_sync().
    """
    wrapped(next(inputs(rank, 1)), **call).backward()
    wrapped.zero_grad()
    for index, x in enumerate(inputs(rank, accumulated)):
        last = index == accumulated - 1
        with nullcontext() if last or not hasattr(wrapped, "no_sync") else wrapped.no_sync():
            wrapped(x, **call).backward()


def optimizer_of(module: Model, layers: tuple[str, ...], **options: Any) -> torchdion.Dion:
    named = [(name, param) for name, param in module.named_parameters() if name.split(".")[0] in layers]
    return torchdion.Dion(named, lr=0.01, **options)


def gradients_with_hook(
    rank: int, world: int, accumulated: int, ddp: dict[str, Any], use_on: list[int], goes_by_cpu: bool = False
) -> list[int]:
    """Compares the gradients with those of a model by itself and of one without a hook."""
    call = {"use": rank in use_on}
    alone, without, module = model(), model(), model()
    backward(alone, rank, accumulated, **call)
    backward(DistributedDataParallel(without, **ddp), rank, accumulated, **call)
    optimizer = optimizer_of(module, ("own", "unused"), replicate_mesh=dist.group.WORLD)
    wrapped = DistributedDataParallel(module, **ddp)
    wrapped.register_comm_hook(optimizer, torchdion.ddp_comm_hook)
    with pytest.MonkeyPatch.context() as monkeypatch:
        sent = Sent(monkeypatch)
        monkeypatch.setattr("torchdion.ddp.goes_by_cpu", lambda group, device_type: goes_by_cpu)
        backward(wrapped, rank, accumulated, **call)
    for name, param in module.named_parameters():
        layer = name.split(".")[0]
        expected = without if layer == "foreign" else alone
        gradient = expected.get_parameter(name).grad
        if gradient is None:
            gradient = None if layer == "unused" and not use_on else torch.zeros_like(param)
        assert (param.grad is None) == (gradient is None), name
        assert gradient is None or torch.equal(param.grad, gradient), name
    own, other = module.own.weight.grad, without.own.weight.grad
    assert not torch.allclose(own, other, rtol=1e-2)
    return sent.numbers


FOREIGN = WIDTH * WIDTH + WIDTH
ONE_BUCKET, SMALL_BUCKETS = {}, {"bucket_cap_mb": 1e-4}


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize(
    ("ddp", "use_on"),
    [
        (ONE_BUCKET, [0, 1]),
        (SMALL_BUCKETS, [0, 1]),
        ({"gradient_as_bucket_view": True}, [0, 1]),
        ({"static_graph": True}, [0, 1]),
        ({"static_graph": True, "gradient_as_bucket_view": True}, [0, 1]),
        ({"find_unused_parameters": True}, [0, 1]),
        ({"find_unused_parameters": True}, [0]),
        ({"find_unused_parameters": True}, []),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True, **SMALL_BUCKETS}, [1]),
    ],
)
def test_gradients_of_the_optimizer_stay_local_and_all_others_are_averaged_as_without_a_hook(
    accumulated: int, ddp: dict[str, Any], use_on: list[int]
) -> None:
    for numbers in run_ranks(gradients_with_hook, 2, accumulated, ddp, use_on):
        assert sum(numbers) == 2 * FOREIGN  # in two synchronized backward passes
        assert len(numbers) == 2 or "bucket_cap_mb" in ddp


@pytest.mark.parametrize("ddp", [ONE_BUCKET, SMALL_BUCKETS, {"gradient_as_bucket_view": True}])
def test_gradients_that_go_by_the_cpu_are_averaged_to_the_same_bits(ddp: dict[str, Any]) -> None:
    for numbers in run_ranks(gradients_with_hook, 2, 2, ddp, [0, 1], goes_by_cpu=True):
        assert sum(numbers) == 2 * FOREIGN


def nothing_left(rank: int, world: int) -> list[int]:
    module = model()
    optimizer = optimizer_of(module, ("own", "foreign", "unused"), replicate_mesh=dist.group.WORLD)
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(optimizer, torchdion.ddp_comm_hook)
    with pytest.MonkeyPatch.context() as monkeypatch:
        sent = Sent(monkeypatch)
        backward(wrapped, rank, 1)
    return sent.numbers


def test_nothing_is_sent_where_all_parameters_are_the_optimizers() -> None:
    assert run_ranks(nothing_left, 2) == [[], []]


STEPS = 8


def trained(rank: int, world: int, clip: float) -> None:
    """With the hook and three accumulated passes a step, as in one process with the mean of their losses."""
    alone, module = model(), model()
    reference = optimizer_of(alone, ("own", "foreign", "unused"), rank_fraction=0.25)
    optimizer = optimizer_of(module, ("own", "foreign", "unused"), rank_fraction=0.25, replicate_mesh=dist.group.WORLD)
    wrapped = DistributedDataParallel(module, **SMALL_BUCKETS)
    wrapped.register_comm_hook(optimizer, torchdion.ddp_comm_hook)
    starts = [param.detach().clone() for param in module.parameters()]
    for step in range(STEPS):
        optimizer.zero_grad()
        reference.zero_grad()
        for index, x in enumerate(inputs(rank + 20 * step, 3)):
            with nullcontext() if index == 2 else wrapped.no_sync():
                wrapped(x).backward()
        for other in range(world):
            for x in inputs(other + 20 * step, 3):
                (alone(x) / world).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        reference.step()
    optimizer.check_replicas()
    triples = zip(module.parameters(), alone.parameters(), starts, strict=True)
    errors = [error(param.detach(), expected.detach(), start) for param, expected, start in triples]
    assert (max(errors) <= 1e-10) == (clip == 0), errors


@pytest.mark.parametrize("clip", [0, 0.1])
def test_training_with_the_hook_is_that_of_one_process_and_clipping_by_local_norms_leaves_the_replicas_equal(
    clip: float,
) -> None:
    run_ranks(trained, 3, clip)


def refusal(rank: int, world: int, case: str) -> str:
    module = model()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "fs"))
    options: dict[str, Any] = {
        "no mesh": {},
        "no averaging": {"replicate_mesh": mesh["dp"], "replicate_mesh_grad_sync": False},
        "other ranks": {"replicate_mesh": mesh["dp"]},
        "another optimizer": {},
    }[case]
    optimizer: Any = optimizer_of(module, ("own",), **options)
    if case == "another optimizer":
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(optimizer, torchdion.ddp_comm_hook)
    with pytest.raises((ValueError, TypeError)) as caught:
        backward(wrapped, rank, 1)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("no mesh", "ValueError: torchdion.ddp_comm_hook: the optimizer must average over replicas: give"),
        ("no averaging", "ValueError: torchdion.ddp_comm_hook: the optimizer must average over replicas: give"),
        (
            "other ranks",
            "ValueError: torchdion.ddp_comm_hook: replicate_mesh must have the ranks of the DistributedDataParallel "
            "model, [0, 1, 2, 3], got [0, 2]",
        ),
        (
            "another optimizer",
            "TypeError: torchdion.ddp_comm_hook: the hook's state must be an optimizer of torchdion, got SGD",
        ),
    ],
)
def test_an_optimizer_that_does_not_average_over_the_models_ranks_is_refused_on_every_rank(
    case: str, sentence: str
) -> None:
    refusals = run_ranks(refusal, 4, case)
    assert refusals[0].startswith(sentence)
    assert [text.split(", got")[0] for text in refusals] == [refusals[0].split(", got")[0]] * 4
