"""examples/gpt/comparison/report.py, figures.py, links.py: what a report says of results that follow from a formula."""

import math
import re
from pathlib import Path

import pytest
from comparison import report, step_times, summary
from comparison.cells import Cell, settings
from comparison.drawing import Looks
from comparison.figures import ratios
from comparison.results import Result, Results
from comparison.step_times import StepTime, timed
from comparison.study import Study
from comparison.traffic import sent_bytes
from scipy import stats

from .studies import SMALL, TARGETS, bowl, loss_of, read, run, steps_of


@pytest.fixture
def asked(tmp_path: Path) -> Study:
    return read(
        tmp_path, SMALL.replace("seeds = 3", 'figures = ["losses", "curves", "ranks", "rates", "costs"]') + TARGETS
    )


@pytest.fixture
def results(asked: Study, tmp_path: Path) -> Results:
    found = Results(tmp_path, {"torch": "9"})
    run(asked, found, loss_of)
    first = settings(asked, asked.parts[0])
    times = [StepTime(timed(each), each.contender.name, 16, 32, 0.5, 0.1, 1000, 100, 2) for each in first]
    step_times.write(tmp_path, times)
    return found


def test_a_tables_means_differences_and_places_are_those_of_the_results(asked: Study, results: Results) -> None:
    [table] = report.tables_of(summary.groups(asked, asked.parts[0], results))
    assert table.columns[:4] == ("place", "optimizer", "loss", "over the first")
    assert table.rows[0][:3] == ("1", "B r = d/2", "2.020 ± 0.025")
    assert table.rows[1][:4] == ("2", "A", "2.320 ± 0.025", "+0.300 ± 0.000")
    assert [row[4:] for row in table.rows] == [("0.02", "3", "3")] * 2


def test_a_target_that_is_not_reached_is_said(asked: Study, results: Results) -> None:
    small, large = report.tables_of(summary.groups(asked, asked.parts[1], results))
    assert [row[1:3] for row in small.rows] == [("B r = d/2", "6 ± 0"), ("A", "7 ± 0")]
    assert [row[1:3] for row in large.rows] == [("B r = d/2", "6 ± 0"), ("A", "not reached")]


def test_every_figure_is_drawn_and_says_its_numbers(asked: Study, results: Results, tmp_path: Path) -> None:
    report.write(asked, results, tmp_path)
    page, text = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert drawn == {f"one-{kind}" for kind in ("losses", "curves", "ranks", "rates", "costs")} | {
        "two-targets",
        "two-rates",
    }
    assert "B r = d/2 2.020 ± 0.025; A 2.320 ± 0.025" in text
    assert page.count("<img ") == 7
    assert "Left out" not in text


def test_widths_are_compared_with_the_first_contender_of_each(tmp_path: Path) -> None:
    asked = read(
        tmp_path, SMALL.replace("seeds = 3", 'figures = ["widths"]'), widths="widths = [16, 32]",
        contenders='contenders = ["B r = d/2", "A"]',
    )  # fmt: skip

    def closing(cell: Cell) -> Result:
        gap = 4.8 / cell.flags["d_model"] if cell.flags["optimizer"] == "adamw" else 0.0
        return Result(((8, 2.0 + gap + bowl(0.02, 0.0)(cell.flags["lr"]) + 0.01 * cell.flags["seed"]),))

    results = Results(tmp_path, {"torch": "9"})
    run(asked, results, closing)
    report.write(asked, results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "A at width 16 2.320 ± 0.025, 0.300 ± 0.000 above" in text
    assert "A at width 32 2.170 ± 0.025, 0.150 ± 0.000 above" in text
    assert (tmp_path / "figures" / "one-widths.svg").exists()
    assert "| optimizer | width 16 | width 32 | change |" in text
    assert "| A | +0.300 ± 0.000 | +0.150 ± 0.000 | -0.150 ± 0.000 |" in text


def test_a_change_from_a_width_where_all_diverged_is_not_known(tmp_path: Path) -> None:
    asked = read(
        tmp_path, SMALL.replace("seeds = 3", 'figures = ["widths"]'), widths="widths = [16, 32, 64]",
        contenders='contenders = ["B r = d/2", "A"]',
    )  # fmt: skip

    def loss(cell: Cell) -> Result:
        diverged = cell.flags["d_model"] == 16 and cell.flags["optimizer"] == "adamw"
        return Result(((8, math.inf if diverged else loss_of(cell).loss),))

    results = Results(tmp_path, {"torch": "9"})
    run(asked, results, loss)
    report.write(asked, results, tmp_path)
    assert re.search(r"\| A \| – \| \+0.3\d\d .* \| \+0.3\d\d .* \| – \|", (tmp_path / "report.md").read_text())


def test_one_width_has_no_change(tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL.replace("seeds = 3", 'figures = ["widths"]'))
    results = Results(tmp_path, {"torch": "9"})
    run(asked, results, loss_of)
    report.write(asked, results, tmp_path)
    assert "change" not in (tmp_path / "tables.txt").read_text()


def test_what_was_not_run_is_left_out_by_name(asked: Study, tmp_path: Path) -> None:
    results = Results(tmp_path, {"torch": "9"})
    run(asked, results, loss_of, most=9)
    report.write(asked, results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"- One: \d+ trainings have not been run", text)
    assert re.search(r"- Two: \d+ trainings have not been run", text)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"\bnan\b", page)


ALL_FIGURES = 'figures = ["losses", "curves", "ranks", "widths", "rates", "costs"]'


def drawn(asked: Study, results: Results, folder: Path) -> str:
    """The report, in which no figure has a number that is none."""
    report.write(asked, results, folder)
    text = (folder / "report.md").read_text()
    for words in (text, (folder / "report.html").read_text(), *map(Path.read_text, (folder / "figures").glob("*.svg"))):
        assert not re.search(r"\b(nan|inf)\b", words.partition("</style>")[2] or words)
    return text


@pytest.mark.parametrize("seeds", [{0, 1, 2, 3}, {2}], ids=["every seed", "one seed"])
def test_a_contender_that_diverged_is_drawn_nowhere_and_said(seeds: set[int], tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL.replace("seeds = 3", ALL_FIGURES))
    results = Results(tmp_path, {"torch": "9"})
    diverges = Result(((4, 3.0),), 5)
    run(asked, results, lambda cell: diverges if cell.flags["optimizer"] == "adamw" and cell.flags["seed"] in seeds
        else loss_of(cell))  # fmt: skip
    said = "diverged" if len(seeds) > 1 else "2 of 3 seeds"
    text = drawn(asked, results, tmp_path)
    assert f"Losses: B r = d/2 2.020 ± 0.025; A {said}" in text
    assert "theirs are left out there. Not drawn, as it diverged: A." in text
    [table] = report.tables_of(summary.groups(asked, asked.parts[0], results))
    assert table.rows[1][1:3] == ("A", said)
    assert table.rows[1][0] == ("2" if len(seeds) > 1 else "1–2")


def test_trainings_that_are_not_there_yet_leave_no_numbers_that_are_none(tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL.replace("seeds = 3", ALL_FIGURES), widths="widths = [16, 32]")
    for most in range(0, 24, 3):
        (tmp_path / f"{most}").mkdir()
        results = Results(tmp_path / f"{most}", {})
        run(asked, results, loss_of, most=most)
        drawn(asked, results, tmp_path / f"{most}")


@pytest.mark.parametrize(("steps", "places"), {1: ["1–2", "1–2"], 2: ["1–2", "1–2"], 7: ["1", "2"]}.items())
def test_a_target_that_some_seeds_miss_is_ranked_by_the_steps_that_they_had(
    steps: int, places: list[str], asked: Study, tmp_path: Path
) -> None:
    def loss(cell: Cell) -> Result:
        if cell.flags["optimizer"] == "dion":
            return Result(((2 + cell.flags["seed"] % 2, 2.4),))
        return Result(((8, 2.6),)) if cell.flags["seed"] == 2 else Result(((steps, 2.4),))

    results = Results(tmp_path, {})
    run(asked, results, loss)
    small = report.tables_of(summary.groups(asked, asked.parts[1], results))[0]
    assert [row[0] for row in small.rows] == places
    assert small.rows[1][1:4] == ("A", "2 of 3 seeds", "–")
    drawn(asked, results, tmp_path)


def test_rows_that_no_part_asks_for_are_counted_by_themselves(asked: Study, results: Results, tmp_path: Path) -> None:
    text = drawn(asked, results, tmp_path)
    assert f"\n{len(results)} trainings, " in text
    assert "stand in no table" not in text
    count = len(results)
    results.add(next(settings(asked, asked.parts[0])).cell(0.5, 0), Result(((8, 1.0),)))
    text = drawn(asked, results, tmp_path)
    assert f"\n{count} trainings, " in text
    assert "Trainings of other rates and forms, which stand in no table: 1." in text


def test_a_part_that_is_not_complete_says_so_where_it_stands(asked: Study, tmp_path: Path) -> None:
    results = Results(tmp_path, {})
    run(asked, results, loss_of, most=9)
    text = drawn(asked, results, tmp_path)
    assert re.search(r"\*\*Which\?\*\*\n\n\*3 trainings of this part have not been run.\*", text)


def test_old_figures_stay_until_the_new_ones_are_there(
    asked: Study, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.write(asked, results, tmp_path)
    (tmp_path / "figures" / "old-part.svg").write_text("")
    before = {path.name for path in (tmp_path / "figures").iterdir()}

    def fails(drawing: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(report, "draw", fails)
        report.write(asked, results, tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == before
    report.write(asked, results, tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == before - {"old-part.svg"}


def test_factors_of_steps_are_geometric_with_tukeys_interval(tmp_path: Path) -> None:
    asked = read(tmp_path, SMALL[: SMALL.index("[[parts]]")] + TARGETS.replace("batches = [32, 64]", "batches = [32]"))
    results = Results(tmp_path, {})
    run(asked, results, steps_of({"adamw": (200, 220, 180), "dion": (100, 105, 95)}))
    [table] = report.tables_of(summary.groups(asked, asked.parts[0], results))
    assert table.columns[2:4] == ("steps to 2.5", "times the first")
    assert [row[:3] for row in table.rows] == [("1", "B r = d/2", "100 ± 12"), ("2", "A", "200 ± 50")]
    logs = [math.log(a / b) for a, b in ((200, 100), (220, 105), (180, 95))]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    low, high = math.exp(expected.low), math.exp(expected.high)
    assert table.rows[1][3] == f"{math.exp(math.fsum(logs) / 3):.2f} ({low:.2f} to {high:.2f})"
    groups = summary.groups(asked, asked.parts[0], results)
    assert ratios(groups, "A", "A") == [(32, 1.0, 1.0, 1.0)]
    [(batch, over, least, most)] = ratios(groups, "A", "B r = d/2")
    assert (batch, over, least, most) == pytest.approx((32, math.exp(math.fsum(logs) / 3), low, high))


def test_a_step_is_timed_anew_when_what_is_timed_changes(asked: Study, results: Results, tmp_path: Path) -> None:
    known = step_times.read(tmp_path)
    assert step_times.wanted(asked, asked.parts, results, known) == []
    other = read(tmp_path, SMALL.replace("layers = 1", "layers = 2").replace("seeds = 3", 'figures = ["costs"]'))
    run(other, results, loss_of)
    [missing] = step_times.wanted(other, other.parts, results, known)
    assert {setting.contender.name: rate for setting, rate in missing.items()} == {"A": 0.02, "B r = d/2": 0.02}


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_sent_are_those_of_what_replicas_exchange(ranks: int, tmp_path: Path) -> None:
    def sent(optimizer: str, compress: bool) -> int | None:
        asked = read(tmp_path, SMALL.replace('optimizer = "dion"\nrank_fraction = 0.5', f'optimizer = "{optimizer}"'))
        return sent_bytes(list(settings(asked, asked.parts[0]))[1], ranks, compress)

    all_reduced = 2 * (ranks - 1) / ranks  # of each element, by each rank
    matrices, rest = 12 * 16**2, 512 * 16
    factors = 8 * (4 * (16 + 16) + 2 * (64 + 16))  # (m + n) r of Dion at r = d/2
    assert sent('dion"\nrank_fraction = 0.5 # "', True) == all_reduced * 4 * (factors + rest)
    for residual in ("scaled", "sign"):  # replicas have one momentum
        flags = f'dion"\nrank_fraction = 0.5\nresidual = "{residual}" # "'
        assert sent(flags, True) == sent("dion", False)
    owned = {2: 64 * 16 + 2 * 16**2, 4: 64 * 16}[ranks]  # by who has most, whole matrices
    to_owners_and_back = (matrices - owned) + (ranks - 1) * owned
    assert sent("muon", True) == 2 * to_owners_and_back + all_reduced * 4 * rest  # BF16 and FP32
    for dense in ("dion", "muon", "adamw"):
        assert sent(dense, False) == all_reduced * 4 * (matrices + rest)
    assert sent("torch_adamw", True) == all_reduced * 4 * (matrices + rest)
    (tmp_path / "own.py").write_text("def build(model, *, lr=0.1): ...")
    assert sent(f"{tmp_path}/own.py:build", True) is None


def test_contenders_of_one_family_share_a_colour_that_pales_with_the_rank(tmp_path: Path) -> None:
    full = '[contenders."B r = d"]\noptimizer = "dion"\nrates = [0.01, 0.02, 0.04]\n'
    looks = Looks(read(tmp_path, SMALL.replace('[contenders."B', full + '[contenders."B')))
    assert looks["B r = d"].marker == looks["B r = d/2"].marker != looks["A"].marker
    assert sum(looks["B r = d"].color) < sum(looks["B r = d/2"].color)
