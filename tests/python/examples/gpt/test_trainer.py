"""examples/gpt/trainer.py and optimizers.py: what one step does, for each optimizer."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint
import numpy as np
import pytest
import torch
from data import Source, Windows
from errors import Problem
from options import parse, recipe
from processes import OneProcess
from trainer import Trainer

import torchdion

CPU = torch.device("cpu")
MODEL = ["--layers", "1", "--d-model", "32", "--heads", "2", "--context", "16"]
RUN = ["--batch", "12", "--steps", "20", "--val-sequences", "10"]
OPTIMIZERS = [
    "torch_adamw", "torch_muon", "adamw", "dist_adamw", "lion", "demo", "double_dion", "muon", "normuon", "dion2",
    "dion3", "dist_muon", "dion"
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is slower on several threads, by far where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_trainer(*flags: str) -> Trainer:
    """A trainer on words that repeat, so that a few steps suffice to learn something."""
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 200, dtype=np.uint8)
    windows = Windows(Source([text], ["text"]), 16, vocab=256)
    return Trainer(recipe(parse([*MODEL, *RUN, *flags]), CPU), CPU, windows, windows, False, OneProcess())


def saved(trainer: Trainer, folder: Path) -> dict[str, Any]:
    trainer.save(folder, 1, {})
    state = checkpoint.newest(folder, print)
    assert state is not None
    return state


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer: str) -> None:
    trainer = make_trainer("--optimizer", optimizer)
    losses = [trainer.train_step().loss for _ in range(20)]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert trainer.validate() < 3.6


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_parameter_has_one_optimizer(optimizer: str) -> None:
    trainer = make_trainer("--optimizer", optimizer)
    owned = [id(p) for each in trainer.optimizers for group in each.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in trainer.model.parameters())


@pytest.mark.parametrize(
    ("flags", "residual"), [([], None), (["--residual"], "sign"), (["--residual", "scaled"], "scaled")], ids=str
)
def test_a_residual_is_signs_unless_it_is_named(flags: list[str], residual: str | None) -> None:
    assert recipe(parse([*flags, "--nesterov"]), CPU).hyperparameters["residual"] == residual


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_is_for_the_blocks_matrices(optimizer: str) -> None:
    trainer = make_trainer("--optimizer", optimizer, "--weight-decay", "0.125")
    decay = {
        id(p): group["weight_decay"]
        for each in trainer.optimizers
        for group in each.param_groups
        for p in group["params"]
    }
    for name, weight in trainer.model.named_parameters():
        assert decay[id(weight)] == (0.125 if name.startswith("blocks.") else 0.0), name


@pytest.mark.parametrize("optimizer", ["dion", "muon"])
def test_rates_follow_the_papers_table(optimizer: str) -> None:
    trainer = make_trainer("--optimizer", optimizer, "--lr", "0.02", "--scalar-lr", "0.01")
    scale = {id(p): g["lr_multiplier"] for g in trainer.optimizers[0].param_groups for p in g["params"]}
    assert scale[id(trainer.model.blocks[0].mlp.up.weight)] == 1
    assert scale[id(trainer.model.embedding.weight)] == pytest.approx(0.5)
    assert scale[id(trainer.model.head.weight)] == pytest.approx(0.5 / math.sqrt(32))


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_embedding_and_head_may_have_another_rule_than_the_blocks(optimizer: str) -> None:
    other = {"adamw": "lion", "lion": "adamw"}[optimizer]
    trainer = make_trainer("--optimizer", optimizer, "--lr", "0.02", "--scalar-algorithm", other, "--scalar-lr", "0.01")
    [built] = trainer.optimizers
    rules = {id(p): (g["algorithm"], g["lr_multiplier"]) for g in built.param_groups for p in g["params"]}
    assert rules[id(trainer.model.blocks[0].mlp.up.weight)] == (optimizer, 1)
    assert rules[id(trainer.model.embedding.weight)] == (other, pytest.approx(0.5))
    assert rules[id(trainer.model.head.weight)] == (other, pytest.approx(0.5 / math.sqrt(32)))


OWN = """
import torch

def sgd(model, *, lr=0.5, mu=0.0, seed=0):
    return torch.optim.SGD(model.parameters(), lr=lr + seed, momentum=mu)

def without_rate(model, *, mu=0.5): ...
"""


def test_an_optimizer_of_ones_own_has_the_flags_that_its_function_names(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    [built] = make_trainer("--optimizer", f"{file}:sgd", "--mu", "0.9", "--seed", "3").optimizers
    assert type(built) is torch.optim.SGD
    assert (built.defaults["lr"], built.defaults["momentum"]) == (3.5, 0.9)
    with pytest.raises(Problem, match="--rank-fraction has no effect with --optimizer"):
        make_trainer("--optimizer", f"{file}:sgd", "--rank-fraction", "0.5")
    with pytest.raises(Problem, match="needs the keyword lr"):
        make_trainer("--optimizer", f"{file}:without_rate")


def test_muons_flags_are_those_of_its_matrices() -> None:
    flags = {"mu": 0.9, "newton_schulz": "gram", "ns_steps": 3, "nonfinite": "zero", "precision": "high"}
    words = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), str(value))]
    trainer = make_trainer("--optimizer", "muon", *words, "--no-nesterov", "--adjust-lr", "none")
    [optimizer] = trainer.optimizers
    assert type(optimizer) is torchdion.Muon
    matrices, *others = optimizer.param_groups
    assert {name: matrices[name] for name in flags} == flags
    assert (matrices["nesterov"], matrices["adjust_lr"], matrices["algorithm"]) == (False, None, "muon")
    assert {group["algorithm"] for group in others} == {"lion"}


@pytest.mark.parametrize("micro_batch", ["1", "4"])
def test_accumulated_gradients_are_those_of_the_large_batch(micro_batch: str, tmp_path: Path) -> None:
    large = make_trainer("--optimizer", "torch_adamw")
    for _ in range(5):  # away from the start, where most gradients are zero
        large.train_step()
    small = make_trainer("--optimizer", "torch_adamw", "--micro-batch", micro_batch)
    small.load_state_dict(saved(large, tmp_path))
    assert small.accumulate_gradients() == pytest.approx(large.accumulate_gradients(), rel=1e-5)
    for expected, given in zip(large.model.parameters(), small.model.parameters(), strict=True):
        assert expected.grad is not None and given.grad is not None
        assert expected.grad.norm().item() > 1e-4
        error = (given.grad - expected.grad).norm() / expected.grad.norm()
        assert error.item() < 1e-4


def test_the_gradient_is_clipped_to_its_norm() -> None:
    def gradient_seen_by_adamw(clip: str) -> tuple[float, float]:
        trainer = make_trainer("--optimizer", "torch_adamw", "--clip", clip, "--betas", "0", "0.9")
        norm = trainer.train_step().grad_norm
        # Without momentum AdamW's first average is the gradient itself.
        seen = [state["exp_avg"] for state in trainer.optimizers[0].state.values()]
        return norm, torch.cat([each.flatten() for each in seen]).norm().item()

    norm, unclipped = gradient_seen_by_adamw("0")
    assert unclipped == pytest.approx(norm, rel=1e-5)
    assert gradient_seen_by_adamw("0.01") == pytest.approx((norm, 0.01), rel=1e-3)


def test_the_rate_of_a_step_is_the_schedules() -> None:
    flags = ("--optimizer", "torch_adamw", "--lr", "0.4", "--steps", "4", "--warmup", "0.5", "--decay", "0.5")
    trainer = make_trainer(*flags)
    assert [trainer.train_step().lr for _ in range(4)] == pytest.approx([0.2, 0.4, 0.4, 0.2])


def test_validation_changes_nothing() -> None:
    trainer, other = make_trainer("--optimizer", "torch_adamw"), make_trainer("--optimizer", "torch_adamw")
    trainer.train_step()
    other.train_step()
    assert trainer.validate() == trainer.validate()
    assert trainer.train_step().loss == other.train_step().loss


def test_validation_is_the_mean_over_all_sequences_whatever_the_micro_batch(tmp_path: Path) -> None:
    large = make_trainer("--optimizer", "torch_adamw")
    large.train_step()
    small = make_trainer("--optimizer", "torch_adamw", "--micro-batch", "4")  # 10 sequences: 4, 4 and 2
    small.load_state_dict(saved(large, tmp_path))
    assert small.validate() == pytest.approx(large.validate(), rel=1e-6)


def test_the_random_state_is_restored(tmp_path: Path) -> None:
    trainer = make_trainer("--optimizer", "torch_adamw")
    state = saved(trainer, tmp_path)
    expected = torch.rand(3)
    trainer.load_state_dict(state)
    assert torch.equal(torch.rand(3), expected)


def test_a_loss_that_is_not_finite_ends_the_run_with_a_sentence() -> None:
    trainer = make_trainer("--optimizer", "torch_adamw")
    with torch.no_grad():
        trainer.model.head.weight.fill_(math.nan)
    with pytest.raises(Problem, match="the loss is nan after 0 steps; a lower --lr may help") as problem:
        trainer.train_step()
    assert problem.value.code == 1


def test_bfloat16_is_autocast_and_leaves_the_weights_in_float32(tmp_path: Path) -> None:
    exact = make_trainer("--optimizer", "torch_adamw")
    for _ in range(5):
        exact.train_step()
    rounded = make_trainer("--optimizer", "torch_adamw", "--dtype", "bfloat16")
    rounded.load_state_dict(saved(exact, tmp_path))
    difference = abs(rounded.train_step().loss - exact.train_step().loss)
    assert 0 < difference < 0.05
    assert {weight.dtype for weight in rounded.model.parameters()} == {torch.float32}
