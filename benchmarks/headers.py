"""What <torchdion/torchdion.h> adds to the time that a file with <torch/torch.h> takes to compile.

    python benchmarks/headers.py [--rounds 5]

One JSON line: the processor time of g++ with both headers over that with torch's alone, medians of interleaved rounds.
"""

import argparse
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch.utils.cpp_extension
from measure import emit

import torchdion

SOURCES = {"torch": ["torch/torch.h"], "both": ["torch/torch.h", "torchdion/torchdion.h"]}


def processor_seconds(command: list[str]) -> float:
    """User and system time of a child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    folders = [*torch.utils.cpp_extension.include_paths(), torchdion.get_include()]
    includes = [word for folder in folders for word in ("-isystem", folder)]
    times: dict[str, list[float]] = {name: [] for name in SOURCES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for name, headers in SOURCES.items():
                source = Path(folder, f"{name}.cpp")
                source.write_text("".join(f"#include <{header}>\n" for header in headers) + "int main() {}\n")
                compile_only = ["g++", "-std=c++20", "-O0", "-DUSE_DISTRIBUTED", "-c", str(source), "-o", "/dev/null"]
                times[name].append(processor_seconds([*compile_only, *includes]))
    median = {name: statistics.median(values) for name, values in times.items()}
    emit({"headers": "torch/torch.h + torchdion/torchdion.h", "torch/torch.h": median["both"] / median["torch"]})


if __name__ == "__main__":
    main()
