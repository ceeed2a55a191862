"""The variance of QEM against that of the plain mean when the errors of quantiles are what learning makes them.

One return moves all quantiles, so their errors are correlated. Two covariances are known to first order: that of
the quantiles of a sample, and that of quantile regression with a constant step. For these, and for the independent
errors that the paper assumes, efficiencies are exact. Simulations of both kinds of learning check the formulas.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.estimators import (
    DISTRIBUTIONS,
    QEM,
    ConstantVariance,
    Distribution,
    EmpiricalMean,
    IndependentNoise,
    Noise,
    SampleQuantileNoise,
    SGDNoise,
    TailVariance,
    efficiency,
    estimation_error,
    midpoints,
)
from qemrl.experiments.statistics import Interval, ratio_of_variances_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, heading, light_grid, upright_line

SETTINGS = {"Atari": (200, TailVariance(1.5)), "MuJoCo": (32, TailVariance(1.2))}
"""The paper's number of quantiles and its V, with tails of 0.1."""

NOISES = ("independent", "sample quantiles", "SGD")
CASES = (
    ("sample quantiles", "mixture"),
    ("sample quantiles", "log-normal"),
    ("SGD", "mixture"),
    ("SGD", "exponential"),
)
"""What is simulated, in the MuJoCo setting."""

COPIES = {"smoke": (1_000, 300), "small": (10_000, 2_000), "paper": (50_000, 10_000)}
"""Independent samples of returns, and independent chains of quantile regression."""

RETURNS, STEP, STEPS = 1_000, 0.02, 10_000
"""Returns in a sample; step size; updates of a chain, which bring the slowest variance within 0.3% of its limit."""

Levels = Float[np.ndarray, " n"]
Values = Float[np.ndarray, "copies n"]

SMALL_GAIN, CLOSE = 1.05, 0.03
"""The rules: a gain in variance of 5% is small; a simulation within 3% agrees with a formula."""


@dataclass(frozen=True)
class Row:
    """What one estimator makes of one distribution under one noise."""

    setting: str
    quantiles: int
    noise: str
    distribution: str
    estimator: str
    source: str
    efficiency: float
    """Var(plain mean) / Var(QEM), with the ends of its interval."""
    low: float
    high: float
    bias_in_stds: float


def estimators(setting: str) -> dict[str, QEM]:
    """QEM of orders 2 and 4, with equal weights and with the paper's V."""
    models = {"V = I": ConstantVariance(), "paper's V": SETTINGS[setting][1]}
    return {f"order {order}, {name}": QEM(order, model) for order in (2, 4) for name, model in models.items()}


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Exact efficiencies in both settings on all distributions, and simulated ones for some."""
    rng = np.random.default_rng(seed)
    rows = _exact_rows()
    tick(0.02)
    for done, (noise, name) in enumerate(CASES, start=1):
        rows += _simulated_rows(rng, scale, noise, DISTRIBUTIONS[name])
        tick(done / len(CASES))
    order_2 = max((row for row in rows if row.estimator == "order 2, paper's V"), key=lambda row: row.efficiency)
    notes = [
        "Independent errors have the paper's V as their true variances, which favors QEM.",
        "Order 2 with V = I has the weights of the plain mean, so its efficiency is 1.",
        "Order 2 with the paper's V gains on heavy tails and sample quantiles, and pays with bias: at best "
        f"{order_2.efficiency:.3g} ({order_2.distribution}, {order_2.setting}), with a bias of "
        f"{order_2.bias_in_stds:.3f} stds.",
        f"Simulated are the quantiles of {RETURNS:,} returns, and {STEPS:,} steps of {STEP} of quantile regression on "
        "one return at a time. The latter start at the true quantiles; returns come from a table of 65,536 quantiles.",
        "The formulas are of first order in 1/returns and in the step; simulated biases contain what is left out.",
    ]
    return Result([asdict(row) for row in rows], _draw(rows), [*_claims(rows)], notes)


def _exact_rows() -> list[Row]:
    rows = []
    for setting, (count, model) in SETTINGS.items():
        levels = midpoints(count)
        noises: tuple[Noise, ...] = (IndependentNoise(model), SampleQuantileNoise(RETURNS), SGDNoise(STEP))
        for (kind, noise), dist in product(zip(NOISES, noises, strict=True), DISTRIBUTIONS.values()):
            for label, qem in estimators(setting).items():
                ratio = float(efficiency(qem, dist, levels, noise))
                bias = float(estimation_error(qem, dist, levels, noise).bias) / dist.std
                rows.append(Row(setting, count, kind, dist.name, label, "exact", ratio, ratio, ratio, bias))
    return rows


def sample_quantiles(rng: np.random.Generator, distribution: Distribution, levels: Levels, copies: int) -> Values:
    """Quantiles of independent samples of returns, interpolated between the order statistics at (k − ½)/returns."""
    share, below = np.modf(levels * RETURNS - 0.5)
    below = below.astype(int)
    results = []
    for start in range(0, copies, 2_000):
        ranks = np.sort(rng.random((min(2_000, copies - start), RETURNS)), axis=-1)
        results.append(
            (1 - share) * distribution.quantile(ranks[:, below]) + share * distribution.quantile(ranks[:, below + 1])
        )
    return np.concatenate(results)


def regressed_quantiles(rng: np.random.Generator, distribution: Distribution, levels: Levels, chains: int) -> Values:
    """The quantiles of independent chains of quantile regression, each return of a chain moving all of them."""
    table = distribution.quantile(midpoints(65_536))
    values = np.tile(distribution.quantile(levels), (chains, 1))
    for _ in range(STEPS):
        returns = table[rng.integers(len(table), size=(chains, 1))]
        values += STEP * (levels - (returns < values))
    return values


def _simulated_rows(rng: np.random.Generator, scale: Scale, noise: str, distribution: Distribution) -> list[Row]:
    levels = midpoints(SETTINGS["MuJoCo"][0])
    samples, chains = COPIES[scale]
    learn, copies = (regressed_quantiles, chains) if noise == "SGD" else (sample_quantiles, samples)
    values = learn(rng, distribution, levels, copies)
    rows = []
    for label, qem in estimators("MuJoCo").items():
        estimates = qem.mean(values, levels)
        ratio = ratio_of_variances_interval(EmpiricalMean().mean(values, levels), estimates)
        bias = float(estimates.mean() - distribution.mean) / distribution.std
        rows.append(Row("MuJoCo", len(levels), noise, distribution.name, label, "simulated", *ratio, bias))
    return rows


def _largest_departure(rows: list[Row]) -> Interval:
    """|simulated / exact − 1| with its interval, of the case where that reaches farthest."""
    exact = {(r.setting, r.noise, r.distribution, r.estimator): r.efficiency for r in rows if r.source == "exact"}
    departures = []
    for row in (r for r in rows if r.source == "simulated"):
        formula = exact[row.setting, row.noise, row.distribution, row.estimator]
        value, *ends = (end / formula - 1 for end in (row.efficiency, row.low, row.high))
        nearest, farthest = sorted(abs(end) for end in ends)
        departures.append(Interval(abs(value), 0.0 if min(ends) <= 0 <= max(ends) else nearest, farthest))
    return max(departures, key=lambda departure: departure.high)


def _claims(rows: list[Row]) -> Iterator[Claim]:
    default = [row for row in rows if row.estimator == "order 4, paper's V" and row.source == "exact"]
    for (setting, (count, model)), noise in product(SETTINGS.items(), NOISES):
        found = [row.efficiency for row in default if (row.setting, row.noise) == (setting, noise)]
        yield check_claim(
            f"less-variance-{setting}-{noise}".lower().replace(" ", "-"),
            "Section 4",
            "QEM has less variance than the plain mean at all times of training: order 4 with "
            f"V = {model.value} and N = {count}, as on {setting}, if the errors are of the kind: {noise}.",
            "Var(mean) / Var(QEM) is above 1 on each of the six distributions",
            Interval.exact(min(found)),
            f"the smallest efficiency among the distributions; the largest is {max(found):.4g}",
            above=1.0,
        )
    yield check_claim(
        "gain-is-small",
        "ours",
        "At midpoints the paper's order and V never reduce the variance by much.",
        f"Var(mean) / Var(QEM) is below {SMALL_GAIN} in both settings, on each distribution, under each noise",
        Interval.exact(max(row.efficiency for row in default)),
        "the largest efficiency of order 4 with the paper's V",
        below=SMALL_GAIN,
    )
    yield check_claim(
        "formulas-describe-learning",
        "ours",
        "The covariances of first order predict the efficiencies of learned quantiles.",
        f"simulated efficiencies are within {CLOSE:.0%} of the exact ones in each case",
        _largest_departure(rows),
        "|simulated / exact − 1| of the case where its interval reaches farthest",
        below=CLOSE,
    )


def _draw(rows: list[Row]) -> Figure:
    """Efficiencies by setting and noise, one line a distribution."""
    figure = Figure(figsize=(7.6, 5), layout="constrained")
    axes = figure.subplots(len(SETTINGS), len(NOISES), sharex=True, sharey=True)
    for line, (setting, (count, model)) in zip(axes, SETTINGS.items(), strict=True):
        for axis, noise in zip(line, NOISES, strict=True):
            _draw_panel(axis, [row for row in rows if (row.setting, row.noise) == (setting, noise)])
        line[0].set_ylabel(f"{setting}: N = {count}, V = {model.value}")
    for column, noise in enumerate(NOISES):
        axes[0, column].set_title(f"errors: {noise}")
        axes[-1, column].set_xlabel("Var(mean) / Var(QEM)")
    figure.legend(*axes[1, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    heading(figure, "Right of the line QEM has less variance")
    return figure


def _draw_panel(axis: Axes, rows: list[Row]) -> None:
    upright_line(axis, 1.0)
    places = {distribution.name: place for place, distribution in enumerate(DISTRIBUTIONS.values())}
    series = {"order 4, V = I": -0.25, "order 2, paper's V": 0.0, "order 4, paper's V": 0.25}
    for look, (label, shift) in zip(LOOKS[1:], series.items(), strict=False):
        found = [row for row in rows if row.estimator == label and row.source == "exact"]
        heights = [places[row.distribution] + shift for row in found]
        axis.plot([row.efficiency for row in found], heights, look.marker, color=look.color, ms=3.5, label=label)
    found = [row for row in rows if row.estimator == "order 4, paper's V" and row.source == "simulated"]
    if found:
        values, heights = [row.efficiency for row in found], [places[row.distribution] + 0.25 for row in found]
        axis.hlines(heights, [row.low for row in found], [row.high for row in found], color=figures.INK, lw=1)
        axis.plot(values, heights, "o", mfc="none", ms=7, color=figures.INK, label="order 4, paper's V, simulated")
    axis.set_yticks(range(len(DISTRIBUTIONS)), places)
    axis.set_ylim(len(DISTRIBUTIONS) - 0.4, -0.6)
    light_grid(axis, "x")
