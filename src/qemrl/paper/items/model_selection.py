"""How much of a distribution's quantiles expansions of growing order explain: the choice of a model (appendix C).

The paper's Models 1 to 3 are QEM of orders 2 to 4. The fifth column of its Model 4, −2z³ + 5z, is a sum of columns
that are there already, so that model is Model 3 again. The column that is next in the expansion, He₄, makes order 5.

The noise is N(0, 0.25), read as the variance.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from qemrl.estimators import DISTRIBUTIONS, QEM, midpoints, r_squared
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim
from qemrl.plotting.style import LOOKS, entry, light_grid

NAMES = ("normal", "mixture", "exponential", "gumbel")
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


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """R² of every model on every distribution, with and without noise."""
    rng = np.random.default_rng(seed)
    fits: Fits = {}
    pairs = list(product(NAMES, COUNTS))
    for done, (name, count) in enumerate(pairs, start=1):
        levels = midpoints(count)
        exact = DISTRIBUTIONS[name].quantile(levels)[None]
        noisy = exact + NOISE_STD * rng.standard_normal((DRAWS[scale], count))
        for model in MODELS:
            fits[name, count, model, 0.0] = _r_squared(model, exact, levels)
            fits[name, count, model, NOISE_STD] = _r_squared(model, noisy, levels)
        tick(done / len(pairs))
    notes = [
        "The paper's Model 4 is fitted by least squares of minimal norm, because its design has rank 4, not 5.",
        "R² is that of the fitted quantiles themselves: it cannot fall when a column is added, useful or not.",
        "The paper does not say whether 0.25 is the noise's variance or standard deviation; here it is the variance.",
    ]
    return Result([_row(key, values) for key, values in fits.items()], _draw(fits), [*_claims(fits)], notes)


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
    gains = [fits[name, 200, model, NOISE_STD] - fits[name, 200, "Model 3", NOISE_STD] for name in NAMES]
    return max((mean_interval(gain) for gain in gains), key=lambda gain: gain.value)


def _claims(fits: Fits) -> Iterator[Claim]:
    yield check_claim(
        "order-4-explains",
        "Section 5, Appendix C.1",
        "An expansion of order 4 explains the quantiles of the four distributions well.",
        f"R² on 200 exact quantiles is above {WELL} for each distribution",
        Interval.exact(min(float(fits[name, 200, "Model 3", 0.0][0]) for name in NAMES)),
        "the smallest R² of order 4 among the distributions, without noise",
        above=WELL,
    )
    for order in (5, 6):
        yield check_claim(
            f"order-{order}-adds-little",
            "Section 5",
            f"Going from order 4 to order {order} raises R² by no significant amount.",
            f"the mean gain in R² on 200 noisy quantiles is below {SIGNIFICANT} for each distribution",
            _largest_gain(fits, f"order {order}"),
            f"the largest mean gain in R² from order 4 to order {order} among the distributions",
            below=SIGNIFICANT,
        )
    differences = [
        fits[name, count, "Model 4 (paper)", noise] - fits[name, count, "Model 3", noise]
        for name, count, noise in product(NAMES, COUNTS, (0.0, NOISE_STD))
    ]
    yield check_claim(
        "model-4-explains-more",
        "Appendix C.1",
        "Model 4, with one variable more, explains more than Model 3.",
        f"R² of Model 4 differs from that of Model 3 by more than {ROUNDING}, which is rounding, in some fit",
        Interval.exact(max(float(np.abs(difference).max()) for difference in differences)),
        "the largest difference in R² between Model 4 and Model 3 over all distributions and draws",
        above=ROUNDING,
    )


def _draw(fits: Fits) -> Figure:
    """R² by model, one panel without noise and one with."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, noise in zip(axes, (0.0, NOISE_STD), strict=True):
        _draw_panel(axis, fits, noise)
    axes[0].set_ylabel("R² of the fit, 200 quantiles")
    axes[0].set_title("exact quantiles")
    axes[1].set_title(f"quantiles with N(0, {NOISE_STD**2:g}) errors, mean over draws")
    handles = [entry(look, DISTRIBUTIONS[name].name) for look, name in zip(LOOKS, NAMES, strict=False)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_panel(axis: Axes, fits: Fits, noise: float) -> None:
    positions = np.arange(len(MODELS))
    for name, look in zip(NAMES, LOOKS, strict=False):
        heights = [float(fits[name, 200, model, noise].mean()) for model in MODELS]
        axis.plot(positions, heights, color=look.color, marker=look.marker, ls=look.line, ms=4)
    labels = ["Model 1\norder 2", "Model 2\norder 3", "Model 3\norder 4", "Model 4\n(paper)", "\norder 5", "\norder 6"]
    axis.set_xticks(positions, labels)
    light_grid(axis, "y")
