"""Trains what a study needs, cell by cell, until all is there or someone stops it."""

import sys
import time
from collections.abc import Iterable
from itertools import chain

from interrupt import Interrupt
from tqdm import tqdm

from comparison import sweep
from comparison.cells import Cell
from comparison.estimate import Estimate, duration
from comparison.results import Result, Results
from comparison.study import Part, Study
from comparison.training import Pool, Training

POLL_SECONDS = 0.1


class Progress:
    """A bar on a terminal, elsewhere a line for each training."""

    def __init__(self) -> None:
        self._bar = tqdm(
            unit="training", disable=not sys.stderr.isatty(), bar_format="{l_bar}{bar}| {n}/{total} {desc}"
        )

    def show(self, done: int, total: int, seconds_left: float | None, line: str | None) -> None:
        left = "estimating" if seconds_left is None else f"about {duration(seconds_left)} left"
        if self._bar.disable:
            if line is not None:
                print(f"{done}/{total}, {left}: {line}", flush=True)
            return
        if line is not None:
            tqdm.write(line)
        self._bar.total, self._bar.n = total, done
        self._bar.set_description_str(left)

    def close(self) -> None:
        self._bar.close()


class Runner:
    """A study's trainings in a pool, their results in a file."""

    def __init__(self, study: Study, parts: list[Part], results: Results, pool: Pool) -> None:
        self.study = study
        self.parts = parts
        self.results = results
        self.pool = pool
        self._estimate = Estimate(pool.jobs)
        self._progress = Progress()
        self._waits = False  # for a process of an earlier program to leave a cell's folder

    def finish(self, interrupt: Interrupt, end: float) -> bool:
        """Trains until all is there, or until a signal or the time `end` of time.monotonic(); whether all is."""
        self.pool.forget_all_of(self.results)
        self._show(None)
        try:
            self._fill()
            while self.pool.running or self._waits:
                if interrupt.signal or time.monotonic() > end:
                    break
                if self._collect() or self._waits:
                    self._fill()
                time.sleep(POLL_SECONDS)
        finally:
            self.pool.stop()
            self._progress.close()
        self._collect()
        return not any(self._wanted())

    def left(self) -> list[Cell]:
        """Cells without a result, as far as they are known now."""
        known = chain.from_iterable(sweep.cells(self.study, part, self.results) for part in self.parts)
        return [cell for cell in dict.fromkeys(known) if cell not in self.results]

    def _wanted(self) -> Iterable[Cell]:
        for part in self.parts:
            yield from sweep.wanted(self.study, part, self.results)

    def _fill(self) -> None:
        """Starts what there is room for, in the order of the parts."""
        self._waits = False
        again = True
        while again:
            again = False
            running = {training.cell for training in self.pool.running}
            for cell in dict.fromkeys(self._wanted()):
                if cell in running:
                    continue
                result = self.pool.finished(cell)
                if result is not None:  # it ended when this program had been killed
                    self._keep(cell, result, None)
                    again = True
                elif self.pool.is_held(cell):
                    self._waits = True
                elif self.pool.has_room_for(cell):
                    self.pool.start(cell)
                else:
                    return

    def _collect(self) -> bool:
        """Keeps the results of what has ended; whether anything has."""
        ended = self.pool.ended()
        for training, result in ended:
            if result is not None:
                self._keep(training.cell, result, training)
        return bool(ended)

    def _keep(self, cell: Cell, result: Result, training: Training | None) -> None:
        self.results.add(cell, result)
        self.pool.forget(cell)
        seconds = "" if training is None else f" in {duration(time.monotonic() - training.began)}"
        if training is not None and not training.resumed:
            self._estimate.learn(cell, result.steps, time.monotonic() - training.began)
        self._show(f"{describe(self.study, cell)}: loss {result.loss:.4f}{seconds}")

    def _show(self, line: str | None) -> None:
        left = self.left()
        self._progress.show(len(self.results), len(self.results) + len(left), self._estimate.seconds_left(left), line)


def describe(study: Study, cell: Cell) -> str:
    """A training in a few words: the contender whose flags it has, the one that says most if several are."""
    flags = cell.flags
    fitting = [contender for contender in study.contenders.values() if contender.flags.items() <= flags.items()]
    words = [max(fitting, key=lambda contender: len(contender.flags)).name]
    if cell.processes > 1:
        words.append(f"{cell.processes} processes")
    words += [f"width {flags['d_model']}", f"batch {flags['batch'] * flags['context']}", f"lr {flags['lr']:.3g}",
              f"seed {flags['seed']}"]  # fmt: skip
    return ", ".join(words)
