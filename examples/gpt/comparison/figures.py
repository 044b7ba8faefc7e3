"""The figures of a part, each an SVG file with a caption and a text for those who do not see it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter

from comparison import links, traffic
from comparison.drawing import STYLE, Drawing, Figure, error_bar, most_seeds, panels_of
from comparison.intervals import Mean, ratio
from comparison.step_times import timed
from comparison.summary import Row

# What several replicas do together under these no single process does.
OWN_TRAJECTORIES = ("double_dion", "demo")


def draw(drawing: Drawing) -> list[Figure]:
    """All figures that the part asks for and for which there is something to draw."""
    kinds: dict[str, Callable[[Drawing], Figure | None]] = {
        "losses": losses,
        "curves": curves,
        "targets": targets,
        "ranks": ranks,
        "rates": rates,
        "costs": costs,
        "links": times_on_links,
    }
    with matplotlib.rc_context(fname=str(STYLE)):
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
        for place, row in enumerate(reversed(group.rows)):
            error_bar(panel, row.mean, place, drawing.looks[row.name])
        panel.set_yticks(range(len(group.rows)), [row.name for row in reversed(group.rows)])
        panel.set_title(drawing.where(group))
        panel.set_xlabel(drawing.loss)
        panel.margins(y=0.04)
    return drawing.save(
        canvas, "losses",
        f"Last validation loss, mean over {most_seeds(drawing.rows)} seeds and its 95% confidence interval.",
        "Losses: " + "; ".join(f"{row.name} {row.mean}" for row in drawing.rows),
    )  # fmt: skip


def curves(drawing: Drawing) -> Figure | None:
    """Loss against steps, tokens, time and bytes, at the first width and batch."""
    group, study = drawing.groups[0], drawing.study
    found = {row: _mean_curve(row) for row in group}
    shown = [row for row in group if len(found[row][0])]
    if not shown:
        return None
    times = {row: drawing.steps.get(timed(row.setting)) for row in shown}
    canvas = Canvas(figsize=(11, 8.2))
    panels = canvas.subplots(2, 2, sharey=True).flatten()
    panels[2].set_visible(any(times.values()))
    for row in shown:
        steps, values = found[row]
        look = drawing.looks[row.name]
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "markevery": 2, "markersize": 3.5}
        panels[0].plot(steps, values, label=f"{row.name} ({values[-1]:.3f})", **style)
        panels[1].plot(steps * group.batch / 1e6, values, **style)
        time, sent = times[row], traffic.sent_bytes(row.setting, study.replicas)
        if time is not None:
            panels[2].plot(steps * time.seconds, values, **style)
        if sent is not None and row.setting.optimizer not in OWN_TRAJECTORIES:
            panels[3].plot(steps * sent / 1e6, values, **style)
    panels[3].set_xscale("log")
    panels[3].xaxis.set_major_formatter("{x:g}")
    labels = ("steps", "tokens (millions)", "training time (s)", f"sent by each of {study.replicas} replicas (MB)")
    for panel, label in zip(panels, labels, strict=True):
        panel.set_xlabel(label)
    for panel in panels[::2]:
        panel.set_ylabel(drawing.loss)
    late = [values[len(values) // 5 :] for _, values in found.values() if len(values)]
    panels[0].set_ylim(min(map(min, late)) - 0.03, max(map(max, late)) + 0.05)
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return drawing.save(
        canvas, "curves",
        f"Validation loss at {drawing.where(group)}, each optimizer at its best rate, mean over seeds. Time is "
        "steps times the median step, measured with nothing beside it. Bytes are what torchdion.plan counts "
        "for compressed replicas, whose trajectory is one process's but for how gradients are clipped; Double "
        "Dion's and DeMo's are not, and theirs are left out there.",
        "Loss against steps, tokens, time and bytes; last losses: "
        + "; ".join(f"{row.name} {row.mean}" for row in shown),
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
    first = {row.setting.batch: row for row in reached if row.name == baseline}
    canvas = Canvas(figsize=(11, 4.2))
    by_steps, by_tokens, by_ratio = canvas.subplots(1, 3)
    for contender in drawing.contenders:
        rows = [row for row in reached if row.name == contender.name]
        look = drawing.looks[contender.name]
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "capsize": 3, "label": contender.name}
        batches = [row.setting.batch for row in rows]
        _curve(by_steps, batches, [row.mean for row in rows], style)
        _curve(by_tokens, batches, [row.mean.times(row.setting.batch / 1e6) for row in rows], style)
        beside = [row for row in rows if row.setting.batch in first]
        ratios = [ratio(first[row.setting.batch].values, row.values) for row in beside]
        _curve(by_ratio, [row.setting.batch for row in beside], ratios, style)
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
        f"Steps, and tokens, until the validation loss is {target}, each at its best rate; means over seeds and "
        "their 95% confidence intervals, ratios within seeds.",
        "Steps to the target: "
        + "; ".join(f"{row.name} at {row.setting.batch} tokens {row.mean.value:.0f}" for row in reached),
    )  # fmt: skip


def _curve(panel: Axes, places: Sequence[float], means: Sequence[Mean], style: dict[str, Any]) -> None:
    """Means with their intervals, where these are finite."""
    halves = [found.half if math.isfinite(found.half) else 0.0 for found in means]
    panel.errorbar(places, [found.value for found in means], yerr=halves, **style)


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
            places = [row.setting.contender.flags["rank_fraction"] for row in members]
            style = {"color": look.color, "marker": look.marker, "capsize": 3, "label": family}
            _curve(panel, places, [row.mean for row in members], style)
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
        "Losses by rank: " + "; ".join(f"{row.name} at width {row.setting.width} {row.mean}" for row in drawing.rows),
    )  # fmt: skip


def rates(drawing: Drawing) -> Figure:
    """What the tuning seeds gave at each rate, a panel for each width and batch."""
    part = drawing.part
    canvas, panels = panels_of(len(drawing.groups), height=3.8, share=True)
    finite = []
    for panel, group in zip(panels, drawing.groups, strict=True):
        for row in group:
            look = drawing.looks[row.name]
            index = 0 if part.until_loss is not None else 1
            points = {rate: score[index] for rate, score in sorted(row.scores.items()) if math.isfinite(score[index])}
            finite += list(points.values())
            panel.plot(list(points), list(points.values()), color=look.color, marker=look.marker, markersize=3.5,
                       linewidth=1.1, label=row.name)  # fmt: skip
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
    if finite:
        low, high = min(finite), float(np.quantile(finite, 0.95))
        panels[0].set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    panels[0].set_ylabel(drawing.loss if part.until_loss is None else f"steps to a loss of {part.until_loss:g}")
    handles = {label: handle for panel in panels
               for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}  # fmt: skip
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return drawing.save(
        canvas, "rates",
        "What each learning rate gave, of the seeds by which rates were chosen; a ring is the rate that was chosen.",
        "Best rates: "
        + "; ".join(f"{row.name} at {drawing.where(row.setting)} {row.rate:.3g}" for row in drawing.rows),
    )  # fmt: skip


def costs(drawing: Drawing) -> Figure | None:
    """The optimizer's share of a step, bytes of state and bytes sent, at the first width and batch."""
    group, study = drawing.groups[0], drawing.study
    settings = {row.name: row.setting for row in group}
    named = {name: settings[name] for name in (each.name for each in drawing.contenders) if name in settings}
    times = {name: time for name, each in named.items() if (time := drawing.steps.get(timed(each))) is not None}
    if not times:
        return None
    sent = {name: traffic.sent_bytes(named[name], study.replicas) for name in times}
    bars: dict[str, dict[str, float | None]] = {
        "optimizer's share of a step (%)": {name: 100 * time.share for name, time in times.items()},
        "bytes of state per parameter": {name: time.state_bytes / time.parameters for name, time in times.items()},
        f"sent per step by each of {study.replicas} replicas (MB)": {
            name: None if each is None else each / 1e6 for name, each in sent.items()
        },
    }
    canvas, panels = panels_of(len(bars), height=1.2 + 0.28 * len(times), share=True)
    for panel, (label, values) in zip(panels, bars.items(), strict=True):
        drawn = panel.barh(range(len(values)), [value or 0.0 for value in values.values()],
                           color=[drawing.looks[name].color for name in values], height=0.7)  # fmt: skip
        words = ["unknown" if value is None else f"{value:.3g}" for value in values.values()]
        panel.bar_label(drawn, words, padding=2, fontsize=8)
        panel.set_xlabel(label)
        panel.margins(x=0.16)
        panel.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(times)), list(times))
    panels[0].invert_yaxis()
    threads = next(iter(times.values())).threads
    place = f"on {threads} threads of a CPU" if study.device == "cpu" else f"on {study.device}"
    return drawing.save(
        canvas, "costs",
        f"What a step costs at {drawing.where(group)}, {place}; bytes sent by compressed replicas as torchdion.plan "
        "counts them.",
        "Share of a step: " + "; ".join(f"{name} {100 * time.share:.2g}%" for name, time in times.items()),
    )  # fmt: skip


def times_on_links(drawing: Drawing) -> Figure | None:
    """Time to the target on links of several rates, of those that reach it."""
    measured = links.to_target(drawing.links, drawing.rows)
    found = [each for each in measured if math.isfinite(each.seconds.value)]
    if not found:
        return None
    rates = sorted({each.link.megabits for each in found}, reverse=True)
    names = list(dict.fromkeys(each.link.contender for each in found))
    canvas, panels = panels_of(len(rates), height=1.2 + 0.3 * len(names), share=True)
    for panel, rate in zip(panels, rates, strict=True):
        own = {each.link.contender: each.seconds for each in found if each.link.megabits == rate}
        seconds = [own[name] for name in names]
        bars = panel.barh(
            range(len(names)),
            [each.value for each in seconds],
            xerr=[each.half if math.isfinite(each.half) else 0.0 for each in seconds],
            color=[drawing.looks[name].color for name in names],
            height=0.7,
            capsize=2,
        )
        panel.bar_label(bars, [f"{each.value:.0f} s" for each in seconds], padding=8, fontsize=8)
        panel.margins(x=0.2)
        panel.grid(axis="y", visible=False)
        panel.set_title(links.rate_words(rate))
        panel.set_xlabel("seconds to the target")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return drawing.save(
        canvas, "links",
        "Time to the target loss: steps to it times the median step, measured over links of each rate.",
        "Seconds to the target: "
        + "; ".join(f"{each.link.contender} at {links.rate_words(each.link.megabits)} {each.seconds.value:.0f}"
                    for each in found),
    )  # fmt: skip
