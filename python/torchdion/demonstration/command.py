"""``python -m torchdion demo``: a small GPT learns to write docstrings, with an optimizer of this library and AdamW."""

import argparse
import signal
import statistics
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from torchdion import _C
from torchdion.command_line import OneSentenceParser
from torchdion.demonstration import optimizers, picture
from torchdion.demonstration.model import sample
from torchdion.demonstration.outcome import comparison
from torchdion.demonstration.text import NoText, Vocabulary, prose
from torchdion.demonstration.training import Settings, Training, Windows
from torchdion.optimizer import Optimizer

PROGRAM = "python -m torchdion demo"
STEPS = 240
UNIT = "nats per token"
PICTURE = Path("torchdion-demo.svg")

DESCRIPTION = """\
Trains a GPT of 1.3 million parameters twice on the docstrings of Python's standard library, with an optimizer of this
library and with torch's AdamW: the same first weights, the same batches, as many steps, each at the best rate of a
small search. Prints the validation losses, what the models write, and which was ahead; about a minute on two cores.
"""

WHAT_NEXT = """\
What next:
  in your training       optimizer = torchdion.Dion(torchdion.param_groups(model), lr=0.02, rank_fraction=0.25,
                             nesterov=True, residual="sign", error_feedback=False)
  what a step costs      python -m torchdion plan --help
  is a mesh exact here   python -m torchdion verify --help"""


def main(arguments: list[str]) -> int:
    """Trains and prints; returns the exit status.

    It is 2 for arguments that cannot be, 1 where this Python has no docstrings to read, 130 after Ctrl-C.
    """
    options = parser().parse_args(arguments)
    refusal = refused(options)
    if refusal:
        print(f"{PROGRAM}: {refusal}", file=sys.stderr)
        return 2
    try:
        run(options, prose())
    except NoText as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def parser() -> OneSentenceParser:
    options = OneSentenceParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    options.add_argument(
        "--optimizer",
        choices=optimizers.OPTIMIZERS,
        default="dion",
        metavar="NAME",
        help=f"{', '.join(optimizers.OPTIMIZERS)} (%(default)s)",
    )
    options.add_argument("--steps", type=whole(1), default=STEPS, help="of each training (%(default)s)")
    options.add_argument("--seed", type=whole(0), default=0, help="of weights, batches and sample (%(default)s)")
    options.add_argument(
        "--device", choices=("cpu", "cuda"), default=own_device(), help="a GPU's where there is one (here %(default)s)"
    )
    drawn = options.add_mutually_exclusive_group()
    drawn.add_argument("--plot", type=Path, default=PICTURE, metavar="FILE.svg", help="a picture (%(default)s)")
    drawn.add_argument("--no-plot", action="store_true", help="no picture")
    return options


def own_device() -> str:
    return "cuda" if torch.cuda.is_available() and _C.has_kernels_for("cuda") else "cpu"


def whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) < 10**6:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to below a million, got {text!r}")
        return int(text)

    return number


def refused(options: argparse.Namespace) -> str:
    """Why this cannot be shown here, in one sentence; empty if it can."""
    if options.device == "cuda" and not torch.cuda.is_available():
        return "argument --device: must be cpu, as no GPU was found, got cuda"
    if options.device == "cuda" and not _C.has_kernels_for("cuda"):
        return "argument --device: must be cpu, as torchdion was built without nvcc, got cuda"
    refusal = "" if options.no_plot else picture.refused(options.plot)
    return f"argument --plot: {refusal}" if refusal else ""


def run(options: argparse.Namespace, text: str) -> None:
    """Trains both, and prints all there is to see."""
    vocabulary, device = Vocabulary(text), torch.device(options.device)
    tokens = vocabulary.encode(text)
    settings = Settings(Windows.of(tokens, device), len(vocabulary), options.steps, options.seed, device)
    trainings = [
        Training(settings, partial(optimizers.ours, options.optimizer), Optimizer.of(options.optimizer).title),
        Training(settings, optimizers.adamw, optimizers.BASELINE),
    ]
    print(f"Text: {len(text):,} characters of Python's own docstrings, as {len(tokens):,} tokens.")
    print(f"Validation loss of a GPT that learns them on {options.device}, in {UNIT}:\n")
    train(trainings, options.steps)
    print()
    for training in trainings:
        print(f"After {training.step} steps of {training.title} it writes:\n")
        print(f"{textwrap.indent(sample(training.model, vocabulary, options.seed), '    ')}\n")
    ours, baseline = (training.curve for training in trainings)
    print(comparison(ours, baseline, UNIT))
    print(f"A step took {', '.join(map(step_time, trainings))} (medians).")
    if not options.no_plot:
        print(picture.draw([ours, baseline], UNIT, options.plot))
    print(f"\n{WHAT_NEXT}")


def train(trainings: Sequence[Training], steps: int) -> None:
    """All of them, step by step in turn, so that whatever else the machine does slows down all alike."""
    table = Table(steps, [training.title for training in trainings])
    for step in range(1, steps + 1):
        for training in trainings:
            training.advance()
        if step in trainings[0].losses:
            table.row(step, [training.losses[step] for training in trainings])
        else:
            table.show(step)


class Table:
    """A table that is printed row by row, below the names of its columns.

    Args:
        steps: of the whole training.
        titles: of the columns behind the one of steps.
    """

    def __init__(self, steps: int, titles: Sequence[str]) -> None:
        self._steps = steps
        self._widths = [max(len("step"), len(str(steps))), *map(len, titles)]
        self._on_terminal = sys.stdout.isatty()
        self._print("step", *titles)

    def row(self, step: int, losses: Sequence[float]) -> None:
        self._print(str(step), *(f"{loss:.3f}" for loss in losses))

    def show(self, step: int) -> None:
        """Says on a terminal, until the next row takes its place, which step has been made."""
        if self._on_terminal:
            print(f"{step} of {self._steps}", end="\r", flush=True)

    def _print(self, *cells: str) -> None:
        line = "  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True))
        print(line, flush=True)


def step_time(training: Training) -> str:
    return f"{1000 * statistics.median(training.seconds):.0f} ms with {training.title}"
