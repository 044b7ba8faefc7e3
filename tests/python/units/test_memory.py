"""A step needs no m×n temporary: measured at torch's allocator and, for std::vector and BLAS, in resident memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from long_cases import some_of
from torch.nn import Parameter
from torch.profiler import ProfilerActivity, profile

import torchdion


def gpt_shapes(width: int, layers: int) -> list[tuple[int, int]]:
    """The matrices of a GPT: query, key, value, output and the two of the MLP, four times as wide."""
    return layers * ([(width, width)] * 4 + [(4 * width, width), (width, 4 * width)])


def prepared(shapes: list[tuple[int, ...]], **options) -> tuple[list[Parameter], torchdion.Dion]:
    """An optimizer after its first step, with gradients for the second."""
    params = [Parameter(torch.randn(shape)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = torchdion.Dion(params, **options)
    optimizer.step()
    return params, optimizer


def peak_bytes(run: Callable[[], object], path: Path) -> int:
    """The most that torch's CPU allocator handed out at a time while `run` ran, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    profiler.export_chrome_trace(str(path / "trace.json"))
    events = json.loads((path / "trace.json").read_text())["traceEvents"]
    memory = [event["args"] for event in events if event.get("name") == "[memory]"]
    total = peak = 0
    for event in sorted(memory, key=lambda event: event["Ev Idx"]):
        total += event["Bytes"]
        peak = max(peak, total)
    return peak


def total_bytes(tensors: list[Parameter]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_the_measurement_sees_a_temporary(tmp_path):
    X = torch.ones(500, 300)
    assert peak_bytes(lambda: (X + X).sum(), tmp_path) >= X.numel() * 4
    assert peak_bytes(lambda: X.add_(X), tmp_path) < X.numel()


@pytest.mark.parametrize(
    "options",
    some_of(
        [
            {},
            {"orthonormalize": "cholesky_qr"},
            {"orthonormalize": "rcqr"},
            {"nonfinite": "zero"},
            {"nonfinite": "skip_step"},
            {"orientation": "left"},
        ],
        [{}, {"orthonormalize": "rcqr"}, {"nonfinite": "skip_step"}],
    ),
)
def test_a_step_allocates_less_than_a_tenth_of_the_parameters(options, tmp_path):
    params, optimizer = prepared(gpt_shapes(256, 40), rank_fraction=0.25, **options)
    peak = peak_bytes(optimizer.step, tmp_path)
    assert optimizer.stats()["workspace_bytes"] <= peak <= 0.1 * total_bytes(params)


def test_unscaling_the_gradients_takes_no_memory(tmp_path):
    _, optimizer = prepared([(300, 400), (5000,)], rank_fraction=0.25)
    plain = peak_bytes(optimizer.step, tmp_path)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
    assert plain > 0
    assert peak_bytes(optimizer.step, tmp_path) <= plain + 64


@pytest.mark.parametrize("shape", [(700, 900), (3, 400, 300), (900, 30, 5, 5)])
def test_one_matrix_at_a_small_rank_needs_no_temporary_of_its_size(shape, tmp_path):
    X = Parameter(torch.randn(shape))
    X.grad = torch.randn(shape)
    batch_dims = 1 if len(shape) == 3 else 0
    optimizer = torchdion.Dion([{"params": [X], "batch_dims": batch_dims}], rank_fraction=0.03)
    optimizer.step()
    assert peak_bytes(optimizer.step, tmp_path) <= 0.15 * total_bytes([X])


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elementwise_algorithms_allocate_nothing_that_grows(algorithm, dtype, tmp_path):
    X = Parameter(torch.randn(1_000_000).to(dtype))
    X.grad = torch.randn_like(X)
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}])
    optimizer.step()
    assert peak_bytes(optimizer.step, tmp_path) <= 0.01 * total_bytes([X])


@pytest.mark.parametrize("threads", [1, 8, 64])
def test_the_workspace_is_a_tenth_of_a_gpt_whatever_the_number_of_threads(threads, tmp_path):
    """GPT-2 120M: a step has all its memory before it finds a gradient that it refuses, and multiplies nothing."""
    torch.set_num_threads(threads)
    params = [Parameter(torch.empty(shape)) for shape in gpt_shapes(768, 12)]
    optimizer = torchdion.Dion(params, rank_fraction=0.25, nonfinite="raise")
    for param in params:
        param.grad = torch.zeros_like(param)
        Q = torch.empty(len(param), 192)
        optimizer.state[param] = {"step": torch.ones(()), "momentum": torch.empty_like(param), "Q": Q}
    params[-1].grad[0, 0] = torch.nan  # type: ignore[index]

    def refused() -> None:
        with pytest.raises(ValueError, match="finite"):
            optimizer.step()

    assert 0.01 * total_bytes(params) < peak_bytes(refused, tmp_path) <= 0.1 * total_bytes(params)


RESIDENT = """
import sys
import torch
from tests.python.units.test_memory import gpt_shapes, prepared
torch.set_num_threads(2)
torch.set_default_dtype(getattr(torch, sys.argv[1]))
params, optimizer = prepared(gpt_shapes(768, 2), rank_fraction=0.25)

def resident(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
optimizer.step()
print(resident("VmHWM") - before)
"""


@pytest.mark.parametrize(
    ("dtype", "size", "layers"), [("float32", 4, 4), pytest.param("bfloat16", 2, 12, marks=pytest.mark.long)]
)
def test_the_resident_memory_of_a_gpt_grows_by_less_than_a_tenth_in_a_step(dtype, size, layers):
    """The peak of two layers of GPT-2's width against a tenth of a few: a temporary of 3072×768 would not fit in it.

    BF16 matrices are half as large but their factors are FP32: a tenth of all 12 layers.
    """
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", RESIDENT, dtype]
    measured = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert measured.returncode == 0, measured.stderr
    grown = int(measured.stdout)
    assert grown <= 0.1 * size * sum(m * n for m, n in gpt_shapes(768, layers))
