"""Training steps of a study's contenders over limited links, for its report: links.jsonl beside its rows.

    python benchmarks/study_links.py paper-tiny --part replicas --out benchmarks/results/compare/paper-tiny

The part's contenders, at its first width and batch, on as many gloo ranks of this machine as its flag `dp` says, one
thread each, in network namespaces behind links of `--rates` Mbit/s (links.py: root, iproute2). They take turns, step by
step. A row for each contender and rate: see comparison/links.py.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests" / "python" / "support"))
from checkpoint import write_whole
from comparison import cells, links, study, traffic
from comparison.cells import Setting
from comparison.links import NAME, LinkTime
from comparison.step_times import timed
from comparison.study import Study
from errors import Problem, run_script
from link_steps import WARM_UP
from links import joined
from measure import emit, line_of
from ranks import run_ranks
from study_links_ranks import Plan, time_steps


def measure(asked: Study, settings: list[Setting], rates: list[float], rounds: int) -> list[LinkTime]:
    alike = {setting.contender.name: setting.cell(setting.contender.rates[1], 0) for setting in settings}
    ranks = next(iter(alike.values())).processes
    if ranks < 2 or any(cell.flags.get("dp") != ranks or cell.processes != ranks for cell in alike.values()):
        raise Problem("all contenders of the part must have one flag dp, of 2 or more, and no other processes")
    with joined(ranks) as joint, tempfile.TemporaryDirectory() as folder:
        flags = {name: cell.flags for name, cell in alike.items()}
        plan = Plan(flags, tuple(rate * 1e6 for rate in rates), rounds, f"{folder}/store")
        rows = run_ranks(time_steps, ranks, joint, plan, time_limit=3000)[0]
    computing = {row["optimizer"]: row["seconds"] for row in rows if row["rate"] is None}
    found = []
    for row in rows:
        if row["rate"] is None:
            continue
        [setting] = (each for each in settings if each.contender.name == row["optimizer"])
        planned = traffic.sent_bytes(setting, ranks, alike[row["optimizer"]].flags.get("compress", False))
        found.append(
            LinkTime(
                timed=timed(setting),
                part=setting.part.name,
                contender=row["optimizer"],
                ranks=ranks,
                megabits=row["rate"] / 1e6,
                seconds=row["seconds"],
                computation=computing[row["optimizer"]],
                megabytes=row["megabytes"],
                planned_megabytes=None if planned is None else planned / 1e6,
                measured_megabits=row["measured Mbit/s"],
            )
        )
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--part", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the study's folder")
    parser.add_argument("--rates", type=float, nargs="+", default=[10000.0, 1000.0, 100.0], help="Mbit/s")
    parser.add_argument("--rounds", type=int, default=15, help="steps timed for each optimizer at each rate")
    given = parser.parse_args(arguments)
    if min(given.rates) <= 0:
        parser.error(f"--rates must be positive, got {min(given.rates):g}")
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {given.rounds}")
    asked = study.read(study.find(given.study))
    parts = [part for part in asked.parts if part.name == given.part]
    if not parts:
        raise Problem(f"the parts of {asked.name} are {', '.join(part.name for part in asked.parts)}")
    # Long enough for all that is timed, so that no schedule ends: the rates do not matter to a step's time.
    steps = 2 * given.rounds * (len(given.rates) + 1) + WARM_UP
    part = replace(parts[0], steps=(steps,) * len(parts[0].batches))
    settings = [each for each in cells.settings(asked, part) if (each.width, each.batch) == part.first]
    rows = measure(asked, settings, given.rates, given.rounds)
    for row in rows:
        emit(asdict(row))
    given.out.mkdir(parents=True, exist_ok=True)
    others = [row for row in links.read(given.out) if row.part != part.name]
    text = "".join(line_of(asdict(row)) + "\n" for row in [*others, *rows])
    write_whole(given.out / NAME, lambda file: file.write(text.encode()))
    return 0


if __name__ == "__main__":
    run_script(main)
