"""The main job on a GPU: the GPT of examples/gpt, trained for as many steps by each of several optimizers.

    python benchmarks/gpu/gpu_training.py [--steps 40] [--rates 0.5 1 2] [--seconds 100]

JSON lines. Of `kind` "training", one for each optimizer, precision and learning rate: 12 layers of width 768, 32
sequences of 1024 bytes a step, bfloat16 by autocast.

    lr                  of the optimizer: the example's own for it, times each of --rates; the search is that short
    loss                after these steps, on validation text, in nats a byte
    tokens_per_second   over all steps but the first five
    step_ms             of these; `optimizer_ms`: what of it is the optimizer's step, `share`: its part
    problem             why there are no numbers

The best loss of each optimizer is what the report shows.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from machine import Machine, machine_row, open_machine, parser_of
from measure import emit

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
import options
from presets import hyperparameters
from processes import OneProcess
from train import open_data
from trainer import Trainer

MODEL = ["--layers", "12", "--d-model", "768", "--heads", "6", "--context", "1024", "--batch", "32"]
TINY = ["--layers", "1", "--d-model", "32", "--heads", "2", "--context", "16", "--batch", "2", "--val-sequences", "2"]
WARM_UP = 5


class Contender(NamedTuple):
    optimizer: str  # of the example
    flags: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


DION = ("--rank-fraction", "0.25", "--nesterov", "--precision")
CONTENDERS = (
    Contender("dion", (*DION, "medium"), (("rank", "d/4"), ("precision", "medium"))),
    Contender("dion", (*DION, "high"), (("rank", "d/4"), ("precision", "high"))),
    Contender("muon"),
    Contender("torch_muon"),
    Contender("torch_adamw"),
)


def rates(optimizer: str, times: float) -> dict[str, float]:
    """Every learning rate of the example's optimizer for few steps, times this."""
    own = hyperparameters(optimizer, "tiny")
    return {name: times * own[name] for name in ("lr", "adamw_lr") if name in own}


def trained(contender: Contender, times: float, model: Sequence[str], steps: int, machine: Machine) -> dict[str, Any]:
    flags = ["--optimizer", contender.optimizer, *contender.flags, "--steps", str(steps), *model]
    for name, rate in rates(contender.optimizer, times).items():
        flags += [f"--{name.replace('_', '-')}", str(rate)]
    recipe = options.recipe(options.parse(flags), machine.device, None)
    trainer = Trainer(recipe, machine.device, *open_data(recipe), False, OneProcess())
    reports = [trainer.train_step() for _ in range(steps)]
    after = reports[min(WARM_UP, steps - 1) :]
    tokens = recipe.batch * recipe.context
    step_ms = median(1e3 * tokens / report.tokens_per_second for report in after)
    optimizer_ms = median(report.optimizer_ms for report in after)
    return {
        "steps": steps,
        "loss": trainer.validate(),
        "tokens_per_second": 1e3 * tokens / step_ms,
        "step_ms": step_ms,
        "optimizer_ms": optimizer_ms,
        "share": optimizer_ms / step_ms,
    }


def rows(
    contender: Contender, times: float, model: Sequence[str], steps: int, machine: Machine
) -> Iterator[dict[str, Any]]:
    yield trained(contender, times, model, steps, machine)


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__, ["tiny"], 100.0)
    parser.add_argument("--steps", type=int, default=40, help="of each training")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.5, 2.0], help="times the example's own")
    given = parser.parse_args(arguments)
    machine = open_machine(given, "gpu_training.py")
    is_dry = given.device == "cpu"
    emit(machine_row(machine, machine.rates(), program="training"))
    model, steps = (TINY, 2) if is_dry else (MODEL, given.steps)
    for times in given.rates[:1] if is_dry else given.rates:
        for contender in CONTENDERS:
            lr = rates(contender.optimizer, times)["lr"]
            labels = {"kind": "training", "optimizer": contender.optimizer, **dict(contender.labels), "lr": lr}
            machine.attempt(labels, rows(contender, times, model, steps, machine))
    return machine.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
