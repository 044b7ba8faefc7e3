"""Checkpoints of torch.distributed.checkpoint: saved on one layout, loaded on any other."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from long_cases import some_of
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import distribute_tensor
from trainings import CAN_HAVE_OWNERS, LAYOUTS, OWNERS, VARIANTS, Layout, Network, Training

BEFORE, STEPS = 3, 8


def training_of(layout: Layout, algorithm: str) -> Training:
    """Of one class on all layouts: torch's checkpoints must have all that groups of the optimizer that loads have."""
    return Training(layout, algorithm=algorithm, of_its_class=algorithm in CAN_HAVE_OWNERS)


def save(training: Training, folder: str, options: StateDictOptions) -> None:
    training.optimizer.synchronize_for_checkpoint()
    model, optimizer = get_state_dict(training.model, training.optimizer, options=options)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)


def load(training: Training, folder: str, options: StateDictOptions, planner: DefaultLoadPlanner | None = None) -> None:
    model, optimizer = get_state_dict(training.model, training.optimizer, options=options)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder, planner=planner)
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=options,
    )


def uninterrupted(
    rank: int, world_size: int, layouts: list[Layout], folder: Path, options: dict[str, Any], algorithm: str
) -> dict[Layout, list[Tensor]]:
    """What each layout ends with, which saves a checkpoint on its way."""
    ends = {}
    for layout in layouts:
        training = training_of(layout, algorithm)
        training.run(0, BEFORE)
        save(training, str(folder / str(layout)), StateDictOptions(**options))
        training.run(BEFORE, STEPS)
        ends[layout] = training.weights()
    return ends


def resumed(
    rank: int,
    world_size: int,
    layouts: list[Layout],
    saved: list[Layout],
    folder: Path,
    options: dict[str, Any],
    algorithm: str,
) -> dict[tuple[Layout, Layout], list[Tensor]]:
    """What each layout ends with when it begins from the checkpoint of each other one."""
    ends = {}
    for layout in layouts:
        for source in saved:
            training = training_of(layout, algorithm)
            load(training, str(folder / str(source)), StateDictOptions(**options))
            training.run(BEFORE, STEPS)
            ends[source, layout] = training.weights()
    return ends


class Ends(NamedTuple):
    """Weights by layout, and by the layouts from and to which a training moved."""

    uninterrupted: dict[Layout, list[Tensor]]
    resumed: dict[tuple[Layout, Layout], list[Tensor]]


def ends_of(layouts: tuple[Layout, ...], folder: Path, options: dict[str, Any], algorithm: str = "dion") -> Ends:
    by_size: dict[int, list[Layout]] = {}
    for layout in layouts:
        by_size.setdefault(layout.world_size, []).append(layout)
    ends = Ends({}, {})
    for size, alike in by_size.items():
        ends.uninterrupted.update(run_ranks(uninterrupted, size, alike, folder, options, algorithm)[0])
    for size, alike in by_size.items():
        ends.resumed.update(run_ranks(resumed, size, alike, list(layouts), folder, options, algorithm)[0])
    return ends


def check(ends: Ends, source: Layout, target: Layout) -> None:
    begin, expected = Training(LAYOUTS[0]).weights(), ends.uninterrupted[LAYOUTS[0]]
    for name, X, end, start in zip(Network().state_dict(), ends.resumed[source, target], expected, begin, strict=True):
        assert error(X, end, start) <= 1e-10, name
    if source == target:
        for X, own in zip(ends.resumed[source, target], ends.uninterrupted[target], strict=True):
            assert torch.equal(X, own)


@pytest.mark.parametrize("algorithm", some_of(VARIANTS, ["dion", "demo"]))
@pytest.mark.parametrize("among", ["a few layouts", pytest.param("all layouts", marks=pytest.mark.long)])
def test_a_training_goes_on_in_any_layout_from_the_checkpoint_of_any_other(
    among: str, algorithm: str, tmp_path: Path
) -> None:
    # Replicas of DeMo are together not what one process is; residuals need the same momentum on all.
    layouts = LAYOUTS[:7] if algorithm in ("demo", "dion with a residual") else LAYOUTS
    if among == "a few layouts":
        layouts = (layouts[0], layouts[-2], layouts[-1])
    if algorithm in CAN_HAVE_OWNERS:
        layouts += OWNERS
    ends = ends_of(layouts, tmp_path, {}, algorithm)
    for source in layouts:
        for target in layouts:
            check(ends, source, target)


def test_replicas_of_demo_go_on_from_their_checkpoint_to_the_last_bit(tmp_path: Path) -> None:
    compressed = LAYOUTS[7]
    ends = ends_of((compressed,), tmp_path, {}, "demo")
    for X, own in zip(ends.resumed[compressed, compressed], ends.uninterrupted[compressed], strict=True):
        assert torch.equal(X, own)


def test_another_class_takes_what_the_checkpoint_has(tmp_path: Path) -> None:
    saved = Training(LAYOUTS[0], algorithm="muon", of_its_class=True)
    saved.run(0, BEFORE)
    save(saved, str(tmp_path), StateDictOptions())
    with pytest.raises(CheckpointException, match=r"Missing key .*error_feedback"):
        load(Training(LAYOUTS[0], algorithm="muon"), str(tmp_path), StateDictOptions())
    other = Training(LAYOUTS[0], algorithm="muon", error_feedback=False)
    load(other, str(tmp_path), StateDictOptions(), DefaultLoadPlanner(allow_partial_load=True))
    assert not other.optimizer.param_groups[0]["error_feedback"]
    for training in (saved, other):
        training.run(BEFORE, STEPS)
    for X, own in zip(other.weights(), saved.weights(), strict=True):
        assert torch.equal(X, own)


FLAT = {"flatten_optimizer_state_dict": True}
OPTIONS = {"flat": FLAT, "offloaded": {"cpu_offload": True}, "flat and offloaded": FLAT | {"cpu_offload": True}}


@pytest.mark.parametrize("options", some_of(OPTIONS, ["flat and offloaded"]))
@pytest.mark.parametrize("algorithm", some_of(["dion", "adamw"], ["dion"]))
def test_the_options_of_state_dicts_change_nothing(algorithm: str, options: str, tmp_path: Path) -> None:
    layouts = (LAYOUTS[0], *OWNERS) if algorithm in CAN_HAVE_OWNERS else (LAYOUTS[0], LAYOUTS[2], LAYOUTS[3])
    ends = ends_of(layouts, tmp_path, OPTIONS[options], algorithm)
    for source in layouts:
        for target in layouts:
            check(ends, source, target)


def through_rank_0(rank: int, world_size: int, layout: Layout, folder: Path) -> None:
    """A whole state dict on rank 0, which one process could load, goes to all ranks."""
    training = Training(layout)
    training.run(0, BEFORE)
    training.optimizer.synchronize_for_checkpoint()
    saving = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = get_state_dict(training.model, training.optimizer, options=saving)
    if rank == 0:
        torch.save(optimizer, folder / "whole.pt")
        assert torch.load(folder / "whole.pt", weights_only=True)["state"]["odd.weight"]["Q"].shape == (9, 3)
    else:
        model, optimizer = {}, {}
    fresh = Training(layout)
    loading = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(fresh.model, model, options=loading)
    set_optimizer_state_dict(fresh.model, fresh.optimizer, optimizer, options=loading)
    for each in (training, fresh):
        each.run(BEFORE, STEPS)
    for X, own in zip(fresh.weights(), training.weights(), strict=True):
        assert torch.equal(X, own)


@pytest.mark.parametrize("layout", [LAYOUTS[1], LAYOUTS[2], LAYOUTS[7]], ids=str)
def test_a_whole_state_dict_of_rank_0_is_broadcast(layout: Layout, tmp_path: Path) -> None:
    run_ranks(through_rank_0, layout.world_size, layout, tmp_path)


def while_training_goes_on(rank: int, world_size: int, layout: Layout, folder: Path, algorithm: str) -> None:
    training = training_of(layout, algorithm)
    training.run(0, BEFORE)
    model, optimizer = get_state_dict(training.model, training.optimizer)
    group = dist.new_group()  # of its own: collectives of two threads must not meet
    state = {"model": model, "optimizer": optimizer}
    saving = dcp.async_save(state, checkpoint_id=str(folder / "async"), process_group=group)
    training.run(BEFORE, STEPS)
    saving.result()
    fresh = training_of(layout, algorithm)
    load(fresh, str(folder / "async"), StateDictOptions())
    fresh.run(BEFORE, STEPS)
    for X, own in zip(fresh.weights(), training.weights(), strict=True):
        assert torch.equal(X, own)


@pytest.mark.parametrize(("layout", "algorithm"), [(LAYOUTS[2], "dion"), (OWNERS[0], "muon")], ids=str)
def test_a_checkpoint_saved_in_the_background_is_that_of_its_step(
    layout: Layout, algorithm: str, tmp_path: Path
) -> None:
    run_ranks(while_training_goes_on, 2, layout, tmp_path, algorithm)


def without_synchronizing(rank: int, world_size: int, layout: Layout, folder: Path) -> None:
    training = Training(layout)
    training.run(0, BEFORE)
    with pytest.raises(RuntimeError, match="call synchronize_for_checkpoint"):
        get_optimizer_state_dict(training.model, training.optimizer)
    training.optimizer.synchronize_for_checkpoint()
    get_optimizer_state_dict(training.model, training.optimizer)


def test_decoupled_momenta_are_not_saved(tmp_path: Path) -> None:
    run_ranks(without_synchronizing, 4, LAYOUTS[7], tmp_path)


def creating_state(rank: int, world_size: int, layout: Layout) -> None:
    training, untouched = Training(layout), Training(layout)
    before = training.weights()
    get_optimizer_state_dict(training.model, training.optimizer)  # takes a step for the states' sake
    for X, start in zip(training.weights(), before, strict=True):
        assert torch.equal(X, start)
    for each in (training, untouched):
        each.run(0, 1)
    for own, other in zip(training.weights(), untouched.weights(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[7]], ids=str)
def test_the_step_that_creates_states_changes_no_weight_and_no_trajectory(layout: Layout) -> None:
    run_ranks(creating_state, layout.world_size, layout)


def from_one_process(rank: int, world_size: int, layout: Layout, saved: dict[str, Any], weights: list[Tensor]) -> list:
    training = Training(layout)
    training.optimizer.load_state_dict(saved)  # torch's own form, of whole tensors
    with torch.no_grad():
        for param, whole in zip(training.model.parameters(), weights, strict=True):
            lying = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
            param.copy_(lying)
    training.run(BEFORE, STEPS)
    return training.weights()


@pytest.mark.parametrize("layout", [LAYOUTS[4], LAYOUTS[7]], ids=str)
def test_the_plain_state_dict_of_one_process_is_cut_where_it_is_loaded(layout: Layout) -> None:
    alone = Training(LAYOUTS[0])
    begin = alone.weights()
    alone.run(0, BEFORE)
    saved, weights = alone.optimizer.state_dict(), alone.weights()
    for X in run_ranks(from_one_process, layout.world_size, layout, saved, weights):
        alone = Training(LAYOUTS[0])
        alone.run(0, STEPS)
        for own, end, start in zip(X, alone.weights(), begin, strict=True):
            assert error(own, end, start) <= 1e-10
