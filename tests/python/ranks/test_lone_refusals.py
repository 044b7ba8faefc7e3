"""What one rank alone cannot do, in a step or a check of replicas: an error on every rank, and none waits for it."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from broken import break_
from ranks import run_ranks
from small_optimizers import cut_parameters, give_gradients, give_other_gradients, params_of, replicated, whole
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter
from wrapped import Refusing

import torchdion


def lose_Q(optimizer: torchdion.Dion, param: Tensor) -> None:
    del optimizer.state[param]["Q"]


def move_Q_to_meta(optimizer: torchdion.Dion, param: Tensor) -> None:
    optimizer.state[param]["Q"] = optimizer.state[param]["Q"].to("meta")


def wrap(optimizer: torchdion.Dion, param: Tensor) -> None:
    params = optimizer.param_groups[0]["params"]
    wrapped = Parameter(Refusing(param.detach()))
    optimizer.state[wrapped] = optimizer.state.pop(param)
    params[1] = wrapped


def lose_momentum(optimizer: torchdion.Dion, param: Tensor) -> None:
    del optimizer.state[param]["momentum"]


def write_an_option(optimizer: torchdion.Dion, param: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = "x"


def write_the_count(optimizer: torchdion.Dion, param: Tensor) -> None:
    optimizer.state[param]["step"] = "x"


def break_it(optimizer: torchdion.Dion, param: Tensor) -> None:
    break_(optimizer, "the last step failed after 1 of 2 batches")


def refusal(rank: int, own: str, operation: str, call: Callable[[], None]) -> None:
    sentence = own if rank == 1 else f"another rank refused {operation}, and its error says why$"
    with pytest.raises((ValueError, RuntimeError), match=rf"^torchdion.Dion: {sentence}"):
        call()


def step_fails_on_one(rank: int, world_size: int, spoil: Callable[..., None], own: str) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    param = params_of(optimizer)[1]
    if rank == 1:
        param.grad = None
        spoil(optimizer, param)
    before = [param.detach().clone() for param in params_of(optimizer) if type(param) is Parameter]
    states = len(optimizer.state)
    refusal(rank, own, "this step", optimizer.step)
    after = [param for param in params_of(optimizer) if type(param) is Parameter]
    assert all(map(torch.equal, after, before))
    assert len(optimizer.state) == states


SPOILT: dict[Callable[..., None], str] = {
    lose_Q: "the state of parameter 1 .* lacks the tensor 'Q'",
    move_Q_to_meta: "the state Q of a parameter of shape .* must have memory of its own",
    wrap: "parameter 1 .* must have memory",
    break_it: "the last step failed",
}


@pytest.mark.parametrize(("spoil", "own"), SPOILT.items(), ids=[spoil.__name__ for spoil in SPOILT])
def test_a_parameter_that_one_rank_cannot_update_and_lacks_the_gradient_of_is_an_error_on_all(
    spoil: Callable[..., None], own: str
) -> None:
    run_ranks(step_fails_on_one, 2, spoil, own, time_limit=30)


OPERATIONS: dict[str, Callable[..., None]] = {
    "check_replicas": torchdion.Dion.check_replicas,
    "synchronize_replicas": torchdion.Dion.synchronize_replicas,
    "synchronize_for_checkpoint": torchdion.Dion.synchronize_for_checkpoint,
}


def operations_fail_on_one(rank: int, world_size: int, spoil: Callable[..., None], own: str) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    if rank == 1:
        spoil(optimizer, params_of(optimizer)[1])
    for name, call in OPERATIONS.items():
        refusal(rank, own, rf"{name}\(\)", partial(call, optimizer))


SPOILT_FOR_ALL: dict[Callable[..., None], str] = {
    write_an_option: "lr must be a finite number ≥ 0 .*, got 'x'",
    write_the_count: "the state step of parameter 1 .* must be a tensor, got str",
    lose_Q: "the state of parameter 1 .* lacks the tensor 'Q'",
    lose_momentum: "the state of parameter 1 .* lacks the tensor 'momentum'",
}


@pytest.mark.parametrize(("spoil", "own"), SPOILT_FOR_ALL.items(), ids=[spoil.__name__ for spoil in SPOILT_FOR_ALL])
def test_what_one_rank_cannot_compare_or_synchronize_is_an_error_on_all(spoil: Callable[..., None], own: str) -> None:
    run_ranks(operations_fail_on_one, 2, spoil, own, time_limit=30)


ALL_OPERATIONS: dict[str, Callable[..., object]] = OPERATIONS | {
    "whole_state_dict": torchdion.Dion.whole_state_dict,
    "resize_rank": torchdion.Dion.resize_rank,
}


def write_another_name(optimizer: torchdion.Dion) -> None:
    optimizer.param_groups[0]["momentum"] = 1.5


def contradict(optimizer: torchdion.Dion) -> None:
    optimizer.param_groups[0]["use_muon"] = True


WRITTEN: dict[Callable[..., None], str] = {
    write_another_name: "mu must be in .*, got 1.5 .* given as 'momentum'",
    contradict: "use_muon=True means algorithm='muon'",
}


def written_on_one(rank: int, world_size: int, write: Callable[..., None], own: str) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    if rank == 1:
        write(optimizer)
    for name, call in ALL_OPERATIONS.items():
        refusal(rank, own, rf"{name}\(\)", partial(call, optimizer))


@pytest.mark.parametrize(("write", "own"), WRITTEN.items(), ids=[write.__name__ for write in WRITTEN])
def test_what_one_rank_has_written_and_no_step_takes_no_operation_takes(write: Callable[..., None], own: str) -> None:
    run_ranks(written_on_one, 2, write, own, time_limit=30)


def unsaved_on_one(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    optimizer.step()
    if rank == 1:
        optimizer.state[torch.zeros(2)] = {"kept": True}
    own = "optimizer.state must be of parameters of its groups"
    refusal(rank, own, r"whole_state_dict\(\)", optimizer.whole_state_dict)


def test_a_state_of_no_group_on_one_rank_is_an_error_of_whole_state_dict_on_all() -> None:
    run_ranks(unsaved_on_one, 2, time_limit=30)


def vectors_without_momenta(rank: int, world_size: int) -> None:
    """Of parameters that no replicate_mesh averages."""
    optimizer = torchdion.Dion([Parameter(torch.ones(3)), Parameter(torch.ones(4, 3))], lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    if rank == 1:
        for param in params_of(optimizer):
            lose_momentum(optimizer, param)
    for name in ("check_replicas", "synchronize_replicas"):
        own = "the state of parameter 0 .* lacks the tensor 'momentum'"
        refusal(rank, own, rf"{name}\(\)", partial(OPERATIONS[name], optimizer, dist.group.WORLD))


def test_states_that_one_rank_lacks_are_not_compared() -> None:
    run_ranks(vectors_without_momenta, 2, time_limit=30)


def copies_of_pieces(rank: int, world_size: int) -> None:
    """Rank 1 refuses; rank 3 shares neither pieces nor copies with it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fs"))
    params = [("tall", Parameter(distribute_tensor(whole("tall"), mesh["fs"], [Shard(0)], src_data_rank=None)))]
    optimizer = torchdion.Dion(params, lr=0.1)
    give_gradients(optimizer)
    optimizer.step()
    optimizer.check_replicas(mesh.get_group("dp"))
    for name in ("check_replicas", "synchronize_replicas"):
        if rank == 1:
            optimizer.param_groups[0]["mu"] = 2.0
        call = partial(OPERATIONS[name], optimizer, mesh.get_group("dp"))
        refusal(rank, "mu must be in", rf"{name}\(\)", call)
        optimizer.param_groups[0]["mu"] = 0.95
        call()
    optimizer.param_groups[0]["mu"] = 0.9 if rank == 1 else 0.95
    with pytest.raises(ValueError, match=r"agree on the mu of parameter group 0|other ranks of the job disagree"):
        optimizer.check_replicas(mesh.get_group("dp"))


def test_a_rank_that_refuses_to_compare_copies_of_pieces_is_heard_by_all() -> None:
    run_ranks(copies_of_pieces, 4, time_limit=30)


def stale_graph(rank: int, world_size: int, synchronizes: bool) -> None:
    optimizer = torchdion.Dion(cut_parameters(), lr=0.1)
    params = params_of(optimizer)
    losses = [(param * param).sum() for param in params]
    give_gradients(optimizer)
    if rank == 1 and not synchronizes:
        for param in params[:2]:
            param.grad = None
    if synchronizes:
        optimizer.synchronize_replicas(dist.group.WORLD)
    else:
        optimizer.step()
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("synchronizes", [False, True], ids=["step", "synchronize_replicas"])
def test_a_graph_from_before_a_write_is_refused_also_where_the_gradient_was_missing(synchronizes: bool) -> None:
    run_ranks(stale_graph, 1 if synchronizes else 2, synchronizes, time_limit=30)


def broken_on_one(rank: int, world_size: int, name: str) -> None:
    optimizer = replicated()
    give_gradients(optimizer, 0)
    optimizer.step()
    if rank == 1:
        break_(optimizer, "the last step failed after 1 of 2 batches")
    own = "the last step failed" if rank == 1 else f"another rank refused {name}"
    with pytest.raises(RuntimeError, match=f"^torchdion.Dion: {own}"):
        getattr(optimizer, name)()


@pytest.mark.parametrize("name", ["whole_state_dict", "resize_rank", "synchronize_for_checkpoint"])
def test_what_is_broken_on_one_rank_is_an_error_on_all(name: str) -> None:
    run_ranks(broken_on_one, 2, name, time_limit=30)
