"""Dion under the Trainer of transformers, in both ways to give it an optimizer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import run_guide
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.pytorch_utils import Conv1D

import torchdion

VOCABULARY, WIDTH, LAYERS = 32, 16, 2
MATRICES, VECTORS = 7 * LAYERS, 2 * LAYERS + 1  # query, key, value, output, gate, up, down; the norms
Make = Callable[[nn.Module], dict[str, Any]]


def language_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = {"num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, **shape))


def sequences() -> list[dict[str, Tensor]]:
    """Counting upwards from a random start: what comes next is known."""
    starts = torch.randint(VOCABULARY, (24, 1), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": tokens, "labels": tokens} for tokens in (starts + torch.arange(8)) % VOCABULARY]


def by_class(_model: nn.Module) -> dict[str, Any]:
    return {"optimizer_cls_and_kwargs": (torchdion.Dion, {"lr": 0.02, "rank_fraction": 0.5})}


def by_instance(model: nn.Module) -> dict[str, Any]:
    return {"optimizers": (torchdion.Dion(torchdion.param_groups(model), lr=0.02, rank_fraction=0.5), None)}


def trainer_of(path: Path, make: Make = by_instance, **arguments: Any) -> Trainer:
    defaults = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 0.02,
    }
    model = language_model()
    options = TrainingArguments(str(path), **{**defaults, **arguments})
    return Trainer(model, options, train_dataset=sequences(), **make(model))


def losses(trainer: Trainer) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def dion_of(trainer: Trainer) -> torchdion.Dion:
    """What accelerate wrapped."""
    optimizer = trainer.optimizer.optimizer
    assert type(optimizer) is torchdion.Dion
    return optimizer


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (by_class, {"dion": MATRICES + 2, "lion": VECTORS}),  # embedding and head are matrices then
        (by_instance, {"dion": MATRICES, "lion": VECTORS + 2}),
    ],
)
def test_the_loss_falls_with_matrices_on_dion_and_the_rest_on_lion(tmp_path, make, counts):
    trainer = trainer_of(tmp_path, make, max_steps=40, lr_scheduler_type="constant")
    trainer.train()
    optimizer = dion_of(trainer)
    assert optimizer.stats()["parameters"] == counts
    assert optimizer.stats()["steps"] == 40
    layer = trainer.model.model.layers[0]
    assert set(optimizer.state[layer.mlp.up_proj.weight]) == {"step", "momentum", "Q"}
    assert optimizer.state[layer.mlp.up_proj.weight]["Q"].shape == (2 * WIDTH, WIDTH // 2)
    assert set(optimizer.state[layer.input_layernorm.weight]) == {"step", "momentum"}
    history = losses(trainer)
    assert history[1] >= 3.2  # ln 32 = 3.47
    assert history[40] <= 0.5 * history[1]


@pytest.mark.parametrize("make", [by_class, by_instance])
def test_a_resumed_training_has_the_losses_of_the_uninterrupted_one(tmp_path, make):
    whole = trainer_of(tmp_path, make, save_strategy="steps", save_steps=5)
    whole.train()
    resumed = trainer_of(tmp_path / "resumed", make)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert dion_of(resumed).stats()["steps"] == 12 - 5
    assert [losses(resumed)[step] for step in range(6, 13)] == [losses(whole)[step] for step in range(6, 13)]
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


def test_accumulated_gradients_are_those_of_the_larger_batch(tmp_path):
    models = []
    for batch, accumulated in ((4, 1), (2, 2)):
        trainer = trainer_of(tmp_path, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulated)
        trainer.train()
        assert dion_of(trainer).stats()["steps"] == 12
        models.append([param.detach() for param in trainer.model.parameters() if param.dim() == 2])
    travelled = [X - start.detach() for X, start in zip(models[0], matrices(language_model()), strict=True)]
    for X, Y, moved in zip(*models, travelled, strict=True):
        assert torch.linalg.vector_norm(X - Y) <= 0.02 * torch.linalg.vector_norm(moved)


def matrices(model: nn.Module) -> list[Tensor]:
    return [param for param in model.parameters() if param.dim() == 2]


@pytest.mark.parametrize("bound", [1e-3, 1e9])
def test_gradients_arrive_clipped(tmp_path, bound):
    trainer = trainer_of(tmp_path, max_grad_norm=bound)
    norms = []

    def record(optimizer: torchdion.Dion, *_: Any) -> None:
        gradients = [param.grad for group in optimizer.param_groups for param in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())

    trainer.optimizer.register_step_pre_hook(record)
    trainer.train()
    assert len(norms) == 12
    if bound < 1:
        assert norms == pytest.approx([bound] * 12, rel=1e-3)
    else:
        assert min(norms) > 0.1


@pytest.mark.parametrize("make", [by_class, by_instance])
def test_the_schedule_of_the_trainer_drives_every_group(tmp_path, make):
    trainer = trainer_of(tmp_path, make, lr_scheduler_type="linear", warmup_steps=4)
    trainer.create_optimizer()
    rates = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append([group["lr"] for group in optimizer.param_groups])
    )
    trainer.train()
    expected = [0.02 * min(step / 4, (12 - step) / 8) for step in range(12)]
    groups = len(dion_of(trainer).param_groups)
    assert groups >= 2
    assert rates == [pytest.approx([lr] * groups) for lr in expected]


def test_the_linear_layers_of_gpt2_which_have_their_fan_in_first_are_routed_so():
    """transformers' Conv1D(nf, nx) multiplies x of nx features by a weight of nx×nf."""
    layer = Conv1D(12, 4)
    assert layer(torch.zeros(1, 4)).shape == (1, 12)
    [matrix] = [group for group in torchdion.param_groups(layer) if "algorithm" not in group]
    assert matrix["fan_in_first"] is True
    before = layer.weight.detach().clone()
    layer(torch.eye(4)).square().sum().backward()
    torchdion.Dion(torchdion.param_groups(layer, weight_decay=0.0), lr=0.1).step()
    moved = torch.linalg.vector_norm(layer.weight.detach() - before).item()
    assert moved == pytest.approx(0.1 * (12 / 4) ** 0.5 * 4**0.5, rel=1e-6)


def test_the_guide_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_guide("hugging-face", tmp_path)
    for trainer in (names["trainer"], names["routed"]):
        assert dion_of(trainer).stats()["steps"] == 2
        assert dion_of(trainer).param_groups[0]["rank_fraction"] == 0.25
