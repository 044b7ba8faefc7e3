"""What a step costs the host where matrices are too small for arithmetic to matter.

    python benchmarks/overhead.py [--rounds 60] [--threads 1] [--many 10000]

144 parameters of 8×8 on one thread, then many of them, then the same 144 as DTensors of fully_shard() on one rank: one
JSON line per optimizer and case, then a table. `fused AdamW` is the wall time over that of
torch.optim.AdamW(fused=True) in the same rounds, `us` the microseconds of a parameter, `plain` the wall time over that
of plain tensors.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from measure import emit, interleaved, table
from torch import Tensor
from torch.optim import Optimizer

import torchdion

SIDE, FEW = 8, 144
TORCH = "torch.optim.AdamW fused"
MADE: dict[str, Callable[..., Optimizer]] = {
    TORCH: partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "AdamW": partial(torchdion.AdamW, lr=1e-3),
    "Lion": partial(torchdion.Lion, lr=1e-3),
    "Dion r = 2": partial(torchdion.Dion, lr=1e-3, rank_fraction=1 / 4),
    "Dion r = 8": partial(torchdion.Dion, lr=1e-3),
    "Muon": partial(torchdion.Muon, lr=1e-3),
}


def plain_parameters(count: int) -> list[Tensor]:
    params = [torch.randn(SIDE, SIDE, requires_grad=True) for _ in range(count)]
    for param in params:
        param.grad = torch.randn(SIDE, SIDE)
    return params


def sharded_parameters(count: int) -> list[Tensor]:
    """Those of a model under fully_shard(), with the gradients of a backward pass."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(count)))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    model(torch.randn(SIDE, SIDE)).square().sum().backward()
    return list(model.parameters())


def steps_of(params: list[Tensor], names: list[str], before: str = "") -> dict[str, Callable[[], Any]]:
    """A step of each optimizer that has taken two."""
    steps: dict[str, Callable[[], Any]] = {}
    for name in names:
        optimizer = MADE[name](params)
        optimizer.step()
        optimizer.step()
        steps[before + name] = optimizer.step
    return steps


def rows_of(case: str, count: int, median: dict[str, float]) -> list[dict[str, Any]]:
    return [
        emit(
            {
                "case": case,
                "optimizer": name,
                "us": 1e6 * seconds / count,
                "fused AdamW": seconds / median[TORCH],
                "threads": torch.get_num_threads(),
            }
        )
        for name, seconds in median.items()
    ]


def of_plain(case: str, count: int, rounds: int) -> list[dict[str, Any]]:
    median, _ = interleaved(steps_of(plain_parameters(count), list(MADE)), rounds, lambda index: None)
    return rows_of(case, count, median)


def of_sharded(rounds: int) -> list[dict[str, Any]]:
    """Beside plain ones in the same rounds."""
    with tempfile.TemporaryDirectory() as folder:
        file = dist.FileStore(os.path.join(folder, "store"), 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=file, rank=0, world_size=1)
        steps = steps_of(plain_parameters(FEW), list(MADE)) | steps_of(sharded_parameters(FEW), list(MADE), "sharded ")
        median, _ = interleaved(steps, rounds, lambda index: None)
        dist.destroy_process_group()
    return [
        emit(
            {
                "case": f"{FEW} DTensors of fully_shard()",
                "optimizer": name,
                "us": 1e6 * median["sharded " + name] / FEW,
                "plain": median["sharded " + name] / median[name],
                "fused AdamW": median["sharded " + name] / median["sharded " + TORCH],
                "threads": torch.get_num_threads(),
            }
        )
        for name in MADE
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="steps timed for each optimizer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--many", type=int, default=10_000, help="matrices of the second case")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = of_plain(f"{FEW} matrices", FEW, arguments.rounds)
    rows += of_plain(f"{arguments.many} matrices", arguments.many, max(5, arguments.rounds // 10))
    rows += of_sharded(arguments.rounds)
    print(table(rows, ("case", "optimizer", "us", "fused AdamW", "plain")))


if __name__ == "__main__":
    main()
