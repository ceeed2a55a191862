"""Learning: updates against their definitions, whole runs against a plain loop, and what seeds decide."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qemrl import QEM, BandVariance, midpoints
from qemrl.tabular import (
    Categories,
    Expectiles,
    Geometric,
    Learning,
    Quantiles,
    Representation,
    Scalar,
    Steps,
    chain,
    expectile_levels,
    frozen_lake,
    impute,
    learn,
    make_mdp,
    policy_values,
    solve,
)
from qemrl.tabular.learning import _program_settings, _programs

seeds = st.integers(0, 2**32 - 1)
ALL = [Quantiles(8), Quantiles(8, QEM()), Categories(-1.0, 2.0, 7), Expectiles(5), Scalar()]


def name(representation) -> str:
    return type(representation).__name__ + type(getattr(representation, "estimator", None)).__name__


@pytest.fixture(scope="module")
def lake():
    return frozen_lake()


@pytest.fixture(scope="module")
def policy(lake):
    return solve(lake).policy


def looped(length: int = 1):
    """One state and action that go on forever with reward 1."""
    return make_mdp([[[(1.0, (s + 1) % length, 1.0, False)]] for s in range(length)], 0.5)


def update(representation: Representation, row, reward, discount, following) -> np.ndarray:
    arguments = (jnp.asarray(part, jnp.float32) for part in (row, reward, discount, following))
    return np.asarray(representation.update(*arguments))


# --- the directions -------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seeds)
def test_quantiles_move_by_the_pinball_gradient_and_ties_count_as_not_above(seed):
    rng = np.random.default_rng(seed)
    row, following = rng.integers(-3, 4, (2, 6)) / 2.0  # exact in float32, with many ties
    reward, discount = float(rng.integers(-2, 3)) / 2, float(rng.choice([0.0, 0.5, 1.0]))
    expected = [
        (2 * i + 1) / 12 - sum(reward + discount * y < theta for y in following) / 6 for i, theta in enumerate(row)
    ]
    np.testing.assert_allclose(update(Quantiles(6), row, reward, discount, following), expected, atol=1e-6)


def test_a_quantile_that_is_its_target_moves_up_by_its_level():
    moved = update(Quantiles(4), [1.0, 1.0, 1.0, 1.5], 1.0, 0.0, [9.0, 9.0, 9.0, 9.0])
    np.testing.assert_allclose(moved, [1 / 8, 3 / 8, 5 / 8, 7 / 8 - 1])


@settings(max_examples=20)
@given(seeds)
def test_categories_move_to_the_projected_target_and_keep_their_mass(seed):
    rng = np.random.default_rng(seed)
    categories = Categories(-1.0, 2.0, 7)
    row, following = rng.dirichlet(np.ones(7), 2)
    reward, discount = rng.uniform(-2, 3), rng.choice([0.0, 0.9, 1.0])
    projected = np.zeros(7)
    for prob, atom in zip(following, categories.support, strict=True):
        place = (np.clip(reward + discount * atom, -1, 2) + 1) / 0.5  # in widths of the support
        below = min(int(np.floor(place)), 5)
        projected[below] += prob * (below + 1 - place)
        projected[below + 1] += prob * (place - below)
    direction = update(categories, row, reward, discount, following)
    np.testing.assert_allclose(direction, projected - row, atol=1e-5)
    assert abs(direction.sum()) < 1e-5


@settings(max_examples=20)
@given(seeds)
def test_expectiles_move_by_their_gradient_and_the_middle_by_the_td_error(seed):
    rng = np.random.default_rng(seed)
    levels = expectile_levels(5)
    row, following = np.sort(rng.normal(size=(2, 5)))
    following = np.linspace(-1, 1, 5) * rng.uniform(0.5, 2) + following[2]  # expectiles of a symmetric distribution
    reward, discount = rng.normal(), rng.choice([0.0, 0.9])
    direction = update(Expectiles(5), row, reward, discount, following)
    atoms, probs = impute(following, levels)
    targets = reward + discount * atoms
    expected = [
        2 * sum(p * abs(level - (y <= e)) * (y - e) for p, y in zip(probs, targets, strict=True))
        for level, e in zip(levels, row, strict=True)
    ]
    np.testing.assert_allclose(direction, expected, atol=1e-4)
    np.testing.assert_allclose(direction[2], targets @ probs - row[2], atol=1e-4)
    np.testing.assert_allclose(targets @ probs, reward + discount * following[2], atol=1e-6)


def test_scalars_move_by_the_td_error():
    np.testing.assert_allclose(update(Scalar(), [2.0], 1.0, 0.5, [4.0]), [1.0])


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("representation", ALL, ids=name)
def test_rows_have_their_size_and_constant_returns_give_their_value(representation):
    assert isinstance(representation, Representation)
    rows = representation.init(jax.random.key(0), (3, 2))
    assert rows.shape == (3, 2, len(representation.mean_weights()))
    assert rows.dtype == jnp.float32
    weights = representation.mean_weights()
    constant = np.eye(7)[4] if isinstance(representation, Categories) else np.ones(len(representation.mean_weights()))
    assert weights @ constant == pytest.approx(1.0)  # the fifth of seven atoms between −1 and 2 is 1


def test_initial_quantiles_are_uniform_between_their_bounds():
    rows = np.asarray(Quantiles(50, low=2.0, high=3.0).init(jax.random.key(1), (40,)))
    assert 2 <= rows.min() < 2.01
    assert 2.99 < rows.max() <= 3
    assert rows.mean() == pytest.approx(2.5, abs=0.03)


def test_qem_weighs_quantiles_and_the_plain_mean_does_not():
    qem = QEM(variance=BandVariance(1.5, 0.45, 0.55))
    np.testing.assert_allclose(Quantiles(16, qem).mean_weights(), qem.weights(midpoints(16))[0])
    np.testing.assert_allclose(Quantiles(16).mean_weights(), 1 / 16)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_take_their_values():
    steps = Steps((0.05, 0.025, 0.0125), (10, 20))
    found = [float(steps(jnp.int32(count))) for count in (0, 9, 10, 19, 20, 1000)]
    np.testing.assert_allclose(found, [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125])
    assert float(Steps((0.5,))(jnp.int32(7))) == 0.5
    geometric = Geometric(0.9, 100)
    found = [float(geometric(jnp.int32(count))) for count in (0, 99, 100, 1000)]
    np.testing.assert_allclose(found, [1, 1, 0.9, 0.9**10], rtol=1e-6)


@pytest.mark.parametrize(("values", "ends"), [((1.0,), (3,)), ((1.0, 2.0), ()), ((1.0, 2.0, 3.0), (5, 4))])
def test_schedules_that_do_not_fit_are_refused(values, ends):
    with pytest.raises(ValueError, match="need one end less, in increasing order"):
        Steps(values, ends)


# --- whole runs -------------------------------------------------------------------------------------------------------


def plain_run(mdp, learning, seed, direction, policy=None):
    """The table, counts and episodes of a plain loop that is fed the same random numbers."""
    key = jax.random.key(seed)
    table_key, _ = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    table = np.array(learning.representation.init(table_key, mdp.probs.shape[:2]), dtype=np.float64)
    draws = np.asarray(jax.random.uniform(jax.random.fold_in(key, 0), (learning.steps, 4)))
    weights = learning.representation.mean_weights()
    outcome_ends = np.cumsum(mdp.probs, -1).astype(np.float32)
    counts, state, episodes, age = np.zeros(mdp.probs.shape, dtype=int), mdp.start, 0, 0
    for t, (explore, which, lot, _) in enumerate(draws):
        if policy is not None:
            action = policy[state]
        elif explore < learning.epsilon(jnp.int32(episodes if learning.epsilon_counts == "episodes" else t)):
            action = int(which * mdp.num_actions)
        else:
            action = (table[state] @ weights).argmax()
        outcome = int((lot >= outcome_ends[state, action]).sum())
        counts[state, action, outcome] += 1
        place = (state, action, outcome)
        following, ends = mdp.next_states[place], mdp.terminal[place]
        next_action = policy[following] if policy is not None else (table[following] @ weights).argmax()
        discount = 0.0 if ends else mdp.discount
        step = direction(table[state, action], mdp.rewards[place], discount, table[following, next_action])
        table[state, action] = table[state, action] + float(learning.learning_rate(jnp.int32(t))) * step
        age += 1
        over = ends or age == learning.max_episode_steps
        state, age, episodes = (mdp.start, 0, episodes + 1) if over else (following, age, episodes)
    return table, counts, episodes


def pinball(row, reward, discount, following):
    targets = reward + discount * following
    return midpoints(len(row)) - (targets[None] < row[:, None]).mean(-1)


RUNS = [
    (Scalar(), lambda row, reward, discount, following: reward + discount * following - row),
    (Quantiles(4, QEM(order=2)), pinball),
]


@pytest.mark.parametrize(("representation", "direction"), RUNS, ids=["Q-learning", "QTD"])
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize(("counted", "cut"), [("steps", None), ("episodes", 12)])
def test_a_run_is_that_of_a_plain_loop(lake, policy, representation, direction, control, counted, cut):
    learning = Learning(
        representation, 300, Steps((0.5, 0.25), (100,)), Geometric(0.7, 10), counted, cut, record_every=300
    )
    chosen = None if control else policy
    table, counts, episodes = plain_run(lake, learning, 5, direction, chosen)
    history = learn(lake, learning, [5], chosen)
    np.testing.assert_array_equal(history.counts[0, -1], counts)
    assert history.episodes[0, -1] == episodes > 5
    np.testing.assert_allclose(history.table[0], table, atol=1e-4)
    np.testing.assert_allclose(history.q[0, -1], table @ representation.mean_weights(), atol=1e-4)
    np.testing.assert_array_equal(history.rows[0, -1], history.table[0, lake.start])


@pytest.mark.parametrize("representation", ALL, ids=name)
def test_a_seed_decides_a_run_and_its_neighbors_do_not(lake, representation):
    learning = Learning(representation, 200, record_every=100)
    both, again, others = (learn(lake, learning, chosen) for chosen in ([3, 4], [3, 4], [4, 9]))
    for first, second in zip(both, again, strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(both.counts[0], both.counts[1])
    np.testing.assert_array_equal(others.counts[0], both.counts[1])
    np.testing.assert_allclose(others.table[0], both.table[1], atol=1e-6)
    np.testing.assert_array_equal(both.steps, [100, 200])
    np.testing.assert_array_equal(both.counts.sum((-3, -2, -1)), [[100, 200]] * 2)


def test_the_number_of_seeds_does_not_matter_to_a_seed(lake):
    learning = Learning(Quantiles(8), 200, record_every=100)
    alone, among = learn(lake, learning, [7]), learn(lake, learning, range(8))
    np.testing.assert_array_equal(alone.counts[0], among.counts[7])
    np.testing.assert_allclose(alone.table[0], among.table[7], atol=1e-6)


def test_the_estimator_matters_in_control_but_not_in_evaluation(lake, policy):
    plain = Learning(Quantiles(8), 600, record_every=600)
    qem = replace(plain, representation=Quantiles(8, QEM(variance=BandVariance(5.0, 0.2, 0.8))))
    first, second = (learn(lake, learning, range(3), policy) for learning in (plain, qem))
    np.testing.assert_array_equal(first.table, second.table)
    assert np.abs(first.q - second.q).max() > 1e-3
    first, second = (learn(lake, learning, range(3)) for learning in (plain, qem))
    assert not np.array_equal(first.counts, second.counts)


def test_evaluation_follows_a_policy_that_mixes(lake):
    policy = np.tile([0.0, 0.75, 0.25, 0.0], (16, 1))
    counts = learn(lake, Learning(Scalar(), 4000, record_every=4000), [0], policy).counts[0, -1].sum(-1)
    np.testing.assert_array_equal(counts[:, [0, 3]], 0)
    assert counts[:, 1].sum() / 4000 == pytest.approx(0.75, abs=0.03)


def test_td_with_small_steps_comes_to_the_values_of_a_policy():
    mdp = make_mdp(
        [[[(1.0, 1, 1.0, False)], [(1.0, 1, 0.0, True)]], [[(0.5, 0, 2.0, False), (0.5, 1, 4.0, True)]] * 2], 0.5
    )
    policy = np.array([[0.8, 0.2], [1.0, 0.0]])
    learning = Learning(Scalar(), 20_000, Steps((0.1, 0.01, 0.002), (2000, 8000)), record_every=20_000)
    q = learn(mdp, learning, range(16), policy).q[:, -1].mean(0)
    np.testing.assert_allclose(q[[0, 0, 1], [0, 1, 0]], policy_values(mdp, policy)[[0, 0, 1], [0, 1, 0]], atol=0.03)


def test_episodes_begin_where_the_distribution_of_the_first_state_says():
    ends = [[[(0.5, s, 0.0, True), (0.5, s, 1.0, True)]] for s in range(3)]
    mdp = make_mdp(ends, 0.9, [0.2, 0.5, 0.3])
    counts = learn(mdp, Learning(Scalar(), 10_000, record_every=10_000), [0]).counts[0, -1, :, 0]
    np.testing.assert_allclose(counts.sum(-1) / 10_000, [0.2, 0.5, 0.3], atol=0.02)
    # where the next episode begins has nothing to do with how the last one ended
    np.testing.assert_allclose(counts[:, 0] / counts.sum(-1), 0.5, atol=0.04)


def test_first_states_are_drawn_finely_enough_to_reach_thousands():
    count = 4096
    mdp = make_mdp([[[(1.0, s, 0.0, True)]] for s in range(count)], 0.9, [1 / count] * count)
    counts = learn(mdp, Learning(Scalar(), 20_000, record_every=20_000), [0]).counts[0, -1, :, 0, 0]
    assert counts[::2].sum() / 20_000 == pytest.approx(0.5, abs=0.02)
    assert (counts == 0).mean() == pytest.approx(np.exp(-20_000 / count), abs=0.005)


def test_rewards_from_distributions_are_drawn_anew_at_each_step():
    mdp = chain(2, 1.0)
    learning = Learning(Scalar(), 2000, Steps((1.0,)), record_every=2)
    last = learn(mdp, learning, range(2), np.zeros(2, dtype=np.int64)).q[:, :, 1, 0]  # with a step of one, the reward
    assert len(np.unique(last)) == 2000
    assert last.mean() == pytest.approx(-0.5, abs=4 * 2.5 / np.sqrt(2000))
    assert last.std() == pytest.approx(2.5, abs=0.15)  # 1 + 5.25 is the variance


def test_a_cut_ends_the_episode_but_not_the_return():
    learning = Learning(Scalar(), 400, Steps((0.5,)), max_episode_steps=5, record_every=200)
    history = learn(looped(2), learning, [0])
    np.testing.assert_array_equal(history.episodes, [[40, 80]])
    np.testing.assert_allclose(history.q[0, -1], 2.0, atol=1e-5)  # 1 / (1 − 1/2)
    endless = learn(looped(2), replace(learning, max_episode_steps=None), [0])
    np.testing.assert_array_equal(endless.episodes, 0)
    # five steps from state 0 visit it three times of five
    np.testing.assert_array_equal(history.counts[0, -1, :, 0, 0], [240, 160])
    np.testing.assert_array_equal(endless.counts[0, -1, :, 0, 0], [200, 200])


def test_epsilon_counts_what_it_is_told_to():
    # Action 0 is better. Exploration stops at count 100: of steps, or of episodes of four steps each.
    actions = [[(1.0, 0, 1.0, False)], [(1.0, 0, 0.0, False)]]
    mdp = make_mdp([actions], 0.5)
    learning = Learning(Scalar(), 1000, Steps((0.5,)), Steps((1.0, 0.0), (100,)), "steps", 4, 100)
    worse = learn(mdp, learning, [0]).counts[0, :, 0, 1, 0]
    assert 35 < worse[0] < 65
    np.testing.assert_array_equal(worse, worse[0])
    worse = learn(mdp, replace(learning, epsilon_counts="episodes"), [0]).counts[0, :, 0, 1, 0]
    assert (np.diff(worse[:4]) > 0).all()
    np.testing.assert_array_equal(worse[3:], worse[3])


def test_steps_that_do_not_fit_into_records_are_refused(lake):
    with pytest.raises(ValueError, match="150 steps are not a multiple of record_every=100"):
        learn(lake, Learning(Scalar(), 150, record_every=100), [0])


def test_progress_is_told_after_each_record(lake):
    told = []
    learn(lake, Learning(Scalar(), 40, record_every=10), [0], tick=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_other_estimators_lengths_and_processes_of_the_same_shape_compile_nothing_new(lake):
    learning = Learning(Quantiles(3), 30, record_every=10)
    learn(lake, learning, range(2))
    programs: list[Any] = list(_programs(_program_settings(learning), lake.reward_distributions))
    misses = _programs.cache_info().misses
    assert [program._cache_size() for program in programs] == [1, 1, 1]
    learn(lake, Learning(Quantiles(3), 30, record_every=10), range(5, 7))
    learn(lake, replace(learning, representation=Quantiles(3, QEM(order=2))), range(2))
    learn(lake, replace(learning, steps=60), range(2))
    learn(frozen_lake(["FFFG", "FHFF", "FHFF", "SFFF"], discount=0.9), learning, range(2))
    assert _programs.cache_info().misses == misses
    assert [program._cache_size() for program in programs] == [1, 1, 1]
    learn(lake, replace(learning, epsilon=Steps((0.5,))), range(2))
    assert _programs.cache_info().misses == misses + 1
