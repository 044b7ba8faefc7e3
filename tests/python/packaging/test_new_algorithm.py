"""Adding an algorithm takes what CONTRIBUTING's recipe says and no more: a toy is added to a copy of the sources.

RowSign descends by the signs of a momentum, with one number for each row as its other state. All tests that are
parametrized over the table run on it, and C++ goes on with what Python has begun.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from consumer import build, prefix, run
from same import assert_same

ROOT = Path(__file__).parents[3]
TOY = ROOT / "tests" / "new_algorithm"
BUILT = ROOT / "build" / "package"
MOST_FILES = 5
TESTS = (  # of all algorithms
    "drop_in",
    "law/test_algorithms.py",
    "oracle/test_algorithms.py",
    "oracle/test_matrix_forms.py",
    "ranks/test_checkpoints.py",
    "units/test_nonfinite.py",
    "units/test_step_refusals.py",
    "units/test_wrappers.py",
)

ORACLE = """

def _row_sign(X: Tensor, states: States, G: Tensor, t: int, options: dict[str, Any]) -> tuple[Tensor, States]:
    G, mu, lr = _ascent(G, options), options["mu"], _rate(options)
    M = mu * states["momentum"] + G
    scale = mu * states["row_scale"] + (1 - mu) * G.abs().mean(1, keepdim=True)
    X = X - lr * options["weight_decay"] * X - lr * scale * M.sign()
    return X, {"momentum": M, "row_scale": scale}


ORACLES["row_sign"] = _row_sign
"""

CLASS = """
class RowSign : public OptimizerOf<RowSign, Options> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "row_sign", title = "torchdion::RowSign";
};

"""


def is_in_the_recipe(file: str) -> bool:
    """Whether CONTRIBUTING's "Adding an algorithm" names it, outside of its last step, which is about tests."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding an algorithm")[2].partition("\n## ")[0]
    name = Path(file.replace("row_sign", "NAME"))
    return f"`{name}`" in recipe or f"`{name.name}`" in recipe


def copied(folder: Path) -> Path:
    """The sources, with the library that is installed in them."""
    for name in ("benchmarks", "cmake", "csrc", "examples", "include", "python", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for name in ("CMakeLists.txt", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def digests(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "tests" not in path.relative_to(folder).parts[:1])
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def add_the_toy(folder: Path) -> None:
    """Follows the recipe."""

    def edit(name: str, change: Callable[[str], str]) -> None:
        before = (folder / name).read_text()
        after = change(before)
        assert after != before, name
        (folder / name).write_text(after)

    shutil.copy(TOY / "row_sign.cpp", folder / "csrc" / "algorithms")
    edit("csrc/algorithms/table.h", lambda text: text.replace("row(kAdamW)", "row(kAdamW) row(kRowSign)"))
    shutil.copy(TOY / "row_sign.py", folder / "python" / "torchdion")
    line = "from torchdion.routing import param_groups  # noqa: E402\n"
    edit("python/torchdion/__init__.py", lambda text: text.replace(
        line, f"{line}from torchdion.row_sign import RowSign  # noqa: E402\n"
    ).replace('    "DionMixed', '    "RowSign",\n    "DionMixed'))  # fmt: skip
    edit("include/torchdion/optim.h", lambda text: text.replace("\n// Dion (arXiv", f"{CLASS}// Dion (arXiv"))
    edit("tests/python/support/oracle.py", lambda text: text + ORACLE)


def succeed(*command: str | Path, timeout: int = 300, **options: Any) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def build_library(folder: Path) -> None:
    """Compiles what is new and the table; all other objects are those of the library that is tested here."""
    tree, objects = folder / "build", "CMakeFiles/torchdion.dir/csrc/algorithms"
    options = (f"-DPython_EXECUTABLE={sys.executable}", "-DTORCHDION_CUDA=OFF", "-DTORCHDION_WERROR=ON")
    succeed("cmake", "-S", folder, "-B", tree, "-G", "Ninja", *options)
    succeed("cmake", "--build", tree, "--target", f"{objects}/row_sign.cpp.o", f"{objects}/all.cpp.o")
    link = succeed("ninja", "-C", BUILT, "-t", "commands", "-s", "libtorchdion.so").splitlines()[-1]
    table = f"{objects}/all.cpp.o"
    assert table in link
    library = folder / "python" / "torchdion" / "lib" / "libtorchdion.so"
    library.unlink()
    link = link.replace(table, f"{tree}/{table} {tree}/{objects}/row_sign.cpp.o")
    succeed("bash", "-c", link.replace("-o libtorchdion.so", f"-o {library}"), cwd=BUILT)


@pytest.fixture(scope="module")
def with_toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """The copy, and the files that were touched in it outside of tests."""
    folder = copied(tmp_path_factory.mktemp("sources"))
    before = digests(folder)
    add_the_toy(folder)
    after = digests(folder)
    build_library(folder)
    return folder, {name for name in after if after[name] != before.get(name)}


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder / "python")}


@pytest.mark.timeout(600)
@pytest.mark.long
def test_it_touches_the_files_that_the_recipe_names_and_no_others(with_toy: tuple[Path, set[str]]) -> None:
    touched = with_toy[1]
    assert [file for file in touched if not is_in_the_recipe(file)] == []
    assert len(touched) <= MOST_FILES
    print(f"files outside of tests that the toy algorithm touches: {len(touched)}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_passes_the_tests_of_all_algorithms(with_toy: tuple[Path, set[str]]) -> None:
    folder = with_toy[0]
    tests = [f"tests/python/{name}" for name in TESTS]
    output = succeed(sys.executable, "-m", "pytest", "-k", "row_sign", "-p", "no:cacheprovider", *tests,
                     timeout=580, cwd=folder, env=environment(folder))  # fmt: skip
    passed = int(re.findall(r"(\d+) passed", output)[0])
    assert passed >= 60, output


@pytest.mark.long
@pytest.mark.timeout(600)
def test_plan_and_verify_know_it(with_toy: tuple[Path, set[str]]) -> None:
    """A plan has its costs; of verify's checks all pass, but for one against a paper that it has not."""
    folder = with_toy[0]
    torchdion = (sys.executable, "-m", "torchdion")
    planned = succeed(*torchdion, "plan", "--model", "gpt-120m", "--mesh", "dp=2,tp=2", env=environment(folder))
    meaning = "replicas average in the step (replicate_mesh)"
    assert re.search(rf"^row sign +{re.escape(meaning)}$", planned, re.MULTILINE), planned
    _, sent = re.findall(r"^row sign +\d.*$", planned, re.MULTILINE)
    assert "0, 0 B" not in sent, sent  # the means of rows along tp
    for mesh in ("dp=2,fs=2", "tp=2"):
        words = ("verify", "--optimizer", "row_sign", "--steps", "4", "--mesh", mesh)
        verified = succeed(*torchdion, *words, env=environment(folder))
        checks = 7 + len(("momentum", "row_scale"))
        assert f"{checks} of {checks} checks pass" in verified, verified
        assert "No form of row_sign in plain PyTorch is known here" in verified
        assert "row_scale against one process" in verified


BEGIN = """
import sys, torch, torchdion
assert torchdion.__file__.startswith(sys.argv[1])
torch.manual_seed(0)
shapes = [(6, 4), (3, 8), (5,)]
params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
gradients = [[torch.randn(shape) for shape in shapes] for _ in range(6)]
optimizer = torchdion.RowSign(params, lr=0.05, mu=0.9)
def train(steps):
    for step in steps:
        for param, gradient in zip(params, step):
            param.grad = gradient
        optimizer.step()
train(gradients[:3])
begun = {"params": [p.detach().clone() for p in params], "state_dict": optimizer.state_dict()}
torch.save(begun | {"gradients": gradients[3:], "optimizer": "RowSign", "capturable": False}, sys.argv[2])
train(gradients[3:])
torch.save({"params": [p.detach() for p in params], "states": optimizer.state_dict()["state"]}, sys.argv[3])
try:
    torchdion.RowSign(params, mu=1.5)
except ValueError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_cpp_goes_on_with_what_python_has_begun_to_the_same_bits(
    with_toy: tuple[Path, set[str]], tmp_path: Path
) -> None:
    folder = with_toy[0]
    begun, ended, out = (tmp_path / name for name in ("begun.pt", "ended.pt", "out.pt"))
    said = succeed(sys.executable, "-c", BEGIN, folder, begun, ended, env=environment(folder))
    assert said == "torchdion.RowSign: mu must be in [0, 1), got 1.5\n"

    headers = folder / "python" / "torchdion" / "include" / "torchdion"
    shutil.copy(folder / "include" / "torchdion" / "optim.h", headers)
    consumer = folder / "tests" / "consumer" / "main.cpp"
    consumer.write_text(consumer.read_text().replace("make_unique<torchdion::Dion>", "make_unique<torchdion::RowSign>"))
    package = prefix(str(folder / "python" / "torchdion" / "share" / "cmake"))
    program = build(tmp_path / "tree", "consumer", package, sources=consumer.parent)
    done = run(program, begun, out)
    assert done.returncode == 0, done.stderr
    expected, found = torch.load(ended, weights_only=True), torch.load(out, weights_only=True)
    assert_same(found["params"], expected["params"])
    assert_same(found["state_dict"]["state"], expected["states"])
    assert expected["states"][0]["row_scale"].shape == (6, 1)
