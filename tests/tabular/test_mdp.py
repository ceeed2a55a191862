"""Processes: what may be written down, and what the built-in ones are."""

import gymnasium
import jax
import numpy as np
import pytest

from qemrl.tabular import (
    Outcome,
    chain,
    exponential,
    from_gymnasium,
    frozen_lake,
    make_mdp,
    normal_mixture_reward,
    policy_values,
    random_mdp,
    sample_returns,
    toy_exponential,
    toy_uniform,
    uniform,
)

STAY = [Outcome(1.0, 0, 0.0, True)]


def only_action(mdp) -> np.ndarray:
    return np.zeros(mdp.num_states, dtype=np.int64)


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([[STAY], [[(0.5, 0, 1.0, True), (0.4, 1, 1.0, True)]]], "state 1, action 0: the probabilities add up to 0.9"),
        ([[STAY, []]], "state 0, action 1: the probabilities add up to 0,"),
        ([[STAY, [(1.5, 0, 0.0, True), (-0.5, 0, 0.0, True)]]], "state 0, action 1: a probability is -0.5"),
        ([[[(float("nan"), 0, 0.0, True)]]], "state 0, action 0: a probability is nan"),
        ([[[(1.0, 1, 0.0, False)]]], "state 0, action 0: there is no state 1; states are 0 to 0"),
        ([[STAY], [[(1.0, -1, 0.0, False)]]], "state 1, action 0: there is no state -1; states are 0 to 1"),
        ([[[(1.0, 0, float("inf"), True)]]], "state 0, action 0: a reward is inf"),
        ([[STAY, STAY], [STAY]], "state 1 has 1 actions, state 0 has 2"),
        ([], "at least one state"),
        ([[]], "at least one state and one action"),
    ],
)
def test_a_process_that_is_none_is_refused_with_the_place_of_the_mistake(outcomes, message):
    with pytest.raises(ValueError, match=message):
        make_mdp(outcomes, 0.9)


@pytest.mark.parametrize("discount", [-0.1, 1.01, float("nan")])
def test_a_discount_outside_0_and_1_is_refused(discount):
    with pytest.raises(ValueError, match="between 0 and 1, got"):
        make_mdp([[STAY]], discount)


@pytest.mark.parametrize("initial", [2, -1])
def test_a_first_state_that_does_not_exist_is_refused(initial):
    with pytest.raises(ValueError, match=f"no first state {initial}; states are 0 to 1"):
        make_mdp([[STAY], [STAY]], 0.9, initial)


@pytest.mark.parametrize("initial", [[1.0], [0.5, 0.4], [1.5, -0.5]])
def test_a_distribution_of_the_first_state_that_is_none_is_refused(initial):
    with pytest.raises(ValueError, match="must be 2 probabilities that add up to one"):
        make_mdp([[STAY], [STAY]], 0.9, initial)


def test_outcomes_become_padded_arrays_and_equal_distributions_are_listed_once():
    distribution = exponential(3.0)
    mdp = make_mdp(
        [[[(0.25, 1, 2.0, False), (0.75, 0, distribution, True)]], [[Outcome(1.0, 1, distribution, True)]]],
        0.5,
        [0.25, 0.75],
        "two",
    )
    assert (mdp.num_states, mdp.num_actions, mdp.start, mdp.name) == (2, 1, 1, "two")
    np.testing.assert_array_equal(mdp.probs, [[[0.25, 0.75]], [[1.0, 0.0]]])
    np.testing.assert_array_equal(mdp.next_states, [[[1, 0]], [[1, 0]]])
    np.testing.assert_array_equal(mdp.reward_index, [[[-1, 0]], [[0, -1]]])
    np.testing.assert_array_equal(mdp.mean_rewards, [[[2.0, 3.0]], [[3.0, 0.0]]])
    assert mdp.has_continuous_rewards
    assert mdp.reward_distributions == (distribution,)
    assert mdp.discount == 0.5


@pytest.mark.parametrize(("size", "side", "holes"), [("4x4", 4, 4), ("8x8", 8, 10)])
def test_frozen_lake_is_gymnasiums_lake(size, side, holes):
    lake = frozen_lake(size)
    assert (lake.num_states, lake.num_actions, lake.start, lake.discount) == (side**2, 4, 0, 0.999)
    assert "".join(lake.grid).count("H") == holes
    assert not lake.has_continuous_rewards
    # Left at the start: a third each for staying (by left and by up) and for going down
    leads_to = np.bincount(lake.next_states[0, 0], lake.probs[0, 0], minlength=side**2)
    np.testing.assert_allclose(leads_to[[0, side]], [2 / 3, 1 / 3])
    goal = lake.num_states - 1
    entering = (lake.next_states == goal) & (lake.probs > 0) & (np.arange(goal + 1) != goal)[:, None, None]
    np.testing.assert_array_equal(lake.rewards, entering)
    assert lake.terminal[entering].all()


def test_a_lake_of_ones_own_that_is_not_slippery_is_a_shortest_path():
    lake = frozen_lake(["SFF", "HHF", "GFF"], slippery=False, discount=0.5)
    right, down, left = 2, 1, 0
    policy = np.array([right, right, down, 0, 0, down, 0, left, left])
    assert policy_values(lake, policy)[0, right] == pytest.approx(0.5**5)  # the reward comes with the sixth step
    assert lake.grid == tuple("SFFHHFGFF")


@pytest.mark.parametrize("rows", [["SF", "G"], ["SX", "FG"], ["FF", "FG"], [], [""]])
def test_a_map_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match="rows of equal length"):
        frozen_lake(rows)


def test_an_unknown_size_of_lake_is_refused_with_the_ones_there_are():
    with pytest.raises(ValueError, match="no map '5x5'; maps are 4x4, 8x8"):
        frozen_lake("5x5")


@pytest.mark.parametrize("make", [lambda name: name, gymnasium.make])
def test_cliff_walking_along_the_edge_costs_thirteen_steps(make):
    mdp = from_gymnasium(make("CliffWalking-v1"), 1.0)
    up, right, down = 0, 1, 2
    policy = np.full(48, right)
    policy[36], policy[35] = up, down  # from the corner up, along the edge, down into the goal
    policy[11], policy[23] = down, down  # so that all states reach the goal
    policy[47] = up  # the goal is never left, as episodes end there
    assert (mdp.start, mdp.num_actions, mdp.grid, mdp.name) == (36, 4, (), "CliffWalking-v1")
    assert policy_values(mdp, policy)[36, up] == pytest.approx(-13)
    assert policy_values(mdp, policy)[36, right] == pytest.approx(-113)


def test_an_environment_without_a_table_is_refused():
    with pytest.raises(ValueError, match=r"CartPole.* exposes no table of transitions `P`; make_mdp"):
        from_gymnasium("CartPole-v1", 0.9)


def test_the_chain_ends_in_the_mean_of_the_mixture():
    mdp = chain()
    mean = 0.7 * -2 + 0.3 * 3
    values = policy_values(mdp, only_action(mdp))[:, 0]
    np.testing.assert_allclose(values, mean * 0.99 ** np.arange(5, -1, -1.0))
    np.testing.assert_allclose(policy_values(chain(3, 0.5, 8.0), np.zeros(3, dtype=np.int64))[:, 0], [2, 4, 8])
    returns = sample_returns(mdp, only_action(mdp), 0, 40_000, np.random.default_rng(0))
    # the variance is 1 within the parts, and E m² − (E m)² between their means m
    scale = 0.99**5
    np.testing.assert_allclose(returns.mean(), scale * mean, atol=4 * 2.5 / 200)
    np.testing.assert_allclose(returns.var(), scale**2 * (1 + 0.7 * 4 + 0.3 * 9 - mean**2), rtol=0.05)


def test_a_chain_of_one_state_is_refused():
    with pytest.raises(ValueError, match="at least two states, got 1"):
        chain(1)


def test_uniform_rewards_have_the_means_of_their_intervals():
    mdp = toy_uniform(5, discount=0.8)
    np.testing.assert_allclose(policy_values(mdp, only_action(mdp))[:, 0], [0.8 * (0.5 + 0.7) / 2, 0.5, 0.7])
    assert [distribution.distribution.name for distribution in mdp.reward_distributions] == ["U(0, 1)", "U(0.2, 1.2)"]


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.5])
def test_exponential_rewards_give_the_stated_means_at_the_start_whatever_the_discount(discount):
    mdp = toy_exponential(discount=discount)
    np.testing.assert_allclose(policy_values(mdp, only_action(mdp))[0], [1.2, 1.0])
    returns = sample_returns(mdp, np.ones(5, dtype=np.int64), 0, 40_000, np.random.default_rng(1))
    np.testing.assert_allclose([returns.mean(), returns.std()], 1.0, atol=0.03)


def test_random_processes_are_processes_and_repeat():
    first, again, other = (random_mdp(7, 3, 4, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_allclose(first.probs.sum(-1), 1)
    assert first.probs.shape == (7, 3, 4)
    np.testing.assert_array_equal(first.rewards, again.rewards)
    assert not np.array_equal(first.rewards, other.rewards)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: uniform(1.0, 1.0), "low must be less than high"), (lambda: exponential(0.0), "mean must be positive")],
)
def test_distributions_without_spread_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "distribution", [uniform(-1.0, 3.0), exponential(0.7), normal_mixture_reward((0.7, 0.3), (-2.0, 3.0), (1.0, 0.5))]
)
def test_draws_of_a_distribution_follow_its_quantiles(distribution):
    draws = np.sort(
        np.asarray(jax.vmap(distribution.draw)(jax.random.split(jax.random.key(0), 20_000)), dtype=np.float64)
    )
    levels = np.linspace(0.05, 0.95, 19)
    reached = np.searchsorted(draws, distribution.distribution.quantile(levels)) / len(draws)
    np.testing.assert_allclose(reached, levels, atol=4 * 0.5 / np.sqrt(len(draws)))
    np.testing.assert_allclose(
        draws.mean(), distribution.distribution.mean, atol=4 * distribution.distribution.std / np.sqrt(len(draws))
    )
