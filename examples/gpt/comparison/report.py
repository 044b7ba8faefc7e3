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
from comparison.summary import Row

TEMPLATES = Path(__file__).parent


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
    for old in figures.glob("*.svg"):
        old.unlink()
    sections = [_section(study, part, results, folder, figures) for part in study.parts]
    context: dict[str, Any] = {
        "study": study,
        "made_with": results.made_with,
        "trainings": len(results),
        "tokens": sum(_tokens(cell.flags, results[cell].validation) for cell in results),
        "sections": [section for section in sections if section.tables],
        "left_out": [section for section in sections if section.missing],
        "threads": {time.threads for time in step_times.read(folder).values()},
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
    return paths


def table_of(results: Results, study: Study, part: Part) -> list[Table]:
    """A table for each width and batch of the part."""
    return [_table(part, width, batch, rows) for (width, batch), rows in summary.groups(study, part, results).items()]


def _section(study: Study, part: Part, results: Results, folder: Path, figures: Path) -> Section:
    groups = summary.groups(study, part, results)
    times = links.read(folder)
    drawing = Drawing(study, part, groups, step_times.read(folder), times, Looks(study), figures)
    missing = len({cell for cell in sweep.cells(study, part, results) if cell not in results})
    tables = table_of(results, study, part)
    on_links = links.to_target(times, drawing.rows)
    if on_links:
        tables.append(_table_of_links(on_links))
    return Section(part, draw(drawing), tables, missing)


def _table(part: Part, width: int, batch: int, rows: Sequence[Row]) -> Table:
    measured = "loss" if part.until_loss is None else f"steps to {part.until_loss:g}"
    first = rows[0]
    return Table(
        f"Width {width}, {batch} tokens a batch",
        ("place", "optimizer", measured, "over the first", "rate", "rates tried", "seeds"),
        [
            (
                _place(row.place),
                row.name,
                _number(row.mean, part),
                "" if row is first else _number(row.over(first), part, signed=True),
                f"{row.rate:.3g}" + ("" if row.is_bracketed else " (at the edge)"),
                str(len(row.rates)),
                str(len(row.runs)),
            )
            for row in rows
        ],
    )


def _table_of_links(found: Sequence[links.ToTarget]) -> Table:
    rows = []
    for each in sorted(found, key=lambda each: (-each.link.megabits, each.seconds.value)):
        low, high = each.link.modelled
        rows.append((
            links.rate_words(each.link.megabits), each.link.contender,
            f"{each.link.seconds:.3f}", f"{low:.3f} to {high:.3f}",
            f"{each.seconds.value:.0f} ± {each.seconds.half:.0f}", f"{each.megabytes.value:.3g}",
        ))  # fmt: skip
    columns = ("link", "optimizer", "step (s)", "step by the model (s)", "time to the target (s)", "sent to it (MB)")
    return Table(f"Over links, {found[0].link.ranks} ranks", columns, rows)


def _number(found: Mean, part: Part, signed: bool = False) -> str:
    digits = 3 if part.until_loss is None else 0
    if math.isnan(found.value):
        return "–"
    if math.isinf(found.value):
        return "diverged" if part.until_loss is None else "not reached"
    sign = "+" if signed else ""
    text = f"{found.value:{sign}.{digits}f}"
    return text + (f" ± {found.half:.{digits}f}" if math.isfinite(found.half) else "")


def _place(place: tuple[int, int]) -> str:
    best, worst = place
    return str(best) if best == worst else f"{best}–{worst}"


def _tokens(flags: dict[str, Any], validation: Sequence[tuple[int, float]]) -> int:
    return int(flags["batch"] * flags["context"] * (validation[-1][0] if validation else 0))


def _aligned(row: Sequence[str], table: Table) -> str:
    """A row with its columns under each other."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    return "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()


def _embedded(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
