"""``python -m torchdion``: what was built and is found; ``python -m torchdion COMMAND``: one of the commands below.

A command is a module, imported only when it is asked for, whose ``main(arguments)`` returns the exit status.
"""

import importlib
import os
import sys
from argparse import REMAINDER, RawDescriptionHelpFormatter

from torchdion.command_line import OneSentenceParser
from torchdion.report import print_report

COMMANDS = {
    "demo": ("torchdion.demonstration.command", "an optimizer here against torch's AdamW on a small GPT, one minute"),
    "plan": ("torchdion.planning.command", "memory, operations, traffic and time of a step on any mesh, without it"),
    "verify": ("torchdion.verification.command", "whether a mesh of processes here trains exactly as one process"),
}


def main(arguments: list[str]) -> int:
    if not arguments:
        print_report()
        return 0
    listing = "\n".join(f"  {name:<8} {purpose}" for name, (_, purpose) in COMMANDS.items())
    parser = OneSentenceParser(
        prog="python -m torchdion",
        description=f"Without a command: versions and what was found, for bug reports.\n\ncommands:\n{listing}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="with --help: its options")
    parser.add_argument("arguments", nargs=REMAINDER, metavar="...")
    parsed = parser.parse_args(arguments)
    module, _ = COMMANDS[parsed.command]
    status: int = importlib.import_module(module).main(parsed.arguments)
    return status


def run() -> int:
    """The exit status, also where who reads the output has seen enough, as ``head`` does."""
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 1
    return status


if __name__ == "__main__":
    sys.exit(run())
