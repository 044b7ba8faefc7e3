"""What a step costs where the matrices are too small for arithmetic to matter.

    python benchmarks/overhead.py [--rounds 60] [--threads 2]

300 parameters of 64×64, r = 16: one JSON line per optimizer, then a table. `AdamW foreach` is the wall time over that
of torch.optim.AdamW(foreach=True) in the same rounds.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from matrices import gradients, parameters
from measure import emit, interleaved, table
from torch.optim import Optimizer

import torchdion

SHAPES = [(64, 64)] * 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="steps timed for each optimizer")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    params = parameters(SHAPES)
    for param, gradient in zip(params, gradients(SHAPES, "flat"), strict=True):
        param.grad = gradient
    made: dict[str, Callable[..., Optimizer]] = {
        "Dion r = 16": partial(torchdion.Dion, lr=1e-3, rank_fraction=1 / 4),
        "AdamW foreach": partial(torch.optim.AdamW, lr=1e-3, foreach=True),
        "AdamW fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
        "Muon (torch)": partial(torch.optim.Muon, lr=1e-3),
    }
    steps: dict[str, Callable[[], object]] = {}
    for name, make in made.items():
        optimizer = make(params)
        optimizer.step()
        steps[name] = optimizer.step
    median, _ = interleaved(steps, arguments.rounds, lambda index: None)
    rows = [
        emit(
            {
                "optimizer": name,
                "seconds": median[name],
                "AdamW foreach": median[name] / median["AdamW foreach"],
                "threads": torch.get_num_threads(),
            }
        )
        for name in made
    ]
    print(table(rows, ("optimizer", "AdamW foreach")))


if __name__ == "__main__":
    main()
