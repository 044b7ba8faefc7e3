"""The price of a rank: steps to a loss, and what a step asks of a GPU, each over Muon's.

    python benchmarks/rank_prices.py [--part ranks] [--list 1.3b] [--predicted]

A line of JSON for each optimizer of a part of the committed study (benchmarks/results/compare/residual):

    `steps`          to the study's loss over Muon's, `low` and `high` the ends of Tukey's 95% interval, `reached` by
                     how many `seeds`; null where one did not reach it, or has none yet
    `operations`     of a step on the list's matrices over Muon's, as torchdion.plan counts them, and
                     `operations_to_loss`: that times `steps`
    `roofline_ms`    of that step on an H100: of every matrix the longer of BF16 products and of traffic
    `predicted_ms`   with --predicted, of Dion and Muon: the least time of all launches (gpu/predicted.py, which needs
                     what `make test-cpp` builds), `step` over Muon's, and `time_to_loss`: that times `steps`
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from matrices import Shape
from measure import emit
from torch.nn import Parameter

import torchdion

ROOT = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(ROOT / "examples" / "gpt"), str(ROOT / "benchmarks" / "gpu")]

import predicted  # noqa: E402
from comparison import study, summary  # noqa: E402
from comparison.results import Results  # noqa: E402
from gpu_lists import LISTS  # noqa: E402

STUDY, PART, BASELINE = "residual", "ranks", "Muon"
PARTS = (PART, "right", "siblings")
"""Of one width and batch, with steps to a loss."""
Row = dict[str, Any]


def committed(part: str) -> summary.Group:
    """What the study has of a part with one width and batch."""
    asked = study.read(ROOT / "examples" / "gpt" / "studies" / f"{STUDY}.toml")
    [found] = [each for each in asked.parts if each.name == part]
    [group] = summary.groups(asked, found, Results(ROOT / "benchmarks" / "results" / "compare" / STUDY, None))
    return group


def step(shapes: list[Shape], flags: Mapping[str, Any]) -> tuple[float, float] | None:
    """Operations and seconds of a study's optimizer on these matrices; None of one that is none of torchdion's."""
    params = [(str(index), Parameter(torch.empty(shape, device="meta"))) for index, shape in enumerate(shapes)]
    options = {name: flags[name] for name in ("rank_fraction", "residual", "right_factor", "fraction") if name in flags}
    plan = torchdion.plan(
        [{"params": params}], {"dp": 1}, precision="medium", machine="h100", efficiency=1.0, **options
    )
    optimizer = {"dion": "dion_dense"}.get(flags["optimizer"], flags["optimizer"])
    if optimizer not in plan.estimates:
        return None
    return plan.estimates[optimizer].cost.flops, plan.estimates[optimizer].compute_seconds


def prices(group: summary.Group, shapes: list[Shape]) -> Iterator[Row]:
    steps = {row.name: step(shapes, row.setting.contender.flags) for row in group}
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
            "operations_to_loss": asked and of_steps and of_steps * asked[0] / of_muon[0],
            "roofline_ms": asked and 1e3 * asked[1],
        }


def predicted_ms(name: str, flags: Mapping[str, Any]) -> float:
    """Of a step of Dion or Muon on a list."""
    if flags["optimizer"] == "muon":
        *_, of_muon = predicted.predict_other(name, "Muon", 1.0)
        return float(of_muon["least_ms"])
    [rank] = [rank for rank, fraction in predicted.ALL_RANKS.items() if fraction == flags["rank_fraction"]]
    options = {
        each: flags[each] for each in ("nesterov", "residual", "error_feedback", "right_factor") if each in flags
    }
    *_, total = predicted.predict(name, rank, "medium", 1.0, **options)
    return float(total["least_ms"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default=PART)
    parser.add_argument("--list", choices=LISTS, default="1.3b", help="of a GPT's matrices")
    parser.add_argument("--predicted", action="store_true")
    given = parser.parse_args(arguments)
    if given.predicted:
        predicted.load(predicted.LIBRARY)
    group = committed(given.part)
    rows = {row["optimizer"]: row for row in prices(group, LISTS[given.list]())}
    for each in group:
        row, flags = rows[each.name], each.setting.contender.flags
        if given.predicted and flags["optimizer"] in ("dion", "muon"):
            row["predicted_ms"] = predicted_ms(given.list, flags)
    for row in rows.values():
        if "predicted_ms" in row:
            row["step"] = row["predicted_ms"] / rows[BASELINE]["predicted_ms"]
            row["time_to_loss"] = row["steps"] and row["steps"] * row["step"]
        emit({**row, "list": given.list})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
