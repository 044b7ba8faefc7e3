"""The price of a rank: steps to a loss, and what a step asks of a GPU, each over Muon's.

    python benchmarks/rank_prices.py [--list 1.3b] [--machine h100]

A line of JSON for each optimizer of the part "ranks" of the committed study (benchmarks/results/compare/residual):

    `steps`          to the study's loss over Muon's, `low` and `high` the ends of Tukey's 95% interval, `reached` by
                     how many `seeds`; null where one did not reach it, or has none yet
    `operations`     of a step on the list's matrices over Muon's, as torchdion.plan counts them
    `roofline_ms`    of that step, of every matrix the longer of BF16 products at the machine's peak and of traffic
    `optimizer_time` to the loss over Muon's: the product of the step's ratio of roofline_ms and `steps`
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from matrices import Shape, gpt_shapes
from measure import emit
from torch.nn import Parameter

import torchdion
from torchdion.planning.machines import MACHINES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT / "examples" / "gpt"))

from comparison import study, summary  # noqa: E402
from comparison.results import Results  # noqa: E402

STUDY, PART, BASELINE = "residual", "ranks", "Muon"
LISTS = {"120m": gpt_shapes(12, 768), "1.3b": gpt_shapes(24, 2048), "3b": gpt_shapes(28, 3072)}
Row = dict[str, Any]


def committed(part: str) -> summary.Group:
    """What the study has of a part with one width and batch."""
    asked = study.read(ROOT / "examples" / "gpt" / "studies" / f"{STUDY}.toml")
    [found] = [each for each in asked.parts if each.name == part]
    [group] = summary.groups(asked, found, Results(ROOT / "benchmarks" / "results" / "compare" / STUDY, None))
    return group


def step(shapes: list[Shape], flags: Mapping[str, Any], machine: str) -> tuple[float, float] | None:
    """Operations and seconds of a study's optimizer on these matrices; None of one that is none of torchdion's."""
    params = [(str(index), Parameter(torch.empty(shape, device="meta"))) for index, shape in enumerate(shapes)]
    options = {name: flags[name] for name in ("rank_fraction", "residual", "fraction") if name in flags}
    plan = torchdion.plan(
        [{"params": params}], {"dp": 1}, precision="medium", machine=machine, efficiency=1.0, **options
    )
    optimizer = {"dion": "dion_dense"}.get(flags["optimizer"], flags["optimizer"])
    if optimizer not in plan.estimates:
        return None
    return plan.estimates[optimizer].cost.flops, plan.estimates[optimizer].compute_seconds


def prices(group: summary.Group, shapes: list[Shape], machine: str) -> Iterator[Row]:
    steps = {row.name: step(shapes, row.setting.contender.flags, machine) for row in group}
    of_muon = steps[BASELINE]
    assert of_muon is not None
    for row in group:
        longer = group.comparison.difference(row.name, BASELINE)  # of logarithms
        of_steps = None if math.isnan(longer.value) else math.exp(longer.value)
        asked = steps[row.name]
        yield {
            "kind": "rank_price",
            "optimizer": row.name,
            "steps": of_steps,
            "low": of_steps and math.exp(longer.value - longer.half),
            "high": of_steps and math.exp(longer.value + longer.half),
            "reached": sum(map(math.isfinite, row.values.values())),
            "seeds": len(row.values),
            "operations": asked and asked[0] / of_muon[0],
            "roofline_ms": asked and 1e3 * asked[1],
            "optimizer_time": asked and of_steps and of_steps * asked[1] / of_muon[1],
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=LISTS, default="1.3b", help="of a GPT's matrices")
    parser.add_argument("--machine", choices=MACHINES, default="h100")
    given = parser.parse_args(arguments)
    for row in prices(committed(PART), LISTS[given.list], given.machine):
        emit({**row, "list": given.list, "machine": given.machine})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
