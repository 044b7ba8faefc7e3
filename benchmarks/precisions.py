"""What the precision of Dion's products and its orientation cost in loss.

    python benchmarks/precisions.py [--seeds 3] [--steps 200] [--ranks d d/4 d/16] [--device cpu]

Trains the GPT of examples/gpt with two layers of width 128, Dion and nesterov, by the recipe of dropped_columns.py. A
JSON line for each rank, precision or orientation, and seed: the validation loss, and the share of columns that steps
took for rounding. Then the means, beside those of precision "high" and orientation "right" of the same seeds.

On a CPU "high" is "highest"; the operations of a GPU, run by the host, have it:

    TORCHDION_TEST_BACKEND=emulated TORCHDION_EMULATED=build/package/tests/cpp/libtorchdion_emulated.so \\
      python benchmarks/precisions.py
"""

import argparse
from statistics import mean, stdev
from typing import Any

import torch
from dropped_columns import training
from measure import emit, table

RANKS = {"d": "1", "d/4": "0.25", "d/16": "0.0625"}
VARIANTS = {
    "high": ["--precision", "high"],
    "medium": ["--precision", "medium"],
    "short": ["--precision", "high", "--orientation", "short"],
}


def summary(rank: str, variant: str, rows: list[dict[str, Any]], of_high: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean loss, and how far it is above that of "high", with the standard deviation of the seeds' differences."""
    apart = [row["loss"] - other["loss"] for row, other in zip(rows, of_high, strict=True)]
    return {
        "rank": rank,
        "variant": variant,
        "loss": mean(row["loss"] for row in rows),
        "above high": mean(apart),
        "deviation": stdev(apart) if len(apart) > 1 else None,
        "dropped after": mean(row["dropped after"] for row in rows),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", nargs="+", choices=RANKS, default=list(RANKS))
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    given = parser.parse_args()
    summaries = []
    for rank in given.ranks:
        of_rank = {}
        for variant, flags in VARIANTS.items():
            all_flags = ["--nesterov", "--rank-fraction", RANKS[rank], *flags]
            of_rank[variant] = [
                emit({"rank": rank, "variant": variant, **training(all_flags, seed, given.steps, given.device)})
                for seed in range(given.seeds)
            ]
        summaries += [summary(rank, variant, rows, of_rank["high"]) for variant, rows in of_rank.items()]
    print(table(summaries, list(summaries[0])))
