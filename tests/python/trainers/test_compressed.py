"""Compressed replicas under the trainers: each trains as one process with the larger batch does, and saves."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_world import fake_world
from pages import block_with
from ranks import run_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchdion
from torchdion.optimizer import Optimizer

SIZE, STEPS = 16, 6
OPTIONS = {"Dion": {"rank_fraction": 0.25}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def as_torchrun_does(rank: int, world: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "0", "GROUP_RANK": "0"}


class Network(nn.Module):
    """Speaks transformers' protocol."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE), nn.Tanh())
        self.layers.double()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(inputs), labels)}


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [tuple(torch.randn(2, SIZE, generator=generator, dtype=torch.float64)) for _ in range(4 * STEPS)]


def optimizer_of(model: nn.Module, kind: str = "Dion", **options: Any) -> Any:
    made_by = watched(getattr(torchdion, kind)) if options else getattr(torchdion, kind)
    return made_by(torchdion.param_groups(model), lr=0.02, **OPTIONS.get(kind, {}), **options)


def alone(kind: str) -> tuple[Network, Any]:
    """One process, four samples a step, in their order."""
    model = Network()
    optimizer = optimizer_of(model, kind)
    for step in range(STEPS):
        inputs, labels = map(torch.stack, zip(*data()[4 * step : 4 * step + 4], strict=True))
        optimizer.zero_grad()
        model(inputs, labels)["loss"].backward()
        optimizer.step()
    return model, optimizer


def check_as_alone(model: nn.Module, state_dict: dict[str, Any], kind: str = "Dion") -> None:
    """Weights, and the momenta that were saved."""
    expected, optimizer = alone(kind)
    for weight, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight.detach(), other.detach(), rtol=1e-9, atol=1e-10)
    for index, state in optimizer.state_dict()["state"].items():
        torch.testing.assert_close(state_dict["state"][index]["momentum"], state["momentum"], rtol=1e-9, atol=1e-10)


def watched(kind: Any) -> Any:
    class Watched(kind):
        """Notes at each step whether the first matrix's gradient is this rank's own."""

        def _update(self) -> None:  # after the closure that Lightning gives to step()
            param = self.param_groups[0]["params"][0]
            every = [torch.empty_like(param) for _ in range(dist.get_world_size())]
            dist.all_gather(every, param.grad)
            own = [*getattr(self, "own", []), not torch.allclose(every[0], every[1], rtol=1e-3)]
            self.own = own
            super()._update()

    return Watched


def check_compressed(optimizer: Any, model: nn.Module) -> None:
    """The hook was at work, and no more was sent than the factors and what is no matrix."""
    assert optimizer.own == [True] * STEPS
    matrices = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    sent = optimizer.stats()["traffic"]["replicas"]
    elements = sum(sent[kind]["elements"] for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
    vectors = sum(param.numel() for param in model.parameters() if param.dim() == 1)
    assert elements == STEPS * (sum(sum(X.shape) * (SIZE // 4) for X in matrices) + vectors)


def huggingface(rank: int, world: int, folder: Path, strategy: dict[str, Any], kind: str) -> None:
    as_torchrun_does(rank, world)
    from transformers import Trainer, TrainingArguments

    samples = [{"inputs": x, "labels": y} for x, y in data()]
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True, report_to="none", disable_tqdm=True,
        lr_scheduler_type="constant", max_grad_norm=0, train_sampling_strategy="sequential",
        per_device_eval_batch_size=2, **strategy
    )  # fmt: skip
    model = Network()
    optimizer = optimizer_of(model, kind, replicate_mesh=dist.group.WORLD)
    trainer = Trainer(model, arguments, train_dataset=samples, eval_dataset=samples[:4], optimizers=(optimizer, None))
    exec(block_with("compressed-replicas", "CompressedReplicas"), {"torchdion": torchdion, "trainer": trainer})
    trainer.train()
    if kind == "Dion":
        check_compressed(optimizer, model)
    assert optimizer.own == [True] * STEPS
    dist.barrier()
    saved = torch.load(folder / f"checkpoint-{STEPS}" / "optimizer.pt", weights_only=True)
    check_as_alone(model, saved, kind)


@pytest.mark.parametrize("kind", ["Muon", "DoubleDion", pytest.param("Dion3", marks=pytest.mark.long)])
def test_a_trainer_of_transformers_trains_every_optimizer_that_averages(tmp_path: Path, kind: str) -> None:
    run_ranks(huggingface, 2, tmp_path, {"save_strategy": "steps", "save_steps": STEPS}, kind)


def begin_with(made_by: Any, **options: Any) -> None:
    from torchdion.transformers import CompressedReplicas

    optimizer = made_by([nn.Parameter(torch.zeros(4, 4))], **options)
    trainer: Any = SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer), model_wrapped=None)
    callback = CompressedReplicas(trainer)
    callback.on_train_begin(*[SimpleNamespace(save_strategy="best")] * 3)
    callback.on_evaluate(*[SimpleNamespace(save_strategy="best")] * 3)


@pytest.mark.parametrize("made_by", Optimizer.__subclasses__(), ids=lambda made_by: made_by.__name__)
def test_the_callback_is_for_every_optimizer_of_the_family(made_by: Any) -> None:
    with fake_world(0, 2):
        begin_with(made_by, replicate_mesh=dist.group.WORLD)


def test_the_callback_refuses_an_optimizer_of_another_package() -> None:
    with pytest.raises(TypeError) as refused:
        begin_with(torch.optim.Muon)
    assert str(refused.value) == (
        "torchdion.transformers: CompressedReplicas is for a Trainer whose optimizer is one of torchdion's with a "
        f"replicate_mesh, got {torch.optim.Muon.__module__}.Muon"
    )


@pytest.mark.parametrize(
    "strategy",
    [
        {"save_strategy": "steps", "save_steps": 2},
        pytest.param({"save_strategy": "epoch"}, marks=pytest.mark.long),
        pytest.param(
            {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"},
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda strategy: strategy["save_strategy"],
)
def test_a_trainer_of_transformers_saves_synchronized_momenta(tmp_path: Path, strategy: dict[str, Any]) -> None:
    run_ranks(huggingface, 2, tmp_path, strategy, "Dion")


def with_accelerate(rank: int, world: int, folder: Path) -> None:
    as_torchrun_does(rank, world)
    from accelerate import Accelerator

    model = Network()
    dataset = TensorDataset(*map(torch.stack, zip(*data(), strict=True)))
    names: dict[str, Any] = {
        "torch": torch, "torchdion": torchdion, "model": model, "loader": DataLoader(dataset, 2), "folder": str(folder),
        "accelerator": Accelerator(cpu=True), "replicas": dist.group.WORLD, "loss_of": lambda out: out["loss"],
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchdion, "Dion", watched(torchdion.Dion))
        exec(block_with("compressed-replicas", "accelerator.save_state"), names)
    check_compressed(names["optimizer"].optimizer, model)
    dist.barrier()
    check_as_alone(model, torch.load(folder / "optimizer.bin", weights_only=True))


def test_accelerate_saves_synchronized_momenta(tmp_path: Path) -> None:
    run_ranks(with_accelerate, 2, tmp_path)


def with_lightning(rank: int, world: int, folder: Path) -> None:
    as_torchrun_does(rank, world)
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.network(*batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            self.dion = optimizer_of(self.network, replicate_mesh=dist.group.WORLD)
            self.dion.register_state_dict_pre_hook(torchdion.Dion.synchronize_for_checkpoint)
            return self.dion

        def on_train_start(self) -> None:
            self.trainer.strategy.model.register_comm_hook(self.dion, torchdion.ddp_comm_hook)

    module = Module()
    dataset = TensorDataset(*map(torch.stack, zip(*data(), strict=True)))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(dataset, 2))
    trainer.save_checkpoint(folder / "saved.ckpt")
    check_compressed(module.dion, module)
    dist.barrier()
    [saved] = torch.load(folder / "saved.ckpt", weights_only=False)["optimizer_states"]
    assert len(saved["state"]) == 4
    for index, (param, state) in enumerate(module.dion.state.items()):
        assert torch.equal(saved["state"][index]["momentum"], state["momentum"]), param.shape
        every = [torch.empty_like(param) for _ in range(world)]
        dist.all_gather(every, state["momentum"])
        assert torch.equal(every[0], every[1])


def test_lightning_saves_synchronized_momenta(tmp_path: Path) -> None:
    run_ranks(with_lightning, 2, tmp_path)
