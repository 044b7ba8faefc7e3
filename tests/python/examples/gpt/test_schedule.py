"""examples/gpt/schedule.py: the warm-up/stable/decay factor."""

import pytest
import torch
from schedule import schedules, warmup_stable_decay


def test_the_factor_rises_stays_and_falls() -> None:
    factor = warmup_stable_decay(10, warmup=0.2, decay=0.4)
    expected = [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert [factor(step) for step in range(10)] == pytest.approx(expected)


def test_every_step_but_none_after_the_last_has_a_rate() -> None:
    factor = warmup_stable_decay(7, warmup=0.3, decay=0.7)
    assert min(factor(step) for step in range(7)) > 0
    assert factor(7) == factor(8) == 0


def test_without_warmup_and_decay_the_factor_is_one() -> None:
    factor = warmup_stable_decay(5, warmup=0, decay=0)
    assert [factor(step) for step in range(5)] == [1, 1, 1, 1, 1]


def test_schedules_scale_each_optimizers_own_rate() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    pair = [torch.optim.SGD([weight], lr=lr) for weight, lr in zip(weights, (0.1, 4.0), strict=True)]
    both = schedules(pair, steps=4, warmup=0.5, decay=0.5)
    seen = []
    for _ in range(4):
        seen.append([optimizer.param_groups[0]["lr"] for optimizer in pair])
        for optimizer, schedule in zip(pair, both, strict=True):
            optimizer.step()
            schedule.step()
    assert seen == [pytest.approx(rates) for rates in ([0.05, 2], [0.1, 4], [0.1, 4], [0.05, 2])]
