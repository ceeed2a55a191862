"""Is QEM's variance the variance of the return? State by state, against the truth, beside the plain one and DLTV's.

Section 5.3 explores with a variance that is read off the quantiles, and holds that QEM's is more accurate than DLTV's.
Three tasks have a truth to compare them with: FrozenLake and the chain, exactly, and a trained agent's game, by
playing on from stored states.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import special, stats

from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, interval_columns, judge, scale_tick
from qemrl.paper.items.chain import LATE, STATES, STEP, process
from qemrl.paper.items.frozen_lake_study import LEARNING_RATE, find_truth
from qemrl.paper.items.return_variance_study import (
    NEGLIGIBLE,
    QUANTITIES,
    Table,
    configure_agent,
    estimate_stds,
    find_places,
    greedy_quantiles,
    learn_quantiles,
    log_std_error,
    return_variances,
    sample_greedy_returns,
    train_player,
)
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, heading
from qemrl.tabular import Learning, Quantiles, Steps, TabularMDP

GAME = "minatar/breakout"


@dataclass(frozen=True)
class Size:
    """How much is done."""

    quantiles: tuple[int, ...]
    """Of the small processes; the claims are about the last."""
    seeds: int
    lake_steps: int
    chain_steps: int
    agent_steps: int
    states: int
    """Of the game."""
    rollouts: int
    """From each of these states."""


PLAYED = 200
"""Steps of greedy play, in as many games side by side as states are wanted, that they are drawn from."""

SIZES = {
    "smoke": Size((8,), 3, 5_000, 5_000, 0, 60, 16),
    "small": Size((32,), 10, 150_000, LATE, 60_000, 120, 64),
    "paper": Size((32, 128), 100, 150_000, LATE, 150_000, 200, 512),
}

SMALL, FLOOR, LEAST = 0.05, 1e-3, 5
"""States count whose true standard deviation is above the first; estimates below the second are taken for it; where
fewer states count than the third, that many of the largest are shown, and nothing is decided."""

RESAMPLES = 1_000

Stds = Float[np.ndarray, "batch states"]
Measure = Callable[[Stds, dict[str, Stds]], Float[np.ndarray, " batch"]]
"""From true and estimated standard deviations to a number."""


@dataclass(frozen=True)
class Study:
    """True and estimated standard deviations on one task, of the states that count."""

    task: str
    quantiles: int
    truth: Float[np.ndarray, " states"]
    estimates: dict[str, Float[np.ndarray, "runs states"]]

    @staticmethod
    def from_quantiles(task: str, values: Float[np.ndarray, "runs s n"], truth: Float[np.ndarray, " s"]) -> "Study":
        """From the quantiles of every state."""
        counted = np.flatnonzero(truth > SMALL)
        if len(counted) < LEAST:
            counted = np.sort(np.argsort(-truth, kind="stable")[:LEAST])
        return Study(task, values.shape[-1], truth[counted], estimate_stds(values[:, counted]))

    @property
    def enough(self) -> bool:
        """Whether there are states enough to judge by."""
        return int((self.truth > SMALL).sum()) >= LEAST

    @property
    def runs(self) -> int:
        """The number of seeds that learned; one for the agent."""
        return len(self.estimates["plain"])

    def interval(self, measure: Measure) -> Interval:
        """A measure with its interval: over runs; of one run, with the error of a bootstrap over its states."""
        if self.runs > 1:
            return mean_interval(measure(np.tile(self.truth, (self.runs, 1)), self.estimates))
        value = float(measure(self.truth[None], self.estimates)[0])
        picks = np.random.default_rng(0).integers(len(self.truth), size=(RESAMPLES, len(self.truth)))
        drawn = measure(self.truth[picks], {name: each[0, picks] for name, each in self.estimates.items()})
        reach = float(special.ndtri(0.975) * drawn.std())
        return Interval(value, value - reach, value + reach)


def log_ratios(truth: Stds, estimate: Stds) -> Stds:
    """The logarithms of estimate over truth."""
    return np.log(np.maximum(estimate, FLOOR) / np.maximum(truth, FLOOR))


def bias(truth: Stds, estimate: Stds) -> Float[np.ndarray, " batch"]:
    """The mean logarithm of estimate over truth; its exponential is the geometric mean ratio."""
    return log_ratios(truth, estimate).mean(-1)


def error(truth: Stds, estimate: Stds) -> Float[np.ndarray, " batch"]:
    """The root mean square of the logarithm of estimate over truth."""
    return np.sqrt((log_ratios(truth, estimate) ** 2).mean(-1))


def rank_correlation(truth: Stds, estimate: Stds) -> Float[np.ndarray, " batch"]:
    """Spearman's; zero where either is constant."""
    ranks = [stats.rankdata(each, axis=-1) - (each.shape[-1] + 1) / 2 for each in (truth, estimate)]
    scale = np.sqrt((ranks[0] ** 2).sum(-1) * (ranks[1] ** 2).sum(-1))
    return (ranks[0] * ranks[1]).sum(-1) / np.where(scale > 0, scale, 1.0)


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Both processes with every number of quantiles, and the agent."""
    size = SIZES[scale]
    seeds = np.random.default_rng(seed).integers(2**31, size=size.seeds)
    lake, row = find_truth(), process()
    processes: dict[str, tuple[TabularMDP, np.ndarray, int, Steps]] = {
        "FrozenLake": (lake.mdp, lake.solution.policy, size.lake_steps, LEARNING_RATE),
        "chain": (row, np.zeros(STATES, np.int64), size.chain_steps, Steps((STEP,))),
    }
    studies, share = [], 0.2 / (len(processes) * len(size.quantiles))
    for (task, (mdp, policy, steps, rate)), count in product(processes.items(), size.quantiles):
        truth = np.sqrt(np.maximum(return_variances(mdp, policy), 0))
        learning = Learning(Quantiles(count), steps, rate, record_every=steps // 5)
        values = learn_quantiles(mdp, policy, learning, seeds, scale_tick(tick, share * len(studies), share))
        studies.append(Study.from_quantiles(task, values, truth))
    study, notes = study_agent(size, seed, scale_tick(tick, 0.2, 0.8))
    studies.append(study)
    tick(1.0)
    finest = list({study.task: study for study in studies}.values())  # of each task that with the most quantiles
    return Result([*_rows(studies)], _draw(finest), [*_claims(finest)], [*_notes(size), *notes])


def study_agent(size: Size, seed: int, tick: Tick) -> tuple[Study, list[str]]:
    """Train an agent, and play on from states that it comes through."""
    config = configure_agent(GAME, size.agent_steps, seed * 1_000)
    player = train_player(config, size.agent_steps > 0, scale_tick(tick, 0.0, 0.4))
    table = Table(player, size.states, size.rollouts)
    place_key, return_key = jax.random.split(jax.random.key(seed))
    places, distinct = find_places(table, place_key, PLAYED, np.random.default_rng(seed))
    returns = sample_greedy_returns(table, places, return_key, scale_tick(tick, 0.4, 0.6))[:distinct]
    truth = returns.std(-1, ddof=1)
    study = Study.from_quantiles("MinAtar", greedy_quantiles(player, places.observations)[None, :distinct], truth)
    counted = truth > SMALL
    noise = float(np.sqrt((log_std_error(returns[counted]) ** 2).mean())) if counted.any() else 0.0
    notes = [
        f"{GAME}: the preset qr-dqn after {size.agent_steps:,} steps, with an ε that falls over a quarter of the run. "
        f"{distinct} states, drawn from all that look different in {PLAYED} steps of {size.states} games of the greedy "
        f"policy, however often it comes through them; {int(counted.sum())} count. Their mean return is "
        f"{returns.mean():.2f}.",
        "Changed after runs at small scale were seen, before any at paper scale: states are distinct (at first each "
        f"game gave one, and many were the same), fewer than {LEAST} of them judge nothing, and the small scale trains "
        "for 60,000 steps (after 20,000 two states counted). What is compared, and with which threshold, is as it was.",
        f"Their truth is from {size.rollouts} rollouts each, up to where γ^t is below {NEGLIGIBLE:g} (γ = "
        f"{player.discount:g}), and known up to {noise:.3f} in the logarithm (root mean square), which is part of all "
        "errors alike. There is one agent: its intervals are over states, and say nothing of other agents.",
    ]
    return study, notes


def _notes(size: Size) -> list[str]:
    counts = " and ".join(map(str, size.quantiles))
    return [
        f"States count whose true standard deviation is above {SMALL}; estimates below {FLOOR:g} are taken for it.",
        f"FrozenLake under its optimal policy, {size.lake_steps:,} transitions; the chain, {size.chain_steps:,}. "
        f"{size.seeds} seeds, N = {counts}; claims and figure are about the last. The truth solves a linear system.",
        "On the chain true standard deviations differ by 5% from end to end, and a state learns from the next: ranks "
        "there say in which order states have learned.",
        "DLTV's variance is ½ E(Z − m)₊² with the median m, for a symmetric distribution a quarter of the variance; ×4 "
        "repairs that. QEM has order 4 and V = I. c₁ is the coefficient of the scale, which the paper calls the "
        "standard deviation; without c₁ the variance is the whole of the fitted curve.",
        "The paper also means that learning with QEM makes quantiles better. Here all quantities see the same ones, "
        "learned without it.",
    ]


def _rows(studies: list[Study]) -> Iterator[dict[str, Any]]:
    for study, name in product(studies, QUANTITIES):
        log_ratio = study.interval(lambda t, e, n=name: bias(t, e[n]))
        correlation = study.interval(lambda t, e, n=name: rank_correlation(t, e[n]))
        measures = {
            "geometric mean ratio": Interval(*np.exp(log_ratio)),
            "rms log error": study.interval(lambda t, e, n=name: error(t, e[n])),
            "rank correlation": Interval(*np.clip(correlation, -1, 1)),
        }
        what = {"task": study.task, "quantiles": study.quantiles, "states": len(study.truth), "runs": study.runs}
        for measure, interval in measures.items():
            yield what | {"quantity": name, "measure": measure} | interval_columns(interval)


COMPARISONS = (
    ("QEM c₁", "DLTV ×4", "Section 5.3"),
    ("QEM c₁", "plain", "Section 6"),
    ("QEM", "DLTV ×4", "ours"),
    ("QEM", "plain", "ours"),
)
"""Who is claimed to err less than whom, and where."""


def _claims(studies: list[Study]) -> Iterator[Claim]:
    for study, (one, other, where) in product(studies, COMPARISONS):
        gain = study.interval(lambda t, e, a=one, b=other: error(t, e[b]) - error(t, e[a]))
        errors = [f"{name} {study.interval(lambda t, e, n=name: error(t, e[n])).value:.3f}" for name in (other, one)]
        yield Claim(
            f"{study.task}: {one} against {other}",
            where,
            f"{one} is closer to the true standard deviation of the return than {other} on {study.task}",
            "the root-mean-square logarithm of estimate / truth over states, of the other less its own, is "
            f"above 0; depends where fewer than {LEAST} states count",
            gain,
            f"difference of the errors; {', '.join(errors)}",
            judge(gain, above=0.0) if study.enough else "depends",
        )


SHOWN = {"DLTV ×4": LOOKS[3], "plain": LOOKS[0], "QEM c₁": LOOKS[2], "QEM": LOOKS[1]}
"""What the figure shows, from back to front."""


def _draw(studies: list[Study]) -> Figure:
    """The estimates against the truth, a panel for each task."""
    figure = Figure(figsize=(7.8, 3.4), layout="constrained")
    axes = figure.subplots(1, len(studies))
    for axis, study in zip(axes, studies, strict=True):
        _draw_panel(axis, study)
        axis.set_xlabel("true standard deviation")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, handletextpad=0.1, columnspacing=1)
    axes[0].set_ylabel("estimated standard deviation")
    heading(figure, "Standard deviation of the return by state; in brackets: root-mean-square log error")
    return figure


def _draw_panel(axis: Axes, study: Study) -> None:
    truth = np.maximum(study.truth, FLOOR)
    many = len(truth) > 30
    size, alpha = (3.0, 0.6) if many else (4.0, 1.0)
    for place, (name, look) in enumerate(SHOWN.items()):
        values = np.maximum(study.estimates[name], FLOOR)
        label = f"{name} ({study.interval(lambda t, e, n=name: error(t, e[n])).value:.2f})"
        if study.runs > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            axis.vlines(truth, low, high, color=look.color, lw=0.8, alpha=0.7, zorder=2 + place)
        middle = np.exp(np.log(values).mean(0))
        style = {"color": look.color, "ms": size, "mew": 0, "alpha": alpha, "label": label, "zorder": 2 + place}
        axis.plot(truth, middle, look.marker, **style)
    axis.set(xscale="log", yscale="log", title=f"{study.task}, N = {study.quantiles}")
    ends = np.array(axis.get_xlim())
    axis.plot(ends, ends, color=figures.MUTED, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axis.set_xlim(*ends)
    for side in (axis.xaxis, axis.yaxis):
        _label_ticks(side, *side.get_view_interval())


def _label_ticks(side: Axis, low: float, high: float) -> None:
    """Round numbers along a logarithmic axis, however short it is."""
    if high < 4 * low:
        ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 3) if high < 300 * low else (1,)
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    side.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    side.set_ticks([], minor=True)
