"""Draws the documentation's figures: `python docs/figures/draw.py [NAME ...]` writes docs/figures/NAME.svg."""

import argparse
import importlib
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "cut_matrix",
    "error_feedback",
    "front",
    "house",
    "left_over",
    "life_of_a_step",
    "logo",
    "one_step",
    "price_of_rank",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    for name in parser.parse_args().names or NAMES:
        path = HERE / f"{name}.svg"
        path.write_text(importlib.import_module(name).drawing().svg())
        print(path.relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main()
