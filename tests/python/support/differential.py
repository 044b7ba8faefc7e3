"""Random problems for the optimizer and the oracle: all of a case follows from its seed."""

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from oracle import TRIED_WITH
from runs import allowance, start
from torch import Tensor
from torch.nn import Parameter
from trajectory import Expected, drawn_factors, error_of_state, expected_of, matrices

import torchdion
from torchdion.table import ALGORITHMS

CONDITION = 1e4  # κ(BQ) beyond which two correct programs part ways
DOUBTFUL_IN_FP32 = 1e3  # beyond which a column of P may be so close to rounding that it counts as such
BOUND = {torch.float64: 1e-10, torch.float32: 1e-4}
OTHERS = [name for name in ALGORITHMS if name != "dion"]
SCALE_FREE = ("dion", "muon", "normuon", "dion2", "dion3", "double_dion", "demo")
SCALES = [1.0, 1.0, 1e-30, 1e-6, 1e6, 1e30]


@dataclass
class Member:
    """A parameter with its gradients, and what the oracle makes of it."""

    X: Parameter
    options: dict[str, Any]  # of its group
    gradients: list[Tensor]
    begin: Tensor
    end: Expected | None = None

    def __str__(self) -> str:
        return f"{tuple(self.X.shape)} {self.X.dtype}, strides {self.X.stride()}, {self.options}"


@dataclass
class Case:
    seed: int
    members: list[Member]
    optimizer: torchdion.Dion
    steps: int


def random_shape(draw: random.Random, options: dict[str, Any]) -> tuple[int, ...]:
    m, n = (draw.choice([1, 2, 3, draw.randint(4, 12), draw.randint(4, 40)]) for _ in range(2))
    kernel = draw.choice([(), (), (), (3,), (2, 3)])
    stack = tuple(draw.randint(1, 3) for _ in range(options["batch_dims"] or 0))
    return (*stack, m * options["blocks"], n, *kernel)


def random_options(draw: random.Random) -> dict[str, Any]:
    fan_in_first = draw.random() < 0.2
    return {
        "lr": draw.choice([1e-3, 0.02, 0.3]),
        "lr_multiplier": draw.choice([1.0, 1.0, 0.3]),
        "mu": draw.choice([0.0, 0.5, 0.95, 0.99]),
        "nesterov": draw.choice([None, True, False]),
        "weight_decay": draw.choice([0.0, 0.01, 0.5]),
        "rank_fraction": draw.choice([0.05, 0.25, 0.5, 1.0]),
        "replicate_rank_fraction": draw.choice([0.05, 0.25, 0.5, 1.0]),
        "rank_multiple_of": draw.choice([1, 1, 4]),
        "orientation": draw.choice(["left", "right", "short"]),
        "orthonormalize": draw.choice(["auto", "rcqr", "cholesky_qr", "qr"]),
        "algorithm": draw.choice(["dion"] * 6 + OTHERS),
        "residual": draw.choice([None, None, "scaled", "sign"]),
        "right_factor": draw.choice(["normalized", "normalized", "orthonormal"]),
        **TRIED_WITH["demo"],
        "batch_dims": draw.choice([0, 0, 0, 1, 2]),
        "blocks": 1 if fan_in_first else draw.choice([1, 1, 1, 2, 3]),
        "fan_in_first": fan_in_first,
        "maximize": draw.random() < 0.3,
        "precision": "highest",
        "seed": draw.randrange(2**40),
    }


def asks_for_fp64(options: dict[str, Any]) -> bool:
    """Whether two correct programs may part ways in FP32: where an entry is too close to zero to have a sign, where a
    residual is divided by columns of R that are as short as rounding, and where the shared momentum of Double Dion has
    a lower rank than its update and what exchanged factors leave of it, where they are nearly orthogonal to Q, becomes
    signal some steps later."""
    has_low_rank = options["replicate_rank_fraction"] < options["rank_fraction"]
    if options["algorithm"] == "dion":
        return options["residual"] is not None
    return options["algorithm"] in ("demo", "lion") or (options["algorithm"] == "double_dion" and has_low_rank)


def restride(draw: random.Random, tensor: Tensor) -> Tensor:
    """The same values with other strides."""
    kind = draw.choice(["contiguous", "contiguous", "permuted", "gaps"])
    if kind == "permuted":
        order = draw.sample(range(tensor.dim()), tensor.dim())
        inverse = [order.index(d) for d in range(tensor.dim())]
        return tensor.permute(order).contiguous().permute(inverse)
    if kind == "gaps":
        wide = torch.zeros([2 * size for size in tensor.shape], dtype=tensor.dtype)
        view = wide[tuple(slice(1, None, draw.choice([2, 2])) for _ in tensor.shape)]
        return view.copy_(tensor)
    return tensor


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    steps, groups, members = draw.randint(1, 6), [], []
    for _ in range(draw.randint(1, 3)):
        options = random_options(draw)
        shape, params = random_shape(draw, options), []
        for _ in range(draw.randint(1, 3)):  # alike, so that they share a batch, or not
            shape = shape if draw.random() < 0.7 else random_shape(draw, options)
            dtype = draw.choice([torch.float64, torch.float32])
            if asks_for_fp64(options):
                dtype = torch.float64
            scale = draw.choice(SCALES) if options["algorithm"] in SCALE_FREE else 1.0

            def normal(dtype=dtype, shape=shape) -> Tensor:
                return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

            X = Parameter(restride(draw, normal()))
            gradients = [restride(draw, normal() * scale) for _ in range(steps)]
            members.append(Member(X, options, gradients, X.detach().clone()))
            params.append(X)
        groups.append({"params": params, **options})
    with warnings.catch_warnings():  # of options that the groups' algorithms do not have
        warnings.simplefilter("ignore")
        return Case(seed, members, torchdion.Dion(groups), steps)


def prepare(seed: int) -> tuple[Case, float]:
    """The case with what is expected of it, and its κ(BQ)."""
    case = random_case(seed)
    start(case.optimizer)
    groups = {param: group for group in case.optimizer.param_groups for param in group["params"]}
    for member in case.members:
        states = case.optimizer.state[member.X]
        states["step"].zero_()  # start() made a step, which AdamW counts
        member.end = expected_of(member.begin, drawn_factors(states), member.gradients, groups[member.X])
    return case, max(member.end.condition for member in case.members if member.end is not None)


def take_steps(case: Case) -> None:
    for step in range(case.steps):
        for member in case.members:
            member.X.grad = member.gradients[step]
        case.optimizer.step()


def is_in_doubt(case: Case, condition: float) -> bool:
    """Whether a column of P in FP32 was left out for its closeness to rounding, which the oracle does not know."""
    is_fp32 = any(member.X.dtype == torch.float32 for member in case.members)
    return is_fp32 and condition > DOUBTFUL_IN_FP32 and case.optimizer.stats()["columns_in_margin"] > 0


def excess(X: Tensor, expected: Tensor, begin: Tensor, path: float, steps: int) -> float:
    """The error of X over what is allowed: a part of its steps, which may lead back, and the rounding of weights."""
    rounding = steps * torch.finfo(X.dtype).eps * torch.linalg.vector_norm(begin.double())
    allowed = BOUND[X.dtype] * path + rounding
    return float(torch.linalg.vector_norm(X.double() - expected) / allowed)


def largest_excess(member: Member, optimizer: torchdion.Dion, steps: int) -> float:
    """The largest error of X and the states over what is allowed; more than 1 is wrong."""
    assert member.end is not None
    algorithm, options = ALGORITHMS[member.options["algorithm"]], member.options
    bound, states, end = BOUND[member.X.dtype], optimizer.state[member.X], member.end

    def each(tensor: Tensor) -> list[Tensor]:
        return matrices(tensor, options) if algorithm.takes_matrices else [tensor.detach()]

    pieces = zip(each(member.X), each(end.X), each(member.begin), end.paths, strict=True)
    worst = max(excess(X, expected, begin, path, steps) for X, expected, begin, path in pieces)
    total = sum(torch.linalg.vector_norm(G.double()) for G in member.gradients)
    for state in algorithm.states:
        own, expected = states[state.name], end.states[state.name]
        if state.shape != "like_parameter":
            worst = max(worst, error_of_state(state.shape, own, expected) / (10 * bound))
            continue
        for one, other in zip(each(own), each(expected), strict=True):
            scale = total if algorithm.takes_matrices else torch.linalg.vector_norm(other)
            worst = max(worst, float(torch.linalg.vector_norm(one.double() - other) / scale) / bound)
    return worst / allowance(options["mu"])
