"""Adds up the tests that `make test` has run, from the reports of GoogleTest, ctest and pytest, and lists the slowest.

Exits with 1 if any failed. A report that is missing or cut short counts as one failed test, as does a program that
ctest saw fail though none of its tests did: one that crashes at the very end, say.
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


def slowest(number: int) -> list[str]:
    """A line for each of the slowest tests of all reports that count() has read."""
    ordered = sorted(took, key=lambda row: -row[0])[:number]
    return [f"{seconds:7.1f} s  {report}: {name}" for seconds, report, name in ordered]


def seconds_of(case: ElementTree.Element) -> float:
    return float(case.get("time", "0").removesuffix("s"))


def count(report: Path, program_failed: bool = False) -> tuple[int, int]:
    """How many test cases passed and failed."""
    try:
        found = cases(report)
    except (OSError, ElementTree.ParseError) as error:
        print(f"no report: {error}")
        return 0, 1
    name = str(report.relative_to(BUILD))
    took.extend((seconds_of(case), name, f"{case.get('classname')}::{case.get('name')}") for case in found)
    failures = sum(map(failed, found))
    skips = sum(map(skipped, found))
    passes = len(found) - failures - skips
    print(f"{report.relative_to(ROOT)}: {passes} passed, {failures} failed, {skips} skipped")
    return passes, max(failures, int(program_failed))


def count_tree(tree: Path) -> tuple[int, int]:
    """Adds up the reports of all programs that ctest has run in a build tree; ctest's own report comes at its end."""
    results = tree / "results"
    try:
        programs = cases(results / "ctest.xml")
    except (OSError, ElementTree.ParseError) as error:
        print(f"no report: {error}")
        return 0, 1
    counts = [count(results / f"{program.get('name')}.xml", failed(program)) for program in programs]
    passes, failures = (sum(column) for column in zip(*counts, strict=True))
    return passes, failures


took: list[tuple[float, str, str]] = []  # seconds, report, test
counts = [count(BUILD / "results" / "pytest.xml"), count_tree(BUILD / "package")]
passes, failures = (sum(column) for column in zip(*counts, strict=True))
print("slowest tests:", *slowest(30), sep="\n")
print(f"{passes} passed, {failures} failed")
sys.exit(1 if failures else 0)
