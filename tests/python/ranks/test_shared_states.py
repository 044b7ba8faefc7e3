"""owners="shard": ranks that all have the model share out its states, and take the steps of one process."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from long_cases import some_of
from ranks import run_ranks
from runs import error
from shared_states import MADE_BY, STEPS, Model, check_close, give_gradients, made, trained, weights
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import torchdion


def on_ranks(rank: int, ranks: int, name: str, averages: bool) -> dict[str, Any]:
    model = Model()
    optimizer = made(name, model, replicate_mesh=dist.group.WORLD, replicate_mesh_grad_sync=averages)
    for step in range(STEPS):
        give_gradients(model, step, *((rank, ranks) if averages else (0, 1)))
        before = [param.grad.clone() for param in model.parameters() if param.grad is not None]
        optimizer.step()
        for param, gradient in zip(model.parameters(), before, strict=True):
            assert torch.equal(param.grad, gradient), "gradients are the program's"
    optimizer.check_replicas()
    optimizer.synchronize_replicas()
    stats = optimizer.stats()
    states = [state for state in optimizer.state.values() for key, state in state.items() if key != "step"]
    return {
        "weights": weights(model),
        "stats": stats,
        "elements": sum(state.numel() for state in states),
        "whole": optimizer.whole_state_dict(),
    }


@pytest.mark.parametrize("averages", [True, False], ids=["averaging", "averaged"])
@pytest.mark.parametrize("ranks", some_of([1, 2, 3, 8], [1, 3]))
@pytest.mark.parametrize("name", MADE_BY)
def test_ranks_take_the_steps_of_one_process(name: str, ranks: int, averages: bool) -> None:
    found = run_ranks(on_ranks, ranks, name, averages)
    expected, of_one = trained(name)
    numel = sum(param.numel() for param in expected.parameters())
    for one in found:
        check_close(one["weights"], weights(expected), weights(Model()))
        assert all(torch.equal(X, other) for X, other in zip(one["weights"], found[0]["weights"], strict=True))
        for key, state in of_one.state_dict()["state"].items():
            for kind, whole in state.items():
                torch.testing.assert_close(one["whole"]["state"][key][kind], whole, rtol=1e-10, atol=1e-12)
        if ranks > 1:
            carried = one["stats"]["traffic"]["replicas"]
            assert one["stats"]["expected_traffic"] == {"replicas": numel}
            assert sum(carried[kind]["elements"] for kind in carried) == STEPS * numel
            assert carried["reduce_scatter" if averages else "all_gather"]["elements"] == STEPS * numel
    whole = sum(state[key].numel() for state in of_one.state.values() for key in state if key != "step")
    assert sum(one["elements"] for one in found) == whole, "each entry has one owner"
    if ranks > 1 and "Muon" not in name:
        assert max(one["elements"] for one in found) <= whole / ranks + 64, "a row of the widest matrix"


def with_gaps(rank: int, ranks: int, name: str) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients that a rank lacks are zero there, and those that all lack leave a parameter as it is."""
    ends = []
    for alone in (False, True):
        model = Model()
        more = {"replicate_mesh": dist.new_group([rank], use_local_synchronization=True)} if alone else {}
        optimizer = made(name, model, **more)
        for step in range(3):
            gradients = []
            for each in range(ranks):
                give_gradients(model, step, each, ranks)
                if each == 1:
                    model.matrices[2].grad = torch.zeros_like(model.matrices[2])
                gradients.append([param.grad for param in model.parameters()])
            for index, param in enumerate(model.parameters()):
                param.grad = sum(each[index] for each in gradients) / ranks if alone else gradients[rank][index]
            if rank == 1 and not alone:
                model.matrices[2].grad = None
            if step == 0:
                model.vector.grad = model.experts.grad = None
            optimizer.step()
        ends.append(weights(model))
    return ends[0], ends[1]


@pytest.mark.parametrize("name", ["DistMuon", "DistAdamW"])
def test_missing_gradients_are_zero_or_none(name: str) -> None:
    for found, expected in run_ranks(with_gaps, 2, name):
        check_close(found, expected, weights(Model()))


def left_out(rank: int, ranks: int, policy: str, capturable: bool) -> tuple[list[Tensor], list[Tensor], dict[str, Any]]:
    """One rank has entries that are not finite in every second step."""
    model = Model()
    optimizer = made("DistMuon", model, nonfinite=policy, capturable=capturable)
    other = Model()
    alone = dist.new_group([rank], use_local_synchronization=True)
    one = made("DistMuon", other, nonfinite=policy, capturable=capturable, replicate_mesh=alone)
    for step in range(4):
        give_gradients(model, step, rank, ranks)
        give_gradients(other, step, 0, 1)
        if step % 2 and rank == 1:
            model.fused.grad[0, 0] = torch.nan
        if step % 2 and policy == "skip_step":
            other.fused.grad[0, 0] = torch.nan
        if step % 2 and policy == "zero":  # the mean of the others
            give_gradients(model, step, 0, ranks)
            first = model.fused.grad[0, 0].clone()
            give_gradients(model, step, rank, ranks)
            if rank == 1:
                model.fused.grad[0, 0] = torch.nan
            other.fused.grad[0, 0] = first / 2
        optimizer.step()
        one.step()
    return weights(model), weights(other), optimizer.stats()


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("policy", ["skip_step", "zero"])
def test_entries_that_are_not_finite_count_as_the_policy_says(policy: str, capturable: bool) -> None:
    found = run_ranks(left_out, 2, policy, capturable)
    for ends, expected, stats in found:
        check_close(ends, expected, weights(Model()))
        assert stats["skipped_steps"] == (2 if policy == "skip_step" else 0)
    assert [stats["nonfinite_entries"] for _, _, stats in found] == [0, 2]


def with_experts_at_rest(rank: int, ranks: int) -> tuple[list[Tensor], list[Tensor]]:
    ends = []
    for alone in (False, True):
        model = Model()
        groups = model.groups()
        groups[2]["skip_zero_gradients"] = groups[0]["skip_zero_gradients"] = True
        mesh = dist.new_group([rank], use_local_synchronization=True) if alone else dist.group.WORLD
        optimizer = torchdion.DistMuon(groups, lr=0.02, precision="highest", replicate_mesh=mesh)
        for step in range(3):
            give_gradients(model, step, *((0, 1) if alone else (rank, ranks)))
            model.experts.grad[3] = 0
            model.matrices[1].grad.zero_()
            optimizer.step()
        assert torch.equal(model.experts[3], Model().experts[3])
        assert torch.equal(model.matrices[1], Model().matrices[1])
        ends.append(weights(model))
    return ends[0], ends[1]


def test_matrices_of_zero_gradient_are_left_alone() -> None:
    start = weights(Model())
    for found, expected in run_ranks(with_experts_at_rest, 3):
        for X, end, begin in zip(found, expected, start, strict=True):
            assert (torch.equal(end, begin) and torch.equal(X, end)) or error(X, end, begin) <= 1e-10


def in_halves(rank: int, ranks: int) -> tuple[list[Tensor], list[Tensor], list[torch.dtype]]:
    ends = []
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float32, variance_dtype=torch.float32)
    for alone in (False, True):
        model = Model().bfloat16()
        mesh = dist.new_group([rank], use_local_synchronization=True) if alone else dist.group.WORLD
        optimizer = torchdion.DistAdamW(model.groups(), lr=0.1, replicate_mesh=mesh, mixed_precision_config=config)
        for step in range(3):
            give_gradients(model, step, *((0, 1) if alone else (rank, ranks)))
            optimizer.step()
        ends.append(weights(model))
    dtypes = [state["variance"].dtype for state in optimizer.state.values() if "variance" in state]
    return ends[0], ends[1], dtypes


def test_halves_are_summed_in_fp32() -> None:
    for found, expected, dtypes in run_ranks(in_halves, 2):
        check_close(found, expected, weights(Model()), most=0.02)
        assert set(dtypes) == {torch.float32}


def odd_views(rank: int, ranks: int, name: str) -> tuple[list[Tensor], list[Tensor]]:
    """Negative ones, which hold the opposite of their numbers, of one row and transposed."""
    ends = []
    for alone in (False, True):
        torch.manual_seed(0)
        whole = torch.randn(4, 6, 5, dtype=torch.float64)
        params = [
            nn.Parameter(torch.complex(whole[0], whole[1]).conj().imag),
            nn.Parameter(torch._neg_view(whole[2].t())),
            nn.Parameter(whole[3].t()),
        ]
        mesh = dist.new_group([rank], use_local_synchronization=True) if alone else dist.group.WORLD
        made_by, options = MADE_BY[name]
        optimizer = made_by(params, **options | {"replicate_mesh": mesh})
        for step in range(3):
            for index, param in enumerate(params):
                generator = torch.Generator().manual_seed(10 * step + index)
                every = torch.randn((ranks, *param.shape), generator=generator, dtype=torch.float64)
                param.grad = every.mean(0) if alone else every[rank]
            optimizer.step()
        ends.append([param.detach().resolve_neg().clone() for param in params])
    return ends[0], ends[1]


@pytest.mark.parametrize("name", ["DistMuon", "DistAdamW"])
def test_views_of_negative_numbers_are_updated(name: str) -> None:
    for found, expected in run_ranks(odd_views, 2, name):
        for X, end in zip(found, expected, strict=True):
            torch.testing.assert_close(X, end, rtol=1e-12, atol=1e-12)


def with_large_halves(rank: int, ranks: int) -> list[Tensor]:
    """Gradients whose sum FP16 does not hold, and whose mean it does."""
    ends = []
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float32, variance_dtype=torch.float32)
    for made_by in (torchdion.DistAdamW, torchdion.DistMuon):
        param = nn.Parameter(torch.ones(6, 4, dtype=torch.float16))
        param.grad = torch.full_like(param, 40000)
        made_by([param], lr=0.01, mixed_precision_config=config).step()
        ends.append(param.detach())
    return ends


def test_sums_of_halves_do_not_overflow() -> None:
    for ends in run_ranks(with_large_halves, 2):
        for X in ends:
            assert bool(((X < 1) & (X > 0.9)).all())


def made_too_early(rank: int, ranks: int) -> None:
    world, given = dist.group.WORLD, Model()
    dist.group.WORLD = None  # as before init_process_group()
    optimizer = torchdion.DistAdamW(given.groups(), replicate_mesh=None)
    dist.group.WORLD = world
    give_gradients(given, 0, rank, ranks)
    with pytest.raises(RuntimeError, match=r"was made before init_process_group\(\), .* on each of the 2 ranks"):
        optimizer.step()
    with pytest.raises(ValueError, match="must have a shape under owners='shard'"):
        torchdion.DistMuon([*nn.LazyLinear(3).parameters()])
    model = Model()
    optimizer = torchdion.DistAdamW([model.fused])
    mesh = init_device_mesh("cpu", (ranks,))
    optimizer.param_groups[0]["params"][0] = nn.Parameter(distribute_tensor(model.fused.detach(), mesh, [Shard(0)]))
    with pytest.raises(ValueError, match="must be a plain tensor under owners='shard'"):
        optimizer.step()


def test_what_has_no_owners_after_all_is_refused_at_the_first_step() -> None:
    run_ranks(made_too_early, 2)


def refused(rank: int, ranks: int) -> None:
    model = Model()
    mesh = init_device_mesh("cpu", (ranks,))
    cut = distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)])
    cases: list[tuple[Any, Any, str]] = [
        (lambda: torchdion.Muon(model.groups(), owners="shard"), ValueError, "needs a replicate_mesh"),
        (lambda: torchdion.DistAdamW([nn.Parameter(cut)]), ValueError, "must be a plain tensor under owners='shard'"),
        (
            lambda: torchdion.DistMuon([{"params": [model.fused], "algorithm": "dion"}]),
            ValueError,
            "owners='shard' cannot be combined with the algorithm 'dion', which needs all ranks",
        ),
        (lambda: torchdion.Dion(model.groups(), owners="shard"), TypeError, "unexpected keyword argument 'owners'"),
        (lambda: torchdion.DistMuon(model.groups(), ownership=1), TypeError, "unexpected keyword argument 'ownership'"),
    ]
    for act, error_type, words in cases:
        with pytest.raises(error_type, match=words):
            act()
    optimizer = torchdion.DistMuon(model.groups())
    with pytest.raises(ValueError, match="owners holds for the whole optimizer, got 'all'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))], "owners": "all"})
    give_gradients(model, 0, rank, ranks)
    optimizer.step()
    before = weights(model)
    for group in optimizer.param_groups:
        group["owners"] = "all"
    with pytest.raises(ValueError, match="owners must be what it was at construction, got 'all'"):
        optimizer.step()
    for group in optimizer.param_groups:
        group["owners"] = "shard"
    optimizer.state[model.fused]["momentum"] = torch.zeros(2, 11, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"state momentum.* must have (that shape|the shape \[0, 11\]), got \[2, 11\]"):
        optimizer.step()
    assert all(torch.equal(X, other) for X, other in zip(weights(model), before, strict=True))


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    run_ranks(refused, 2)


def with_a_later_group(rank: int, ranks: int) -> list[Tensor]:
    model = Model()
    groups = model.groups()
    optimizer = torchdion.DistMuon(groups[:2], lr=0.02, precision="highest")
    for step in range(STEPS):
        if step == 3:
            for group in groups[2:]:
                optimizer.add_param_group(group)
        give_gradients(model, step, rank, ranks)
        optimizer.step()
    return weights(model)


def test_a_later_group_moves_no_state() -> None:
    alone = run_ranks(with_a_later_group, 1)[0]
    for found in run_ranks(with_a_later_group, 3):
        check_close(found, alone, weights(Model()))
