"""What learning did: errors against the truth, and the parts that the paper takes them apart into."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.tabular.exact import DiscreteDistribution, Policy, action_probs, policy_values, solve, wasserstein
from qemrl.tabular.learning import History
from qemrl.tabular.mdp import TabularMDP
from qemrl.tabular.representations import Categories, Quantiles, Representation


class Decomposition(NamedTuple):
    """The parts of Δ = Q̂ − Q in the paper's equation (1), for each seed, record, state and action.

    They add up to Δ. Pairs that were never visited have no sampled operator: there `target` and `sampling` are NaN.
    """

    target: Float[np.ndarray, "seeds t s a"]
    """E1, the estimate less the sampled operator applied to all estimates."""
    sampling: Float[np.ndarray, "seeds t s a"]
    """E2, the sampled operator less the true one."""
    parametrization: Float[np.ndarray, "seeds t s a"]
    """E3, the true operator applied to the estimates less the truth."""


def decompose(mdp: TabularMDP, history: History, policy: Policy | None = None) -> Decomposition:
    """Equation (1) for the learned estimates; without a policy, for the greedy one against the optimal values.

    The sampled operator averages over the outcomes seen so far, with expected rewards for those that are random.
    """
    truth = solve(mdp).q if policy is None else policy_values(mdp, policy)
    values = history.q.max(-1) if policy is None else (history.q * action_probs(mdp, policy)).sum(-1)
    backed_up = mdp.mean_rewards + mdp.discount * ~mdp.terminal * values[..., mdp.next_states]
    seen = history.counts.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        sampled = (history.counts / seen * backed_up).sum(-1)
    exact = (mdp.probs * backed_up).sum(-1)
    return Decomposition(history.q - sampled, sampled - exact, exact - truth)


def start_error(mdp: TabularMDP, history: History, truth: float) -> Float[np.ndarray, "seeds t"]:
    """Q̂ of the best action in the first state, less the truth."""
    return history.q[:, :, mdp.start].max(-1) - truth


def start_distances(
    mdp: TabularMDP, history: History, representation: Representation, truth: DiscreteDistribution
) -> Float[np.ndarray, "seeds t"]:
    """W₁ between the learned return distribution of the best action in the first state and the truth."""
    best = history.q[:, :, mdp.start].argmax(-1)
    rows = np.take_along_axis(history.rows, best[:, :, None, None], axis=2)[:, :, 0]
    return np.array([[wasserstein(as_distribution(representation, row), truth) for row in seed] for seed in rows])


def as_distribution(representation: Representation, row: Float[np.ndarray, " d"]) -> DiscreteDistribution:
    """The distribution that a learned row of quantiles or probabilities stands for."""
    if isinstance(representation, Quantiles):
        return DiscreteDistribution.from_atoms(row)
    if isinstance(representation, Categories):
        return DiscreteDistribution.from_atoms(representation.support, np.maximum(row, 0))
    raise ValueError(f"a row of {type(representation).__name__} stands for no single distribution")


def temporal_std(history: History, records: int) -> Float[np.ndarray, "seeds s a"]:
    """How much each estimate still moves: its standard deviation over the last `records` records."""
    if not 2 <= records <= history.q.shape[1]:
        raise ValueError(f"records must be between 2 and {history.q.shape[1]}, got {records}")
    return history.q[:, -records:].std(axis=1)
