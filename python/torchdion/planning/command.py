"""``python -m torchdion plan``: what a step costs on a mesh, for models of known shapes."""

import argparse
import inspect
import json
import math
import sys
from dataclasses import replace

import torch

from torchdion.command_line import OneSentenceParser, mesh_sizes
from torchdion.mixed_precision import DionMixedPrecisionConfig
from torchdion.planning import models
from torchdion.planning.described import FS_CUTS
from torchdion.planning.machines import EFFICIENCY, MACHINES
from torchdion.planning.plan import Plan, plan
from torchdion.planning.table import by_label, duration

DESCRIPTION = """\
Prints for each kind of parameter what updates it, how it is cut, its rank and its state; and for every optimizer
what a step costs one rank: memory, operations, elements sent on each axis, and an estimate of its time. Nothing is
allocated and nothing is started. torchdion.plan() does the same for a model of your own.
"""


def main(arguments: list[str]) -> int:
    """Prints the plan; returns the exit status, which is 2 for arguments that cannot be."""
    options = parser().parse_args(arguments)
    try:
        found = plan_of(options)
    except (ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found.as_dict()))
        return 0
    print(found)
    if options.steps:
        print("\n" + "\n".join(_whole_training(found, options.steps)))
    return 0


def parser() -> OneSentenceParser:
    # abbreviations would change their meaning when an option is added
    options = OneSentenceParser(prog="python -m torchdion plan", description=DESCRIPTION, allow_abbrev=False)
    what = options.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", choices=models.MODELS, metavar="NAME", help=", ".join(models.MODELS))
    what.add_argument("--shapes", metavar="ROWSxCOLUMNS[*COUNT][:colwise|:rowwise],...", help="instead of a model")
    options.add_argument("--mesh", type=mesh_sizes, default={}, metavar="dp=2,fs=4,tp=8", help="the last of neighbours")
    options.add_argument(
        "--pp", type=int, default=1, metavar="STAGES", help="pipeline stages, of which each has a mesh"
    )
    options.add_argument("--rank-fraction", type=float, default=0.25, help="r / min(m, n) (default: %(default)s)")
    options.add_argument("--rank-multiple-of", type=int, default=1)
    options.add_argument("--replicate-rank-fraction", type=float, default=1 / 128, help="of Double Dion (1/128)")
    options.add_argument("--fraction", type=float, default=0.25, help="of Dion2 and Dion3 (default: %(default)s)")
    options.add_argument("--chunk-size", type=int, default=64, help="of DeMo (default: %(default)s)")
    options.add_argument("--top-k", type=int, default=32, help="of DeMo (default: %(default)s)")
    options.add_argument(
        "--orientation", default="right", help="right (Q is m×r), left (n×r) or short (P has min(m, n) rows)"
    )
    options.add_argument("--orthonormalize", default="auto", help="auto, rcqr, cholesky_qr or qr")
    options.add_argument("--rcqr-oversample", type=float, default=1.25, help="rows of rcqr's sketch over r")
    options.add_argument("--right-factor", default="normalized", help="normalized or orthonormal: of Dion")
    options.add_argument("--residual", help="scaled or sign: of Dion (default: none)")
    options.add_argument("--scalar-algorithm", default="lion", help="lion or adamw")
    options.add_argument(
        "--precision",
        help="of products: highest, high (TF32, Dion's own) or medium (BF16, Muon's and its siblings' own)",
    )
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the parameters")
    options.add_argument("--momentum-dtype", help="default: that of the parameters, as those of Q and of the variance")
    options.add_argument("--Q-dtype", help="such as bfloat16")
    options.add_argument("--variance-dtype", help="of AdamW, NorMuon and Dion3")
    options.add_argument(
        "--fs-cuts", choices=FS_CUTS, default="rows", help="dimension 0 (FSDP2), or the one that tp leaves whole"
    )
    options.add_argument("--machine", choices=MACHINES, default="h100", help=", ".join(MACHINES), metavar="NAME")
    options.add_argument("--network-gbit", type=positive, metavar="GBIT/S", help="of each GPU's card")
    options.add_argument(
        "--efficiency", type=float, default=EFFICIENCY, help="share of the peak rate that products reach"
    )
    options.add_argument("--steps", type=positive, help="of a whole training, whose time is printed too")
    options.add_argument("--json", action="store_true", help="everything, as one line of JSON")
    return options


def _whole_training(found: Plan, steps: float) -> list[str]:
    return [
        f"{steps:,.0f} steps of {label}: {duration(steps * estimate.overlapped_seconds)} to "
        f"{duration(steps * estimate.seconds)}"
        for label, estimate in by_label(found).items()
    ]


def plan_of(options: argparse.Namespace) -> Plan:
    dtype = getattr(torch, options.dtype)
    if options.model is not None:
        model, tp_plan = models.first_stage(models.MODELS[options.model], options.pp, dtype), None
    else:
        model, tp_plan = models.matrices(options.shapes, dtype), models.PLAN_OF_MATRICES
        if options.pp != 1:
            raise ValueError(
                f"torchdion.plan: pp must be 1 with shapes, which are those of one stage, got {options.pp}"
            )
    machine = MACHINES[options.machine]
    if options.network_gbit is not None:
        machine = replace(machine, network=options.network_gbit * 1e9 / 8)
    dtypes = DionMixedPrecisionConfig(options.momentum_dtype, options.Q_dtype, options.variance_dtype)
    given = {name: value for name, value in vars(options).items() if name in inspect.signature(plan).parameters}
    own = {"model": model, "tp_plan": tp_plan, "machine": machine, "mixed_precision_config": dtypes}
    found = plan(**given | own)
    if options.pp == 1:
        return found
    note = f"Of {options.pp} pipeline stages this is the first, which has the embedding and no fewer blocks."
    return replace(found, notes=[*found.notes, note])


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number above 0, got {text!r}")
    return number
