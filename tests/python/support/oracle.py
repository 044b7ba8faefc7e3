"""The independent oracles: each algorithm as its paper states it, in FP64, one matrix at a time."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class DionState(NamedTuple):
    X: Tensor  # m×n
    M: Tensor  # m×n
    Q: Tensor  # n×r ("left") or m×r ("right")
    condition: float = 1.0  # κ₂(BQ) of the last step: how far rounding is magnified


def signal_of(A: Tensor) -> Tensor:
    """Which columns of A are more than rounding once those before them are projected out."""
    basis: list[Tensor] = []
    signal = []
    for column in A.unbind(1):
        rest = column
        for _ in range(2):
            for direction in basis:
                rest = rest - direction * (direction @ rest)
        signal.append(bool(rest.norm() > 1e-9 * column.norm()))
        if signal[-1]:
            basis.append(rest / rest.norm())
    return torch.tensor(signal)


def residual(E: Tensor, R: Tensor, options: dict[str, Any]) -> Tensor:
    """By what E, which P Rᵀ leaves, moves the weights; at full rank nothing is left.

    E / σ, σ the mean length of the shortest quarter of R's columns, or sign(E) at Frobenius norm 2 √(min(m, n) − r).
    """
    how, (m, n), r = options.get("residual"), E.shape, R.shape[1]
    lengths = torch.linalg.vector_norm(R, dim=0).sort().values
    if how is None or r == 0 or options["rank"] == min(m, n):
        return torch.zeros_like(E)
    if how == "scaled":
        scaled: Tensor = E / lengths[: math.ceil(r / 4)].mean()
        return scaled
    signs: Tensor = E.sign() * 2 * ((min(m, n) - r) / (m * n)) ** 0.5
    return signs


def right_factor(R: Tensor, options: dict[str, Any]) -> Tensor:
    """R with columns of length 1, or its orthonormal factor, whose columns are along R's."""
    if options.get("right_factor", "normalized") == "normalized":
        unit: Tensor = R / torch.linalg.vector_norm(R, dim=0)
        return unit
    V, triangle = torch.linalg.qr(R)
    along: Tensor = V * triangle.diagonal().sign()
    return along


def power_iteration(B: Tensor, Q: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, float]:
    """P Rᵀ, as wide as B, P Qᵀ with the next Q and the residual, that Q, and how far rounding is magnified.

    With a Householder QR of the columns that carry signal: the others of P are zero, and those of Q stay. With the
    singular value decomposition in its place rounding is magnified where singular values are close.
    """
    orientation = options["orientation"]
    is_left = orientation == "left" or (orientation == "short" and B.shape[-2] < B.shape[-1])
    body = B if is_left else B.mT
    if options.get("factorization") == "svd":
        U, x, _ = torch.linalg.svd(body)
        r = Q.shape[1]
        P, signal = U[:, :r], torch.ones(r, dtype=torch.bool)
        gaps = (x[:r] - torch.cat([x, x.new_zeros(1)])[1 : r + 1])[: len(x) - 1]
        condition = float(x[0] / gaps.min()) if gaps.numel() else 1.0
    else:
        signal = signal_of(body @ Q)
        P, _ = torch.linalg.qr((body @ Q)[:, signal])
        condition = torch.linalg.cond((body @ Q)[:, signal]).item() if bool(signal.any()) else 1.0
    R = body.mT @ P
    next_Q = Q.clone()
    next_Q[:, signal] = right_factor(R, options)
    left_over = residual(body - P @ R.mT, R, options | {"rank": Q.shape[1]})
    both = P @ R.mT, P @ next_Q[:, signal].mT + left_over
    approximation, update = both if is_left else (both[0].mT, both[1].mT)
    return approximation, update, next_Q, condition


def decayed(X: Tensor, update: Tensor, lr: float, options: dict[str, Any]) -> Tensor:
    """(1 − η λ) X; under caution (arXiv 2510.12402) where X and the update have the same sign alone."""
    decays = (X * update > 0) if options.get("cautious_wd") else torch.ones_like(X)
    rest: Tensor = X - lr * options["weight_decay"] * X * decays
    return rest


def dion(
    state: DionState, G: Tensor, lr: float, mu: float, weight_decay: float, orientation: str, **ablations: Any
) -> DionState:
    """Algorithm 1 of arXiv 2504.05295 with a Householder QR; "right" runs it on Xᵀ (Algorithm 4).

    Args:
        ablations: the options of these names: error_feedback, factorization, cautious_wd; and what the paper does not
            have: residual, right_factor, and nesterov: at full rank what is factored is what Muon orthonormalizes.
    """
    X, M, Q = (tensor.double() for tensor in state[:3])
    m, n = X.shape
    options = {"weight_decay": weight_decay, "orientation": orientation, "error_feedback": True, **ablations}
    G = G.double()
    B = (M if options["error_feedback"] else mu * M) + G
    look_ahead = B + mu * G if options["error_feedback"] else mu * B + G
    L = look_ahead if options.get("nesterov") else B
    approximation, update, Q, condition = power_iteration(L, Q, options)
    if options["error_feedback"]:
        M = B - (1 - mu) * approximation
    else:
        M = B
    X = decayed(X, update, lr, options) - lr * (m / n) ** 0.5 * update
    return DionState(X, M, Q, condition)


class DoubleDionState(NamedTuple):
    X: Tensor  # m×n
    M: Tensor  # M₂
    Q: Tensor  # Q₂
    replicate_M: Tensor  # M₁ / μ₁
    replicate_Q: Tensor  # Q₁
    condition: float = 1.0  # the larger of κ₂(B₁Q₁) and κ₂(B₂Q₂)


def double_dion(state: DoubleDionState, G: Tensor, lr: float, options: dict[str, Any]) -> DoubleDionState:
    """Algorithm 6 of arXiv 2504.05295 with a Householder QR, M₁ before the decay that ends it there.

    Delayed, the second stage has what the first one of the step before has added to M₂.
    """
    X, M2, Q2, M1, Q1 = (tensor.double() for tensor in state[:5])
    m, n = X.shape
    B1 = options["replicate_mu"] * M1 + G.double()
    exchanged, _, Q1, first = power_iteration(B1, Q1, options)
    B2 = M2 if options["delayed"] else M2 + exchanged
    M1 = B1 - exchanged
    approximation, update, Q2, second = power_iteration(B2, Q2, options)
    M2 = B2 - (1 - options["mu"]) * approximation
    if options["delayed"]:
        M2 = M2 + exchanged
    X = decayed(X, update, lr, options) - lr * (m / n) ** 0.5 * update
    return DoubleDionState(X, M2, Q2, M1, Q1, max(first, second))


def cosines(size: int) -> Tensor:
    """The orthonormal DCT-II, a row for each frequency; exactly zero at odd multiples of a right angle."""
    k, i = torch.arange(size)[:, None], torch.arange(size)
    angles = (2 * i + 1) * k  # in right angles / size
    basis: Tensor = torch.cos(torch.pi / (2 * size) * angles.double()) * (2 / size) ** 0.5
    basis[(angles % (2 * size)) == size] = 0
    basis[0] /= 2**0.5
    return basis


def demo_coefficients(B: Tensor, chunk_size: int, top_k: int) -> Tensor:
    """The coefficients of B that are sent, chunk by chunk in its place; NaN where none is."""
    sent = torch.full_like(B, torch.nan)
    for chunk, kept in zip(chunks(B, chunk_size), chunks(sent, chunk_size), strict=True):
        rows, cols = chunk.shape
        coefficients = (cosines(rows) @ chunk @ cosines(cols).mT).flatten()
        order = torch.sort(coefficients.abs(), descending=True, stable=True).indices[:top_k]
        places = torch.zeros(rows * cols, dtype=torch.bool)
        places[order] = True
        kept[places.reshape(rows, cols)] = coefficients[places]
    return sent


def chunks(B: Tensor, size: int) -> list[Tensor]:
    """Views of the chunks of a matrix."""
    return [chunk for rows in torch.split(B, size) for chunk in torch.split(rows, size, 1)]


def demo_inverse(coefficients: Tensor, chunk_size: int) -> Tensor:
    """The matrix that has these coefficients; NaN counts as zero."""
    result = torch.zeros_like(coefficients)
    for chunk, target in zip(chunks(coefficients, chunk_size), chunks(result, chunk_size), strict=True):
        rows, cols = chunk.shape
        target.copy_(cosines(rows).mT @ chunk.nan_to_num(0) @ cosines(cols))
    return result


def demo(X: Tensor, momenta: list[Tensor], gradients: list[Tensor], lr: float, options: dict[str, Any]) -> Any:
    """DeMo (arXiv 2411.19870) on replicas with momenta and gradients of their own: the new X and momenta."""
    size = options["chunk_size"]
    B = [options["mu"] * M.double() + G.double() for M, G in zip(momenta, gradients, strict=True)]
    sent = [demo_coefficients(each, size, options["top_k"]) for each in B]
    momenta = [each - demo_inverse(S, size) for each, S in zip(B, sent, strict=True)]
    direction = torch.sign(demo_inverse(torch.nanmean(torch.stack(sent), 0), size))
    return decayed(X.double(), direction, lr, options) - lr * direction, momenta


def lion(
    X: Tensor, M: Tensor, G: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float, cautious: bool = False
) -> tuple[Tensor, Tensor]:
    """Lion (arXiv 2302.06675, Algorithm 2): the new X and M."""
    X, M, G = X.double(), M.double(), G.double()
    direction = torch.sign(beta1 * M + (1 - beta1) * G)
    options = {"weight_decay": weight_decay, "cautious_wd": cautious}
    return decayed(X, direction, lr, options) - lr * direction, beta2 * M + (1 - beta2) * G


def adamw(
    X: Tensor, M: Tensor, V: Tensor, G: Tensor, t: int, lr: float, beta1: float, beta2: float, epsilon: float,
    weight_decay: float, cautious: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """AdamW (arXiv 1711.05101, Algorithm 2, with the schedule inside lr) at step t: the new X, M and V."""
    X, M, V, G = X.double(), M.double(), V.double(), G.double()
    M = beta1 * M + (1 - beta1) * G
    V = beta2 * V + (1 - beta2) * G * G
    M_hat, V_hat = M / (1 - beta1**t), V / (1 - beta2**t)
    update = M_hat / (V_hat.sqrt() + epsilon)
    return decayed(X, update, lr, {"weight_decay": weight_decay, "cautious_wd": cautious}) - lr * update, M, V


def quintics(kind: str, steps: int) -> list[tuple[float, float, float]]:
    """The polynomials a x + b x³ + c x⁵ of singular values: Jordan's, or those of arXiv 2505.16932 for five steps."""
    if kind == "jordan":
        return [(3.4445, -4.7750, 2.0315)] * steps
    assert steps == 5
    return [
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ]


def newton_schulz(M: Tensor, kind: str, steps: int) -> Tensor:
    """U p(Σ) Vᵀ of M / ‖M‖, by its singular values: no Newton–Schulz iteration at all."""
    M = M.double()
    norm = torch.linalg.matrix_norm(M)
    if norm == 0:
        return torch.zeros_like(M)
    U, x, Vt = torch.linalg.svd(M, full_matrices=False)
    x = x / (norm * (1.0 if kind == "jordan" else 1.02))
    for a, b, c in quintics(kind, steps):
        x = a * x + b * x**3 + c * x**5
    polar: Tensor = U * x @ Vt
    return polar


def adjusted(lr: float, X: Tensor, rule: str | None) -> float:
    """η and the factor of an m×n matrix."""
    m, n = X.shape
    scales: dict[str | None, float] = {
        "spectral_norm": (m / n) ** 0.5, "rms_norm": 0.2 * max(m, n) ** 0.5, "original": max(1, m / n) ** 0.5, None: 1.0
    }  # fmt: skip
    return lr * scales[rule]


def muon_update(M: Tensor, G: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Muon's new M (https://kellerjordan.github.io/posts/muon), and what moves the weights."""
    M = options["mu"] * M.double() + G.double()
    ahead = M if options["nesterov"] is False else G + options["mu"] * M
    return M, newton_schulz(ahead, options["newton_schulz"], options["ns_steps"])


def muon(X: Tensor, M: Tensor, G: Tensor, lr: float, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The new X and M."""
    M, U = muon_update(M, G, options)
    return decayed(X.double(), U, lr, options) - adjusted(lr, X, options["adjust_lr"]) * U, M


def normalized(U: Tensor, v: Tensor, beta2: float) -> tuple[Tensor, Tensor]:
    """NorMuon's normalization of rows (arXiv 2510.05491, Algorithm 1): the new U and v ([rows, 1])."""
    v = beta2 * v.double() + (1 - beta2) * U.square().mean(1, keepdim=True)
    V = U / (v.sqrt() + 1e-8)
    return V * (U.norm() / V.norm() if bool(V.any()) else 0.0), v


def normuon(
    X: Tensor, M: Tensor, v: Tensor, G: Tensor, lr: float, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """NorMuon: the new X, M and v."""
    M, U = muon_update(M, G, options)
    U, v = normalized(U, v, options["muon_beta2"])
    return decayed(X.double(), U, lr, options) - adjusted(lr, X, options["adjust_lr"]) * U, M, v


def largest_rows(B: Tensor, fraction: float) -> list[int]:
    """Those of the largest L1 norms, of equal ones the first; sums that round differently are equal in FP32."""
    k = max(1, math.ceil(fraction * len(B)))
    norms = (B.abs().sum(1) / max(float(B.abs().max()), 1e-300)).float()
    return sorted(torch.sort(norms, descending=True, stable=True).indices[:k].tolist())


def dion2(X: Tensor, M: Tensor, G: Tensor, lr: float, options: dict[str, Any], v: Tensor | None = None) -> Any:
    """Dion2 (arXiv 2512.16928), or, given v of the rows, Dion3: the new X, M and v."""
    X, B = X.double(), M.double() + G.double()
    across = options.get("select") == "columns" or (
        v is None and options.get("select") != "rows" and X.shape[1] < X.shape[0]
    )
    slices = B.mT if across else B
    chosen = largest_rows(slices, options["fraction"])
    U = newton_schulz(slices[chosen], options["newton_schulz"], options["ns_steps"])
    if v is not None:
        v = v.double().clone()
        U, v[chosen] = normalized(U, v[chosen], options["muon_beta2"])
    M = slices.clone()
    M[chosen] *= options["ef_decay"]
    update = torch.zeros_like(slices)
    update[chosen] = U
    if across:
        M, update = M.mT, update.mT
    return decayed(X, update, lr, options) - adjusted(lr, X, options["adjust_lr"]) * update, M, v


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
        options["weight_decay"], options["orientation"], error_feedback=options["error_feedback"],
        nesterov=options["nesterov"], factorization=options["factorization"], cautious_wd=options["cautious_wd"],
        residual=options["residual"], right_factor=options["right_factor"],
    )  # fmt: skip
    return new.X, {"momentum": new.M, "Q": new.Q, "condition": torch.tensor(new.condition)}


def _double_dion(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    names = ("momentum", "Q", "replicate_momentum", "replicate_Q")
    M, Q, replicate_M, replicate_Q = (states[name] for name in names)
    state = DoubleDionState(X, M, Q, replicate_M, replicate_Q)
    own = {name: value for name, value in options.items() if name not in ("residual", "right_factor")}
    new = double_dion(state, _ascent(G, options), _rate(options), own)
    return new.X, dict(zip(names, new[1:5], strict=True)) | {"condition": torch.tensor(new.condition)}


def _demo(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    X, [M] = demo(X, [states["momentum"]], [_ascent(G, options)], _rate(options), options)
    return X, {"momentum": M}


def _muon(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    X, M = muon(X, states["momentum"], _ascent(G, options), _rate(options), options)
    return X, {"momentum": M}


def _normuon(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    M, v = states["momentum"], states["variance_neuron"]
    X, M, v = normuon(X, M, v, _ascent(G, options), _rate(options), options)
    return X, {"momentum": M, "variance_neuron": v}


def _dion2(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    X, M, _ = dion2(X, states["momentum"], _ascent(G, options), _rate(options), options)
    return X, {"momentum": M}


def _dion3(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    v = states["variance_neuron"]
    X, M, v = dion2(X, states["momentum"], _ascent(G, options), _rate(options), options, v)
    return X, {"momentum": M, "variance_neuron": v}


def _lion(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    beta1, beta2 = options["betas"] or (0.95, 0.98)
    X, M = lion(
        X, states["momentum"], _ascent(G, options), _rate(options), beta1, beta2, options["weight_decay"],
        options["cautious_wd"],
    )  # fmt: skip
    return X, {"momentum": M}


def _adamw(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    beta1, beta2 = options["betas"] or (0.9, 0.95)
    X, M, V = adamw(
        X, states["momentum"], states["variance"], _ascent(G, options), t, _rate(options), beta1, beta2,
        options["epsilon"], options["weight_decay"], options["cautious_wd"],
    )  # fmt: skip
    return X, {"momentum": M, "variance": V}


ORACLES: dict[str, Update] = {
    "dion": _dion, "muon": _muon, "normuon": _normuon, "dion2": _dion2, "dion3": _dion3,
    "double_dion": _double_dion, "demo": _demo, "lion": _lion, "adamw": _adamw,
}  # fmt: skip
"""By the names of algorithms, which must all have one."""

TRIED_WITH: dict[str, dict[str, Any]] = {"demo": {"chunk_size": 7, "top_k": 5}}
"""Options of algorithms whose defaults suit larger matrices than those of the tests."""
