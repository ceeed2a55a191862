"""Fixed points of projected dynamic programming, expectiles and imputation, against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from qemrl import midpoints
from qemrl.tabular import (
    Categories,
    Learning,
    Quantiles,
    Steps,
    categorical_fixed_point,
    chain,
    expectile_fixed_point,
    expectile_levels,
    expectiles,
    frozen_lake,
    impute,
    learn,
    make_mdp,
    normal_mixture_reward,
    policy_values,
    quantile_fixed_point,
    random_mdp,
    solve,
    toy_uniform,
)

seeds = st.integers(0, 2**32 - 1)
TIES = ("lower", "middle", "upper")


@pytest.fixture(scope="module")
def lake():
    return frozen_lake()


@pytest.fixture(scope="module")
def policy(lake):
    return solve(lake).policy


def one_outcome(mdp) -> np.ndarray:
    return np.zeros(mdp.num_states, dtype=np.int64)


def outcomes_of(mdp, policy, state):
    """Tuples of probability, reward, next state and discount, for a process whose rewards are numbers."""
    choose = policy if policy.ndim == 2 else np.eye(mdp.num_actions)[policy]
    for a, k in np.ndindex(*mdp.probs.shape[1:]):
        place = (state, a, k)
        prob = choose[state, a] * mdp.probs[place]
        if prob > 0:
            yield prob, mdp.rewards[place], mdp.next_states[place], mdp.discount * (not mdp.terminal[place])


def projected_backup(mdp, policy, values, ties):
    """One step of quantile dynamic programming, atom by atom."""
    count = values.shape[1]
    result = np.zeros_like(values)
    for state in range(mdp.num_states):
        atoms = sorted(
            (reward + discount * value, prob / count)
            for prob, reward, following, discount in outcomes_of(mdp, policy, state)
            for value in values[following]
        )
        for i, level in enumerate(midpoints(count)):
            ends, reached = [], 0.0
            for atom, mass in atoms:
                reached += mass
                if reached >= level - 1e-10 and not ends:
                    ends.append(atom)
                if reached >= level + 1e-10:
                    ends.append(atom)
                    break
            result[state, i] = {"lower": ends[0], "upper": ends[-1], "middle": (ends[0] + ends[-1]) / 2}[ties]
    return result


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_quantile_fixed_points_are_left_alone_and_attract_every_start(ties, count):
    rng = np.random.default_rng(count)
    mdp = random_mdp(3, 2, 2, rng, discount=0.5)
    for policy in (rng.dirichlet(np.ones(2), 3), np.array([0, 1, 0])):
        fixed = quantile_fixed_point(mdp, policy, count, ties)
        np.testing.assert_allclose(projected_backup(mdp, policy, fixed, ties), fixed, atol=1e-10)
        for scale in (1.0, 100.0):
            values = np.sort(rng.normal(0, scale, fixed.shape))
            for _ in range(45):
                values = projected_backup(mdp, policy, values, ties)
            np.testing.assert_allclose(values, fixed, atol=1e-9)


def test_quantiles_on_the_lake_are_left_alone_and_rise_with_the_level(lake, policy):
    fixed = quantile_fixed_point(lake, policy, 32, "lower")
    np.testing.assert_allclose(projected_backup(lake, policy, fixed, "lower"), fixed, atol=1e-9)
    assert (np.diff(fixed, axis=-1) >= 0).all()
    assert fixed[0, 0] == 0
    assert fixed[0, -1] > 0.9


def test_quantiles_of_a_coin_at_the_end_of_a_chain_are_those_by_hand():
    # Rewards 0 with chance 1/4 and 1 else, one step away at discount 1/2. Levels 1/8, 3/8, 5/8, 7/8: one 0, three 1s
    coin = [[(0.25, 1, 0.0, True), (0.75, 1, 1.0, True)]]
    mdp = make_mdp([[[(1.0, 1, 10.0, False)]], coin], 0.5)
    np.testing.assert_allclose(quantile_fixed_point(mdp, one_outcome(mdp), 4), [[10, 10.5, 10.5, 10.5], [0, 1, 1, 1]])
    # Levels 1/4 and 3/4: the first is a tie between 0 and 1, at state 1
    expected = {"lower": 0.0, "middle": 0.5, "upper": 1.0}
    for ties in TIES:
        fixed = quantile_fixed_point(mdp, one_outcome(mdp), 2, ties)
        np.testing.assert_allclose(fixed, [[10 + expected[ties] / 2, 10.5], [expected[ties], 1]])


@given(seeds)
def test_quantiles_rise_with_the_level_and_from_lower_to_upper_ties(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(3, 1, 2, rng, discount=0.6)
    lower, middle, upper = (quantile_fixed_point(mdp, one_outcome(mdp), 5, ties) for ties in TIES)
    for fixed in (lower, middle, upper):
        assert (np.diff(fixed, axis=-1) >= -1e-12).all()
    assert (lower <= middle + 1e-9).all()
    assert (middle <= upper + 1e-9).all()


def test_the_first_quantile_of_uniform_rewards_is_any_number_between_two_bounds():
    # [γ/2N, 3γ/2N], with the true γ/N in the middle. An odd number of atoms for each quantile is exact.
    count, discount = 8, 0.9
    mdp = toy_uniform(count, discount)
    first = [quantile_fixed_point(mdp, one_outcome(mdp), count, ties, resolution=125 * count)[0] for ties in TIES]
    ends = discount * np.array([1, 2, 3])[:, None] / (2 * count) + discount * np.arange(count) / count
    np.testing.assert_allclose(first, ends, atol=1e-9)


def test_quantile_td_with_small_steps_comes_to_the_fixed_point():
    # Two states with continuous returns, where the quantile is unique
    distribution = normal_mixture_reward((0.7, 0.3), (-2.0, 3.0), (1.0, 1.0))
    mdp = make_mdp([[[(1.0, 1, 1.0, False)]], [[(0.5, 0, distribution, False), (0.5, 1, distribution, True)]]], 0.8)
    fixed = quantile_fixed_point(mdp, one_outcome(mdp), 8)
    learning = Learning(Quantiles(8), 40_000, Steps((0.5, 0.1, 0.02), (10_000, 20_000)), record_every=40_000)
    table = learn(mdp, learning, range(16), one_outcome(mdp)).table[:, :, 0]
    # The error of the mean over seeds; a single one still moves by about ten times as much
    assert np.abs(table.mean(0) - fixed).max() < 0.08
    assert np.abs(fixed).max() > 2


def test_categorical_td_with_small_steps_comes_to_the_fixed_point():
    mdp = chain(3, 0.9)
    categories = Categories(-5.0, 5.0, 11)
    fixed = categorical_fixed_point(mdp, one_outcome(mdp), categories.support)
    learning = Learning(categories, 20_000, Steps((0.1, 0.01, 0.002), (3_000, 8_000)), record_every=20_000)
    table = learn(mdp, learning, range(16), one_outcome(mdp)).table[:, :, 0]
    np.testing.assert_allclose(table.sum(-1), 1, atol=1e-4)
    np.testing.assert_allclose(table.mean(0), fixed, atol=0.005)
    assert fixed.max() > 0.1


def test_a_wide_support_preserves_the_mean_and_a_narrow_one_does_not(lake, policy):
    exact = policy_values(lake, policy)[np.arange(16), policy]
    for low, high, same in [(-0.5, 1.5, True), (0.0, 0.5, False)]:
        support = np.linspace(low, high, 21)
        probs = categorical_fixed_point(lake, policy, support)
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-9)
        assert probs.min() > -1e-9
        if same:
            np.testing.assert_allclose(probs @ support, exact, atol=1e-8)
        else:
            assert (probs @ support).max() <= 0.5 + 1e-9
            assert (probs @ support)[0] < exact[0] - 0.2


def test_categorical_probabilities_by_hand():
    # Reward 0.25 at the end; on 0, 1, 2 that is 3/4 and 1/4. One step before: half of each atom, 0 and 1/2
    mdp = chain(2, 0.5, 0.25)
    probs = categorical_fixed_point(mdp, one_outcome(mdp), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(probs, [[0.875, 0.125, 0], [0.75, 0.25, 0]], atol=1e-12)


def test_a_process_without_an_end_has_categorical_probabilities_too():
    mdp = make_mdp([[[(1.0, 0, 1.0, False)]]], 0.5)  # the return is 2
    probs = categorical_fixed_point(mdp, one_outcome(mdp), np.linspace(-4.0, 4.0, 5))
    np.testing.assert_allclose(probs @ np.linspace(-4.0, 4.0, 5), [2.0])
    np.testing.assert_allclose(probs.sum(-1), 1)


@pytest.mark.parametrize("support", [[0.0], [0.0, 1.0, 3.0]])
def test_an_uneven_support_is_refused(lake, policy, support):
    with pytest.raises(ValueError, match="evenly spaced"):
        categorical_fixed_point(lake, policy, np.array(support))


@pytest.mark.parametrize("count", [4, 3, 6])
def test_an_even_number_of_expectiles_and_too_few_are_refused(count):
    with pytest.raises(ValueError, match=f"odd and at least 5, got {count}"):
        expectile_levels(count)


def by_root(atoms: np.ndarray, probs: np.ndarray, level: float) -> float:
    """The expectile where the definition's two sides are equal."""

    def gap(e: float):
        return level * probs @ np.maximum(atoms - e, 0) - (1 - level) * probs @ np.maximum(e - atoms, 0)

    return optimize.root_scalar(gap, bracket=(atoms.min() - 1, atoms.max() + 1), xtol=1e-13).root


@given(seeds)
def test_expectiles_are_the_roots_of_their_definition(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 8))
    atoms, probs = rng.integers(-4, 5, (2, size)) / 2, rng.dirichlet(np.ones(size), 2)
    levels = expectile_levels(7)
    for row, x, p in zip(expectiles(atoms, probs, levels), atoms, probs, strict=True):
        np.testing.assert_allclose(row, [by_root(x, p, level) for level in levels], atol=1e-9)
        np.testing.assert_allclose(row[3], p @ x, atol=1e-12)


def test_expectiles_of_a_coin_are_their_levels():
    # τ (1 − e) / 2 = (1 − τ) e / 2
    levels = expectile_levels(9)
    np.testing.assert_allclose(expectiles(np.array([1.0, 0.0]), np.array([0.5, 0.5]), levels), levels)


@given(seeds, st.sampled_from([5, 9, 11]), st.floats(-100, 100))
def test_an_imputed_distribution_has_exactly_the_expectiles_it_was_made_of(seed, count, shift):
    rng = np.random.default_rng(seed)
    levels = expectile_levels(count)
    atoms, probs = rng.normal(shift, 1, (3, 12)), rng.dirichlet(np.ones(12), 3)
    values = expectiles(atoms, probs, levels)
    found, mass = impute(values, levels)
    np.testing.assert_allclose(mass.sum(-1), 1)
    assert mass.min() >= 0
    np.testing.assert_allclose((found * mass).sum(-1), values[:, count // 2], atol=1e-9 * (1 + abs(shift)))
    np.testing.assert_allclose(expectiles(found, mass, levels), values, atol=1e-6)


def test_imputation_in_jax_is_that_in_numpy():
    rng = np.random.default_rng(0)
    levels = expectile_levels(11)
    values = expectiles(rng.normal(size=(4, 30)), rng.dirichlet(np.ones(30), 4), levels)
    atoms, probs = (np.asarray(part) for part in jax.jit(lambda v: impute(v, levels))(jnp.asarray(values, jnp.float32)))
    expected = impute(values, levels)
    np.testing.assert_allclose(probs, expected[1], atol=2e-4)
    np.testing.assert_allclose(atoms, expected[0], atol=2e-2)
    np.testing.assert_allclose(
        expectiles(atoms.astype(np.float64), probs.astype(np.float64), levels), values, atol=2e-5
    )


@pytest.mark.parametrize("value", [0.0, 1.0, -300.0])
@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-12])
def test_equal_and_nearly_equal_expectiles_impute_one_point(value, noise):
    levels = expectile_levels(7)
    values = value + noise * np.random.default_rng(0).normal(size=(5, 7))
    for rows in (values, jnp.asarray(values, jnp.float32)):
        atoms, probs = (np.asarray(part, dtype=np.float64) for part in impute(rows, levels))
        assert np.isfinite(atoms).all()
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose((atoms * probs).sum(-1), value, atol=1e-4 * (1 + abs(value)))


def test_expectile_fixed_points_preserve_the_mean_and_are_left_alone(lake, policy):
    fixed = expectile_fixed_point(lake, policy, 7)
    exact = policy_values(lake, policy)[np.arange(16), policy]
    np.testing.assert_allclose(fixed[:, 3], exact, atol=2e-6)
    assert (np.diff(fixed, axis=-1) >= -1e-9).all()
    levels = expectile_levels(7)
    atoms, probs = impute(fixed, levels)
    for state in range(16):
        parts = list(outcomes_of(lake, policy, state))
        targets = np.concatenate([reward + discount * atoms[n] for _, reward, n, discount in parts])
        masses = np.concatenate([prob * probs[n] for prob, _, n, _ in parts])
        expected = [by_root(targets, masses, level) for level in levels]
        np.testing.assert_allclose(fixed[state], expected, atol=1e-6)


def test_expectiles_of_distributions_are_those_of_their_quantiles():
    mdp = toy_uniform(4, discount=0.5)
    fixed = expectile_fixed_point(mdp, one_outcome(mdp), 5, resolution=100)
    np.testing.assert_allclose(fixed[:, 2], [0.25 * (0.5 + 0.75), 0.5, 0.75], atol=1e-8)
    atoms = midpoints(100)
    np.testing.assert_allclose(fixed[1], expectiles(atoms, np.full(100, 0.01), expectile_levels(5)), atol=1e-8)
