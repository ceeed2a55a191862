"""What can be said of representations exactly: fixed points, truncated targets, and QEM on known distributions."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.distributional.expectiles import expectile_levels, impute
from qemrl.distributional.monotone import NonDecreasingQuantiles
from qemrl.estimators import DISTRIBUTIONS, QEM, Distribution, midpoints, uniform_levels
from qemrl.paper.items.chain import process
from qemrl.paper.items.frozen_lake_study import find_truth
from qemrl.paper.items.return_variance_study import return_variances
from qemrl.tabular import (
    Policy,
    TabularMDP,
    categorical_fixed_point,
    expectile_fixed_point,
    expectiles,
    policy_values,
    quantile_fixed_point,
    random_mdp,
)
from qemrl.tabular.fixed_points import backup

COUNTS = (8, 32, 128)
"""Quantiles of the fixed points."""

ATOMS = 51
WIDTHS = (1.0, 2.0, 4.0)
"""How many times as wide as the possible returns the support of the categories is."""

TRUNCATED = 25
DROPPED = (0, 1, 2, 3, 5)
"""Quantiles of a critic of TQC, and how many of them are dropped."""


class Process(NamedTuple):
    """A process under a policy, and what is known of the return from its first state."""

    name: str
    mdp: TabularMDP
    policy: Policy
    mean: float
    variance: float
    low: float
    """The smallest possible return."""
    high: float


@cache
def list_processes(num_random: int, seed: int) -> tuple[Process, ...]:
    """FrozenLake, the chain, and random processes."""
    lake = find_truth()
    found = [("FrozenLake", lake.mdp, lake.solution.policy), ("chain", process(), np.zeros(6, np.int64))]
    for number in range(num_random):
        mdp = random_mdp(6, 1, 3, np.random.default_rng([seed, number]))
        found.append((f"random {number + 1}", mdp, np.zeros(6, np.int64)))
    return tuple(_describe(*each) for each in found)


def _describe(name: str, mdp: TabularMDP, policy: np.ndarray) -> Process:
    step = backup(mdp, policy)
    low, high = np.zeros(mdp.num_states), np.zeros(mdp.num_states)
    for _ in range(10_000):
        ends = [step.rewards + step.discounts * values[step.next_states] for values in (low, high)]
        after = [np.where(step.probs > 0, ends[0], np.inf).min(1), np.where(step.probs > 0, ends[1], -np.inf).max(1)]
        settled = np.abs(after[0] - low).max() + np.abs(after[1] - high).max() < 1e-9
        low, high = after
        if settled:
            break
    start = mdp.start
    mean = float(policy_values(mdp, policy)[start, policy[start]])
    return Process(
        name, mdp, policy, mean, float(return_variances(mdp, policy)[start]), float(low[start]), float(high[start])
    )


class FixedPoint(NamedTuple):
    """Where dynamic programming with a representation ends, at the first state."""

    process: str
    representation: str
    setting: str
    bias: float
    """The mean less the true one, in standard deviations of the return."""
    variance: float
    """The variance over the true one."""


def find_fixed_points(each: Process) -> Iterator[FixedPoint]:
    """Those of quantiles, categories and expectiles; the Cramér projection on equal weights is that on quantiles."""
    start, resolution = each.mdp.start, 256
    for count in COUNTS:
        atoms = quantile_fixed_point(each.mdp, each.policy, count, resolution=resolution)[start]
        yield _compare(each, "quantiles", f"N = {count}", atoms, np.full(count, 1 / count))
    middle, half = (each.low + each.high) / 2, (each.high - each.low) / 2
    for width in WIDTHS:
        support = np.linspace(middle - width * half, middle + width * half, ATOMS)
        probs = categorical_fixed_point(each.mdp, each.policy, support, resolution)[start]
        yield _compare(each, "categories", f"support × {width:g}", support, probs)
    values = expectile_fixed_point(each.mdp, each.policy, 11, resolution)[start]
    yield _compare(each, "expectiles", "K = 11", *impute(values, expectile_levels(11)))


def _compare(each: Process, representation: str, setting: str, atoms: np.ndarray, probs: np.ndarray) -> FixedPoint:
    mean = float(probs @ atoms)
    variance = float(probs @ (atoms - mean) ** 2)
    bias = (mean - each.mean) / np.sqrt(each.variance)
    return FixedPoint(each.name, representation, setting, float(bias), variance / each.variance)


def find_truncation_biases(each: Process) -> dict[int, float]:
    """By how many of 25 quantiles are dropped: Q of the first state less the truth, in standard deviations.

    This is evaluation, where there is nothing to overestimate: critics agree, and a target is what they hold without
    its largest quantiles.
    """
    biases = {}
    for dropped in DROPPED:
        values = quantile_fixed_point(each.mdp, each.policy, TRUNCATED, resolution=256, num_dropped=dropped)
        biases[dropped] = float((values[each.mdp.start].mean() - each.mean) / np.sqrt(each.variance))
    return biases


GRID = 20_000
COUNT = 32
"""How many quantiles, fractions or particles there are."""


class Reading(NamedTuple):
    """What a perfect network of a representation holds of a distribution, and how it reads Q from that."""

    own: Float[np.ndarray, " draws"]
    """Its own mean."""
    values: Float[np.ndarray, "draws n"]
    """The quantiles that QEM sees."""
    levels: Float[np.ndarray, "draws n"]
    probs: Float[np.ndarray, "draws n"] | None = None


def read_distribution(distribution: Distribution, rng: np.random.Generator, draws: int) -> dict[str, Reading]:
    """Every representation of a distribution that is known; those that draw something draw it anew each time."""
    quantile, fixed = distribution.quantile, midpoints(COUNT)[None]
    uniform = uniform_levels(rng, (draws, COUNT))
    particles = np.sort(quantile(uniform_levels(rng, (draws, COUNT))), axis=-1)
    ends = find_fractions(distribution)
    middles, widths = ((ends[1:] + ends[:-1]) / 2)[None], np.diff(ends)[None]
    increments = NonDecreasingQuantiles(COUNT)
    grid, shares = increments.levels[None], increments.probs[None]
    readings = {
        "fixed quantiles": Reading(quantile(fixed).mean(-1), quantile(fixed), fixed),
        "random levels": Reading(quantile(uniform).mean(-1), quantile(uniform), uniform),
        "fractions": Reading((widths * quantile(middles)).sum(-1), quantile(middles), middles, widths),
        "grid of increments": Reading((shares * quantile(grid)).sum(-1), quantile(grid), grid, shares),
        "particles": Reading(particles.mean(-1), particles, np.broadcast_to(fixed, particles.shape)),
    }
    atoms = quantile(midpoints(GRID))
    levels = expectile_levels(11)
    imputed = impute(expectiles(atoms, np.full(GRID, 1 / GRID), levels), levels)
    readings["expectiles"] = _read_atoms(*imputed, 11)
    support = np.linspace(quantile(np.array([1e-4]))[0], quantile(np.array([1 - 1e-4]))[0], ATOMS)
    kernel = np.clip(
        1 - np.abs(np.clip(atoms, support[0], support[-1])[:, None] - support) / (support[1] - support[0]), 0, 1
    )
    readings["categories"] = _read_atoms(support, kernel.mean(0), ATOMS)
    return readings


def _read_atoms(atoms: Float[np.ndarray, " m"], probs: Float[np.ndarray, " m"], count: int) -> Reading:
    """The mean of atoms with probabilities, and the quantiles of their distribution."""
    levels = midpoints(count)
    places = np.minimum(np.searchsorted(np.cumsum(probs), levels), len(atoms) - 1)
    return Reading((probs * atoms).sum(keepdims=True), atoms[places][None], levels[None])


def find_fractions(distribution: Distribution, rounds: int = 500) -> Float[np.ndarray, " n"]:
    """The ends of the 32 intervals whose steps are closest to a quantile function, which FQF looks for.

    At the best end τ_i the curve is halfway between its values in the middles of the intervals beside: 2 q(τ_i) =
    q(τ̂_i) + q(τ̂_{i−1}). Setting each end to where that is so, over and over, comes to rest there.
    """
    levels = midpoints(GRID)
    curve = distribution.quantile(levels)
    ends = np.arange(COUNT + 1) / COUNT
    for _ in range(rounds):
        values = np.interp((ends[1:] + ends[:-1]) / 2, levels, curve)
        ends[1:-1] = np.interp((values[1:] + values[:-1]) / 2, curve, levels)
    return ends


class SquaredErrors(NamedTuple):
    """Of two readings of Q, over the variance of the return."""

    own: float
    qem: float


def squared_errors(rng: np.random.Generator, draws: int) -> dict[tuple[str, str], SquaredErrors]:
    """The mean squared errors of Q by the own mean and by QEM of order 4, by distribution and representation."""
    found = {}
    for name, distribution in DISTRIBUTIONS.items():
        for representation, reading in read_distribution(distribution, rng, draws).items():
            qem = QEM().mean(reading.values, reading.levels, reading.probs)
            errors = [float(np.mean((q - distribution.mean) ** 2)) for q in (reading.own, qem)]
            found[name, representation] = SquaredErrors(*(error / distribution.std**2 for error in errors))
    return found
