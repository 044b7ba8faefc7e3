"""A plugin of pytest: a JSON line for each test as it ends, so that a run that is stopped has told what it found.

    python -m pytest -p pytest_rows --suite NAME [--may-skip-all] ...

Rows of `kind` "test": `suite`, `name`, `outcome`, `seconds`, and the `problem` of one that failed; and one of `kind`
"tests" before them, with the number `collected`. A run in which no test passed fails, however many were skipped, unless
--may-skip-all is given.
"""

import json
from typing import Any

import pytest


class Rows:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":  # set-up and teardown only where they fail or skip
            self.passed += report.outcome == "passed"
            row: dict[str, Any] = {"kind": "test", "suite": self.config.getoption("suite"), "name": report.nodeid}
            row |= {"outcome": report.outcome, "seconds": round(report.duration, 2)}
            self.write(row | ({"problem": reason(report)} if report.failed else {}))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            row = {"kind": "test", "suite": self.config.getoption("suite"), "name": report.nodeid, "outcome": "failed"}
            self.write({**row, "problem": reason(report)})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write({"kind": "tests", "suite": self.config.getoption("suite"), "collected": len(session.items)})

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """No letters between the lines."""
        return report.outcome if report.when == "call" or report.outcome != "passed" else "", "", ""

    def write(self, row: dict[str, Any]) -> None:
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(json.dumps(row))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.passed == 0 and not self.config.getoption("may_skip_all"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.write({"kind": "tests", "suite": self.config.getoption("suite"), "problem": "no test passed"})


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The last line that says what went wrong."""
    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")] or [report.longreprtext]
    return lines[0].removeprefix("E").strip()[:300]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", default="tests", help="the name of this run in its rows")
    parser.addoption("--may-skip-all", action="store_true", help="succeed where no test passed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rows(config), "rows")
