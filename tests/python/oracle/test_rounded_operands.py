"""Steps with rounded operands end near those without, in every form of Dion: on a GPU the forms take other roads."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import torchdion

SHAPES = ((24, 40), (24, 40), (48, 16), (20, 12))
BF16 = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.bfloat16, Q_dtype=torch.bfloat16)
FP16 = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float16, Q_dtype=torch.float32)
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rcqr": (torchdion.Dion, {"orthonormalize": "rcqr"}),
    "qr": (torchdion.Dion, {"orthonormalize": "qr"}),
    "svd": (torchdion.Dion, {"factorization": "svd"}),
    "cautious, nesterov": (torchdion.Dion, {"cautious_wd": True, "nesterov": True, "weight_decay": 0.1}),
    "BF16 states": (torchdion.Dion, {"mixed_precision_config": BF16}),
    "BF16 states, nesterov": (torchdion.Dion, {"mixed_precision_config": BF16, "nesterov": True}),
    "FP16 momenta, nesterov": (torchdion.Dion, {"mixed_precision_config": FP16, "nesterov": True}),
    "nonfinite zero": (torchdion.Dion, {"nonfinite": "zero", "nesterov": True}),
    "Double Dion": (torchdion.DoubleDion, {"replicate_rank_fraction": 0.25}),
    "Double Dion, delayed": (torchdion.DoubleDion, {"replicate_rank_fraction": 0.25, "delayed": True}),
}


def travelled(form: str, precision: str) -> list[Tensor]:
    """How far each parameter has come after six steps."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in SHAPES]
    params = [Parameter(start.clone()) for start in starts]
    cls, options = FORMS[form]
    optimizer = cls(params, lr=0.05, rank_fraction=0.5, precision=precision, **options)
    for _ in range(6):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    return [param.detach() - start for param, start in zip(params, starts, strict=True)]


@pytest.mark.parametrize(("precision", "allowed"), [("high", 0.03), ("medium", 0.15)])
@pytest.mark.parametrize("form", FORMS)
def test_a_few_steps_end_near_those_without_rounding(form: str, precision: str, allowed: float) -> None:
    for found, expected in zip(travelled(form, precision), travelled(form, "highest"), strict=True):
        norm = torch.linalg.vector_norm
        assert norm(found - expected) <= allowed * norm(expected)
