"""The time of one optimizer step against the roofline and against torch's optimizers.

    python benchmarks/step.py [--list gpt] [--rounds 7] [--threads 2]

One JSON line per optimizer and list, then a table. `roofline` is the time that the step's arithmetic (see
matrices.roofline_flops) takes at the rate of a 2048³ FP32 product measured in the same rounds; a ratio below 1 means
that fewer operations were needed than the formula counts. `traffic` is the least that the step reads and writes, each
gradient once and each momentum and weight there and back, at the rate at which one FP32 tensor of as many entries is
added to another in the same rounds: at low rank it takes longer than the arithmetic. `medium` in a name is
precision="medium". `over` is the optimizer whose step a contender's is compared with besides, `its` the time over that
one's: of a Dion at another precision, under Nesterov, with a residual or an orthonormal right factor the one without,
of Double Dion and DeMo that of Dion at r = d/4, of Muon's siblings Muon's. `first` is the first step (it also makes the
state; the median of three new optimizers) over a steady one.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from matrices import LISTS, gradients, parameters, roofline_flops
from measure import emit, interleaved, seconds, table
from torch.optim import Optimizer

import torchdion

RANKS = {"r = d": 1.0, "r = d/2": 1 / 2, "r = d/4": 1 / 4, "r = d/16": 1 / 16}
OVER = {
    "Dion r = d medium": "Dion r = d",
    "Dion r = d/4 medium": "Dion r = d/4",
    "Dion r = d, Nesterov": "Dion r = d",
    "Dion r = d/4, Nesterov": "Dion r = d/4",
    "Dion r = d/4, scaled": "Dion r = d/4",
    "Dion r = d/4, sign": "Dion r = d/4",
    "Dion r = d/4, Nesterov, scaled": "Dion r = d/4, Nesterov",
    "Dion r = d/4, Nesterov, sign": "Dion r = d/4, Nesterov",
    "Dion r = d/4, orthonormal": "Dion r = d/4",
    "Dion r = d/4, Nesterov, sign, without feedback": "Dion r = d/4",
    "Double Dion r = d/64, d/4": "Dion r = d/4",
    "DeMo": "Dion r = d/4",
    "NorMuon": "Muon",
    "Dion2 1/4": "Muon",
    "Dion3 1/4": "Muon",
}
BASELINES = ("AdamW foreach", "AdamW fused", "Muon (torch)")  # of the columns' ratios
POOL = 3  # gradients taken in turn, so that no step sees those of the last


WARM_UP = 2  # steps
LEAST_BYTES, ADDED_BYTES = 4 + 8 + 8, 4 + 8  # of an entry: of Dion's gradient, momentum and weight; of a sum's operands
OF_DOUBLE_DION = 48  # the momentum of its second stage gains r₁ dimensions a step, and conditions P₂ badly before


def contenders() -> dict[str, Callable[..., Optimizer]]:
    made: dict[str, Callable[..., Optimizer]] = {
        f"Dion {name}": partial(torchdion.Dion, lr=1e-3, rank_fraction=fraction) for name, fraction in RANKS.items()
    }
    for name in ("r = d", "r = d/4"):
        made[f"Dion {name} medium"] = partial(made[f"Dion {name}"], precision="medium")
    made["Dion r = d, Nesterov"] = partial(torchdion.Dion, lr=1e-3, nesterov=True)
    made["Dion r = d/4, Nesterov"] = partial(torchdion.Dion, lr=1e-3, nesterov=True, rank_fraction=1 / 4)
    for residual in ("scaled", "sign"):
        for name in ("Dion r = d/4", "Dion r = d/4, Nesterov"):
            made[f"{name}, {residual}"] = partial(made[name], residual=residual)
    made["Dion r = d/4, orthonormal"] = partial(made["Dion r = d/4"], right_factor="orthonormal")
    made["Dion r = d/4, Nesterov, sign, without feedback"] = partial(
        made["Dion r = d/4, Nesterov, sign"], error_feedback=False
    )
    made["Muon"] = partial(torchdion.Muon, lr=1e-3)
    made["NorMuon"] = partial(torchdion.NorMuon, lr=1e-3)
    made["Dion2 1/4"] = partial(torchdion.Dion2, lr=1e-3)
    made["Dion3 1/4"] = partial(torchdion.Dion3, lr=1e-3)
    made["Muon gram"] = partial(torchdion.Muon, lr=1e-3, newton_schulz="gram")
    made["Muon high"] = partial(torchdion.Muon, lr=1e-3, precision="high")
    made["Double Dion r = d/64, d/4"] = partial(
        torchdion.DoubleDion, lr=1e-3, rank_fraction=1 / 4, replicate_rank_fraction=1 / 64
    )
    made["DeMo"] = partial(torchdion.DeMo, lr=1e-3)
    made["Lion"] = partial(torchdion.Lion, lr=1e-4)
    made["AdamW"] = partial(torchdion.AdamW, lr=1e-3)
    made["AdamW foreach"] = partial(torch.optim.AdamW, lr=1e-3, foreach=True)
    made["AdamW fused"] = partial(torch.optim.AdamW, lr=1e-3, fused=True)
    made["Muon (torch)"] = partial(torch.optim.Muon, lr=1e-3)
    return made


def benchmark(list_name: str, spectrum: str, rounds: int, only: list[str] | None = None) -> list[dict[str, Any]]:
    shapes = LISTS[list_name]()
    pool = [gradients(shapes, spectrum) for _ in range(POOL)]
    params = parameters(shapes)
    made = contenders()
    if only is not None:
        made = {name: make for name, make in made.items() if name in (*only, *BASELINES)}

    def give_gradients(index: int) -> None:
        for param, gradient in zip(params, pool[index % POOL], strict=True):
            param.grad = gradient

    first: dict[str, float] = {}
    steps: dict[str, Callable[[], object]] = {}
    for name, make in made.items():
        give_gradients(0)
        first[name] = statistics.median(seconds(make(params).step) for _ in range(3))
        optimizer: Optimizer = make(params)
        for index in range(OF_DOUBLE_DION if name.startswith("Double Dion") else WARM_UP):
            give_gradients(index)
            optimizer.step()
        steps[name] = optimizer.step
    sums = torch.zeros(2, sum(param.numel() for param in params))
    steps["sum"] = partial(sums[0].add_, sums[1])
    median, rate = interleaved(steps, rounds, give_gradients)
    traffic = median.pop("sum") * LEAST_BYTES / ADDED_BYTES

    rows = []
    for name in made:
        over = OVER.get(name)
        rank = RANKS.get(name.removesuffix(" medium").partition(",")[0].removeprefix("Dion "))
        roofline = None if rank is None else roofline_flops(shapes, rank) / rate
        row = {
            "list": list_name,
            "spectrum": spectrum,
            "optimizer": name,
            "seconds": median[name],
            "roofline": None if roofline is None else median[name] / roofline,
            "traffic": None if rank is None else median[name] / traffic,
            "AdamW fused": median[name] / median["AdamW fused"],
            "AdamW foreach": median[name] / median["AdamW foreach"],
            "Muon": median[name] / median["Muon (torch)"],
            "over": over if over in median else None,
            "its": median[name] / median[over] if over in median else None,
            "first": first[name] / median[name],
            "threads": torch.get_num_threads(),
            "gflops": rate / 1e9,
        }
        rows.append(emit(row))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=LISTS, help="one list of matrices instead of all")
    parser.add_argument("--spectrum", choices=("flat", "power"), help="one kind of gradient instead of both")
    parser.add_argument(
        "--only", nargs="+", choices=contenders(), metavar="NAME", help="some contenders instead of all"
    )
    parser.add_argument("--rounds", type=int, default=5, help="steps timed for each optimizer")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [
        row
        for list_name in ([arguments.list] if arguments.list else LISTS)
        for spectrum in ([arguments.spectrum] if arguments.spectrum else ("flat", "power"))
        for row in benchmark(list_name, spectrum, arguments.rounds, arguments.only)
    ]
    columns = (
        "list",
        "spectrum",
        "optimizer",
        "roofline",
        "traffic",
        "AdamW fused",
        "AdamW foreach",
        "Muon",
        "over",
        "its",
        "first",
    )
    print(table(rows, columns))


if __name__ == "__main__":
    main()
