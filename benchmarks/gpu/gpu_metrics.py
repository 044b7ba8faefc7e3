"""What the hardware counted in the kernels of a step, by Nsight Compute.

    python benchmarks/gpu/gpu_metrics.py [--list 1.3b] [--seconds 90] [--csv metrics.csv]

Runs one step of Dion at r = d/4 on four matrices, the list's largest shape, under ncu, after two steps that it does not
see. JSON lines of `kind` "metrics", for the longest launch of each kernel, the longest first:

    kernel, full_name    as short as kernel_names.py has it, and as it is
    ms, grid             of that launch
    dram                 achieved throughput of the device memory, in percent of its peak
    tensor               cycles in which the tensor pipe was active, in percent
    occupancy            warps that were active, in percent of what an SM holds

Everything that ncu counted is in the file of --csv.
"""

import csv
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_tools import find
from gpu_case import Case, cases_of, dion
from kernel_names import short
from machine import open_machine, parser_of

MATRICES = 4
LAUNCHES = 400  # at most, of some 100
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
METRICS = (
    "gpu__time_duration.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    TENSOR,
)
SECTIONS = ("SpeedOfLight", "Occupancy", "ComputeWorkloadAnalysis")
# What ncu is asked for: little, which takes few passes, and where the chip does not know one of the names, its own.
ASKED = (["--metrics", ",".join(METRICS)], [word for section in SECTIONS for word in ("--section", section)])
# The largest number in a column of the first pattern that has any: names differ from chip to chip.
COLUMNS = {
    "ms": (r"gpu__time_duration\.sum",),
    "dram": (r"(gpu__dram|dram_)_throughput\.avg\.pct_of_peak_sustained_elapsed",),
    "tensor": (re.escape(TENSOR), r"sm__(inst_executed_)?pipe_tensor.*pct_of_peak_sustained_active"),
    "occupancy": (r"sm__warps_active\.avg\.pct_of_peak_sustained_active",),
}


def ncu_command(ncu: str, log: Path, asked: list[str], program: list[str]) -> list[str]:
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--log-file", str(log)]
    return [ncu, *options, "--profile-from-start", "off", "--launch-count", str(LAUNCHES), *asked, *program]


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # "n/a", or "nan" in words


def largest(row: dict[str, str], pattern: str) -> float | None:
    """The largest number in the columns of this name."""
    numbers = (number(row[column] or "") for column in row if column and re.fullmatch(pattern, column))
    return max((value for value in numbers if value is not None), default=None)


def launches(text: str) -> list[dict[str, Any]]:
    """One for each row of ncu's table, which its messages surround and whose second line has the units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found = []
    for row in csv.DictReader(lines):
        known: dict[str, Any] = {"full_name": row["Kernel Name"], "grid": row.get("Grid Size", "")}
        for name, patterns in COLUMNS.items():
            known[name] = next((value for pattern in patterns if (value := largest(row, pattern)) is not None), None)
        if known["ms"] is not None:  # the line of units has no number
            found.append({**known, "kernel": short(known["full_name"]), "ms": known["ms"] / 1e6})  # from nanoseconds
    return found


def longest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest launch of each kernel, the longest first."""
    ordered = sorted(found, key=lambda row: -row["ms"])
    return [row for i, row in enumerate(ordered) if row["kernel"] not in {before["kernel"] for before in ordered[:i]}]


def said_by(command: list[str], seconds: float) -> str:
    """What a program has written, which is ended after so many seconds."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            return child.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            child.kill()  # what it ran may hold its output: nothing of it is waited for
            return f"==ERROR== ncu had not ended after {seconds:.0f} s"


def metric_rows(given: Any, end: float) -> Iterator[dict[str, Any]]:
    ncu = find("ncu")
    if ncu is None:
        raise RuntimeError("ncu was not found")
    program = [sys.executable, __file__, "--inside", "--device", given.device, "--list", given.list[0]]
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        for index, asked in enumerate(ASKED):  # ncu stops at a name that the chip does not know
            seconds = max(10.0, (end - time.time()) / (len(ASKED) - index))
            output = said_by(ncu_command(ncu, log, asked, program), seconds)
            text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            found = launches(text)
            if len(found) >= LAUNCHES:
                raise RuntimeError(f"a step has {LAUNCHES} launches or more, of which the later ones were not counted")
            if found:
                if given.csv:
                    given.csv.write_text(text, encoding="utf-8")
                yield from longest(found)
                return
            said = next((line for line in (text + output).splitlines() if "ERROR" in line), said)
    raise RuntimeError(said or "ncu counted nothing")


def step_inside(case: Case) -> None:
    largest = max(case.shapes, key=lambda shape: shape[0] * shape[1])
    few = case._replace(shapes=[largest] * MATRICES)
    optimizer, _, _ = few.started(dion("d/4", "FP32", case.machine.device, capturable=False))
    case.machine.marked(optimizer.step)


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__, ["1.3b"], 90.0)
    parser.add_argument("--csv", type=Path, help="where everything that ncu counted goes")
    parser.add_argument("--inside", action="store_true", help="be the program that ncu runs")
    given = parser.parse_args(arguments)
    machine = open_machine(given, "gpu_metrics.py")
    if given.inside:
        step_inside(cases_of(machine, given.list, 1, "metrics")[given.list[0]])
        return 0
    labels = {"kind": "metrics", "list": given.list[0], "rank": "d/4"}
    machine.attempt(labels, metric_rows(given, machine.end))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
