"""What the exploration item is made of: tasks that chance does not solve, arms, and when they solve them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.representations import FixedQuantiles
from qemrl.envs.jax.exploration_tasks import CHAIN_EXTRA_STEPS, chain_right_actions, deep_sea_right_actions
from qemrl.exploration import BonusExploration, CountBonus, EpsilonGreedy, LinearDecay
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import make_loop

RECORDS = 100
"""How often in a run it is asked whether the task is solved."""

QUANTILES = 32

Solved = Callable[[CompiledLoop, list[dict[str, Any]]], Bool[np.ndarray, " seeds"]]


@dataclass(frozen=True)
class Task:
    """An environment, and what solving it means."""

    name: str
    env: str
    steps: int
    solved: Solved
    """From the loop and its last records to whether each seed's greedy policy is the one that was to be found."""

    evaluation_episodes: int = 1


def deep_sea_task(size: int, stochastic: bool = False) -> Task:
    """Solved by a policy that goes right in every cell of the diagonal; 2,000 episodes."""
    name = f"deep-sea-{'stochastic-' if stochastic else ''}{size}"
    diagonal = np.arange(size) * (size + 1)
    return Task(name, f"jax/{name}", 2_000 * size, _goes(diagonal, size * size, np.diag(deep_sea_right_actions(size))))


def chain_task(size: int) -> Task:
    """Solved by a policy that goes right from the start to the end, and there; 500 episodes."""
    cells, actions = np.arange(1, size), chain_right_actions(size)[1:]
    steps = 500 * (size + CHAIN_EXTRA_STEPS)
    return Task(f"chain-{size}", f"jax/chain-{size}", steps, _goes(cells, size, actions))


def mountain_car_task() -> Task:
    """Solved by a policy that arrives in all of ten episodes."""

    def solved(loop: CompiledLoop, records: list[dict[str, Any]]) -> Bool[np.ndarray, " seeds"]:
        del loop
        return np.array([min(record["eval/returns"]) > -200 for record in records])

    return Task("mountain-car", "jax/mountain-car", 60_000, solved, evaluation_episodes=10)


@lru_cache(maxsize=1)
def _over_seeds(q: Callable[..., Any]) -> Callable[..., Any]:
    """The estimates of Q of all seeds, compiled once for each agent."""
    return jax.jit(jax.vmap(q, in_axes=(0, None)))


def _goes(states: Int[np.ndarray, " path"], count: int, actions: np.ndarray) -> Solved:
    """Whether the greedy action is the given one in each of the states of a path."""
    seen = np.eye(count, dtype=bool)[states]

    def solved(loop: CompiledLoop, records: list[dict[str, Any]]) -> Bool[np.ndarray, " seeds"]:
        del records
        q = _over_seeds(loop.agent.q_values)(loop.state.agent.params, jnp.asarray(seen))
        return (np.asarray(q).argmax(-1) == actions).all(-1)

    return solved


TASKS: dict[str, tuple[Task, ...]] = {
    "smoke": (replace(deep_sea_task(5), steps=1_000),),
    "small": (deep_sea_task(5), deep_sea_task(10), chain_task(10), chain_task(20)),
    "paper": (
        *(deep_sea_task(size) for size in (5, 10, 15, 20)),
        *(deep_sea_task(size, stochastic=True) for size in (5, 10)),
        *(chain_task(size) for size in (10, 20, 50)),
        mountain_car_task(),
    ),
}

ARMS = ("ε-greedy", "DLTV", "QEM spread", "count", "count in the reward")


def agent(arm: str, steps: int) -> ValueConfig:
    """The agent of an arm: the same small network and schedule in all, the paper's c = 50 where a spread is the bonus."""
    presets = {"ε-greedy": "qr-dqn", "DLTV": "qr-dqn-dltv", "QEM spread": "qem-dqn-var"}
    config = PRESETS[presets.get(arm, "qr-dqn")].configure("classic")
    assert isinstance(config, ValueConfig)
    match arm:
        case "ε-greedy":
            exploration = EpsilonGreedy(final=0.05, over_steps=max(1, steps // 10), evaluation=0.0)
        case "count":
            exploration = BonusExploration(CountBonus(), LinearDecay(1.0, 0.0, steps), evaluation=0.0)
        case "count in the reward":
            # A bonus that Q looks ahead to needs none in acting.
            exploration = BonusExploration(CountBonus(reward=0.05), LinearDecay(0.0, 0.0), evaluation=0.0)
        case _:
            assert isinstance(config.exploration, BonusExploration)
            exploration = replace(config.exploration, evaluation=0.0)
    return replace(
        config,
        representation=FixedQuantiles(QUANTILES),
        exploration=exploration,
        network=NetworkConfig(widths=(64,)),
        replay=replace(config.replay, capacity=10_000),
        batch_size=32,
        update_every=2,
        target_every=100,
        learning_starts=200,
    )


def run_of(arm: str, task: Task, seed: int, num_seeds: int) -> RunConfig:
    """The run of an arm on a task, with all seeds in one program."""
    config = configure("qr-dqn", task.env, task.steps, seed, num_seeds)
    every = max(2, task.steps // RECORDS // 2 * 2)
    return replace(
        config,
        agent=agent(arm, task.steps),
        log_every=every,
        evaluate_every=every,
        checkpoint_every=every,
        evaluation_episodes=task.evaluation_episodes,
    )


class Outcome(NamedTuple):
    """How the seeds of an arm did on a task."""

    solved: Bool[np.ndarray, " seeds"]
    """Whether a seed solved it twice in succession."""

    steps: Float[np.ndarray, " seeds"]
    """After how many steps it first did; the whole run where it never did."""

    kept: Bool[np.ndarray, " seeds"]
    """Whether it is solved at the end."""


def explore(arm: str, task: Task, seed: int, num_seeds: int, tick: Callable[[float], None]) -> Outcome:
    """Train all seeds of an arm on a task."""
    config = run_of(arm, task, seed, num_seeds)
    loop = make_loop(config)
    assert isinstance(loop, CompiledLoop)
    marks, answers = [], []
    evaluated = task.evaluation_episodes > 1
    while loop.step < config.whole_steps:
        records = loop.advance(config.next_record(loop.step), evaluated, lambda: False)
        assert records is not None
        marks.append(loop.step)
        answers.append(task.solved(loop, records))
        tick(loop.step / config.whole_steps)
    return outcome_of(np.array(marks), np.array(answers))


def outcome_of(marks: Int[np.ndarray, " records"], answers: Bool[np.ndarray, "records seeds"]) -> Outcome:
    """When the seeds solved the task, from whether they did at each mark."""
    twice = answers[:-1] & answers[1:]
    solved = np.asarray(twice.any(0))
    first = np.where(solved, marks[twice.argmax(0)], marks[-1]).astype(np.float64)
    return Outcome(solved, first, answers[-1])
