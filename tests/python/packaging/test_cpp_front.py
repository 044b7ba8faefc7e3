"""What C++ users get: the CMake package and its headers, and one state for two languages."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from consumer import build, build_with_package, configure, prefix, run
from same import assert_same
from torch import Tensor, nn

import torchdion
from torchdion.installation import interface
from torchdion.table import OPTIONS


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_with_package(tmp_path_factory.mktemp("consumer"), "consumer")


def model() -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
    """Parameters of every role, in groups with options of their own."""
    shapes = [(12, 20), (20, 12), (9, 9), (7,), (3, 8, 10), (24, 6), (6, 4, 3, 3), (5,), (8, 5), (6, 10)]
    siblings = [(9, 14), (14, 9), (6, 4, 5), (8, 7)]
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes + siblings]
    params[8] = nn.Parameter(torch.randn(8, 5, dtype=torch.float64))
    params[9] = nn.Parameter(torch.randn(6, 10).bfloat16())
    groups = [
        {"params": params[:4]},
        {"params": params[4:5], "batch_dims": 1, "orientation": "left", "rank_fraction": 0.3},
        {"params": params[5:6], "blocks": 3, "mu": 0.9, "lr": 0.003},
        {"params": params[6:7], "fan_in_first": True, "batch_dims": 0, "maximize": True},
        {"params": params[7:8], "algorithm": "adamw", "lr_multiplier": 0.5, "weight_decay": 0.1},
        {"params": params[8:10], "orthonormalize": "rcqr", "seed": 7, "rank_multiple_of": 2},
        {"params": params[10:11], "algorithm": "normuon", "muon_beta2": 0.8, "nesterov": True},
        {"params": params[11:12], "algorithm": "dion2", "fraction": 0.4, "ef_decay": 0.7, "select": "columns"},
        {"params": params[12:13], "algorithm": "dion3", "batch_dims": 1, "newton_schulz": "gram"},
        {"params": params[13:], "nesterov": True},
    ]
    return params, groups


def gradients(params: list[nn.Parameter], steps: int) -> list[list[Tensor]]:
    return [[torch.randn_like(param) for param in params] for _ in range(steps)]


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: list[list[Tensor]]) -> None:
    for step in steps:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient
        optimizer.step()


def save_for_cpp(path: Path, params: list[Any], state: dict[str, Any], steps: Any, **how: Any) -> None:
    """how: the name of the optimizer, and whether it is capturable."""
    whole = {"params": [param.detach() for param in params], "state_dict": state, "gradients": steps}
    torch.save(whole | {"optimizer": "Dion", "capturable": False} | how, path)


def continued_in_cpp(
    consumer: Path, folder: Path, params: list[Any], state: dict[str, Any], steps: Any, **how: Any
) -> Any:
    save_for_cpp(folder / "in.pt", params, state, steps, **how)
    done = run(consumer, folder / "in.pt", folder / "out.pt")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"steps: {len(steps)}\n"
    return torch.load(folder / "out.pt", weights_only=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("begun", "capturable"),
    [(0, False), (3, False), (3, True)],
    ids=["from the start", "after three steps", "capturable"],
)
def test_python_begins_cpp_continues_and_python_ends_on_one_trajectory(consumer, tmp_path, begun, capturable):
    params, groups = model()
    optimizer = torchdion.Dion(groups, lr=0.02, rank_fraction=0.5, capturable=capturable)
    steps = gradients(params, 9)
    train(optimizer, params, steps[:begun])
    out = continued_in_cpp(consumer, tmp_path, params, optimizer.state_dict(), steps[begun:6], capturable=capturable)

    train(optimizer, params, steps[begun:6])
    assert_same(out["params"], [param.detach() for param in params])
    assert_same(out["state_dict"]["state"], optimizer.state_dict()["state"])

    # Back into Python, from both of the files that C++ can write.
    archive = torch.jit.load(tmp_path / "out.pt.archive")
    assert_same(archive.state, out["state_dict"]["state"])
    for state_dict in (out["state_dict"], {"state": archive.state, "param_groups": archive.param_groups}):
        copies = [nn.Parameter(param.clone()) for param in out["params"]]
        sizes = [len(group["params"]) for group in groups]
        pieces = torch.arange(len(copies)).split(sizes)
        resumed = torchdion.Dion([{"params": [copies[i] for i in piece]} for piece in pieces], capturable=capturable)
        resumed.load_state_dict(state_dict)
        train(resumed, copies, steps[6:])
        if state_dict is out["state_dict"]:
            train(optimizer, params, steps[6:])
        assert_same([copy.detach() for copy in copies], [param.detach() for param in params])
        assert_same(resumed.state_dict()["state"], optimizer.state_dict()["state"])
        for mine, its in zip(resumed.param_groups, optimizer.param_groups, strict=True):
            assert_same(
                {name: mine[name] for name in optimizer.defaults}, {name: its[name] for name in optimizer.defaults}
            )


@pytest.mark.timeout(600)
def test_torchs_muon_begins_and_both_languages_continue_on_one_trajectory(consumer, tmp_path):
    params = [nn.Parameter(torch.randn(shape)) for shape in ((12, 20), (20, 12), (9, 9))]
    before = torch.optim.Muon(params, lr=0.05, momentum=0.8, adjust_lr_fn="match_rms_adamw")
    steps = gradients(params, 5)
    train(before, params, steps[:2])
    out = continued_in_cpp(consumer, tmp_path, params, before.state_dict(), steps[2:], optimizer="Muon")

    optimizer = torchdion.Muon(params)
    optimizer.load_state_dict(before.state_dict())
    train(optimizer, params, steps[2:])
    assert_same(out["params"], [param.detach() for param in params])
    assert_same(out["state_dict"]["state"], optimizer.state_dict()["state"])
    [group] = out["state_dict"]["param_groups"]
    own = optimizer.param_groups[0]
    shared = OPTIONS.keys() & own.keys()
    assert_same({name: group[name] for name in shared}, {name: own[name] for name in shared})


@pytest.mark.timeout(600)
def test_a_state_dict_that_does_not_fit_is_refused_by_cpp_in_one_sentence(consumer, tmp_path):
    params = [nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(9, 9))]
    optimizer = torchdion.Dion(params)
    train(optimizer, params, gradients(params, 1))
    state = optimizer.state_dict()
    state["state"][1]["Q"] = torch.ones(4, 4)
    save_for_cpp(tmp_path / "in.pt", params, state, [])
    done = run(consumer, tmp_path / "in.pt", tmp_path / "out.pt")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "must have the shape [9, r] with 1 ≤ r ≤ 9, got [4, 4]" in done.stderr
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_cmake_package_works_after_find_package_torch(tmp_path):
    environment_prefix = prefix(torchdion.cmake_prefix_path, torch.utils.cmake_prefix_path)
    if shutil.which("nvcc") is None:  # torch's own package stops there; ours says nothing about it
        done = configure(tmp_path, environment_prefix, "-DFINDS_TORCH=ON")
        assert "torchdion" not in done.stderr
        return
    consumer = build(tmp_path / "tree", "consumer", environment_prefix, "-DFINDS_TORCH=ON")
    params, groups = model()
    optimizer = torchdion.Dion(groups)
    steps = gradients(params, 2)
    out = continued_in_cpp(consumer, tmp_path, params, optimizer.state_dict(), steps)
    train(optimizer, params, steps)
    assert_same(out["params"], [param.detach() for param in params])


def configure_with_torch(version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Configures with a torch that calls itself this version and is the installed one in all else."""
    (folder / "torch").mkdir()
    for path in Path(torch.__file__).parent.iterdir():
        if path.name in ("include", "lib"):
            (folder / "torch" / path.name).symlink_to(path)
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return configure(folder / "tree", prefix(torchdion.cmake_prefix_path), f"-DTORCH_WHEEL_DIR={folder / 'torch'}")


RELEASE = interface(torch.__version__)


@pytest.mark.parametrize("version", ["1.0.0", f"{RELEASE}0.0", f"{RELEASE}.0.dev20261101"])
def test_cmake_package_refuses_another_torch_in_one_sentence(tmp_path, version):
    done = configure_with_torch(version, tmp_path)
    assert done.returncode != 0
    words = " ".join(done.stderr.split())
    assert f"was built for torch {RELEASE}, but the torch at {tmp_path / 'torch'} is {version}: install" in words


def test_cmake_package_takes_another_patch_release(tmp_path):
    done = configure_with_torch(f"{RELEASE}.99+cpu", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
@pytest.mark.long
def test_every_public_header_compiles_by_itself_and_sees_no_private_one(tmp_path):
    include = Path(torchdion.get_include())
    assert {path.name for path in (include / "torchdion").iterdir()} >= {
        "torchdion.h",
        "optim.h",
        "optimizer.h",
        "checkpoint.h",
    }
    build_with_package(tmp_path, "headers")
    for header in (include / "torchdion").iterdir():
        for line in header.read_text().splitlines():
            assert not line.startswith('#include "'), f"{header.name}: {line}"


def test_get_include_holds_the_headers():
    assert os.path.exists(os.path.join(torchdion.get_include(), "torchdion", "torchdion.h"))
