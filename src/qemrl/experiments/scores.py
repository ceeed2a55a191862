"""Scores of many runs: aggregates over tasks, profiles and comparisons of arms, each with its bootstrap interval.

A *task* is an environment, a *run* one seed of an arm on it, and its *score* any number that is better when it is
larger: the final return, or the area under the learning curve. All intervals come from one stratified bootstrap: the
runs of each task are redrawn with replacement among themselves, the tasks stay as they are, and the interval reaches
from the 2.5th to the 97.5th percentile of what the statistic gives; where a task has a single run, which shows nothing
of its uncertainty, it is unbounded. Such intervals say how another set of seeds would have turned out, not how other
tasks would have. With few runs they are too narrow, as runs spread less around their own mean than around the truth:
on five tasks with normal scores, they cover the truth in about 90 of 100 cases with five runs each and in 93 with ten.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.experiments.statistics import Interval
from qemrl.plotting.curves import Curve

# A name with an underscore is not compared by the type checks: tasks and arms may have different numbers of runs.
Scores = Mapping[str, Float[np.ndarray, " _runs"]]
"""The scores of an arm: for each task, the score of each run."""

Samples = Mapping[str, Float[np.ndarray, "sets _runs"]]
"""Many sets of scores at once: for each task, a row for each set."""

LEAST_RESAMPLES = 40
"""With fewer, no resample lies beyond the 2.5th percentile."""


class Profile(NamedTuple):
    """The share of runs above each of several thresholds, with the ends of the 95% interval at each."""

    share: Float[np.ndarray, " t"]
    low: Float[np.ndarray, " t"]
    high: Float[np.ndarray, " t"]

    @property
    def bounded(self) -> bool:
        """Whether the uncertainty is known."""
        return bool(np.isfinite(self.low).all())


def _interquartile_mean(samples: Samples) -> Float[np.ndarray, " sets"]:
    """The mean of the middle half of all runs: a quarter, rounded down, is left out at either end.

    The runs of all tasks are pooled, so that tasks with more runs weigh more.
    """
    values = np.concatenate(list(samples.values()), axis=1)
    count = values.shape[1]
    return np.sort(values, axis=1)[:, count // 4 : count - count // 4].mean(1)


def _task_means(samples: Samples) -> Float[np.ndarray, "sets tasks"]:
    return np.stack([runs.mean(1) for runs in samples.values()], axis=1)


STATISTICS: Mapping[str, Callable[[Samples], Float[np.ndarray, " sets"]]] = {
    "IQM": _interquartile_mean,
    "mean": lambda samples: _task_means(samples).mean(1),
    "median": lambda samples: np.median(_task_means(samples), axis=1),
}
"""Aggregates of an arm's scores: the interquartile mean of all runs; the mean and the median of the tasks' means."""


def aggregate(scores: Scores, statistic: str, seed: int, resamples: int = 2000) -> Interval:
    """A statistic of an arm's scores with its bootstrap interval.

    Args:
        scores: The scores of each task.
        statistic: A name in `STATISTICS`.
        seed: Seed of the bootstrap; a task's draws depend on it and on the task's name, not on the other tasks.
        resamples: How often the runs are redrawn.

    Raises:
        ValueError: The name is unknown, or there are no scores.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"there is no statistic {statistic!r}; choose one of {', '.join(STATISTICS)}")
    return Interval(*_bootstrap((scores,), STATISTICS[statistic], seed, resamples).tolist())


def compute_profile(scores: Scores, thresholds: Float[np.ndarray, " t"], seed: int, resamples: int = 2000) -> Profile:
    """The share of a task's runs that score more than each threshold, as the mean over tasks, with its intervals.

    The intervals hold at each threshold for itself, not at all of them together.
    """
    if not len(thresholds) or not np.isfinite(thresholds).all():
        raise ValueError(f"thresholds must be a list of finite numbers, got {thresholds}")

    def shares(samples: Samples) -> Float[np.ndarray, "sets t"]:
        return np.mean([(runs[:, :, None] > thresholds).mean(1) for runs in samples.values()], axis=0)

    return Profile(*_bootstrap((scores,), shares, seed, resamples))


def probability_of_improvement(first: Scores, second: Scores, seed: int, resamples: int = 2000) -> Interval:
    """How likely a run of the first arm is to beat one of the second on a task, as the mean over the tasks of both.

    Ties count half, so one half says that neither is better. Both arms are redrawn, independently of each other.

    Raises:
        ValueError: The arms have no task in common.
    """
    tasks = sorted(first.keys() & second.keys())

    def wins(firsts: Samples, seconds: Samples) -> Float[np.ndarray, " sets"]:
        shares = []
        for task in tasks:
            ours, theirs = firsts[task][:, :, None], seconds[task][:, None, :]
            shares.append(((ours > theirs).mean((1, 2)) + (ours >= theirs).mean((1, 2))) / 2)
        return np.mean(shares, axis=0)

    arms = tuple({task: arm[task] for task in tasks} for arm in (first, second))
    return Interval(*_bootstrap(arms, wins, seed, resamples).tolist())


def can_pair(curve: Curve, against: Curve) -> bool:
    """Whether the curves have a seed in common and were last evaluated at the same step."""
    return bool(set(curve.seeds) & set(against.seeds)) and bool(curve.steps[-1] == against.steps[-1])


def pair_curves(curve: Curve, against: Curve) -> tuple[Curve, Curve]:
    """Both curves with only the seeds that they have in common, in the same order: their rows are pairs.

    Raises:
        ValueError: They have no seed in common, or were not last evaluated at the same step.
    """
    if not can_pair(curve, against):
        raise ValueError(
            f"{curve.label} (seeds {curve.seeds}, {curve.steps[-1]} steps) and {against.label} (seeds "
            f"{against.seeds}, {against.steps[-1]} steps) cannot be paired: give both the same seeds and steps"
        )
    seeds = tuple(seed for seed in curve.seeds if seed in against.seeds)
    mine, theirs = (
        replace(one, returns=one.returns[[one.seeds.index(seed) for seed in seeds]], seeds=seeds, band=None)
        for one in (curve, against)
    )
    return mine, theirs


def paired_difference(
    first: Mapping[str, Curve],
    second: Mapping[str, Curve],
    references: Mapping[str, tuple[float, float]],
    seed: int,
    resamples: int = 2000,
) -> Interval:
    """By how much the first arm ends above the second with the same seed, as the mean over tasks of normalized scores.

    Args:
        first: The curve of each task. Seeds that only one of the arms has are left out.
        second: The same for the other arm.
        references: For each task that counts, the scores that are normalized to zero and one.
        seed: Seed of the bootstrap, which redraws pairs.
        resamples: How often they are redrawn.

    Raises:
        ValueError: The curves of a task cannot be paired.
    """
    differences = {}
    for task, (low, high) in references.items():
        mine, theirs = pair_curves(first[task], second[task])
        differences[task] = (mine.final - theirs.final) / (high - low)
    return aggregate(differences, "mean", seed, resamples)


def normalize(scores: Scores, references: Mapping[str, tuple[float, float]]) -> Scores:
    """The scores on the scale on which the references of their task, see `find_references`, are zero and one."""
    return {
        task: (runs - references[task][0]) / (references[task][1] - references[task][0])
        for task, runs in scores.items()
    }


def find_references(curves: Sequence[Curve]) -> dict[str, tuple[float, float]]:
    """For each task the scores that count as zero and one when arms are compared among themselves.

    Zero is the lowest evaluation that any arm had at any step, one is the last evaluation of the best arm, both as
    means over seeds. Where nothing was ever better than the lowest, one is the lowest plus 1: all scores of that task
    keep their unit.
    """
    means: dict[str, list[np.ndarray]] = {}
    for curve in curves:
        means.setdefault(curve.env, []).append(curve.returns.mean(0))
    found = {}
    for task, by_arm in means.items():
        low = float(min(mean.min() for mean in by_arm))
        high = float(max(mean[-1] for mean in by_arm))
        found[task] = (low, high if high > low else low + 1.0)
    return found


def find_steps_to(curve: Curve, score: float) -> Float[np.ndarray, " seeds"]:
    """The step of each seed's first evaluation at or above the score, infinity where there is none."""
    reached = curve.returns >= score
    return np.where(reached.any(1), curve.steps[reached.argmax(1)], np.inf)


def _bootstrap(
    arms: tuple[Scores, ...], statistic: Callable[..., np.ndarray], seed: int, resamples: int
) -> Float[np.ndarray, "parts=3 *each"]:
    """A statistic of the arms' scores, and the low and the high end of its percentile interval.

    Args:
        arms: The scores that the statistic needs, one mapping for each of its arguments.
        statistic: Takes `Samples` for each arm and returns an array with a row for each set.
        seed: Seed of the draws.
        resamples: How many sets are drawn.
    """
    if seed < 0:
        raise ValueError(f"the seed of a bootstrap cannot be {seed}; choose 0 or more")
    if resamples < LEAST_RESAMPLES:
        raise ValueError(f"{resamples} resamples do not give a 95% interval; draw {LEAST_RESAMPLES} or more")
    known = [_check(scores) for scores in arms]
    value = statistic(*({task: runs[None] for task, runs in scores.items()} for scores in known))[0]
    if any(len(runs) == 1 for scores in known for runs in scores.values()):
        return np.stack([value, np.full_like(value, -np.inf), np.full_like(value, np.inf)])
    drawn = statistic(*(_redraw(scores, seed, place, resamples) for place, scores in enumerate(known)))
    return np.stack([value, *np.quantile(drawn, (0.025, 0.975), axis=0)])


def _redraw(scores: Scores, seed: int, place: int, resamples: int) -> Samples:
    """Many sets of scores, each with as many runs of each task as there are, drawn from these with replacement."""
    drawn = {}
    for task, runs in scores.items():
        # The place of the arm is part of the key, so that two arms are not redrawn alike.
        key = np.random.SeedSequence(seed, spawn_key=(place, *task.encode()))
        drawn[task] = runs[np.random.default_rng(key).integers(len(runs), size=(resamples, len(runs)))]
    return drawn


def _check(scores: Scores) -> Scores:
    """The same scores, known to be usable, in the order of the tasks' names: sums depend on the order, a little."""
    if not scores:
        raise ValueError("there are no scores; give those of at least one task")
    for task, runs in scores.items():
        if not len(runs):
            raise ValueError(f"{task} has no runs; leave it out")
        if not np.isfinite(runs).all():
            raise ValueError(f"{task} has scores that are not finite: {runs}; leave out the runs that failed")
    return {task: np.asarray(scores[task], np.float64) for task in sorted(scores)}
