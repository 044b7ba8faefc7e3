"""The update rules as their papers state them, in plain PyTorch and FP64: what the engine has to agree with.

The engine gives no more than the first Q, and a Householder QR orthonormalizes, so that a library that was built or
linked wrongly does not agree with itself.
"""

from typing import Any

import torch
from torch import Tensor

from torchdion.routing import param_groups
from torchdion.verification.network import Network
from torchdion.verification.run import Run, Training, backward, sequences_of

MU, LION_BETAS = 0.95, (0.95, 0.98)

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""a x + b x³ + c x⁵ of the singular values of M / (1.02 ‖M‖) (arXiv 2505.16932)."""


class PaperOptimizer:
    """On param_groups(): Lion (arXiv 2302.06675, Algorithm 2), and for matrices Dion (arXiv 2504.05295, Algorithms 1
    and 4) or Nesterov's form of Muon (https://kellerjordan.github.io/posts/muon).

    Args:
        training: whose algorithm and options these are.
        starts: Q of each matrix at its start.
    """

    def __init__(self, groups: list[dict[str, Any]], starts: dict[str, Tensor], training: Training) -> None:
        self.members = [(name, param, group) for group in groups for name, param in group["params"]]
        self.Q = {name: Q.clone() for name, Q in starts.items()}
        self.momenta = {name: torch.zeros_like(param) for name, param, _ in self.members}
        self.lr, self.is_right = training.options["lr"], training.options.get("orientation", "right") == "right"
        self.of_matrices = {"dion": self._dion, "muon": self._muon}[training.algorithm]

    @torch.no_grad()
    def step(self) -> None:
        for name, X, group in self.members:
            assert X.grad is not None
            lr = self.lr * group["lr_multiplier"]
            X.mul_(1 - lr * group["weight_decay"])
            if group["kind"] == "matrix":
                m, n = X.shape
                X.sub_(lr * (m / n) ** 0.5 * self.of_matrices(name, X.grad))
            else:
                X.sub_(lr * self._lion(name, X.grad))
            X.grad = None

    def _dion(self, name: str, G: Tensor) -> Tensor:
        """P Qᵀ, as wide as G; Algorithm 4 ("right") is Algorithm 1 on Xᵀ."""
        B = self.momenta[name] + G
        body = B.mT if self.is_right else B
        P, _ = torch.linalg.qr(body @ self.Q[name])
        R = body.mT @ P
        approximation = P @ R.mT
        self.momenta[name] = B - (1 - MU) * (approximation.mT if self.is_right else approximation)
        self.Q[name] = R / torch.linalg.vector_norm(R, dim=0)
        update: Tensor = P @ self.Q[name].mT
        return update.mT if self.is_right else update

    def _muon(self, name: str, G: Tensor) -> Tensor:
        """By singular values: no Newton–Schulz iteration at all."""
        M = MU * self.momenta[name] + G
        self.momenta[name] = M
        U, x, Vt = torch.linalg.svd(G + MU * M, full_matrices=False)
        x = x / (1.02 * torch.linalg.vector_norm(x))
        for a, b, c in POLAR_EXPRESS:
            x = a * x + b * x**3 + c * x**5
        update: Tensor = U * x @ Vt
        return update

    def _lion(self, name: str, G: Tensor) -> Tensor:
        first, second = LION_BETAS
        M = self.momenta[name]
        self.momenta[name] = second * M + (1 - second) * G
        return torch.sign(first * M + (1 - first) * G)


def train_as_published(training: Training) -> dict[str, Tensor]:
    """The weights that one process must end with, whatever its device: this one computes on the CPU."""
    network = Network(training.shape.on(training.sizes.tp))
    groups, starts = param_groups(network), _starts_of_Q(training)
    optimizer = PaperOptimizer(groups, starts, training)
    for step in range(training.steps):
        backward(network, sequences_of(training, step))
        optimizer.step()
    return {name: param.detach() for name, param in network.named_parameters()}


def _starts_of_Q(training: Training) -> dict[str, Tensor]:
    """A step with zero gradients creates them, and leaves them as they are."""
    run = Run(training)
    for param in run.network.parameters():
        param.grad = torch.zeros_like(param)
    run.optimizer.step()
    return run.state().states.get("Q", {})
