"""Learning curves: evaluation returns over steps, read from run directories and drawn for a paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qemrl.experiments.statistics import mean_interval
from qemrl.plotting import style as figures
from qemrl.training.config import read_config
from qemrl.training.run_directory import RunDirectory

MOST_COLUMNS = 3
"""How many panels stand side by side."""

LEAST_FOR_BAND = 3
"""From how many seeds on an interval is drawn; that of two is so wide that it hides the curves."""


@dataclass(frozen=True)
class Curve:
    """The evaluation returns of all seeds of a run."""

    label: str
    env: str
    steps: Int[np.ndarray, " points"]
    returns: Float[np.ndarray, "seeds points"]
    seeds: tuple[int, ...] = ()
    """The seed of each row; without them, rows are discrete."""

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


def read_curve(run_directory: Path) -> Curve:
    """The curve of a run, finished or not: the evaluations that all its seeds have had.

    Raises:
        ValueError: There is no run, or it has not been evaluated yet.
    """
    directory = RunDirectory(run_directory)
    config = read_config(directory.config)
    means: dict[int, dict[int, float]] = {seed: {} for seed in config.seeds}
    for record in directory.read_metrics():
        if record.get("eval/mean_reward") is not None:
            means[record["seed"]][record["step"]] = record["eval/mean_reward"]
    steps = sorted(set.intersection(*(set(found) for found in means.values())))
    if not steps:
        raise ValueError(
            f"{run_directory} has no evaluation yet; its first comes after {config.evaluate_every} steps: let "
            f"`qemrl resume {run_directory}` run for a while"
        )
    returns = np.array([[means[seed][step] for step in steps] for seed in config.seeds], np.float64)
    return Curve(config.preset, config.env, np.array(steps), returns, config.seeds)


COLORS = {
    "qr-dqn": figures.COLORS["blue"],
    "qem-dqn": figures.COLORS["orange"],
    "iqn": figures.COLORS["sky"],
    "iqem-dqn": figures.COLORS["purple"],
    "c51": figures.COLORS["green"],
    "dqn": figures.INK,
}
"""A preset has the same color in every figure."""

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
"""Line styles, by the order of the labels: curves can also be told apart in gray."""


def draw(curves: Sequence[Curve]) -> Figure:
    """A panel for each environment, with the mean over seeds and each seed as a thin line.

    From three seeds on, the 95% interval of the mean at each evaluation is shaded.
    """
    if not curves:
        raise ValueError("there is no curve to draw")
    envs = list(dict.fromkeys(curve.env for curve in curves))
    looks = line_styles(list(dict.fromkeys(curve.label for curve in curves)))
    columns = 2 if len(envs) == 4 else min(len(envs), MOST_COLUMNS)
    rows = math.ceil(len(envs) / columns)
    with mpl.rc_context(figures.STYLE):
        size = (5.2, 3.2) if len(envs) == 1 else (0.4 + 2.7 * columns, 0.7 + 2.2 * rows)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for place, axis in enumerate(panels.flat):
            if place >= len(envs):
                axis.set_axis_off()
                continue
            here = [curve for curve in curves if curve.env == envs[place]]
            _draw_panel(axis, envs[place], here, looks)
            if place % columns == 0:
                axis.set_ylabel("evaluation return")
            if place + columns >= len(envs):
                axis.set_xlabel("steps")
        if len(envs) == 1:
            _label_ends(panels[0, 0], list(curves), looks)
            figure.supxlabel(_caption(curves), fontsize=7, color=figures.INK)
        else:
            handles = [Line2D([], [], color=color, ls=line, label=label) for label, (color, line) in looks.items()]
            place = {"loc": "outside lower center", "ncols": min(len(handles), 6)}
            figure.legend(handles=handles, title=_caption(curves), title_fontsize=7, fontsize=8, **place)
    return figure


def line_styles(labels: list[str]) -> dict[str, tuple[str, str | tuple]]:
    """The color and the line of each label."""
    free = [color for color in COLORS.values() if color not in {COLORS.get(label) for label in labels}]
    looks: dict[str, tuple[str, str | tuple]] = {}
    for place, label in enumerate(labels):
        color = COLORS.get(label) or (free.pop(0) if free else list(COLORS.values())[place % len(COLORS)])
        looks[label] = (color, LINES[place % len(LINES)])
    return looks


def _draw_panel(axis: Axes, env: str, curves: list[Curve], looks: dict[str, tuple]) -> None:
    crowded = len(curves) > 3
    for curve in curves:
        color, line = looks[curve.label]
        for returns in curve.returns if len(curve.seeds) > 1 else ():
            axis.plot(curve.steps, returns, color=color, lw=0.5, alpha=0.25 if crowded else 0.45, zorder=2)
        if len(curve.seeds) >= LEAST_FOR_BAND:
            ends = [mean_interval(samples) for samples in curve.returns.T]
            low, high = [end.low for end in ends], [end.high for end in ends]
            axis.fill_between(curve.steps, low, high, color=color, alpha=0.09 if crowded else 0.13, lw=0, zorder=1)
        marker = "o" if len(curve.steps) == 1 else None
        axis.plot(curve.steps, curve.returns.mean(0), color=color, ls=line, lw=1.8, marker=marker, ms=4, zorder=3)
    axis.set_title(env)
    axis.set_xlim(0, max(int(curve.steps[-1]) for curve in curves) * 1.01)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(_short))
    axis.grid(axis="y", lw=0.3, color=figures.MUTED, alpha=0.5)
    axis.set_axisbelow(True)


def _label_ends(axis: Axes, curves: list[Curve], looks: dict[str, tuple]) -> None:
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
        axis.text(1.02, height, label, transform=axis.transAxes, color=looks[label][0], va="center", fontsize=8)


def _caption(curves: Sequence[Curve]) -> str:
    counts = sorted({len(curve.seeds) for curve in curves})
    if counts == [1]:
        return "one seed each"
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    band = "; shaded: 95% interval of the mean" if counts[-1] >= LEAST_FOR_BAND else ""
    return f"mean of {number} seeds; thin: each seed{band}"


def _short(steps: float, _: object) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if abs(steps) >= size:
            return f"{steps / size:g}{unit}"
    return f"{steps:g}"
