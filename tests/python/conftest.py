"""What every test starts from."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from errors import Problem, run_script
from libtorch_example import place as place
from links import joined
from on_gpu import needs_gpu

import torchdion

# Some machines show AMX, which products of BF16 then use, and end the process that does.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A library of tests/cpp whose operations, those of CUDA run by the host, take the place of the CPU's own; see
# tests/cpp/cuda/runtime_on_host.cpp.
EMULATED = os.environ.get("TORCHDION_EMULATED")
if EMULATED:
    assert os.environ.get("TORCHDION_TEST_BACKEND", "").startswith("emulated"), "the library would change nothing"
    ctypes.CDLL(EMULATED)

TESTS = "tests/python/"
# Of them: what starts processes or compilers on every core, or measures memory; one worker runs all of it.
EVERY_CORE = (
    "examples/clusters",
    "law",
    "packaging/test_packaging",
    "packaging/test_sdist",
    "ranks",
    "trainers/test_compressed",
    "units/planning/test_plan.py",
    "units/test_memory",
    "units/test_nonfinite",
)

# Folders whose files share what is built or trained once.
MADE_ONCE = ("examples/libtorch", "examples/gpt/comparison")


def runs_on_every_core(nodeid: str) -> bool:
    return nodeid.removeprefix(TESTS).startswith(EVERY_CORE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        default=60,
        help="random cases of test_differential.py and test_exotic.py, and a tenth of test_random_trainings.py",
    )
    parser.addoption("--kills", type=int, default=10, help="random kills of ranks/test_kills.py")
    parser.addoption("--stress", type=float, default=20, help="seconds of each test of ranks/test_stress.py")
    parser.addoption("--case", type=int, help="the one random case of this seed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`: by file, but for files that one worker must run."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if runs_on_every_core(nodeid):
                return "every core"
            file = super()._split_scope(nodeid).removeprefix(TESTS)
            return next((folder for folder in MADE_ONCE if file.startswith(folder)), file)

    return ByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one worker must run begins first, as it takes the longest."""
    items.sort(key=lambda item: not runs_on_every_core(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not in all that was imported and collected."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries report at the end that all of it has leaked


@pytest.fixture(autouse=True)
def reproducible() -> Iterator[None]:
    """Seeded and on one thread: on a busy machine threads that wait for each other take 500 times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with FP64 is computed by products whose operands are not rounded, also on emulated CUDA."""
    if EMULATED:
        monkeypatch.setitem(torchdion.Dion.__init__.__kwdefaults__, "precision", "highest")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Every device that operations may run on."""
    return request.param


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a script's main as the command line does, in this process: exit code, output, error output."""

    def run(main: Callable[[list[str]], int], *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            run_script(main)
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def throttled_links() -> None:
    """Skips where network namespaces cannot be made, or links not be throttled."""
    try:
        with joined(1) as links:
            links.throttle(1e8)
    except Problem as problem:
        pytest.skip(str(problem))
