"""The independent oracles: each algorithm as its paper states it, in FP64, one matrix at a time."""

from typing import NamedTuple

import torch
from torch import Tensor


class DionState(NamedTuple):
    X: Tensor  # m×n
    M: Tensor  # m×n
    Q: Tensor  # n×r ("left") or m×r ("right")
    condition: float = 1.0  # κ₂(BQ) of the last step: how far rounding is magnified


def dion(state: DionState, G: Tensor, lr: float, mu: float, weight_decay: float, orientation: str) -> DionState:
    """Algorithm 1 of arXiv 2504.05295 with a Householder QR; "right" runs it on Xᵀ (Algorithm 4)."""
    X, M, Q = (tensor.double() for tensor in state[:3])
    m, n = X.shape
    B = M + G.double()
    body = B if orientation == "left" else B.mT
    P, _ = torch.linalg.qr(body @ Q)
    R = body.mT @ P
    approximation = P @ R.mT
    M = B - (1 - mu) * (approximation if orientation == "left" else approximation.mT)
    condition = torch.linalg.cond(body @ Q).item()
    Q = R / torch.linalg.vector_norm(R, dim=0)
    update = P @ Q.mT
    X = X - lr * weight_decay * X
    X = X - lr * (m / n) ** 0.5 * (update if orientation == "left" else update.mT)
    return DionState(X, M, Q, condition)


def lion(
    X: Tensor, M: Tensor, G: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float
) -> tuple[Tensor, Tensor]:
    """Lion (arXiv 2302.06675, Algorithm 2): the new X and M."""
    X, M, G = X.double(), M.double(), G.double()
    direction = torch.sign(beta1 * M + (1 - beta1) * G)
    return X - lr * weight_decay * X - lr * direction, beta2 * M + (1 - beta2) * G


def adamw(
    X: Tensor, M: Tensor, V: Tensor, G: Tensor, t: int, lr: float, beta1: float, beta2: float, epsilon: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """AdamW (arXiv 1711.05101, Algorithm 2, with the schedule inside lr) at step t: the new X, M and V."""
    X, M, V, G = X.double(), M.double(), V.double(), G.double()
    M = beta1 * M + (1 - beta1) * G
    V = beta2 * V + (1 - beta2) * G * G
    M_hat, V_hat = M / (1 - beta1**t), V / (1 - beta2**t)
    return X - lr * weight_decay * X - lr * M_hat / (V_hat.sqrt() + epsilon), M, V
