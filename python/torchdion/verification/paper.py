"""The update rules as their papers state them, in plain PyTorch and FP64: what the engine has to agree with.

The engine gives no more than the first Q, and a Householder QR orthonormalizes, so that a library that was built or
linked wrongly does not agree with itself.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchdion.routing import param_groups
from torchdion.table import ALGORITHMS
from torchdion.verification.network import Network
from torchdion.verification.run import Run, Training, backward, sequences_of

MU, REPLICATE_MU, DEMO_MU = 0.95, 0.999, 0.999
LION_BETAS, ADAMW_BETAS, EPSILON = (0.95, 0.98), (0.9, 0.95), 1e-8
CHUNK_SIZE, TOP_K = 64, 32
FRACTION, FEEDBACK_DECAY, VARIANCE_DECAY, VARIANCE_EPSILON = 0.25, 0.95, 0.95, 1e-8

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""a x + b x³ + c x⁵ of the singular values of M / (1.02 ‖M‖) (arXiv 2505.16932)."""


class PaperOptimizer:
    """On param_groups(): Lion for what is no matrix, and for matrices the algorithm of the training.

    Args:
        training: whose algorithm and options these are.
        starts: the factors of each matrix at their start, by their own names before.
    """

    def __init__(self, groups: list[dict[str, Any]], starts: dict[str, dict[str, Tensor]], training: Training) -> None:
        self.members = [(name, param, group) for group in groups for name, param in group["params"]]
        self.factors = {key: {name: Q.clone() for name, Q in of_key.items()} for key, of_key in starts.items()}
        self.momenta = {name: torch.zeros_like(param) for name, param, _ in self.members}
        self.others = {name: torch.zeros_like(param) for name, param, _ in self.members}
        self.steps = 0
        self.lr, self.orientation = training.options["lr"], training.options.get("orientation", "right")
        self.is_delayed = training.options.get("delayed", False)
        self.of_matrices: Callable[[str, Tensor], Tensor] = getattr(self, f"_{training.algorithm}")

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for name, X, group in self.members:
            assert X.grad is not None
            lr = self.lr * group["lr_multiplier"]
            X.mul_(1 - lr * group["weight_decay"])
            update = self.of_matrices if group["kind"] == "matrix" else self._lion
            X.sub_(lr * update(name, X.grad))
            X.grad = None

    def _dion(self, name: str, G: Tensor) -> Tensor:
        """Algorithm 1 of arXiv 2504.05295."""
        B = self.momenta[name] + G
        approximation, update = self._factored(B, "Q", name)
        self.momenta[name] = B - (1 - MU) * approximation
        return shape_factor(G) * update

    def _double_dion(self, name: str, G: Tensor) -> Tensor:
        """Algorithm 6 of arXiv 2504.05295; others are M₁. Delayed, what is exchanged counts a step later."""
        B = REPLICATE_MU * self.others[name] + G
        exchanged, _ = self._factored(B, "replicate_Q", name)
        self.others[name] = B - exchanged
        B = self.momenta[name] if self.is_delayed else self.momenta[name] + exchanged
        approximation, update = self._factored(B, "Q", name)
        B -= (1 - MU) * approximation
        self.momenta[name] = B + exchanged if self.is_delayed else B
        return shape_factor(G) * update

    def _factored(self, B: Tensor, key: str, name: str) -> tuple[Tensor, Tensor]:
        """P Rᵀ and P Qᵀ, as wide as B, with the next Q. Algorithm 4 ("right") is Algorithm 1 on Xᵀ."""
        is_right = self.orientation == "right" or (self.orientation == "short" and B.shape[-2] >= B.shape[-1])
        body, Q = B.mT if is_right else B, self.factors[key][name]
        A = body @ Q
        R = torch.linalg.qr(A, mode="r").R  # its diagonal is what each column adds to those before it
        signal = R.diagonal().abs() > 1e-9 * A.norm(dim=0)
        P, _ = torch.linalg.qr(A[:, signal])
        R = body.mT @ P
        Q[:, signal] = R / torch.linalg.vector_norm(R, dim=0)
        both = P @ R.mT, P @ Q[:, signal].mT
        return (both[0].mT, both[1].mT) if is_right else both

    def _muon(self, name: str, G: Tensor) -> Tensor:
        """Nesterov's form (https://kellerjordan.github.io/posts/muon), by singular values: no Newton–Schulz iteration
        at all."""
        return shape_factor(G) * self._ahead(name, G)

    def _normuon(self, name: str, G: Tensor) -> Tensor:
        """arXiv 2510.05491, Algorithm 1; others are v, in every column."""
        update, self.others[name] = normalized(self._ahead(name, G), self.others[name])
        return shape_factor(G) * update

    def _ahead(self, name: str, G: Tensor) -> Tensor:
        M = MU * self.momenta[name] + G
        self.momenta[name] = M
        return orthonormal(G + MU * M)

    def _dion2(self, name: str, G: Tensor) -> Tensor:
        """arXiv 2512.16928, of the shorter side."""
        B = self.momenta[name] + G
        slices = B.mT if B.shape[1] < B.shape[0] else B  # a view
        chosen = largest_rows(slices)
        update = torch.zeros_like(B)
        (update.mT if slices is not B else update)[chosen] = orthonormal(slices[chosen])
        slices[chosen] *= FEEDBACK_DECAY
        self.momenta[name] = B
        return shape_factor(G) * update

    def _dion3(self, name: str, G: Tensor) -> Tensor:
        """The same of rows, normalized as NorMuon's; others are v, in every column."""
        B = self.momenta[name] + G
        chosen = largest_rows(B)
        update = torch.zeros_like(B)
        update[chosen], self.others[name][chosen] = normalized(orthonormal(B[chosen]), self.others[name][chosen])
        B[chosen] *= FEEDBACK_DECAY
        self.momenta[name] = B
        return shape_factor(G) * update

    def _demo(self, name: str, G: Tensor) -> Tensor:
        """arXiv 2411.19870 on one replica."""
        B = DEMO_MU * self.momenta[name] + G
        sent = torch.zeros_like(B)
        for chunk, target in zip(chunks_of(B), chunks_of(sent), strict=True):
            of_rows, of_cols = cosines(chunk.shape[0]), cosines(chunk.shape[1])
            coefficients = (of_rows @ chunk @ of_cols.mT).flatten()
            order = torch.sort(coefficients.abs(), descending=True, stable=True).indices
            coefficients[order[TOP_K:]] = 0
            target.copy_(of_rows.mT @ coefficients.view_as(chunk) @ of_cols)
        self.momenta[name] = B - sent
        return torch.sign(sent)

    def _lion(self, name: str, G: Tensor) -> Tensor:
        """arXiv 2302.06675, Algorithm 2."""
        first, second = LION_BETAS
        M = self.momenta[name]
        self.momenta[name] = second * M + (1 - second) * G
        return torch.sign(first * M + (1 - first) * G)

    def _adamw(self, name: str, G: Tensor) -> Tensor:
        """arXiv 1711.05101, Algorithm 2; others are V."""
        first, second = ADAMW_BETAS
        self.momenta[name] = first * self.momenta[name] + (1 - first) * G
        self.others[name] = second * self.others[name] + (1 - second) * G * G
        V_hat = self.others[name] / (1 - second**self.steps)
        return self.momenta[name] / (1 - first**self.steps) / (V_hat.sqrt() + EPSILON)


def has_paper_form(algorithm: str) -> bool:
    """True if its paper's form is written down here."""
    return hasattr(PaperOptimizer, f"_{algorithm}")


def shape_factor(G: Tensor) -> float:
    m, n = G.shape
    return float((m / n) ** 0.5)


def orthonormal(matrix: Tensor) -> Tensor:
    """What Polar Express makes of a matrix, by singular values."""
    U, x, Vt = torch.linalg.svd(matrix, full_matrices=False)
    x = x / (1.02 * torch.linalg.vector_norm(x))
    for a, b, c in POLAR_EXPRESS:
        x = a * x + b * x**3 + c * x**5
    polar: Tensor = U * x @ Vt
    return polar


def normalized(U: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """NorMuon's rows, as long together as they were, and the new means of their squares."""
    v = VARIANCE_DECAY * v + (1 - VARIANCE_DECAY) * U.square().mean(1, keepdim=True)
    V = U / (v.sqrt() + VARIANCE_EPSILON)
    return V * (U.norm() / V.norm()), v


def largest_rows(B: Tensor) -> Tensor:
    """Those of the largest L1 norms, of equal ones the first."""
    k = max(1, math.ceil(FRACTION * len(B)))
    return torch.sort(B.abs().sum(1), descending=True, stable=True).indices[:k].sort().values


def chunks_of(matrix: Tensor) -> list[Tensor]:
    """Views of its chunks."""
    rows = torch.split(matrix, CHUNK_SIZE)
    return [chunk for row in rows for chunk in torch.split(row, CHUNK_SIZE, 1)]


def cosines(size: int) -> Tensor:
    """The orthonormal DCT-II, exactly zero at odd multiples of a right angle."""
    angles = (2 * torch.arange(size) + 1) * torch.arange(size)[:, None]  # in right angles / size
    basis: Tensor = torch.cos(torch.pi / (2 * size) * angles.double()) * (2 / size) ** 0.5
    basis[angles % (2 * size) == size] = 0
    basis[0] /= 2**0.5
    return basis


def train_as_published(training: Training) -> dict[str, Tensor] | None:
    """The weights that one process must end with, whatever its device: this one computes on the CPU. None where no
    paper's form of the algorithm is written down."""
    if not has_paper_form(training.algorithm):
        return None
    network = Network(training.shape.on(training.sizes.tp))
    groups, starts = param_groups(network), _starts_of_factors(training)
    optimizer = PaperOptimizer(groups, starts, training)
    for step in range(training.steps):
        backward(network, sequences_of(training, step))
        optimizer.step()
    return {name: param.detach() for name, param in network.named_parameters()}


def _starts_of_factors(training: Training) -> dict[str, dict[str, Tensor]]:
    """A step with zero gradients creates them, and leaves them as they are."""
    run = Run(training)
    for param in run.network.parameters():
        param.grad = torch.zeros_like(param)
    run.optimizer.step()
    states = run.state().states
    return {factor.name: states[factor.name] for factor in ALGORITHMS[training.algorithm].factors}
