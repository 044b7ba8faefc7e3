"""The scripts under release/: how a wheel is named, and which versions of torch are tried."""

import subprocess
import sys

import make_wheel
import pytest
import try_versions
from try_versions import Version


@pytest.mark.parametrize(
    ("build", "local"),
    [
        ({"torch": "2.15.0+cu132", "cuda_toolkit": "13.2.51", "torch_cuda": "13.2"}, "torch2.15cu132"),
        ({"torch": "2.11.0", "cuda_toolkit": "13.0.88", "torch_cuda": "12.8"}, "torch2.11cu128"),
        ({"torch": "2.10.0+cpu", "cuda_toolkit": "none", "torch_cuda": "none"}, "torch2.10cpu"),
        ({"torch": "2.15.0", "cuda_toolkit": "none", "torch_cuda": "13.2"}, "torch2.15cpu"),
    ],
)
def test_a_wheel_is_named_after_its_torch_and_the_cuda_of_its_kernels(build: dict[str, str], local: str) -> None:
    assert make_wheel.local_version(build) == local


def test_a_version_is_one_of_torch_and_perhaps_one_of_python() -> None:
    assert try_versions.read_version("2.11/3.13") == Version("2.11", "3.13")
    assert try_versions.read_version("2.10") == Version("2.10", f"3.{sys.version_info.minor}")


@pytest.mark.parametrize("word", ["2.9", "2.15.0", "2", "2.11/4.0", "torch"])
def test_another_version_is_refused_in_one_sentence(word: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["try_versions.py", word])
    with pytest.raises(SystemExit) as exit:
        try_versions.main()
    assert exit.value.code == 2
    sentence = f"error: VERSION must be 2.10 or newer, such as 2.11 or 2.11/3.13, got '{word}'"
    assert capsys.readouterr().err.splitlines()[-1].endswith(sentence)


def test_every_minor_version_from_the_oldest_on_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1, 2.14.0, 2.10.0, 2.9.1, 1.13.1\n"
    listing = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: listing)
    assert try_versions.offered() == ["2.10", "2.14", "2.15"]
