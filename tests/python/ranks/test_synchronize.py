"""Replicas that the optimizer averages itself: momenta before a checkpoint, weights checked and made equal."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn import Linear, Parameter, Sequential

import torchdion

SIZES = {"tall": (16, 6), "wide": (6, 16), "square": (12, 12), "small": (4, 3), "vector": (5,)}
COMPRESSED = ["tall", "wide", "square"]  # at a quarter of the rank; small: (4 + 3) 1 < 4 · 3 as well
STEPS = 3


def parameters() -> list[tuple[str, Parameter]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (name, Parameter(torch.randn(size, generator=generator, dtype=torch.float64))) for name, size in SIZES.items()
    ]


def gradient(param: Tensor, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank + 7 * param.numel())
    return torch.randn(param.shape, generator=generator, dtype=param.dtype)


def follow(optimizer: torchdion.Dion, ranks: list[int], start: int = 0, steps: int = STEPS) -> None:
    """Steps with the mean of the ranks' gradients."""
    for step in range(start, start + steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.stack([gradient(param, rank, step) for rank in ranks]).mean(0)
        optimizer.step()


def replica(rank: int, **options: Any) -> torchdion.Dion:
    options = {"rank_fraction": 0.25, "replicate_mesh": dist.group.WORLD, **options}
    optimizer = torchdion.Dion(parameters(), lr=0.1, **options)
    follow(optimizer, [rank])
    return optimizer


def named(optimizer: torchdion.Dion, key: str) -> dict[str, Tensor]:
    """The states called `key`, or the weights, by name of the parameter."""
    [group] = optimizer.param_groups
    pairs = zip(group["param_names"], group["params"], strict=True)
    if key == "weight":
        return {name: param.detach() for name, param in pairs}
    return {name: optimizer.state[param][key] for name, param in pairs if key in optimizer.state[param]}


def gathered(tensor: Tensor) -> list[Tensor]:
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, tensor.contiguous())
    return pieces


def synchronized(rank: int, world: int) -> None:
    alone = torchdion.Dion(parameters(), lr=0.1, rank_fraction=0.25)
    follow(alone, list(range(world)))
    optimizer = replica(rank)
    before = {name: gathered(momentum) for name, momentum in named(optimizer, "momentum").items()}
    assert not any(torch.equal(before[name][0], before[name][1]) for name in COMPRESSED)
    optimizer.synchronize_for_checkpoint()
    for name, momentum in named(optimizer, "momentum").items():
        torch.testing.assert_close(momentum, torch.stack(before[name]).mean(0), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(momentum, named(alone, "momentum")[name], rtol=1e-9, atol=1e-10)
        assert all(torch.equal(momentum, other) for other in gathered(momentum))


def test_a_synchronized_momentum_is_that_of_one_process_on_every_rank() -> None:
    run_ranks(synchronized, 3)


def resumed(rank: int, world: int) -> None:
    whole, saved = replica(rank), replica(rank)
    saved.synchronize_for_checkpoint()
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    box = [file.getvalue()]
    dist.broadcast_object_list(box, src=0)
    fresh = torchdion.Dion(
        [(name, Parameter(weight.clone())) for name, weight in named(saved, "weight").items()],
        lr=0.1,
        rank_fraction=0.25,
        replicate_mesh=dist.group.WORLD,
    )
    fresh.load_state_dict(torch.load(io.BytesIO(box[0]), weights_only=True))
    for optimizer in (whole, saved, fresh):
        follow(optimizer, [rank], STEPS)
    for name, weight in named(whole, "weight").items():
        torch.testing.assert_close(named(saved, "weight")[name], weight, rtol=1e-9, atol=1e-10)
        assert torch.equal(named(fresh, "weight")[name], named(saved, "weight")[name]), name


def test_a_run_goes_on_after_synchronizing_and_from_the_checkpoint_as_if_it_had_not_been_interrupted() -> None:
    run_ranks(resumed, 2)


def refusals(rank: int, world: int) -> None:
    fresh = torchdion.Dion(parameters(), rank_fraction=0.25, replicate_mesh=dist.group.WORLD)
    assert fresh.state_dict()["state"] == {}
    for group in fresh.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    fresh.step()
    assert len(fresh.state_dict()["state"]) == len(SIZES)  # zero momenta are equal
    optimizer = replica(rank)
    for copied in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        with pytest.raises(RuntimeError, match="call synchronize_for_checkpoint\\(\\) on every rank before state_dict"):
            copied.state_dict()
        copied.synchronize_for_checkpoint()
        copied.state_dict()
        assert pickle.loads(pickle.dumps(copied)).state_dict()["state"]
        follow(copied, [rank], STEPS, 1)
        with pytest.raises(RuntimeError, match="each replica's own"):
            copied.state_dict()
    optimizer.load_state_dict(fresh.state_dict())
    optimizer.state_dict()


def test_a_state_dict_of_unsynchronized_momenta_is_refused_until_they_are_synchronized() -> None:
    run_ranks(refusals, 2)


def allowed(rank: int, world: int, options: dict[str, Any]) -> None:
    if options.pop("alone", False):
        options["replicate_mesh"] = [dist.new_group([other]) for other in range(world)][rank]
    optimizer = replica(rank, **options)
    optimizer.state_dict()
    before = {name: momentum.clone() for name, momentum in named(optimizer, "momentum").items()}
    optimizer.synchronize_for_checkpoint()
    assert all(torch.equal(before[name], momentum) for name, momentum in named(optimizer, "momentum").items())


@pytest.mark.parametrize(
    "options",
    [{"rank_fraction": 1.0}, {"alone": True}, {"replicate_mesh": None}, {"replicate_mesh_grad_sync": False}],
    ids=["dense", "one replica", "no replicas", "no averaging"],
)
def test_momenta_that_no_step_takes_apart_need_no_synchronizing(options: dict[str, Any]) -> None:
    run_ranks(allowed, 2, options)


def saved_through_a_hook(rank: int, world: int) -> None:
    optimizer = replica(rank)
    optimizer.register_state_dict_pre_hook(torchdion.Dion.synchronize_for_checkpoint)
    optimizer.state_dict()
    follow(optimizer, [rank], STEPS, 1)
    optimizer.state_dict()


def test_a_state_dict_pre_hook_synchronizes_where_all_ranks_call_state_dict() -> None:
    run_ranks(saved_through_a_hook, 2)


def parted(rank: int, world: int, given: bool) -> None:
    """With the group given, the copies are those of a job whose gradients are averaged already."""
    group = dist.group.WORLD if given else None
    optimizer = replica(0 if given else rank, replicate_mesh=None if given else dist.group.WORLD)
    optimizer.check_replicas(group)
    momenta = {name: momentum.clone() for name, momentum in named(optimizer, "momentum").items()}
    if rank == 1:
        with torch.no_grad():
            named(optimizer, "weight")["wide"][2, 3] += 1e-12
            named(optimizer, "Q")["square"].neg_()
            named(optimizer, "momentum")["vector"][0] += 1
    with pytest.raises(RuntimeError) as caught:
        optimizer.check_replicas(group)
    names = ", ".join(f"parameter {name!r} (parameter group 0)" for name in ("wide", "square", "vector"))
    assert f"replicas differ in {names};" in str(caught.value)
    optimizer.synchronize_replicas(group)
    optimizer.check_replicas(group)
    assert all(torch.equal(momenta[name], momentum) for name, momentum in named(optimizer, "momentum").items())


@pytest.mark.parametrize("given", [False, True])
def test_replicas_that_part_are_named_and_made_equal(given: bool) -> None:
    run_ranks(parted, 2, given)


def test_without_replicas_a_check_needs_the_group_of_the_copies() -> None:
    optimizer = torchdion.Dion(parameters())
    for method in (optimizer.check_replicas, optimizer.synchronize_replicas):
        with pytest.raises(ValueError, match="group must be the ranks that hold copies where replicate_mesh is None"):
            method()


def sharded(rank: int, world: int, orientation: str) -> None:
    """Layers whose pieces are uneven, and one of which has none on the last rank."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "fs"))
    layers = Sequential(Linear(10, 7), Linear(7, 9), Linear(9, 2)).double()
    sizes = [param.shape for param in layers.parameters()]
    fully_shard(layers, mesh=mesh["fs"])
    optimizer = torchdion.Dion(
        layers.named_parameters(), lr=0.1, rank_fraction=0.1, replicate_mesh=mesh["dp"], orientation=orientation
    )
    alone = torchdion.Dion(
        [(name, param.full_tensor().detach().clone().requires_grad_()) for name, param in layers.named_parameters()],
        lr=0.1, rank_fraction=0.1, orientation=orientation,
    )  # fmt: skip
    for step in range(STEPS):
        for param, whole, size in zip(layers.parameters(), alone.param_groups[0]["params"], sizes, strict=True):
            every = [gradient(torch.empty(size, dtype=torch.float64), replica, step) for replica in range(2)]
            own = distribute_tensor(every[mesh.get_coordinate()[0]], param.device_mesh, param.placements)
            param.grad, whole.grad = own, torch.stack(every).mean(0)
        optimizer.step()
        alone.step()
    optimizer.check_replicas()
    optimizer.synchronize_for_checkpoint()
    for name, momentum in named(optimizer, "momentum").items():
        expected = named(alone, "momentum")[name]
        torch.testing.assert_close(momentum.full_tensor(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("orientation", ["right", "left"])
def test_pieces_of_momenta_are_averaged_over_the_replicas_of_each_piece(orientation: str) -> None:
    run_ranks(sharded, 6, orientation)


def with_scaler(rank: int, world: int, unscaled: bool) -> None:
    optimizer = replica(rank)
    scaler = torch.amp.GradScaler("cpu")
    param = optimizer.param_groups[0]["params"][0]
    before = param.detach().clone()
    scaler.scale(param.square().sum()).backward()
    if unscaled:
        scaler.unscale_(optimizer)
    with pytest.raises(ValueError, match=r"a GradScaler must not be used with a replicate_mesh.*; train in BF16"):
        scaler.step(optimizer)
    assert torch.equal(param, before)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_gradient_scaler_is_refused_as_each_replica_has_its_own(unscaled: bool) -> None:
    run_ranks(with_scaler, 2, unscaled)


def changes_algorithm(rank: int, world_size: int, algorithm: str, option: str, value: Any) -> list[str]:
    """What is said when momenta are each replica's own; when they are synchronized the option may change."""
    params = [Parameter(torch.ones(8, 6, dtype=torch.float64))]
    options = {"rank_fraction": 0.25, "nesterov": True}
    optimizer = torchdion.Dion([{"params": params, "algorithm": algorithm}], replicate_mesh=dist.group.WORLD, **options)
    follow(optimizer, [rank], steps=2)
    group, said = optimizer.param_groups[0], []
    before, weights = group[option], params[0].detach().clone()
    group[option] = value
    for act in (optimizer.step, optimizer.synchronize_for_checkpoint):
        with pytest.raises(ValueError) as refused:
            act()
        said.append(str(refused.value))
    assert torch.equal(params[0], weights)
    group[option] = before
    follow(copy.deepcopy(optimizer), [rank])
    optimizer.synchronize_for_checkpoint()
    group[option] = value
    follow(optimizer, [rank], start=2)
    optimizer.check_replicas()
    return said


@pytest.mark.parametrize(
    ("algorithm", "option", "value"),
    [
        ("muon", "algorithm", "lion"),
        ("demo", "algorithm", "lion"),
        ("muon", "batch_dims", 1),
        ("dion", "factorization", "svd"),
    ],
)
def test_what_is_each_replicas_own_no_step_takes_for_common(algorithm: str, option: str, value: Any) -> None:
    changed = f"the algorithm of parameter 0 (parameter group 0) must stay {algorithm!r}", "lion"
    if option == "factorization":
        changed = "the factorization of parameter 0 (parameter group 0) must stay 'power_iteration'", "svd"
    sentence = (
        f"torchdion.Dion: {changed[0]} while its momentum is each replica's own, got {changed[1]!r}; "
        "call synchronize_for_checkpoint() on every rank before it changes"
    )
    assert run_ranks(changes_algorithm, 2, algorithm, option, value) == [[sentence] * 2] * 2


def changes_to_another_that_has_its_own(rank: int, world_size: int) -> None:
    params = [Parameter(torch.ones(8, 6, dtype=torch.float64))]
    optimizer = torchdion.Muon(params, replicate_mesh=dist.group.WORLD)
    follow(optimizer, [rank], steps=2)
    optimizer.param_groups[0]["algorithm"] = "demo"
    follow(optimizer, [rank], start=2)
    optimizer.check_replicas()


def test_what_stays_each_replicas_own_may_go_to_another_algorithm() -> None:
    run_ranks(changes_to_another_that_has_its_own, 2)
