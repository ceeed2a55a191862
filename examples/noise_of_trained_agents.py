"""How noisy is Q in agents that draw their levels, once they are trained, and does the noise change what they do?

    python examples/noise_of_trained_agents.py DIR --out noise.csv

For every finished run below DIR whose quantiles are at random levels, along episodes that the agent plays: the error
of Q from K levels against Q from 1,024, squared and averaged over states and actions; the part of it that is not common
to all actions, which alone can change what the agent does; and the share of states in which it makes another action the
best. K is the agent's own. Three estimates are compared, all from the same network: the plain mean at uniform levels,
as in IQN; the plain mean at stratified levels; QEM of order 4 at uniform levels.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import qemrl
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.experiments.episodes import play_episode
from qemrl.experiments.runs import RunRecord, read_runs
from qemrl.experiments.statistics import mean_interval

DRAWS, EXACT = 64, 1_024
ESTIMATES = {
    "mean": (qemrl.EmpiricalMean(), qemrl.uniform_levels),
    "stratified": (qemrl.EmpiricalMean(), qemrl.stratified_levels),
    "qem": (qemrl.QEM(4), qemrl.uniform_levels),
}


class Noise(NamedTuple):
    """What was measured of one agent."""

    arm: str
    env: str
    seed: int
    states: int
    gap: float
    """How far the best action is above the second, on average: in the unit of the roots of the errors."""
    mean_error: float
    stratified_error: float
    qem_error: float
    mean_own: float
    stratified_own: float
    qem_own: float
    """The part of the error that is not common to all actions."""
    mean_flips: float
    stratified_flips: float
    qem_flips: float
    """The share of states in which another action is the best."""


def measure(run: RunRecord, levels_of: ImplicitQuantiles, states: int) -> Noise:
    """The noise of the agent of a run, in so many states of its episodes."""
    agent = qemrl.load(run.path)
    episodes = (play_episode(agent, seed, render=False) for seed in itertools.count())
    moments = itertools.islice(itertools.chain.from_iterable(episodes), states)
    network, seen = agent.params.network, jnp.stack([moment.observation for moment in moments])
    features = network.torso(seen)
    quantiles = jax.jit(lambda levels: network.head(features, levels[None], None).swapaxes(1, 2))
    exact = np.asarray(quantiles(jnp.asarray(qemrl.midpoints(EXACT), jnp.float32)), np.float64).mean(-1)
    best, (second, first) = exact.argmax(-1), np.sort(exact, axis=-1)[:, -2:].T
    errors, own, flips = [], [], []
    for estimator, draw in ESTIMATES.values():
        shape = (DRAWS, levels_of.num_acting_levels)
        levels = np.asarray(draw(jax.random.key(0), shape, jnp.float32), np.float64)
        q = np.stack([estimator.mean(np.asarray(quantiles(jnp.float32(each)), np.float64), each) for each in levels])
        error = q - exact
        errors.append(float((error**2).mean()))
        own.append(float(((error - error.mean(-1, keepdims=True)) ** 2).mean()))
        flips.append(float((q.argmax(-1) != best).mean()))
    gap = float((first - second).mean())
    return Noise(run.arm, run.config.env, run.config.seed, len(seen), gap, *errors, *own, *flips)


def measured(folder: Path, states: int) -> Iterator[Noise]:
    """The noise of all agents below a folder that draw their levels."""
    for run in read_runs(folder).runs:
        representation = getattr(run.config.agent, "representation", None)
        saved = run.state == "finished" and any((run.path / "checkpoints").glob("step_*"))
        if saved and isinstance(representation, ImplicitQuantiles):
            print(f"{run.name} …", file=sys.stderr, flush=True)
            yield measure(run, representation, states)


def summary(noises: list[Noise]) -> Iterator[str]:
    """A Markdown table with a row for each algorithm and task: means over agents with 95% intervals."""
    heads = ("algorithm", "task", "agents", "error of QEM / of the mean", "of stratified / of the mean")
    heads += ("own part, QEM / mean", "own part, stratified / mean", *(f"other action: {name}" for name in ESTIMATES))
    yield f"| {' | '.join(heads)} |"
    yield f"|---|---|{'---:|' * (len(heads) - 2)}"
    for (arm, env), group in itertools.groupby(sorted(noises), key=lambda noise: (noise.arm, noise.env)):
        agents = list(group)
        columns = [
            [getattr(each, f"{name}_{part}") / getattr(each, f"mean_{part}") for each in agents]
            for part in ("error", "own")
            for name in ("qem", "stratified")
        ]
        columns += [[getattr(each, f"{name}_flips") for each in agents] for name in ESTIMATES]
        yield f"| {arm} | {env} | {len(agents)} | {' | '.join(map(_with_interval, columns))} |"


def _with_interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    return "{:.3f} [{:.3f}, {:.3f}]".format(*mean_interval(np.array(values))).replace("-", "−")


def main(words: list[str]) -> None:
    """Measure, print the table, and keep the numbers of each agent."""
    parser = argparse.ArgumentParser(description="The noise of Q in trained agents that draw their levels.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds finished runs with their checkpoints")
    parser.add_argument("--out", type=Path, help="a CSV file with a line for each agent")
    parser.add_argument(
        "--states", type=int, default=200, help="how many states of its episodes an agent is looked at in (200)"
    )
    asked = parser.parse_args(words)
    noises = list(measured(asked.folder, asked.states))
    if not noises:
        parser.error(f"{asked.folder} holds no finished run with a checkpoint whose levels are drawn")
    print("\n".join(summary(noises)))
    if asked.out is not None:
        with asked.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Noise._fields)
            writer.writerows(noises)


if __name__ == "__main__":
    main(sys.argv[1:])
