"""Whole training steps over slow links: compressed Dion beside what averages gradients.

    python benchmarks/slow_link.py [--ranks 2 4] [--rates 1000 100] [--rounds 5] [--plot slow_link.png]

The GPT of examples/gpt on its data (bytes), trained by examples/gpt's own trainer on gloo ranks of this machine, one
thread each. Every rank lives in a network namespace of its own (links.py: root, iproute2) behind a link that carries
`--rates` Mbit/s in each direction. The optimizers take turns, step by step, at full speed and at each rate, and train
to the end at full speed. One JSON line for each number of ranks, rate and optimizer:

    seconds            the median step: batch, forward, backward, update; of the slowest rank. Of a delayed optimizer
                       one of several in a row, which waits for what the one before has left in flight
    optimizer seconds  of them within step(), which for compressed Dion includes all communication
    computation        the median step at full speed
    communication      how long `megabytes` take at the measured rate
    this / larger      the step over the larger of the two: 1 where one hides the other
    this / sum         the step over their sum: 1 where they follow each other
    megabytes          that a rank's link carried away per step, by the interface's counter; it counts the headers of
                       packets, but only once those of a large one that the link passes whole
    counted megabytes  that the optimizer's counters say it sent (either Dion, compressed)
    AdamW / this       the step of DistributedDataParallel with AdamW over this one; so for torch.optim.Muon (AdamW
                       for what is no matrix) and for dense gradients, Dion r = d/16. All three overlap the averaging
                       of gradients with the backward pass, in buckets of the default size
    loss               validation, in nats per byte, after equally many `steps` of each
    measured Mbit/s    what a plain all-reduce reached on these links
    gflops             of a 2048³ FP32 product on each rank at once, in the same rounds
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests" / "python" / "support"))
from errors import Problem, run_script
from link_steps import WARM_UP
from links import joined
from measure import emit, table
from ranks import RankTimeout, run_ranks
from slow_link_ranks import CONTENDERS, Plan, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIVALS = {"AdamW / this": "AdamW", "Muon / this": "Muon (torch)", "dense / this": "Dion r = d/16, dense"}
COLUMNS = (
    "ranks", "Mbit/s", "optimizer", "seconds", "computation", "communication", "this / larger", "this / sum", *RIVALS,
    "loss",
)  # fmt: skip


def measure(ranks: int, given: argparse.Namespace, end: float) -> list[dict[str, Any]]:
    """The rows of one number of ranks, each with its ratios to the rivals."""
    flags = {
        "layers": given.layers,
        "d_model": given.d_model,
        "heads": given.heads,
        "context": given.context,
        "batch": given.sequences * ranks,
        "val_sequences": given.val_sequences,
        "clip": 0.0,  # under compression it is each rank's own
        "dtype": given.dtype,
    }
    rates = tuple(rate * 1e6 for rate in given.rates)
    with joined(ranks) as links, tempfile.TemporaryDirectory() as folder:
        links.throttle(min(rates))  # where that cannot be done, it is said before the ranks begin
        links.throttle(None)
        plan = Plan(flags, given.steps, rates, given.rounds, f"{folder}/store")
        left = max(1.0, end - time.monotonic())
        rows: list[dict[str, Any]] = run_ranks(train, ranks, links, plan, time_limit=left)[0]
    for row in rows:
        same = {other["optimizer"]: other["seconds"] for other in rows if other["Mbit/s"] == row["Mbit/s"]}
        row |= {column: same[name] / row["seconds"] for column, name in RIVALS.items()}
        emit(row)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel for each rate, a group of bars for each number of ranks."""
    from matplotlib import style

    with style.context("torchdion.figures"):
        _figure(rows).savefig(path, dpi=150)


def _figure(rows: list[dict[str, Any]]) -> "Figure":
    from matplotlib.figure import Figure

    rates, ranks = (list(dict.fromkeys(row[column] for row in rows)) for column in ("Mbit/s", "ranks"))
    figure = Figure(figsize=(9, 4.5))
    panels = figure.subplots(1, len(rates), squeeze=False)[0]
    for panel, rate in zip(panels, rates, strict=True):
        for place, name in enumerate(CONTENDERS):
            shown = [row for row in rows if row["Mbit/s"] == rate and row["optimizer"] == name]
            width = 0.8 / len(CONTENDERS)
            positions = [index + width * (place - (len(CONTENDERS) - 1) / 2) for index in range(len(shown))]
            bars = panel.bar(positions, [row["seconds"] for row in shown], width, color=f"C{place}", label=name)
            panel.bar_label(bars, [f"{row['seconds']:.2g}" for row in shown], fontsize=6)
        panel.set_xticks(range(len(ranks)), [f"{count} ranks" for count in ranks])
        panel.set_title(f"{rate:g} Mbit/s")
    panels[0].set_ylabel("seconds per training step")
    figure.suptitle(
        f"GPT of {rows[0]['parameters'] / 1e6:.1f}M parameters, {rows[0]['tokens']} tokens per rank and step"
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[1000.0, 100.0], help="Mbit/s")
    parser.add_argument("--rounds", type=int, default=5, help="steps timed for each optimizer at each rate")
    parser.add_argument("--steps", type=int, default=40, help="of each optimizer, the timed ones included")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--sequences", type=int, default=4, help="on each rank")
    parser.add_argument("--val-sequences", type=int, default=64)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of products (autocast)")
    parser.add_argument("--time-limit", type=float, default=1800.0, help="seconds")
    parser.add_argument("--plot", type=Path, help="a picture of the rows")
    given = parser.parse_args(arguments)
    if min(given.ranks) < 2:
        parser.error(f"--ranks must be 2 or more, got {min(given.ranks)}")
    if min(given.rates) <= 0:
        parser.error(f"--rates must be positive, got {min(given.rates):g}")
    least = 2 * given.rounds * (len(given.rates) + 1) + WARM_UP  # a delayed optimizer takes two for a timed one
    if given.rounds < 1 or given.steps < least:
        parser.error(
            f"--steps must be at least {least}, for --rounds at full speed and at each rate, got {given.steps}"
        )
    return given


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    start = time.monotonic()
    try:
        rows = [row for ranks in given.ranks for row in measure(ranks, given, start + given.time_limit)]
    except RankTimeout as timeout:
        raise Problem(f"--time-limit {given.time_limit:g} is over: {str(timeout).splitlines()[0]}", code=1) from timeout
    print(table(rows, COLUMNS))
    print(f"{time.monotonic() - start:.0f} s")
    if given.plot:
        plot(rows, given.plot)
    return 0


if __name__ == "__main__":
    run_script(main)
