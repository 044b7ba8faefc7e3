"""The dion package (microsoft/dion): its checkpoints, made here by its rules, continue exactly."""

from typing import Any

import pytest
import torch
from oracle import DionState, adamw, dion, dion2, lion, muon, normuon
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


# ---- Muon, NorMuon, Dion2 and Dion3 ----

MATRICES = {"tall": (14, 6), "wide": (6, 14), "stack": (3, 8, 5)}
ALGORITHMS = {
    "muon": {"mu": 0.9, "nesterov": False},
    "normuon": {"mu": 0.9, "muon_beta2": 0.8, "nesterov": True},
    "dion2": {"ef_decay": 0.9, "fraction": 0.3, "selection_scope": "local"},
    "nordion2": {"mu": 0.9, "muon_beta2": 0.8, "fraction": 0.3, "selection_scope": "global"},
}
"""What the package saves of each beside the options that all have, by the names that it gives algorithms."""


class Sibling:
    """One optimizer of the package without its mesh: each matrix of a stack by itself (flatten=False)."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm, self.step = algorithm, 0
        self.X = {name: normal_of(name, 0) for name in MATRICES}
        self.M = {name: torch.zeros_like(X) for name, X in self.X.items()}
        self.v = {name: torch.zeros_like(X[..., :1]) for name, X in self.X.items()}

    def run(self, count: int) -> None:
        options = {"newton_schulz": "polar_express", "ns_steps": 5, "adjust_lr": "rms_norm", "weight_decay": 0.1,
                   **ALGORITHMS[self.algorithm]}  # fmt: skip
        options.setdefault("ef_decay", 0.9)
        for _ in range(count):
            self.step += 1
            for name in MATRICES:
                stacks = (self.X[name], self.M[name], self.v[name], normal_of(name, 10 + self.step))
                for X, M, v, G in zip(*(stack.view(-1, *stack.shape[-2:]) for stack in stacks), strict=True):
                    self._update(X, M, v, G, options)

    def _update(self, X: Tensor, M: Tensor, v: Tensor, G: Tensor, options: dict[str, Any]) -> None:
        if self.algorithm == "muon":
            new = muon(X, M, G, 0.02, options)
        elif self.algorithm == "normuon":
            new = normuon(X, M, v, G, 0.02, options)
        else:
            new = dion2(X, M, G, 0.02, options, v if self.algorithm == "nordion2" else None)
        for target, value in zip((X, M, v), new, strict=False):
            if value is not None:
                target.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        states = {place: {"momentum": self.M[name]} for place, name in enumerate(MATRICES)}
        if "muon_beta2" in ALGORITHMS[self.algorithm]:
            for place, name in enumerate(MATRICES):
                states[place]["variance_neuron"] = self.v[name]
        more = {"lr": 0.02, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "epsilon": 1e-8, "flatten": False,
                "adjust_lr": "rms_norm", "algorithm": self.algorithm, "step": self.step}  # fmt: skip
        groups = [{**more, **ALGORITHMS[self.algorithm], "params": [0, 1]},
                  {**more, **ALGORITHMS[self.algorithm], "params": [2]}]  # fmt: skip
        return {"state": states, "param_groups": groups}


def normal_of(name: str, salt: int) -> Tensor:
    generator = torch.Generator().manual_seed(list(MATRICES).index(name) + 10 * salt)
    return torch.randn(MATRICES[name], generator=generator, dtype=torch.float64)


CLASSES = {
    "muon": torchdion.Muon, "normuon": torchdion.NorMuon, "dion2": torchdion.Dion2, "nordion2": torchdion.Dion3
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_checkpoint_of_its_other_optimizers_continues_exactly(algorithm: str) -> None:
    package = Sibling(algorithm)
    package.run(STEPS_BEFORE)
    before = {name: X.clone() for name, X in package.X.items()}
    params = {name: Parameter(X.clone()) for name, X in before.items()}
    of_groups = [[params["tall"], params["wide"]], [params["stack"]]]
    optimizer = CLASSES[algorithm]([{"params": members} for members in of_groups], flatten=False)
    optimizer.load_state_dict(package.state_dict())
    for step in range(STEPS_BEFORE + 1, STEPS + 1):
        for name, param in params.items():
            param.grad = normal_of(name, 10 + step)
        optimizer.step()
    package.run(STEPS - STEPS_BEFORE)
    for name, param in params.items():
        assert error(param.detach(), package.X[name], before[name]) <= 1e-10, name
        assert optimizer.state[param]["step"] == STEPS
    assert [group["batch_dims"] for group in optimizer.param_groups] == [0, 1]
    optimizer.load_state_dict(optimizer.state_dict())


def of_one_matrix(shape: tuple[int, ...], **options: Any) -> dict[str, Any]:
    """What the package saves of a NorMuon."""
    X = torch.ones(shape)
    state = {"momentum": X, "variance_neuron": X[..., :1]}
    more = {"lr": 0.02, "mu": 0.9, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "step": 3, "flatten": False}
    group = {**more, "algorithm": "normuon", "adjust_lr": "rms_norm", **options, "params": [0]}
    return {"state": {0: state}, "param_groups": [group]}


@pytest.mark.parametrize(
    ("shape", "saved", "words"),
    [
        ((6, 4), {"split_sizes": [3, 3]}, "split_sizes of NorMuon must not be beside adjust_lr, which scales"),
        (
            (6, 4, 3, 3),
            {"flatten": True},
            "flatten must be False where normuon has updated parameters of more than two",
        ),
        ((6, 4, 3), {"algorithm": "nordion2", "flatten": True}, "flatten must be False where dion3 has updated"),
    ],
)
def test_states_that_do_not_correspond_are_refused(shape: tuple[int, ...], saved: dict[str, Any], words: str) -> None:
    optimizer = torchdion.NorMuon([{"params": [Parameter(torch.ones(shape))], "batch_dims": 0}])
    with pytest.raises(ValueError, match=f"^torchdion.NorMuon: {words}"):
        optimizer.load_state_dict(of_one_matrix(shape, **saved))
    assert not optimizer.state


def test_what_a_saved_group_says_of_stacks_holds_unless_the_own_group_says_something_else() -> None:
    def optimizer(**options: Any) -> torchdion.NorMuon:
        return torchdion.NorMuon([{"params": [Parameter(torch.ones(3, 6, 4))], **options}])

    loaded = optimizer(batch_dims=None)
    loaded.load_state_dict(of_one_matrix((3, 6, 4)))
    [group] = loaded.param_groups
    assert group["batch_dims"] == 1
    assert not {"flatten", "step", "selection_scope"} & group.keys()
    assert torchdion.NorMuon(loaded.param_groups).param_groups[0]["batch_dims"] == 1
    with pytest.raises(ValueError, match="flatten=False means batch_dims=1, got batch_dims=0 too"):
        optimizer(batch_dims=0).load_state_dict(of_one_matrix((3, 6, 4)))


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
def test_of_saved_groups_nothing_of_theirs_is_kept(algorithm: str) -> None:
    X = Parameter(torch.ones(3, 6, 4))
    optimizer = torchdion.Muon([{"params": [X], "algorithm": algorithm}])
    more = {"lr": 0.02, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "step": 3, "flatten": False}
    states = {"momentum": X.detach()} | ({"variance": X.detach()} if algorithm == "adamw" else {})
    saved = {"state": {0: states}, "param_groups": [{**more, "algorithm": algorithm, "params": [0]}]}
    optimizer.load_state_dict(saved)
    assert not {"flatten", "step"} & optimizer.param_groups[0].keys()
    assert optimizer.state[X]["step"] == 3
