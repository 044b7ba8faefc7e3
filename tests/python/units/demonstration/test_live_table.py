"""Rows of losses stand below the names of their columns, and are printed as they come."""

import sys

import pytest

from torchdion.demonstration.live_table import Table

ROWS = ["step  torchdion.Dion  torch.optim.AdamW\n", "  20           5.694              5.583\n"]


def show() -> None:
    table = Table(240, ["torchdion.Dion", "torch.optim.AdamW"])
    table.show(19)
    table.row(20, [5.69409, 5.583])


def test_without_a_terminal_rows_alone_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show()
    assert capsys.readouterr().out == "".join(ROWS)


def test_a_terminal_sees_the_step_until_a_row_takes_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show()
    assert capsys.readouterr().out == "19 of 240\r".join(ROWS)
