"""State dicts, copies and pickles of optimizers whose states ranks share out; DCP: test_checkpoints.py."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from shared_states import STEPS, Model, check_close, give_gradients, made, trained, weights
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import torchdion
from torchdion.owned_tensor import OwnedTensor


def whole_and_parts(rank: int, ranks: int, name: str, folder: Path) -> None:
    """A state dict of one rank is none of another, and never taken for a whole one."""
    model = Model()
    optimizer = made(name, model)
    give_gradients(model, 0, rank, ranks)
    optimizer.step()
    own = optimizer.state_dict()
    torch.save(own, folder / f"{rank}.pt")
    optimizer.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))
    optimizer.load_state_dict(copy.deepcopy(own))
    dist.barrier()
    other = torch.load(folder / f"{(rank + 1) % ranks}.pt", weights_only=True)
    with pytest.raises(ValueError, match=r"must be whole, or what this rank owns, .* whole_state_dict\(\) and torch"):
        optimizer.load_state_dict(other)
    full = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    momentum = next(state["momentum"] for state in full["state"].values() if state["momentum"].numel() > 0)
    assert isinstance(momentum, OwnedTensor)
    with pytest.raises(RuntimeError, match=r"whole_state_dict\(\) gives whole ones"):
        momentum + 1
    assert momentum.to(torch.float32).part.dtype == torch.float32
    dist.barrier()


@pytest.mark.parametrize("name", ["DistMuon", "DistAdamW"])
def test_what_one_rank_owns_loads_nowhere_else(name: str, tmp_path: Path) -> None:
    run_ranks(whole_and_parts, 3, name, tmp_path)
    model = Model()
    optimizer = made(name, model)
    with pytest.raises(ValueError, match=r"^torchdion.Dist.*: the state momentum of parameter 0 .* must be whole, got"):
        optimizer.load_state_dict(torch.load(tmp_path / "0.pt", weights_only=True))


def copied(rank: int, ranks: int, name: str) -> list[Tensor]:
    model = Model()
    optimizer = made(name, model)
    for step in range(STEPS):
        if step == 2:
            optimizer = copy.deepcopy(optimizer)
        if step == 4:
            optimizer = pickle.loads(pickle.dumps(optimizer))
        if step in (2, 4):  # whose parameters are copies too
            for param, own in zip(model.parameters(), params_of(optimizer, model), strict=True):
                own.data = param.data
        give_gradients(model, step, rank, ranks)
        for param, own in zip(model.parameters(), params_of(optimizer, model), strict=True):
            own.grad = param.grad
        optimizer.step()
    return weights(model)


def params_of(optimizer: Any, model: Model) -> list[Tensor]:
    """The optimizer's parameters in the order of the model's."""
    own = [param for group in optimizer.param_groups for param in group["params"]]
    ordered = [param for group in model.groups() for param in group["params"]]
    by_id = {id(param): mine for param, mine in zip(ordered, own, strict=True)}
    return [by_id[id(param)] for param in model.parameters()]


def test_copies_and_pickles_go_on() -> None:
    for found in run_ranks(copied, 2, "DistMuon"):
        check_close(found, weights(trained("DistMuon")[0]), weights(Model()))


def saved_by_all(rank: int, ranks: int, name: str) -> None:
    """What one process has that has trained no further."""
    model = Model()
    optimizer = made(name, model)
    assert optimizer.state[model.number] == {}, "which makes an entry without a state"
    assert optimizer.whole_state_dict()["state"] == {}
    optimizer.state_dict()
    seen: list[tuple[int, ...]] = []

    def look(_: Any, state_dict: dict[str, Any]) -> None:
        seen.extend(tuple(state["momentum"].shape) for state in state_dict["state"].values() if state)

    optimizer.register_state_dict_post_hook(look)
    give_gradients(model, 0, rank, ranks)
    optimizer.step()
    whole = optimizer.whole_state_dict()
    before = copy.deepcopy(whole)
    give_gradients(model, 1, rank, ranks)
    optimizer.step()
    for key, state in whole["state"].items():
        for kind, value in state.items():
            assert kind == "step" or torch.equal(value, before["state"][key][kind])
    assert sorted(seen) == sorted(tuple(param.shape) for group in model.groups() for param in group["params"])
    optimizer.load_state_dict(before)
    for group in optimizer.param_groups:
        group["owners"] = "all"
    with pytest.raises(ValueError, match="owners must be what it was at construction"):
        optimizer.state_dict()


@pytest.mark.parametrize("name", ["DistMuon", "DistAdamW"])
def test_whole_state_dicts_are_copies_and_hooks_see_whole_shapes(name: str) -> None:
    run_ranks(saved_by_all, 2, name)


def of_owners_of_nothing(rank: int, ranks: int, folder: Path) -> None:
    param = nn.Parameter(torch.ones(4, 4))
    optimizer = torchdion.DistMuon([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / f"{rank}.pt")
    dist.barrier()
    if rank > 0:  # the first owns the matrix
        optimizer.load_state_dict(torch.load(folder / f"{3 - rank}.pt", weights_only=True))


def test_ranks_that_own_nothing_load_what_each_other_saved(tmp_path: Path) -> None:
    run_ranks(of_owners_of_nothing, 3, tmp_path)
