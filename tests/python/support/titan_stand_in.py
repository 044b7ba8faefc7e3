"""What docs/guides/torchtitan.md takes of torchtitan, for where that is not installed."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn
from torch.optim import Optimizer


class OptimizersContainer(Optimizer):
    """Optimizers that step as one."""

    optimizers: list[Optimizer]
    model_parts: list[nn.Module]

    @dataclass(kw_only=True, slots=True)
    class Config:
        implementation: str = "fused"

    def step(self, closure: None = None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def _validate_params(self, parameters: Iterable[Tensor]) -> None:
        trained = {id(parameter) for part in self.model_parts for parameter in part.parameters()}
        assert {id(parameter) for parameter in parameters} == trained

    def _post_init(self, parameters: Iterable[Tensor]) -> None:
        Optimizer.__init__(self, parameters, {})


def canonical_fqn(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the imports of one test."""
    names: dict[str, dict[str, Any]] = {
        "torchtitan": {},
        "torchtitan.components": {},
        "torchtitan.components.checkpoint_utils": {"canonical_fqn": canonical_fqn},
        "torchtitan.components.optimizer": {"OptimizersContainer": OptimizersContainer},
        "torchtitan.models": {},
        "torchtitan.models.llama3": {},
        "torchtitan.models.llama3.config_registry": {"llama3_debugmodel": SimpleNamespace},
        "torchtitan.trainer": {"Trainer": SimpleNamespace(Config=SimpleNamespace)},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
