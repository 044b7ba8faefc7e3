"""Compare optimizers: `python examples/gpt/compare.py small`, with --help for every flag.

Trains what a study asks for (studies/*.toml), as many trainings at once as there are processors, and writes what came
of them to a folder: rows (cells.jsonl, steps.jsonl), a table, figures and a report (report.md, report.html). It may be
stopped or killed at any moment; the same command goes on.
"""

import sys
from importlib.util import find_spec

from errors import Problem, run_script

PACKAGES = ["jinja2", "matplotlib", "scipy", "tqdm", *(["tomli"] if sys.version_info < (3, 11) else [])]


def main(arguments: list[str]) -> int:
    for package in PACKAGES:
        if find_spec(package) is None:
            raise Problem(f"the comparison needs the package {package}; `pip install {package}`")
    try:
        from comparison import command
    except ImportError as error:
        if not str(error.name).startswith("torchdion"):
            raise
        raise Problem(f"torchdion cannot be imported ({error}); run `make build` first") from error
    return command.main(arguments)


if __name__ == "__main__":
    run_script(main)
