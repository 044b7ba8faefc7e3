"""The command line of compare.py: what a study still needs is trained and measured, then drawn."""

import fcntl
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from errors import Problem
from flags import OneSentenceParser, positive, whole
from interrupt import Interrupt
from model import parameters
from train import open_data

from comparison import cells, step_times, study, sweep
from comparison.cells import Cell
from comparison.estimate import duration
from comparison.results import Results
from comparison.runner import Runner
from comparison.study import Part, Study
from comparison.training import Pool
from torchdion.planning.machines import MACHINES


def made_with(asked: Study) -> dict[str, object]:
    """What the losses depend on beside flags, seeds and the processor's rounding."""
    first = next(cells.settings(asked, asked.parts[0]))
    windows, validation = open_data(cells.recipe_of(first.cell(first.contender.rates[0], 0)))
    return {
        "torch": importlib.metadata.version("torch").partition("+")[0],
        "torchdion": importlib.metadata.version("torchdion"),
        "Python": platform.python_version(),
        "device": asked.device,
        "data": [windows.fingerprint(), validation.fingerprint()],
    }


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other process may train in the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Problem(f"another compare.py is at work in {folder}") from error
        yield


def main(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="compare.py", description="Train one model with many optimizers, and report.")
    parser.add_argument("study", help="small, paper-tiny, … (studies/*.toml), or a .toml file")
    parser.add_argument("--out", type=Path, help="folder of rows and report (default runs/compare/STUDY)")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="only these parts of the study")
    parser.add_argument("--jobs", type=whole(1), help="processes that train at once (default: the processors or GPUs)")
    parser.add_argument("--hours", type=positive, default=math.inf, help="stop then; the same command goes on")
    parser.add_argument("--dry-run", action="store_true", help="list what would be trained, and train nothing")
    parser.add_argument("--measure", action="store_true", help="measure the times of steps again")
    parser.add_argument("--report", action="store_true", help="draw what is there, and train nothing")
    given = parser.parse_args(arguments)
    asked = study.read(study.find(given.study))
    cells.check(asked)
    names = [part.name for part in asked.parts]
    for name in given.parts or ():
        if name not in names:
            raise Problem(f"the parts of {asked.name} are {', '.join(names)}; {name!r} is none of them")
    parts = [part for part in asked.parts if given.parts is None or part.name in given.parts]
    folder = given.out or Path("runs/compare") / asked.name
    if given.dry_run:
        return dry_run(asked, parts, folder)
    if given.report:
        results = Results(folder, None)
        if not len(results):
            raise Problem(f"{folder} holds no rows to report")
        report(asked, results, folder)
        return 0
    with alone_in(folder):
        results = Results(folder, made_with(asked))
        ended_by = train(asked, parts, results, folder, given.jobs or jobs_on(asked.device), 3600 * given.hours)
        if ended_by is not None:
            return ended_by
        measure(asked, results, folder, given.measure)
        report(asked, results, folder)
    return 0


def jobs_on(device: str) -> int:
    """As many as there are of the device."""
    return len(os.sched_getaffinity(0)) if device == "cpu" else max(1, torch.cuda.device_count())


def check_gpus(asked: Study, parts: list[Part], jobs: int) -> None:
    """That each process of every training can have a GPU of its own."""
    for part in parts:
        for setting in cells.settings(asked, part):
            count = setting.cell(setting.rates[0], 0).processes
            if count > jobs:
                raise Problem(f"part {part.name!r}: {setting.contender.name} trains on {count} processes, "
                              f"each on a GPU of its own; here are {jobs}")  # fmt: skip


def train(asked: Study, parts: list[Part], results: Results, folder: Path, jobs: int, seconds: float) -> int | None:
    """Whatever is missing; the exit status if it was stopped before all is there."""
    if asked.device == "cuda":
        check_gpus(asked, parts, jobs)
    pool = Pool(folder / "unfinished", jobs, asked.device)
    with Interrupt() as interrupt:
        complete = Runner(asked, parts, results, pool).finish(interrupt, time.monotonic() + seconds)
    if complete:
        pool.leave()
        return None
    why = "interrupted" if interrupt.signal else f"stopped after {duration(seconds)}"
    print(f"{why} with {len(results)} trainings done; the same command goes on, and --report draws what is there")
    return 128 + interrupt.signal if interrupt.signal else 0


def measure(asked: Study, results: Results, folder: Path, again: bool) -> None:
    """The times of steps that figures need, on all processors, with nothing beside them."""
    threads = len(os.sched_getaffinity(0))
    known = {} if again else step_times.read(folder)
    for rates in step_times.wanted(asked, asked.parts, results, known):
        for row in step_times.measure(rates, threads, lambda line: print(line, flush=True)):
            known[row.timed] = row
        step_times.write(folder, list(known.values()))


def report(asked: Study, results: Results, folder: Path) -> None:
    """Tables on the screen, the report in the folder."""
    from comparison import report  # with matplotlib, which takes a second to import

    paths = report.write(asked, results, folder)
    print((folder / "tables.txt").read_text())
    print("\n".join(str(path) for path in paths))


def dry_run(asked: Study, parts: list[Part], folder: Path) -> int:
    """What would be trained, and what if every grid of rates grows; what parts share is counted with the first."""
    results = Results(folder, None)
    print(f"{asked.title}: {len(results)} trainings are done")
    listed: list[Cell] = []
    growth: list[Cell] = []
    for part in parts:
        own = [cell for cell in dict.fromkeys(sweep.cells(asked, part, results))
               if cell not in results and cell not in listed]  # fmt: skip
        more = [cell for cell in dict.fromkeys(sweep.growth(asked, part, results))
                if cell not in results and cell not in growth]  # fmt: skip
        listed += own
        growth += more
        print(f"{part.name}: {amount(asked, own)}; if every grid grows, about {amount(asked, own + more)}")
    print(f"in all: {amount(asked, listed)}; if every grid grows, about {amount(asked, listed + growth)}")
    if any(part.until_loss is not None for part in parts):
        print("a training that reaches its target takes fewer tokens")
    return 0


def amount(asked: Study, own: list[Cell]) -> str:
    """Trainings and tokens; on GPUs hours of H100s whose products reach a third of the peak rate."""
    tokens = [int(cell.flags["steps"] * cell.flags["batch"] * cell.flags["context"]) for cell in own]
    millions = sum(tokens) / 1e6
    words = f"{len(own)} trainings, {f'{millions:,.0f}' if millions >= 100 else f'{millions:.3g}'} million tokens"
    if asked.device != "cuda":
        return words
    rate = MACHINES["h100"].rate("medium") / 3
    sizes = [parameters(cells.recipe_of(cell).shape) for cell in own]
    seconds = sum(6 * size * count / rate for size, count in zip(sizes, tokens, strict=True))
    return f"{words}, {seconds / 3600:,.0f} hours of an H100"
