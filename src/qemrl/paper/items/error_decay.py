"""Figure 1: how the parts of the error of Q develop over training, measured instead of sketched.

The paper's equation (1) takes Q̂ − Q apart: E1, the estimate less the sampled Bellman operator applied to all estimates;
E2, the sampled operator less the true one; E3, the true operator applied to the estimates less the truth. The optimal
policy of FrozenLake is evaluated with quantile TD and Table 1's learning rates, for several numbers of quantiles, and
the parts at the start state are followed, for the plain mean and for QEM, which read the same learned quantiles.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from qemrl.estimators import QEM, BandVariance, EmpiricalMean, Estimator
from qemrl.experiments.statistics import mean_interval, ratio_of_variances_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim, scale_tick
from qemrl.paper.items.frozen_lake_study import LEARNING_RATE, find_truth
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, heading, light_grid
from qemrl.tabular import Learning, Quantiles, decompose, learn

SIZES = {
    "smoke": (20_000, {32: 6, 128: 6}),
    "small": (150_000, {32: 20, 128: 20, 512: 6}),
    "paper": (150_000, {32: 100, 128: 100, 512: 20}),
}
"""Steps of training, and the number of seeds for each number of quantiles."""

RECORD = 1_000
MIDDLE = 128
"""The number of quantiles that claims about time and about QEM are decided at: Table 1's."""

CONSTANT, VANISHED, FASTER = 0.1, 0.25, 1.0
"""The rules: a change below 10% from the middle to the end of training is "constant"; a fall to a quarter from the
smallest to the largest number of quantiles is "eliminated"; a ratio of variances above 1 is "reduced"."""

ESTIMATORS: dict[str, Estimator] = {
    "mean": EmpiricalMean(),
    "QEM": QEM(variance=BandVariance(1.5, 0.45, 0.55)),
}


class Parts(NamedTuple):
    """The parts of the error at the start, for each seed and record."""

    steps: Float[np.ndarray, " t"]
    approximation: Float[np.ndarray, "seeds t"]
    """E1 + E2."""
    parametrization: Float[np.ndarray, "seeds t"]
    """E3."""


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Evaluate the optimal policy for every number of quantiles and estimator."""
    steps, sizes = SIZES[scale]
    truth = find_truth()
    start, action = truth.mdp.start, truth.solution.policy[truth.mdp.start]
    results: dict[tuple[int, str], Parts] = {}
    share = 1 / (len(sizes) * len(ESTIMATORS))
    for size, seeds in sizes.items():
        streams = [seed * 100_003 + k for k in range(seeds)]
        for name, estimator in ESTIMATORS.items():
            learning = Learning(Quantiles(size, estimator), steps, LEARNING_RATE, record_every=RECORD)
            history = learn(
                truth.mdp, learning, streams, truth.solution.policy, scale_tick(tick, share * len(results), share)
            )
            target, sampling, parametrization = (
                part[:, :, start, action] for part in decompose(truth.mdp, history, truth.solution.policy)
            )
            results[size, name] = Parts(history.steps.astype(np.float64), target + sampling, parametrization)
    tick(1.0)
    notes = [
        "E3 of equation (1) is not the one-step projection error that Theorem 3.3 bounds: it carries what the errors "
        "at later states amount to, and so falls during training.",
        "In policy evaluation QEM changes the reading of the learned quantiles, not the quantiles.",
    ]
    return Result([*_rows(results)], _draw(results), [*_claims(results)], notes)


def _rows(results: dict[tuple[int, str], Parts]) -> Iterator[dict[str, Any]]:
    for (size, name), parts in results.items():
        for index in range(0, len(parts.steps), max(1, len(parts.steps) // 15)):
            for label, part in (("E1 + E2", parts.approximation), ("E3", parts.parametrization)):
                what = {"quantiles": size, "estimator": name, "steps": int(parts.steps[index]), "part": label}
                mean, low, high = mean_interval(part[:, index])
                std = float(part[:, index].std(ddof=1))
                yield what | {"mean": mean, "low": low, "high": high, "std over seeds": std}


def _claims(results: dict[tuple[int, str], Parts]) -> Iterator[Claim]:
    sizes = sorted({size for size, _ in results})
    plain, qem = results[MIDDLE, "mean"], results[MIDDLE, "QEM"]
    middle = len(plain.steps) // 2
    half, end = plain.parametrization[:, middle], plain.parametrization[:, -1]
    yield check_claim(
        "E3 is constant",
        "Figure 1(a)",
        "with a fixed number of quantiles the parametrization error stays the same over training",
        f"from the middle to the end of training |E3| at the start changes by less than {CONSTANT:.0%}",
        mean_interval(np.abs(end - half) / np.abs(end)),
        f"relative change of E3, N = {MIDDLE}",
        below=CONSTANT,
    )
    large, small = (results[size, "mean"].parametrization[:, -1] for size in (sizes[-1], sizes[0]))
    yield check_claim(
        "E3 vanishes with N",
        "Figure 1(b)",
        "more quantiles eliminate the parametrization error",
        f"E3 at N = {sizes[-1]} is less than {VANISHED:.0%} of that at N = {sizes[0]}",
        mean_interval(large / small[: len(large)]),
        f"E3 at N = {sizes[-1]} / E3 at N = {sizes[0]}, end of training, mean over paired seeds",
        below=VANISHED,
    )
    yield check_claim(
        "QEM reduces the variance of E1 + E2",
        "Figure 1(b), Section 4",
        "QEM reduces the variance of the approximation error",
        "Var(E1 + E2) of the mean over that of QEM is above 1",
        ratio_of_variances_interval(plain.approximation[:, -1], qem.approximation[:, -1]),
        f"ratio of variances over seeds at the end of training, N = {MIDDLE}",
        above=FASTER,
    )
    slower = np.abs(plain.approximation[:, middle:]).mean(-1) - np.abs(qem.approximation[:, middle:]).mean(-1)
    yield check_claim(
        "QEM reduces E1 + E2 faster",
        "Figure 1(b)",
        "with QEM the approximation error decreases faster",
        "the paired difference of |E1 + E2|, mean − QEM, over the second half of training is above 0",
        mean_interval(slower),
        f"paired difference of the mean |E1 + E2|, N = {MIDDLE}",
        above=0.0,
    )


def _draw(results: dict[tuple[int, str], Parts]) -> Figure:
    sizes = sorted({size for size, _ in results})
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots(2, len(sizes), sharex=True, sharey="row", squeeze=False)
    for column, size in enumerate(sizes):
        for name, look in zip(ESTIMATORS, (LOOKS[0], LOOKS[2]), strict=True):
            parts = results[size, name]
            steps = parts.steps / 1000
            fine = {"color": look.color, "ls": look.line}
            axes[0, column].plot(steps, parts.parametrization.mean(0), label=f"E3, {name}", **fine)
            axes[0, column].plot(
                steps, parts.approximation.mean(0), lw=0.8, alpha=0.7, label=f"E1 + E2, {name}", **fine
            )
            axes[1, column].plot(steps, parts.approximation.std(0, ddof=1), label=name, **fine)
        seeds = len(results[size, "mean"].approximation)
        axes[0, column].set_title(f"N = {size} quantiles, {seeds} seeds")
        axes[0, column].axhline(0, color=figures.MUTED, lw=0.6)
        axes[1, column].set(xlabel="training steps (thousands)", ylim=(0, None))
        for axis in axes[:, column]:
            light_grid(axis, "y")
    axes[0, 0].set_ylabel("mean error of Q(S)")
    axes[1, 0].set_ylabel("std of E1 + E2 over seeds")
    axes[0, -1].legend(loc="lower right")
    axes[1, -1].legend(loc="upper right")
    seeds = len(results[sizes[0], "mean"].approximation)
    heading(
        figure,
        f"Equation (1) at the start of FrozenLake 4×4, optimal policy evaluated by quantile TD, {seeds} seeds",
    )
    return figure
