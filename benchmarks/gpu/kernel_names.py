"""Names of kernels as a table can hold them, and what each takes of a step."""

import re
from collections.abc import Iterable
from typing import Any

from machine import Kernel

# What csrc/linalg/cuda/launch.h starts: run_program<torchdion::linalg::cuda::Accumulate<float, float> >(...)
_PROGRAM = re.compile(r"run_(?:cluster_)?program<(?:\w+::)*(\w+)(?:<(.*?)>)?\s*>")
_PRODUCTS = {
    "TF32": re.compile(r"tf32|tfloat32|tensorop_s1688gemm_\d"),
    "BF16": re.compile(r"bf16|bfloat16"),
    "FP64": re.compile(r"dgemm|f64|d884|d16816|d1684|\bdouble\b"),
    "FP32": re.compile(r"sgemm|gemm_?f32|f32f32|simt|\bfloat\b"),
}
# Of cuBLAS 13: the types of operands, sums and results, a letter each.
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])[a-z]{2}_")
_NVJET_OPERANDS = {"s": "TF32", "t": "BF16", "h": "FP16", "d": "FP64"}
_IS_PRODUCT = re.compile(r"gemm|gemv|cutlass|xmma|nvjet", re.IGNORECASE)

# Kernels of the library that multiply on tensor cores, by their short names, and what these read there.
KERNELS_OF_PRODUCTS = {
    "symmetric BF16": "BF16",
    "AddProduct<BFloat16>": "BF16",
    "AddProduct<float>": "TF32",
    "SignUpdate<BFloat16>": "BF16",
    "SignUpdate<float>": "TF32",
}


def short(name: str) -> str:
    """The block program with its types, the arithmetic of one of cuBLAS's products, or else the beginning of the name.

    Example:
        >>> short("void torchdion::cuda::run_cluster_program<torchdion::cuda::FactorGram<float, float> >(...)")
        'FactorGram<float, float>'
        >>> short("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1_execute")
        'cuBLAS TF32'
        >>> short("void cutlass::device_kernel<torchdion::cuda::SymmetricProduct<torchdion::cuda::Hopper, true> >(...)")
        'symmetric BF16'
    """
    program = _PROGRAM.search(name)
    if program:
        types = re.sub(r"\w+::|\(\w+\)", "", program[2] or "")
        return f"{program[1]}<{types}>" if types else program[1]
    if "SymmetricProduct" in name:
        return "symmetric BF16"
    if re.search("splitk", name, re.IGNORECASE):
        return "cuBLAS sum of parts"
    if _IS_PRODUCT.search(name):
        arithmetic = next((key for key, pattern in _PRODUCTS.items() if pattern.search(name)), None)
        letters = _NVJET.search(name)
        if letters and not arithmetic:
            arithmetic = _NVJET_OPERANDS.get(letters[1])
        return f"cuBLAS {arithmetic or re.split(r'_?[0-9]', name)[0]}"
    return re.sub(r"\(.*|<.*", "", name.removeprefix("void ")).strip()[:60]


def shares(kernels: Iterable[Kernel]) -> list[dict[str, Any]]:
    """One row for each short name, the longest first; their shares sum to one."""
    merged: dict[str, Kernel] = {}
    for kernel in kernels:
        name = short(kernel.name)
        before = merged.get(name, Kernel(name, 0, 0.0))
        merged[name] = Kernel(name, before.launches + kernel.launches, before.ms + kernel.ms)
    total = sum(kernel.ms for kernel in merged.values())
    return [
        {"kernel": kernel.name, "launches": kernel.launches, "ms": kernel.ms, "share": kernel.ms / total}
        for kernel in sorted(merged.values(), key=lambda kernel: -kernel.ms)
    ]
