"""tests/check_includes.py finds what a file of csrc calls of torch without its header."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
check = runpy.run_path(str(ROOT / "tests" / "check_includes.py"))


def test_calls_without_their_header_are_found() -> None:
    source = "auto a = at::empty({2}, options);  // at::zeros({2})\nat::parallel_for(0, 2, 1, body);\nat::Tensor(a);"
    names = {"empty", "zeros"}
    assert check["missing"](source, frozenset(), names) == ["ATen/Parallel.h", "ATen/ops/empty.h"]
    assert check["missing"](source, frozenset({"ATen/Parallel.h", "ATen/ops/empty.h"}), names) == []


def test_headers_of_ours_count_as_what_they_include() -> None:
    reached = check["included"](ROOT / "csrc" / "linalg" / "cpu" / "gemm.cpp")
    assert {"linalg/cpu/parallel_rows.h", "ATen/Parallel.h"} <= reached
    assert "empty" in check["operators"]()
