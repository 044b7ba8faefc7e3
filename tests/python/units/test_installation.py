"""Which torch a build runs with: any patch release of its own minor version, with CUDA libraries of its major one."""

import pytest
import torch

from torchdion.installation import check_torch, interface


def record(version: str, toolkit: str = "none", cuda: str = "13.2") -> dict[str, str]:
    return {"version": "0.1.0", "torch": version, "cuda_toolkit": toolkit, "torch_cuda": cuda}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.15.0", "2.15"),
        ("2.15.3+cu132", "2.15"),
        ("2.9.1+cpu", "2.9"),
        ("2.16.0.dev20261101+cu132", "2.16.0.dev20261101+cu132"),
        ("2.15.0a0+git1234", "2.15.0a0+git1234"),
        ("2.15.0rc1", "2.15.0rc1"),
    ],
)
def test_releases_of_a_minor_version_share_an_interface_and_development_builds_have_their_own(version, expected):
    assert interface(version) == expected


@pytest.mark.parametrize("built", ["2.11.0", "2.11.1+cpu", "2.11.7+cu126"])
def test_a_build_runs_with_every_patch_release_of_its_torch(monkeypatch, built):
    monkeypatch.setattr(torch, "__version__", "2.11.4+cu130")
    check_torch(record(built))


@pytest.mark.parametrize("built", ["2.10.4", "2.12.4", "1.11.4", "2.1.1", "2.11.4.dev20261101"])
def test_another_torch_is_refused_in_one_sentence_that_names_both(monkeypatch, built):
    monkeypatch.setattr(torch, "__version__", "2.11.4+cu130")
    with pytest.raises(ImportError) as refusal:
        check_torch(record(built))
    assert f"was built for torch {interface(built)}, but this is torch 2.11.4+cu130: reinstall" in str(refusal.value)


@pytest.mark.parametrize(("cuda", "name"), [("12.8", "12.8"), (None, "none")])
def test_kernels_are_refused_by_a_torch_for_another_cuda_and_the_cpu_runs_with_any(monkeypatch, cuda, name):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    check_torch(record(torch.__version__))
    with pytest.raises(ImportError, match=rf"built for CUDA 13, but this torch .* is for CUDA {name}: reinstall"):
        check_torch(record(torch.__version__, toolkit="13.0.88"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    check_torch(record(torch.__version__, toolkit="13.0.88"))
