"""The numbers of a report: scores, differences, aggregates over tasks, and how soon scores were reached."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.experiments import scores
from qemrl.experiments.runs import Cell
from qemrl.experiments.scores import Profile
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.plotting.curves import Curve

GOALS = (0.5, 0.9)
"""The normalized scores for which the steps to reach them are counted."""

RESAMPLES = 2_000

Place = tuple[str, str]
"""An algorithm and a task."""


class Difference(NamedTuple):
    """The last evaluations of one algorithm minus those of another, over pairs of seeds."""

    interval: Interval
    pairs: int


@dataclass(frozen=True)
class StepsToGoal:
    """When the runs of an algorithm on a task first reached a normalized score."""

    median: float
    """The median step over runs; infinite if half of them never did."""

    reached: int
    """How many runs did."""

    runs: int


@dataclass(frozen=True)
class Aggregates:
    """What normalized scores say over tasks."""

    references: Mapping[str, tuple[float, float]]
    """The returns that stand for 0 and 1, for each task that counts."""

    statistics: Mapping[str, Mapping[str, Interval]]
    """By the name of the statistic and the algorithm."""

    runs: Mapping[str, int]
    """How many there are of each algorithm, over all tasks."""

    thresholds: Float[np.ndarray, " thresholds"]
    profiles: Mapping[str, Profile]
    differences: Mapping[Place, Difference]
    """The first algorithm minus the second, in normalized score, over pairs of seeds."""


@dataclass(frozen=True)
class Results:
    """All numbers of a report."""

    final: Mapping[Place, Interval]
    """The mean of the last evaluations."""

    average: Mapping[Place, Interval]
    """The area under the evaluation curve over its length."""

    differences: Mapping[tuple[str, str, str], Difference]
    """By algorithm, algorithm that it is compared with, and task."""

    goals: Mapping[Place, tuple[StepsToGoal, ...]]
    aggregates: Aggregates | None
    """Of the tasks on which all algorithms have been evaluated at the same last step; None if there is no such task."""

    improvement: Mapping[Place, Interval]
    """The probability that a run of the first algorithm ends above one of the second, averaged over the tasks on which
    both have the same last step."""

    left_out: Mapping[str, str]
    """Tasks that do not count in the aggregates, and why."""

    def gains(self, pairs: Mapping[str, str], env: str | None) -> dict[str, Difference]:
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


def compute_results(cells: Mapping[Place, Cell], seed: int) -> Results:
    """The numbers of all cells that have been evaluated; the seed is that of the bootstrap."""
    curves = {place: cell.curve for place, cell in cells.items() if cell.curve is not None}
    ends = {place: cell.last for place, cell in cells.items() if cell.last is not None}
    arms = list(dict.fromkeys(arm for arm, _ in ends))
    references = scores.find_references([*curves.values(), *ends.values()])
    left_out = {env: reason for env in references if (reason := _explain_left_out(ends, arms, env))}
    common = {env: reference for env, reference in references.items() if env not in left_out}
    return Results(
        final={place: mean_interval(end.final) for place, end in ends.items()},
        average={place: mean_interval(curve.average) for place, curve in curves.items()},
        differences={
            (first, second, env): _subtract(end, ends[second, env])
            for (first, env), end in ends.items()
            for second in arms
            if second != first and (second, env) in ends and scores.can_pair(end, ends[second, env])
        },
        goals={(arm, env): _find_goals(curve, references[env]) for (arm, env), curve in curves.items()},
        aggregates=_aggregate(ends, arms, common, seed) if common else None,
        improvement=_compare_pairs(ends, arms, seed),
        left_out=left_out,
    )


def _explain_left_out(curves: Mapping[Place, Curve], arms: Sequence[str], env: str) -> str:
    """Why scores of a task are not comparable between all algorithms; nothing if they are."""
    missing = [arm for arm in arms if (arm, env) not in curves]
    if missing:
        return f"not evaluated there yet: {', '.join(missing)}"
    lasts = {arm: int(curves[arm, env].steps[-1]) for arm in arms}
    if len(set(lasts.values())) == 1:
        return ""
    each = ", ".join(f"{arm} at {last:,}" for arm, last in lasts.items())
    return f"last evaluations at different steps: {each}"


def _subtract(curve: Curve, against: Curve) -> Difference:
    mine, theirs = scores.pair_curves(curve, against)
    return Difference(mean_interval(mine.final - theirs.final), len(mine.seeds))


def _find_goals(curve: Curve, ends: tuple[float, float]) -> tuple[StepsToGoal, ...]:
    low, high = ends
    found = []
    for goal in GOALS:
        steps = scores.find_steps_to(curve, low + goal * (high - low))
        found.append(StepsToGoal(float(np.median(steps)), int(np.isfinite(steps).sum()), len(steps)))
    return tuple(found)


def _aggregate(
    curves: Mapping[Place, Curve],
    arms: Sequence[str],
    references: Mapping[str, tuple[float, float]],
    seed: int,
) -> Aggregates:
    by_arm = {arm: {env: curves[arm, env] for env in references} for arm in arms}
    normal = {
        arm: scores.normalize({env: curve.final for env, curve in by_task.items()}, references)
        for arm, by_task in by_arm.items()
    }
    every = np.concatenate([values for by_task in normal.values() for values in by_task.values()])
    thresholds = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), 101)
    differences = {}
    for first, second in itertools.permutations(arms, 2):
        ours, theirs = by_arm[first], by_arm[second]
        if all(scores.can_pair(ours[env], theirs[env]) for env in references):
            interval = scores.paired_difference(ours, theirs, references, seed, RESAMPLES)
            pairs = sum(len(set(ours[env].seeds) & set(theirs[env].seeds)) for env in references)
            differences[first, second] = Difference(interval, pairs)
    return Aggregates(
        references,
        {
            name: {arm: scores.aggregate(normal[arm], name, seed, RESAMPLES) for arm in arms}
            for name in scores.STATISTICS
        },
        {arm: sum(len(values) for values in normal[arm].values()) for arm in arms},
        thresholds,
        {arm: scores.compute_profile(normal[arm], thresholds, seed, RESAMPLES) for arm in arms},
        differences,
    )


def _compare_pairs(curves: Mapping[Place, Curve], arms: Sequence[str], seed: int) -> dict[Place, Interval]:
    """The probability of improvement of each pair, from both sides."""
    by_arm = {arm: {env: curve for (other, env), curve in curves.items() if other == arm} for arm in arms}
    found: dict[Place, Interval] = {}
    for first, second in itertools.combinations(arms, 2):
        both = sorted(by_arm[first].keys() & by_arm[second].keys())
        tasks = [env for env in both if by_arm[first][env].steps[-1] == by_arm[second][env].steps[-1]]
        if not tasks:
            continue
        one, other = ({env: by_arm[arm][env].final for env in tasks} for arm in (first, second))
        interval = scores.probability_of_improvement(one, other, seed, RESAMPLES)
        found[first, second] = interval
        # The same draws, seen from the other side.
        found[second, first] = Interval(1 - interval.value, 1 - interval.high, 1 - interval.low)
    return found
