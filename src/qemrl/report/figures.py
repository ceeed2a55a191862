"""The figures of a report for papers: curves, differences, aggregates, profiles, and probabilities of improvement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from qemrl.experiments.statistics import Interval
from qemrl.plotting import style
from qemrl.plotting.curves import draw_curves
from qemrl.plotting.style import choose_line_styles, light_grid, shorten_labels
from qemrl.report.content import Content
from qemrl.report.results import Aggregates, Difference, Place

PDF: Any = {"pdf.fonttype": 42}
"""Text stays text, in fonts that publishers accept."""

UNDATED: Any = {"CreationDate": None, "Creator": None, "Producer": None}
VERDICT_COLORS = {"higher": style.COLORS["blue"], "lower": style.COLORS["orange"]}
"""The colors of significant differences; others are gray."""

DIVERGING = LinearSegmentedColormap.from_list("improvement", ["#e8a06b", "#ffffff", "#6ba9d6"])
"""From the worse of a pair over neither to the better; light enough for dark text."""


def draw_figures(content: Content) -> dict[str, Figure]:
    """The figures by name; those that the runs do not suffice for are left out."""
    drawn: dict[str, Figure] = {}
    labels = shorten_labels(content.collection.arms) | shorten_labels(content.collection.envs)
    found = [cell.curve for cell in content.cells.values() if cell.curve is not None]
    if found:
        drawn["curves"] = draw_curves([replace(each, label=labels[each.label], env=labels[each.env]) for each in found])
    gains = collect_gains(content)
    if gains:
        drawn["differences"] = draw_gains(gains, content.nearest)
    if content.results.aggregates is not None:
        drawn["aggregates"] = draw_aggregates(content.results.aggregates)
        drawn["profiles"] = draw_profiles(content.results.aggregates)
    if content.results.improvement:
        drawn["improvement"] = draw_improvement(content.results.improvement)
    return drawn


def write_figures(content: Content, folder: Path) -> list[Path]:
    """Save each figure as PNG, SVG and PDF; the paths are returned, and the same content gives the same bytes."""
    paths = []
    for name, figure in draw_figures(content).items():
        paths += style.save(figure, folder, name)
        paths.append(folder / f"{name}.pdf")
        with mpl.rc_context(style.STYLE | PDF):
            figure.savefig(paths[-1], metadata=UNDATED)
    return paths


def write_pdf(content: Content, file: Path) -> None:
    """Save all figures as one PDF, each on a page of its size.

    Raises:
        ValueError: There is no figure to draw.
    """
    drawn = draw_figures(content)
    if not drawn:
        raise ValueError(f"{content.collection.folder} has no evaluation that could be drawn; leave out --pdf")
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(style.STYLE | PDF), PdfPages(file, metadata=UNDATED) as pages:
        for figure in drawn.values():
            pages.savefig(figure)


def draw_aggregates(aggregates: Aggregates) -> Figure:
    """A panel for each statistic, with the interval of each algorithm."""
    arms = list(aggregates.profiles)
    labels = shorten_labels(arms)
    styles = choose_line_styles(list(labels.values()))
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(6.8, 0.85 + 0.24 * len(arms)), layout="constrained")
        panels = figure.subplots(1, len(aggregates.statistics), sharey=True)
        for axis, (name, by_arm) in zip(panels, aggregates.statistics.items(), strict=True):
            for place, arm in enumerate(arms):
                _draw_interval(axis, place, by_arm[arm], styles[labels[arm]].color)
            axis.set_title(name)
            _label_rows(axis, list(labels.values()))
        figure.supxlabel(f"normalized score{_describe_runs(aggregates)}", fontsize=8)
    return figure


def collect_gains(content: Content) -> dict[str, dict[str, Difference]]:
    """Paired differences from the nearest algorithm, by the heading of their panel and the algorithm."""
    labels = shorten_labels(content.few_envs)
    panels = {f"{labels[env]}\nreturn": content.results.gains(content.nearest, env) for env in content.few_envs}
    if len(content.collection.envs) > 1:
        panels["all tasks\nnormalized score"] = content.results.gains(content.nearest, None)
    return {title: found for title, found in panels.items() if found}


def draw_gains(gains: Mapping[str, Mapping[str, Difference]], nearest: Mapping[str, str]) -> Figure:
    """A panel for each task: how far algorithms end above those that are nearest to them, with intervals."""
    names = shorten_labels(dict.fromkeys([*nearest.values(), *nearest]))
    arms = [arm for arm in nearest if any(arm in found for found in gains.values())]
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(max(3.4, 1.4 + 1.5 * len(gains)), 0.95 + 0.26 * len(arms)), layout="constrained")
        panels = figure.subplots(1, len(gains), sharey=True, squeeze=False)[0]
        for axis, (title, found) in zip(panels, gains.items(), strict=True):
            axis.axvline(0, color=style.INK, lw=0.8)
            for arm, (interval, _) in found.items():
                _draw_interval(axis, arms.index(arm), interval, VERDICT_COLORS.get(interval.verdict, style.MUTED))
            axis.set_title(title, fontsize=8)
            _label_rows(axis, [f"{names[arm]} − {names[nearest[arm]]}" for arm in arms])
            furthest = 1.08 * max(abs(end) for each, _ in found.values() for end in each if math.isfinite(end))
            axis.set_xlim(-furthest or -1, furthest or 1)
        figure.supxlabel("difference of the last evaluations, paired by seed; bars: 95% intervals", fontsize=8)
    return figure


def _label_rows(axis: Axes, labels: Sequence[str]) -> None:
    """The look of a panel with a row for each label."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.tick_params(left=False)
    axis.spines["left"].set_visible(False)
    light_grid(axis, "x")
    axis.margins(x=0.08)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))


def _draw_interval(axis: Axes, place: int, interval: Interval, color: str) -> None:
    if interval.bounded:
        axis.plot(interval[1:], [place, place], color=color, lw=5, alpha=0.35, solid_capstyle="butt")
    axis.plot([interval.value], [place], "|", color=color, ms=9, mew=2)


def _describe_runs(aggregates: Aggregates) -> str:
    """Over how many tasks and runs, and what the bars are."""
    tasks = len(aggregates.references)
    runs = sorted(set(aggregates.runs.values()))
    number = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    bars = any(each.bounded for by_arm in aggregates.statistics.values() for each in by_arm.values())
    each = f"{tasks} task{'s' * (tasks > 1)}, {number} run{'s' * (runs[-1] > 1)} each"
    return f" ({each}{'; bars: 95% bootstrap intervals' if bars else ''})"


def draw_profiles(aggregates: Aggregates) -> Figure:
    """The share of runs above each normalized score."""
    labels = shorten_labels(aggregates.profiles)
    styles = choose_line_styles(list(labels.values()))
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axis = figure.subplots()
        for arm, profile in aggregates.profiles.items():
            color, _, line = styles[labels[arm]]
            axis.step(aggregates.thresholds, profile.share, where="post", color=color, ls=line, lw=1.6)
            if profile.bounded:
                ends = (profile.low, profile.high)
                axis.fill_between(aggregates.thresholds, *ends, color=color, alpha=0.1, lw=0, step="post")
        axis.set_xlim(aggregates.thresholds[0], aggregates.thresholds[-1])
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("normalized score")
        axis.set_ylabel("share of runs above")
        axis.grid(lw=0.3, color=style.MUTED, alpha=0.5)
        handles = [Line2D([], [], color=color, ls=line, label=arm) for arm, (color, _, line) in styles.items()]
        figure.legend(handles=handles, loc="outside right upper", handlelength=2.6)
    return figure


def draw_improvement(improvement: Mapping[Place, Interval]) -> Figure:
    """A matrix: how likely the algorithm of a row is to end above that of a column."""
    arms = list(dict.fromkeys(arm for pair in improvement for arm in pair))
    values = np.full((len(arms), len(arms)), np.nan)
    for (first, second), estimate in improvement.items():
        values[arms.index(first), arms.index(second)] = estimate.value
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(1.5 + 0.78 * len(arms), 1.1 + 0.46 * len(arms)), layout="constrained")
        axis = figure.subplots()
        axis.imshow(values, cmap=DIVERGING, vmin=0, vmax=1, aspect="auto")
        for (first, second), estimate in improvement.items():
            _write_probability(axis, arms.index(second), arms.index(first), estimate)
        labels = list(shorten_labels(arms).values())
        axis.set_yticks(range(len(arms)), labels)
        axis.set_xticks(range(len(arms)), labels, rotation=25, ha="left", rotation_mode="anchor")
        axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axis.spines[["left", "bottom"]].set_visible(False)
        figure.supxlabel("probability that a run of the row\nends above one of the column", fontsize=8)
    return figure


def _write_probability(axis: Axes, x: int, y: int, interval: Interval) -> None:
    weight = "bold" if interval.excludes(0.5) else "normal"
    look: Any = {"ha": "center", "va": "center", "color": style.INK}
    up = -0.12 if interval.bounded else 0.0
    axis.text(x, y + up, f"{interval.value:.2f}", fontsize=7.5, weight=weight, **look)
    if interval.bounded:
        axis.text(x, y + 0.24, interval.format_ends(".2f"), fontsize=5.5, **look)
