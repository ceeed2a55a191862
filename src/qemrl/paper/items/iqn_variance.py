"""The error that the draw of random levels alone causes, on exact quantile functions.

An implicit quantile network averages over K levels drawn anew. Even if its quantiles are perfect, the average
errs by the draw. QEM regresses that error away; better ways to draw levels avoid it. Both are measured here, as
mean squared errors over Var(Z), for which the plain mean of K uniform levels has 1/K.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.estimators import (
    DISTRIBUTIONS,
    QEM,
    EmpiricalMean,
    Estimator,
    antithetic_levels,
    cumulative_levels,
    midpoints,
    stratified_levels,
    uniform_levels,
)
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, Verdict, check_claim, judge
from qemrl.plotting import style as figures
from qemrl.plotting.style import LineStyle, entry, heading, light_grid

COUNTS = (8, 16, 32, 64)
ESTIMATORS: dict[str, Estimator] = {
    "mean": EmpiricalMean(),
    "QEM 2": QEM(2),
    "QEM 3": QEM(3),
    "QEM 4": QEM(4),
    "Legendre 4": QEM(4, basis="legendre"),
}
SAMPLERS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "uniform": uniform_levels,
    "antithetic": antithetic_levels,
    "stratified": stratified_levels,
    "cumulative": cumulative_levels,
    "midpoints": lambda _, shape: np.tile(midpoints(shape[-1]), (shape[0], 1)),
}
SIZES = {"smoke": (4, 100), "small": (20, 500), "paper": (40, 1_000)}
"""Blocks, and draws of levels in each."""

REMOVED = 0.8
"""The rule: the share of the plain mean's error that is to be removed."""

Key = tuple[str, int, str, str]
Errors = dict[Key, Float[np.ndarray, " blocks"]]
"""Mean squared error over Var(Z) in each block, by distribution, number of levels, sampler and estimator."""


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Every estimator on every sampler, distribution and number of levels."""
    rng = np.random.default_rng(seed)
    blocks, draws = SIZES[scale]
    errors: Errors = {}
    work = 0
    for name in DISTRIBUTIONS:
        for count in COUNTS:
            for sampler in SAMPLERS:
                for label, values in sampling_errors(rng, name, count, sampler, blocks, draws).items():
                    errors[name, count, sampler, label] = values
            work += count
            tick(work / (len(DISTRIBUTIONS) * sum(COUNTS)))
    notes = [
        "All estimators see the same levels. Midpoints are not random: theirs is the squared bias.",
        "The plain mean of cumulative levels is weighted by the probability that each stands for, as in DSAC.",
        f"Intervals are over {blocks} blocks of {draws:,} draws. With few random levels a cubic fit errs wildly now "
        "and then, so that the errors of orders 3 and 4 at K = 8 are known roughly only.",
    ]
    return Result([_row(key, values) for key, values in errors.items()], _draw(errors), [*_claims(errors)], notes)


def sampling_errors(
    rng: np.random.Generator, name: str, count: int, sampler: str, blocks: int, draws: int
) -> dict[str, Float[np.ndarray, " blocks"]]:
    """Mean squared error over Var(Z) in each block, by estimator; all of them see the same levels."""
    distribution = DISTRIBUTIONS[name]
    drawn = SAMPLERS[sampler](rng, (blocks * draws if sampler != "midpoints" else blocks, count))
    levels, probs = drawn if isinstance(drawn, tuple) else (drawn, None)
    values = distribution.quantile(levels)
    results = {}
    for label, estimator in ESTIMATORS.items():
        squares = ((estimator.mean(values, levels, probs) - distribution.mean) / distribution.std) ** 2
        results[label] = squares.reshape(blocks, -1).mean(-1)
    return results


def _row(key: Key, values: Float[np.ndarray, " blocks"]) -> dict[str, str | int | float]:
    name, count, sampler, label = key
    error = mean_interval(values)
    return {
        "distribution": DISTRIBUTIONS[name].name,
        "levels": count,
        "sampler": sampler,
        "estimator": label,
        "mse_over_variance": error.value,
        "low": float(error.low),
        "high": float(error.high),
    }


def _claims(errors: Errors) -> Iterator[Claim]:
    # The plain mean of K uniform levels has the error Var(Z) / K, exactly.
    removed = [mean_interval(1 - 32 * errors[name, 32, "uniform", "QEM 4"]) for name in DISTRIBUTIONS]
    yield check_claim(
        "removes-sampling-error",
        "ours",
        "With 32 random levels QEM of order 4 removes most of the error that their draw causes.",
        f"it removes more than {REMOVED:.0%} of the plain mean's squared error on each distribution",
        min(removed, key=lambda interval: interval.value),
        "the smallest share removed among the distributions",
        above=REMOVED,
    )
    yield _stratified_claim(errors)
    few = [mean_interval(8 * errors[name, 8, "uniform", "QEM 4"]) for name in DISTRIBUTIONS]
    yield check_claim(
        "safe-with-8-levels",
        "ours",
        "With as few as 8 random levels QEM of order 4 does no harm.",
        "its mean squared error is smaller than the plain mean's on each distribution",
        max(few, key=lambda interval: interval.value),
        "the largest ratio of the two errors among the distributions",
        below=1.0,
    )


def _stratified_claim(errors: Errors) -> Claim:
    gaps = {
        dist.name: mean_interval(errors[name, 32, "stratified", "mean"] - errors[name, 32, "uniform", "QEM 4"])
        for name, dist in DISTRIBUTIONS.items()
    }
    verdicts: dict[str, Verdict] = {name: judge(gap, above=0.0) for name, gap in gaps.items()}
    wins = sum(gap.value > 0 for gap in gaps.values())
    certain, lost = (sum(verdict == kind for verdict in verdicts.values()) for kind in ("holds", "fails"))
    names = ", ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())
    return Claim(
        "beats-stratified-levels",
        "ours",
        "QEM of order 4 on 32 random levels errs less than the plain mean of 32 stratified levels.",
        "its mean squared error is smaller; holds if on all distributions, fails if on none, depends otherwise",
        Interval(float(wins), float(certain), float(len(gaps) - lost)),
        f"the number of distributions, of six, on which QEM errs less ({names})",
        agreement([*verdicts.values()]),
    )


def agreement(verdicts: list[Verdict]) -> Verdict:
    """The verdict that all distributions share, else `depends`."""
    return verdicts[0] if len(set(verdicts)) == 1 else "depends"


LINES = {
    ("uniform", "mean"): LineStyle(figures.INK, "o"),
    ("uniform", "QEM 2"): LineStyle(figures.COLORS["sky"], "s"),
    ("uniform", "QEM 4"): LineStyle(figures.COLORS["blue"], "D"),
    ("uniform", "Legendre 4"): LineStyle(figures.COLORS["purple"], "v"),
    ("antithetic", "mean"): LineStyle(figures.COLORS["orange"], "x", "-."),
    ("stratified", "mean"): LineStyle(figures.INK, "^", "--"),
    ("stratified", "QEM 4"): LineStyle(figures.COLORS["blue"], "P", "--"),
    ("cumulative", "mean"): LineStyle(figures.COLORS["green"], "*", ":"),
    ("midpoints", "mean"): LineStyle(figures.MUTED, "|", ":"),
}
FLOOR = 1e-6


def _draw(errors: Errors) -> Figure:
    """The error by the number of levels, a panel for each distribution."""
    figure = Figure(figsize=(7.8, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, name in zip(axes.flat, DISTRIBUTIONS, strict=True):
        _draw_panel(axis, errors, name)
        axis.set_title(DISTRIBUTIONS[name].name)
    for axis in axes[-1]:
        axis.set_xlabel("number of levels K")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean squared error / Var(Z)")
    handles = [entry(look, f"{label}, {sampler} levels") for (sampler, label), look in LINES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7.5)
    heading(figure, "Error from the draw of the levels alone; errors below 10⁻⁶ are drawn at 10⁻⁶")
    return figure


def _draw_panel(axis: Axes, errors: Errors, name: str) -> None:
    for (sampler, label), look in LINES.items():
        heights = [max(FLOOR, float(errors[name, count, sampler, label].mean())) for count in COUNTS]
        axis.plot(COUNTS, heights, color=look.color, marker=look.marker, ls=look.line, ms=4.5, lw=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
    light_grid(axis, "y")
