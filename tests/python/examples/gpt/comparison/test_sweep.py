"""examples/gpt/comparison/sweep.py: the best rate is bracketed, and every contender tries as many."""

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import sweep
from comparison.cells import Cell, settings
from comparison.results import Result, Results

from .studies import SMALL, bowl, read, run

Loss = Callable[[Cell], Result]


def by_optimizer(**losses: Callable[[float], float]) -> Loss:
    return lambda cell: Result(((8, losses[cell.flags["optimizer"]](cell.flags["lr"]) + 0.001 * cell.flags["seed"]),))


def rates_of(done: list[Cell], optimizer: str, seed: int) -> list[float]:
    return sorted(
        cell.flags["lr"] for cell in done if (cell.flags["optimizer"], cell.flags["seed"]) == (optimizer, seed)
    )


def test_a_grid_grows_to_where_its_best_rate_has_two_neighbours(tmp_path: Path) -> None:
    asked = read(tmp_path)
    loss = by_optimizer(adamw=bowl(0.16, 2.0), dion=bowl(0.02, 1.0))
    done = run(asked, Results(tmp_path, {}), loss)
    assert rates_of(done, "adamw", 0) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    assert rates_of(done, "adamw", 1) == rates_of(done, "adamw", 2) == rates_of(done, "adamw", 3) == [0.16]
    assert rates_of(done, "dion", 1) == [0.02]


def test_every_contender_tries_as_many_rates_as_the_one_with_most(tmp_path: Path) -> None:
    asked = read(tmp_path)
    done = run(asked, Results(tmp_path, {}), by_optimizer(adamw=bowl(0.08, 2.0), dion=bowl(0.0201, 1.0)))
    assert rates_of(done, "adamw", 0) == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert rates_of(done, "dion", 0) == [0.005, 0.01, 0.02, 0.04, 0.08]  # to the lower edge each time


def test_a_grid_does_not_grow_for_ever_and_says_so(tmp_path: Path) -> None:
    asked = read(tmp_path, widen="widen = 2")
    results = Results(tmp_path, {})
    done = run(asked, results, by_optimizer(adamw=lambda rate: -rate, dion=bowl(0.02, 1.0)))
    assert rates_of(done, "adamw", 0) == [0.01, 0.02, 0.04, 0.08, 0.16]
    rates = sweep.tried(asked, asked.parts[0], results)[next(settings(asked, asked.parts[0]))]
    assert not sweep.is_bracketed(rates, 0.16)


def test_a_part_may_say_how_far_its_grids_grow(tmp_path: Path) -> None:
    asked = read(tmp_path, widen="widen = 0", question="question = 'Why?'\nwiden = 1")
    done = run(asked, Results(tmp_path, {}), by_optimizer(adamw=lambda rate: -rate, dion=bowl(0.02, 1.0)))
    assert rates_of(done, "adamw", 0) == [0.01, 0.02, 0.04, 0.08]


@pytest.mark.parametrize("seed", range(20))
def test_no_grid_has_more_rates_than_widen_allows(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    done = run(read(tmp_path), Results(tmp_path, {}), lambda cell: Result(((8, draw.random()),)))
    counts = {len(rates_of(done, optimizer, 0)) for optimizer in ("adamw", "dion")}
    assert len(counts) == 1
    assert max(counts) <= 3 + 3


def test_rates_that_diverge_are_left_behind(tmp_path: Path) -> None:
    def loss(cell: Cell) -> Result:
        return (
            Result((), diverged_at=3) if cell.flags["lr"] > 0.011 else Result(((8, bowl(0.005, 1)(cell.flags["lr"])),))
        )

    done = run(read(tmp_path), Results(tmp_path, {}), loss)
    assert rates_of(done, "adamw", 0) == [0.0025, 0.005, 0.01, 0.02, 0.04]
    assert rates_of(done, "adamw", 1) == [0.005]


def test_a_target_is_what_a_rate_is_chosen_by(tmp_path: Path) -> None:
    def loss(cell: Cell) -> Result:
        late = cell.flags["lr"] < 0.015  # lower in the end, and later at the target
        return Result(((4, 2.5), (8, 1.0)) if late else ((4, 1.5), (8, 1.4 + cell.flags["lr"])))

    asked = read(tmp_path, SMALL + "until_loss = 1.8\n")
    done = run(asked, Results(tmp_path, {}), loss)
    assert rates_of(done, "adamw", 1) == [0.02]


@pytest.mark.parametrize(
    "reached",
    [
        {0.01: (None, None), 0.02: (None, 4), 0.04: (None, None)},
        {0.01: (None, 1), 0.02: (7, 7), 0.04: (1, None)},
        {0.01: (7, 7), 0.02: (6, 7), 0.04: (7, 7)},
    ],
)
def test_a_rate_is_better_by_how_often_and_then_how_soon_it_reaches_the_target(
    reached: dict[float, tuple[int | None, int | None]], tmp_path: Path
) -> None:
    def loss(cell: Cell) -> Result:
        steps = reached[cell.flags["lr"]][cell.flags["seed"] % 2]
        return Result(((8, 1.81),)) if steps is None else Result(((steps, 1.8),))

    asked = read(tmp_path, SMALL + "until_loss = 1.8\ntuning_seeds = 2\n")
    assert rates_of(run(asked, Results(tmp_path, {}), loss), "adamw", 2) == [0.02]


def test_grids_that_may_grow_are_counted_to_their_ends(tmp_path: Path) -> None:
    asked = read(tmp_path)
    results, part = Results(tmp_path, {}), asked.parts[0]
    more = sweep.growth(asked, part, results)
    assert len(set(more)) == 2 * 3
    assert set(more).isdisjoint(sweep.cells(asked, part, results))
    run(asked, results, by_optimizer(adamw=bowl(0.02, 2.0), dion=bowl(0.02, 1.0)))
    assert sweep.growth(asked, part, results) == []
    every = read(tmp_path, SMALL + "every_rate = true\n")
    (tmp_path / "every").mkdir()
    assert len(sweep.growth(every, every.parts[0], Results(tmp_path / "every", {}))) == 2 * 3 * (1 + 3)


def test_all_seeds_at_all_rates_where_a_part_asks_for_them(tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL + "every_rate = true\n")
    done = run(asked, Results(tmp_path, {}), by_optimizer(adamw=bowl(0.02, 2.0), dion=bowl(0.02, 1.0)))
    assert Counter(cell.flags["lr"] for cell in done) == {0.01: 8, 0.02: 8, 0.04: 8}


def test_each_width_has_its_own_number_of_seeds(tmp_path: Path) -> None:
    asked = read(tmp_path, widths="widths = [16, 32]", seeds="seeds = [3, 1]")
    done = run(asked, Results(tmp_path, {}), by_optimizer(adamw=bowl(0.02, 2.0), dion=bowl(0.02, 1.0)))
    best = [cell for cell in done if cell.flags["lr"] == 0.02 and cell.flags["optimizer"] == "dion"]
    assert {(cell.flags["d_model"], cell.flags["seed"]) for cell in best} == {
        *((16, seed) for seed in range(4)), *((32, seed) for seed in range(2)),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_same_cells_are_trained_in_whatever_order_they_end(seed: int, tmp_path: Path) -> None:
    asked = read(tmp_path)
    loss = by_optimizer(adamw=bowl(0.1, 2.0), dion=bowl(0.004, 1.0))
    (tmp_path / "in_order").mkdir()
    expected = set(run(asked, Results(tmp_path / "in_order", {}), loss))
    draw = random.Random(seed)
    results = Results(tmp_path, {})
    while cells := sweep.wanted(asked, asked.parts[0], results):
        cell = draw.choice(cells)
        results.add(cell, loss(cell))
    assert set(results) == expected


def test_what_is_expected_holds_what_is_wanted_and_all_seeds(tmp_path: Path) -> None:
    asked = read(tmp_path)
    results = Results(tmp_path, {})
    part = asked.parts[0]
    expected = list(sweep.cells(asked, part, results))
    assert set(sweep.wanted(asked, part, results)) <= set(expected)
    assert len(set(expected)) == 2 * (3 + 3)  # three rates of the seed that chooses, one of the three others
    assert math.isclose(expected[-1].flags["lr"], 0.02)
