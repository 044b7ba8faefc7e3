"""Optimizers whose last step failed when it had begun to write."""

from torchdion.optimizer import Optimizer


def why_broken(optimizer: Optimizer) -> str:
    """Empty: it is not."""
    reason: str = optimizer._core.memory["broken"]
    return reason


def break_(optimizer: Optimizer, reason: str) -> None:
    optimizer._core.memory = optimizer._core.memory | {"broken": reason}
