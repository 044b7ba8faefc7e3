"""What every test starts from."""

from collections.abc import Iterator

import pytest
import torch

import torchdion  # noqa: F401  registers torch.ops.torchdion.*


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=300, help="random cases of test_differential.py")
    parser.addoption("--case", type=int, help="the one random case of this seed")


@pytest.fixture(autouse=True)
def reproducible() -> Iterator[None]:
    """Seeded and on one thread: on a busy machine threads that wait for each other take 500 times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
