"""The dion package (microsoft/dion): its checkpoints, made here by its rules, continue exactly; its arguments fit."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import DionState, adamw, dion, dion2, lion, muon, normuon
from ranks import run_ranks
from runs import error
from torch import Tensor
from torch.nn import Parameter

import torchdion
from torchdion.dion_package import _ALGORITHMS_OF, _ARGUMENTS

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


# ---- arguments ----

ARGUMENTS: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "Polar Express": (torchdion.NorMuon, {"use_polar_express": True}, {"newton_schulz": "polar_express"}),
    "on the Gram matrix": (
        torchdion.Dion2, {"use_polar_express": True, "use_gram_newton_schulz": True}, {"newton_schulz": "gram"},
    ),
    "kernels": (
        torchdion.Dion2, {"use_triton": True, "triton_post_ortho": True, "verbose": True, "newton_schulz_func": None},
        {},
    ),
    "choice": (torchdion.Dion3, {"selection_scope": "global", "mu": 0.5}, {"ef_decay": 0.5}),
    "both of the same polynomials": (
        torchdion.Muon, {"use_polar_express": True, "newton_schulz": "gram"}, {"newton_schulz": "gram"},
    ),
    "neither Gram matrix nor default": (
        torchdion.Muon, {"use_gram_newton_schulz": False, "newton_schulz": "jordan"}, {"newton_schulz": "jordan"},
    ),
    "flat": (torchdion.Muon, {"flatten": True}, {"batch_dims": 0}),
    "not flat": (torchdion.Muon, {"flatten": False}, {"batch_dims": 0}),
    "Dion": (
        torchdion.Dion,
        {"power_iters": 1, "qr_method": "cqr", "cqr_warmup_steps": 150},
        {"orthonormalize": "cholesky_qr"},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("made_by", "given", "means"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_its_arguments_are_accepted(made_by: Any, given: dict[str, Any], means: dict[str, Any]) -> None:
    optimizer = made_by([Parameter(torch.ones(6, 4))], **given)
    [group] = optimizer.param_groups
    assert {name: group[name] for name in means} == means
    assert group.keys() == torchdion.Muon([Parameter(torch.ones(6, 4))]).param_groups[0].keys()


REFUSED: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "iteration": (
        torchdion.Muon,
        {"newton_schulz_func": torch.sign},
        "newton_schulz_func must be None, got .*: newton",
    ),
    "choice": (
        torchdion.Dion2,
        {"selection_scope": "local"},
        "selection_scope must be 'global', got 'local': slices are",
    ),
    "other polynomials": (
        torchdion.Muon,
        {"use_polar_express": False},
        "use_polar_express must be True, got False: the five",
    ),
    "flag": (torchdion.Muon, {"use_gram_newton_schulz": 1}, "use_gram_newton_schulz must be True or False, got 1"),
    "two iterations": (
        torchdion.Muon,
        {"use_gram_newton_schulz": True, "newton_schulz": "jordan"},
        "use_gram_newton_schulz=True means newton_schulz='gram', got newton_schulz='jordan' too",
    ),
    "other polynomials beside": (
        torchdion.Muon,
        {"use_polar_express": True, "newton_schulz": "jordan"},
        "use_polar_express=True means newton_schulz='polar_express', got newton_schulz='jordan' too",
    ),
    "no Gram matrix": (
        torchdion.Muon,
        {"use_gram_newton_schulz": False, "newton_schulz": "gram"},
        "use_gram_newton_schulz=False means newton_schulz='polar_express', got newton_schulz='gram' too",
    ),
    "two decays": (torchdion.Dion3, {"mu": 0.5, "ef_decay": 0.8}, "mu means ef_decay here, got 0.5 and 0.8"),
    "method": (torchdion.Dion, {"qr_method": "svd"}, "qr_method must be 'rcqr' or 'cqr' or 'qr', got 'svd'"),
    "mesh": (torchdion.Muon, {"distributed_mesh": 3}, "distributed_mesh must be None, a DeviceMesh or .*, got int"),
    "tensor": (torchdion.Dion, {"power_iters": torch.ones(2)}, "power_iters must be 1, got"),
    "decay": (torchdion.Dion3, {"mu": 1.5}, r"ef_decay must be in \[0, 1\), got 1.5"),
    "iterations": (torchdion.Dion, {"power_iters": 2}, "power_iters must be 1, got 2: there is one power iteration"),
    "flatten": (torchdion.Muon, {"flatten": "yes"}, "flatten must be True, or False of groups .*, got 'yes'"),
}


@pytest.mark.parametrize(("made_by", "given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_equal_is_refused_in_one_sentence(made_by: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{made_by.title}: {words}"):
        made_by([Parameter(torch.ones(6, 4))], **given)


@pytest.mark.parametrize(
    ("made_by", "given"), [(torchdion.Lion, {"flatten": True}), (torchdion.Muon, {"selection_scope": "global"}),
                           (torchdion.Dion, {"distributed_mesh": None}), (torchdion.Dion2, {"mu": 0.9})]
)  # fmt: skip
def test_arguments_of_its_other_classes_are_unknown(made_by: Any, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(given))}'"):
        made_by([Parameter(torch.ones(6, 4))], **given)


@pytest.mark.filterwarnings("error")
def test_its_groups_are_ours_with_other_names() -> None:
    def matrix(*shape: int) -> list[Parameter]:
        return [Parameter(torch.ones(shape))]

    optimizer = torchdion.Muon(
        [
            {"params": matrix(6, 4), "num_heads": 3},
            {"params": matrix(8, 4), "split_sizes": [4, 4]},
            {"params": matrix(6, 4), "algorithm": "nordion2", "mu": 0.5},
            {"params": matrix(8, 4), "num_heads": 1, "split_sizes": [4, 4]},
            {"params": matrix(2, 6, 4), "flatten": False},
            {"params": matrix(2, 6, 4), "flatten": True, "beta1": 0.8},
        ]
    )
    heads, sizes, third, both, stack, convolution = optimizer.param_groups
    assert (heads["blocks"], sizes["blocks"], both["blocks"]) == (3, 2, 2)
    assert (third["algorithm"], third["ef_decay"], third["mu"]) == ("dion3", 0.5, 0.95)
    assert (stack["batch_dims"], convolution["batch_dims"], convolution["betas"][0]) == (1, 0, 0.8)
    assert not {"num_heads", "split_sizes", "flatten"} & {key for group in optimizer.param_groups for key in group}


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (
            {"split_sizes": [2, 4]},
            r"split_sizes must be integers ≥ 1 that are alike, got \[2, 4\] \(parameter group 0\)",
        ),
        (
            {"split_sizes": [2, 2]},
            r"split_sizes must sum to the rows of each matrix, got \[2, 2\] for the shape \(6, 4\)",
        ),
        ({"split_sizes": [2.5, 2.5]}, r"split_sizes must be integers ≥ 1 that are alike, got \[2.5, 2.5\]"),
        ({"algorithm": "dion3", "mu": 0.5, "ef_decay": 0.8}, r"mu=0.5 means ef_decay=0.5, got ef_decay=0.8 too"),
        (
            {"algorithm": "dion2", "selection_scope": "local"},
            r"selection_scope must be 'global', got 'local' \(param.*\):",
        ),
        ({"num_heads": 0}, r"num_heads must be an integer ≥ 1, got 0 \(parameter group 0\)"),
        ({"num_heads": 2, "blocks": 3}, r"num_heads=2 means blocks=2, got blocks=3 too \(parameter group 0\)"),
        ({"flatten": True, "batch_dims": 1}, r"flatten=True means batch_dims=0, got batch_dims=1 too"),
    ],
)
def test_groups_that_contradict_themselves_are_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^torchdion.Muon: {words}"):
        torchdion.Muon([{"params": [Parameter(torch.ones(6, 4))], **group}])


def test_stacks_and_matrices_of_one_group_are_not_told_apart() -> None:
    with pytest.raises(ValueError, match=r"got matrices of 2 and 3 dimensions \(parameter group 0\); batch_dims"):
        torchdion.Muon([Parameter(torch.ones(6, 4)), Parameter(torch.ones(2, 6, 4))], flatten=False)


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


@pytest.mark.parametrize(("made_by", "keyword"), [(torchdion.Dion2, "distributed"), (torchdion.Dion, "replicate")])
def test_a_mesh_in_the_place_of_lr_is_told_from_it(made_by: Any, keyword: str) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh, params = torch.distributed.group.WORLD, [Parameter(torch.ones(6, 4))]
        with pytest.raises(ValueError, match=f"lr must be a number, got ProcessGroup; .* keyword {keyword}_mesh here"):
            made_by(params, mesh)
        assert made_by(params, **{f"{keyword}_mesh": mesh})._layouts.meshes.replicas.group == mesh
    finally:
        torch.distributed.destroy_process_group()


def test_the_table_of_arguments_is_whole() -> None:
    """docs/migration.md has each of them, with the classes that take it."""
    page = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
    rows = [line.split(" | ") for line in page.partition("\n## Checkpoints")[0].splitlines() if line.startswith("| `")]
    classes = {title: of for of, title in (("dion", "Dion"), ("muon", "Muon"), ("normuon", "NorMuon"),
                                           ("dion2", "Dion2"), ("dion3", "Dion3"))}  # fmt: skip
    of_page = {
        name: {classes[title] for title in whose.partition("; ")[0].split(", ") if title in classes}
        for names, whose, _ in rows
        for name in re.findall("`([^`]+)`", names)
    }
    for name in _ARGUMENTS:
        assert of_page[name] == set(_ALGORITHMS_OF[name]), name


def meshes_of(rank: int, world_size: int) -> list[tuple[bool, bool, str]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("ranks",))
    found = []
    for given, param in (
        (mesh.get_group(), Parameter(torch.ones(6, 4))),
        (mesh, Parameter(torch.ones(6, 4))),
        (mesh, Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]))),
    ):
        optimizer = torchdion.Dion2([param], distributed_mesh=given)
        param.grad = torch.ones_like(param)
        optimizer.step()
        meshes = optimizer._layouts.meshes
        found.append((meshes.replicas is not None, meshes.averages, ",".join(name for name, _ in meshes.shards)))
    for made_by in (torchdion.Dion2, torchdion.DistMuon):
        with pytest.raises(ValueError, match="distributed_mesh means replicate_mesh here, got both"):
            made_by([Parameter(torch.ones(6, 4))], distributed_mesh=mesh, replicate_mesh=mesh)
    optimizer = torchdion.DistMuon([Parameter(torch.ones(6, 4))], distributed_mesh=mesh)
    assert optimizer.defaults["owners"] == "shard"
    return found


def test_its_mesh_is_that_of_shards_or_of_copies_that_share_the_work() -> None:
    for found in run_ranks(meshes_of, 2):
        assert found == [(True, False, ""), (True, False, ""), (False, True, "outer_shard_mesh")]
