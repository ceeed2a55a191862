"""Where quantile TD goes when the quantiles of its target are not unique: the paper's process with uniform rewards.

At x0 the target has a flat distribution function at every level, so a whole interval of numbers minimizes the loss:
[γ(2i − 1)/2N, γ(2i + 1)/2N] for the quantile i. The truth γi/N is its middle, and the paper names its upper end. Errors
are therefore given in half-widths γ/2N: 0 is the truth, 1 what the paper says is learned.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.estimators import midpoints
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, level_line
from qemrl.tabular import Learning, Quantiles, Steps, TabularMDP, learn, policy_values, quantile_fixed_point
from qemrl.tabular import toy_uniform as make_toy_uniform
from qemrl.tabular.fixed_points import Ties

DISCOUNT = 0.9
ONLY_ACTION = np.zeros(3, dtype=np.int64)

COUNTS = {"smoke": (8,), "small": (4, 8, 32), "paper": (4, 8, 32)}
"""Numbers of quantiles N."""

STRETCHES: dict[str, tuple[tuple[float, int], ...]] = {
    "smoke": ((0.1, 2_000), (0.05, 8_000)),
    "small": ((0.1, 2_000), (0.05, 8_000), (0.02, 40_000)),
    "paper": ((0.1, 2_000), (0.05, 8_000), (0.02, 40_000), (0.01, 160_000)),
}
"""Step sizes and how many transitions they last. A quantile at x0 walks at random between the ends of its interval, and
forgets where it was within about 1.3/step² transitions; a stretch is at least 12 times as long."""

SEEDS = {"smoke": 64, "small": 200, "paper": 300}
RESOLUTION = 4096
"""Equally likely numbers that stand for a distribution of rewards in fixed points."""

CLOSER = 0.5
"""The rule: what is learned is what the paper says if it is closer to that than to the truth."""

Errors = dict[tuple[int, float], Float[np.ndarray, "seeds n"]]


@dataclass(frozen=True)
class Row:
    """One quantile at x0, or with index 0 the mean, for one N and one step size."""

    quantiles: int
    step: float
    index: int
    level: float
    truth: float
    lower: float
    """The fixed point with lower ends of intervals; then those with middles and upper ends."""
    middle: float
    upper: float
    learned: float
    """The mean over seeds, with the ends of its interval."""
    learned_low: float
    learned_high: float
    learned_std: float
    error: float
    """The mean error in half-widths."""


def true_quantiles(levels: Float[np.ndarray, "*shape"], count: int, discount: float) -> Float[np.ndarray, "*shape"]:
    """The quantiles of the return at x0: γU(0, 1) or γU(1/N, 1 + 1/N), with equal chances.

    Both overlap between 1/N and 1, where the distribution function of the return over γ is y − 1/2N; below and above
    only one of them is there, and it rises half as fast.
    """
    half = 1 / (2 * count)
    above = np.where(levels > 1 - half, 2 * levels - 1 + 2 * half, levels + half)
    return discount * np.where(levels < half, 2 * levels, above)


@cache
def process(count: int) -> TabularMDP:
    """The process; the same object each time, for which learning is compiled once."""
    return make_toy_uniform(count, DISCOUNT)


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Truth, fixed points and what is learned at x0, for several N and step sizes."""
    seeds = np.random.default_rng(seed).integers(2**31, size=SEEDS[scale])
    rows: list[Row] = []
    errors: Errors = {}
    for done, count in enumerate(COUNTS[scale], start=1):
        for step, learned in _learn_quantiles(count, STRETCHES[scale], seeds).items():
            truth = true_quantiles(midpoints(count), count, DISCOUNT)
            errors[count, step] = (learned - truth) * 2 * count / DISCOUNT
            rows += _rows(count, step, learned)
        tick(done / len(COUNTS[scale]))
    lengths = ", ".join(f"{step} for {steps:,}" for step, steps in STRETCHES[scale])
    notes = [
        "The paper writes the return at x0 as γ(R1 + R2)/2, which is an average; the process, and its value γ/N of the "
        f"first quantile, are those of the mixture. It states no discount; here γ = {DISCOUNT}.",
        f"Each of {SEEDS[scale]} runs goes through all step sizes, in transitions: {lengths}. Quantiles are read where "
        "a stretch ends.",
        "With middles for ties the fixed point is the truth, and its mean the true γ(N + 1)/2N.",
    ]
    return Result([asdict(row) for row in rows], _draw(rows, errors), [*_claims(errors)], notes)


def _learn_quantiles(
    count: int, stretches: tuple[tuple[float, int], ...], seeds: np.ndarray
) -> dict[float, Float[np.ndarray, "seeds n"]]:
    """The quantiles at x0 at the end of each stretch, by step size."""
    ends = np.cumsum([steps for _, steps in stretches]).tolist()
    schedule = Steps(tuple(step for step, _ in stretches), tuple(ends[:-1]))
    learning = Learning(Quantiles(count), ends[-1], schedule, record_every=2_000)
    history = learn(process(count), learning, seeds, ONLY_ACTION)
    found = history.rows[:, np.searchsorted(history.steps, ends), 0].astype(np.float64)
    return dict(zip(schedule.values, np.moveaxis(found, 1, 0), strict=True))


def _rows(count: int, step: float, learned: Float[np.ndarray, "seeds n"]) -> list[Row]:
    levels = midpoints(count)
    mean = float(policy_values(process(count), ONLY_ACTION)[0, 0])
    truth, (lower, middle, upper) = true_quantiles(levels, count, DISCOUNT), fixed_points(count)
    rows = []
    for i in range(count + 1):  # the mean first
        at = slice(None) if i == 0 else slice(i - 1, i)
        samples, place = learned[:, at].mean(-1), mean if i == 0 else float(truth[i - 1])
        low, mid, high = (float(values[at].mean()) for values in (lower, middle, upper))
        found, std = mean_interval(samples), float(samples.std(ddof=1))
        error = (found.value - place) * 2 * count / DISCOUNT
        level = float(levels[i - 1]) if i else 0.0
        rows.append(Row(count, step, i, level, place, low, mid, high, *found, std, error))
    return rows


@cache
def fixed_points(count: int) -> Float[np.ndarray, "3 n"]:
    """The quantiles at x0 that the projected operator keeps, with lower ends, middles and upper ends of ties."""
    every: tuple[Ties, ...] = ("lower", "middle", "upper")
    return np.stack([quantile_fixed_point(process(count), ONLY_ACTION, count, ties, RESOLUTION)[0] for ties in every])


def _fold(interval: Interval) -> Interval:
    """The interval of the absolute value."""
    value, low, high = interval if interval.value >= 0 else (-interval.value, -interval.high, -interval.low)
    return Interval(value, max(low, 0.0), high)


def _claims(errors: Errors) -> Iterator[Claim]:
    step = min(step for _, step in errors)
    last = {count: values for (count, size), values in errors.items() if size == step}
    columns = [column for values in last.values() for column in values.T]
    cases = f"for each N ({', '.join(map(str, last))}) with a step of {step}"
    stated = {
        "first-quantile-is-the-upper-end": (
            "QDRL learns 3γ/2N for the first quantile at x0, whose true value is γ/N.",
            "the mean over runs is closer to 3γ/2N than to the truth",
            "mean error of the first quantile",
            [mean_interval(values[:, 0]) for values in last.values()],
        ),
        "every-quantile-is-biased": (
            "What QDRL learns at x0 is wrong at each level.",
            f"at each level the mean over runs is off by more than {CLOSER} half-widths,",
            "|mean error| of a quantile",
            [_fold(mean_interval(column)) for column in columns],
        ),
        "mean-is-biased": (
            "The projection shifts the mean that QDRL learns at x0.",
            f"the plain mean of the quantiles, averaged over runs, is off by more than {CLOSER} half-widths",
            "|mean error| of the plain mean",
            [_fold(mean_interval(values.mean(-1))) for values in last.values()],
        ),
    }
    for name, (statement, rule, meaning, found) in stated.items():
        least = min(found, key=lambda interval: interval.value)
        most = max(interval.value for interval in found)
        meaning += f" in half-widths γ/2N (the paper: 1), where it is smallest; the largest is {most:.3f}"
        yield check_claim(name, "Section 3.1", statement, f"{rule} {cases}", least, meaning, above=CLOSER)


def _draw(rows: list[Row], errors: Errors) -> Figure:
    """The quantiles at x0 for N = 8, and errors of the first quantile and of the mean by step size."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    step = min(row.step for row in rows)
    _draw_levels(axes[0], [row for row in rows if (row.quantiles, row.step) == (8, step) and row.index])
    _draw_errors(axes[1], {key: values[:, 0] for key, values in errors.items()}, "first quantile")
    _draw_errors(axes[2], {key: values.mean(-1) for key, values in errors.items()}, "plain mean")
    for axis in axes[1:]:
        axis.set_ylim(-2.4, 1.3)
    axes[1].set_ylabel("mean error over runs / (γ/2N)")
    axes[2].legend(loc="lower left")
    return figure


def _draw_levels(axis: Axes, rows: list[Row]) -> None:
    levels, colors = [row.level for row in rows], figures.COLORS
    lower, height = [row.lower for row in rows], [row.upper - row.lower for row in rows]
    axis.bar(levels, height, 0.45 / len(rows), lower, color=colors["sky"], alpha=0.45, label="all minimizers")
    axis.plot(levels, [row.upper for row in rows], "v", ms=4, color=colors["orange"], label="upper end (paper)")
    axis.plot(levels, [row.truth for row in rows], "_", ms=13, mew=1.4, color=figures.INK, label="truth")
    axis.errorbar(
        levels, [row.learned for row in rows], [row.learned_std for row in rows],
        fmt="o", ms=3.2, lw=1, color=colors["blue"], label="learned, mean ± sd of runs",
    )  # fmt: skip
    axis.set_ylim(0, 1)
    axis.set_xlabel("level τ")
    axis.set_ylabel("quantile of the return at x0")
    axis.set_title(f"N = {rows[0].quantiles}, step {rows[0].step}")
    axis.legend(loc="upper left")


def _draw_errors(axis: Axes, errors: dict[tuple[int, float], np.ndarray], title: str) -> None:
    level_line(axis, 0.0)
    axis.axhline(1.0, color=figures.COLORS["orange"], lw=0.9, ls=":")
    for height, text in ((0.02, "truth"), (1.02, "the paper")):
        axis.text(0.02, height, text, transform=axis.get_yaxis_transform(), va="bottom", fontsize=7)
    steps = sorted({step for _, step in errors})
    for place, (look, count) in enumerate(zip(LOOKS, dict.fromkeys(count for count, _ in errors), strict=False)):
        found = [mean_interval(errors[count, step]) for step in steps]
        reach = [interval.high - interval.value for interval in found]
        where = np.arange(len(steps)) + 0.12 * (place - 1)
        axis.errorbar(
            where, [interval.value for interval in found], reach,
            fmt=look.marker, color=look.color, ms=3.5, lw=1, capsize=2, label=f"N = {count}",
        )  # fmt: skip
    axis.set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
    axis.set_xlim(-1.2, len(steps) - 0.5)
    axis.set_xlabel("step size")
    axis.set_title(title)
