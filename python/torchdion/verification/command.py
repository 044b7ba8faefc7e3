"""``python -m torchdion verify``: whether a mesh of processes trains here exactly as one process does."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

import torchdion
from torchdion import _C
from torchdion.command_line import OneSentenceParser, aligned, mesh_sizes
from torchdion.owners import with_owners
from torchdion.table import ALGORITHMS
from torchdion.verification.checks import Row
from torchdion.verification.launch import RanksFailed, Terminated, launch
from torchdion.verification.network import MODELS, Sizes
from torchdion.verification.paper import has_paper_form
from torchdion.verification.room import ranks_that_fit
from torchdion.verification.run import Training
from torchdion.verification.transport import Transport, meet
from torchdion.verification.verify import verify

PROGRAM = "python -m torchdion verify"

DESCRIPTION = """\
Trains a small model in FP64 on a mesh of processes on this machine, or on those of torchrun, and compares everything
with one process. Prints what was compared; the exit status is 0 only if all of it passes.
"""

ORIENTATIONS = ("right", "left")
METHODS = ("auto", "rcqr")

SHARED = {name: made_by.algorithm for name, made_by in with_owners().items()}
"""What shares out the states of an algorithm among replicas."""

OPTIMIZERS = (*ALGORITHMS, *SHARED)

RATES = {"lion": 1e-3, "adamw": 2e-3, "dist_adamw": 2e-3, "demo": 1e-3}
"""Of those whose updates are as large in every entry; 0.02 of the others."""

UNPUBLISHED = "No form of {} in plain PyTorch is known here, with which one process could be compared."

RANK_FRACTION = 0.25
LARGEST_RANK_FRACTION = 0.5
"""Gradients of so few tokens lack rank beyond it: what is orthonormalized would not be determined by the algorithm."""


def main(arguments: list[str]) -> int:
    """Prints the checks; returns 0 if all pass, 1 after any miss, 2 for arguments that cannot be."""
    options = parser().parse_args(arguments)
    refusal = refused(options, os.environ)
    if refusal:
        print(f"{PROGRAM}: {refusal}", file=sys.stderr)
        return 2
    trainings = trainings_of(options)
    began = time.monotonic()
    try:
        rows = rows_of(trainings, options)
    except RanksFailed as failure:
        print(f"{PROGRAM}: {failure}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Terminated) as interruption:
        print(f"{PROGRAM}: interrupted, and all ranks were ended", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)
    if "RANK" not in os.environ or os.environ["RANK"] == "0":
        print(report(options, trainings[0], rows, time.monotonic() - began))
    return 0 if all(row.passes for _, row in rows) else 1


def parser() -> OneSentenceParser:
    options = OneSentenceParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    options.add_argument("--mesh", type=sizes, default=Sizes(), metavar="dp=2,fs=2,tp=2", help="each is 1 if left out")
    options.add_argument(
        "--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: on CUDA, a GPU for each rank (gloo)"
    )
    options.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="gloo on cuda: ranks share this machine's GPUs (nccl: cuda, gloo: cpu)",
    )
    options.add_argument("--model", choices=MODELS, default="small", help="(default: %(default)s)")
    options.add_argument("--optimizer", choices=OPTIMIZERS, default="dion", help="(default: %(default)s)")
    options.add_argument("--steps", type=count, default=20, help="(default: %(default)s)")
    options.add_argument(
        "--compress",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the optimizer averages over dp itself, Dion by sending factors; otherwise, and for demo, DDP or FSDP2 do",
    )
    options.add_argument("--rank-fraction", type=float, help=f"dion: r / min(m, n) ({RANK_FRACTION})")
    options.add_argument("--orientation", choices=(*ORIENTATIONS, "short"), help="dion: one instead of right and left")
    options.add_argument(
        "--orthonormalize", choices=("auto", "cholesky_qr", "rcqr"), help="dion: one instead of auto and rcqr"
    )
    options.add_argument(
        "--delayed",
        action="store_true",
        help="double_dion: replicas exchange beside the next forward and backward pass",
    )
    options.add_argument(
        "--checkpoints", type=Path, metavar="FOLDER", help="where all machines see what one writes (a temporary one)"
    )
    options.add_argument("--time-limit", type=seconds, default=300.0, help="after which ranks are ended (300 s)")
    return options


def sizes(text: str) -> Sizes:
    """Those in "dp=2,fs=2,tp=2", where a dimension of one rank may be left out."""
    given = mesh_sizes(text)
    for name, size in given.items():
        if name not in ("dp", "fs", "tp"):
            raise argparse.ArgumentTypeError(f"must have dimensions among dp, fs and tp, got {name!r}")
        if size < 1:
            raise argparse.ArgumentTypeError(f"must have at least one rank along each dimension, got {name}={size}")
    return Sizes(**given)


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"must be an integer ≥ 1, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 86400:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, at most a day, got {text!r}")
    return number


def refused(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Why this cannot be verified here, in one sentence; empty if it can."""
    ranks = options.mesh.world_size
    fraction = options.rank_fraction
    if fraction is not None and not 0 < fraction <= LARGEST_RANK_FRACTION:
        return f"argument --rank-fraction: must be in (0, {LARGEST_RANK_FRACTION}], got {fraction}"
    for name in ("rank_fraction", "orientation", "orthonormalize"):
        if options.optimizer != "dion" and getattr(options, name) is not None:
            return f"argument --{name.replace('_', '-')}: is an option of dion, not of {options.optimizer}"
    if options.delayed and options.optimizer != "double_dion":
        return f"argument --delayed: is an option of double_dion, not of {options.optimizer}"
    if options.optimizer in SHARED and options.mesh.dp != ranks:
        return (
            f"argument --mesh: must have dp alone with {options.optimizer}, whose parameters are whole on every rank, "
            f"got {options.mesh}"
        )
    if "RANK" in environment and environment.get("WORLD_SIZE") != str(ranks):
        return f"argument --mesh: must have torchrun's {environment.get('WORLD_SIZE')} ranks, got {ranks}"
    if options.checkpoints is not None and not os.access(options.checkpoints, os.W_OK):
        return f"argument --checkpoints: must be a folder that can be written to, got {options.checkpoints}"
    if environment.get("LOCAL_WORLD_SIZE", str(ranks)) != str(ranks) and options.checkpoints is None:
        return "argument --checkpoints: must be a folder on storage that all machines share, got none"
    room = ranks_that_fit(transport_of(options).start_method)
    if "RANK" not in environment and ranks > room:
        return f"argument --mesh: must have at most {room} ranks, for which there are cores and memory, got {ranks}"
    return refused_transport(transport_of(options), int(environment.get("LOCAL_WORLD_SIZE", ranks)))


def refused_transport(transport: Transport, ranks: int) -> str:
    """The same of what moves tensors between so many ranks of this machine."""
    if transport.device == "cpu":
        return "argument --device: must be cuda with nccl, got cpu" if transport.backend == "nccl" else ""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if transport.backend == "nccl" and gpus < ranks:
        return f"argument --backend: nccl needs a GPU for each of the {ranks} ranks, and {gpus} were found"
    if transport.backend == "nccl" and not dist.is_nccl_available():
        return "argument --backend: must be gloo, as this torch was built without NCCL, got nccl"
    if gpus == 0:
        return "argument --device: must be cpu, as no GPU was found, got cuda"
    if not _C.has_kernels_for("cuda"):
        return "argument --device: must be cpu, as torchdion was built without nvcc, got cuda"
    return ""


def transport_of(options: argparse.Namespace) -> Transport:
    return Transport(options.backend, options.device or ("cuda" if options.backend == "nccl" else "cpu"))


def trainings_of(options: argparse.Namespace) -> list[Training]:
    if options.optimizer != "dion":
        own = {"delayed": True} if options.delayed else {}
        return [_training(options, ", ".join([options.optimizer, *own]), own)]
    orientations = ORIENTATIONS if options.orientation is None else (options.orientation,)
    methods = METHODS if options.orthonormalize is None else (options.orthonormalize,)
    fraction = RANK_FRACTION if options.rank_fraction is None else options.rank_fraction
    return [
        _training(
            options,
            f"{orientation}, {method}",
            {"orientation": orientation, "orthonormalize": method, "rank_fraction": fraction},
        )
        for orientation in orientations
        for method in methods
    ]


def _training(options: argparse.Namespace, name: str, own: dict[str, Any]) -> Training:
    return Training(
        name,
        options.mesh,
        MODELS[options.model],
        options.steps,
        options.compress and options.optimizer != "demo",  # whose replicas are together not what one process is
        {"lr": RATES.get(options.optimizer, 0.02), **own},
        transport_of(options).device,
        SHARED.get(options.optimizer, options.optimizer),
        options.optimizer in SHARED,
    )


def rows_of(trainings: list[Training], options: argparse.Namespace) -> list[tuple[str, Row]]:
    """Of ranks started here, or by torchrun."""
    with TemporaryDirectory(prefix="torchdion-verify-", dir=options.checkpoints) as folder:
        given, transport = (trainings, Path(folder)), transport_of(options)
        if "RANK" not in os.environ:
            rows: list[tuple[str, Row]] = launch(verify, options.mesh.world_size, given, options.time_limit, transport)
            return rows
        torch.set_num_threads(1)
        local_rank = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        meet(transport, local_rank, timedelta(seconds=options.time_limit))
        try:
            of_first = [verify(dist.get_rank(), *given)]
            dist.broadcast_object_list(of_first)
            return of_first[0]
        finally:
            dist.destroy_process_group()


def _averaging(training: Training) -> str:
    if training.sizes.dp == 1:
        return ""
    if training.algorithm == "dion":
        return ", compressed" if training.compress else ", not compressed"
    return ", replicas averaged by the optimizer" if training.compress else ", averaged gradients"


def report(options: argparse.Namespace, training: Training, rows: list[tuple[str, Row]], took: float) -> str:
    """What was found, of this training and of others that differ from it in options of the optimizer."""
    lines = [("training", "check", "measured", "allowed", "result"), *((name, *row.cells) for name, row in rows)]
    misses = sum(not row.passes for _, row in rows)
    ranks = training.sizes.world_size
    where, averaging = " on CUDA" if training.device == "cuda" else "", _averaging(training)
    heading = (
        f"{training.sizes}, {ranks} {options.backend} rank{'s' if ranks > 1 else ''}{where} · {options.optimizer}, "
        f"{options.model} model in FP64, {training.steps} steps{averaging} · torchdion {torchdion.__version__}, "
        f"torch {torch.__version__}"
    )
    ending = f"{len(rows) - misses} of {len(rows)} checks pass, in {took:.0f} s"
    notes = [] if has_paper_form(training.algorithm) else [UNPUBLISHED.format(training.algorithm)]
    return "\n".join([heading, "", aligned(lines), "", *notes, ending])
