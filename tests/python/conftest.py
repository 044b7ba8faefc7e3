"""What every test starts from."""

from collections.abc import Iterator

import pytest
import torch

import torchdion  # noqa: F401  registers torch.ops.torchdion.*


@pytest.fixture(autouse=True)
def reproducible() -> Iterator[None]:
    """Seeded and on one thread: on a busy machine threads that wait for each other take 500 times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
