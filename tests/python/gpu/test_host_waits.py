"""No step of a capturable optimizer waits for its device: Meta tensors show every operator of torch that it calls."""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from long_cases import all_but

from torchdion.table import ALGORITHMS

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

PROGRAM = """
import itertools, sys
import predicted, torch, torchdion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

predicted.load(predicted.LIBRARY)


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        devices = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
        asked.add(f"{func.overloadpacket.__name__}:{'+'.join(sorted(devices))}")
        return result


def step(optimizer, params):
    optimizer.step()


SHAPES = ((64, 48), (64, 48), (32, 80), (3, 5, 7))
OPTIONS = [{}]
for name, options in itertools.product(sys.argv[1:], OPTIONS):
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]
    group = {"params": params, "algorithm": name, "skip_zero_gradients": True, "cautious_wd": True}
    optimizer = torchdion.Dion([group], capturable=True, nonfinite="skip_step", nesterov=True, **options)
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.step()
    asked = set()
    with Seen():
        step(optimizer, params)
    print(name, *sorted(asked))
"""
WAITS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal"}
"""Operators for whose result the host waits, if Meta tensors have them at all."""

TO_THE_DEVICE = ["params[0].data.copy_(torch.ones(64, 48))", "torch.ones(3).to('meta')"]
FROM_THE_DEVICE = ["params[0].sum().item()", "params[0].nonzero()", "params[0].cpu()"]


def asked(program: str, *algorithms: str, options: Sequence[dict[str, Any]] = ({},)) -> list[tuple[str, set[str]]]:
    """What torch is asked for in a step of each algorithm, with each of these options, in a process of its own.

    Returns:
        The algorithm, and the names of operators with the devices of their tensors.
    """
    program = program.replace("OPTIONS = [{}]", f"OPTIONS = {list(options)}")
    if "TORCHDION_EMULATED" not in os.environ:
        pytest.skip("needs the library of tests/cpp: ctest -R python_emulated")
    path = os.pathsep.join(map(str, [BENCHMARKS / "gpu", BENCHMARKS]))
    command = [sys.executable, "-W", "ignore", "-c", program, *algorithms]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    return [(line.split()[0], set(line.split()[1:])) for line in run.stdout.splitlines()]


def waits(operators: set[str]) -> set[str]:
    """Those for which the host waits: what reads a number, and what goes from one device to another."""
    return {each for each in operators if each.split(":")[0] in WAITS or "+" in each}


def test_no_algorithm_asks_for_what_the_host_waits_for() -> None:
    of_steps = asked(PROGRAM, *ALGORITHMS)
    assert [name for name, _ in of_steps] == list(ALGORITHMS)
    for name, operators in of_steps:
        assert any(operator.endswith(":meta") for operator in operators), name
        assert not waits(operators), name


def test_nor_does_nesterovs_momentum_without_error_feedback() -> None:
    [(_, operators)] = asked(PROGRAM, "dion", options=[{"error_feedback": False}])
    assert not waits(operators)


def test_nor_does_a_residual() -> None:
    """In parts, and in one pass."""
    of_ranks = {"rank_fraction": 0.25, "rank_multiple_of": 8, "right_factor": "orthonormal"}
    options = [
        {**of_ranks, "residual": residual, "precision": precision}
        for residual, precision in product(("scaled", "sign"), ("highest", "high", "medium"))
    ]
    of_steps = asked(PROGRAM, "dion", options=options)
    assert len(of_steps) == len(options)
    for of_options, (_, operators) in zip(options, of_steps, strict=True):
        assert not waits(operators), of_options


@pytest.mark.parametrize("wait", all_but(TO_THE_DEVICE, long=TO_THE_DEVICE[1:]))
def test_a_copy_to_the_device_would_be_seen(wait: str) -> None:
    [(_, operators)] = asked(
        PROGRAM.replace("    optimizer.step()\n\n", f"    {wait}\n    optimizer.step()\n\n", 1), "lion"
    )
    assert waits(operators)


@pytest.mark.parametrize("wait", all_but(FROM_THE_DEVICE, long=FROM_THE_DEVICE[1:]))
def test_a_copy_from_the_device_would_fail(wait: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        asked(PROGRAM.replace("    optimizer.step()\n\n", f"    {wait}\n    optimizer.step()\n\n", 1), "lion")
    assert "eta" in failure.value.stderr
