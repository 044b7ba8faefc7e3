"""Two trainings of the demo differ in their optimizer alone."""

import math

import pytest
import torch
from long_cases import some_of

from torchdion.demonstration import optimizers, training
from torchdion.demonstration.training import BATCH, CONTEXT, Settings, Training, Windows, rate_factor

CPU = torch.device("cpu")
VOCABULARY = 20


def windows(rows: int) -> Windows:
    """Of tokens that count to VOCABULARY and begin again, which is soon learnt."""
    return Windows.of([place % VOCABULARY for place in range(rows * (CONTEXT + 1))], CPU)


def settings(steps: int, seed: int = 0) -> Settings:
    return Settings(windows(20), VOCABULARY, steps, seed, CPU)


def test_an_epoch_has_every_row_but_those_held_out_once() -> None:
    numbered = Windows.of([row for row in range(100) for _ in range(CONTEXT + 1)], CPU)
    assert numbered.validation[:, 0].tolist() == list(range(9, 100, 10))
    seen = torch.cat([numbered.batch(step, seed=3)[:, 0] for step in range(15)])  # 15 × 24 rows: 4 epochs of 90
    assert len(seen) == 15 * BATCH == 4 * 90
    for epoch in seen.split(90):
        assert sorted(epoch.tolist()) == [row for row in range(100) if row % 10 != 9]
    assert seen[:90].tolist() != seen[90:180].tolist()
    assert numbered.batch(0, seed=3).equal(numbered.batch(0, seed=3))
    assert not numbered.batch(0, seed=3).equal(numbered.batch(0, seed=4))


def test_the_first_weights_are_the_seeds_and_torchs_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = settings(1).model(), settings(1).model(), settings(1, seed=1).model()
    assert torch.get_rng_state().equal(before)
    assert first.head.weight.equal(again.head.weight)
    assert not first.head.weight.equal(other.head.weight)


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    factors = [rate_factor(step, 100) for step in range(101)]
    assert factors[0] == pytest.approx(0.2)
    assert factors[4:51] == pytest.approx([1.0] * 47)
    assert factors[75] == pytest.approx(0.5)
    assert factors[100] == 0.0


@pytest.mark.parametrize(("steps", "validated"), [(1, [1]), (5, [1, 2, 3, 4, 5]), (30, [*range(2, 31, 2)])])
def test_losses_are_measured_at_even_distances_and_at_the_end(steps: int, validated: list[int]) -> None:
    assert settings(steps).validated == validated
    assert settings(247).validated[-2:] == [240, 247]


def test_a_validation_loss_is_that_of_the_rows_held_out() -> None:
    model = settings(1).model()
    with torch.no_grad():
        model.head.weight.zero_()
    assert training.validate(model, windows(20).validation) == pytest.approx(math.log(VOCABULARY), abs=1e-5)


@pytest.mark.parametrize("name", some_of([*optimizers.OPTIMIZERS, "torch"], ["dion", "torch"]))
def test_every_optimizer_learns_to_count(name: str) -> None:
    """A uniform guess has ln 20 = 3.0."""
    training = Training(
        settings(24), optimizers.adamw if name == "torch" else lambda model: optimizers.ours(name, model), name
    )
    for _ in range(24):
        training.advance()
    assert training.curve.title == name
    assert list(training.curve.losses) == list(range(2, 25, 2))
    assert training.curve.final < 1.5
    assert len(training.seconds) == training.step == 24
