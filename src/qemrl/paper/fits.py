"""Four return distributions fitted from noisy quantiles, and what the mean and QEM make of them.

The setting is the paper's appendix C: a normal, a mixture, an exponential and a Gumbel distribution, with normal noise
of variance 0.25 on each quantile. The paper shows one fit of each. Here the errors of the estimators stand beside
them, for fixed levels (QR-DQN) and for random ones (IQN), because they tell two different stories.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from qemrl.estimators import (
    DISTRIBUTIONS,
    QEM,
    ConstantVariance,
    Distribution,
    EmpiricalMean,
    Estimator,
    IndependentNoise,
    estimation_error,
    midpoints,
    r_squared,
    uniform_levels,
)
from qemrl.paper.reproduce import write_rows
from qemrl.plotting import style as figures
from qemrl.plotting.style import heading, light_grid

ORDERS = (2, 3, 4)
NAMES = ("normal", "mixture", "exponential", "gumbel")
COLORS = {2: figures.COLORS["sky"], 3: figures.COLORS["orange"], 4: figures.COLORS["blue"]}


@dataclass(frozen=True)
class Row:
    """What one estimator makes of one distribution. Errors are in standard deviations of the distribution."""

    distribution: str
    estimator: str
    r_squared: float | None
    """Of the fit to the quantiles in the figure; the plain mean fits no curve."""
    error: float
    """Of the estimate from the quantiles in the figure."""
    rmse_fixed: float
    """Over all noise, with levels at the midpoints: exact."""
    rmse_random: float
    """Over all noise and uniform random levels: exact over the noise, simulated over the levels."""


@dataclass(frozen=True)
class Fits:
    """One distribution, one draw of noisy quantiles, and every estimator's result."""

    distribution: Distribution
    levels: Float[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]
    rows: list[Row]


def fit_distributions(num_quantiles: int, noise: float, trials: int, seed: int) -> list[Fits]:
    """Fit each distribution once, and measure each estimator on it."""
    rng = np.random.default_rng(seed)
    levels = midpoints(num_quantiles)
    random_levels = uniform_levels(rng, (trials, num_quantiles))
    error_model = IndependentNoise(ConstantVariance(noise**2))
    estimators: dict[str, Estimator] = {"mean": EmpiricalMean()}
    estimators |= {f"QEM, order {order}": QEM(order=order) for order in ORDERS}

    def measure(label: str, distribution: Distribution, values: Float[np.ndarray, " n"]) -> Row:
        estimator, std = estimators[label], distribution.std
        fixed, random = (estimation_error(estimator, distribution, at, error_model) for at in (levels, random_levels))
        return Row(
            distribution=distribution.name,
            estimator=label,
            r_squared=float(r_squared(estimator, values, levels)) if isinstance(estimator, QEM) else None,
            error=float(estimator.mean(values, levels) - distribution.mean) / std,
            rmse_fixed=float(np.sqrt(fixed.mse)) / std,
            rmse_random=float(np.sqrt(np.mean(random.mse))) / std,
        )

    results = []
    for name in NAMES:
        distribution = DISTRIBUTIONS[name]
        values = distribution.quantile(levels) + noise * rng.standard_normal(num_quantiles)
        rows = [measure(label, distribution, values) for label in estimators]
        results.append(Fits(distribution, levels, values, rows))
    return results


def draw(results: list[Fits], noise: float) -> Figure:
    """The fits in the upper row, the errors in the lower."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 5.4), layout="constrained")
        axes = figure.subplots(2, len(results), height_ratios=(1.35, 1), squeeze=False)
        for column, result in enumerate(results):
            _draw_fit(axes[0, column], result)
            _draw_errors(axes[1, column], result)
        axes[0, 0].set_ylabel("quantile")
        limit = 1.15 * max(row.rmse_random for result in results for row in result.rows)
        for column, axis in enumerate(axes[1]):
            axis.set_xlim(0, limit)
            axis.tick_params(labelleft=column == 0)
        dots = {"fixed levels (midpoints), as in QR-DQN": figures.INK, "random levels, as in IQN": "white"}
        handles = [Line2D([], [], ls="", marker="o", ms=5, color=figures.INK, mfc=dots[k], label=k) for k in dots]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handletextpad=0.2, fontsize=8)
        count = len(results[0].levels)
        heading(
            figure,
            f"{count} quantiles with independent N(0, {noise**2:g}) errors: fits to one draw (above), "
            "error of the estimated mean over all draws (below)",
        )
    return figure


def _draw_fit(axis: Axes, result: Fits) -> None:
    grid = np.linspace(0.004, 0.996, 400)
    axis.plot(grid, result.distribution.quantile(grid), color=figures.INK, lw=2.4, alpha=0.25, label="true")
    axis.plot(result.levels, result.values, ".", color=figures.MUTED, ms=3.5, label="noisy quantiles")
    for row, order in zip(result.rows[1:], ORDERS, strict=True):
        coefficients = QEM(order=order).coefficients(result.values, result.levels)
        curve = np.polynomial.hermite_e.hermeval(DISTRIBUTIONS["normal"].quantile(grid), coefficients)
        axis.plot(grid, curve, color=COLORS[order], label=f"order {order}, R² {row.r_squared:.3f}")
    axis.set_title(result.distribution.name)
    axis.set_xlabel("level τ")
    axis.set_xlim(-0.02, 1.02)
    axis.legend(loc="upper left", handlelength=1.2, labelspacing=0.25, borderaxespad=0.1)


def _draw_errors(axis: Axes, result: Fits) -> None:
    colors = [figures.INK, *COLORS.values()]
    for position, (row, color) in enumerate(zip(result.rows, colors, strict=True)):
        axis.plot([row.rmse_fixed, row.rmse_random], [position, position], color=color, lw=1, alpha=0.4)
        axis.plot(row.rmse_random, position, "o", color=color, mfc="white", ms=5)
        axis.plot(row.rmse_fixed, position, "o", color=color, ms=5)
    axis.set_yticks(range(len(result.rows)), [row.estimator for row in result.rows])
    axis.set_ylim(len(result.rows) - 0.4, -0.6)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_xlabel("RMSE, share of the distribution's std")
    light_grid(axis, "x")


def write(results: list[Fits], noise: float, folder: Path) -> list[Path]:
    """Save the figure and its numbers; the paths are returned."""
    paths = figures.save(draw(results, noise), folder, "figure")
    table = folder / "data.csv"
    write_rows([asdict(row) for result in results for row in result.rows], table)
    return [*paths, table]
