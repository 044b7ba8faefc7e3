"""The training script's command line: every flag, and which values it takes."""

import argparse
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from errors import Problem
from own_optimizer import is_own
from presets import ADJUST_LR, OPTIMIZERS, PRESETS

LARGEST_WHOLE = 2**31 - 1


class OneSentenceParser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise Problem(message)


def whole(minimum: int, maximum: int = LARGEST_WHOLE) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {minimum}, got {text!r}")
        if value > maximum:
            raise argparse.ArgumentTypeError(f"must be at most {maximum}, got {text!r}")
        return value

    return parse


def real(allowed: Callable[[float], bool], words: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and allowed(value)):
            raise argparse.ArgumentTypeError(f"must be {words}, got {text!r}")
        return value

    return parse


positive = real(lambda x: x > 0, "a number above 0")
not_negative = real(lambda x: x >= 0, "a number of at least 0")
share = real(lambda x: 0 <= x <= 1, "a number from 0 to 1")
below_one = real(lambda x: 0 <= x < 1, "a number from 0 to below 1")
rank_share = real(lambda x: 0 < x <= 1, "a number above 0 and at most 1")
at_least_one = real(lambda x: x >= 1, "a number of at least 1")


def optimizer(text: str) -> str:
    if text not in OPTIMIZERS and not is_own(text):
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(OPTIMIZERS)} or FILE.py:FUNCTION, got {text!r}")
    return text


def training_parser(own: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Flags without defaults: what is not given is absent from the result, and options.py fills it in.

    Args:
        own: keywords of an optimizer of the user's, with their defaults; those that are no flags yet become some.
    """
    parser = OneSentenceParser(
        prog="train.py",
        description="Train the Dion paper's GPT; defaults depend on the preset and the optimizer.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _model_flags(parser.add_argument_group("model"))
    _data_flags(parser.add_argument_group("data"))
    _training_flags(parser.add_argument_group("training"))
    _optimizer_flags(parser.add_argument_group("optimizer"))
    _process_flags(parser.add_argument_group("processes, started by torchrun"))
    _run_flags(parser.add_argument_group("run"))
    group, known = parser.add_argument_group("of the optimizer's function"), _names(parser)
    for name, default in own.items():
        if name in known - every_hyperparameter():
            raise Problem(f"the keyword {name} of the optimizer's function is a flag of the training")
        if name not in known:
            _own_flag(group, name, default)
    return parser


def every_hyperparameter() -> set[str]:
    """Flags of any optimizer."""
    return {name for names in OPTIMIZERS.values() for name in names}


def _names(parser: argparse.ArgumentParser) -> set[str]:
    return {action.dest for action in parser._actions}


def _own_flag(group: argparse._ArgumentGroup, name: str, default: Any) -> None:
    flag = "--" + name.replace("_", "-")
    if isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction)
    else:
        group.add_argument(flag, type=type(default) if isinstance(default, (int, float)) else str)


def _model_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--preset", choices=PRESETS, help="shapes, batch and steps (default tiny)")
    group.add_argument("--layers", type=whole(1), help="transformer blocks")
    group.add_argument("--d-model", type=whole(2), help="width")
    group.add_argument("--heads", type=whole(1), help="attention heads; each has an even share of the width")
    group.add_argument("--context", type=whole(1), help="tokens per sequence")
    group.add_argument("--vocab", type=whole(1), help="vocabulary (default 256 for bytes, 50304 for shards)")


def _data_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data", metavar="PATTERN", help="token shards, such as 'fineweb/*_train_*.bin' (default: stdlib)"
    )
    group.add_argument(
        "--val-data",
        metavar="PATTERN",
        help="validation shards (default: the last, or the only one's last tenth)",
    )
    group.add_argument("--val-every", type=whole(1), metavar="N", help="steps between validations")
    group.add_argument("--val-sequences", type=whole(1), metavar="N", help="sequences per validation")


def _training_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--steps", type=whole(1), help="optimizer steps")
    group.add_argument("--batch", type=whole(1), help="sequences per step")
    group.add_argument("--micro-batch", type=whole(1), help="sequences per forward pass; gradients accumulate")
    group.add_argument("--warmup", type=share, help="share of the steps over which the rate rises (0.05)")
    group.add_argument("--decay", type=share, help="share of the steps over which it falls at the end (0.3)")
    group.add_argument("--clip", type=not_negative, help="largest gradient norm; 0: no clipping (1.0)")
    group.add_argument("--seed", type=whole(0), help="of weights, batches and Dion's sketches (0)")
    group.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda where each process has one)")
    group.add_argument("--dtype", choices=("float64", "float32", "bfloat16"),
                       help="bfloat16 is autocast (the default on CUDA)")  # fmt: skip
    group.add_argument("--compile", action="store_true", help="compile the model with torch.compile")


def _optimizer_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--optimizer", type=optimizer, help=f"{', '.join(OPTIMIZERS)}, or FILE.py:FUNCTION, one of yours (dion)")
    add("--lr", type=positive, help="base learning rate (each optimizer has its own default)")
    add("--weight-decay", type=not_negative, help="decoupled, on the blocks' matrices (0.01)")
    add("--betas", type=below_one, nargs=2, help="of AdamW or Lion")
    add("--epsilon", type=positive, help="of AdamW's denominator (1e-8)")
    add("--cautious-wd", action=argparse.BooleanOptionalAction,
        help="not torch's: decay where update and weight have one sign (off)")  # fmt: skip
    add("--mu", type=below_one, help="momentum (0.95; demo: 0.999)")
    add("--rank-fraction", type=rank_share, help="rank as a share of the smaller side (dion: 1.0, double_dion: 0.25)")
    add("--rank-multiple-of", type=whole(1), help="either Dion: round the rank up to a multiple of this (1)")
    add("--orientation", choices=("right", "left", "short"), help="either Dion: which factor is the warm start")
    add("--orthonormalize", choices=("auto", "rcqr", "cholesky_qr", "qr"), help="either Dion: how")
    add("--rcqr-oversample", type=at_least_one, help="either Dion: sketch rows per rank (1.25)")
    add("--error-feedback", action=argparse.BooleanOptionalAction, help="dion (on)")
    add("--factorization", choices=("power_iteration", "svd"), help="dion: how (power_iteration)")
    add("--right-factor", choices=("normalized", "orthonormal"), help="dion: what it takes of R (normalized)")
    add("--residual", choices=("none", "scaled", "sign"), nargs="?", const="sign",
        help="dion: how what the rank leaves moves the weights too (none; alone: sign)")  # fmt: skip
    add("--replicate-mu", type=below_one, help="double_dion: momentum of each replica's own (0.999)")
    add("--replicate-rank-fraction", type=rank_share, help="double_dion: rank that replicas exchange (1/128)")
    add("--delayed", action=argparse.BooleanOptionalAction,
        help="double_dion: replicas exchange beside the next forward and backward pass (off)")  # fmt: skip
    add("--chunk-size", type=whole(1, 1024), help="demo: sides of the chunks that are transformed (64)")
    add("--top-k", type=whole(1), help="demo: coefficients of a chunk that are exchanged (32)")
    add(
        "--scalar-algorithm",
        choices=("lion", "adamw"),
        help="rule for embedding and head (lion; lion, adamw: their own)",
    )
    add("--scalar-lr", type=positive, help="of the rule for embedding and head (default: --lr)")
    add("--nonfinite", choices=("propagate", "zero", "skip_step", "raise"), help="not torch's: NaN in gradients")
    add(
        "--precision",
        choices=("highest", "high", "medium"),
        help="of products (muon, normuon, dion2, dion3: medium, others: high)",
    )
    add(
        "--nesterov",
        action=argparse.BooleanOptionalAction,
        help="Nesterov momentum (dion: off, normuon and either Muon: on)",
    )
    add(
        "--newton-schulz",
        choices=("jordan", "polar_express", "gram"),
        help="muon, normuon, dion2, dion3: how (polar_express)",
    )
    add("--ns-steps", type=whole(1, 99), help="of the same and torch_muon: Newton–Schulz steps (5)")
    add("--muon-beta2", type=below_one, help="normuon, dion3: decay of the mean squares of rows (0.95)")
    add("--fraction", type=rank_share, help="dion2, dion3: share of the slices that is orthonormalized (0.25)")
    add("--ef-decay", type=below_one, help="dion2, dion3: decay of momenta where they are orthonormalized (0.95)")
    add("--select", choices=("auto", "rows", "columns"), help="dion2: what slices are (auto: the shorter side)")
    add("--adjust-lr", choices=tuple(dict.fromkeys(itertools.chain(*ADJUST_LR.values()))),
        help="of the same: scaling of the rate by shape")  # fmt: skip
    add("--adamw-lr", type=positive, help="torch_muon: learning rate of AdamW for embedding and head")


def _process_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dp", type=whole(1), metavar="N", help="data parallel: replicas of the model (1)")
    group.add_argument("--fs", type=whole(1), metavar="N", help="fully sharded: pieces of each replica (1)")
    group.add_argument("--tp", type=whole(1), metavar="N", help="tensor parallel: pieces of each of these (1)")
    group.add_argument("--compress", action="store_true", help="the optimizer averages over replicas, not the wrapper")


def _run_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--run", metavar="FOLDER", help="log and checkpoints (default runs/PRESET-OPTIMIZER)")
    group.add_argument(
        "--until-loss", type=positive, metavar="L", help="end at the first validation loss that is no larger"
    )
    group.add_argument("--checkpoint-every", type=whole(1), metavar="N", help="steps between checkpoints (100)")
    group.add_argument("--keep", type=whole(1), metavar="K", help="newest checkpoints to keep (2)")
    group.add_argument("--checkpoint-on-signal", action=argparse.BooleanOptionalAction,
                       help="one more when a signal ends the run (on)")  # fmt: skip
    group.add_argument("--resume", action="store_true", help="continue from the folder's newest checkpoint")
    group.add_argument("--overwrite", action="store_true", help="replace the run that the folder holds")
    group.add_argument("--against", type=optimizer, metavar="OPTIMIZER",
                       help="train this optimizer too, in a folder beside, and compare both")  # fmt: skip
    group.add_argument("--tensorboard", action="store_true", help="log to FOLDER/tensorboard too")
    group.add_argument("--prompt", help="text that the sample at the end continues (for the standard library a class)")
    group.add_argument("--sample-length", type=whole(0), metavar="N", help="at most, of that sample; 0: none (400)")
