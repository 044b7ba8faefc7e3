"""What ``python -m torchdion`` prints: versions, how the library was built and what it finds; for bug reports."""

import os
import platform
import sys

import torch

import torchdion


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


def print_report() -> None:
    lines = report()
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")
