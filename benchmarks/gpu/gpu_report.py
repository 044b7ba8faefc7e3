"""The README's tables, the targets and a picture, from the JSON lines of the other programs here.

    python benchmarks/gpu/gpu_report.py ROWS [MORE ...] [--after CALL] [--markdown report.md] [--plot steps.png]

ROWS are files of JSON lines or folders with a rows.jsonl, of which the later one says what holds. Prints the targets
and every problem, with --markdown all tables. The exit status is 1 if a target was not measured that the calls up to
--after must have measured; without it, all must.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
from gpu_calls import CALLS, ROOT
from gpu_lists import LISTS
from gpu_predicted import COLUMNS as PREDICTED
from gpu_predicted import compared
from gpu_targets import Target, targets
from measure import table
from rows import LABELS, Row, beside, one, package_of, ratio, read, select
from steps_plot import plot

COMMITTED = ROOT / "benchmarks" / "results" / "gpu" / "predicted.jsonl"

RATES = {"TF32 TFLOP/s": "tf32", "BF16 TFLOP/s": "bf16", "FP64 TFLOP/s": "fp64"}
STEP = (
    *("list", "r", "state", "precision", "ms", "× roofline", "back to back × roofline", "× AdamW", "Muon / this"),
    *("dion / this", "launches / shape", "first / ms", "peak MB"),
)
GRAPH = (
    *("list", "r", "state", "capturable ms", "× eager", "graph ms", "graph × eager", "graph × roofline"),
    "back to back ms",
)
RIVALS = (
    *("list", "optimizer", "mode", "r", "symmetric products", "ms", "× AdamW", "× torchdion", "first / ms"),
    *("rounds", "launches", "state MB", "peak MB"),
)
OPERATIONS = (
    *("list", "operation", "count", "m", "n", "rows", "r", "method", "precision", "ms"),
    *("× product", "linalg.qr / this", "× copy"),
)
PRODUCTS = (
    *("list", "count", "m", "n", "r", "precision", "product", "least ms", "strided", "pointers", "pointers alone"),
    *("each", "each alone", "torchdion", "torchdion alone", "of a copy's rate", "kernel, strided", "kernel, pointers"),
)
TRAININGS = ("optimizer", "r", "precision", "lr", "steps", "loss", "tokens/s", "step_ms", "optimizer_ms", "share")
COUNTERS = ("list", "kernel", "ms", "grid", "dram %", "tensor %", "occupancy %")
KERNELS_SHOWN = 8
MISSING = "not measured"
RATES_DIFFER = 0.05  # more than that is said
PROBLEMS_PRINTED = 30  # the others are in the file


def machines(rows: Sequence[Row]) -> list[Row]:
    """What was measured, and at which rates: operations and bytes per second in the same run."""
    return [
        {**row, **{name: row[key] / 1e12 for name, key in RATES.items()}, "GB/s": row["copy"] / 1e9}
        for row in select(rows, kind="machine")
    ]


def steps(rows: Sequence[Row]) -> list[Row]:
    """Dion's eager steps, and the ratios to rivals' on the same matrices where both were timed in one run."""
    shown = []
    for row in select(rows, kind="step", optimizer="Dion", mode="eager"):
        rivals = {"kind": "step", "list": row["list"], "mode": "eager"}
        package = one(rows, **rivals, optimizer="dion package", rank=row["rank"], state=row["state"])
        same = {label: row[label] for label in ("list", "optimizer", "rank", "state", "precision")}
        profile = one(rows, kind="launches", **same)
        beside_torch, beside_dion = (
            one(rows, kind="step", mode=beside(rival), **same).get("ms") for rival in ("AdamW", "dion package")
        )
        following = one(rows, kind="step", mode="back to back", **same)
        shown.append(
            {
                **{"list": row["list"], "r": row["rank"], "state": row["state"], "precision": row["precision"]},
                "ms": row["ms"],
                "× roofline": ratio(row["ms"], row.get("least_ms")),
                "back to back × roofline": ratio(following.get("ms"), following.get("least_ms")),
                "× AdamW": ratio(beside_torch, one(rows, **rivals, optimizer="AdamW").get("ms")),
                "Muon / this": ratio(one(rows, **rivals, optimizer="Muon").get("ms"), beside_torch),
                "dion / this": ratio(package.get("ms"), beside_dion),
                "launches / shape": ratio(profile.get("launches"), profile.get("groups")),
                "first / ms": ratio(row.get("first_ms"), row["ms"]),
                "peak MB": row.get("peak_mb"),
            }
        )
    return shown


def graphs(rows: Sequence[Row]) -> list[Row]:
    """Steps that a graph can hold, and their replays."""
    shown = []
    for row in select(rows, kind="step", optimizer="Dion", mode="capturable"):
        same = {label: row[label] for label in ("kind", "list", "optimizer", "rank", "state", "precision")}
        eager, graph = one(rows, **same, mode="eager").get("ms"), one(rows, **same, mode="graph").get("ms")
        shown.append(
            {
                **{"list": row["list"], "r": row["rank"], "state": row["state"]},
                "capturable ms": row["ms"],
                "× eager": ratio(row["ms"], eager),
                "graph ms": graph,
                "graph × eager": ratio(graph, eager),
                "graph × roofline": ratio(graph, row["least_ms"]),
                "back to back ms": one(rows, **same, mode="graphs back to back").get("ms"),
            }
        )
    return shown


def adamw_beside(rows: Sequence[Row], row: Row) -> Row:
    """torch's fused AdamW in the run of this step, if it was there."""
    if package_of(row["optimizer"]) or row["mode"] == "cuBLAS alone":
        return {}
    return one(rows, kind="step", list=row["list"], optimizer="AdamW", mode="eager")


def own_beside(rows: Sequence[Row], row: Row) -> Row:
    """This library's optimizer of the same name and rank, in the run of this step of a package's."""
    package = package_of(row["optimizer"])
    if package is None:
        return {}
    name = row["optimizer"].removeprefix(package).strip()
    own = {"optimizer": f"torchdion.{name}" if name else "Dion", "rank": row.get("rank"), "state": row.get("state")}
    return one(rows, kind="step", list=row["list"], mode=beside(package), **own)


def rivals(rows: Sequence[Row]) -> list[Row]:
    """Steps of all optimizers but Dion, with their ratios to steps of the same run."""
    shown = []
    for row in select(rows, kind="step"):
        optimizer, mode = row["optimizer"], row["mode"]
        if optimizer == "Dion" or mode.startswith("beside"):
            continue
        profile = one(rows, kind="launches", list=row["list"], optimizer=optimizer) if mode == "eager" else {}
        known = {
            "r": row.get("rank"),
            "symmetric products": row.get("symmetric_products"),
            "× AdamW": ratio(row["ms"], adamw_beside(rows, row).get("ms")),
            "× torchdion": ratio(row["ms"], own_beside(rows, row).get("ms")),
            "first / ms": ratio(row.get("first_ms"), row["ms"]),
            "launches": profile.get("launches"),
        }
        shown.append({**row, **known, "state MB": row.get("state_mb"), "peak MB": row.get("peak_mb")})
    return shown


def kernels(rows: Sequence[Row]) -> list[Row]:
    """The longest of each step in FP32 states."""
    shown = []
    profiled = select(rows, kind="kernel", state="FP32")
    of_steps = dict.fromkeys((row["list"], row["optimizer"], row.get("rank")) for row in profiled)
    for name, optimizer, rank in sorted(of_steps, key=lambda step: list(LISTS).index(step[0])):
        same = select(profiled, list=name, optimizer=optimizer, rank=rank)
        same.sort(key=lambda row: -row["share"])
        shown += [{**row, "r": rank, "× copy": row["over_copy"]} for row in same[:KERNELS_SHOWN]]
    return shown


def operations(rows: Sequence[Row]) -> list[Row]:
    return [
        {**row, "× product": row.get("over_product"), "linalg.qr / this": row.get("qr"), "× copy": row.get("over_copy")}
        for row in select(rows, kind="operation")
    ]


def orthogonality(rows: Sequence[Row]) -> list[Row]:
    """The worst of all sizes and methods, for each condition number."""
    found = select(rows, kind="orthogonality")
    shown = []
    for condition in dict.fromkeys(row["condition"] for row in found):
        line: Row = {"κ(P)": f"{condition:.0e}"}
        for precision in dict.fromkeys(row["precision"] for row in found):
            same = [row for row in found if (row["condition"], row["precision"]) == (condition, precision)]
            line[precision] = max((row["error"] for row in same), default=None)
            line[f"zero columns, {precision}"] = max((row["zero_columns"] for row in same), default=None)
        shown.append(line)
    return shown


def counters(rows: Sequence[Row]) -> list[Row]:
    """Of the three longest kernels."""
    found = sorted(select(rows, kind="metrics"), key=lambda row: -row["ms"])
    return [{**row, **{f"{name} %": row[name] for name in ("dram", "tensor", "occupancy")}} for row in found[:3]]


def products(rows: Sequence[Row]) -> list[Row]:
    """A line for each product, with the milliseconds of every method, the kernels of two and torchdion's traffic."""
    names = ("list", "count", "m", "n", "r", "precision", "product")
    shown: dict[tuple[object, ...], Row] = {}
    for row in select(rows, kind="product"):
        labels = {label: row.get(label) for label in names}
        line = shown.setdefault(tuple(labels.values()), labels | {"least ms": row["ms"] / row["over_limit"]})
        line[row["method"]] = row["ms"]
        if row["method"] == "torchdion":
            line["of a copy's rate"] = row.get("of_copy_rate")
    for row in select(rows, kind="product kernel"):
        key = tuple(row.get(label) for label in names)
        if key in shown and row["kernels"]:
            shown[key] |= {
                f"kernel, {row['method']}": row["kernels"][0][:60],
                f"{row['method']} alone": row["device_ms"],
            }
    return list(shown.values())


def trainings(rows: Sequence[Row]) -> list[Row]:
    """Of each optimizer the one with the least loss."""
    best: dict[tuple[object, ...], Row] = {}
    for row in select(rows, kind="training"):
        key = tuple(row.get(label) for label in ("optimizer", "rank", "precision"))
        if key not in best or row["loss"] < best[key]["loss"]:
            best[key] = row
    return [{**row, "r": row.get("rank"), "tokens/s": row["tokens_per_second"]} for row in best.values()]


def tests(rows: Sequence[Row]) -> list[Row]:
    """How many tests of each suite ended how, of how many."""
    found = [row for row in rows if row.get("kind") == "test"]
    shown = []
    for suite in dict.fromkeys(row["suite"] for row in found):
        ended = [row["outcome"] for row in found if row["suite"] == suite]
        known = {"suite": suite, "of": one(rows, kind="tests", suite=suite).get("collected")}
        shown.append(known | {word: ended.count(word) for word in ("passed", "failed", "skipped")})
    return shown


def differing_rates(found: Sequence[Row]) -> list[str]:
    """Rates that programs on one GPU have measured far from each other: what is said in their terms is as far off."""
    said = []
    for name in RATES.values():
        rates = [row[name] for row in found if row.get(name) and "CPU" not in row["device"]]
        if rates and max(rates) > (1 + RATES_DIFFER) * min(rates):
            said.append(f"rates of {name} differ by {100 * (max(rates) / min(rates) - 1):.0f}% between programs")
    return said


def problems(rows: Sequence[Row]) -> list[str]:
    """What failed or was not measured, and why."""
    found = [row for row in select(rows, kind="machine") if "device" in row]
    devices = list(dict.fromkeys(row["device"] for row in found))
    mixed = [f"measured on different devices: {', '.join(devices)}"] if len(devices) > 1 else differing_rates(found)
    return mixed + [
        ", ".join(f"{row[label]}" for label in LABELS if row.get(label) is not None) + f": {row['problem']}"
        for row in rows
        if "problem" in row
    ]


def is_due(target: Target, after: str) -> bool:
    return CALLS.index(target.call) <= CALLS.index(after)


def checked(rows: Sequence[Row], of: Sequence[Target], after: str) -> list[Row]:
    """Every target; one that is measured by a later call says by which."""
    shown = []
    for target in of:
        value, outcome = target.check(rows)
        if value is None and not is_due(target, after):
            outcome = f"by the call {target.call}"
        bounds = {"now": target.shown(target.now), "wanted": target.shown(target.wanted)}
        shown.append({"target": target.claim, **bounds, "is": value, "outcome": outcome})
    return shown


def failures(rows: Sequence[Row], of: Sequence[Target], after: str) -> list[str]:
    missing = [f"{row['target']}: {MISSING}" for row in checked(rows, of, after) if row["outcome"] == MISSING]
    return [f"- {line}" for line in missing + problems(rows)]


def summary(failed: Sequence[str], rows: Sequence[Row], of: Sequence[Target], after: str) -> str:
    """All that failed, and the targets."""
    parts = ["### Failed or not measured\n\n" + "\n".join(failed)] if failed else []
    parts.append("### Targets\n\n" + table(checked(rows, of, after), ("target", "now", "wanted", "is", "outcome")))
    return "\n\n".join(parts)


def distances(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "r": row["rank"], "κ(BQ)": row["condition"]} for row in select(rows, kind="distance")]


def calls(rows: Sequence[Row]) -> list[Row]:
    return select(rows, kind="part")


# Title → what makes its lines, and its columns; without any, those of the first line.
TABLES: dict[str, tuple[Callable[[Sequence[Row]], list[Row]], Sequence[str]]] = {
    "Machine": (machines, ("program", "device", "torch", "date", *RATES, "GB/s")),
    "Calls": (calls, ("call", "part", "seconds", "outcome")),
    "Tests": (tests, ("suite", "of", "passed", "failed", "skipped")),
    "Steps of Dion": (steps, STEP),
    "CUDA graphs": (graphs, GRAPH),
    "Other optimizers": (rivals, RIVALS),
    "Trainings of 12 layers of 768": (trainings, TRAININGS),
    "Kernels, predicted and measured": (compared, PREDICTED),
    "Kernels": (kernels, ("list", "optimizer", "r", "kernel", "launches", "ms", "share", "× copy")),
    "Hardware counters": (counters, COUNTERS),
    "Products": (products, PRODUCTS),
    "Operations": (operations, OPERATIONS),
    "‖PᵀP − I‖₂, the worst": (orthogonality, ()),
    "‖X − X'‖ / ‖X' − X₀‖ after 20 steps": (distances, ("m", "n", "r", "state", "precision", "κ(BQ)", "error")),
}


def report(rows: Sequence[Row], of: Sequence[Target], after: str = CALLS[-1]) -> str:
    parts = [summary(failures(rows, of, after), rows, of, after)]
    for title, (make, columns) in TABLES.items():
        try:
            shown = make(rows)
            text = table(shown, columns or list(shown[0])) if shown else ""
        except (LookupError, TypeError, ValueError) as error:  # a row of another version; the other tables are made
            text = f"- not made: {error!r}"
        if text:
            parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="ROWS", help="of JSON lines")
    parser.add_argument("--after", choices=CALLS, default=CALLS[-1], help="the last call that was made")
    parser.add_argument("--markdown", type=Path, help="a file for all tables")
    parser.add_argument("--plot", type=Path, help="a picture of the steps")
    parser.add_argument("--dry", action="store_true", help="the targets are those of the tiny matrices")
    given = parser.parse_args(arguments)
    files = [path / "rows.jsonl" if path.is_dir() else path for path in given.files]
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    rows = read([*([COMMITTED] if COMMITTED.is_file() else []), *files])
    of = targets("tiny", "tiny") if given.dry else targets()
    failed = failures(rows, of, given.after)
    more = [f"- and {len(failed) - PROBLEMS_PRINTED} more"] if len(failed) > PROBLEMS_PRINTED else []
    print(summary(failed[:PROBLEMS_PRINTED] + more, rows, of, given.after))  # of a long output only the end may be seen
    if given.markdown:
        given.markdown.write_text(report(rows, of, given.after) + "\n", encoding="utf-8")
    if given.plot:
        plot(rows, given.plot)
    return 1 if any(row["outcome"] == MISSING for row in checked(rows, of, given.after)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
