"""Appendix E.2 on tasks that run anywhere: which v in the tails is best, and does it matter?

The paper compares values of v in QEM-DQN on Atari and in QEM-DSAC on MuJoCo, and settles on 1.5 and 1.2. Here are the
same agents on small tasks, beside the same agents with the plain mean. All arms have the same seeds, so that they are
compared seed by seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.value import ValueConfig
from qemrl.estimators import QEM, EmpiricalMean, TailVariance, midpoints
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.exploration import EpsilonGreedy
from qemrl.paper.agent_runs import configure_item, look_every, train
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim, scale_tick
from qemrl.plotting import style as figures
from qemrl.plotting.style import heading, level_line, light_grid
from qemrl.training.config import RunConfig, default_steps

PLAIN = "mean"
"""The arm without QEM."""

VALUES = ("1", "1.2", "1.5", "2", "5")
ARMS = (PLAIN, *VALUES)
ORDER = 4

RECORDS = 25
"""Evaluations in a run; the score is the mean of the last five."""

EPISODES = 20
"""Episodes in an evaluation."""

DRAWS = 20_000
"""Permutations that a p value is counted from."""

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Task:
    """An agent on an environment: how long, with how many seeds, and which arms."""

    title: str
    preset: str
    env: str
    published: str
    """The paper's v for this agent."""

    steps: int
    num_seeds: int
    arms: tuple[str, ...] = ARMS
    widths: tuple[int, ...] | None = None
    """The dense layers of the torso where they are not the preset's."""

    def agent(self, arm: str) -> ValueConfig | ActorCriticConfig:
        """The agent of an arm; ε falls over the same share of the run as in the preset's own."""
        config = replace(configure_item(self.preset, self.env, self.steps).agent, estimator=make_estimator(arm))
        if not isinstance(config, ValueConfig):
            return config
        exploration = config.exploration
        assert isinstance(exploration, EpsilonGreedy)
        over = max(1, exploration.over_steps * self.steps // default_steps(self.env))
        begin = min(exploration.begin_steps, self.steps // 10)
        starts = min(config.learning_starts, self.steps // 10)
        network = config.network if self.widths is None else replace(config.network, widths=self.widths)
        exploration = replace(exploration, begin_steps=begin, over_steps=over)
        return replace(config, exploration=exploration, network=network, learning_starts=starts)

    def run(self, arm: str, seed: int) -> RunConfig:
        """The run of an arm, with all seeds in one program."""
        config = configure_item(self.preset, self.env, self.steps, seed, self.num_seeds)
        return look_every(replace(config, agent=self.agent(arm)), self.steps // RECORDS, EPISODES)

    @property
    def num_quantiles(self) -> int:
        count = self.agent(PLAIN).representation.fixed_quantiles
        assert count is not None
        return count


def cartpole(steps: int, num_seeds: int, arms: tuple[str, ...] = ARMS, widths: tuple[int, ...] = (64, 64)) -> Task:
    """QEM-DQN on the cart pole; small layers leave time for more seeds."""
    return Task("QEM-DQN, cart pole", "qem-dqn", "jax/cartpole", "1.5", steps, num_seeds, arms, widths)


def breakout(steps: int, num_seeds: int) -> Task:
    """QEM-DQN on MinAtar's Breakout."""
    return Task("QEM-DQN, MinAtar Breakout", "qem-dqn", "minatar/breakout", "1.5", steps, num_seeds)


def pendulum(steps: int, num_seeds: int, arms: tuple[str, ...] = ARMS) -> Task:
    """QEM-DSAC with fixed quantiles on the pendulum."""
    return Task("QEM-DSAC, pendulum", "qem-dsac-mlp", "jax/pendulum", "1.2", steps, num_seeds, arms)


TASKS: dict[str, tuple[Task, ...]] = {
    "smoke": (cartpole(2_000, 2, ("1", "1.5"), widths=(8,)),),
    "small": (
        cartpole(12_000, 8, (PLAIN, "1", "1.5", "5")),
        pendulum(4_000, 5, (PLAIN, "1", "1.2", "5")),
    ),
    "paper": (cartpole(30_000, 20), breakout(50_000, 5), pendulum(10_000, 10)),
}


def make_estimator(arm: str) -> EmpiricalMean | QEM:
    """The plain mean, or QEM with the arm's v in tails of 0.1."""
    return EmpiricalMean() if arm == PLAIN else QEM(ORDER, TailVariance(float(arm)))


def distance(arm: str, num_quantiles: int) -> float:
    """How far the weight of a quantile is from 1/N, as a share of 1/N, where it is farthest."""
    weights = np.asarray(make_estimator(arm).weights(midpoints(num_quantiles)))[0]
    return float(np.abs(num_quantiles * weights - 1).max())


class Curves(NamedTuple):
    """How an arm did over training."""

    steps: Int[np.ndarray, " records"]
    """The steps at which it was evaluated."""

    returns: Float[np.ndarray, "records seeds"]
    """The mean return of the episodes of an evaluation."""

    @property
    def score(self) -> Float[np.ndarray, " seeds"]:
        """The mean evaluation over the last fifth of the run."""
        return self.returns[self.steps * 5 > self.steps[-1] * 4].mean(0)

    @property
    def area(self) -> Float[np.ndarray, " seeds"]:
        """The area under the curve over the steps of the run: evaluations count by the steps that led to them."""
        weights = np.diff(self.steps, prepend=0)
        return (self.returns * weights[:, None]).sum(0) / float(self.steps[-1])


def learn(task: Task, arm: str, seed: int, tick: Tick) -> Curves:
    """Train all seeds of an arm on a task."""
    steps, returns = [], []
    for run, records in train(task.run(arm, seed), True, tick):
        steps.append(run.step)
        returns.append([np.mean(record["eval/returns"]) for record in records])
    return Curves(np.array(steps), np.array(returns, np.float64))


def p_value_of_range(scores: Float[np.ndarray, "arms seeds"], seed: int, draws: int = DRAWS) -> float:
    """The p value of the range of the arms' means: how often it is as large with the arms of each seed shuffled.

    Were the arms all alike, a seed's scores could as well have come in any other order. The order that was seen counts
    as one of the draws, so that the test is exact.
    """
    rng = np.random.default_rng(seed)
    seen = np.ptp(scores.mean(1))
    shuffled = rng.permuted(np.broadcast_to(scores, (draws, *scores.shape)), axis=1)
    ranges = np.ptp(shuffled.mean(2), axis=1)
    rounding = 1e-9 * float(np.abs(scores).max())
    return float(1 + (ranges >= seen - rounding).sum()) / (1 + draws)


Outcomes = dict[tuple[str, str], Curves]
"""By environment and arm."""


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Train every arm on every task."""
    tasks = TASKS[scale]
    whole = sum(len(task.arms) for task in tasks)
    outcomes: Outcomes = {}
    for task in tasks:
        for arm in task.arms:
            part = scale_tick(tick, len(outcomes) / whole, 1 / whole)
            outcomes[task.env, arm] = learn(task, arm, seed * 1_000, part)
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
            steps = (task.steps, task.steps, *curves.steps.tolist())
            measures = ("score", "area", *("evaluation" for _ in curves.steps))
            values = np.stack([curves.score, curves.area, *curves.returns])
            for number, column in enumerate(values.T.tolist()):
                shared = {"preset": task.preset, "env": task.env, "v": arm, "seed": first + number}
                for step, measure, value in zip(steps, measures, column, strict=True):
                    rows.append({**shared, "step": step, "measure": measure, "value": value})
    return rows


def _claims(task: Task, outcomes: Outcomes, seed: int) -> Iterator[Claim]:
    scores, published = _scores(task, outcomes), f"v = {task.published}"
    for other in ("1", PLAIN):
        if other not in scores:
            continue
        beaten = "the plain mean" if other == PLAIN else f"v = {other}"
        yield check_claim(
            f"{published} against {beaten} on {task.env}",
            "Appendix E.2",
            f"the paper's {published} is better than {beaten} on {task.env}",
            f"the score with {published} minus that with {beaten} is above 0, seed by seed",
            mean_interval(scores[task.published] - scores[other]),
            "difference of the mean return over the last fifth of the run",
            above=0.0,
        )
    tuned = np.stack([score for arm, score in scores.items() if arm != PLAIN])
    yield check_claim(
        f"v matters on {task.env}",
        "ours",
        f"which v it is makes a difference to the score on {task.env}",
        f"the p value of the range of mean scores among the values of v is below {SIGNIFICANT}",
        Interval.exact(p_value_of_range(tuned, seed)),
        f"p value, {len(tuned)} values of v, {task.num_seeds} seeds, arms shuffled within each seed",
        below=SIGNIFICANT,
    )


def _draw(tasks: tuple[Task, ...], outcomes: Outcomes) -> Figure:
    """Above the scores, below their differences from the first arm, which is the plain mean where there is one."""
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
