"""Which steps of a residual move the weights in one pass on a GPU, by the kernels that they start there."""

import os
from typing import Any

import pytest
import torch

import torchdion
from torchdion import _C

KERNELS = ("SignUpdate", "AddProduct")
RECIPE: dict[str, Any] = {"nesterov": True, "error_feedback": False, "residual": "sign"}
OF_BF16 = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.bfloat16)
SHAPE = (96, 64)


def kernels_of(dtype: torch.dtype = torch.float32, shape: tuple[int, int] = SHAPE, **options: Any) -> set[str]:
    """Those of a step that multiply and move entries in one."""
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    param = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    param.grad = torch.ones_like(param)
    optimizer = torchdion.Dion([param], **{"rank_fraction": 0.25, "precision": "high", **options})
    names = {row["name"] for row in _C.launches_of(optimizer.step, "cpu")}
    return {name for name in names if name.startswith(KERNELS)}


@pytest.mark.parametrize("feeds_back", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[::-1]])
def test_fp32_weights_move_in_one_pass_by_tf32_products(
    shape: tuple[int, int], nesterov: bool, feeds_back: bool
) -> None:
    options: dict[str, Any] = {"nesterov": nesterov, "error_feedback": feeds_back, "shape": shape}
    assert kernels_of(residual="sign", **options) == {"SignUpdate<float>"}
    assert kernels_of(residual="scaled", **options) == {"AddProduct<float>"}


def test_bf16_operands_are_read_as_they_are() -> None:
    assert kernels_of(**RECIPE, precision="medium") == {"SignUpdate<BFloat16>"}
    assert "AddProduct<BFloat16>" in kernels_of(**{**RECIPE, "residual": "scaled"}, precision="medium")


def test_bf16_momenta_move_weights_in_one_pass_that_writes_none() -> None:
    options = {**RECIPE, "precision": "medium", "mixed_precision_config": OF_BF16}
    assert kernels_of(**options) == {"SignUpdate<BFloat16>"}
    assert "SignUpdate<BFloat16>" not in kernels_of(**{**options, "error_feedback": True})


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_q_of_16_bits_is_read_as_the_others_are(precision: str) -> None:
    config = torchdion.DionMixedPrecisionConfig(Q_dtype=torch.bfloat16)
    [kernel] = kernels_of(**RECIPE, precision=precision, mixed_precision_config=config)
    assert kernel.startswith("SignUpdate")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"precision": "highest"}, id="nothing is rounded"),
        pytest.param({"rank_fraction": 12 / 64}, id="a rank that is no multiple of 8"),
        pytest.param({"dtype": torch.bfloat16}, id="BF16 weights"),
        pytest.param({"dtype": torch.float64}, id="FP64 weights"),
        pytest.param({"residual": None}, id="no residual"),
    ],
)
def test_other_steps_make_the_residual_in_memory(options: dict[str, Any]) -> None:
    assert not {name for name in kernels_of(**{**RECIPE, **options}) if name.startswith("SignUpdate")}
