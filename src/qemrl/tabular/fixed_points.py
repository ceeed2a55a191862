"""Where projected distributional dynamic programming ends up: the limits of quantile, categorical and expectile TD.

All are for a policy, and give a distribution of returns for each state. They are exact for rewards that are numbers. A
reward that is drawn from a distribution stands for `resolution` equally likely numbers, its quantiles at midpoints.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from qemrl.distributional.expectiles import expectile_levels, impute
from qemrl.estimators.levels import midpoints
from qemrl.tabular.exact import Policy, action_probs
from qemrl.tabular.mdp import TabularMDP

Ties = Literal["lower", "middle", "upper"]


class Backup(NamedTuple):
    """What a state's return is made of: `probs` of reward plus `discount` times the return of `next_states`."""

    probs: Float[np.ndarray, "s m"]
    rewards: Float[np.ndarray, "s m"]
    next_states: Int[np.ndarray, "s m"]
    discounts: Float[np.ndarray, "s m"]


def backup(mdp: TabularMDP, policy: Policy, resolution: int = 1024) -> Backup:
    """The one-step mixture under a policy, with distributions of rewards taken apart into numbers."""
    probs = action_probs(mdp, policy)[:, :, None] * mdp.probs
    random = [each.distribution.quantile(midpoints(resolution)) for each in mdp.reward_distributions]
    numbers = [np.zeros(1), *random]
    rows = []
    for s in range(mdp.num_states):
        parts = []
        for a, k in zip(*np.nonzero(probs[s]), strict=True):
            rewards = mdp.rewards[s, a, k] + numbers[mdp.reward_index[s, a, k] + 1]
            go_on = 0.0 if mdp.terminal[s, a, k] else mdp.discount
            rest = (float(mdp.next_states[s, a, k]), go_on)
            columns = (probs[s, a, k] / len(rewards), rewards, *rest)
            parts.append(np.stack(np.broadcast_arrays(*columns)))
        rows.append(np.concatenate(parts, axis=1))
    table = np.zeros((4, mdp.num_states, max(row.shape[1] for row in rows)))
    for s, row in enumerate(rows):
        table[:, s, : row.shape[1]] = row
    return Backup(table[0], table[1], table[2].astype(np.int64), table[3])


def quantile_fixed_point(
    mdp: TabularMDP,
    policy: Policy,
    num_quantiles: int,
    ties: Ties = "middle",
    resolution: int = 1024,
    num_dropped: int = 0,
) -> Float[np.ndarray, "s n"]:
    """The quantiles at midpoints, for each state, that the projected Bellman operator leaves as they are.

    Where the distribution function is flat at a level, every point of the flat part is a quantile. `ties` says which
    is taken: its lower end, its upper end, or its middle. The largest `num_dropped` quantiles of what follows are left
    out of the targets, as in TQC; its critics are then all the same.
    """
    if not 0 <= num_dropped < num_quantiles:
        raise ValueError(f"num_dropped must be at least 0 and below num_quantiles={num_quantiles}, got {num_dropped}")
    step = backup(mdp, policy, resolution)
    levels = midpoints(num_quantiles)
    kept = num_quantiles - num_dropped

    def project(values: Float[np.ndarray, "s n"]) -> Float[np.ndarray, "s n"]:
        following = values[step.next_states][..., :kept]  # projections are sorted
        targets = step.rewards[:, :, None] + step.discounts[:, :, None] * following
        masses = np.broadcast_to(step.probs[:, :, None] / kept, targets.shape)
        targets, masses = (x.reshape(mdp.num_states, -1) for x in (targets, masses))
        targets = np.where(masses > 0, targets, np.inf)  # what pads the table comes last
        order = np.argsort(targets, axis=-1, kind="stable")
        targets, reached = np.take_along_axis(targets, order, -1), np.take_along_axis(masses, order, -1).cumsum(-1)
        ends = []
        for side, shift in (("lower", -1e-10), ("upper", 1e-10)):
            if ties in (side, "middle"):
                at = np.stack([np.searchsorted(row, levels + shift) for row in reached])
                last = (masses > 0).sum(-1, keepdims=True) - 1
                ends.append(np.take_along_axis(targets, np.minimum(at, last), -1))
        return np.mean(ends, axis=0)

    return _iterate(project, np.zeros((mdp.num_states, num_quantiles)))


def categorical_fixed_point(
    mdp: TabularMDP, policy: Policy, support: Float[np.ndarray, " m"], resolution: int = 1024
) -> Float[np.ndarray, "s m"]:
    """The probabilities on an evenly spaced `support`, for each state, that categorical TD converges to.

    The projected operator is linear in the probabilities, so this is the solution of a linear system.
    """
    support = np.asarray(support, dtype=np.float64)
    if support.ndim != 1 or len(support) < 2 or not np.allclose(np.diff(support), support[1] - support[0]):
        raise ValueError("the support must be at least two evenly spaced numbers in increasing order")
    step = backup(mdp, policy, resolution)
    states, size = mdp.num_states, len(support)
    width = support[1] - support[0]
    system = np.eye(states * size).reshape(states, size, states, size)
    constant = np.zeros((states, size))
    for s in range(states):
        for prob, reward, following, discount in zip(*(part[s] for part in step), strict=True):
            if prob == 0:
                continue
            targets = np.clip(reward + discount * support, support[0], support[-1])
            kernel = np.clip(1 - np.abs(targets[None, :] - support[:, None]) / width, 0, 1)
            if discount == 0:
                constant[s] += prob * kernel[:, 0]
            else:
                system[s, :, following, :] -= prob * kernel
    whole = states * size
    # Without an end to episodes the probabilities of a state are determined up to their sum, which is one.
    matrix = np.concatenate([system.reshape(whole, whole), np.kron(np.eye(states), np.ones((1, size)))])
    right = np.concatenate([constant.ravel(), np.ones(states)])
    solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
    return solution.reshape(states, size)


def expectiles(
    atoms: Float[np.ndarray, "*batch m"], probs: Float[np.ndarray, "*batch m"], levels: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "*batch n"]:
    """The expectiles of distributions on atoms: where τ E(Z − e)₊ = (1 − τ) E(e − Z)₊.

    Between two atoms both sides are linear in e, so a level's expectile is found exactly on its piece.
    """
    order = np.argsort(atoms, axis=-1)
    x, p = np.take_along_axis(atoms, order, -1), np.take_along_axis(probs, order, -1)
    below, mass = np.cumsum(p * x, -1), np.cumsum(p, -1)
    mean, whole = below[..., -1:], mass[..., -1:]
    # g_k = τ E(Z − x_k)₊ − (1 − τ) E(x_k − Z)₊ falls in k; the root lies right of the last atom where it is not below 0
    tau = levels[:, None]
    above_part = (mean - below) - x * (whole - mass)
    below_part = x * mass - below
    gap = tau * above_part[..., None, :] - (1 - tau) * below_part[..., None, :]
    last = np.maximum((gap >= 0).sum(-1) - 1, 0)
    m, b = np.take_along_axis(mass, last, -1), np.take_along_axis(below, last, -1)
    return (levels * (mean - b) + (1 - levels) * b) / (levels * (whole - m) + (1 - levels) * m)


def expectile_fixed_point(
    mdp: TabularMDP, policy: Policy, num_expectiles: int, resolution: int = 256
) -> Float[np.ndarray, "s n"]:
    """The expectiles at `expectile_levels`, for each state, that expectile TD with imputation leaves as they are."""
    step = backup(mdp, policy, resolution)
    levels = expectile_levels(num_expectiles)

    def project(values: Float[np.ndarray, "s n"]) -> Float[np.ndarray, "s n"]:
        atoms, probs = impute(values, levels)
        targets = step.rewards[:, :, None] + step.discounts[:, :, None] * atoms[step.next_states]
        masses = step.probs[:, :, None] * probs[step.next_states]
        return expectiles(targets.reshape(len(targets), -1), masses.reshape(len(masses), -1), levels)

    return _iterate(project, np.zeros((mdp.num_states, num_expectiles)), tolerance=1e-9)


def _iterate(
    operator: Callable[[np.ndarray], np.ndarray], values: np.ndarray, tolerance: float = 1e-12, limit: int = 200_000
) -> np.ndarray:
    for _ in range(limit):
        following = operator(values)
        if np.abs(following - values).max() <= tolerance * (1 + np.abs(following).max()):
            return following
        values = following
    raise RuntimeError(f"no fixed point within {limit} iterations; is the discount below one?")
