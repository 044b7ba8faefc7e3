"""Checks that each row of docs/reference/drop-in.md names tests that ran and passed, from pytest's report.

    python3 .ci/check_drop_in.py [DOCUMENT [REPORT]]

A test is named as `tests/python/units/test_x.py::test_y`, and all its parameters must have passed. A test of
tests/python/drop_in that no row names is an error as well, so that the tables stay whole. Exits with 1 and one line for
each row that does not hold.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = re.compile(r"`(tests/python/[\w/]+\.py::\w+)`")


def outcomes(report: Path) -> dict[str, list[bool]]:
    """Whether each case of each test has passed."""
    found: dict[str, list[bool]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        name = case.get("name", "").partition("[")[0]
        passed = not any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
        found.setdefault(f"{file}::{name}", []).append(passed)
    return found


def rows(document: Path) -> list[tuple[str, list[str]]]:
    """The first cell of each row of each table, and the tests that the row names."""
    found = []
    for line in document.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and not set(cells[-1]) <= {"-", ":"} and cells[-1] != "tests":
            found.append((cells[0], TEST.findall(cells[-1])))
    return found


def complaints(document: Path, report: Path) -> list[str]:
    try:
        ran, table = outcomes(report), rows(document)
    except (OSError, ElementTree.ParseError) as error:
        return [f"nothing to check: {error}"]
    found = [] if table else [f"{document}: no table"]
    for behaviour, tests in table:
        if not tests:
            found.append(f"{behaviour}: names no test")
        for test in tests:
            if test not in ran:
                found.append(f"{behaviour}: {test} did not run")
            elif not all(ran[test]):
                found.append(f"{behaviour}: {ran[test].count(False)} of {len(ran[test])} of {test} did not pass")
    named = {test for _, tests in table for test in tests}
    own = (test for test in ran if test.startswith("tests/python/drop_in/"))
    return found + [f"{test}: in no row of {document.name}" for test in sorted(set(own) - named)]


def main(arguments: list[str]) -> int:
    defaults = [ROOT / "docs" / "reference" / "drop-in.md", ROOT / "build" / "results" / "pytest.xml"]
    document, report = [*map(Path, arguments), *defaults[len(arguments) :]]
    found = complaints(document, report)
    print("\n".join(found) or f"{document.name}: {len(rows(document))} rows, and every test that they name has passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
