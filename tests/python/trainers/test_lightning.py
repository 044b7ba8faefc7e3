"""Dion under Lightning's Trainer, which evaluates the loss in a closure of step()."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from pages import run_guide
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchdion

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
        self.losses: list[float] = []
        self.rates: list[list[float]] = []
        self.norms: list[float] = []

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torchdion.Dion(torchdion.param_groups(self), lr=0.05, rank_fraction=0.5)
        optimizer.register_step_post_hook(self._record)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 8))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _record(self, optimizer: torchdion.Dion, *_: Any) -> None:
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        self.norms.append(torch.nn.utils.get_total_norm([param.grad for param in self.parameters()]).item())


def loader_of(batch: int) -> DataLoader:
    generator = torch.Generator().manual_seed(2)
    dataset = TensorDataset(torch.randn(32, 10, generator=generator), torch.arange(32) % 5)
    return DataLoader(dataset, batch)


def fit(path: Path, batch: int = 8, checkpoint: Path | None = None, **options: Any) -> tuple[Any, Classifier]:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"max_epochs": 2, "enable_checkpointing": False, **quiet, **options}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=path, **options)
    model = Classifier()
    trainer.fit(model, loader_of(batch), ckpt_path=checkpoint)
    return trainer, model


def dion_of(trainer: Any) -> torchdion.Dion:
    [optimizer] = trainer.optimizers
    assert type(optimizer) is torchdion.Dion
    return optimizer


def test_the_loss_falls_with_matrices_on_dion_and_the_rest_on_lion(tmp_path):
    trainer, model = fit(tmp_path, max_epochs=20)
    optimizer = dion_of(trainer)
    assert optimizer.stats()["steps"] == 80
    assert optimizer.stats()["parameters"] == {"dion": 2, "lion": 4}
    assert set(optimizer.state[model.layers[0].weight]) == {"step", "momentum", "Q"}
    assert sum(model.losses[:4]) >= 4 * 1.4
    assert sum(model.losses[-4:]) <= 0.3 * sum(model.losses[:4])


def test_a_resumed_training_has_the_losses_of_the_uninterrupted_one(tmp_path):
    first, _ = fit(tmp_path, max_epochs=2)
    first.save_checkpoint(tmp_path / "half.ckpt")
    _, whole = fit(tmp_path, max_epochs=4)
    trainer, resumed = fit(tmp_path, max_epochs=4, checkpoint=tmp_path / "half.ckpt")
    assert dion_of(trainer).stats()["steps"] == 8
    assert resumed.losses == whole.losses[8:]
    assert resumed.rates == whole.rates[8:]
    assert all(map(torch.equal, resumed.parameters(), whole.parameters()))


def test_accumulated_gradients_are_those_of_the_larger_batch(tmp_path):
    trainer, large = fit(tmp_path, batch=8)
    accumulating, small = fit(tmp_path, batch=4, accumulate_grad_batches=2)
    assert dion_of(trainer).stats()["steps"] == dion_of(accumulating).stats()["steps"] == 8
    for X, Y, start in zip(large.parameters(), small.parameters(), Classifier().parameters(), strict=True):
        assert torch.linalg.vector_norm(X - Y) <= 1e-3 * torch.linalg.vector_norm(X - start)


def test_gradients_arrive_clipped(tmp_path):
    _, model = fit(tmp_path, gradient_clip_val=1e-3)
    assert model.norms == pytest.approx([1e-3] * 8, rel=1e-2)
    _, model = fit(tmp_path)
    assert min(model.norms) >= 0.1


def test_the_schedule_drives_every_group(tmp_path):
    _, model = fit(tmp_path)
    groups = len(torchdion.param_groups(model))
    assert groups >= 2
    assert model.rates == [pytest.approx([0.05 / (1 + step / 8)] * groups) for step in range(8)]


def test_the_guide_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_guide("lightning", tmp_path)
    assert dion_of(names["trainer"]).stats()["steps"] == 4
