"""Checkpoints of the dion package (microsoft/dion): made here by its rules, they continue exactly."""

from typing import Any

import pytest
import torch
from oracle import DionState, adamw, dion, lion
from runs import error
from torch import Tensor
from torch.nn import Parameter

import torchdion

STEPS_BEFORE, STEPS = 4, 14
SIZES = {"tall": (14, 6), "wide": (5, 12), "square": (8, 8), "bias": (9,), "embedding": (7, 5)}
SHARED = {"lr": 0.02, "mu": 0.95, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "epsilon": 1e-8}
GROUPS = (
    (("tall", "wide", "square"), "dion"),
    (("bias",), "lion"),
    (("embedding",), "adamw"),
)


def normal(name: str, salt: int) -> Tensor:
    generator = torch.Generator().manual_seed(list(SIZES).index(name) + 10 * salt)
    return torch.randn(SIZES[name], generator=generator, dtype=torch.float64)


def orientation(name: str) -> str:
    """The package transposes, where nothing is sharded, what is wider than tall."""
    m, n = SIZES[name]
    return "right" if m < n else "left"


class Package:
    """The weights and states that the package would have, with its shapes and names."""

    def __init__(self) -> None:
        self.X = {name: normal(name, 0) for name in SIZES}
        self.M = {name: torch.zeros_like(X) for name, X in self.X.items()}
        self.V = torch.zeros_like(self.X["embedding"])
        self.Q = {name: normal(name, 1)[:, :3] if orientation(name) == "right" else normal(name, 1).mT[:, :3]
                  for name in GROUPS[0][0]}  # fmt: skip
        self.step = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            for name in SIZES:
                self._update(name, normal(name, 10 + self.step))

    def _update(self, name: str, G: Tensor) -> None:
        lr, mu, beta1, beta2, decay, epsilon = SHARED.values()
        if name in self.Q:
            state = DionState(self.X[name], self.M[name], self.Q[name])
            self.X[name], self.M[name], self.Q[name], _ = dion(state, G, lr, mu, decay, orientation(name))
        elif name == "bias":
            self.X[name], self.M[name] = lion(self.X[name], self.M[name], G, lr, beta1, beta2, decay)
        else:
            args = (lr, beta1, beta2, epsilon, decay)
            self.X[name], self.M[name], self.V = adamw(self.X[name], self.M[name], self.V, G, self.step, *args)

    def state_dict(self) -> dict[str, Any]:
        """What torch.optim.Optimizer.state_dict() of the package's optimizer holds: the step is the group's."""
        states = {name: {"momentum": M} for name, M in self.M.items()}
        for name, Q in self.Q.items():
            states[name]["Q"] = Q
        states["embedding"]["variance"] = self.V
        places = {name: place for place, name in enumerate(SIZES)}
        more = {"rank_fraction": 0.5, "rank_multiple_of": 1, "oversample": 1.5, "step": self.step}
        return {
            "state": {places[name]: state for name, state in states.items()},
            "param_groups": [
                {**SHARED, **more, "algorithm": algorithm, "params": [places[name] for name in names]}
                for names, algorithm in GROUPS
            ],
        }


def loaded(saved: dict[str, Any], weights: dict[str, Tensor]) -> tuple[torchdion.Dion, dict[str, Parameter]]:
    params = {name: Parameter(X.clone()) for name, X in weights.items()}
    groups = [{"params": [params[name] for name in names], "algorithm": algorithm} for names, algorithm in GROUPS]
    optimizer = torchdion.Dion(groups, orientation="left")  # of the square one, whose shape does not tell
    optimizer.load_state_dict(saved)
    return optimizer, params


def test_its_checkpoint_continues_exactly() -> None:
    package = Package()
    package.run(STEPS_BEFORE)
    optimizer, params = loaded(package.state_dict(), package.X)
    before = dict(package.X)
    for step in range(STEPS_BEFORE + 1, STEPS + 1):
        for name, param in params.items():
            param.grad = normal(name, 10 + step)
        optimizer.step()
    package.run(STEPS - STEPS_BEFORE)
    for name, param in params.items():
        assert error(param.detach(), package.X[name], before[name]) <= 1e-10, name
        assert optimizer.state[param]["step"] == STEPS
    for group in optimizer.param_groups:
        assert (group["betas"], group["rcqr_oversample"]) == ((0.9, 0.95), 1.5)
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("key", ["momentum", "Q"])
def test_of_another_model_it_is_refused_by_name(key: str) -> None:
    package = Package()
    saved = package.state_dict()
    saved["state"][0][key] = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=f"^torchdion.Dion: the state {key} of parameter 0 .* must have"):
        loaded(saved, package.X)
