"""Final losses of the GPT example: the same training with other optimizers, over seeds.

    python benchmarks/losses.py "dion" "dion --nesterov" "muon" [--seeds 3] [--common "--steps 200"]

Each contender is what `examples/gpt/train.py --optimizer` is given; `--common` are flags of them all. Every training is
a process of its own; contenders with one seed have the same weights and batches, so that their differences vary less
than losses do.

One JSON line for each training as it ends: its last validation loss, and `common`. Then one for each contender: `mean`
over the seeds and `interval`, half of the 95% confidence interval of the mean by Student's distribution; `over first`,
by how much the mean loss is above that of the first contender, and `its interval`, the same of the paired differences.
Then a table.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import emit, table

TRAIN = Path(__file__).parents[1] / "examples" / "gpt" / "train.py"
# Of Student's distribution, by degrees of freedom: what 97.5% lie below.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
MOST_SEEDS = len(QUANTILES) + 1


def half_interval(values: list[float]) -> float:
    """Half of the 95% confidence interval of their mean; infinite of one value."""
    if len(values) < 2:
        return float("inf")
    return QUANTILES[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def last_loss(log: Path) -> float:
    """The last validation loss of a log of the example."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    losses: list[float] = [row["loss"] for row in rows if row["kind"] == "validation"]
    return losses[-1]


def train(contender: str, common: str, seed: int, threads: int) -> float:
    """The last validation loss of one training, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--optimizer", *shlex.split(contender), *shlex.split(common)]
        own = ["--seed", str(seed), "--run", f"{folder}/run", "--sample-length", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, str(TRAIN), *flags, *own]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
        return last_loss(Path(folder) / "run" / "log.jsonl")


def summaries(losses: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each contender; the losses of one seed stand at one place of every list."""
    first = next(iter(losses.values()))
    rows = []
    for name, own in losses.items():
        differences = [a - b for a, b in zip(own, first, strict=True)]
        rows.append(
            {
                "optimizer": name,
                "seeds": len(own),
                "mean": statistics.mean(own),
                "interval": half_interval(own),
                "over first": statistics.mean(differences),
                "its interval": half_interval(differences),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="+", metavar="OPTIMIZER [FLAGS]")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, MOST_SEEDS + 1), metavar="N")
    parser.add_argument("--common", default="", help="flags of all trainings")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each training")
    given = parser.parse_args()
    losses: dict[str, list[float]] = {contender: [] for contender in given.contenders}
    for seed in range(given.seeds):
        for contender, own in losses.items():
            own.append(train(contender, given.common, seed, given.threads))
            emit({"common": given.common, "optimizer": contender, "seed": seed, "loss": own[-1]})
    rows = summaries(losses)
    for row in rows:
        emit({"common": given.common, **row})
    print(table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
