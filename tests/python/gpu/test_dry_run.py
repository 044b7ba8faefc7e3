"""All of benchmarks/gpu/run.sh without a GPU: three calls, of which the later ones come to a bare machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gpu_calls import CALLS, ROOT, Settings, parts_of
from gpu_report import TABLES, checked
from gpu_targets import targets
from rows import read, select

# In place of microsoft/dion and gram-newton-schulz: their names, for the same matrices.
DION = "from torchdion import Dion, Dion2, DionMixedPrecisionConfig, Muon\n"
GRAM = "from torchdion import Muon\n\n\ndef GramNewtonSchulz():\n    return lambda X: X\n"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # three calls, each within 250 s
BINARIES = ("*.so", "lib", "share", "_build.json")  # of the package


class Run(NamedTuple):
    folder: Path
    output: str
    status: int

    def rows(self, **labels: Any) -> list[dict[str, Any]]:
        return select([json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()], **labels)


def checkout(folder: Path, *without: str) -> Path:
    """A copy of this one, without what git ignores."""
    folder.mkdir()
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    for name in ("benchmarks", "cmake", "csrc", "docs", "examples", "include", "python", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "build_key.json", *(without if name == "python" else ()))
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def run(root: Path, call: str, folder: Path, *arguments: str) -> Run:
    command = [str(root / "benchmarks" / "gpu" / "run.sh"), "--dry", *arguments, call, str(folder)]
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(root.parent / "installed")
    ended = subprocess.run(command, env=environment, cwd=root.parent, capture_output=True, text=True, timeout=250)
    return Run(folder, ended.stdout + ended.stderr, ended.returncode)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    place = tmp_path_factory.mktemp("day")
    for folder, text in (("package/dion", DION), ("installed/gram_newton_schulz", GRAM)):
        (place / folder).mkdir(parents=True)
        (place / folder / "__init__.py").write_text(text)
    first, bare = checkout(place / "first"), checkout(place / "bare", *BINARIES)
    folders = [place / str(index) for index in range(3)]
    return [
        run(first, CALLS[0], folders[0]),
        run(bare, CALLS[1], folders[1], "--earlier", str(folders[0])),
        run(bare, CALLS[2], folders[2], *(f"--earlier={folder}" for folder in folders[:2]), "--dion=package"),
    ]


def test_every_part_of_every_call_is_done_without_a_problem(runs: list[Run]) -> None:
    for call, ended in zip(CALLS, runs, strict=True):
        assert ended.status == 0, ended.output
        names = [part.name for part in parts_of(call, Settings("python", Path("folder")))]
        assert [row["part"] for row in ended.rows(kind="part")] == names
        assert '"problem"' not in (ended.folder / "rows.jsonl").read_text()


def test_the_build_is_unpacked_on_a_bare_machine_and_stays_there(runs: list[Run]) -> None:
    assert [ended.rows(kind="build")[0]["how"] for ended in runs] == ["built", "unpacked", "installed"]


def test_every_target_is_measured_by_the_call_that_is_to_measure_it(runs: list[Run]) -> None:
    of = targets("tiny", "tiny")
    for index, call in enumerate(CALLS):
        rows = read([ended.folder / "rows.jsonl" for ended in runs[: index + 1]])
        found = {row["target"]: row["outcome"] for row in checked(rows, of, call)}
        later = {target.claim for target in of if CALLS.index(target.call) > index}
        assert {claim for claim, outcome in found.items() if outcome.startswith("by the call")} == later
        assert "not measured" not in found.values()


def test_every_optimizer_of_every_package_is_a_row(runs: list[Run]) -> None:
    steps = {(row["optimizer"], row["mode"]) for row in runs[-1].rows(kind="step")}
    own = {f"torchdion.{name}" for name in ("Muon", "NorMuon", "Dion2", "Dion3", "AdamW", "Lion")}
    packages = {"dion package", "dion package Muon", "dion package Dion2", "gram-newton-schulz Muon"}
    assert {optimizer for optimizer, mode in steps if mode == "eager"} == {"AdamW", "Muon", *own, *packages}
    assert {mode for optimizer, mode in steps if optimizer == "torchdion.Muon"} == {
        *("eager", "graph", "cuBLAS alone", "beside dion", "beside gram"),
    }
    report = (runs[-1].folder / "report.md").read_text()
    assert all(f"| tiny | {optimizer} | eager |" in report for optimizer in {*own, *packages})


def test_the_last_report_has_every_table_from_all_calls(runs: list[Run]) -> None:
    report = (runs[-1].folder / "report.md").read_text()
    titles = [line.removeprefix("### ") for line in report.splitlines() if line.startswith("### ")]
    assert titles == ["Targets", *TABLES]
    assert "not made" not in report
    assert all((ended.folder / "steps.png").stat().st_size > 10_000 for ended in runs[1:])


def test_what_comes_back_is_few_files_of_limited_size(runs: list[Run]) -> None:
    names = {file.name for ended in runs for file in ended.folder.iterdir()}
    assert names == {"build.tar.gz", "log.txt", "metrics.csv", "report.md", "rows.jsonl", "steps.png"}
    files = [file for ended in runs for file in ended.folder.iterdir()]
    assert all(file.is_file() and file.stat().st_size < 16 << 20 for file in files)
    assert all(len(ended.output) < 6000 for ended in runs)  # whoever runs it may see only the end


def test_a_peer_that_was_not_given_is_a_failure_line(runs: list[Run], tmp_path: Path) -> None:
    root = runs[0].folder.parent / "first"
    ended = run(root, CALLS[2], tmp_path / "out", "--only", "dion,report", "--earlier", str(runs[1].folder))
    assert ended.status == 1
    assert "- TINY, r = d/4: a step of microsoft/dion over this: not measured\n" in ended.output
    assert "run.sh peers takes a checkout with --dion FOLDER" in ended.output
