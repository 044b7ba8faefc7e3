"""Random problems for the optimizer and the oracle: all of a case follows from its seed."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from oracle import DionState, adamw, dion, lion
from runs import allowance, start
from torch import Tensor
from torch.nn import Parameter

import torchdion

CONDITION = 1e4  # κ(BQ) beyond which two correct programs part ways
BOUND = {torch.float64: 1e-10, torch.float32: 1e-4}
SCALES = [1.0, 1.0, 1e-30, 1e-6, 1e6, 1e30]


@dataclass
class Member:
    """A parameter with its gradients and, for each of its matrices, what the oracle makes of it."""

    X: Parameter
    options: dict[str, Any]  # of its group
    gradients: list[Tensor]
    begin: Tensor
    expected: list[Any] = field(default_factory=list)  # a DionState for each matrix, or (X, M, V)

    def __str__(self) -> str:
        return f"{tuple(self.X.shape)} {self.X.dtype}, strides {self.X.stride()}, {self.options}"


@dataclass
class Case:
    seed: int
    members: list[Member]
    optimizer: torchdion.Dion
    steps: int


def matrices(tensor: Tensor, options: dict[str, Any]) -> list[Tensor]:
    """The m×n matrices in a parameter, by reshape alone, in the order of Q's stack."""
    batch_dims, blocks = options["batch_dims"] or 0, options["blocks"]
    stack = tensor.detach().reshape(-1, *tensor.shape[batch_dims:]).flatten(2)
    pieces = [piece for matrix in stack for piece in matrix.chunk(blocks)]
    return [piece.mT if options["fan_in_first"] else piece for piece in pieces]


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
        "weight_decay": draw.choice([0.0, 0.01, 0.5]),
        "rank_fraction": draw.choice([0.05, 0.25, 0.5, 1.0]),
        "rank_multiple_of": draw.choice([1, 1, 4]),
        "orientation": draw.choice(["left", "right"]),
        "orthonormalize": draw.choice(["auto", "rcqr", "cholesky_qr", "qr"]),
        "algorithm": draw.choice(["dion"] * 6 + ["lion", "adamw"]),
        "batch_dims": draw.choice([0, 0, 0, 1, 2]),
        "blocks": 1 if fan_in_first else draw.choice([1, 1, 1, 2, 3]),
        "fan_in_first": fan_in_first,
        "maximize": draw.random() < 0.3,
        "seed": draw.randrange(2**40),
    }


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
            scale = draw.choice(SCALES) if options["algorithm"] == "dion" else 1.0

            def normal(dtype=dtype, shape=shape) -> Tensor:
                return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

            X = Parameter(restride(draw, normal()))
            gradients = [restride(draw, normal() * scale) for _ in range(steps)]
            members.append(Member(X, options, gradients, X.detach().clone()))
            params.append(X)
        groups.append({"params": params, **options})
    return Case(seed, members, torchdion.Dion(groups), steps)


def ascent(member: Member, step: int) -> Tensor:
    G = member.gradients[step].double()
    return -G if member.options["maximize"] else G


def expect_matrices(member: Member, optimizer: torchdion.Dion, steps: int) -> float:
    """What the oracle makes of the parameter's matrices from the optimizer's own first Q; the worst κ(BQ)."""
    options, worst = member.options, 1.0
    Q = optimizer.state[member.X]["Q"].clone()
    Qs = list(Q.reshape(-1, *Q.shape[-2:]))
    for index, X in enumerate(matrices(member.begin, options)):
        state = DionState(X, torch.zeros_like(X), Qs[index])
        for step in range(steps):
            G = matrices(ascent(member, step), options)[index]
            lr = options["lr"] * options["lr_multiplier"]
            state = dion(state, G, lr, options["mu"], options["weight_decay"], options["orientation"])
            worst = max(worst, state.condition)
        member.expected.append(state)
    return worst


def expect_elements(member: Member, steps: int) -> None:
    options = member.options
    lr, decay = options["lr"] * options["lr_multiplier"], options["weight_decay"]
    X, M, V = member.begin.double(), torch.zeros(member.X.shape), torch.zeros(member.X.shape)
    for step in range(steps):
        if options["algorithm"] == "lion":
            X, M = lion(X, M, ascent(member, step), lr, 0.95, 0.98, decay)
        else:
            X, M, V = adamw(X, M, V, ascent(member, step), step + 1, lr, 0.9, 0.95, 1e-8, decay)
    member.expected.append((X, M, V))


def prepare(seed: int) -> tuple[Case, float]:
    """The case with what is expected of it, and its κ(BQ)."""
    case = random_case(seed)
    start(case.optimizer)
    worst = 1.0
    for member in case.members:
        if member.options["algorithm"] == "dion":
            worst = max(worst, expect_matrices(member, case.optimizer, case.steps))
        else:
            case.optimizer.state[member.X]["step"].zero_()  # start() made a step, which AdamW counts
            expect_elements(member, case.steps)
    return case, worst


def take_steps(case: Case) -> None:
    for step in range(case.steps):
        for member in case.members:
            member.X.grad = member.gradients[step]
        case.optimizer.step()


def excess(X: Tensor, expected: Tensor, begin: Tensor, steps: int) -> float:
    """The error of X over what is allowed: a part of the distance travelled, and the rounding of the weights."""
    travelled = torch.linalg.vector_norm(expected - begin.double())
    rounding = steps * torch.finfo(X.dtype).eps * torch.linalg.vector_norm(begin.double())
    allowed = BOUND[X.dtype] * travelled + rounding
    return float(torch.linalg.vector_norm(X.double() - expected) / allowed)


def largest_excess(member: Member, optimizer: torchdion.Dion, steps: int) -> float:
    """The largest error of X, M and Q over what is allowed; more than 1 is wrong."""
    bound, state = BOUND[member.X.dtype], optimizer.state[member.X]
    if member.options["algorithm"] != "dion":
        X, M, _ = member.expected[0]
        off = torch.linalg.vector_norm(state["momentum"].double() - M) / torch.linalg.vector_norm(M)
        return max(excess(member.X.detach(), X, member.begin, steps), float(off) / bound)
    Q = state["Q"]
    views = (matrices(tensor, member.options) for tensor in (member.X, state["momentum"], member.begin))
    total = sum(torch.linalg.vector_norm(G.double()) for G in member.gradients)
    worst = 0.0
    for X, M, begin, own_Q, expected in zip(*views, Q.reshape(-1, *Q.shape[-2:]), member.expected, strict=True):
        worst = max(worst, excess(X, expected.X, begin, steps))
        worst = max(worst, float(torch.linalg.vector_norm(M.double() - expected.M) / total) / bound)
        worst = max(worst, float((own_Q.double().abs() - expected.Q.abs()).abs().max()) / (10 * bound))
    return worst / allowance(member.options["mu"])
