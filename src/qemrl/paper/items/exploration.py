"""Section 5.3 on tasks that run anywhere: does QEM's standard deviation explore better than DLTV, or than anything?

The paper's games take weeks. Here are tasks that chance alone does not solve, with a policy that is known to be the one
to find: deep sea, the sparse chain, the mountain car. All arms have the same network, replay and schedule.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure

from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.envs.jax.exploration_tasks import CHAIN_EXTRA_STEPS, chain_right_actions, deep_sea_right_actions
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.exploration import BonusExploration, CountBonus, EpsilonGreedy, LinearDecay
from qemrl.paper.agent_runs import look_every, train
from qemrl.paper.claims import (
    Claim,
    Result,
    Scale,
    Tick,
    check_claim,
    count_share,
    interval_columns,
    scale_tick,
)
from qemrl.plotting.style import LOOKS, entry, heading, light_grid
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, configure

SEEDS = {"smoke": 2, "small": 8, "paper": 20}

HARD = "deep-sea-10"
"""The task that the project's own claims are about."""

MOST, HALF = 0.89, 0.5
"""The rules: "solved" is 18 of 20 seeds, "fails" is fewer than half of them."""

RECORDS = 100
"""How often in a run it is checked whether the task is solved."""

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
    return Task(name, f"jax/{name}", 2_000 * size, _takes(diagonal, size * size, np.diag(deep_sea_right_actions(size))))


def chain_task(size: int) -> Task:
    """Solved by a policy that goes right from the start to the end, and there; 500 episodes."""
    cells, actions = np.arange(1, size), chain_right_actions(size)[1:]
    steps = 500 * (size + CHAIN_EXTRA_STEPS)
    return Task(f"chain-{size}", f"jax/chain-{size}", steps, _takes(cells, size, actions))


def mountain_car_task() -> Task:
    """Solved by a policy that arrives in all of ten episodes."""

    def check(loop: CompiledLoop, records: list[dict[str, Any]]) -> Bool[np.ndarray, " seeds"]:
        del loop
        return np.array([min(record["eval/returns"]) > -200 for record in records])

    return Task("mountain-car", "jax/mountain-car", 60_000, check, evaluation_episodes=10)


@lru_cache(maxsize=1)
def _over_seeds(q: Callable[..., Any]) -> Callable[..., Any]:
    """The estimates of Q of all seeds, compiled once for each agent."""
    return jax.jit(jax.vmap(q, in_axes=(0, None)))


def _takes(states: Int[np.ndarray, " path"], count: int, actions: np.ndarray) -> Solved:
    """Whether the greedy action is the given one in each of the states of a path."""
    seen = np.eye(count, dtype=bool)[states]

    def check(loop: CompiledLoop, records: list[dict[str, Any]]) -> Bool[np.ndarray, " seeds"]:
        del records
        q = _over_seeds(loop.agent.q_values)(loop.state.agent.params, jnp.asarray(seen))
        return (np.asarray(q).argmax(-1) == actions).all(-1)

    return check


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


def configure_agent(arm: str, steps: int) -> ValueConfig:
    """The agent of an arm: the same small network and schedule in all, the paper's c = 50 where a std is the bonus."""
    presets = {"ε-greedy": "qr-dqn", "DLTV": "qr-dqn-dltv", "QEM spread": "qem-dqn-var"}
    config = PRESETS[presets.get(arm, "qr-dqn")].configure("classic")
    assert isinstance(config, ValueConfig)
    match arm:
        case "ε-greedy":
            exploration = EpsilonGreedy(final=0.05, over_steps=max(1, steps // 10), evaluation=0.0)
        case "count":
            exploration = BonusExploration(CountBonus(), LinearDecay(1.0, 0.0, steps), evaluation=0.0)
        case "count in the reward":
            # With counts in the reward, acting adds no bonus.
            exploration = BonusExploration(CountBonus(reward=0.05), LinearDecay(0.0, 0.0), evaluation=0.0)
        case _:
            assert isinstance(config.exploration, BonusExploration)
            exploration = replace(config.exploration, evaluation=0.0)
    return replace(
        config,
        representation=FixedQuantiles(QUANTILES),
        exploration=exploration,
        network=NetworkConfig(widths=(64,)),
        replay=replace(config.replay, capacity=10_000, n_step=1),
        batch_size=32,
        update_every=2,
        target_every=100,
        learning_starts=200,
    )


def configure_run(arm: str, task: Task, seed: int, num_seeds: int) -> RunConfig:
    """The run of an arm on a task, with all seeds in one program."""
    config = configure("qr-dqn", task.env, task.steps, seed, num_seeds)
    every = max(2, task.steps // RECORDS // 2 * 2)
    return look_every(replace(config, agent=configure_agent(arm, task.steps)), every, task.evaluation_episodes)


class Outcome(NamedTuple):
    """How the seeds of an arm did on a task."""

    solved: Bool[np.ndarray, " seeds"]
    """Whether a seed solved it twice in succession."""

    steps: Float[np.ndarray, " seeds"]
    """After how many steps it first did; the whole run where it never did."""

    kept: Bool[np.ndarray, " seeds"]
    """Whether it is solved at the end."""


def explore(arm: str, task: Task, seed: int, num_seeds: int, tick: Tick) -> Outcome:
    """Train all seeds of an arm on a task."""
    steps, solved = [], []
    for run, records in train(configure_run(arm, task, seed, num_seeds), task.evaluation_episodes > 1, tick):
        steps.append(run.step)
        solved.append(task.solved(run, records))
    return find_outcome(np.array(steps), np.array(solved))


def find_outcome(steps: Int[np.ndarray, " records"], answers: Bool[np.ndarray, "records seeds"]) -> Outcome:
    """When the seeds solved the task, from whether they did at each record."""
    twice = answers[:-1] & answers[1:]
    solved = np.asarray(twice.any(0))
    first = np.where(solved, steps[twice.argmax(0)], steps[-1]).astype(np.float64)
    return Outcome(solved, first, answers[-1])


SOME = {"smoke": ARMS[:3]}
"""The arms of a scale that does not have all of them: each is a program to compile."""

Outcomes = dict[tuple[str, str], Outcome]


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Train every arm on every task."""
    tasks, arms, num_seeds = TASKS[scale], SOME.get(scale, ARMS), SEEDS[scale]
    whole = sum(task.steps for task in tasks) * len(arms)
    results: Outcomes = {}
    done = 0
    for task, arm in product(tasks, arms):
        part = scale_tick(tick, done / whole, task.steps / whole)
        results[task.name, arm] = explore(arm, task, seed * 1_000, num_seeds, part)
        done += task.steps
    tick(1.0)
    notes = [
        f"{num_seeds} seeds. Solved: the greedy policy is the one to be found at two of 100 looks in succession. "
        "Steps to solve are those to the first of them, and the whole run where there is none.",
        "Deep sea: 2,000 episodes; chain: 500; mountain car: 60,000 steps. 32 quantiles, a layer of 64 units, "
        "an update with 32 transitions every second step, Adam with 1e-3.",
        "epsilon falls from 1 to 0.05 over a tenth of the run. DLTV and QEM spread have c = 50, as published. "
        "Counts in acting fade over the run; in the reward they are worth 0.05/sqrt(n + 0.01), and nothing in "
        "acting. No setting was tried before the run with another value.",
    ]
    return Result([*_rows(tasks, results)], _draw(tasks, results), [*_claims(tasks, results)], notes)


def _arms(results: Outcomes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(arm for _, arm in results))


def _rows(tasks: tuple[Task, ...], results: Outcomes) -> Iterator[dict[str, Any]]:
    for task, arm in product(tasks, _arms(results)):
        outcome = results[task.name, arm]
        measures = {
            "solved": count_share(outcome.solved),
            "solved at the end": count_share(outcome.kept),
            "steps to solve / steps": mean_interval(outcome.steps / task.steps),
        }
        what = {"task": task.name, "steps": task.steps, "arm": arm, "seeds": len(outcome.solved)}
        for measure, interval in measures.items():
            yield what | {"measure": measure} | interval_columns(interval)


def _claims(tasks: tuple[Task, ...], results: Outcomes) -> Iterator[Claim]:
    def difference(one: str, other: str) -> Interval:
        """The mean over tasks of how much sooner `one` solves than `other`, as a share of the run, seed by seed."""
        per_task = [(results[task.name, other].steps - results[task.name, one].steps) / task.steps for task in tasks]
        return mean_interval(np.mean(per_task, axis=0))

    yield check_claim(
        "QEM explores better than DLTV",
        "Section 5.3",
        "QEM's variance as a bonus explores more efficiently than DLTV",
        "the mean over tasks of (steps of DLTV − steps of QEM) / steps of the run is above 0, seed by seed",
        difference("QEM spread", "DLTV"),
        "how much sooner QEM's spread solves than DLTV, as a share of the run",
        above=0.0,
    )
    for arm in _arms(results)[1:]:
        yield check_claim(
            f"{arm} against ε-greedy",
            "ours",
            f"{arm} solves these tasks sooner than ε-greedy",
            "the mean over tasks of (steps of ε-greedy − steps of it) / steps of the run is above 0, seed by seed",
            difference(arm, "ε-greedy"),
            "how much sooner it solves, as a share of the run",
            above=0.0,
        )
    if HARD in {task.name for task in tasks}:
        yield from _deep_sea_claims(results)


def _deep_sea_claims(results: Outcomes) -> Iterator[Claim]:
    shares = {arm: float(results[HARD, arm].solved.mean()) for arm in ARMS}
    best = max(ARMS[1:], key=lambda arm: shares[arm])
    yield check_claim(
        "a bonus solves deep sea",
        "ours",
        f"at least one bonus solves {HARD} in at least 18 of 20 seeds",
        f"the largest share of solved seeds among the bonuses is above {MOST}",
        Interval.exact(shares[best]),
        f"share of seeds that solve it, {best}",
        above=MOST,
    )
    yield check_claim(
        "ε-greedy fails deep sea",
        "ours",
        f"ε-greedy does not solve {HARD}",
        f"its share of solved seeds is below {HALF}",
        count_share(results[HARD, "ε-greedy"].solved),
        "share of seeds that solve it, ε-greedy",
        below=HALF,
    )


def _draw(tasks: tuple[Task, ...], results: Outcomes) -> Figure:
    """The share of solved seeds, and the steps to solve, for each task and arm."""
    figure = Figure(figsize=(7.2, 0.5 * len(tasks) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, arm in enumerate(_arms(results)):
        look, shift = LOOKS[place], (place - (len(_arms(results)) - 1) / 2) * 0.14
        for number, task in enumerate(tasks):
            outcome = results[task.name, arm]
            measures = (
                (left, count_share(outcome.solved)),
                (right, mean_interval(outcome.steps / task.steps)),
            )
            for axis, (value, low, high) in measures:
                axis.plot([low, high], [number + shift] * 2, color=look.color, lw=1)
                axis.plot(value, number + shift, color=look.color, marker=look.marker, ms=4, ls="")
    left.set(xlabel="share of seeds that solve the task", xlim=(-0.03, 1.03))
    right.set(xlabel="steps to solve / steps of the run", xlim=(-0.03, 1.03))
    left.set_yticks(range(len(tasks)), [task.name for task in tasks])
    left.invert_yaxis()
    for axis in (left, right):
        light_grid(axis, "x")
    handles = [entry(LOOKS[place]._replace(line=""), arm) for place, arm in enumerate(_arms(results))]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(ARMS), frameon=False, fontsize=8)
    heading(figure, "Exploration: which bonus finds what chance does not")
    return figure
