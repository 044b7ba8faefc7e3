"""tests/check_coroutines.py finds every shape that it is there to find, and nothing else."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
violations = runpy.run_path(str(ROOT / "tests" / "check_coroutines.py"))["violations"]


@pytest.mark.parametrize(
    "statement",
    [
        "co_await all_reduce(P, cols);",
        "co_await comm::all_reduce(batch.P, axis->rows);",
        "co_await orthonormalize_(P, rows, rows.rank * m, batch.global_rows, options);",
        "const int value = co_await sum_to(depth - 1, turns);",
        "const std::vector<at::Tensor> pieces = co_await gather(P, rows);",
        "value = co_await make(4);",
        "*out += co_await make(tensors[0]);",
        "if (ready) {\n    co_await turn();\n  }",
        "// if (co_await turn()) is what this must not be\n  co_await turn();",
        'print("co_await {}");',
    ],
)
def test_allowed(statement: str) -> None:
    assert violations(f"Task<> f(at::Tensor P, Axis rows) {{\n  {statement}\n}}\n") == []


@pytest.mark.parametrize(
    "statement",
    [
        "if (co_await ready(P)) g();",
        "while (co_await ready(P)) g();",
        "return co_await make(P);",
        "co_return co_await make(P);",
        "const int value = 1 + co_await make(P);",
        "g(co_await make(P));",
        "const auto [a, b] = co_await make(P);",
        "co_await make({1, 2});",
        "co_await Pending{};",
        "co_await make(Options{P});",
        "co_await make([&] { return P; });",
        "co_await make(P ? 1 : 2);",
        "const int value = P ? co_await make(P) : 0;",
        "co_await make(P.view(1));",
        "co_await (make(P));",
        "co_await pending;",
        "for (;;) co_await make(P);",
        "int a = co_await make(P), b = co_await make(P);",
    ],
)
def test_refused(statement: str) -> None:
    found = violations(f"Task<> f(at::Tensor P) {{\n\n  {statement}\n}}\n")
    assert found, statement
    assert {line for line, _ in found} == {3}


@pytest.mark.parametrize(
    ("declaration", "refused"),
    [
        ("comm::Task<> f(at::Tensor P, Axis rows);", False),
        ("comm::Task<std::vector<int>> f(\n    at::Tensor P, std::function<void(int)> g);", False),
        ("void run(Task<> task, const std::vector<Task<>>& tasks);", False),
        ("using Factory = std::function<Task<>(const int& slot)>;", False),
        ("tasks.push_back([&trace](int slot) { return f(&trace, slot); });", False),
        ("Task<> f(const at::Tensor& P);", True),
        ("Task<int> Engine::f(int a, std::vector<int>&& list) {}", True),
        ("auto f = [](const at::Tensor& P) -> comm::Task<> {};", True),
    ],
)
def test_parameters_by_value(declaration: str, refused: bool) -> None:
    assert bool(violations(declaration)) == refused


def test_the_sources_keep_the_rule() -> None:
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")]
    awaits = sum(path.read_text().count("co_await ") for path in sources)
    assert awaits >= 10, "the sources are not where this test looks for them"
    assert [(path, violations(path.read_text())) for path in sources if violations(path.read_text())] == []
