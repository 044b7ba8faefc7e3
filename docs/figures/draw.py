"""Draws the documentation's figures: `python docs/figures/draw.py [NAME ...]` writes docs/figures/NAME.svg."""

import importlib
import sys
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


def main(names: list[str]) -> int:
    for name in names or NAMES:
        path = HERE / f"{name}.svg"
        path.write_text(importlib.import_module(name).drawing().svg())
        print(path.relative_to(HERE.parent.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
