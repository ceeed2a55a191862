"""How often the wrong action looks better, and why: the paper's process with two exponential returns.

Each action at x0 is taken with a chance of one half, and its return is learned. The estimators of quantiles share one
learned table, since in policy evaluation the estimate of Q has no influence on what is learned.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.estimators import QEM, EmpiricalMean, Estimator, TailVariance, midpoints
from qemrl.experiments.statistics import mean_interval, ratio_of_variances_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim, count_share
from qemrl.plotting.style import LOOKS, entry, level_line, light_grid
from qemrl.tabular import Categories, Learning, Quantiles, Scalar, Steps, TabularMDP, learn, toy_exponential

MEANS = (1.2, 1.0)
"""The true means of the returns of a1 and a2 at x0."""

EITHER = np.full((5, 2), 0.5)
"""Both actions, with equal chances."""

PLAIN, PAPER = "mean (QDRL)", "QEM 4, V = 1.5"
ESTIMATORS: dict[str, Estimator] = {
    PLAIN: EmpiricalMean(),
    "QEM 4, V = I": QEM(4),
    PAPER: QEM(4, TailVariance(1.5)),
    "QEM 2, V = 1.5": QEM(2, TailVariance(1.5)),
}
BASELINES = {"TD of the mean": Scalar(), "categories": Categories(0.0, 12.0)}
"""Learners of the mean without quantiles; with 51 atoms on [0, 12]."""

DECIDING = 0.05
"""The step size at which claims are decided: the one that the paper starts with in its tabular experiments."""

SETTINGS: dict[str, dict[float, tuple[int, ...]]] = {
    "smoke": {DECIDING: (32,)},
    "small": {DECIDING: (32, 128)},
    "paper": {DECIDING: (32, 128), 0.25: (32,)},
}
"""Step sizes, and numbers of quantiles for each; at the second step variance matters more."""

SEEDS = {"smoke": 100, "small": 400, "paper": 1_000}
LENGTHS = (500, 2_000, 10_000)
"""Transitions, of which three make an episode; claims are decided at the last, or over all three."""

OFTEN = 0.05
"""The rule: one wrong choice in twenty is often."""

Estimates = Float[np.ndarray, "seeds lengths 2"]
Cases = dict[tuple[float, int, str], Estimates]
"""Estimates of Q at x0 by step size, number of quantiles (0 without them) and estimator."""


@dataclass(frozen=True)
class Row:
    """What one estimator makes of both actions after one length of training."""

    quantiles: int
    step: float
    transitions: int
    estimator: str
    bias_a1: float
    """The mean of the estimates less the truth, with the ends of its interval."""
    bias_a1_low: float
    bias_a1_high: float
    bias_a2: float
    bias_a2_low: float
    bias_a2_high: float
    std_a1: float
    std_a2: float
    wrong: float
    """The share of runs in which a2 looks better, with the ends of its interval."""
    wrong_low: float
    wrong_high: float


@cache
def process() -> TabularMDP:
    """The process; the same object each time, for which learning is compiled once."""
    return toy_exponential(MEANS)


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Bias, spread and wrong choices of all estimators, over settings and lengths of training."""
    seeds = np.random.default_rng(seed).integers(2**31, size=SEEDS[scale])
    cases: Cases = {}
    for done, (step, counts) in enumerate(SETTINGS[scale].items()):
        for place, count in enumerate(counts, start=1):
            cases |= _by_quantiles(count, step, seeds)
            tick((done + place / (len(counts) + 1)) / len(SETTINGS[scale]))
        if scale != "smoke":
            cases |= _by_baselines(step, seeds)
        tick((done + 1) / len(SETTINGS[scale]))
    rows = [_row(key, length, values[:, i]) for key, values in cases.items() for i, length in enumerate(LENGTHS)]
    notes = [
        "The paper gives no discount; here it is 1, and returns at x0 have the means 1.2 and 1.",
        f"{SEEDS[scale]} runs for each setting, the same seeds in all; an episode is three transitions.",
        "The paper shows one run, and does not say how long or with which N and step; here they are varied.",
        f"Claims are decided with a step of {DECIDING}; the end is after {LENGTHS[-1]:,} transitions.",
        "Quantiles start from U(−0.5, 0.5), the mean at 0, and categories with equal probabilities, whose mean is 6.",
    ]
    if scale == "smoke":
        notes.append("This scale leaves out N = 128 and the learners without quantiles.")
    return Result([asdict(row) for row in rows], _draw(rows, cases), [*_claims(cases)], notes)


def _at_lengths(learning: Learning, seeds: Int[np.ndarray, " seeds"]) -> Float[np.ndarray, "seeds lengths 2 d"]:
    """The learned rows of x0 at each length."""
    history = learn(process(), learning, seeds, EITHER)
    return history.rows[:, np.searchsorted(history.steps, LENGTHS)].astype(np.float64)


def _by_quantiles(count: int, step: float, seeds: Int[np.ndarray, " seeds"]) -> Cases:
    learning = Learning(Quantiles(count), LENGTHS[-1], Steps((step,)), record_every=LENGTHS[0])
    rows = _at_lengths(learning, seeds)
    return {(step, count, name): rows @ each.weights(midpoints(count))[0] for name, each in ESTIMATORS.items()}


def _by_baselines(step: float, seeds: Int[np.ndarray, " seeds"]) -> Cases:
    found = {}
    for name, representation in BASELINES.items():
        learning = Learning(representation, LENGTHS[-1], Steps((step,)), record_every=LENGTHS[0])
        found[step, 0, name] = _at_lengths(learning, seeds) @ representation.mean_weights()
    return found


def wrong_choices(estimates: Float[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch"]:
    """One where a2 looks better than a1, which is the better one; otherwise zero."""
    return (estimates[..., 0] < estimates[..., 1]).astype(np.float64)


def _row(key: tuple[float, int, str], length: int, estimates: Float[np.ndarray, "seeds 2"]) -> Row:
    step, count, name = key
    first, second = (mean_interval(estimates[:, i] - mean) for i, mean in enumerate(MEANS))
    stds = estimates.std(0, ddof=1)
    wrong = count_share(wrong_choices(estimates))
    return Row(count, step, length, name, *first, *second, float(stds[0]), float(stds[1]), *wrong)


def _claims(cases: Cases) -> Iterator[Claim]:
    counts = sorted({count for _, count, _ in cases if count})
    last = {(count, name): values[:, -1] for (step, count, name), values in cases.items() if step == DECIDING}
    plain, most = last[counts[-1], PLAIN], f"the plain mean (N = {counts[-1]})"
    yield check_claim(
        "qdrl-prefers-a2",
        "Section 3.2",
        "QDRL ends up with the worse action.",
        f"in more than {OFTEN:.0%} of runs {most} prefers a2 at the end",
        count_share(wrong_choices(plain)),
        "share of runs with the wrong choice at the end",
        above=OFTEN,
    )
    for count in counts:
        yield from _comparison_claims(count, cases)
    rule, bias = (
        f"the mean over runs of the plain mean's error (N = {counts[-1]}) is",
        "mean error of the plain mean of quantiles",
    )
    under, over = "QDRL's estimate of a1's mean is too low.", "QDRL's estimate of a2's mean is too high."
    first, second = (mean_interval(plain[:, i] - mean) for i, mean in enumerate(MEANS))
    yield check_claim("underestimates-a1", "Section 3.2", under, f"{rule} below 0", first, bias, below=0.0)
    yield check_claim("overestimates-a2", "Section 3.2", over, f"{rule} above 0", second, bias, above=0.0)


def _comparison_claims(count: int, cases: Cases) -> Iterator[Claim]:
    plain, paper = (cases[DECIDING, count, name] for name in (PLAIN, PAPER))
    theirs, ours = (wrong_choices(estimates).mean(-1) for estimates in (plain, paper))
    yield check_claim(
        f"fewer-wrong-choices-{count}",
        "Section 3.2",
        f"QEM of order 4 with V = 1.5 prefers a2 less often than the plain mean does (N = {count}).",
        "the share of wrong choices over all lengths, QEM less plain mean, paired by run, is below 0",
        mean_interval(ours - theirs),
        f"difference of shares; plain mean {theirs.mean():.4f}, QEM {ours.mean():.4f}",
        below=0.0,
    )
    ratio, other = (ratio_of_variances_interval(plain[:, -1, i], paper[:, -1, i]) for i in range(2))
    yield check_claim(
        f"less-variance-{count}",
        "Section 3.2",
        f"QEM of order 4 with V = 1.5 has less variance than the plain mean (N = {count}).",
        "Var(mean) / Var(QEM) of the estimates of a1 over runs is above 1",
        ratio,
        f"Var(mean) / Var(QEM) for a1; for a2 it is {other}",
        above=1.0,
    )


def _draw(rows: list[Row], cases: Cases) -> Figure:
    """Wrong choices by length of training, and the estimates of both actions at its end."""
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    counts = sorted({count for _, count, _ in cases if count})
    axes = figure.subplots(1, len(counts) + 1, width_ratios=[*([1] * len(counts)), 1.25])
    for axis, count in zip(axes[:-1], counts, strict=True):
        _draw_wrong(axis, [row for row in rows if row.step == DECIDING and row.quantiles in (count, 0)])
        axis.set_title(f"N = {count}, step {DECIDING}")
        axis.set_ylim(0, 0.55)
    axes[0].set_ylabel("share of runs that prefer the worse action")
    last = {
        name: values[:, -1]
        for (step, count, name), values in cases.items()
        if step == DECIDING and count in (counts[-1], 0)
    }
    _draw_estimates(axes[-1], last)
    axes[-1].set_title(f"N = {counts[-1]}, step {DECIDING}, {LENGTHS[-1]:,} transitions")
    names = [*ESTIMATORS, *BASELINES]
    handles = [entry(look, name) for look, name in zip(LOOKS, names, strict=True) if name in last]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_wrong(axis: Axes, rows: list[Row]) -> None:
    for place, (look, name) in enumerate(zip(LOOKS, [*ESTIMATORS, *BASELINES], strict=True)):
        found = [row for row in rows if row.estimator == name]
        where = np.array([row.transitions for row in found]) * 1.09 ** (place - 2.5)
        axis.plot(where, [row.wrong for row in found], look.marker, ls=look.line, color=look.color, ms=3, lw=0.9)
        axis.vlines(where, [row.wrong_low for row in found], [row.wrong_high for row in found], look.color, lw=0.9)
    axis.set_xscale("log")
    axis.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    axis.minorticks_off()
    axis.set_xlabel("transitions")
    light_grid(axis, "y")


def _draw_estimates(axis: Axes, estimates: dict[str, Float[np.ndarray, "seeds 2"]]) -> None:
    looks = dict(zip([*ESTIMATORS, *BASELINES], LOOKS, strict=True))
    for action, mean in enumerate(MEANS):
        level_line(axis, mean)
        for place, (name, values) in enumerate(estimates.items()):
            where = action + 0.13 * (place - (len(estimates) - 1) / 2)
            low, high = np.quantile(values[:, action], (0.05, 0.95))
            axis.vlines(where, low, high, color=looks[name].color, lw=1)
            axis.plot(where, values[:, action].mean(), looks[name].marker, color=looks[name].color, ms=4)
    axis.set_xticks((0, 1), [f"a{i + 1} (true mean {mean})" for i, mean in enumerate(MEANS)])
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel("Q at x0: mean and 90% of runs")
