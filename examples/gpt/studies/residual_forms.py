"""Forms of Dion's residual that torchdion does not have, in plain PyTorch, to compare them.

With L (m×n) the momentum that is factored, P (n×r) orthonormal, R = L P and E = L − R Pᵀ what the rank leaves, the
update is

    O = right_factor(R) Pᵀ + weight · rest(E)

`rest` is one of

    "none"    0
    "scaled"  E / σ, where `sigma` says how σ is estimated
    "sign"    sign(E) at the Frobenius norm of an orthonormal rest, √(min(m, n) − r)
    "rows"    E with rows of one length, at that norm
    "length"  E at that norm
    "random"  sign(E) / (√m + √n), about the spectral norm of random signs
    "signs"   sign(E) / ‖sign(E)‖₂, the norm estimated as for "spectral"

`sigma` is, of the lengths of R's columns that are not zero,

    "quarter"   the mean of the smallest quarter
    "smallest"  the smallest
    "median"    the median
    "mean"      the mean
    "harmonic"  the harmonic mean
    "spectral"  no length, but ‖E‖₂, estimated by one step of power iteration from a stored vector
    "bounded"   the larger of "quarter" and "spectral"

and `right_factor` divides R's columns by their lengths ("normalized") or takes R's QR ("orthonormal"); the next Q is
the same. With `rest_alone` the rank is 0 and all of L is rest, which "spectral" makes a momentum at unit norm. One
matrix at a time, with a Householder QR.
"""

import math
from typing import Any

import optimizers
import torch
from model import GPT
from torch import Tensor
from torch.optim import Optimizer

import torchdion


class ResidualDion(Optimizer):
    """Dion (arXiv 2504.05295, Algorithm 4) with one of the forms."""

    def __init__(self, params: list[torch.nn.Parameter], seed: int, **defaults: Any) -> None:
        super().__init__(params, defaults)
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
            r = 0 if group["rest_alone"] else math.ceil(group["rank_fraction"] * min(m, n))
            state["momentum"] = torch.zeros_like(X)
            state["Q"] = torch.randn(m, r, generator=self._generator).to(X)
            state["vector"] = torch.randn(n, generator=self._generator).to(X)
        M, Q = state["momentum"], state["Q"]
        B = M + G if group["error_feedback"] else mu * M + G
        ahead = B + mu * G if group["error_feedback"] else mu * B + G
        L = ahead if group["nesterov"] else B
        P, _ = torch.linalg.qr(L.mT @ Q)  # n×r
        R = L @ P
        E = L - R @ P.mT
        V = right_factor(R, group["right_factor"])
        update = V @ P.mT + group["rest_weight"] * rest(E, R, state["vector"], group["rest"], group["sigma"])
        M.copy_(B - (1 - mu) * R @ P.mT if group["error_feedback"] else B)
        # Columns without signal stay, as torchdion's do: the first gradients of most matrices are zero.
        Q.copy_(torch.where(V.any(dim=0), V, Q))
        X.mul_(1 - lr * group["weight_decay"]).sub_(lr * math.sqrt(m / n) * update)


def right_factor(R: Tensor, how: str) -> Tensor:
    """R with columns of length 1, or its orthonormal factor; columns of zeros stay."""
    if how == "orthonormal" and R.any():
        V, triangle = torch.linalg.qr(R)
        along: Tensor = V * triangle.diagonal().sign()  # R's columns, not against them
        return along
    lengths = torch.linalg.vector_norm(R, dim=0)
    unit: Tensor = R / lengths.masked_fill(lengths == 0, 1)
    return unit


def rest(E: Tensor, R: Tensor, vector: Tensor, how: str, sigma: str) -> Tensor:
    """By what E moves the weights; `vector` is that of spectral_norm()."""
    m, n = E.shape
    norm = math.sqrt(min(m, n) - R.size(1))
    if how == "none":
        return torch.zeros_like(E)
    if how == "scaled":
        return over(E, estimate(R, E, vector, sigma))
    if how == "rows":
        return over(E, torch.linalg.vector_norm(E, dim=1, keepdim=True)) * (norm / math.sqrt(m))
    if how == "length":
        return over(E, torch.linalg.vector_norm(E)) * norm
    if how == "random":
        return E.sign() / (math.sqrt(m) + math.sqrt(n))
    if how == "signs":
        return over(E.sign(), spectral_norm(E.sign(), vector))
    return E.sign() * (norm / math.sqrt(m * n))


def estimate(R: Tensor, E: Tensor, vector: Tensor, sigma: str) -> Tensor:
    """σ; 0 where R is zero."""
    lengths = torch.linalg.vector_norm(R, dim=0).sort().values
    lengths = lengths[lengths > 0]
    if sigma == "spectral":
        return spectral_norm(E, vector)
    if len(lengths) == 0:
        return R.new_zeros(())
    quarter = lengths[: math.ceil(len(lengths) / 4)].mean()
    if sigma == "bounded":
        return torch.maximum(quarter, spectral_norm(E, vector))
    of_lengths: dict[str, Tensor] = {
        "quarter": quarter,
        "smallest": lengths[0],
        "median": lengths.median(),
        "mean": lengths.mean(),
        "harmonic": 1 / (1 / lengths).mean(),
    }
    return of_lengths[sigma]


def spectral_norm(E: Tensor, vector: Tensor) -> Tensor:
    """‖E‖₂ as one step of power iteration finds it; `vector` (n) takes that step too."""
    image = E @ vector
    back = E.mT @ image
    if back.any():
        vector.copy_(back / torch.linalg.vector_norm(back))
    norm: Tensor = torch.linalg.vector_norm(E @ vector)
    return norm


def over(E: Tensor, divisor: Tensor) -> Tensor:
    """E / divisor; zero where the divisor is."""
    return torch.where(divisor > 0, E / divisor, torch.zeros_like(E))


def residual_dion(
    model: GPT,
    *,
    lr: float = 0.02,
    mu: float = 0.95,
    rank_fraction: float = 0.25,
    nesterov: bool = True,
    error_feedback: bool = True,
    rest_alone: bool = False,
    rest: str = "scaled",
    sigma: str = "quarter",
    rest_weight: float = 1.0,
    right_factor: str = "normalized",
    weight_decay: float = 0.01,
    scalar_algorithm: str = "adamw",
    scalar_lr: float = 0.05,
    seed: int = 0,
) -> list[Optimizer]:
    options = {
        "mu": mu, "rank_fraction": rank_fraction, "nesterov": nesterov, "error_feedback": error_feedback,
        "rest_alone": rest_alone, "rest": rest, "sigma": sigma, "rest_weight": rest_weight,
        "right_factor": right_factor,
    }  # fmt: skip
    blocks = ResidualDion(optimizers.matrices(model), seed, lr=lr, weight_decay=weight_decay, **options)
    groups = torchdion.param_groups(model, weight_decay=weight_decay, scalar_algorithm=scalar_algorithm)
    others: Optimizer = torchdion.Lion([group for group in groups if group["kind"] != "matrix"], lr=scalar_lr)
    return [blocks, others]
