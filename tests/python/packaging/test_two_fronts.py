"""Both languages have the same options with the same defaults, and refuse the same with the same sentences."""

import copy
from typing import Any

import pytest
import torch
from consumer import build_with_package, run
from refused import trained
from same import assert_same
from spoiled import SPOILED

import torchdion
from torchdion.optimizer import Optimizer
from torchdion.table import OPTIONS

CHOICES = {
    "algorithm", "scalar_algorithm", "orientation", "orthonormalize", "nonfinite", "precision", "newton_schulz",
    "adjust_lr", "factorization", "owners", "select", "right_factor", "residual",
}  # fmt: skip
DTYPES = {"momentum_dtype", "Q_dtype", "variance_dtype"}
"""Of these and of flags C++ has types whose values are allowed, or are called otherwise than in Python."""

REFUSED: dict[str, Any] = {
    "lr": -1.5,
    "lr_multiplier": -1.5,
    "mu": 1.5,
    "betas": (0.5, 1.5),
    "weight_decay": -1.5,
    "epsilon": -1.5,
    "rank_fraction": 1.5,
    "rank_multiple_of": -3,
    "chunk_size": -3,
    "top_k": -3,
    "replicate_mu": 1.5,
    "replicate_rank_fraction": 1.5,
    "ns_steps": -3,
    "muon_beta2": 1.5,
    "fraction": 1.5,
    "ef_decay": 1.5,
    "rcqr_oversample": 0.5,
    "batch_dims": -3,
    "blocks": -3,
}
"""As tests/consumer/refusals.cpp has them."""

NOT_IN_FILES = {
    "a sparse momentum",
    "an integer step beyond it",
    "a step on the meta device",
    "a momentum on the meta device",
    "a momentum that has left torch.func",
    "a freed Q",
    "a momentum that no one can read",
    "a fake Q",
    "a quantized momentum",
    "a freed state of no use",
    "a state of a tensor",
    "a state of None",
    "an lr of more digits than Python prints",
    "a dtype that no state has",
}
"""What no file holds that both languages read."""

OF_PYTHON_ALONE = {"names of other parameters", "a tensor as parameter", "a complex step"}
"""C++ knows no names, and shows a tensor by its kind."""


CLASSES = {made_by: made_by.__name__ for made_by in Optimizer.__subclasses__()}


def fitting() -> dict[str, Any]:
    return copy.deepcopy(trained()[1].state_dict())


def spoiled(name: str) -> dict[str, Any]:
    state_dict = fitting()
    SPOILED[name][0](state_dict)
    return state_dict


def sentence_of(act: Any) -> str:
    """Without the class that says it."""
    with pytest.raises((ValueError, TypeError)) as refusal:
        act()
    return str(refusal.value).removeprefix("torchdion.Dion: ")


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/consumer/refusals.cpp finds; its sentences without the class that says them."""
    folder = tmp_path_factory.mktemp("refusals")
    program = build_with_package(folder / "tree", "refusals")
    params, optimizer = trained()
    given = {
        "params": [param.detach() for param in params],
        "counts": [len(group["params"]) for group in optimizer.param_groups],
        "fitting": fitting(),
        "spoiled": [spoiled(name) for name in SPOILED if name not in NOT_IN_FILES],
    }
    torch.save(given, folder / "in.pt")
    done = run(program, folder / "in.pt", folder / "out.pt")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(folder / "out.pt", weights_only=True)
    names = [name for name in SPOILED if name not in NOT_IN_FILES]
    loading = [sentence.removeprefix("torchdion::Dion: ") for sentence in found["loading"]]
    options = {name: sentence.removeprefix("torchdion::Dion: ") for name, sentence in found["options"].items()}
    return found | {"loading": dict(zip(names, loading, strict=True)), "options": options}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("made_by", CLASSES, ids=CLASSES.values())
def test_fresh_optimizers_have_the_same_options_with_the_same_values(in_cpp: dict[str, Any], made_by: Any) -> None:
    assert set(in_cpp["fresh"]) == set(CLASSES.values())
    groups = [{"params": group["params"]} for group in trained()[1].param_groups]
    of_cpp = in_cpp["fresh"][CLASSES[made_by]]
    for own, other in zip(made_by(groups).state_dict()["param_groups"], of_cpp["param_groups"], strict=True):
        assert own.keys() - other.keys() <= {"differentiable", "param_names"}
        assert other.keys() >= OPTIONS.keys()  # C++ saves those of other algorithms too
        shared = own.keys() & other.keys()
        assert_same({key: own[key] for key in shared}, {key: other[key] for key in shared})


@pytest.mark.timeout(600)
def test_options_are_refused_in_the_same_sentences(in_cpp: dict[str, Any]) -> None:
    typed = {name for name, declared in OPTIONS.items() if isinstance(declared["default"], bool)} | {"seed", "nesterov"}
    assert OPTIONS.keys() == REFUSED.keys() | CHOICES | DTYPES | typed
    assert in_cpp["options"].keys() == REFUSED.keys()
    for name, value in REFUSED.items():
        group = {"params": trained()[0], name: value}
        in_python = sentence_of(lambda group=group: torchdion.Dion([group]))
        written = {  # in Python, and in C++, which takes tensors as options of their own
            " (parameter group 0)": "",
            f" (a Tensor {name} must be 1-element)": "",
            "None": "none",
            "(0.5, 1.5)": "{0.5, 1.5}",
        }
        for of_python, of_cpp in written.items():
            in_python = in_python.replace(of_python, of_cpp)
        assert in_python == in_cpp["options"][name]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in SPOILED if name not in NOT_IN_FILES | OF_PYTHON_ALONE])
def test_spoiled_state_dicts_are_refused_in_the_same_sentences(in_cpp: dict[str, Any], name: str) -> None:
    optimizer = trained()[1]
    assert in_cpp["loading"][name] == sentence_of(lambda: optimizer.load_state_dict(spoiled(name)))
