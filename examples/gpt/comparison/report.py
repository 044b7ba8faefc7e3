"""The report of a study, in Markdown and as one HTML page that needs nothing else."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import write_whole
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from comparison import links, step_times, summary, sweep
from comparison.drawing import Drawing, Figure, Looks
from comparison.figures import draw
from comparison.intervals import Mean
from comparison.results import Results
from comparison.study import Part, Study
from comparison.summary import Group

TEMPLATES = Path(__file__).parent
METHOD = """\
Every optimizer begins with as many learning rates, a factor apart; where the best one is at the edge, all of that
width and batch try as many more as the study allows. Rates are chosen by other seeds than those by which optimizers
are compared; no interval holds what that choice leaves to chance. ± is half of a 95% confidence interval: of means
Student's over seeds, of differences Tukey's, of seeds as blocks, which holds for all pairs of a table at once, also
of factors (low to high), whose logarithms are compared; of changes over widths Welch's, which by Bonferroni's
inequality holds for all of a table. A place is a range where these do not tell optimizers apart; who misses a
target is taken to need no fewer than all steps."""


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    part: Part
    figures: Sequence[Figure]
    tables: Sequence[Table]
    missing: int  # trainings


def write(study: Study, results: Results, folder: Path) -> list[Path]:
    """tables.txt, report.md, report.html and figures/*.svg of what is there; returns the paths of the first three."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    sections = [_section(study, part, results, folder, figures) for part in study.parts]
    asked = (cell for part in study.parts for cell in sweep.cells(study, part, results))
    trained = [cell for cell in dict.fromkeys(asked) if cell in results]
    context: dict[str, Any] = {
        "study": study,
        "method": METHOD,
        "made_with": results.made_with,
        "trainings": len(trained),
        "others": len(results) - len(trained),
        "tokens": sum(cell.flags["batch"] * cell.flags["context"] * results[cell].steps for cell in trained),
        "sections": [section for section in sections if section.tables],
        "left_out": [section for section in sections if section.missing],
    }
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["embedded"] = _embedded
    environment.filters["aligned"] = _aligned
    environment.filters["relative"] = lambda path: path.relative_to(folder).as_posix()
    paths = []
    for name in ("tables.txt", "report.md", "report.html"):
        environment.autoescape = name.endswith(".html")
        text = environment.get_template(f"{name}.jinja").render(context)
        path = folder / name
        write_whole(path, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
        paths.append(path)
    drawn = {figure.path for section in sections for figure in section.figures}
    for old in set(figures.glob("*.svg")) - drawn:
        old.unlink()
    return paths


def tables_of(groups: Sequence[Group]) -> list[Table]:
    """A table for each width and batch of a part."""
    return [_table(group) for group in groups]


def _section(study: Study, part: Part, results: Results, folder: Path, figures: Path) -> Section:
    groups = summary.groups(study, part, results)
    times = links.read(folder)
    drawing = Drawing(study, part, groups, step_times.read(folder), times, Looks(study), figures)
    missing = len({cell for cell in sweep.cells(study, part, results) if cell not in results})
    tables = tables_of(groups)
    if "widths" in part.figures and (table := _table_of_gaps(summary.of_widths(groups), part.contenders[0].name)):
        tables.append(table)
    on_links = links.to_target(times, drawing.rows)
    if on_links:
        tables.append(_table_of_links(on_links))
    return Section(part, draw(drawing), tables, missing)


def _table(group: Group) -> Table:
    target = group.rows[0].target
    first = group.rows[0]
    columns = ("place", "optimizer", *(("loss", "over the first") if target is None else
                                       (f"steps to {target:g}", "times the first")),
               "rate", "rates tried", "seeds")  # fmt: skip
    rows = []
    for row in group:
        over = group.comparison.difference(row.name, first.name)
        rows.append((
            _place(group.comparison.places[row.name]),
            row.name,
            row.words,
            "" if row is first else _difference(over) if target is None else _factor(over),
            f"{row.rate:.3g}" + ("" if row.is_bracketed else " (at the edge)"),
            str(len(row.scores)),
            str(len(row.runs)),
        ))  # fmt: skip
    return Table(f"Width {group.width}, {group.batch} tokens a batch", columns, rows)


def _table_of_gaps(groups: Sequence[Group], baseline: str) -> Table | None:
    found = summary.gaps(groups, baseline)
    if len(groups) < 2 or not found:
        return None
    columns = ("optimizer", *(f"width {group.width}" for group in groups), "change")
    unknown = Mean(math.nan, math.inf)
    rows = [(gap.name, *(_difference(gap.by_width.get(group.width, unknown)) for group in groups),
             _difference(gap.change)) for gap in found]  # fmt: skip
    ends = f"width {groups[0].width} to {groups[-1].width}"
    return Table(f"Loss above that of {baseline}, and how it changes from {ends}, by Welch's intervals", columns, rows)


def _table_of_links(found: Sequence[links.ToTarget]) -> Table:
    rows = []
    for each in sorted(found, key=lambda each: (-each.link.megabits, each.seconds.value)):
        low, high = each.link.modelled
        rows.append((
            links.rate_words(each.link.megabits), each.link.contender,
            f"{each.link.seconds:.3f}", f"{low:.3f} to {high:.3f}",
            each.seconds.words(0), each.megabytes.words(0),
        ))  # fmt: skip
    columns = ("link", "optimizer", "step (s)", "step by the model (s)", "time to the target (s)", "sent to it (MB)")
    return Table(f"Over links, {found[0].link.ranks} ranks", columns, rows)


def _difference(found: Mean) -> str:
    return "–" if math.isnan(found.value) else ("" if round(found.value, 3) < 0 else "+") + found.words(3)


def _factor(found: Mean) -> str:
    """Of a difference of logarithms."""
    if math.isnan(found.value):
        return "–"
    text = f"{math.exp(found.value):.2f}"
    if not math.isfinite(found.half):
        return text
    return f"{text} ({math.exp(found.value - found.half):.2f} to {math.exp(found.value + found.half):.2f})"


def _place(place: tuple[int, int]) -> str:
    best, worst = place
    return str(best) if best == worst else f"{best}–{worst}"


def _aligned(row: Sequence[str], table: Table) -> str:
    """A row with its columns under each other."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    return "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()


def _embedded(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
