"""The numbers of a report: scores, differences, aggregates over tasks, and how soon scores were reached."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.experiments import scores
from qemrl.experiments.curves import Curve
from qemrl.experiments.runs import Cell
from qemrl.experiments.statistics import mean_interval

GOALS = (0.5, 0.9)
"""The normalized scores whose first reaching is looked for."""

RESAMPLES = 2_000

Place = tuple[str, str]
"""An algorithm and a task."""


class Estimate(NamedTuple):
    """A number and the ends of its 95% interval, which is None where there are too few runs for one."""

    value: float
    low: float | None
    high: float | None
    runs: int
    """How many runs, or pairs of runs, it is of."""

    @property
    def shown(self) -> str:
        """What the interval says about the sign, in a word: `higher`, `lower`, or nothing."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return ""
        return "higher" if self.value > 0 else "lower"


@dataclass(frozen=True)
class Reached:
    """When the runs of an algorithm on a task first had a normalized score."""

    goal: float
    score: float
    """The return that it stands for."""

    median: float
    """The median step over runs; infinite if half of them never did."""

    runs: int
    """How many of them did."""

    of: int


@dataclass(frozen=True)
class Profile:
    """The share of runs above each normalized score, averaged over tasks."""

    share: Float[np.ndarray, " thresholds"]
    low: Float[np.ndarray, " thresholds"] | None
    high: Float[np.ndarray, " thresholds"] | None


@dataclass(frozen=True)
class Aggregates:
    """What normalized scores say over tasks."""

    references: Mapping[str, tuple[float, float]]
    """The returns that stand for 0 and 1, for each task that counts."""

    statistics: Mapping[str, Mapping[str, Estimate]]
    """By the name of the statistic and the algorithm."""

    thresholds: Float[np.ndarray, " thresholds"]
    profiles: Mapping[str, Profile]
    differences: Mapping[Place, Estimate]
    """The first algorithm minus the second, in normalized score, over pairs of seeds."""


@dataclass(frozen=True)
class Results:
    """All numbers of a report."""

    final: Mapping[Place, Estimate]
    """The mean of the last evaluations."""

    average: Mapping[Place, Estimate]
    """The area under the evaluation curve over its length."""

    differences: Mapping[tuple[str, str, str], Estimate]
    """By algorithm, algorithm that it is compared with, and task: of the last evaluations, over pairs of seeds."""

    reached: Mapping[Place, tuple[Reached, ...]]
    aggregates: Aggregates | None
    """Of the tasks on which all algorithms have been evaluated at the same last step; None if there is no such task."""

    improvement: Mapping[Place, Estimate]
    """The probability that a run of the first algorithm ends above one of the second, averaged over the tasks on which
    both have the same last step."""

    left_out: Mapping[str, str]
    """Tasks that do not count in the aggregates, and why."""

    def gains(self, pairs: Mapping[str, str], env: str | None) -> dict[str, Estimate]:
        """The paired differences of algorithms from those they are paired with, as far as there are any.

        Args:
            pairs: Algorithms, and those that they are compared with.
            env: The task; None for the normalized score over tasks.
        """
        overall = self.aggregates.differences if self.aggregates else {}
        found = {
            arm: overall.get((arm, against)) if env is None else self.differences.get((arm, against, env))
            for arm, against in pairs.items()
        }
        return {arm: each for arm, each in found.items() if each is not None}


def results(cells: Mapping[Place, Cell], seed: int) -> Results:
    """The numbers of all cells that have been evaluated; the seed is that of the bootstrap."""
    curves = {place: cell.curve for place, cell in cells.items() if cell.curve is not None}
    arms = list(dict.fromkeys(arm for arm, _ in curves))
    references = scores.references(list(curves.values())) if curves else {}
    differences = {
        (first, second, env): difference
        for (first, env), curve in curves.items()
        for second in arms
        if second != first and (second, env) in curves
        if (difference := _paired(curve, curves[second, env])) is not None
    }
    left_out = {env: reason for env in references if (reason := _not_comparable(curves, arms, env))}
    common = {env: ends for env, ends in references.items() if env not in left_out}
    return Results(
        final={place: estimate(curve.final) for place, curve in curves.items()},
        average={place: estimate(curve.average) for place, curve in curves.items()},
        differences=differences,
        reached={(arm, env): _reached(curve, references[env]) for (arm, env), curve in curves.items()},
        aggregates=_aggregates(curves, arms, common, seed) if common else None,
        improvement=_improvement(curves, arms, seed),
        left_out=left_out,
    )


def estimate(samples: Float[np.ndarray, " runs"]) -> Estimate:
    """The mean of independent runs, with Student's interval if there are at least two."""
    if len(samples) < 2:
        return Estimate(float(samples.mean()), None, None, len(samples))
    return Estimate(*mean_interval(samples), len(samples))


def _not_comparable(curves: Mapping[Place, Curve], arms: Sequence[str], env: str) -> str:
    """Why scores of a task are not comparable between all algorithms; nothing if they are."""
    missing = [arm for arm in arms if (arm, env) not in curves]
    if missing:
        return f"not evaluated there yet: {', '.join(missing)}"
    lasts = {arm: int(curves[arm, env].steps[-1]) for arm in arms}
    if len(set(lasts.values())) == 1:
        return ""
    each = ", ".join(f"{arm} at {last:,}" for arm, last in lasts.items())
    return f"last evaluations at different steps: {each}"


def _paired(curve: Curve, against: Curve) -> Estimate | None:
    """The difference of the last evaluations; None if there is no pair of seeds, or their last steps differ."""
    seeds = [seed for seed in curve.seeds if seed in against.seeds]
    if not seeds or curve.steps[-1] != against.steps[-1]:
        return None
    mine, theirs = ([one.seeds.index(seed) for seed in seeds] for one in (curve, against))
    return estimate(curve.final[mine] - against.final[theirs])


def _reached(curve: Curve, ends: tuple[float, float]) -> tuple[Reached, ...]:
    low, high = ends
    found = []
    for goal in GOALS:
        score = low + goal * (high - low)
        steps = scores.steps_to(curve.steps, curve.returns, score)
        hits = int(np.isfinite(steps).sum())
        found.append(Reached(goal, score, float(np.median(steps)), hits, len(steps)))
    return tuple(found)


def _aggregates(
    curves: Mapping[Place, Curve],
    arms: Sequence[str],
    references: Mapping[str, tuple[float, float]],
    seed: int,
) -> Aggregates:
    raw = {arm: {env: curves[arm, env].final for env in references} for arm in arms}
    normal = scores.normalized(raw, references)
    every = np.concatenate([values for by_task in normal.values() for values in by_task.values()])
    thresholds = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), 101)
    return Aggregates(
        references,
        {name: {arm: _aggregate(normal[arm], name, seed) for arm in arms} for name in scores.STATISTICS},
        thresholds,
        {arm: _profile(normal[arm], thresholds, seed) for arm in arms},
        _normal_differences(curves, arms, references, seed),
    )


def _several(*arms: scores.Scores) -> bool:
    """Whether runs can be redrawn: the only run of a task shows no uncertainty."""
    return all(len(values) > 1 for by_task in arms for values in by_task.values())


def _aggregate(normal: scores.Scores, statistic: str, seed: int) -> Estimate:
    runs = sum(len(values) for values in normal.values())
    if _several(normal):
        return Estimate(*scores.aggregate(normal, statistic, seed, RESAMPLES), runs)
    return Estimate(scores.STATISTICS[statistic](normal), None, None, runs)


def _profile(normal: scores.Scores, thresholds: Float[np.ndarray, " thresholds"], seed: int) -> Profile:
    if _several(normal):
        return Profile(*scores.profile(normal, thresholds, seed, RESAMPLES))
    shares = [(values[:, None] > thresholds[None]).mean(0) for values in normal.values()]
    return Profile(np.mean(shares, axis=0), None, None)


def _normal_differences(
    curves: Mapping[Place, Curve], arms: Sequence[str], references: Mapping[str, tuple[float, float]], seed: int
) -> dict[Place, Estimate]:
    by_seed: dict[str, dict[str, dict[int, float]]] = {arm: {} for arm in arms}
    for arm in arms:
        for env, (low, high) in references.items():
            curve = curves[arm, env]
            normal = ((curve.final - low) / (high - low)).tolist()
            by_seed[arm][env] = dict(zip(curve.seeds, normal, strict=True))
    found = {}
    for first, second in itertools.permutations(arms, 2):
        both = {env: sorted(by_seed[first][env].keys() & by_seed[second][env].keys()) for env in references}
        counts = [len(seeds) for seeds in both.values()]
        if min(counts) > 1:
            interval = scores.paired_difference(by_seed[first], by_seed[second], seed, RESAMPLES)
            found[first, second] = Estimate(*interval, sum(counts))
        elif min(counts) == 1:
            means = [np.mean([by_seed[first][env][s] - by_seed[second][env][s] for s in both[env]]) for env in both]
            found[first, second] = Estimate(float(np.mean(means)), None, None, sum(counts))
    return found


def _improvement(curves: Mapping[Place, Curve], arms: Sequence[str], seed: int) -> dict[Place, Estimate]:
    by_arm = {arm: {env: curve for (other, env), curve in curves.items() if other == arm} for arm in arms}
    found: dict[Place, Estimate] = {}
    for first, second in itertools.combinations(arms, 2):
        both = sorted(by_arm[first].keys() & by_arm[second].keys())
        tasks = [env for env in both if by_arm[first][env].steps[-1] == by_arm[second][env].steps[-1]]
        if not tasks:
            continue
        one, other = ({env: by_arm[arm][env].final for env in tasks} for arm in (first, second))
        runs = sum(len(values) for by_task in (one, other) for values in by_task.values())
        if _several(one, other):
            value, low, high = scores.probability_of_improvement(one, other, seed, RESAMPLES)
            found[first, second] = Estimate(value, low, high, runs)
            # The same draws, seen from the other side.
            found[second, first] = Estimate(1 - value, 1 - high, 1 - low, runs)
        else:
            value = float(np.mean([_wins(one[env], other[env]) for env in tasks]))
            found[first, second] = Estimate(value, None, None, runs)
            found[second, first] = Estimate(1 - value, None, None, runs)
    return found


def _wins(ours: Float[np.ndarray, " ours"], theirs: Float[np.ndarray, " theirs"]) -> float:
    """The share of pairs that the first wins, ties counting half."""
    gaps = ours[:, None] - theirs[None]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)
