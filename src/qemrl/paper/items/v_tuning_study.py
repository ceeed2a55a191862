"""What the item on V is made of: tasks, arms that differ in nothing but the estimator, scores, and a test of chance."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.value import ValueConfig
from qemrl.distributional.representations import FixedQuantiles
from qemrl.estimators import QEM, EmpiricalMean, TailVariance, midpoints
from qemrl.exploration import EpsilonGreedy
from qemrl.training.config import RunConfig, configure, default_steps
from qemrl.training.loops import make_loop

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
        config = replace(configure(self.preset, self.env, self.steps).agent, estimator=estimator_of(arm))
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
        every = self.steps // RECORDS
        return replace(
            configure(self.preset, self.env, self.steps, seed, self.num_seeds),
            agent=self.agent(arm),
            log_every=every,
            evaluate_every=every,
            checkpoint_every=every,
            evaluation_episodes=EPISODES,
        )

    @property
    def num_quantiles(self) -> int:
        """N."""
        representation = self.agent(PLAIN).representation
        assert isinstance(representation, FixedQuantiles)
        return representation.num_quantiles


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


def estimator_of(arm: str) -> EmpiricalMean | QEM:
    """The plain mean, or QEM with the arm's v in tails of 0.1."""
    return EmpiricalMean() if arm == PLAIN else QEM(ORDER, TailVariance(float(arm)))


def distance(arm: str, num_quantiles: int) -> float:
    """How far the weight of a quantile is from 1/N, as a share of 1/N, where it is farthest."""
    weights = np.asarray(estimator_of(arm).weights(midpoints(num_quantiles)))[0]
    return float(np.abs(num_quantiles * weights - 1).max())


class Curves(NamedTuple):
    """How an arm did over training."""

    marks: Int[np.ndarray, " records"]
    """The steps at which it was evaluated."""

    returns: Float[np.ndarray, "records seeds"]
    """The mean return of the episodes of an evaluation."""

    @property
    def score(self) -> Float[np.ndarray, " seeds"]:
        """The mean evaluation over the last fifth of the run."""
        return self.returns[self.marks * 5 > self.marks[-1] * 4].mean(0)

    @property
    def area(self) -> Float[np.ndarray, " seeds"]:
        """The area under the curve over the steps of the run: evaluations count by the steps that led to them."""
        steps = np.diff(self.marks, prepend=0)
        return (self.returns * steps[:, None]).sum(0) / float(self.marks[-1])


def learn(task: Task, arm: str, seed: int, tick: Callable[[float], None]) -> Curves:
    """Train all seeds of an arm on a task."""
    config = task.run(arm, seed)
    loop = make_loop(config)
    marks, returns = [], []
    while loop.step < config.whole_steps:
        records = loop.advance(config.next_record(loop.step), True, lambda: False)
        assert records is not None
        marks.append(loop.step)
        returns.append([np.mean(record["eval/returns"]) for record in records])
        tick(loop.step / config.whole_steps)
    return Curves(np.array(marks), np.array(returns, np.float64))


def chance_of_range(scores: Float[np.ndarray, "arms seeds"], seed: int, draws: int = DRAWS) -> float:
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
