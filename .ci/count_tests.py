"""Adds up the tests that `make test` has run, from the reports of GoogleTest, ctest and pytest.

Exits with 1 if any failed. A report that is missing or cut short counts as one failed test, as does a program that
ctest saw fail though none of its tests did: a sanitizer that speaks at the very end, say.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


def cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase"))


def failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def skipped(case: ElementTree.Element) -> bool:
    return case.find("skipped") is not None or case.get("status") == "notrun"


def count(report: Path, program_failed: bool = False) -> tuple[int, int]:
    """How many test cases passed and failed."""
    try:
        found = cases(report)
    except (OSError, ElementTree.ParseError) as error:
        print(f"no report: {error}")
        return 0, 1
    failures = sum(map(failed, found))
    skips = sum(map(skipped, found))
    passes = len(found) - failures - skips
    print(f"{report.relative_to(ROOT)}: {passes} passed, {failures} failed, {skips} skipped")
    return passes, max(failures, int(program_failed))


def failed_programs(tree: Path) -> set[str]:
    """The test programs of a build tree that did not end well."""
    try:
        return {case.get("name", "") for case in cases(tree / "results" / "ctest.xml") if failed(case)}
    except (OSError, ElementTree.ParseError):
        return set()  # their own reports are missing too


programs = sorted(path.name for path in (ROOT / "tests" / "cpp").iterdir() if path.is_dir())
counts = [count(BUILD / "results" / "pytest.xml")]
for tree in (BUILD / "package", BUILD / "asan"):
    ended_badly = failed_programs(tree)
    counts += [count(tree / "results" / f"{name}.xml", name in ended_badly) for name in programs]
passes, failures = (sum(column) for column in zip(*counts, strict=True))
print(f"{passes} passed, {failures} failed")
sys.exit(1 if failures else 0)
