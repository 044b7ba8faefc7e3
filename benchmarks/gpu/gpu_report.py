"""The README's tables, the targets and a picture, from the JSON lines of the other programs here.

    python benchmarks/gpu/gpu_report.py rows.jsonl [MORE ...] [--plot steps.png]

Prints Markdown. A row that says the same as an earlier one, but for its numbers, replaces it; rows that are not there
leave cells empty and targets "not measured".
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
from gpu_lists import LISTS, RANKS, STATES
from gpu_targets import TARGETS, Row, select
from measure import table

LABELS = (
    *("kind", "list", "optimizer", "rank", "state", "precision", "mode", "kernel", "operation", "method"),
    *("count", "rows", "r", "m", "n", "condition"),
)
STEP = (
    *("list", "r", "state", "precision", "ms", "× roofline", "× AdamW", "Muon / this", "dion / this"),
    *("launches / shape", "first / ms", "peak MB"),
)
GRAPH = ("list", "r", "state", "capturable ms", "× eager", "graph ms", "graph × eager", "graph × roofline")
RIVALS = ("list", "optimizer", "r", "state", "ms", "rounds", "launches", "state MB", "peak MB")
OPERATIONS = (
    *("list", "operation", "count", "m", "rows", "r", "method", "precision", "ms"),
    *("× product", "linalg.qr / this", "× copy"),
)
KERNELS_SHOWN = 8


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of these files, in order; a last line that was cut off is no row."""
    rows: dict[tuple[Any, ...], Row] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[tuple(row.get(label) for label in LABELS)] = row
    return list(rows.values())


def one(rows: Sequence[Row], **labels: Any) -> Row:
    """The row with these labels; without numbers where there is none."""
    return next(iter(select(rows, **labels)), {})


def ratio(above: Any, below: Any) -> float | None:
    return above / below if above is not None and below else None


def machines(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row['device']}, torch {row['torch']}: products of {row['tf32'] / 1e12:.3g} (TF32), {row['bf16'] / 1e12:.3g} "
        f"(BF16) and {row['fp64'] / 1e12:.3g} (FP64) TFLOP/s, copies of {row['copy'] / 1e9:.4g} GB/s "
        f"({row.get('list', 'operations')})"
        for row in select(rows, kind="machine")
    ]


def steps(rows: Sequence[Row]) -> list[Row]:
    """Dion's eager steps beside the rivals' on the same matrices."""
    shown = []
    for row in select(rows, kind="step", optimizer="Dion", mode="eager"):
        rivals = {"kind": "step", "list": row["list"], "mode": "eager"}
        package = one(rows, **rivals, optimizer="dion package", rank=row["rank"], state=row["state"])
        same = {label: row[label] for label in ("list", "optimizer", "rank", "state", "precision")}
        profile = one(rows, kind="launches", **same)
        shown.append(
            {
                **{"list": row["list"], "r": row["rank"], "state": row["state"], "precision": row["precision"]},
                "ms": row["ms"],
                "× roofline": ratio(row["ms"], row.get("least_ms")),
                "× AdamW": ratio(row["ms"], one(rows, **rivals, optimizer="AdamW").get("ms")),
                "Muon / this": ratio(one(rows, **rivals, optimizer="Muon").get("ms"), row["ms"]),
                "dion / this": ratio(package.get("ms"), row["ms"]),
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
            }
        )
    return shown


def rivals(rows: Sequence[Row]) -> list[Row]:
    shown = []
    for row in select(rows, kind="step"):
        if row["optimizer"] != "Dion":
            profile = one(rows, kind="launches", list=row["list"], optimizer=row["optimizer"])
            known = {"r": row.get("rank"), "launches": profile.get("launches")}
            shown.append({**row, **known, "state MB": row["state_mb"], "peak MB": row["peak_mb"]})
    return shown


def kernels(rows: Sequence[Row]) -> list[Row]:
    """The longest of each step in FP32 states."""
    shown = []
    for name in LISTS:
        for rank in RANKS:
            same = select(rows, kind="kernel", list=name, optimizer="Dion", rank=rank, state="FP32")
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


def problems(rows: Sequence[Row]) -> list[str]:
    """What was not measured, and why."""
    return [
        ", ".join(f"{row[label]}" for label in LABELS if row.get(label) is not None) + f": {row['problem']}"
        for row in rows
        if "problem" in row
    ]


def targets(rows: Sequence[Row]) -> list[Row]:
    shown = []
    for target in TARGETS:
        figure = target.check(rows)
        shown.append({"target": target.claim, "wanted": figure.wanted, "is": figure.value, "outcome": figure.outcome})
    return shown


def report(rows: Sequence[Row]) -> str:
    found = orthogonality(rows)
    tables: list[tuple[str, list[Row], Sequence[str]]] = [
        ("Targets", targets(rows), ("target", "wanted", "is", "outcome")),
        ("Steps of Dion", steps(rows), STEP),
        ("CUDA graphs", graphs(rows), GRAPH),
        ("Other optimizers", rivals(rows), RIVALS),
        ("Kernels", kernels(rows), ("list", "r", "kernel", "launches", "ms", "share", "× copy")),
        ("Operations", operations(rows), OPERATIONS),
        ("‖PᵀP − I‖₂, the worst", found, list(found[0]) if found else ()),
        (
            "‖X − X'‖ / ‖X' − X₀‖ after 20 steps",
            [{**row, "r": row["rank"], "κ(BQ)": row["condition"]} for row in select(rows, kind="distance")],
            ("m", "n", "r", "state", "precision", "κ(BQ)", "error"),
        ),
    ]
    parts = ["\n".join(f"- {line}" for line in machines(rows))]
    parts += [f"### {title}\n\n{table(shown, columns)}" for title, shown, columns in tables if shown]
    missing = problems(rows)
    if missing:
        parts.append("### Not measured\n\n" + "\n".join(f"- {line}" for line in missing))
    return "\n\n".join(part for part in parts if part)


def plot(rows: Sequence[Row], path: Path) -> None:
    """A panel for each list, a group of bars for each rank, and the roofline across its Dion's."""
    from matplotlib.figure import Figure

    timed = select(rows, kind="step")
    names = [name for name in LISTS if any(row["list"] == name for row in timed)]
    if not names:
        print("gpu_report.py: no steps to draw", file=sys.stderr)
        return
    bars = {
        "Dion": ("Dion", "eager"),
        "Dion, CUDA graph": ("Dion", "graph"),
        "torch.optim.AdamW (fused)": ("AdamW", "eager"),
    }
    bars |= {"torch.optim.Muon": ("Muon", "eager"), "microsoft/dion": ("dion package", "eager")}
    figure = Figure(figsize=(3.5 * len(names) + 1.5, 4.5), layout="constrained")
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for place, (label, (optimizer, mode)) in enumerate(bars.items()):
            heights = []
            for rank in RANKS:
                own = {"rank": rank, "state": next(iter(STATES))} if optimizer in ("Dion", "dion package") else {}
                precision = {"precision": "high"} if optimizer == "Dion" else {}
                labels = {"list": name, "optimizer": optimizer, "mode": mode, **own, **precision}
                heights.append(one(timed, **labels).get("ms", float("nan")))
            positions = [index + 0.16 * (place - 2) for index in range(len(RANKS))]
            drawn = panel.bar(positions, heights, 0.16, color=f"C{place}", label=label)
            panel.bar_label(drawn, ["" if height != height else f"{height:.3g}" for height in heights], fontsize=7)
        for index, rank in enumerate(RANKS):
            labels = {"list": name, "optimizer": "Dion", "rank": rank, "state": "FP32", "precision": "high"}
            least = one(timed, **labels, mode="eager").get("least_ms")
            if least:
                panel.hlines(
                    least, index - 0.4, index - 0.08, colors="k", label="roofline of Dion" if index == 0 else None
                )
        panel.set_xticks(range(len(RANKS)), [f"r = {rank}" for rank in RANKS])
        panel.set_yscale("log")
        panel.set_title(name.upper())
    panels = figure.axes
    panels[0].set_ylabel("milliseconds per step")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="of JSON lines")
    parser.add_argument("--plot", type=Path, help="a picture of the steps")
    given = parser.parse_args(arguments)
    missing = [str(path) for path in given.files if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    rows = read(given.files)
    print(report(rows))
    if given.plot:
        plot(rows, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
