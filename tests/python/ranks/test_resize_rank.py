"""Q of another rank."""

import warnings
from typing import Any

import pytest
import torch
from broken import break_
from ranks import run_ranks
from runs import error
from torch import Tensor
from trainings import LAYOUTS, Layout, Training

import torchdion
from torchdion.dtensor import local_part

BEFORE, STEPS = 3, 8


def resized(rank: int, world_size: int, layout: Layout, fraction: float, orientation: str) -> list[Tensor]:
    training = Training(layout, orientation=orientation)
    training.run(0, BEFORE)
    training.optimizer.resize_rank(rank_fraction=fraction)
    assert {group["rank_fraction"] for group in training.optimizer.param_groups} == {fraction}
    training.run(BEFORE, STEPS)
    ranks = [state["Q"].shape[-1] for state in training.optimizer.state.values() if "Q" in state]
    return [*training.weights(), torch.tensor(ranks)]


@pytest.mark.parametrize(("fraction", "orientation"), [(0.1, "right"), (0.7, "left")])
def test_every_layout_goes_on_as_one_process_does(fraction: float, orientation: str) -> None:
    begin = Training(LAYOUTS[0]).weights()
    [expected] = run_ranks(resized, 1, LAYOUTS[0], fraction, orientation)
    assert expected[-1].tolist() == ([2, 1, 1] if fraction == 0.1 else [9, 7, 7])
    for layout in (LAYOUTS[6], LAYOUTS[7]):
        for *weights, ranks in run_ranks(resized, layout.world_size, layout, fraction, orientation):
            assert torch.equal(ranks, expected[-1])
            for X, end, start in zip(weights, expected, begin, strict=False):
                assert error(X, end, start) <= 1e-10


def trained(**options: Any) -> Training:
    training = Training(LAYOUTS[0], **options)
    training.run(0, BEFORE)
    return training


def test_a_smaller_rank_keeps_the_leading_columns_and_a_larger_one_adds_orthonormal_ones() -> None:
    training = trained(rank_fraction=0.5)
    param = training.model.up.weight
    Q = training.optimizer.state[param]["Q"].clone()
    training.optimizer.resize_rank(rank_fraction=0.25)
    assert torch.equal(training.optimizer.state[param]["Q"], Q[:, :3])
    training.optimizer.resize_rank(rank_multiple_of=4)
    larger = training.optimizer.state[param]["Q"]
    assert torch.equal(larger[:, :3], Q[:, :3])
    assert larger.shape == (22, 4)
    assert (larger[:, :3].mT @ larger[:, 3:]).abs().max() < 1e-12
    torch.testing.assert_close(larger[:, 3].norm(), torch.ones((), dtype=torch.float64))


@pytest.mark.filterwarnings("error")
def test_a_rank_that_a_loop_has_written_is_taken_without_a_word() -> None:
    training = trained(rank_fraction=0.5)
    for group in training.optimizer.param_groups:
        group["rank_fraction"] = 0.25
    training.optimizer.resize_rank()
    training.run(BEFORE, STEPS)
    assert training.optimizer.state[training.model.up.weight]["Q"].shape == (22, 3)


def resized_replicas(rank: int, world_size: int) -> list[int]:
    training = Training(Layout("compressed", (2,), ("dp",)), rank_fraction=0.5)
    training.run(0, BEFORE)
    for group in training.optimizer.param_groups:
        group["rank_fraction"] = 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.optimizer.resize_rank()
        training.run(BEFORE, STEPS)
    return list(training.optimizer.state[training.model.up.weight]["Q"].shape)


def test_replicas_with_momenta_of_their_own_take_a_written_rank_without_a_word() -> None:
    assert run_ranks(resized_replicas, 2) == [[22, 3]] * 2


def test_a_checkpoint_of_another_rank_is_loaded_and_then_resized() -> None:
    small, large = trained(rank_fraction=0.25), Training(LAYOUTS[0], rank_fraction=0.5)
    large.optimizer.load_state_dict(small.optimizer.state_dict())
    state = large.optimizer.state[large.model.up.weight]
    assert state["Q"].shape == (22, 3)  # with its options
    large.optimizer.resize_rank(0.5)
    assert large.optimizer.state[large.model.up.weight]["Q"].shape == (22, 6)
    large.run(BEFORE, STEPS)


def test_a_wrong_option_changes_nothing() -> None:
    training = trained()
    Q = training.optimizer.state[training.model.up.weight]["Q"]
    for options in ({"rank_fraction": 1.5}, {"rank_fraction": 0.1, "rank_multiple_of": 0}):
        with pytest.raises(ValueError, match=r"^torchdion.Dion: rank_\w+ must be .*parameter group 0"):
            training.optimizer.resize_rank(**options)
    assert training.optimizer.param_groups[0]["rank_fraction"] == 0.25
    assert training.optimizer.state[training.model.up.weight]["Q"] is Q
    break_(training.optimizer, "the last step failed after 1 of 3 batches")
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        training.optimizer.resize_rank()


def refused_of_a_residual(rank: int, world_size: int) -> list[float]:
    replicas = Layout("compressed", (2,), ("dp",))  # as dense as factors of 0.8 of the rank
    training = Training(replicas, rank_fraction=0.8, residual="sign", nesterov=True)
    training.run(0, BEFORE)
    param = training.model.up.weight
    Q = training.optimizer.state[param]["Q"]
    with pytest.raises(ValueError, match=r"^torchdion.Dion: residual='sign' needs the same momentum on all replicas"):
        training.optimizer.resize_rank(0.25)
    assert training.optimizer.state[param]["Q"] is Q
    assert {group["rank_fraction"] for group in training.optimizer.param_groups} == {0.8}
    return training.run(BEFORE, STEPS)


def test_a_rank_at_which_replicas_would_have_momenta_of_their_own_is_refused_to_a_residual() -> None:
    run_ranks(refused_of_a_residual, 2)


def test_nothing_is_resized_before_the_first_step_or_where_nothing_is_a_matrix() -> None:
    optimizer = torchdion.Dion([torch.zeros(3, requires_grad=True)])
    optimizer.resize_rank(0.5)
    training = Training(LAYOUTS[0])
    training.optimizer.resize_rank(0.5)
    training.run(0, 1)
    assert local_part(training.optimizer.state[training.model.up.weight]["Q"]).shape == (22, 6)
