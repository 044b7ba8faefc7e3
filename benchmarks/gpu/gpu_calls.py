"""The calls of run.sh, the parts of each, and for how many seconds each may run.

    build-and-test   the build, the tests on the GPU, what products and factorizations take by themselves
    steps            whole steps, a training, what steps launch, what the hardware counted
    peers            other optimizers, ranks that share the GPU, compute-sanitizer

What is wanted first stands first: a part may run for as long as its limit, or what is left of the call, says.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cuda_tools import find

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "stand_ins"
CALLS = ("build-and-test", "steps", "peers")
REPORT = "report"

# Small matrices, all kernels of ours: factors, sketches, normalized columns, updates, whole steps, steps that are left
# out on the device, states in half precision.
SANITIZED = tuple(
    f"tests/python/gpu/{name}"
    for name in (
        "test_cuda.py::test_columns_are_normalized_as_on_the_cpu_and_zero_ones_stay[(2, 700, 65)-torch.float32]",
        "test_cuda.py::test_factors_are_orthonormal_and_the_cpus_up_to_sign[torch.float32-(3, 200, 40)-auto]",
        "test_cuda.py::test_factors_are_orthonormal_and_the_cpus_up_to_sign[torch.float32-(3, 200, 40)-rcqr]",
        "test_cuda.py::test_factors_of_rounded_operands_are_orthonormal[medium-0.01]",
        "test_cuda.py::test_sketches_are_the_cpus[(3, 5)-torch.float32]",
        "test_cuda.py::test_updates_by_narrow_bfloat16_factors_are_products[136]",
        "test_cuda.py::test_steps_are_the_cpus[torch.float32-0.0001-right-auto]",
        "test_cuda.py::test_columns_without_signal_are_counted_on_the_device",
        "test_cuda_graphs.py::test_the_host_does_not_wait_for_a_capturable_step[skip_step]",
        "test_cuda.py::test_policies_that_look_before_they_write[skip_step-None]",
        "test_cuda.py::test_half_precision_states_train[torch.float16]",  # last: racecheck of CUDA 13.0 dies of it
    )
)
TESTS = ("gpu/test_cuda.py", "units/test_linalg.py", "units/test_orthonormalize.py", "gpu/test_cuda_graphs.py")


class Settings(NamedTuple):
    """What the arguments of run.sh mean for its parts."""

    python: str
    folder: Path
    earlier: tuple[Path, ...] = ()
    dion: Path | None = None  # a checkout of microsoft/dion
    dry: bool = False
    flags: tuple[str, ...] = ()  # for the programs that measure


class Command(NamedTuple):
    arguments: list[str]
    paths: tuple[Path, ...] = ()  # on PYTHONPATH, before the others
    environment: tuple[tuple[str, str], ...] = ()
    measures: bool = False  # takes --end and the flags


class Part(NamedTuple):
    name: str
    limit: float  # seconds
    commands: list[Command]


def parts_of(call: str, given: Settings) -> list[Part]:
    parts = {"build-and-test": build_and_test, "steps": steps, "peers": peers}[call]
    built = Part("build", 240, [build(given)])
    return [built, *parts(given), Part(REPORT, 25, [report(call, given)])]


def build_and_test(given: Settings) -> Iterator[Part]:
    yield Part("tests", 170, [tests(given, "operations", *(f"tests/python/{name}" for name in TESTS))])
    yield Part("products", 130, [measured(given, "gpu_products.py")])
    yield Part("factors", 60, [measured(given, "gpu_kernels.py")])


def steps(given: Settings) -> Iterator[Part]:
    yield Part("steps", 280, [measured(given, "gpu_step.py")])
    yield Part("training", 100, [measured(given, "gpu_training.py")])
    yield Part("profile", 90, [measured(given, "gpu_profile.py")])
    yield Part("metrics", 120, [measured(given, "gpu_metrics.py", "--csv", str(given.folder / "metrics.csv"))])


def peers(given: Settings) -> Iterator[Part]:
    yield Part("rivals", 75, [rivals(given, "torch")])
    yield Part("cublas", 30, [rivals(given, "cublas")])
    yield Part("dion", 150, [rivals(given, "dion")])
    yield Part("accuracy", 50, [measured(given, "gpu_accuracy.py")])
    yield Part("ranks", 120, [tests(given, "ranks", "tests/python/gpu/test_cuda_ranks.py")])
    yield Part("nccl", 60, [tests(given, "nccl", "tests/python/gpu/test_cuda_nccl.py")])
    yield Part("memcheck", 45, [sanitizer(given, "memcheck")])
    yield Part("racecheck", 90, [sanitizer(given, "racecheck")])
    yield Part("verify", 60, [verify(given)])
    yield Part("gram", 90, [rivals(given, "gram")])
    yield Part("siblings", 150, [rivals(given, "siblings")])  # last: each of them compiles for half a minute


def build(given: Settings) -> Command:
    earlier = [word for folder in given.earlier for word in ("--earlier", str(folder))]
    dry = ["--dry"] if given.dry else []
    return Command([given.python, str(HERE / "gpu_build.py"), str(given.folder), *earlier, *dry])


def measured(given: Settings, program: str, *arguments: str) -> Command:
    dry = ["--device", "cpu", "--list", "tiny", "--rounds", "1"] if given.dry else []
    return Command([given.python, str(HERE / program), *arguments, *dry, *given.flags], measures=True)


def rivals(given: Settings, of: str) -> Command:
    """A program for each choice: they compile for minutes, or read what is read once a process."""
    paths = (given.dion,) if given.dion and of in ("dion", "siblings") else ()
    return measured(given, "gpu_rivals.py", "--of", of)._replace(paths=paths)


def tests(given: Settings, suite: str, *names: str) -> Command:
    """The tests on the GPU among these; "addopts" as markers of pytest's plugins may be missing here."""
    options = ["-o", "addopts=-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    options += ["-p", "pytest_rows", "--suite", suite]
    dry = ["--may-skip-all"] if given.dry else []
    return Command([given.python, "-m", "pytest", *options, *dry, "-k", "cuda", *names], paths=(HERE,))


def verify(given: Settings) -> Command:
    mesh = "fs=2" if given.dry else "fs=2,tp=2"
    few = ["--steps", "2", "--orthonormalize", "auto"] if given.dry else ["--steps", "5"]
    words = ["verify", "--mesh", mesh, "--device", "cpu" if given.dry else "cuda", "--orientation", "right", *few]
    return Command([given.python, "-m", "torchdion", *words])


def sanitizer(given: Settings, tool: str) -> Command:
    """Only our kernels. What CUDA's functions return is checked by who calls them; torch's allocator would hide what is
    read or written beside a tensor."""
    program = str(STAND_INS / "compute-sanitizer") if given.dry else find("compute-sanitizer") or "compute-sanitizer"
    options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", "--kernel-name", "kns=_program"]
    command = tests(given, tool, *SANITIZED)
    caching = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)
    return command._replace(arguments=[program, *options, *command.arguments], environment=caching)


def report(call: str, given: Settings) -> Command:
    rows = [str(folder / "rows.jsonl") for folder in (*given.earlier, given.folder)]
    rows = [path for path in rows if Path(path).is_file()] or [rows[-1]]
    options = [
        "--after",
        call,
        "--markdown",
        str(given.folder / "report.md"),
        "--plot",
        str(given.folder / "steps.png"),
    ]
    dry = ["--dry"] if given.dry else []
    return Command([given.python, str(HERE / "gpu_report.py"), *rows, *options, *dry])
