"""Learning curves, as a record and drawn for a paper: evaluation returns over steps, a panel for each environment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qemrl.plotting import style
from qemrl.plotting.style import LineStyle

MOST_COLUMNS = 3
"""How many panels a row has."""


@dataclass(frozen=True)
class Curve:
    """The evaluation returns of all seeds of a run."""

    label: str
    env: str
    steps: Int[np.ndarray, " points"]
    returns: Float[np.ndarray, "seeds points"]
    seeds: tuple[int, ...] = ()
    """The seed of each row; by default rows are counted from 0."""

    band: tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]] | None = None
    """The low and the high ends of the mean's 95% interval at each step, where there are enough seeds to draw it."""

    def __post_init__(self) -> None:
        if not self.seeds:
            object.__setattr__(self, "seeds", tuple(range(len(self.returns))))
        if len(self.seeds) != len(self.returns) or not self.seeds or not len(self.steps):
            raise ValueError(
                f"the curve of {self.label} on {self.env} needs at least one seed and one evaluation, got the seeds "
                f"{self.seeds} for returns of the shape {self.returns.shape}"
            )

    @property
    def final(self) -> Float[np.ndarray, " seeds"]:
        """The last evaluation of each seed."""
        return self.returns[:, -1]

    @property
    def average(self) -> Float[np.ndarray, " seeds"]:
        """The area under each seed's curve by the trapezoidal rule, over its length: a return, averaged over steps."""
        span = float(self.steps[-1] - self.steps[0])
        return np.trapezoid(self.returns, self.steps, axis=1) / span if span else self.returns[:, 0].copy()


def draw_curves(curves: Sequence[Curve]) -> Figure:
    """A panel for each environment, with the mean over seeds, each seed as a thin line and the band of the mean."""
    if not curves:
        raise ValueError("there is no curve to draw")
    envs = list(dict.fromkeys(curve.env for curve in curves))
    styles = style.choose_line_styles(list(dict.fromkeys(curve.label for curve in curves)))
    columns = 2 if len(envs) == 4 else min(len(envs), MOST_COLUMNS)
    rows = math.ceil(len(envs) / columns)
    with mpl.rc_context(style.STYLE):
        size = (5.2, 3.2) if len(envs) == 1 else (0.4 + 2.7 * columns, 0.7 + 2.2 * rows)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for place, axis in enumerate(panels.flat):
            if place >= len(envs):
                axis.set_axis_off()
                continue
            here = [curve for curve in curves if curve.env == envs[place]]
            _draw_panel(axis, envs[place], here, styles)
            if place % columns == 0:
                axis.set_ylabel("evaluation return")
            if place + columns >= len(envs):
                axis.set_xlabel("steps")
        if len(envs) == 1:
            _label_ends(panels[0, 0], list(curves), styles)
            figure.supxlabel(_caption(curves), fontsize=7, color=style.INK)
        else:
            handles = [Line2D([], [], color=color, ls=line, label=label) for label, (color, _, line) in styles.items()]
            place = {"loc": "outside lower center", "ncols": min(len(handles), 6)}
            figure.legend(handles=handles, title=_caption(curves), title_fontsize=7, fontsize=8, **place)
    return figure


def _draw_panel(axis: Axes, env: str, curves: list[Curve], styles: dict[str, LineStyle]) -> None:
    crowded = len(curves) > 3
    for curve in curves:
        color, _, line = styles[curve.label]
        for returns in curve.returns if len(curve.seeds) > 1 else ():
            axis.plot(curve.steps, returns, color=color, lw=0.5, alpha=0.25 if crowded else 0.45, zorder=2)
        if curve.band is not None:
            axis.fill_between(curve.steps, *curve.band, color=color, alpha=0.09 if crowded else 0.13, lw=0, zorder=1)
        marker = "o" if len(curve.steps) == 1 else None
        axis.plot(curve.steps, curve.returns.mean(0), color=color, ls=line, lw=1.8, marker=marker, ms=4, zorder=3)
    axis.set_title(env)
    axis.set_xlim(0, max(int(curve.steps[-1]) for curve in curves) * 1.01)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: style.format_steps(steps)))
    style.light_grid(axis, "y")


def _label_ends(axis: Axes, curves: list[Curve], styles: dict[str, LineStyle]) -> None:
    """Names at the ends of the curves, pushed apart where they would lie on one another."""
    low, high = axis.get_ylim()
    gap = 0.075
    ends = sorted(((curve.final.mean() - low) / (high - low), curve.label) for curve in curves)
    heights: list[float] = []
    for height, _ in ends:
        heights.append(max(height, heights[-1] + gap) if heights else height)
    # What was pushed beyond the top comes down again, and takes those below along.
    ceiling = 1.0
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], ceiling)
        ceiling = heights[place] - gap
    for height, (_, label) in zip(heights, ends, strict=True):
        axis.text(1.02, height, label, transform=axis.transAxes, color=styles[label].color, va="center", fontsize=8)


def _caption(curves: Sequence[Curve]) -> str:
    counts = sorted({len(curve.seeds) for curve in curves})
    if counts == [1]:
        return "one seed each"
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    band = "; shaded: 95% interval of the mean" if any(curve.band for curve in curves) else ""
    return f"mean of {number} seeds; thin: each seed{band}"
