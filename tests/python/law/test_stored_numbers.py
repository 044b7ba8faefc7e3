"""What the library computes on the CPU stays the same to the last bit, and so does what it sends.

`stored_numbers.json` has the digests of weights and states after a few steps of parameters of every role, on one
process and on meshes. Where this machine's own products have other bits than those of the machine that wrote it, the
norms of the same tensors are compared instead. After a change that is meant to change numbers, write it anew:

    PYTHONPATH=tests/python/support:tests/python/law .venv/bin/python -c "import test_stored_numbers as t; t.write()"
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from law import Job, Run, run_on_mesh
from ranks import run_ranks
from roles import ROLES
from torch import Tensor

import torchdion

STORED = Path(__file__).with_name("stored_numbers.json")
FLAGS = {"maximize": True, "nonfinite": "zero"}
ROUNDED = torchdion.DionMixedPrecisionConfig("bfloat16", "bfloat16", "float16")


def job(sizes: tuple[int, int, int] = (1, 1, 1), dtype: torch.dtype = torch.float32, **options: Any) -> Job:
    return Job(sizes, ROLES, dtype, 4, {"rank_fraction": 0.3, **options})


JOBS = {
    "one process": job(),
    "one process, left": job(orientation="left"),
    "one process, fp64": job(dtype=torch.float64),
    "one process, bf16": job(dtype=torch.bfloat16),
    "one process, qr": job(orthonormalize="qr"),
    "one process, rcqr": job(orthonormalize="rcqr", seed=7),
    "one process, adamw": job(scalar_algorithm="adamw", **FLAGS),
    "one process, rounded states": job(mixed_precision_config=ROUNDED),
    "replicas": job((2, 1, 1)),
    "replicas, dense": job((2, 1, 1), rank_fraction=0.9),
    "shards": job((1, 2, 1), orientation="left"),
    "grid": job((2, 1, 2)),
    "grid, fp64": job((1, 2, 2), torch.float64, orthonormalize="rcqr"),
}


def digest(tensor: Tensor) -> str:
    numbers = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(numbers.data, digest_size=8).hexdigest()


def digest_of_products() -> str:
    """Of this machine's own products and factorizations, which differ between processors and versions of torch."""
    found = [torch.__version__]
    for dtype in (torch.float32, torch.float64):
        for m, k, n in ((48, 24, 7), (24, 48, 15), (37, 29, 9), (7, 41, 3), (17, 50, 16), (130, 130, 40)):
            numbers = torch.randn(m, k + n, generator=torch.Generator().manual_seed(m), dtype=torch.float64).to(dtype)
            A, B = numbers[:, :k], numbers[:, k:]
            found += [digest(A.mT @ B), digest(A @ A.mT), digest(torch.linalg.qr(B.mT.contiguous()).R)]
            found.append(digest(A.mT.bfloat16() @ B.bfloat16()))
    return hashlib.blake2b(" ".join(found).encode(), digest_size=8).hexdigest()


def run_job(rank: int, world_size: int, job: Job) -> tuple[Run, str]:
    return run_on_mesh(job), digest_of_products()


def numbers_of(run: Run) -> dict[str, Any]:
    states = [states[name] for name in ("momentum", "Q") for states in run.states if name in states]
    tensors = [*run.X, *states]
    return {
        "digests": [digest(tensor) for tensor in tensors],
        "norms": [float(f"{float(tensor.detach().double().norm()):.6g}") for tensor in tensors],
        "batches": run.stats["batches"],
        "workspace_bytes": run.stats["workspace_bytes"],
        "expected_traffic": run.stats["expected_traffic"],
        "traffic": run.stats["traffic"],
    }


def take(name: str) -> tuple[list[dict[str, Any]], str]:
    job = JOBS[name]
    dp, fs, tp = job.sizes
    found = run_ranks(run_job, dp * fs * tp, job)
    return [numbers_of(run) for run, _ in found], found[0][1]


@pytest.mark.parametrize("name", JOBS)
def test_numbers_and_traffic_are_those_that_were_stored(name: str) -> None:
    stored = json.loads(STORED.read_text())
    runs, products = take(name)
    if stored["products"] == products:
        assert runs == stored["jobs"][name]
        return
    for run, expected in zip(runs, stored["jobs"][name], strict=True):
        same = [key for key in run if key not in ("digests", "norms")]
        assert {key: run[key] for key in same} == {key: expected[key] for key in same}
        assert run["norms"] == pytest.approx(expected["norms"], rel=2e-2 if "bf16" in name else 1e-3)


def write() -> None:
    taken = {name: take(name) for name in JOBS}
    products = {products for _, products in taken.values()}
    assert len(products) == 1
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs)}" for name, (runs, _) in taken.items())
    STORED.write_text(f'{{"products": "{products.pop()}", "jobs": {{\n{lines}\n}}}}\n')
