"""benchmarks/gpu/cublas.py: the operands that cuBLAS is given describe the product that was asked for."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from cublas import FUNCTIONS, WAYS, Cublas, loaded_cublas
from host_cublas import HostCublas


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("turned", ["", "A", "B", "C", "ABC"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_computes_the_product_of_a_stack(way: str, turned: str, dtype: torch.dtype) -> None:
    def stack(name: str, rows: int, cols: int) -> torch.Tensor:
        shape = (3, cols, rows) if name in turned else (3, rows, cols)
        made = torch.randn(shape, dtype=dtype)
        return made.mT if name in turned else made

    A, B, C = stack("A", 5, 7), stack("B", 7, 4), stack("C", 5, 4)
    expected = 0.5 * A @ B - 2 * C
    Cublas(HostCublas(), lambda: 0).multiply(way, C, A, B, 0.5, -2.0, "FP64" if dtype == torch.float64 else "TF32")()
    assert (C - expected).abs().max() < 32 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("way", WAYS)
def test_a_status_is_an_error(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FUNCTIONS:
        monkeypatch.setattr(HostCublas, name, lambda self, *_: 13)
    run = Cublas(HostCublas(), lambda: 0).multiply(way, *(torch.eye(2).expand(3, 2, 2).clone(),) * 3, 1, 0, "TF32")
    with pytest.raises(RuntimeError, match="returned status 13"):
        run()


def test_the_functions_are_those_of_the_library_that_torch_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    class Library:
        def __getattr__(self, name: str) -> Any:
            return found.setdefault(name, type("Function", (), {})())

    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library())
    monkeypatch.setattr(
        Path, "read_text", lambda *_, **__: "7f-8f r-xp 0 0:1 9   /site/nvidia/cu13/lib/libcublas.so.13\n"
    )
    loaded_cublas()
    assert {name: len(function.argtypes) for name, function in found.items()} == {
        "cublasGemmEx": 19,
        "cublasGemmBatchedEx": 20,
        "cublasGemmStridedBatchedEx": 23,
    }
