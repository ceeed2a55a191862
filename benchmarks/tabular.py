"""How fast the tabular laboratory learns: the paper's control runs against a plain NumPy loop of the same update."""

import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float

from benchmarks.machine import describe_machine
from benchmarks.timing import Timing
from qemrl.estimators import QEM, BandVariance, midpoints
from qemrl.tabular import Geometric, Learning, Quantiles, Steps, TabularMDP, frozen_lake, learn

TARGET = 20.0
"""How many times as many steps per second as the NumPy loop are expected."""

NUM_QUANTILES = 128
"""N, as in the paper."""

NUMPY_STEPS = 3_000
"""How many steps the NumPy loop is timed for."""

RECORDS = 10
"""How many records a run keeps; all but the first are timed."""

LEARNING_RATES = (0.05, 0.025, 0.0125)
"""The paper's step sizes."""

LEARNING_RATE_ENDS = (50_000, 100_000)
"""The steps at which they change."""

EPSILON = (0.9, 100)
"""Exploration is 0.9 to the power of ⌊episodes / 100⌋."""


@dataclass(frozen=True)
class TabularComparison:
    """One algorithm, compiled for many seeds and in plain NumPy for one."""

    algorithm: str
    seeds: int
    steps: int
    seconds: float
    """How long all steps of all seeds take, without compilation."""
    compile_seconds: float
    """How long compilation took; nothing, where the program of the line before fits."""
    steps_per_second: float
    """Of all seeds together."""
    numpy_steps: int
    numpy_steps_per_second: float
    ratio: float
    """The median over turns, each compared with its twin."""
    target: float

    @property
    def holds(self) -> bool:
        """Whether the ratio reaches its target."""
        return self.ratio >= self.target


@dataclass(frozen=True)
class TabularReport:
    """All lines, and where they come from."""

    comparisons: list[TabularComparison]
    machine: dict[str, str]

    def as_json(self) -> dict:
        """The report as plain data."""
        return asdict(self)


def run(seeds: int, steps: int) -> TabularReport:
    """Time QDRL and QEMRL on FrozenLake, both ways.

    Args:
        seeds: How many seeds are learned at once; the paper has 10.
        steps: How many transitions each sees; the paper has 150,000.

    Raises:
        ValueError: If there is nothing to time, or steps cannot be cut into equal stretches.
    """
    if seeds < 1 or steps < 1 or steps % RECORDS:
        raise ValueError(f"timing takes seeds, and steps in multiples of {RECORDS}; got {seeds} and {steps}")
    mdp = frozen_lake()
    representations = {
        "QDRL": Quantiles(NUM_QUANTILES),
        "QEMRL": Quantiles(NUM_QUANTILES, QEM(variance=BandVariance(1.5, 0.45, 0.55))),
    }
    comparisons = [_compare(mdp, name, quantiles, seeds, steps) for name, quantiles in representations.items()]
    return TabularReport(comparisons, describe_machine())


def paper_learning(quantiles: Quantiles, steps: int) -> Learning:
    """The paper's schedules, with epsilon counted in episodes, and a record for every tenth of the run."""
    rate, epsilon = Steps(LEARNING_RATES, LEARNING_RATE_ENDS), Geometric(*EPSILON)
    return Learning(quantiles, steps, rate, epsilon, "episodes", record_every=steps // RECORDS)


def _compare(mdp: TabularMDP, name: str, quantiles: Quantiles, seeds: int, steps: int) -> TabularComparison:
    """Both ways in turns: after each stretch of the compiled run, a part of the steps in NumPy."""
    turns: list[float] = []
    numpy_turns: list[float] = []
    numpy_steps = max(1, min(NUMPY_STEPS, steps) // RECORDS)
    clock = time.perf_counter()

    def take_turns(_: float) -> None:
        nonlocal clock
        turns.append(time.perf_counter() - clock)
        clock = time.perf_counter()
        learn_in_numpy(mdp, quantiles, numpy_steps, np.random.default_rng(len(turns)))
        numpy_turns.append(time.perf_counter() - clock)
        clock = time.perf_counter()

    learn(mdp, paper_learning(quantiles, steps), range(seeds), tick=take_turns)
    # The first stretch is also compiled; what it took beyond the others is compilation.
    per_step = Timing([seconds / (seeds * steps // RECORDS) for seconds in turns[1:]])
    numpy_per_step = Timing([seconds / numpy_steps for seconds in numpy_turns[1:]])
    return TabularComparison(
        algorithm=name,
        seeds=seeds,
        steps=steps,
        seconds=per_step.seconds * seeds * steps,
        compile_seconds=max(0.0, turns[0] - statistics.median(turns[1:])),
        steps_per_second=1 / per_step.seconds,
        numpy_steps=RECORDS * numpy_steps,
        numpy_steps_per_second=1 / numpy_per_step.seconds,
        ratio=numpy_per_step.ratio_to(per_step),
        target=TARGET,
    )


def numpy_direction(
    row: Float[np.ndarray, " n"], targets: Float[np.ndarray, " n"], levels: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """τ_i − (1/N) Σ_j 1{y_j < θ_i}, with all comparisons of quantiles and targets at once."""
    return levels - (targets[None, :] < row[:, None]).mean(axis=1)


def learn_in_numpy(
    mdp: TabularMDP, quantiles: Quantiles, steps: int, rng: np.random.Generator
) -> Float[np.ndarray, "s a n"]:
    """The table after `steps` of control, learned in a plain loop with the paper's schedules."""
    count, actions = quantiles.num_quantiles, mdp.num_actions
    levels, weights = midpoints(count), quantiles.mean_weights()
    table = rng.uniform(quantiles.low, quantiles.high, (mdp.num_states, actions, count))
    cumulative = np.cumsum(mdp.probs, axis=-1)
    state, episodes = mdp.start, 0
    for step in range(steps):
        if rng.random() < EPSILON[0] ** (episodes // EPSILON[1]):
            action = int(rng.integers(actions))
        else:
            action = int((table[state] @ weights).argmax())
        outcome = int(np.searchsorted(cumulative[state, action, :-1], rng.random(), side="right"))
        following, ends = int(mdp.next_states[state, action, outcome]), bool(mdp.terminal[state, action, outcome])
        best = int((table[following] @ weights).argmax())
        discount = 0.0 if ends else mdp.discount
        targets = mdp.rewards[state, action, outcome] + discount * table[following, best]
        rate = LEARNING_RATES[sum(step >= end for end in LEARNING_RATE_ENDS)]
        table[state, action] += rate * numpy_direction(table[state, action], targets, levels)
        state, episodes = (mdp.start, episodes + 1) if ends else (following, episodes)
    return table
