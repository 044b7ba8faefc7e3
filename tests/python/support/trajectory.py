"""What the oracles make of whole parameters: of each of their matrices, or of all entries together."""

from dataclasses import dataclass
from typing import Any

import torch
from oracle import ORACLES, States
from torch import Tensor

from torchdion.table import ALGORITHMS, Algorithm, algorithm_of


@dataclass
class Expected:
    """A parameter and its states at the end. Factors and rows are stacked: one for each matrix."""

    X: Tensor
    states: States
    condition: float  # the worst of its steps: how far rounding was magnified
    paths: list[float]  # how long the steps were together: of each matrix, or of the tensor


def matrices(tensor: Tensor, options: dict[str, Any]) -> list[Tensor]:
    """The m×n matrices in a parameter, by reshape alone, in the order of Q's stack."""
    batch_dims, blocks = options["batch_dims"] or 0, options["blocks"]
    stack = tensor.detach().reshape(-1, *tensor.shape[batch_dims:]).flatten(2)
    pieces = [piece for matrix in stack for piece in matrix.chunk(blocks)]
    return [piece.mT if options["fan_in_first"] else piece for piece in pieces]


def whole(pieces: list[Tensor], like: Tensor, options: dict[str, Any]) -> Tensor:
    """The inverse of matrices()."""
    return torch.stack([piece.mT if options["fan_in_first"] else piece for piece in pieces]).reshape(like.shape)


def follow_one(
    algorithm: Algorithm, X: Tensor, factors: States, gradients: list[Tensor], options: dict[str, Any]
) -> tuple[Tensor, States, float, float]:
    """One matrix, or one tensor: its end, its states, the worst condition and the length of its path."""
    assert algorithm.name in ORACLES, f"{algorithm.name} has no oracle (support/oracle.py)"
    zeros = {"like_parameter": torch.zeros_like(X), "rows": torch.zeros_like(X[..., :1] if X.dim() else X)}
    states = {state.name: factors.get(state.name, zeros.get(state.shape)) for state in algorithm.states}
    worst, path = 1.0, 0.0
    decay = options["lr"] * options.get("lr_multiplier", 1.0) * options["weight_decay"]
    for t, G in enumerate(gradients, 1):
        before = X
        X, states = ORACLES[algorithm.name](X, states, G, t, options)
        worst = max(worst, float(states.pop("condition", 1.0)))
        # The update and the decay may cancel; neither is longer than these together.
        path += float(torch.linalg.vector_norm(X - before) + decay * torch.linalg.vector_norm(before))
    return X, states, worst, path


def expected_of(X: Tensor, factors: States, gradients: list[Tensor], group: dict[str, Any]) -> Expected:
    """The parameter after a step with each of the gradients.

    Args:
        X: where it begins.
        factors: the states that begin as the optimizer has drawn them; all others begin with zeros.
        group: all options, as an optimizer's group has them.
    """
    algorithm = algorithm_of(X, group)
    X, gradients = X.double(), [G.double() for G in gradients]
    if not algorithm.takes_matrices:
        end, states, worst, path = follow_one(algorithm, X, {}, gradients, group)
        return Expected(end, states, worst, [path])
    of_gradients = [matrices(G, group) for G in gradients]
    stacks = {name: factor.double().reshape(-1, *factor.shape[-2:]) for name, factor in factors.items()}
    ends = []
    for i, piece in enumerate(matrices(X, group)):
        own = {name: stack[i] for name, stack in stacks.items()}
        ends.append(follow_one(algorithm, piece, own, [of_step[i] for of_step in of_gradients], group))
    states = {}
    for state in algorithm.states:
        pieces = [of_piece[state.name] for _, of_piece, *_ in ends]
        states[state.name] = whole(pieces, X, group) if state.shape == "like_parameter" else torch.stack(pieces)
    worst = max((condition for *_, condition, _ in ends), default=1.0)
    return Expected(whole([end for end, *_ in ends], X, group), states, worst, [path for *_, path in ends])


def drawn_factors(states: dict[str, Any]) -> States:
    """Those of a parameter's states that are factors, as they are now."""
    names = {state.name for algorithm in ALGORITHMS.values() for state in algorithm.states if state.shape == "factor"}
    return {name: state.clone() for name, state in states.items() if name in names}


def error_of_state(shape: str, own: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """How far a whole state is from what is expected: of columns of factors, whose signs are free, in each entry; of
    others relative to its norm, or to the least that it may have where rounding is all that is left."""
    expected = expected.reshape(own.shape)
    if shape == "factor":
        return float((own.double().abs() - expected.abs()).abs().max())
    return float(torch.linalg.vector_norm(own.double() - expected)) / max(float(expected.norm()), least)
