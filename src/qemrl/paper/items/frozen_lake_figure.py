"""The figure of the FrozenLake item."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from qemrl.estimators import midpoints
from qemrl.paper.drawing import LOOKS, LineStyle, heading, light_grid
from qemrl.paper.items.frozen_lake_study import QUANTILES, VARIANTS, Arm, Point, Truth, arms
from qemrl.plotting import style as figures
from qemrl.tabular import quantile_fixed_point


def draw(truth: Truth, results: dict[tuple[str, str], Arm], points: list[Point]) -> Figure:
    """Map, quantile functions, curves of both variants, and fixed points."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 6), layout="constrained")
        axes = figure.subplots(2, 3)
        _draw_map(axes[0, 0], truth)
        _draw_quantiles(axes[1, 0], truth, results)
        looks = dict(zip(arms(truth.gap), LOOKS, strict=False))
        for column, variant in enumerate(VARIANTS, start=1):
            _draw_curves(axes[0, column], results, variant, "errors", looks)
            axes[0, column].set_title(f"{variant}: ε counts {VARIANTS[variant]}")
        axes[0, 1].set_ylabel("mean |Q̂(S) − V*|")
        _draw_curves(axes[1, 1], results, "repaired", "distances", looks)
        axes[1, 1].set_ylabel("mean W₁ to the true return")
        axes[1, 1].set_title("repaired: the distribution")
        _draw_points(axes[1, 2], points)
        handles, labels = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        seeds = len(results["literal", "mean"].errors)
        heading(
            figure, f"FrozenLake 4×4, {QUANTILES} quantiles, discount 0.999, {seeds} seeds; bands are 95% intervals"
        )
    return figure


def _draw_map(axis: Axes, truth: Truth) -> None:
    side = int(len(truth.mdp.grid) ** 0.5)
    arrows = ((-1, 0), (0, 1), (1, 0), (0, -1))  # left, down, right, up; rows grow downwards
    shades = {"H": "#555555", "G": "#cfe8cf", "S": "#e8e8f8", "F": "white"}
    for state, letter in enumerate(truth.mdp.grid):
        y, x = divmod(state, side)
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=shades[letter], ec=figures.INK, lw=0.6))
        if letter in "SF":
            dx, dy = arrows[truth.solution.policy[state]]
            axis.annotate(
                "",
                (x + 0.3 * dx, y + 0.3 * dy),
                (x - 0.3 * dx, y - 0.3 * dy),
                arrowprops={"arrowstyle": "->", "lw": 1.2},
            )
            axis.text(x - 0.44, y + 0.42, f"{truth.solution.v[state]:.3f}", fontsize=6)
        if letter != "F":
            color = "white" if letter == "H" else figures.INK
            axis.text(x + 0.44, y - 0.42, letter, ha="right", va="top", fontsize=8, color=color, weight="bold")
    axis.set(xlim=(-0.5, side - 0.5), ylim=(side - 0.5, -0.5), aspect="equal", xticks=[], yticks=[])
    axis.set_title("optimal actions and values")
    for spine in axis.spines.values():
        spine.set_visible(False)


def _draw_quantiles(axis: Axes, truth: Truth, results: dict[tuple[str, str], Arm]) -> None:
    grid = np.linspace(0.001, 0.999, 999)
    axis.plot(grid, truth.returns.quantile(grid), color=figures.INK, lw=2.4, alpha=0.3, label="true")
    levels = midpoints(QUANTILES)
    point = quantile_fixed_point(truth.mdp, truth.solution.policy, QUANTILES)[truth.mdp.start]
    axis.plot(levels, point, color=figures.COLORS["green"], ls=":", label="fixed point")
    for name, label, look in (("mean", "learned, mean", LOOKS[1]), ("QEM, V of the paper", "learned, QEM", LOOKS[2])):
        history = results["repaired", name].history
        best = history.q[:, -1, truth.mdp.start].argmax(-1)
        rows = np.take_along_axis(history.rows[:, -1], best[:, None, None], axis=1)[:, 0]
        axis.plot(levels, rows.mean(0), color=look.color, ls=look.line, label=label)
    axis.set(xlabel="level τ", ylabel="return from S", title="quantiles at the start, repaired, mean over seeds")
    axis.legend(loc="lower right")


def _draw_curves(
    axis: Axes, results: dict[tuple[str, str], Arm], variant: str, what: str, looks: dict[str, LineStyle]
) -> None:
    for name, look in looks.items():
        arm = results[variant, name]
        curves = np.abs(getattr(arm, what))
        steps = arm.history.steps / 1000
        mean = curves.mean(0)
        reach = 1.96 * curves.std(0, ddof=1) / np.sqrt(len(curves))
        axis.plot(steps, mean, color=look.color, ls=look.line, label=name)
        axis.fill_between(steps, mean - reach, mean + reach, color=look.color, alpha=0.12, lw=0)
    axis.set(xlabel="training steps (thousands)", ylim=(0, None))
    light_grid(axis, "y")


def _draw_points(axis: Axes, points: list[Point]) -> None:
    quantiles = [p for p in points if p.representation == "quantiles"]
    sizes = [p.size for p in quantiles]
    series = {
        "plain mean": [abs(p.mean) for p in quantiles],
        "QEM, order 4": [abs(p.order_4) for p in quantiles],
        "best of 48 estimators": [p.best for p in quantiles],
    }
    for (label, errors), look in zip(series.items(), LOOKS, strict=False):
        axis.plot(sizes, errors, color=look.color, marker=look.marker, ls=look.line, ms=4, label=label)
    axis.axhline(0, color=figures.MUTED, lw=0.8)
    axis.text(sizes[0], 0.02, "categories and expectiles: 0", fontsize=7, color=figures.INK)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.set(
        xlabel="number of quantiles N", ylabel="|Q(S) − V*| of the fixed point", title="what learning converges to"
    )
    axis.legend(loc="upper right")
    light_grid(axis, "y")
