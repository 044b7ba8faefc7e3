"""The parts of the site that are made of programs: command lines, formulas, signatures."""

import argparse

import pytest
from command_lines import rows
from signatures import without_unknown


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tool")
    made.add_argument("folder", help="of the run")
    made.add_argument("--steps", type=int, default=5, help="of each training")
    made.add_argument("--seed", type=int, default=0, help="of weights (%(default)s)")
    made.add_argument("--dry", action="store_true", help="train nothing")
    made.add_argument("-o", "--kind", choices=("a", "b"), help="of <figure>")
    made.add_argument("--hidden", help=argparse.SUPPRESS)
    return made


def test_a_command_line_is_a_row_for_each_argument_with_its_value_and_default() -> None:
    assert list(rows(parser())) == [
        ("`folder`", "of the run"),
        ("`--steps STEPS`", "of each training (5)"),
        ("`--seed SEED`", "of weights (0)"),
        ("`--dry`", "train nothing"),
        ("`-o a,b`, `--kind a,b`", r"of \<figure>"),
    ]


@pytest.mark.parametrize(
    ("signature", "shown"), [("(params, *, mu=0.9, **unknown)", "(params, *, mu=0.9)"), ("(a, **k)", "(a, **k)")]
)
def test_a_signature_leaves_out_what_constructors_refuse(signature: str, shown: str) -> None:
    assert without_unknown(None, "class", "x", None, None, signature, None) == (shown, None)  # type: ignore[arg-type]
