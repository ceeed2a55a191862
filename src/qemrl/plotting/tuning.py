"""Figures of a tuning: the values of its trials in their order, and how much each setting matters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qemrl.plotting import style


class TrialPoint(NamedTuple):
    """A trial in the history of a tuning."""

    number: int
    value: float
    """Its value, or its last evaluation if it was pruned."""

    pruned: bool


def draw_history(points: Sequence[TrialPoint], title: str) -> Figure:
    """The values of trials by their number, and the best so far; at least one of them is not pruned."""
    finished = [point for point in points if not point.pruned]
    pruned = [point for point in points if point.pruned]
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axis = figure.subplots()
        steps, best = [], []
        for point in finished:
            if not best or point.value > best[-1]:
                steps.append(point.number)
                best.append(point.value)
        last = max(point.number for point in points)
        axis.step([*steps, last], [*best, best[-1]], where="post", color=style.COLORS["orange"], label="best so far")
        axis.plot(*_coordinates(finished), "o", color=style.COLORS["blue"], ms=4, mew=0, label="finished")
        if pruned:
            axis.plot(*_coordinates(pruned), "x", color=style.MUTED, ms=4, mew=0.9, label="pruned, last evaluation")
        axis.set_title(title)
        axis.set_xlabel("trial")
        axis.set_ylabel("evaluation return")
        axis.set_xlim(-0.02 * max(last, 1) - 0.3, 1.02 * last + 0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.light_grid(axis, "y")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _coordinates(points: Sequence[TrialPoint]) -> tuple[list[int], list[float]]:
    return [point.number for point in points], [point.value for point in points]


def draw_importance(shares: Mapping[str, float], best_share: float, title: str) -> Figure:
    """A bar for each setting, the most important one for being among the best on top."""
    ranked = sorted(shares.items(), key=lambda item: item[1])
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(5.2, 0.9 + 0.3 * len(ranked)), layout="constrained")
        axis = figure.subplots()
        bars = axis.barh(
            [name for name, _ in ranked],
            [share for _, share in ranked],
            height=0.62,
            color=style.COLORS["blue"],
        )
        axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=7, color=style.INK)
        axis.set_title(title)
        axis.set_xlabel(f"importance for being in the best {best_share:.0%} of trials (PED-ANOVA)")
        axis.set_xlim(0, 1.1 * max(share for _, share in ranked))
        axis.tick_params(axis="y", length=0)
        style.light_grid(axis, "x")
    return figure
