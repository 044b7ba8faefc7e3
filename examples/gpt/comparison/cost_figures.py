"""Figures of what a step costs, and how long the target takes over links."""

import math

from comparison import links, traffic
from comparison.drawing import Drawing, Figure, panels_of
from comparison.step_times import timed


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
    machine = f"on {threads} threads of a CPU" if study.device == "cpu" else f"on {study.device}"
    return drawing.save(
        canvas, "costs",
        f"What a step costs at {drawing.where(group)}, {machine}; bytes sent by compressed replicas as torchdion.plan "
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
            xerr=[each.bar for each in seconds],
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
