"""benchmarks/gpu/gpu_metrics.py: what it reads of Nsight Compute, also where a metric is unknown."""

import json
import os
import time
from pathlib import Path

import gpu_metrics
import pytest

GPU = Path(__file__).parents[3] / "benchmarks" / "gpu"
DURATION, DRAM = "gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
OTHER_TENSOR = "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active"
IDLE_TENSOR = OTHER_TENSOR.replace("hmma", "dmma")
TABLE = f"""==PROF== Connected to process 7 (/usr/bin/python3)
"ID","Kernel Name","Grid Size","{DRAM}","{DURATION}","{IDLE_TENSOR}","{OTHER_TENSOR}"
"","","","%","ns","%","%"
"0","void run_program<a::Upload<460>>(T1)","(1, 1, 1)","0.50","1,500","n/a","n/a"
"1","nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT","(64, 2, 1)","40.25","2,500,000","0","81.5"
"2","void run_program<a::Upload<460>>(T1)","(9, 1, 1)","0.75","3,500","n/a","(!) nan"
==WARNING== Note: Running with unmodified GPU clocks.
"""


def test_the_longest_launch_of_each_kernel_is_kept_with_numbers_in_their_units() -> None:
    rows = gpu_metrics.longest(gpu_metrics.launches(TABLE))
    assert [(row["kernel"], row["ms"], row["dram"], row["tensor"], row["grid"]) for row in rows] == [
        ("cuBLAS BF16", 2.5, 40.25, 81.5, "(64, 2, 1)"),
        ("Upload<460>", 3.5e-3, 0.75, None, "(9, 1, 1)"),
    ]
    assert rows[0]["occupancy"] is None  # a column that this chip lacks
    assert gpu_metrics.launches("==ERROR== Failed to find metric x\n") == []


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ncu: str) -> int:
    (tmp_path / "ncu").write_text(ncu)
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return gpu_metrics.main(["--device", "cpu", "--list", "tiny", "--csv", str(tmp_path / "metrics.csv")])


@pytest.mark.long
def test_a_metric_that_the_chip_does_not_know_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in = GPU / "stand_ins" / "ncu"
    refusing = f'#!/bin/sh\ncase "$*" in *--metrics*) echo "==ERROR== Failed"; exit 9;; esac\nexec {stand_in} "$@"\n'
    assert run(tmp_path, monkeypatch, refusing) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kernel"], row["occupancy"]) for row in rows] == [
        ("cuBLAS TF32", 12.5),
        ("Accumulate<float, float>", 62.5),
    ]
    assert "Accumulate" in (tmp_path / "metrics.csv").read_text()


def test_what_ncu_says_is_the_problem_where_it_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = '#!/bin/sh\necho "==ERROR== LibraryNotLoaded"; exit 1\n'
    assert run(tmp_path, monkeypatch, refusing) == 1
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["problem"] == "==ERROR== LibraryNotLoaded"


@pytest.mark.long
def test_launches_that_were_not_counted_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_metrics, "LAUNCHES", 2)
    assert run(tmp_path, monkeypatch, f'#!/bin/sh\nexec {GPU / "stand_ins" / "ncu"} "$@"\n') == 1
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["problem"] == "a step has 2 launches or more, of which the later ones were not counted"


def test_of_an_ncu_that_does_not_end_the_program_goes_on_without_it() -> None:
    begin = time.monotonic()
    assert gpu_metrics.said_by(["sh", "-c", "sleep 4 & sleep 4"], 0.2) == "==ERROR== ncu had not ended after 0 s"
    assert time.monotonic() - begin < 3
