"""From the flags given to a complete, checked description of the run."""

import math
import os
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import own_optimizer
import torch
from errors import Problem
from flags import every_hyperparameter, training_parser
from model import Shape
from presets import (
    ADJUST_LR,
    GENERAL,
    PRESETS,
    SHARED,
    STANDARD_LIBRARY,
    TORCHDION,
    hyperparameters,
    vocabulary,
)
from processes import Job


@dataclass(frozen=True)
class Recipe:
    """All that decides a run's losses. A checkpoint holds it, and a resumed run may only change `steps`."""

    preset: str
    layers: int
    d_model: int
    heads: int
    context: int
    vocab: int
    data: str
    val_data: str | None
    val_every: int
    val_sequences: int
    steps: int
    batch: int
    micro_batch: int
    warmup: float
    decay: float
    clip: float
    seed: int
    dtype: str
    optimizer: str
    hyperparameters: dict[str, Any]

    @property
    def shape(self) -> Shape:
        return Shape(self.vocab, self.layers, self.d_model, self.heads)

    def as_dict(self) -> dict[str, Any]:
        """Flat, with the hyperparameters beside the rest: flag name (with _) to value."""
        flat = asdict(self)
        hyperparameters = flat.pop("hyperparameters")
        return {**flat, **hyperparameters}


@dataclass(frozen=True)
class Session:
    """How and where this process runs it; a resumed run may change all of it."""

    folder: Path
    device: torch.device
    compile: bool
    job: Job
    until_loss: float  # nats per token: the first validation loss that is no larger ends the run
    checkpoint_every: int
    keep: int
    checkpoint_on_signal: bool
    resume: bool
    overwrite: bool
    against: str | None  # the optimizer that is trained too, to compare with
    tensorboard: bool
    prompt: str | None
    sample_length: int


def parse(arguments: list[str]) -> dict[str, Any]:
    """The flags given, checked one by one; flags not given are absent."""
    given: dict[str, Any] = vars(training_parser(_own_flags(arguments)).parse_args(arguments))
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    return given


def _own_flags(arguments: list[str]) -> dict[str, Any]:
    """Keywords of an optimizer of the user's, with their defaults."""
    places = [place for place, argument in enumerate(arguments[:-1]) if argument == "--optimizer"]
    named = [arguments[place + 1] for place in places if own_optimizer.is_own(arguments[place + 1])]
    return own_optimizer.hyperparameters(named[-1]) if named else {}


def session(given: dict[str, Any]) -> Session:
    """The part of the flags that is about this process."""
    if given.get("resume") and given.get("overwrite"):
        raise Problem("--resume continues the run that --overwrite would replace; give one of them")
    if given.get("tensorboard") and find_spec("tensorboard") is None:
        raise Problem("--tensorboard needs the package tensorboard; `pip install tensorboard`")
    job = _started_job(given)
    if "against" in given and job.processes > 1:
        raise Problem("--against compares two runs on one process each; leave it out with --dp, --fs and --tp")
    if "against" in given and "until_loss" in given:
        raise Problem("--against compares runs of as many steps, which --until-loss may end before; give one of them")
    name = f"{given.get('preset', 'tiny')}-{own_optimizer.short_name(given.get('optimizer', 'dion'))}"
    return Session(
        folder=Path(given.get("run", f"runs/{name}")),
        device=_device(given.get("device"), job),
        compile=given.get("compile", False),
        job=job,
        until_loss=given.get("until_loss", -math.inf),
        checkpoint_every=given.get("checkpoint_every", 100),
        keep=given.get("keep", 2),
        checkpoint_on_signal=given.get("checkpoint_on_signal", True),
        resume=given.get("resume", False),
        overwrite=given.get("overwrite", False),
        against=given.get("against"),
        tensorboard=given.get("tensorboard", False),
        prompt=given.get("prompt"),
        sample_length=given.get("sample_length", 400),
    )


def recipe(
    given: dict[str, Any], device: torch.device, saved: dict[str, Any] | None = None, job: Job | None = None
) -> Recipe:
    """The part that decides the losses: from `saved`, a checkpoint's, or else from the defaults.

    Args:
        job: the processes that it is for; None: those that are running.

    Raises:
        Problem: flags that exclude each other, or that differ from the checkpoint's.
    """
    if saved is not None:
        _same_run(given, saved)
        known = saved | given
    else:
        preset, data = given.get("preset", "tiny"), given.get("data", STANDARD_LIBRARY)
        optimizer = given.get("optimizer", "dion")
        own = {"preset": preset, "optimizer": optimizer, "vocab": vocabulary(data)}
        own["dtype"] = "bfloat16" if device.type == "cuda" else "float32"
        known = GENERAL | PRESETS[preset] | hyperparameters(optimizer, preset) | own | given
        # A smaller batch than the preset's micro-batch is its own micro-batch.
        if "micro_batch" not in given:
            known["micro_batch"] = min(known["micro_batch"], known["batch"])
    names = hyperparameters(known["optimizer"], known["preset"])
    _no_foreign_hyperparameters(given, known["optimizer"], names)
    fields = {name: known[name] for name in Recipe.__dataclass_fields__ if name != "hyperparameters"}
    result = Recipe(**fields, hyperparameters={name: known[name] for name in names})
    _check(result)
    _check_pieces(result, _started_job(given) if job is None else job)
    return result


def job_of(given: dict[str, Any]) -> Job:
    """The processes that the flags ask for."""
    job = Job(given.get("dp", 1), given.get("fs", 1), given.get("tp", 1), given.get("compress", False))
    if job.compress and job.dp == 1:
        raise Problem("--compress is about what replicas send to each other; it needs --dp 2 or more")
    return job


def _started_job(given: dict[str, Any]) -> Job:
    job = job_of(given)
    started = int(os.environ.get("WORLD_SIZE", 1))  # set by torchrun
    if started != job.processes:
        raise Problem(f"--dp × --fs × --tp is {job.processes}, but torchrun started {started} (--nproc-per-node)")
    return job


def _device(name: str | None, job: Job) -> torch.device:
    """Of many processes each has the GPU of its number on its machine, which parallel.py makes the current one."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", job.processes))  # set by torchrun
    if name is None:
        enough = torch.cuda.is_available() and torch.cuda.device_count() >= here
        return torch.device("cuda" if enough else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Problem(f"--device must be cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise Problem(f"--device must be cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Problem(f"--device {name}: PyTorch finds {torch.cuda.device_count()} CUDA devices here")
    if device.type == "cuda" and job.processes > 1:
        if device.index is not None:
            raise Problem(f"--device {name} is one GPU for {job.processes} processes; --device cuda gives each its own")
        if torch.cuda.device_count() < here:
            raise Problem(
                f"--device {name}: {here} processes need a GPU each, and PyTorch finds {torch.cuda.device_count()}"
            )
    return device


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _same_run(given: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if name != "steps" and given.get(name, value) != value:
            raise Problem(f"{_flag(name)} is {given[name]} but the checkpoint's is {value}; a resumed run keeps it")


def _no_foreign_hyperparameters(given: dict[str, Any], optimizer: str, own: dict[str, Any]) -> None:
    for name in sorted(given.keys() & every_hyperparameter() - own.keys()):
        raise Problem(f"{_flag(name)} has no effect with --optimizer {optimizer}")


def _check(recipe: Recipe) -> None:
    d_head, left = divmod(recipe.d_model, recipe.heads)
    if left:
        raise Problem(f"--heads {recipe.heads} does not divide --d-model {recipe.d_model}")
    if d_head % 2:
        raise Problem(f"rotary positions need an even width per head, but --d-model / --heads is {d_head}")
    if recipe.batch % recipe.micro_batch:
        raise Problem(f"--micro-batch {recipe.micro_batch} does not divide --batch {recipe.batch}")
    if recipe.warmup + recipe.decay > 1:
        raise Problem(f"--warmup {recipe.warmup} and --decay {recipe.decay} together exceed the whole run")
    if recipe.data == STANDARD_LIBRARY and recipe.val_data is not None:
        raise Problem("--val-data needs --data: the standard library brings its own validation files")
    if recipe.data == STANDARD_LIBRARY and recipe.vocab < vocabulary(STANDARD_LIBRARY):
        raise Problem(f"--vocab must be at least 256 for bytes, got {recipe.vocab}")
    adjust_lr, allowed = recipe.hyperparameters.get("adjust_lr"), ADJUST_LR.get(recipe.optimizer, ())
    if adjust_lr is not None and adjust_lr not in allowed:
        raise Problem(f"--adjust-lr of --optimizer {recipe.optimizer} is one of {', '.join(allowed)}, got {adjust_lr}")


def _check_pieces(recipe: Recipe, job: Job) -> None:
    if job.processes > 1 and recipe.optimizer not in TORCHDION:
        raise Problem(
            f"--optimizer {recipe.optimizer} runs on one process; --dp, --fs and --tp need {', '.join(TORCHDION)}"
        )
    if recipe.optimizer in SHARED and job.fs * job.tp > 1:
        raise Problem(f"--optimizer {recipe.optimizer} has all of the model on every process; --fs and --tp must be 1")
    if recipe.heads % job.tp:
        raise Problem(f"--tp {job.tp} does not divide --heads {recipe.heads}")
    if recipe.batch % job.data_ranks:
        raise Problem(f"--dp × --fs = {job.data_ranks} does not divide --batch {recipe.batch}")
    if recipe.val_sequences % job.data_ranks:
        raise Problem(f"--dp × --fs = {job.data_ranks} does not divide --val-sequences {recipe.val_sequences}")
