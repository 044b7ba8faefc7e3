"""How many columns of B Q a step takes for rounding, and what that costs.

    python benchmarks/dropped_columns.py [--seeds 3] [--steps 120] [--precisions highest medium] [--device cpu]

Two parts, JSON lines each. First one step from a momentum of zero: gradients with singular values from 1 to 1/κ. A line
gives κ(BQ), the dropped columns and the error of the update P Qᵀ, relative to the update that a Householder QR gives in
FP64, beside the error that a Householder QR gives in FP32. At a precision that rounds operands both Householder QRs
factor the product of rounded operands.

Then trainings of the GPT of examples/gpt with two layers of width 128 and Dion at r = d, 1,536 columns a step: the
share of columns that was dropped in the first steps and after, and the validation loss. A line for each precision and
seed, and their means.

On a CPU "high" is "highest"; --device cuda has it, and so have the operations of a GPU, run by the host:

    TORCHDION_TEST_BACKEND=emulated TORCHDION_EMULATED=build/package/tests/cpp/libtorchdion_emulated.so \\
      python benchmarks/dropped_columns.py --precisions high
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from measure import emit, table
from torch import Tensor
from torch.nn import Parameter

import torchdion

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python" / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))
import options
from orthonormality import conditioned
from processes import OneProcess
from train import open_data
from trainer import Trainer

SIZES = ((128, 1.0), (128, 0.5), (512, 1.0), (512, 0.25))  # d, r / d
CONDITIONS = (1.0, 1e2, 1e3, 1e4, 1e5)
RECIPE = ["--preset", "tiny", "--optimizer", "dion", "--layers", "2", "--context", "128", "--batch", "16"]
FIRST = 20
"""Steps that count as the first."""
EMULATED = os.environ.get("TORCHDION_EMULATED")
if EMULATED:
    ctypes.CDLL(EMULATED)  # its operations take the place of the CPU's own


def unread_bits(precision: str, device: torch.device) -> int:
    """The last bits of FP32, which products of a precision do not read."""
    if precision == "high" and not EMULATED and device.type == "cpu":
        return 0
    return {"medium": 16, "high": 13}.get(precision, 0)


def rounded(operand: Tensor, precision: str) -> Tensor:
    """An operand, to the nearest number that products of this precision read."""
    bits = unread_bits(precision, operand.device)
    if bits == 0:
        return operand
    half = 1 << (bits - 1)
    return ((operand.view(torch.int32) + half) >> bits << bits).view(torch.float32)


def update(G: Tensor, Q: Tensor, precision: str, dtype: torch.dtype) -> Tensor:
    """P Qᵀ from a Householder QR in a dtype."""
    G, Q = (rounded(operand, precision).to(dtype) for operand in (G, Q))
    P, _ = torch.linalg.qr(torch.mm(G, Q))
    R = torch.mm(G.mT, P)
    return torch.mm(P, (R / torch.linalg.vector_norm(R, dim=0)).mT)


def one_step(
    d: int, fraction: float, condition: float, precision: Any, seed: int, device: torch.device
) -> dict[str, Any]:
    G = conditioned(d, d, condition, torch.float32, seed).to(device)
    X = Parameter(torch.zeros_like(G))
    optimizer = torchdion.Dion(
        [X], lr=1.0, weight_decay=0.0, rank_fraction=fraction, orientation="left", precision=precision, seed=seed
    )
    X.grad = torch.zeros_like(G)  # makes Q, and no column has a signal
    optimizer.step()
    Q, before = optimizer.state[X]["Q"].clone(), optimizer.stats()["columns_without_signal"]
    X.grad = G
    optimizer.step()
    exact = update(G, Q, precision, torch.float64)

    def error(other: Tensor) -> float:
        return float(torch.linalg.vector_norm(other.double() - exact) / torch.linalg.vector_norm(exact))

    return {
        "d": d,
        "r": Q.shape[1],
        "precision": precision,
        "condition of B Q": float(torch.linalg.cond(G.double() @ Q.double())),
        "dropped": optimizer.stats()["columns_without_signal"] - before,
        "error": error(-X.detach()),
        "error of Householder": error(update(G, Q, precision, torch.float32)),
    }


def training(flags: Sequence[str], seed: int, steps: int, device: torch.device) -> dict[str, Any]:
    """The last validation loss, and the share of dropped columns over the first steps and over all others.

    Args:
        flags: beside the recipe's.
    """
    given = options.parse([*RECIPE, *flags, "--seed", str(seed), "--steps", str(steps)])
    recipe = options.recipe(given, device, None)
    trainer = Trainer(recipe, device, *open_data(recipe), False, OneProcess())
    optimizer = trainer.optimizers[0]
    assert isinstance(optimizer, torchdion.Dion)
    dropped = []
    for _ in range(steps):
        before = optimizer.stats()["columns_without_signal"]
        trainer.train_step()
        dropped.append(optimizer.stats()["columns_without_signal"] - before)
    per_step = sum(state["Q"].shape[1] for state in optimizer.state.values() if "Q" in state)
    return {
        "seed": seed,
        "columns": per_step,
        f"dropped in {FIRST} steps": mean(dropped[:FIRST]) / per_step,
        "dropped after": mean(dropped[FIRST:]) / per_step,
        "dropped in the last": dropped[-1] / per_step,
        "loss": trainer.validate(),
    }


def means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: mean(row[key] for row in rows) for key in rows[0] if key not in ("precision", "seed")} | {
        "precision": rows[0]["precision"],
        "seed": "mean",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each training and each matrix")
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    parser.add_argument("--precisions", nargs="+", default=["highest", "medium"])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    given = parser.parse_args()
    if given.steps <= FIRST:
        parser.error(f"--steps must be more than {FIRST}, which are counted apart")
    steps = [
        emit(one_step(d, fraction, condition, precision, seed, given.device))
        for precision in given.precisions
        for d, fraction in SIZES
        for condition in CONDITIONS
        for seed in range(given.seeds)
    ]
    trained = []
    for precision in given.precisions:
        rows = [
            emit({"precision": precision, **training(["--precision", precision], seed, given.steps, given.device)})
            for seed in range(given.seeds)
        ]
        trained += [*rows, means(rows)]
    print(table(steps, list(steps[0])), table(trained, list(trained[0])), sep="\n\n")
