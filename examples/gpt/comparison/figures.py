"""The figures of a part, each an SVG file with a caption and a text for those who do not see it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter

from comparison import summary, traffic
from comparison.cost_figures import costs, times_on_links
from comparison.drawing import Drawing, Figure, curve, error_bar, most_seeds, panels_of
from comparison.intervals import Mean
from comparison.step_times import timed
from comparison.summary import Group, Row

# What several replicas do together under these no single process does.
OWN_TRAJECTORIES = ("double_dion", "demo")


def draw(drawing: Drawing) -> list[Figure]:
    """All figures that the part asks for and for which there is something to draw."""
    kinds: dict[str, Callable[[Drawing], Figure | None]] = {
        "losses": losses,
        "curves": curves,
        "targets": targets,
        "ranks": ranks,
        "widths": widths,
        "rates": rates,
        "costs": costs,
        "links": times_on_links,
    }
    with matplotlib.style.context("torchdion.figures"):
        if not drawing.groups:
            return []
        found = [kinds[kind](drawing) for kind in drawing.part.figures]
    return [figure for figure in found if figure is not None]


def losses(drawing: Drawing) -> Figure:
    """Last losses with their intervals."""
    canvas, panels = panels_of(
        len(drawing.groups), height=1.2 + 0.28 * max(len(group.rows) for group in drawing.groups)
    )
    for panel, group in zip(panels, drawing.groups, strict=True):
        for y, row in enumerate(reversed(group.rows)):
            error_bar(panel, row.mean, y, drawing.looks[row.name])
        panel.set_yticks(range(len(group.rows)), [row.name for row in reversed(group.rows)])
        panel.set_title(drawing.where(group))
        panel.set_xlabel(drawing.loss)
        panel.margins(y=0.04)
    return drawing.save(
        canvas, "losses",
        f"Last validation loss, mean over {most_seeds(drawing.rows)} seeds and its 95% confidence interval.",
        "Losses: " + "; ".join(f"{row.name} {row.words}" for row in drawing.rows),
    )  # fmt: skip


def curves(drawing: Drawing) -> Figure | None:
    """Loss against steps, tokens, time and bytes, at the first width and batch; no time where none was measured."""
    group, study = drawing.groups[0], drawing.study
    found = {row: _mean_curve(row) for row in group if math.isfinite(row.mean.value)}
    shown = [row for row, (steps, _) in found.items() if len(steps)]
    if not shown:
        return None
    missing = [row.name for row in group if row not in shown]
    times = {row: drawing.steps.get(timed(row.setting)) for row in shown}
    is_timed = any(times.values())
    canvas = Canvas(figsize=(11, 8.2) if is_timed else (13, 4.4))
    panels = list(canvas.subplots(*((2, 2) if is_timed else (1, 3)), sharey=True).flatten())
    by_steps, by_tokens, by_bytes = panels[0], panels[1], panels[-1]
    for row in shown:
        steps, values = found[row]
        style = {**drawing.looks[row.name].of_line, "markevery": 2, "markersize": 3.5}
        by_steps.plot(steps, values, label=f"{row.name} ({values[-1]:.3f})", **style)
        by_tokens.plot(steps * group.batch / 1e6, values, **style)
        time, sent = times[row], traffic.sent_bytes(row.setting, study.replicas)
        if time is not None:
            panels[2].plot(steps * time.seconds, values, **style)
        if sent is not None and row.setting.optimizer not in OWN_TRAJECTORIES:
            by_bytes.plot(steps * sent / 1e6, values, **style)
    by_bytes.set_xscale("log")
    by_bytes.xaxis.set_major_formatter("{x:g}")
    if is_timed:
        panels[2].set_xlabel("training time (s)")
        panels[2].set_ylabel(drawing.loss)
    by_steps.set_xlabel("steps")
    by_tokens.set_xlabel("tokens (millions)")
    by_bytes.set_xlabel(f"sent by each of {study.replicas} replicas (MB)")
    by_steps.set_ylabel(drawing.loss)
    late = [values[len(values) // 5 :] for _, values in (found[row] for row in shown)]
    by_steps.set_ylim(min(map(min, late)) - 0.03, max(map(max, late)) + 0.05)
    canvas.legend(*by_steps.get_legend_handles_labels(), loc="outside right center")
    of_time = "Time is steps times the median step, measured with nothing beside it. " if is_timed else ""
    left_out = f" Not drawn, as it diverged: {', '.join(missing)}." if missing else ""
    return drawing.save(
        canvas, "curves",
        f"Validation loss at {drawing.where(group)}, each optimizer at its best rate, mean over seeds. {of_time}"
        "Bytes are what torchdion.plan counts for compressed replicas, whose trajectory is one process's but for how "
        f"gradients are clipped; Double Dion's and DeMo's are not, and theirs are left out there.{left_out}",
        f"Loss against steps, tokens{', time' if is_timed else ''} and bytes; last losses: "
        + "; ".join(f"{row.name} {row.words}" for row in shown),
    )  # fmt: skip


def _mean_curve(row: Row) -> tuple[Any, Any]:
    """Steps and mean losses, where all seeds have a validation."""
    by_step: dict[int, list[float]] = {}
    for result in row.runs.values():
        for step, loss in result.validation:
            by_step.setdefault(step, []).append(loss)
    whole = {step: values for step, values in by_step.items() if len(values) == len(row.runs)}
    return np.array(list(whole)), np.array([np.mean(values) for values in whole.values()])


def targets(drawing: Drawing) -> Figure | None:
    """Steps and tokens to the target against the batch, and steps of the first contender over those of each.

    At the first width of the part.
    """
    groups = [group for group in drawing.groups if group.width == drawing.groups[0].width]
    reached = [row for group in groups for row in group if math.isfinite(row.mean.value)]
    if not reached:
        return None
    baseline = drawing.part.contenders[0].name
    canvas = Canvas(figsize=(11, 4.2))
    by_steps, by_tokens, by_ratio = canvas.subplots(1, 3)
    for contender in drawing.contenders:
        rows = [row for row in reached if row.name == contender.name]
        if not rows:
            continue
        look = drawing.looks[contender.name]
        batches = [row.setting.batch for row in rows]
        curve(by_steps, batches, [row.mean for row in rows], look, contender.name)
        curve(by_tokens, batches, [row.mean.times(row.setting.batch / 1e6) for row in rows], look, contender.name)
        points = ratios(groups, baseline, contender.name)
        if points:
            at, over, low, high = (np.array(column) for column in zip(*points, strict=True))
            by_ratio.errorbar(at, over, yerr=[over - low, high - over], capsize=3, **look.of_line)
    batches = [group.batch for group in groups]
    for panel in (by_steps, by_tokens, by_ratio):
        panel.set_xscale("log", base=2)
        panel.set_xticks(batches, [f"{batch / 1024:g}K" for batch in batches])
        panel.set_xlabel("tokens per batch")
    for panel in (by_steps, by_tokens):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.tick_params(axis="y", which="minor", labelsize=7)
    target = f"{drawing.part.until_loss:g}"
    by_steps.set_ylabel(f"steps to a loss of {target}")
    by_tokens.set_ylabel("tokens to it (millions)")
    by_ratio.set_ylabel(f"steps of {baseline} over its own")
    by_steps.legend()
    return drawing.save(
        canvas, "targets",
        f"Steps, and tokens, until the validation loss is {target} at width {groups[0].width}, each at its best rate, "
        "where no seed misses it: means over seeds with Student's intervals, and ratios within seeds with Tukey's.",
        "Steps to the target: "
        + "; ".join(f"{row.name} at {row.setting.batch} tokens {row.mean.value:.0f}" for row in reached),
    )  # fmt: skip


def ratios(groups: Sequence[Group], baseline: str, name: str) -> list[tuple[int, float, float, float]]:
    """Of each batch the steps of `baseline` over those of `name`, and the ends of the interval."""
    points = []
    for group in groups:
        if {baseline, name} <= group.comparison.values.keys():
            found = group.comparison.difference(baseline, name)
            bar = found.bar if name != baseline else 0.0
            ratio, low, high = (math.exp(found.value + offset) for offset in (0.0, -bar, bar))
            points.append((group.batch, ratio, low, high))
    return points


def ranks(drawing: Drawing) -> Figure | None:
    """Loss against r / d, a panel for each width; contenders without a rank as lines."""
    canvas, panels = panels_of(len(drawing.groups), height=4.2, share=True)
    for panel, group in zip(panels, drawing.groups, strict=True):
        families: dict[str, list[Row]] = {}
        for row in group:
            if "rank_fraction" in row.setting.contender.flags:
                families.setdefault(row.setting.contender.family, []).append(row)
            elif math.isfinite(row.mean.value):
                color = drawing.looks[row.name].color
                panel.axhline(row.mean.value, color=color, linestyle="--", linewidth=1.2, label=row.name)
        for family, members in families.items():
            members.sort(key=lambda row: row.setting.contender.flags["rank_fraction"])
            look = drawing.looks[members[-1].name]
            fractions = [row.setting.contender.flags["rank_fraction"] for row in members]
            curve(panel, fractions, [row.mean for row in members], look, family)
        panel.set_xscale("log", base=2)
        fractions = sorted({row.setting.contender.flags.get("rank_fraction", 1.0) for row in group})
        panel.set_xticks(fractions, [f"1/{1 / fraction:g}" if fraction < 1 else "1" for fraction in fractions])
        panel.set_title(drawing.where(group))
        panel.set_xlabel("r / d")
    panels[0].set_ylabel(drawing.loss)
    panels[0].legend()
    return drawing.save(
        canvas, "ranks",
        "Validation loss after the last step against Dion's rank, means over seeds and their 95% confidence intervals.",
        "Losses by rank: " + "; ".join(f"{row.name} at width {row.setting.width} {row.words}" for row in drawing.rows),
    )  # fmt: skip


def widths(drawing: Drawing) -> Figure:
    """Loss against width, and by how much each is above the first contender's, at the first batch of the part."""
    groups, baseline = summary.of_widths(drawing.groups), drawing.part.contenders[0].name
    canvas = Canvas(figsize=(9.5, 4.2))
    by_loss, by_gap = canvas.subplots(1, 2)
    words = []
    known = {gap.name: gap.by_width for gap in summary.gaps(groups, baseline)}
    for contender in drawing.contenders:
        name, look = contender.name, drawing.looks[contender.name]
        rows = {group.width: row for group in groups for row in group if row.name == name}
        own = {width: Mean(0.0, 0.0) for width, row in rows.items() if math.isfinite(row.mean.value)}
        gaps = own if name == baseline else known.get(name, {})
        curve(by_loss, list(rows), [row.mean for row in rows.values()], look, name)
        curve(by_gap, list(gaps), list(gaps.values()), look, name)
        words += [f"{name} at width {width} {row.words}" + (f", {gaps[width].words(3)} above" if width in gaps else "")
                  for width, row in rows.items()]  # fmt: skip
    for panel in (by_loss, by_gap):
        panel.set_xscale("log", base=2)
        panel.set_xticks([group.width for group in groups], [f"{group.width}" for group in groups])
        panel.set_xlabel("width")
    by_loss.set_ylabel(drawing.loss)
    by_gap.set_ylabel(f"above that of {baseline}")
    by_loss.legend()
    return drawing.save(
        canvas, "widths",
        "Last validation loss against the width, means over seeds with Student's intervals, and how far it is above "
        f"that of {baseline}, within seeds with Tukey's; {groups[0].batch / 1024:g}K tokens a batch.",
        f"Losses by width, and how far above {baseline}: " + "; ".join(words),
    )  # fmt: skip


def rates(drawing: Drawing) -> Figure:
    """What the tuning seeds gave at each rate, a panel for each width and batch."""
    part = drawing.part
    canvas, panels = panels_of(len(drawing.groups), height=3.8, share=True)
    finite = []
    for panel, group in zip(panels, drawing.groups, strict=True):
        for row in group:
            look = drawing.looks[row.name]
            scores = {rate: score for rate, score in sorted(row.scores.items())
                      if not score.misses and math.isfinite(score.loss)}  # fmt: skip
            points = {rate: score.loss if part.until_loss is None else score.steps for rate, score in scores.items()}
            finite += list(points.values())
            style = {**look.of_line, "markersize": 3.5, "linewidth": 1.1}
            panel.plot(list(points), list(points.values()), label=row.name, **style)
            if row.rate in points:
                panel.plot(row.rate, points[row.rate], color=look.color, marker="o", markersize=9,
                           fillstyle="none", linestyle="none")  # fmt: skip
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.tick_params(axis="x", labelrotation=60)
        panel.set_title(drawing.where(group))
        panel.set_xlabel("learning rate")
    if finite and min(finite) < max(finite):
        low, high = min(finite), float(np.quantile(finite, 0.95))
        panels[0].set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    panels[0].set_ylabel(drawing.loss if part.until_loss is None else f"steps to a loss of {part.until_loss:g}")
    handles = {label: handle for panel in panels
               for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}  # fmt: skip
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return drawing.save(
        canvas, "rates",
        "What each learning rate gave, of the seeds by which rates were chosen; a ring is the rate that was chosen. "
        f"What {'diverged' if part.until_loss is None else 'missed the target'} or lies far above is not drawn.",
        "Best rates: "
        + "; ".join(f"{row.name} at {drawing.where(row.setting)} {row.rate:.3g}" for row in drawing.rows),
    )  # fmt: skip
