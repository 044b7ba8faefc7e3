"""A step of DistAdamW and DistMuon on four ranks, against a quarter of one process's step plus what they send.

    python benchmarks/owners.py [--layers 4] [--width 768] [--ranks 4] [--rounds 9]

The parameters of a GPT, whole on each of four gloo processes of one thread, with gradients of their own. In turn with
the optimizer whose states they share out every rank takes a step of the same algorithm on all parameters by itself, and
sends what the first one sends, as it does: of each parameter one message to each other rank with a gradient and one
with weights, those of three parameters at a time.
With fewer cores than ranks all of them wait for their turn, which costs all three alike.

One JSON line for each optimizer: the seconds of the slowest rank, medians over rounds, of the step (`shared`), of that
of one process (`alone`) and of the messages (`messages`); `ratio`, of `shared` to alone / ranks + messages; `kept`, the
numbers that a rank keeps for each parameter, itself included, of the rank that keeps most; `formula`, 1 + states /
ranks; and `resident`, by how much a rank's resident set has grown by its first step, over the bytes of the parameters
(Linux). Then a table.
"""

import argparse
import ctypes
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from matrices import gpt_shapes
from measure import emit, seconds, table
from torch import Tensor
from torch.nn import Parameter

import torchdion
from torchdion.verification.launch import launch

WARM_UP = 2  # rounds: the first makes the state, and connections grow their buffers
MADE_BY: dict[str, tuple[Any, Any, int]] = {
    "DistAdamW": (torchdion.DistAdamW, torchdion.AdamW, 2),
    "DistMuon": (torchdion.DistMuon, torchdion.Muon, 1),
}
"""What shares the states out, what does not, and how many numbers they have for each parameter."""


def resident() -> int:
    """Bytes, once what was freed is given back."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def parameters(shapes: list[tuple[int, ...]], rank: int) -> list[Parameter]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in shapes]
    torch.manual_seed(1 + rank)
    for param in params:
        param.grad = torch.randn(param.shape)
    return params


def exchange(numels: list[int]) -> Callable[[], None]:
    """Gradients to their owners and weights from them, with nothing done to either."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    others = [other % ranks for other in range(rank + 1, rank + ranks)]
    whole = [torch.ones(ranks, -(-numel // ranks)) for numel in numels]
    parts = [torch.ones_like(each) for each in whole]

    def begin(received: Tensor, sent: Tensor) -> list[Any]:
        works = [dist.irecv(received[other], other) for other in others]
        return works + [dist.isend(sent[other], other) for other in reversed(others)]

    def run() -> None:
        alive: list[tuple[int, bool, list[Any]]] = []
        started = 0
        while alive or started < len(numels):
            if started < len(numels) and len(alive) < 3:
                alive.append((started, True, begin(parts[started], whole[started])))
                started += 1
            for _ in range(len(alive)):
                index, are_gradients, works = alive.pop(0)
                for work in works:
                    work.wait()
                if are_gradients:
                    own = parts[index][rank].expand_as(whole[index])
                    alive.append((index, False, begin(whole[index], own)))

    return run


def measure(rank: int, shapes: list[tuple[int, ...]], rounds: int) -> dict[str, dict[str, float]]:
    """Of the slowest rank, and of the one that keeps most."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name, (shared, alone, _) in MADE_BY.items():
        params = parameters(shapes, rank)
        numel = sum(param.numel() for param in params)
        before = resident()
        optimizer = shared(params)
        optimizer.step()
        grown = (resident() - before) / (4 * numel)
        states = [state for of_param in optimizer.state.values() for key, state in of_param.items() if key != "step"]
        kept = 1 + sum(state.numel() for state in states) / numel
        contenders = {
            "shared": optimizer.step,
            "alone": alone(parameters(shapes, rank)).step,
            "messages": exchange([param.numel() for param in params]),
        }
        times: dict[str, list[float]] = {contender: [] for contender in contenders}
        for index in range(-WARM_UP, rounds):
            for contender, run in contenders.items():
                dist.barrier()
                took = largest(seconds(run))
                if index >= 0:
                    times[contender].append(took)
        found[name] = {contender: statistics.median(values) for contender, values in times.items()}
        found[name] |= {"kept": largest(kept), "resident": largest(grown)}
    return found


def largest(number: float) -> float:
    """Of all ranks."""
    tensor = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="of the GPT")
    parser.add_argument("--width", type=int, default=768, help="of the GPT")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9, help="steps timed of each")
    arguments = parser.parse_args()
    shapes: list[tuple[int, ...]] = [*gpt_shapes(arguments.layers, arguments.width)]
    shapes += [(arguments.width,)] * (2 * arguments.layers)
    found: dict[str, dict[str, float]] = launch(measure, arguments.ranks, (shapes, arguments.rounds), 3600.0)
    rows: list[dict[str, Any]] = []
    for name, one in found.items():
        ratio = one["shared"] / (one["alone"] / arguments.ranks + one["messages"])
        formula = 1 + MADE_BY[name][2] / arguments.ranks
        rows.append(emit({"optimizer": name, "ranks": arguments.ranks, "ratio": ratio, "formula": formula, **one}))
    print(table(rows, ("optimizer", "ratio", "kept", "formula", "resident", "shared", "alone", "messages")))


if __name__ == "__main__":
    main()
