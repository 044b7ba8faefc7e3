"""Forms of Nesterov's momentum for Dion that torchdion does not have, in plain PyTorch, to compare them.

With B = M + G, the look-ahead L = μ B + G (m×n), P = orthonormalize(Lᵀ Q) (n×r), and Q m×r as in the paper's
Algorithm 4. The forms differ in R (m×r), by which M = B − (1 − μ) R Pᵀ keeps what was left out, and in the next Q; the
update is column_normalize(L P) Pᵀ in all:

    form_a  R = B P, the next Q is column_normalize(R)
    form_b  R = B P, the next Q is column_normalize(L P)
    form_c  R = L P, the next Q is column_normalize(R)

torchdion's own has L = B + μ G and R = L P. One matrix at a time, with a Householder QR.
"""

import math
from functools import partial
from typing import Any

import optimizers
import torch
from model import GPT
from torch import Tensor
from torch.optim import Optimizer

import torchdion


class NesterovDion(Optimizer):
    """Dion with one of the forms."""

    def __init__(self, params: list[torch.nn.Parameter], form: str, seed: int, **defaults: Any) -> None:
        super().__init__(params, defaults)
        self._form = form
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)

    def _update(self, X: Tensor, G: Tensor, group: dict[str, Any]) -> None:
        m, n = X.shape
        mu, lr = group["mu"], group["lr"]
        state = self.state[X]
        if not state:
            r = math.ceil(group["rank_fraction"] * min(m, n))
            state["momentum"] = torch.zeros_like(X)
            state["Q"] = torch.randn(m, r, generator=self._generator).to(X)
        M, Q = state["momentum"], state["Q"]
        B = M + G
        L = mu * B + G
        P, _ = torch.linalg.qr(L.mT @ Q)  # n×r
        look_ahead = L @ P  # m×r
        R = look_ahead if self._form == "c" else B @ P
        M.copy_(B - (1 - mu) * R @ P.mT)
        V = normalized(look_ahead)
        next_Q = normalized(R) if self._form == "a" else V
        # Columns without signal stay, as torchdion's do: the first gradients of most matrices are zero.
        Q.copy_(torch.where(next_Q.any(dim=0), next_Q, Q))
        X.mul_(1 - lr * group["weight_decay"]).sub_(lr * math.sqrt(m / n) * V @ P.mT)


def normalized(A: Tensor) -> Tensor:
    """With columns of length 1; those of zeros stay."""
    lengths = torch.linalg.vector_norm(A, dim=0)
    unit: Tensor = A / lengths.masked_fill(lengths == 0, 1)
    return unit


def _build(
    form: str,
    model: GPT,
    *,
    lr: float = 0.02,
    mu: float = 0.95,
    rank_fraction: float = 1.0,
    weight_decay: float = 0.01,
    scalar_algorithm: str = "adamw",
    scalar_lr: float = 0.05,
    seed: int = 0,
) -> list[Optimizer]:
    matrices = NesterovDion(
        optimizers.matrices(model), form, seed, lr=lr, mu=mu, rank_fraction=rank_fraction, weight_decay=weight_decay
    )
    groups = torchdion.param_groups(model, weight_decay=weight_decay, scalar_algorithm=scalar_algorithm)
    rest: Optimizer = torchdion.Lion([group for group in groups if group["kind"] != "matrix"], lr=scalar_lr)
    return [matrices, rest]


form_a = partial(_build, "a")
form_b = partial(_build, "b")
form_c = partial(_build, "c")
