"""Appendix E.2 on tasks that run anywhere: which v in the tails is best, and does it matter?

The paper compares values of v in QEM-DQN on Atari and in QEM-DSAC on MuJoCo, and settles on 1.5 and 1.2. Here are the
same agents on small tasks, beside the same agents with the plain mean. All arms have the same seeds, so that they are
compared seed by seed.
"""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, judge
from qemrl.paper.drawing import heading, level_line, light_grid
from qemrl.paper.items.v_tuning_study import PLAIN, TASKS, Curves, Task, chance_of_range, distance, learn
from qemrl.plotting import style as figures

SIGNIFICANT = 0.05

Outcomes = dict[tuple[str, str], Curves]
"""By environment and arm."""


def run(scale: Scale, seed: int, tick: Callable[[float], None]) -> Result:
    """Train every arm on every task."""
    tasks = TASKS[scale]
    whole = sum(len(task.arms) for task in tasks)
    outcomes: Outcomes = {}
    for task in tasks:
        for arm in task.arms:
            begun = len(outcomes)
            outcomes[task.env, arm] = learn(
                task, arm, seed * 1_000, lambda share, begun=begun: tick((begun + share) / whole)
            )
    tick(1.0)
    claims = [claim for task in tasks for claim in _claims(task, outcomes, seed)]
    return Result(_rows(tasks, outcomes, seed * 1_000), _draw(tasks, outcomes), claims, _notes(tasks))


def _notes(tasks: tuple[Task, ...]) -> list[str]:
    sizes = "; ".join(f"{task.env}: {task.steps:,} steps, {task.num_seeds} seeds" for task in tasks)
    notes = [
        f"{sizes}. An evaluation of 20 episodes after each 25th of the run. The score of a seed is its mean over the "
        "last fifth of the run, its area the mean over the whole run.",
        "Steps and seeds of the scales small and paper were set from the speed that was measured, to fill about half "
        "an hour of one core at the scale paper, before any score of these scales was seen, and so were the rules. The "
        "only change after that was from 60,000 to 50,000 steps of Breakout at the scale paper, for time, still before "
        "any such score. Breakout is cut short: the preset's own run has 1,000,000 steps.",
        "Arms differ in the estimator alone: order 4, tails of 0.1. Settings are those of the presets, but for ε, "
        "which falls over the same share of the run as there, and the cart pole's layers, which are small "
        f"({_layers(tasks)} units) to leave time for more seeds.",
        "The p value is that of the range of the means of the values of v (the plain mean is not among them), from "
        "20,000 shuffles of the arms within each seed.",
    ]
    for task in tasks:
        far = ", ".join(f"{distance(arm, task.num_quantiles):.1%} with v = {arm}" for arm in task.arms if arm != PLAIN)
        notes.append(
            f"{task.env}: of {task.num_quantiles} weights, the one farthest from 1/N differs from it by {far}."
        )
    return notes


def _layers(tasks: tuple[Task, ...]) -> str:
    return " and ".join(str(width) for task in tasks for width in task.widths or ())


def _scores(task: Task, outcomes: Outcomes) -> dict[str, Float[np.ndarray, " seeds"]]:
    return {arm: outcomes[task.env, arm].score for arm in task.arms}


def _rows(tasks: tuple[Task, ...], outcomes: Outcomes, first: int) -> list[dict[str, Any]]:
    """The score and the area of each seed, and the evaluations that they come from."""
    rows = []
    for task in tasks:
        for arm in task.arms:
            curves = outcomes[task.env, arm]
            steps = (task.steps, task.steps, *curves.marks.tolist())
            measures = ("score", "area", *("evaluation" for _ in curves.marks))
            values = np.stack([curves.score, curves.area, *curves.returns])
            for number, column in enumerate(values.T.tolist()):
                shared = {"preset": task.preset, "env": task.env, "v": arm, "seed": first + number}
                for step, measure, value in zip(steps, measures, column, strict=True):
                    rows.append({**shared, "step": step, "measure": measure, "value": value})
    return rows


def _claims(task: Task, outcomes: Outcomes, seed: int) -> list[Claim]:
    scores = _scores(task, outcomes)
    claims = [
        _better(task, other, mean_interval(scores[task.published] - scores[other]))
        for other in ("1", PLAIN)
        if other in scores
    ]
    tuned = np.stack([score for arm, score in scores.items() if arm != PLAIN])
    chance = Interval.exact(chance_of_range(tuned, seed))
    claims.append(
        Claim(
            f"v matters on {task.env}",
            "ours",
            f"which v it is makes a difference to the score on {task.env}",
            f"the p value of the range of mean scores among the values of v is below {SIGNIFICANT}",
            chance,
            f"p value, {len(tuned)} values of v, {task.num_seeds} seeds, arms shuffled within each seed",
            judge(chance, below=SIGNIFICANT),
        )
    )
    return claims


def _better(task: Task, other: str, gain: Interval) -> Claim:
    beaten = "the plain mean" if other == PLAIN else f"v = {other}"
    return Claim(
        f"v = {task.published} against {beaten} on {task.env}",
        "Appendix E.2",
        f"the paper's v = {task.published} is better than {beaten} on {task.env}",
        f"the score with v = {task.published} minus that with {beaten} is above 0, seed by seed",
        gain,
        "difference of the mean return over the last fifth of the run",
        judge(gain, above=0.0),
    )


def _draw(tasks: tuple[Task, ...], outcomes: Outcomes) -> Figure:
    """Above the scores, below their differences from the first arm, which is the plain mean where there is one."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(2.5 * len(tasks) + 0.4, 4.0), layout="constrained")
        axes = figure.subplots(2, len(tasks), squeeze=False, sharex="col")
        for (above, below), task in zip(axes.T, tasks, strict=True):
            scores = _scores(task, outcomes)
            base = scores[task.arms[0]]
            _draw_panel(above, task, scores)
            _draw_panel(below, task, {arm: score - base for arm, score in list(scores.items())[1:]})
            level_line(below, 0.0)
            above.set_title(f"{task.title}\n{task.num_seeds} seeds")
            below.set_xlabel("v in the tails")
        axes[0, 0].set_ylabel("score: mean return,\nlast fifth of the run")
        axes[1, 0].set_ylabel(f"score − score of {tasks[0].arms[0]},\nseed by seed")
        heading(figure, "Which v: seeds (dots), their mean with its 95% interval (bars), the paper's v (orange)")
    return figure


def _draw_panel(axis: Axes, task: Task, scores: dict[str, Float[np.ndarray, " seeds"]]) -> None:
    """A column of dots for each arm, with the mean and its interval beside it."""
    for arm, score in scores.items():
        place = task.arms.index(arm)
        color = figures.COLORS["orange"] if arm == task.published else figures.COLORS["blue"]
        color = figures.INK if arm == PLAIN else color
        shifts = place - 0.16 + np.linspace(-0.1, 0.1, len(score))
        axis.plot(shifts, score, color=color, marker="o", ms=2.2, mew=0, ls="", alpha=0.45)
        mean, low, high = mean_interval(score)
        axis.plot([place + 0.16] * 2, [low, high], color=color, lw=1.4)
        axis.plot(place + 0.16, mean, color=color, marker="D" if arm == PLAIN else "s", ms=4)
    axis.set_xticks(range(len(task.arms)), task.arms)
    axis.set_xlim(-0.6, len(task.arms) - 0.4)
    light_grid(axis, "y")
