"""How much of a distribution's quantiles expansions of growing order explain: the paper's choice of a model (appendix C).

The paper's Models 1 to 3 are QEM of orders 2 to 4. The fifth column of its Model 4, −2z³ + 5z, is a sum of columns
that are there already, so that model is Model 3 again. The column that is next in the expansion, He₄, makes order 5.

The noise is N(0, 0.25), read as the variance.
"""

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from qemrl.estimators import DISTRIBUTIONS, QEM, Distribution, midpoints, r_squared
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, judge
from qemrl.paper.drawing import LOOKS, entry, light_grid
from qemrl.plotting import style as figures

LAW_NAMES = ("normal", "mixture", "exponential", "gumbel")
COUNTS = (200, 32)
NOISE_STD = 0.5
DRAWS = {"smoke": 50, "small": 2_000, "paper": 20_000}
MODELS: dict[str, int | None] = {
    "Model 1": 2,
    "Model 2": 3,
    "Model 3": 4,
    "Model 4 (paper)": None,
    "order 5": 5,
    "order 6": 6,
}
"""Each model's order as a QEM; the paper's Model 4 is none."""

WELL, SIGNIFICANT, ROUNDING = 0.95, 0.01, 1e-9
"""The rules: an R² that explains well, a gain in R² that matters, and a gain that is no rounding error."""

Fits = dict[tuple[str, int, str, float], Float[np.ndarray, " draws"]]
"""The R² of each draw, by distribution, number of quantiles, model and the standard deviation of the noise."""


def run(scale: Scale, seed: int, tick: Callable[[float], None]) -> Result:
    """R² of every model on every distribution, with and without noise."""
    rng = np.random.default_rng(seed)
    fits: Fits = {}
    pairs = [(name, count) for name in LAW_NAMES for count in COUNTS]
    for done, (name, count) in enumerate(pairs):
        levels = midpoints(count)
        exact = DISTRIBUTIONS[name].quantile(levels)[None]
        noisy = exact + NOISE_STD * rng.standard_normal((DRAWS[scale], count))
        for model in MODELS:
            fits[name, count, model, 0.0] = _r_squared(model, exact, levels)
            fits[name, count, model, NOISE_STD] = _r_squared(model, noisy, levels)
        tick((done + 1) / len(pairs))
    notes = [
        "The paper's Model 4 is fitted by least squares of minimal norm, because its design has rank 4, not 5.",
        "R² is that of the fitted quantiles themselves: it cannot fall when a column is added, useful or not.",
        "The paper does not say whether 0.25 is the noise's variance or standard deviation; here it is the variance.",
    ]
    return Result([_row(key, values) for key, values in fits.items()], _draw(fits), _claims(fits), notes)


def collinear_design(levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 5"]:
    """The design of the paper's Model 4; its last column is −2 He₃ − He₁."""
    z = special.ndtri(levels)
    return np.stack([np.ones_like(z), z, z**2 - 1, z**3 - 3 * z, -2 * z**3 + 5 * z], axis=-1)


def _r_squared(
    model: str, values: Float[np.ndarray, "draws n"], levels: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " draws"]:
    order = MODELS[model]
    if order is not None:
        return np.asarray(r_squared(QEM(order), values, levels))
    design = collinear_design(levels)
    residual = values - values @ np.linalg.pinv(design).T @ design.T
    spread = values - values.mean(-1, keepdims=True)
    return 1 - (residual**2).sum(-1) / (spread**2).sum(-1)


def _interval(values: Float[np.ndarray, " draws"]) -> Interval:
    return mean_interval(values) if len(values) > 1 else Interval.exact(float(values[0]))


def _row(key: tuple[str, int, str, float], values: Float[np.ndarray, " draws"]) -> dict[str, str | int | float]:
    name, count, model, noise = key
    mean = _interval(values)
    return {
        "distribution": DISTRIBUTIONS[name].name,
        "quantiles": count,
        "model": model,
        "rank": MODELS[model] or int(np.linalg.matrix_rank(collinear_design(midpoints(count)))),
        "noise_std": noise,
        "draws": len(values),
        "r_squared": mean.value,
        "low": float(mean.low),
        "high": float(mean.high),
    }


def _largest_gain(fits: Fits, model: str) -> Interval:
    """The mean gain in R² over Model 3 on the distribution where it is largest, from 200 noisy quantiles."""
    gains = [fits[name, 200, model, NOISE_STD] - fits[name, 200, "Model 3", NOISE_STD] for name in LAW_NAMES]
    return max((mean_interval(gain) for gain in gains), key=lambda gain: gain.value)


def _claims(fits: Fits) -> list[Claim]:
    lowest = Interval.exact(min(float(fits[name, 200, "Model 3", 0.0][0]) for name in LAW_NAMES))
    collinear = max(
        float(np.abs(fits[name, count, "Model 4 (paper)", noise] - fits[name, count, "Model 3", noise]).max())
        for name in LAW_NAMES
        for count in COUNTS
        for noise in (0.0, NOISE_STD)
    )
    claims = [
        Claim(
            name="order-4-explains",
            where="Section 5, Appendix C.1",
            statement="An expansion of order 4 explains the quantiles of the four distributions well.",
            rule=f"R² on 200 exact quantiles is above {WELL} for each distribution",
            measured=lowest,
            meaning="the smallest R² of order 4 among the distributions, without noise",
            verdict=judge(lowest, above=WELL),
        )
    ]
    for order in (5, 6):
        gain = _largest_gain(fits, f"order {order}")
        claims.append(
            Claim(
                name=f"order-{order}-adds-little",
                where="Section 5",
                statement=f"Going from order 4 to order {order} raises R² by no significant amount.",
                rule=f"the mean gain in R² on 200 noisy quantiles is below {SIGNIFICANT} for each distribution",
                measured=gain,
                meaning=f"the largest mean gain in R² from order 4 to order {order} among the distributions",
                verdict=judge(gain, below=SIGNIFICANT),
            )
        )
    gain = Interval.exact(collinear)
    claims.append(
        Claim(
            name="model-4-explains-more",
            where="Appendix C.1",
            statement="Model 4, with one variable more, explains more than Model 3.",
            rule=f"R² of Model 4 differs from that of Model 3 by more than {ROUNDING}, which is rounding, in some fit",
            measured=gain,
            meaning="the largest difference in R² between Model 4 and Model 3 over all distributions and draws",
            verdict=judge(gain, above=ROUNDING),
        )
    )
    return claims


def _draw(fits: Fits) -> Figure:
    """R² by model, one panel without noise and one with."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots(1, 2)
        for axis, noise in zip(axes, (0.0, NOISE_STD), strict=True):
            _draw_panel(axis, fits, noise)
        axes[0].set_ylabel("R² of the fit, 200 quantiles")
        axes[0].set_title("exact quantiles")
        axes[1].set_title(f"quantiles with N(0, {NOISE_STD**2:g}) errors, mean over draws")
        distributions: list[Distribution] = [DISTRIBUTIONS[name] for name in LAW_NAMES]
        handles = [entry(look, distribution.name) for look, distribution in zip(LOOKS, distributions, strict=False)]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_panel(axis: Axes, fits: Fits, noise: float) -> None:
    positions = np.arange(len(MODELS))
    for name, look in zip(LAW_NAMES, LOOKS, strict=False):
        heights = [float(fits[name, 200, model, noise].mean()) for model in MODELS]
        axis.plot(positions, heights, color=look.color, marker=look.marker, ls=look.line, ms=4)
    labels = ["Model 1\norder 2", "Model 2\norder 3", "Model 3\norder 4", "Model 4\n(paper)", "\norder 5", "\norder 6"]
    axis.set_xticks(positions, labels)
    light_grid(axis, "y")
