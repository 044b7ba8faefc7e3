"""How far the residual of Dion moves the weights: its spectral norm, of structured gradients and in trainings.

    python benchmarks/residual.py [--d 256] [--steps 120] [--seeds 3]

P Qᵀ has a spectral norm of about 1, Muon's update one of 1. A line gives that of what the residual adds to the update,
by the difference of two steps that agree in all but the option: `spectral`, and `frobenius`, its Frobenius norm over
that of Muon's update, √min(m, n). Two parts, JSON lines each.

First one step from a momentum of zero, and the ninth one on the same d×d gradient without error feedback, at r = d/16.
The gradient is r directions of equal length and a rest of a tenth of their spectral norm, of the structure that the
line names. `nothing`: it has no rest; `fewer`: it has r/2 directions alone; `zero`: gradient and momentum are zero
after eight steps on noise; `decaying`: singular values from 1 to 1e-3.

Then trainings of the GPT of examples/gpt with two layers of width 128, with Nesterov's momentum and without error
feedback: the largest and the median spectral norm over all matrices, in the first ten steps and every tenth after, and
the validation loss.
"""

import argparse
import copy
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import emit, table
from torch import Tensor
from torch.nn import Parameter

import torchdion

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))
import options
from processes import OneProcess
from train import open_data
from trainer import Trainer

KINDS = ("scaled", "sign")
LR = 2.0**-10
FIRST = 10
"""Steps that count as the first."""
WARM = 8
"""Steps on the same gradient before the measured one."""
RECIPE = ["--preset", "tiny", "--optimizer", "dion", "--nesterov", "--no-error-feedback",
          "--layers", "2", "--context", "128", "--batch", "16"]  # fmt: skip


def orthonormal(d: int, r: int, draw: torch.Generator) -> Tensor:
    columns: Tensor = torch.linalg.qr(torch.randn(d, r, generator=draw)).Q
    return columns


def directions(d: int, r: int, draw: torch.Generator) -> Tensor:
    return orthonormal(d, r, draw) @ orthonormal(d, r, draw).mT


def noise(d: int, draw: torch.Generator) -> Tensor:
    return torch.randn(d, d, generator=draw)


def only(A: Tensor, rows: int, cols: int) -> Tensor:
    """A block of A; zeros elsewhere."""
    block = torch.zeros_like(A)
    block[:rows, :cols] = A[:rows, :cols]
    return block


RESTS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "noise": noise,
    "rank 1": lambda d, draw: directions(d, 1, draw),
    "rank d/64": lambda d, draw: directions(d, d // 64, draw),
    "one row": lambda d, draw: only(noise(d, draw), 1, d),
    "d/16 rows": lambda d, draw: only(noise(d, draw), d // 16, d),
    "one column": lambda d, draw: only(noise(d, draw), d, 1),
    "a block": lambda d, draw: only(noise(d, draw), d // 16, d // 16),
    "one sign": lambda d, draw: noise(d, draw).abs(),
}


def gradient(structure: str, d: int, r: int, draw: torch.Generator) -> Tensor:
    if structure == "nothing":
        return directions(d, r, draw)
    if structure == "fewer":
        return directions(d, r // 2, draw)
    if structure == "decaying":
        return orthonormal(d, d, draw) * torch.logspace(0, -3, d) @ orthonormal(d, d, draw)
    rest = RESTS["noise" if structure == "zero" else structure](d, draw)
    made: Tensor = directions(d, r, draw) + 0.1 * rest / torch.linalg.matrix_norm(rest, 2)
    return made


def moved(gradients: list[Tensor], residual: Any, seed: int) -> tuple[Tensor, Tensor]:
    """The updates of the first and of the last step."""
    X = Parameter(torch.zeros_like(gradients[0]))
    optimizer = torchdion.Dion(
        [X], lr=LR, mu=0.0, error_feedback=False, weight_decay=0.0, rank_fraction=1 / 16, residual=residual, seed=seed
    )
    updates = []
    for G in gradients:
        with torch.no_grad():
            X.zero_()
        X.grad = G
        optimizer.step()
        updates.append(-X.detach() / LR)
    return updates[0], updates[-1]


def measures(rest: Tensor) -> dict[str, float]:
    of_muon = math.sqrt(min(rest.shape))
    return {
        "spectral": float(torch.linalg.matrix_norm(rest, 2)),
        "frobenius": float(torch.linalg.vector_norm(rest)) / of_muon,
    }


def structured(structure: str, residual: str, d: int, seed: int) -> list[dict[str, Any]]:
    """The first step and the last one."""
    G = gradient(structure, d, d // 16, torch.Generator().manual_seed(seed))
    gradients = [G] * WARM + [torch.zeros_like(G) if structure == "zero" else G]
    steps = zip((1, WARM + 1), moved(gradients, residual, seed), moved(gradients, None, seed), strict=True)
    labels = {"d": d, "structure": structure, "residual": residual, "seed": seed}
    return [{**labels, "step": step, **measures(with_rest - without)} for step, with_rest, without in steps]


class Watched:
    """The spectral norms of the residual of each matrix in the steps of a training that are watched."""

    def __init__(self, optimizer: torchdion.Dion) -> None:
        self.norms: dict[int, list[float]] = {}
        self._step = 0
        self._twin: torchdion.Dion | None = None
        optimizer.register_step_pre_hook(self._copy)
        optimizer.register_step_post_hook(self._compare)

    def _matrices(self, optimizer: torchdion.Dion) -> list[tuple[Parameter, float]]:
        """With the rate that the update has there."""
        return [
            (param, group["lr"] * math.sqrt(param.shape[0] / param.shape[1]))
            for group in optimizer.param_groups
            if group["algorithm"] == "dion"
            for param in group["params"]
        ]

    def _copy(self, optimizer: Any, *_: Any) -> None:
        self._step += 1
        if self._step > FIRST and self._step % 10:
            return
        twin = copy.deepcopy(optimizer)
        twin._optimizer_step_pre_hooks.clear()
        twin._optimizer_step_post_hooks.clear()
        for own, group in zip(optimizer.param_groups, twin.param_groups, strict=True):
            if group["algorithm"] == "dion":
                group["residual"] = None
            for param, copied in zip(own["params"], group["params"], strict=True):
                copied.grad = param.grad
        twin.step()
        self._twin = twin

    def _compare(self, optimizer: Any, *_: Any) -> None:
        if self._twin is None:
            return
        pairs = zip(self._matrices(optimizer), self._matrices(self._twin), strict=True)
        rests = [(other.detach() - own.detach()) / rate for (own, rate), (other, _) in pairs]
        self.norms[self._step] = [measures(rest)["spectral"] for rest in rests]
        self._twin = None


def training(residual: str, rank: str, seed: int, steps: int) -> dict[str, Any]:
    flags = ["--residual", residual, "--rank-fraction", str(1 / int(rank.removeprefix("d/")))]
    given = options.parse([*RECIPE, *flags, "--seed", str(seed), "--steps", str(steps)])
    recipe = options.recipe(given, torch.device("cpu"), None)
    trainer = Trainer(recipe, torch.device("cpu"), *open_data(recipe), False, OneProcess())
    optimizer = trainer.optimizers[0]
    assert isinstance(optimizer, torchdion.Dion)
    watched = Watched(optimizer)
    for _ in range(steps):
        trainer.train_step()
    row: dict[str, Any] = {"rank": rank, "residual": residual, "seed": seed}
    for name, steps_of in (("in the first", range(1, FIRST + 1)), ("after", range(FIRST + 1, steps + 1))):
        norms = [norm for step in steps_of for norm in watched.norms.get(step, [])]
        row |= {f"largest {name}": max(norms), f"median {name}": median(norms)}
    return row | {"loss": trainer.validate()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=256, help="rows and columns of the structured gradients")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    given = parser.parse_args()
    if given.steps < 2 * FIRST:
        parser.error(f"--steps must be {2 * FIRST} or more, of which {FIRST} are counted apart")
    if given.d < 64 or given.d % 64:
        parser.error("--d must be a multiple of 64")
    seeds = range(given.seeds)
    structures = (*RESTS, "nothing", "fewer", "zero", "decaying")
    steps = [
        emit(row)
        for structure in structures
        for kind in KINDS
        for seed in seeds
        for row in structured(structure, kind, given.d, seed)
    ]
    trained = [
        emit(training(kind, rank, seed, given.steps)) for kind in KINDS for rank in ("d/4", "d/16") for seed in seeds
    ]
    print(table(steps, list(steps[0])), table(trained, list(trained[0])), sep="\n\n")
