"""The independent oracles: each algorithm as its paper states it, in FP64, one matrix at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

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


States = dict[str, Tensor]
"""By the names that state dicts give them."""

Update = Callable[[Tensor, States, Tensor, int, dict[str, Any]], tuple[Tensor, States]]
"""The new X and states of one matrix, or of one tensor where that is what an algorithm takes, from X, states, G, the
number of the step (the first is 1) and the options of the group. A state "condition" of the oracle's own says how far
rounding is magnified."""


def _ascent(G: Tensor, options: dict[str, Any]) -> Tensor:
    return -G if options["maximize"] else G


def _rate(options: dict[str, Any]) -> float:
    rate: float = options["lr"] * options["lr_multiplier"]
    return rate


def _dion(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    new = dion(
        DionState(X, states["momentum"], states["Q"]), _ascent(G, options), _rate(options), options["mu"],
        options["weight_decay"], options["orientation"],
    )  # fmt: skip
    return new.X, {"momentum": new.M, "Q": new.Q, "condition": torch.tensor(new.condition)}


def _lion(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    beta1, beta2 = options["betas"] or (0.95, 0.98)
    X, M = lion(X, states["momentum"], _ascent(G, options), _rate(options), beta1, beta2, options["weight_decay"])
    return X, {"momentum": M}


def _adamw(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    beta1, beta2 = options["betas"] or (0.9, 0.95)
    X, M, V = adamw(
        X, states["momentum"], states["variance"], _ascent(G, options), t, _rate(options), beta1, beta2,
        options["epsilon"], options["weight_decay"],
    )  # fmt: skip
    return X, {"momentum": M, "variance": V}


ORACLES: dict[str, Update] = {"dion": _dion, "lion": _lion, "adamw": _adamw}
"""By the names of algorithms, which must all have one."""
