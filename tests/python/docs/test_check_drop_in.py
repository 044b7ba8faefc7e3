"""The check of docs/reference/drop-in.md accepts what holds and names what does not."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("check_drop_in", ROOT / ".ci" / "check_drop_in.py")
assert spec is not None and spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

DOCUMENT = """# Text with `tests/python/units/test_x.py::test_not_in_a_table`

| behaviour | tests |
| --- | --- |
| hooks | `tests/python/units/test_x.py::test_a`, `tests/python/drop_in/test_y.py::test_b` |

| torch's test | tests |
| :-- | --: |
| `test_c` | `tests/python/units/test_x.py::test_c` |
"""
PASSED = {"units.test_x": ["test_a[1]", "test_a[2-[x]]", "test_c", "test_ab"], "drop_in.test_y": ["test_b"]}


def checked(tmp_path: Path, document: str = DOCUMENT, tests: dict = PASSED, bad: str = "", tag: str = "") -> list[str]:
    cases = [
        f'<testcase classname="tests.python.{module}" name="{name}">{f"<{tag}/>" if name == bad else ""}</testcase>'
        for module, names in tests.items()
        for name in names
    ]
    (tmp_path / "table.md").write_text(document)
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return check.complaints(tmp_path / "table.md", tmp_path / "report.xml")


def test_tables_whose_tests_have_passed_are_accepted(tmp_path, capsys):
    assert checked(tmp_path) == []
    assert check.main([str(tmp_path / "table.md"), str(tmp_path / "report.xml")]) == 0
    assert capsys.readouterr().out == "table.md: 2 rows, and every test that they name has passed\n"


@pytest.mark.parametrize("tag", ["failure", "error", "skipped"])
def test_one_case_that_did_not_pass_is_named_with_its_row(tmp_path, tag, capsys):
    assert checked(tmp_path, bad="test_a[2-[x]]", tag=tag) == [
        "hooks: 1 of 2 of tests/python/units/test_x.py::test_a did not pass"
    ]
    assert check.main([str(tmp_path / "table.md"), str(tmp_path / "report.xml")]) == 1
    assert "did not pass" in capsys.readouterr().out


def test_a_test_that_did_not_run_is_named(tmp_path):
    """Though one whose name begins alike did."""
    tests = {**PASSED, "units.test_x": ["test_ab", "test_c"]}
    assert checked(tmp_path, tests=tests) == ["hooks: tests/python/units/test_x.py::test_a did not run"]


def test_a_row_without_a_test_is_named(tmp_path):
    assert checked(tmp_path, DOCUMENT + "| nothing | soon |\n") == ["nothing: names no test"]


def test_a_test_of_the_battery_in_no_row_is_named(tmp_path):
    tests = {**PASSED, "drop_in.test_y": ["test_b", "test_new[1]", "test_new[2]"]}
    assert checked(tmp_path, tests=tests) == ["tests/python/drop_in/test_y.py::test_new: in no row of table.md"]


def test_a_document_without_a_table_and_a_report_that_is_missing_or_cut_short_are_errors(tmp_path):
    assert any("no table" in line for line in checked(tmp_path, "nothing"))
    (tmp_path / "report.xml").write_text("<testsuites>")
    assert len(check.complaints(tmp_path / "table.md", tmp_path / "report.xml")) == 1
    assert len(check.complaints(tmp_path / "table.md", tmp_path / "missing.xml")) == 1


def test_the_tests_that_the_document_names_exist():
    """At once, without a report: the function is in the file."""
    table = check.rows(ROOT / "docs" / "reference" / "drop-in.md")
    assert len(table) > 60
    for _, tests in table:
        for test in tests:
            file, name = test.split("::")
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_the_documents_tables_name_every_test_of_the_battery_and_none_that_is_not_there():
    functions = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests" / "python").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    named = {test for _, tests in check.rows(ROOT / "docs" / "reference" / "drop-in.md") for test in tests}
    assert named <= functions
    assert {test for test in functions if test.startswith("tests/python/drop_in/")} <= named
