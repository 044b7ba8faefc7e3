"""``python -m torchdion``: what was built and is found; ``python -m torchdion COMMAND``: one of the commands below.

A command is a module, imported only when it is asked for, whose ``main(arguments)`` returns the exit status.
"""

import importlib
import os
import platform
import sys
from argparse import REMAINDER

import torch

import torchdion
from torchdion.command_line import OneSentenceParser, aligned

COMMANDS = {
    "demo": ("torchdion.demonstration.command", "an optimizer here against torch's AdamW on a small GPT, one minute"),
    "plan": ("torchdion.planning.command", "memory, operations, traffic and time of a step on any mesh, without it"),
    "verify": ("torchdion.verification.command", "whether a mesh of processes here trains exactly as one process"),
}


def kernels(toolkit: str, cutlass: str) -> str:
    if toolkit == "none":
        return "none: parameters must be on the CPU"
    if cutlass == "none":
        return "compiled; without CUTLASS cuBLAS computes symmetric products whole"
    return f"compiled, those for symmetric products with CUTLASS {cutlass}"


def report() -> dict[str, str]:
    built = torchdion.build
    toolkit = built["cuda_toolkit"]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "torchdion": f"{torchdion.__version__} at {os.path.dirname(torchdion.__file__)}",
        "built with": f"torch {built['torch']}, Python {built['python']}, {built['compiler']}, {built['build_type']}",
        "CUDA toolkit": f"{toolkit} at build time" if toolkit != "none" else "none at build time",
        "CUDA kernels": kernels(toolkit, built["cutlass"]),
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'none'}) at {os.path.dirname(torch.__file__)}",
        "GPUs": ", ".join(gpus) or "none",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores; CPU capability "
        f"{torch.backends.cpu.get_cpu_capability()}",
        "Python": f"{platform.python_version()} at {sys.executable}",
        "system": platform.platform(),
    }


def main(arguments: list[str]) -> int:
    if not arguments:
        print(aligned(list(report().items())))
        return 0
    listing = "\n".join(f"  {name:<8} {purpose}" for name, (_, purpose) in COMMANDS.items())
    parser = OneSentenceParser(
        prog="python -m torchdion",
        description=f"Without a command: versions and what was found, for bug reports.\n\ncommands:\n{listing}",
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
