"""How the errors of learned quantiles depend on the level, on the paper's chain with a reward of two peaks.

The return at x0 is the last reward times γ⁵. Levels fall into regions: peaks, within one standard deviation of the
center of a part of the mixture; the gap between the peaks; and the tails outside them.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from qemrl.estimators import (
    DISTRIBUTIONS,
    QEM,
    BandVariance,
    EmpiricalMean,
    SGDNoise,
    TailVariance,
    crossing_rate,
    midpoints,
)
from qemrl.experiments.statistics import Interval, mean_interval, ratio_of_variances_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS
from qemrl.tabular import Learning, Quantiles, Steps, TabularMDP, chain, learn

STATES, DISCOUNT, STEP = 6, 0.99, 0.05
SCALE = DISCOUNT ** (STATES - 1)
"""What the last reward is worth at x0."""

REWARD = DISTRIBUTIONS["mixture"]
CENTERS = (-2.0, 3.0)
"""Of the parts of the mixture, whose standard deviations are one."""

COUNTS = {"smoke": 16, "small": 64, "paper": 128}
SEEDS = {"smoke": 50, "small": 300, "paper": 1_000}
EARLY, TRAINED, LATE = STAGES = (2_500, 10_000, 30_000)
"""Transitions; claims about x0 are decided at the second, as in the paper, and one about x5 at the third."""

DEPENDENT = 0.1
"""The rule: a correlation of a tenth is no independence."""

Values = Float[np.ndarray, "seeds n"]
Region = Bool[np.ndarray, " n"]


@dataclass(frozen=True)
class Row:
    """The errors at one level after some transitions."""

    quantiles: int
    transitions: int
    level: float
    region: str
    truth: float
    bias: float
    std: float
    predicted: float
    """The standard deviation of quantile regression with a constant step, filtered by five states."""
    crossing: float
    """The share of runs where the next quantile is lower; zero for the last."""
    last_state_std: float
    """At x5, which learns from rewards, in the end: the same for all transitions."""
    last_state_predicted: float
    last_state_crossing: float


def true_quantiles(levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The quantiles of the return at x0."""
    return SCALE * REWARD.quantile(levels)


def regions(levels: Float[np.ndarray, " n"]) -> dict[str, Region]:
    """Which levels belong to the peaks, to the gap and to the tails."""
    quantiles = REWARD.quantile(levels)
    peaks = np.any([np.abs(quantiles - center) <= 1 for center in CENTERS], axis=0)
    between = (quantiles > CENTERS[0]) & (quantiles < CENTERS[1])
    return {"peaks": peaks, "gap": ~peaks & between, "tails": ~peaks & ~between}


def gap_ends() -> tuple[float, float]:
    """The levels between which the gap lies."""
    low, high = (sum(w * special.ndtr(x - m) for w, m in zip((0.7, 0.3), CENTERS, strict=True)) for x in (-1.0, 2.0))
    return float(low), float(high)


def sparsity_variance(levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """V after the true distribution: τ(1 − τ)q′(τ), the variance of quantile regression with a constant step."""
    return levels * (1 - levels) * REWARD.sparsity(levels)


VARIANTS = {
    "less-variance-paper": ("the paper's V (1.5 in tails of 0.1)", QEM(4, TailVariance(1.5))),
    "less-variance-gap": ("V of 1.5 in the gap", QEM(4, BandVariance(1.5, *gap_ends()))),
    "less-variance-density": ("V after the true density", QEM(4, sparsity_variance)),
}
"""Three ideas of V, all with order 4."""


@cache
def process() -> TabularMDP:
    """The process; the same object each time, for which learning is compiled once."""
    return chain(STATES, DISCOUNT)


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Errors, their predictions and crossings by level, and the variance of estimates of Q."""
    count = COUNTS[scale]
    seeds = np.random.default_rng(seed).integers(2**31, size=SEEDS[scale])
    learning = Learning(Quantiles(count), LATE, Steps((STEP,)), record_every=EARLY)
    history = learn(process(), learning, seeds, np.zeros(STATES, dtype=np.int64), tick)
    at = np.searchsorted(history.steps, STAGES)
    stages = {steps: history.rows[:, i, 0].astype(np.float64) for steps, i in zip(STAGES, at, strict=True)}
    last_state = history.table[:, -1, 0].astype(np.float64)
    rows = [row for steps, values in stages.items() for row in _rows(steps, values, last_state)]
    poor = [row for row in rows if row.transitions == TRAINED and row.region != "peaks"]
    share = sum(row.bias**2 for row in poor) / sum(row.bias**2 + row.std**2 for row in poor)
    notes = [
        f"The paper's reward stands only in a figure that the text lacks; here it is {REWARD.name}. Neither step nor "
        f"initial quantiles are stated; here the step is {STEP} and the quantiles start from U(−0.5, 0.5).",
        f"{SEEDS[scale]} runs with N = {count}; {TRAINED:,} transitions visit each state {TRAINED // STATES:,} times.",
        "Predictions are of first order in the step, and for runs that have forgotten their start. The last state "
        "learns from rewards. Each state before follows the next like a filter of the same rate, which after five "
        f"states leaves {filtered_share(STATES):.3f} of the variance.",
        f"After {TRAINED:,} transitions x0 has not forgotten its start: bias is {share:.0%} of the mean squared error "
        "in gap and tails.",
    ]
    return Result([asdict(row) for row in rows], _draw(rows, stages[TRAINED]), [*_claims(stages, last_state)], notes)


def filtered_share(states: int) -> float:
    """The share of a variance that is left at the other end: ∫ (1 + ω²)^−states dω / ∫ (1 + ω²)^−1 dω."""
    return math.comb(2 * states - 2, states - 1) / 4 ** (states - 1)


def _rows(steps: int, values: Values, last_state: Values) -> list[Row]:
    count = values.shape[-1]
    levels = midpoints(count)
    names = {int(i): name for name, inside in regions(levels).items() for i in np.flatnonzero(inside)}
    truth = true_quantiles(levels)
    stds = values.std(0, ddof=1), last_state.std(0, ddof=1)
    at_end = np.sqrt(np.diag(SGDNoise(STEP).covariance(REWARD, levels)))
    # Scaled rewards have a density 1/SCALE as high, hence a variance SCALE times as large
    at_start = at_end * math.sqrt(SCALE * filtered_share(STATES))
    crossed = [np.append((each[:, 1:] < each[:, :-1]).mean(0), 0.0) for each in (values, last_state)]
    table = (truth, values.mean(0) - truth, stds[0], at_start, crossed[0], stds[1], at_end, crossed[1])
    columns = [column.tolist() for column in table]
    return [Row(count, steps, float(levels[i]), names[i], *each) for i, each in enumerate(zip(*columns, strict=True))]


def crossings(values: Values, inside: Region) -> Float[np.ndarray, " seeds"]:
    """For each run the share of neighbors within a region that are in the wrong order; over its pieces."""
    pieces = np.split(np.arange(len(inside)), np.flatnonzero(inside[1:] != inside[:-1]) + 1)
    found = [piece for piece in pieces if inside[piece[0]] and len(piece) > 1]
    return np.average([crossing_rate(values[:, piece]) for piece in found], 0, [len(piece) - 1 for piece in found])


def ratio_of_means(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> Interval:
    """The mean of `first` over that of `second`, paired samples, with the delta method on its logarithm."""
    spread = mean_interval(first / first.mean() - second / second.mean())
    value, reach = float(first.mean() / second.mean()), spread.high - spread.value
    return Interval(value, value * math.exp(-reach), value * math.exp(reach))


def neighbor_correlation(values: Values) -> Interval:
    """The correlation of the errors at neighboring levels, averaged over levels (delta method)."""
    standard = (values - values.mean(0)) / values.std(0)
    left, right = standard[:, :-1], standard[:, 1:]
    found = (left * right).mean(0)
    return mean_interval((found + left * right - found * (left**2 + right**2) / 2).mean(-1))


def _claims(stages: dict[int, Values], last_state: Values) -> Iterator[Claim]:
    values = stages[TRAINED]
    inside, when = regions(midpoints(values.shape[-1])), f"at x0 after {TRAINED:,} transitions"
    yield from _error_claims(values, inside, when)
    yield from _crossing_claims(values, last_state, inside)
    yield from _variance_claims(values, when)
    yield check_claim(
        "independent-errors",
        "Section 4.2",
        "The errors at different levels do not depend on each other.",
        f"the correlation between neighboring levels {when} is below {DEPENDENT}",
        neighbor_correlation(values),
        "correlation over runs, averaged over levels",
        below=DEPENDENT,
    )


def _error_claims(values: Values, inside: dict[str, Region], when: str) -> Iterator[Claim]:
    truth = true_quantiles(midpoints(values.shape[-1]))
    for kind, center in (("error", truth), ("deviation from its mean over runs", values.mean(0))):
        squares = (values - center) ** 2
        for name in ("gap", "tails"):
            yield check_claim(
                f"larger-{kind.split()[0]}-{name}",
                "Section 4.1",
                f"A learned quantile's {kind} is larger in the {name} than at the peaks.",
                f"the ratio of mean squares {when} is above 1",
                ratio_of_means(squares[:, inside[name]].mean(-1), squares[:, inside["peaks"]].mean(-1)),
                f"mean square in the {name} / at the peaks",
                above=1.0,
            )


def _crossing_claims(values: Values, last_state: Values, inside: dict[str, Region]) -> Iterator[Claim]:
    poor, good = inside["gap"] | inside["tails"], inside["peaks"]
    for state, steps, table, where in (("x0", TRAINED, values, "Section 4.1"), ("x5", LATE, last_state, "ours")):
        rates = [f"{name} {crossings(table, region).mean():.4f}" for name, region in inside.items()]
        yield check_claim(
            f"more-crossing-{state}",
            where,
            f"After {steps:,} transitions quantiles of {state} cross more where the fit is poor.",
            "the crossing rate in gap and tails less that at the peaks, paired by run, is above 0",
            mean_interval(crossings(table, poor) - crossings(table, good)),
            f"difference of the rates; {', '.join(rates)}",
            above=0.0,
        )


def _variance_claims(values: Values, when: str) -> Iterator[Claim]:
    levels, truth = midpoints(values.shape[-1]), SCALE * REWARD.mean
    bias = float(values.mean()) - truth
    for title, (name, qem) in VARIANTS.items():
        estimates = qem.mean(values, levels)
        yield check_claim(
            title,
            "Section 4.1" if title == "less-variance-paper" else "ours",
            f"QEM of order 4 has less variance than the plain mean with {name}.",
            f"Var(mean) / Var(QEM) {when} is above 1",
            ratio_of_variances_interval(EmpiricalMean().mean(values, levels), estimates),
            f"Var(mean) / Var(QEM) over runs; their biases are {bias:.3f} and {float(estimates.mean()) - truth:.3f}",
            above=1.0,
        )


def _draw(rows: list[Row], values: Values) -> Figure:
    """Quantiles of one and of many runs, the spread by level with its prediction, and crossings."""
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    by_steps = {steps: [row for row in rows if row.transitions == steps] for steps in STAGES}
    levels = [row.level for row in by_steps[TRAINED]]
    axes[0].plot(levels, values[:40].T, ".", ms=0.8, color=figures.MUTED)
    axes[0].plot(levels, values[0], "o", ms=2, color=LOOKS[1].color, label="one run (dots: 40 runs)")
    axes[0].plot(levels, [row.truth for row in by_steps[TRAINED]], color=figures.INK, label="truth")
    axes[0].set_ylabel("quantile of the return at x0")
    axes[0].set_title(f"N = {len(levels)}, {TRAINED:,} transitions")
    _draw_spread(axes[1], levels, by_steps)
    _draw_crossing(axes[2], levels[:-1], by_steps)
    for axis, place in zip(axes, ("upper left", "upper center", "upper right"), strict=True):
        axis.axvspan(*gap_ends(), color=figures.COLORS["sky"], alpha=0.2, lw=0, label="gap")
        axis.set_xlabel("level τ")
        axis.legend(loc=place, ncols=2 if axis is axes[1] else 1, columnspacing=1)
    return figure


def _draw_spread(axis: Axes, levels: list[float], by_steps: dict[int, list[Row]]) -> None:
    late = by_steps[LATE]
    axis.plot(levels, [row.last_state_predicted for row in late], color=figures.MUTED, ls=":", label="x5, predicted")
    axis.plot(levels, [row.last_state_std for row in late], ".", ms=2, color=figures.MUTED, label=f"x5, {LATE:,}")
    axis.plot(levels, [row.predicted for row in late], color=figures.INK, label="x0, predicted")
    for look, steps in zip(LOOKS[1:], (TRAINED, LATE), strict=False):
        stds = [row.std for row in by_steps[steps]]
        axis.plot(levels, stds, look.marker, ms=1.8, color=look.color, label=f"x0, {steps:,}")
    axis.set_yscale("log")
    axis.set_ylim(0.03, 3)
    axis.set_ylabel("standard deviation over runs")
    axis.set_title("spread of the quantiles")


def _draw_crossing(axis: Axes, levels: list[float], by_steps: dict[int, list[Row]]) -> None:
    series = {f"x0, {steps:,}": [row.crossing for row in by_steps[steps]] for steps in (EARLY, TRAINED)}
    series[f"x5, {LATE:,}"] = [row.last_state_crossing for row in by_steps[LATE]]
    for look, (label, shares) in zip(LOOKS, series.items(), strict=False):
        axis.plot(levels, shares[:-1], ls=look.line, color=look.color, lw=1, label=label)
    axis.set_ylim(top=1.45 * max(0.1, axis.get_ylim()[1]))
    axis.set_ylabel("share of runs where the next is lower")
    axis.set_title("crossing quantiles")
