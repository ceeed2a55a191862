"""The truth about a small process: optimal values, the distribution of returns, and samples to check them with.

A policy is an array of actions (states,), or of action probabilities (states, actions).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from qemrl.estimators.backend import Array
from qemrl.tabular.mdp import TabularMDP

Policy = Int[np.ndarray, " s"] | Float[np.ndarray, "s a"]


@dataclass(frozen=True, eq=False)
class DiscreteDistribution:
    """Atoms in increasing order, with their probabilities."""

    atoms: Float[np.ndarray, " n"]
    probs: Float[np.ndarray, " n"]
    error: float = 0.0
    """How much probability may be misplaced: mass that was cut off, or the 95% band of a sample."""

    @staticmethod
    def from_atoms(
        atoms: Float[np.ndarray, " n"], probs: Float[np.ndarray, " n"] | None = None
    ) -> "DiscreteDistribution":
        """The distribution on `atoms` in any order; equal atoms are merged, and probabilities made to add up to one."""
        atoms = np.asarray(atoms, dtype=np.float64)
        probs = np.full(atoms.shape, 1.0) if probs is None else np.asarray(probs, dtype=np.float64)
        if atoms.ndim != 1 or atoms.shape != probs.shape or not len(atoms):
            raise ValueError(f"got atoms of shape {atoms.shape} and probabilities of shape {probs.shape}")
        if probs.min() < 0 or not probs.sum() > 0:
            raise ValueError(f"probabilities must not be negative; the smallest is {probs.min()}")
        merged, where = np.unique(atoms, return_inverse=True)
        return DiscreteDistribution(merged, np.bincount(where, probs) / probs.sum())

    @property
    def mean(self) -> float:
        return float(self.probs @ self.atoms)

    @property
    def variance(self) -> float:
        return float(self.probs @ (self.atoms - self.mean) ** 2)

    def quantile(self, levels: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The smallest atom at which the distribution function reaches the level."""
        reached = np.searchsorted(np.cumsum(self.probs), np.asarray(levels) - 1e-12)
        return self.atoms[np.minimum(reached, len(self.atoms) - 1)]

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The probability of atoms up to `x`."""
        steps = np.concatenate([[0.0], np.cumsum(self.probs)])
        return steps[np.searchsorted(self.atoms, x, side="right")]


def wasserstein(first: DiscreteDistribution, second: DiscreteDistribution) -> float:
    """The 1-Wasserstein distance W₁ = ∫ |F − G| dx."""
    return _integrate(first, second, np.abs)


def cramer(first: DiscreteDistribution, second: DiscreteDistribution) -> float:
    """The Cramér distance ℓ₂ = (∫ (F − G)² dx)^½."""
    return float(np.sqrt(_integrate(first, second, np.square)))


def _integrate(
    first: DiscreteDistribution, second: DiscreteDistribution, integrand: Callable[[np.ndarray], np.ndarray]
) -> float:
    places = np.union1d(first.atoms, second.atoms)
    gap = first.cdf(places[:-1]) - second.cdf(places[:-1])
    return float(integrand(gap) @ np.diff(places))


class Solution(NamedTuple):
    """Optimal values and an optimal policy."""

    q: Float[np.ndarray, "s a"]
    v: Float[np.ndarray, " s"]
    policy: Int[np.ndarray, " s"]


def action_probs(mdp: TabularMDP, policy: Policy) -> Float[np.ndarray, "s a"]:
    """The policy as action probabilities, checked."""
    policy = np.asarray(policy)
    shape = (mdp.num_states, mdp.num_actions)
    if policy.shape == shape[:1] and policy.dtype.kind in "iu":
        if policy.min() < 0 or policy.max() >= shape[1]:
            raise ValueError(f"actions are 0 to {shape[1] - 1}, got {policy.min()} to {policy.max()}")
        return np.eye(shape[1])[policy]
    if policy.shape != shape:
        raise ValueError(f"a policy is {shape[0]} actions or a table of shape {shape}, got the shape {policy.shape}")
    wrong = np.flatnonzero((np.abs(policy.sum(-1) - 1) > 1e-8) | (policy.min(-1) < 0))
    if len(wrong):
        raise ValueError(f"the policy's probabilities in state {wrong[0]} are {policy[wrong[0]]}")
    return policy.astype(np.float64)


def policy_values(mdp: TabularMDP, policy: Policy) -> Float[np.ndarray, "s a"]:
    """Q of a policy, by solving the linear system."""
    states, actions, _ = mdp.probs.shape
    reward = (mdp.probs * mdp.mean_rewards).sum(-1)
    transition = np.zeros((states, actions, states))
    s, a, _ = np.indices(mdp.probs.shape)
    np.add.at(transition, (s, a, mdp.next_states), mdp.probs * ~mdp.terminal)
    choose = action_probs(mdp, policy)
    system = np.eye(states) - mdp.discount * np.einsum("sa,san->sn", choose, transition)
    if np.linalg.cond(system) > 1e12:
        raise ValueError("the policy may go on forever with a discount of 1; its values are not defined")
    values = np.linalg.solve(system, (choose * reward).sum(-1))
    return reward + mdp.discount * transition @ values


def solve(mdp: TabularMDP) -> Solution:
    """Optimal values and policy, by policy iteration; ties go to the first action."""
    policy = _iterate_values(mdp)
    for _ in range(1000):
        q = policy_values(mdp, policy)
        best = q.max(-1)
        improvable = best > q[np.arange(mdp.num_states), policy] + 1e-12 * (1 + np.abs(best))
        if not improvable.any():
            first = (q >= best[:, None] - 1e-12 * (1 + np.abs(best[:, None]))).argmax(-1)
            return Solution(q, best, first)
        policy = np.where(improvable, q.argmax(-1), policy)
    raise RuntimeError("policy iteration did not settle")


def _iterate_values(mdp: TabularMDP, sweeps: int = 2000) -> Int[np.ndarray, " s"]:
    """A good policy to start from, which also ends episodes where that pays."""
    rewards, go_on = mdp.mean_rewards, mdp.discount * ~mdp.terminal
    v = np.zeros(mdp.num_states)
    q = np.zeros(mdp.probs.shape[:2])
    for _ in range(sweeps):
        q = (mdp.probs * (rewards + go_on * v[mdp.next_states])).sum(-1)
        if np.abs(q.max(-1) - v).max() < 1e-13:
            break
        v = q.max(-1)
    return q.argmax(-1)


def return_distribution(
    mdp: TabularMDP,
    policy: Policy,
    state: int,
    tolerance: float = 1e-12,
    max_atoms: int = 1_000_000,
    samples: int = 100_000,
    rng: np.random.Generator | None = None,
) -> DiscreteDistribution:
    """The distribution of the return from `state`.

    For rewards that are numbers, by following every path until the probability of those still on their way is below
    `tolerance` (their return so far is then taken for the whole; `error` says how much mass that is). For rewards drawn
    from distributions, the empirical distribution of `samples` returns, which takes an `rng`; `error` is then its 95%
    band.
    """
    if mdp.has_continuous_rewards:
        if rng is None:
            raise ValueError(
                f"{mdp.name} has rewards that are drawn from distributions; give an rng to sample returns with"
            )
        band = float(np.sqrt(np.log(2 / 0.05) / (2 * samples)))  # Dvoretzky, Kiefer, Wolfowitz and Massart
        sampled = DiscreteDistribution.from_atoms(sample_returns(mdp, policy, state, samples, rng))
        return DiscreteDistribution(sampled.atoms, sampled.probs, band)
    choose = action_probs(mdp, policy)
    states, values, mass = np.array([state]), np.zeros(1), np.ones(1)
    done_values, done_mass, factor = [], [], 1.0
    while mass.sum() > tolerance:
        weights = mass[:, None, None] * choose[states][:, :, None] * mdp.probs[states]
        returns = values[:, None, None] + factor * mdp.rewards[states]
        ends, alive = mdp.terminal[states] & (weights > 0), ~mdp.terminal[states] & (weights > 0)
        done_values.append(returns[ends])
        done_mass.append(weights[ends])
        states, values, mass = _merge(mdp.next_states[states][alive], returns[alive], weights[alive])
        factor *= mdp.discount
        if len(mass) > max_atoms:
            raise ValueError(f"more than {max_atoms} different returns; use sample_returns, or raise max_atoms")
        if factor < tolerance:
            break
    left = float(mass.sum())
    atoms, probs = np.concatenate([*done_values, values]), np.concatenate([*done_mass, mass])
    whole = DiscreteDistribution.from_atoms(np.round(atoms, 14), probs)
    return DiscreteDistribution(whole.atoms, whole.probs, left)


def _merge(states: np.ndarray, values: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Paths that are in the same state with the same return so far, added up."""
    if not len(states):
        return states, values, mass
    keys, where = np.unique(np.stack([states, np.round(values, 13)]), axis=1, return_inverse=True)
    return keys[0].astype(np.int64), keys[1], np.bincount(where.ravel(), mass)


def sample_returns(
    mdp: TabularMDP,
    policy: Policy,
    state: int,
    count: int,
    rng: np.random.Generator,
    max_steps: int = 100_000,
) -> Float[np.ndarray, " count"]:
    """Returns of independent episodes from `state`."""
    choose = np.cumsum(action_probs(mdp, policy), axis=-1)
    outcomes = np.cumsum(mdp.probs, axis=-1)
    returns = np.zeros(count)
    running, states, factor = np.arange(count), np.full(count, state), 1.0
    for _ in range(max_steps):
        actions = _pick(choose[states], rng)
        picked = _pick(outcomes[states, actions], rng)
        place = (states, actions, picked)
        rewards, distributions = mdp.rewards[place].copy(), mdp.reward_index[place]
        for index, distribution in enumerate(mdp.reward_distributions):
            drawn = distributions == index
            rewards[drawn] += distribution.distribution.quantile(rng.random(int(drawn.sum())))
        returns[running] += factor * rewards
        alive = ~mdp.terminal[place]
        running, states = running[alive], mdp.next_states[place][alive]
        factor *= mdp.discount
        if not len(running) or factor < 1e-16:
            return returns
    raise ValueError(f"{len(running)} of {count} episodes were not over after {max_steps} steps")


def _pick(cumulative: Float[np.ndarray, "n k"], rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """One index a row, by its cumulative probabilities."""
    picked = (rng.random(len(cumulative))[:, None] >= cumulative).sum(-1)
    return np.minimum(picked, cumulative.shape[1] - 1)
