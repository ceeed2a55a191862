"""Dynamic programming, distributions of returns and distances, against hand calculations and brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qemrl.experiments.statistics import mean_interval
from qemrl.tabular import (
    DiscreteDistribution,
    chain,
    cramer,
    frozen_lake,
    make_mdp,
    policy_values,
    random_mdp,
    return_distribution,
    sample_returns,
    solve,
    toy_uniform,
    wasserstein,
)

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def lake():
    return frozen_lake()


@pytest.fixture(scope="module")
def best(lake):
    return solve(lake)


def two_states():
    """From 0 to 1 with reward 1; from 1 back with reward 2 and chance 1/2, or to the end with reward 4."""
    return make_mdp([[[(1.0, 1, 1.0, False)]], [[(0.5, 0, 2.0, False), (0.5, 1, 4.0, True)]]], 0.5)


def test_the_lake_has_the_known_value_gap_and_chance_of_success(best):
    assert best.v[0] == pytest.approx(0.785533, abs=5e-7)
    ranked = np.sort(best.q[0])
    assert ranked[-1] - ranked[-2] == pytest.approx(0.0023, abs=5e-5)
    assert best.policy[0] == best.q[0].argmax() == 0
    assert solve(frozen_lake(discount=1.0)).v[0] == pytest.approx(0.8235, abs=5e-5)


def test_optimal_values_are_those_of_value_iteration(lake, best):
    other = random_mdp(6, 3, 3, np.random.default_rng(4))
    for mdp, solution in [(lake, best), (other, solve(other))]:
        q = np.zeros((mdp.num_states, mdp.num_actions))
        for _ in range(20_000):
            before = q.copy()
            for s, a in np.ndindex(*q.shape):
                q[s, a] = sum(
                    mdp.probs[s, a, k]
                    * (
                        mdp.rewards[s, a, k]
                        + (not mdp.terminal[s, a, k]) * mdp.discount * q[mdp.next_states[s, a, k]].max()
                    )
                    for k in range(mdp.probs.shape[2])
                )
            if np.abs(q - before).max() < 1e-9:
                break
        np.testing.assert_allclose(solution.q, q, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_no_deterministic_policy_is_better_than_the_optimal_one(seed):
    mdp = random_mdp(4, 3, 2, np.random.default_rng(seed))
    solution = solve(mdp)
    everyone = [
        policy_values(mdp, np.array(policy))[np.arange(4), list(policy)] for policy in product(range(3), repeat=4)
    ]
    np.testing.assert_allclose(solution.v, np.max(everyone, axis=0), rtol=1e-10)
    np.testing.assert_allclose(policy_values(mdp, solution.policy), solution.q, rtol=1e-10)


def test_ties_go_to_the_first_action():
    same = [(1.0, 0, 1.0, True)]
    worse = [(1.0, 0, 0.0, True)]
    np.testing.assert_array_equal(solve(make_mdp([[worse, same, same]], 0.9)).policy, [1])


def test_values_of_two_states_solve_their_two_equations():
    # v0 = 1 + v1 / 2 and v1 = (2 + v0 / 2) / 2 + 4 / 2 = 3 + v0 / 4, so v0 = 5/2 + v0 / 8: v0 = 20/7, v1 = 26/7
    np.testing.assert_allclose(policy_values(two_states(), np.zeros(2, dtype=np.int64))[:, 0], [20 / 7, 26 / 7])


def test_a_policy_that_mixes_mixes_rewards_and_futures():
    # One state: stop for 1, or go on for 0. With chance p to go on, v = (1 − p) + p v / 2
    mdp = make_mdp([[[(1.0, 0, 1.0, True)], [(1.0, 0, 0.0, False)]]], 0.5)
    value = 0.75 / (1 - 0.25 / 2)
    np.testing.assert_allclose(policy_values(mdp, np.array([[0.75, 0.25]])), [[1.0, value / 2]])
    returns = return_distribution(mdp, np.array([[0.75, 0.25]]), 0)
    np.testing.assert_allclose(returns.atoms[-3:], [0.25, 0.5, 1.0])
    np.testing.assert_allclose(returns.probs[-3:], [0.75 / 16, 0.75 / 4, 0.75])
    assert returns.mean == pytest.approx(value)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.array([0, 4]), "actions are 0 to 0, got 0 to 4"),
        (np.array([0, 0, 0]), r"2 actions or a table of shape \(2, 1\), got the shape \(3,\)"),
        (np.array([[1.0], [0.5]]), "probabilities in state 1"),
    ],
)
def test_a_policy_that_is_none_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        policy_values(two_states(), policy)


def test_a_policy_that_never_ends_has_no_values_without_a_discount():
    with pytest.raises(ValueError, match="may go on forever"):
        policy_values(make_mdp([[[(1.0, 0, 1.0, False)]]], 1.0), np.zeros(1, dtype=np.int64))


def test_a_million_episodes_on_the_lake_agree_with_dynamic_programming(lake, best):
    returns = sample_returns(lake, best.policy, 0, 1_000_000, np.random.default_rng(0))
    interval = mean_interval(returns)
    assert interval.high - interval.low < 0.002
    assert interval.low < best.v[0] < interval.high
    exact = return_distribution(lake, best.policy, 0)
    within = np.sqrt(np.log(2 / 0.05) / (2 * len(returns)))
    at = exact.quantile(np.linspace(0.1, 0.9, 9))
    np.testing.assert_allclose(
        DiscreteDistribution.from_atoms(returns).cdf(at + 1e-9), exact.cdf(at + 1e-9), atol=within
    )


def test_episodes_that_never_end_are_reported():
    with pytest.raises(ValueError, match="3 of 3 episodes were not over after 10 steps"):
        sample_returns(
            make_mdp([[[(1.0, 0, 1.0, False)]]], 0.9), np.zeros(1, dtype=np.int64), 0, 3, np.random.default_rng(0), 10
        )


def test_the_return_on_the_lake_is_zero_or_close_to_one(lake, best):
    returns = return_distribution(lake, best.policy, 0)
    assert returns.atoms[0] == 0
    assert returns.probs[0] == pytest.approx(0.1765, abs=5e-5)
    np.testing.assert_allclose(returns.quantile(np.array([0.5])), 0.956, atol=5e-4)
    assert returns.mean == pytest.approx(best.v[0], abs=1e-9)
    assert returns.error <= 1e-12


def test_returns_of_two_states_are_found_path_by_path():
    # A round trip has the reward 1 + 2/2 = 2 and shrinks what follows to a quarter; an end after it gives 1 + 4/2 = 3
    returns = return_distribution(two_states(), np.zeros(2, dtype=np.int64), 0)
    rounds = np.arange(40)
    atoms = 2 * (1 - 0.25**rounds) / 0.75 + 3 * 0.25**rounds
    by_hand = DiscreteDistribution.from_atoms(atoms, 0.5 ** (rounds + 1))
    np.testing.assert_allclose(returns.atoms[-3:], [2.6875, 2.75, 3.0])
    np.testing.assert_allclose(returns.probs[-3:], [1 / 8, 1 / 4, 1 / 2])
    assert wasserstein(returns, by_hand) < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_and_the_variance_of_returns_solve_their_bellman_equations(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(3, 2, 2, rng, discount=0.2)
    policy = rng.dirichlet(np.ones(2), size=3)
    values = (policy_values(mdp, policy) * policy).sum(-1)
    # E Z² = E r² + 2 γ E r v' + γ² E Z'²
    go_on = mdp.discount * ~mdp.terminal
    weights = policy[:, :, None] * mdp.probs
    constant = (weights * (mdp.rewards**2 + 2 * mdp.rewards * go_on * values[mdp.next_states])).sum((1, 2))
    second = np.zeros(3)
    for _ in range(200):
        second = constant + (weights * go_on**2 * second[mdp.next_states]).sum((1, 2))
    for state in range(3):
        returns = return_distribution(mdp, policy, state, tolerance=1e-5)
        assert returns.mean == pytest.approx(values[state], abs=1e-4)
        assert returns.variance == pytest.approx(second[state] - values[state] ** 2, abs=1e-3)


def test_rewards_from_distributions_are_sampled_and_the_band_holds():
    mdp = toy_uniform(4, discount=0.5)
    policy = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="give an rng"):
        return_distribution(mdp, policy, 0)
    returns = return_distribution(mdp, policy, 0, samples=4000, rng=np.random.default_rng(0))
    assert returns.error == pytest.approx(np.sqrt(np.log(40) / 8000))
    x = np.linspace(0, 0.625, 26)
    true = (np.clip(2 * x, 0, 1) + np.clip(2 * x - 0.25, 0, 1)) / 2
    assert np.abs(returns.cdf(x) - true).max() < returns.error


def test_too_many_returns_are_refused_with_advice():
    with pytest.raises(ValueError, match="more than 50 different returns; use sample_returns, or raise max_atoms"):
        return_distribution(random_mdp(4, 1, 3, np.random.default_rng(0)), np.zeros(4, dtype=np.int64), 0, max_atoms=50)


def test_a_chain_of_numbers_has_one_return():
    returns = return_distribution(chain(3, 0.5, 8.0), np.zeros(3, dtype=np.int64), 0)
    np.testing.assert_allclose((returns.atoms, returns.probs), [[2.0], [1.0]])


def test_atoms_are_sorted_merged_and_weighed():
    found = DiscreteDistribution.from_atoms(np.array([3.0, 1.0, 3.0]), np.array([1.0, 2.0, 1.0]))
    np.testing.assert_array_equal(found.atoms, [1, 3])
    np.testing.assert_array_equal(found.probs, [0.5, 0.5])
    assert (found.mean, found.variance) == (2, 1)
    np.testing.assert_array_equal(found.quantile(np.array([0.1, 0.5, 0.51, 1.0])), [1, 1, 3, 3])
    np.testing.assert_array_equal(found.cdf(np.array([0.9, 1.0, 2.0, 3.0])), [0, 0.5, 0.5, 1])


@pytest.mark.parametrize(
    ("atoms", "probs", "message"),
    [
        ([1.0, 2.0], [1.5, -0.5], "must not be negative; the smallest is -0.5"),
        ([1.0, 2.0], [0.0, 0.0], "the smallest is 0.0"),
        ([], [], r"atoms of shape \(0,\)"),
    ],
)
def test_what_is_no_distribution_is_refused(atoms, probs, message):
    with pytest.raises(ValueError, match=message):
        DiscreteDistribution.from_atoms(np.array(atoms), np.array(probs))


def test_distances_of_two_coins_are_those_by_hand():
    # F − G is 1/2 on [0, 1) and −1/4 on [1, 3)
    first = DiscreteDistribution.from_atoms(np.array([0.0, 3.0]))
    second = DiscreteDistribution.from_atoms(np.array([1.0, 3.0]), np.array([0.75, 0.25]))
    assert wasserstein(first, second) == pytest.approx(0.5 + 0.5)
    assert cramer(first, second) == pytest.approx(np.sqrt(0.25 + 2 / 16))
    assert wasserstein(first, first) == cramer(second, second) == 0


def random_distribution(rng: np.random.Generator) -> DiscreteDistribution:
    size = int(rng.integers(1, 9))
    return DiscreteDistribution.from_atoms(
        rng.integers(-3, 4, size) * rng.choice([0.5, 1.0]), rng.dirichlet(np.ones(size))
    )


@given(seeds)
def test_wasserstein_is_scipys_and_both_are_distances(seed):
    rng = np.random.default_rng(seed)
    a, b, c = (random_distribution(rng) for _ in range(3))
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a.atoms, b.atoms, a.probs, b.probs))
    assert np.sqrt(2) * cramer(a, b) == pytest.approx(stats.energy_distance(a.atoms, b.atoms, a.probs, b.probs))
    for distance in (wasserstein, cramer):
        assert distance(a, b) == pytest.approx(distance(b, a))
        assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12
        moved = DiscreteDistribution(a.atoms + 0.25, a.probs)
        assert distance(a, moved) > 0
