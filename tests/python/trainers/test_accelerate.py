"""Dion under accelerator.prepare()."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from pages import run_guide
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import torchdion


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its settings in singletons."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield


def classifier() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


def loader_of(batch: int) -> DataLoader:
    generator = torch.Generator().manual_seed(2)
    dataset = TensorDataset(torch.randn(32, 10, generator=generator), torch.arange(32) % 5)
    return DataLoader(dataset, batch)


class Run:
    """A model, its optimizer, data and schedule, prepared."""

    def __init__(self, batch: int = 8, accumulated: int = 1, rate: Any = lambda step: 1.0) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
        model = classifier()
        optimizer = torchdion.Dion(torchdion.param_groups(model), lr=0.05, rank_fraction=0.5)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader_of(batch), LambdaLR(optimizer, rate)
        )

    @property
    def dion(self) -> torchdion.Dion:
        optimizer = self.optimizer.optimizer
        assert type(optimizer) is torchdion.Dion
        return optimizer

    def epochs(self, count: int, clip: float | None = None) -> list[float]:
        losses = []
        for _ in range(count):
            for inputs, targets in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = nn.functional.cross_entropy(self.model(inputs), targets)
                    self.accelerator.backward(loss)
                    if clip is not None and self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    def weights(self) -> list[Tensor]:
        return [param.detach().clone() for param in self.model.parameters()]


def test_the_loss_falls_with_matrices_on_dion_and_the_rest_on_lion():
    run = Run()
    losses = run.epochs(20)
    assert run.dion.stats()["steps"] == 80
    assert run.dion.stats()["parameters"] == {"dion": 2, "lion": 4}
    assert set(run.dion.state[run.model[0].weight]) == {"step", "momentum", "Q"}
    assert sum(losses[:4]) >= 4 * 1.4
    assert sum(losses[-4:]) <= 0.3 * sum(losses[:4])


def test_a_resumed_run_has_the_losses_of_the_uninterrupted_one(tmp_path: Path):
    whole = Run(rate=lambda step: 1 / (1 + step))
    whole.epochs(2)
    whole.accelerator.save_state(str(tmp_path))
    expected = whole.epochs(2)
    fresh = Run(rate=lambda step: 1 / (1 + step))
    fresh.accelerator.load_state(str(tmp_path))
    assert fresh.epochs(2) == expected
    assert all(map(torch.equal, fresh.weights(), whole.weights()))


def test_accumulated_gradients_are_those_of_the_larger_batch():
    large = Run(batch=8)
    large.epochs(1)
    small = Run(batch=4, accumulated=2)
    small.epochs(1)
    assert large.dion.stats()["steps"] == small.dion.stats()["steps"] == 4
    for X, Y, start in zip(large.weights(), small.weights(), classifier().parameters(), strict=True):
        assert torch.linalg.vector_norm(X - Y) <= 1e-3 * torch.linalg.vector_norm(X - start.detach())


def test_gradients_arrive_clipped():
    run = Run()
    norms = []
    run.dion.register_step_pre_hook(
        lambda *_: norms.append(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]).item())
    )
    run.epochs(1, clip=1e-3)
    assert norms == pytest.approx([1e-3] * 4, rel=1e-2)


def test_the_schedule_drives_every_group():
    run = Run(rate=lambda step: 0.5**step)
    assert len(run.dion.param_groups) >= 2
    rates = []
    run.dion.register_step_pre_hook(lambda optimizer, *_: rates.append([g["lr"] for g in optimizer.param_groups]))
    run.epochs(1)
    assert rates == [[0.05 * 0.5**step] * len(run.dion.param_groups) for step in range(4)]


def test_the_guide_shows_it(tmp_path):
    names = run_guide("accelerate", tmp_path)
    optimizer = names["optimizer"].optimizer
    assert type(optimizer) is torchdion.Dion
    assert optimizer.stats()["steps"] == 4
