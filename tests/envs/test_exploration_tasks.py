"""Tasks that need exploration: their rules, their best returns, and that chance alone does not solve them."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.envs.jax.env import JaxEnv, Outcome, TimeLimitState, delay_rewards, limit_time
from qemrl.envs.jax.exploration_tasks import (
    chain_right_actions,
    deep_sea_right_actions,
    make_chain,
    make_deep_sea,
)
from qemrl.envs.jax.registry import make_jax_env
from qemrl.types import EnvSpec


def actions_right(size: int) -> np.ndarray:
    """Which action goes right in each cell, found by trying both."""
    env = make_deep_sea(size)
    step = jax.jit(env.step)
    meant = np.zeros((size, size), np.int32)
    for row in range(size - 1):
        for column in range(size - 1):
            state = type(env.reset(jax.random.key(0))[0])(jnp.int32(row), jnp.int32(column))
            meant[row, column] = int(step(state, jnp.int32(1), jax.random.key(0)).state.column) > column
    return meant


def dive(env: JaxEnv, size: int, choose, key=0) -> tuple[float, list[int]]:
    """The return of an episode, and the columns that the diver was in; the episode must have `size` steps."""
    step, (state, observation) = jax.jit(env.step), env.reset(jax.random.key(0))
    total, columns = 0.0, []
    for number in range(size):
        row, column = divmod(int(np.asarray(observation).argmax()), size)
        assert np.asarray(observation).sum() == 1
        assert row == number
        columns.append(column)
        outcome = step(state, jnp.int32(choose(row, column)), jax.random.fold_in(jax.random.key(key), number))
        state, observation, total = outcome.state, outcome.observation, total + float(outcome.reward)
        assert bool(outcome.terminated) == (number == size - 1)
        assert not outcome.truncated
    return total, columns


def test_the_treasure_of_the_deep_sea_is_found_by_going_right_always():
    size = 6
    env, meant = make_deep_sea(size), actions_right(size)
    assert 0 < meant[:-1, :-1].mean() < 1  # which action is right differs from cell to cell
    right = deep_sea_right_actions(size)
    np.testing.assert_array_equal(meant[:-1, :-1], right[:-1, :-1])
    total, columns = dive(env, size, lambda row, column: right[row, column])
    assert columns == [0, 1, 2, 3, 4, 5]
    assert total == pytest.approx(0.99)
    total, columns = dive(env, size, lambda row, column: 1 - right[row, column])
    assert (total, columns) == (0.0, [0] * size)
    # Once to the left, and the treasure is out of reach, but each step to the right still costs.
    total, columns = dive(env, size, lambda row, column: right[row, column] if row else 1 - right[0, 0])
    assert columns == [0, 0, 1, 2, 3, 4]
    assert total == pytest.approx(-5 * 0.01 / 6)


def test_the_stochastic_sea_sometimes_turns_right_into_left_and_has_noise_in_the_corners():
    size, tries = 8, 4000
    env = make_deep_sea(size, stochastic=True)
    right = jnp.asarray(deep_sea_right_actions(size))

    def episode(key):
        def step(carry, now):
            outcome = env.step(carry, right[carry.row, carry.column], jax.random.fold_in(key, now))
            return outcome.state, (outcome.reward, carry.column)

        return jax.lax.scan(step, env.reset(key)[0], jnp.arange(size, dtype=jnp.int32))[1]

    rewards, columns = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), tries))
    arrived = np.asarray(columns)[:, -1] == size - 1
    chance = (1 - 1 / size) ** (size - 1)
    assert arrived.mean() == pytest.approx(chance, abs=4 * (chance * (1 - chance) / tries) ** 0.5)
    last = np.asarray(rewards)[:, -1]
    assert last[arrived].mean() == pytest.approx(1 - 0.01 / size, abs=4 / arrived.sum() ** 0.5)
    assert last[arrived].std() == pytest.approx(1, abs=0.1)
    middle = (np.asarray(columns)[:, -1] > 0) & ~arrived
    np.testing.assert_allclose(last[middle], -0.01 / size, rtol=1e-5)


def test_the_chain_pays_at_its_far_end():
    size = 10
    env, rights = make_chain(size), chain_right_actions(size)
    assert 0 < rights.mean() < 1  # which action is right differs from cell to cell
    for actions, expected in ((rights, 12.0), (1 - rights, 0.001 * (size + 9))):
        step, (state, observation) = jax.jit(env.step), env.reset(jax.random.key(0))
        assert int(np.asarray(observation).argmax()) == 1
        rewards = []
        for number in range(size + 9):
            outcome = step(state, jnp.int32(actions[np.asarray(observation).argmax()]), jax.random.key(0))
            state, observation = outcome.state, outcome.observation
            rewards.append(float(outcome.reward))
            assert bool(outcome.terminated) == (number == size + 8)
        assert sum(rewards) == pytest.approx(expected)
    assert env.spec.num_states == size


def test_a_sea_that_is_not_deep_and_a_chain_without_a_way_are_refused():
    with pytest.raises(ValueError, match="a sea of size 1 is not deep: give at least 2"):
        make_deep_sea(1)
    with pytest.raises(ValueError, match="a chain of 2 cells has no way to go: give at least 3"):
        make_chain(2)


def test_the_mountain_car_drives_as_gymnasiums_does():
    env, reference = make_jax_env("jax/mountain-car"), gymnasium.make("MountainCar-v0").unwrapped
    step, rng = jax.jit(env.step), np.random.default_rng(0)
    for _ in range(300):
        state = np.array([rng.uniform(-1.2, 0.6), rng.uniform(-0.07, 0.07)], np.float32)
        action = int(rng.integers(3))
        reference.reset()
        reference.state = tuple(state.astype(np.float64))  # type: ignore[attr-defined]
        observation, reward, terminated, _, _ = reference.step(action)
        outcome = step(TimeLimitState(jnp.asarray(state), jnp.int32(0)), jnp.int32(action), jax.random.key(0))
        np.testing.assert_allclose(outcome.observation, observation, rtol=2e-6, atol=2e-7)
        assert float(outcome.reward) == reward == -1.0
        assert bool(outcome.terminated) == terminated
    starts = jax.vmap(lambda key: env.reset(key)[1])(jax.random.split(jax.random.key(0), 200))
    assert (np.asarray(starts)[:, 1] == 0).all()
    assert -0.6 <= np.asarray(starts)[:, 0].min() < -0.58 < -0.42 < np.asarray(starts)[:, 0].max() <= -0.4


def test_a_sparse_environment_pays_the_same_return_at_the_end():
    def step(state, action, key):
        del action, key
        count = state + 1
        reward = count.astype(jnp.float32)
        return Outcome(count, count.astype(jnp.float32)[None], reward, count == 3, jnp.bool_(False))

    def reset(key):
        del key
        return jnp.int32(0), jnp.zeros(1, jnp.float32)

    dense = JaxEnv(EnvSpec("dense", (1,), "float32", 2), reset, step, lambda _: np.zeros((1, 1, 3), np.uint8))
    for env, expected in ((delay_rewards(dense, "thin"), [0, 0, 6]), (limit_time(dense, 2), [1, 2])):
        state, rewards = env.reset(jax.random.key(0))[0], []
        for _ in expected:
            outcome = env.step(state, jnp.int32(0), jax.random.key(0))
            state = outcome.state
            rewards.append(float(outcome.reward))
        assert rewards == expected
    assert delay_rewards(dense, "thin").spec == EnvSpec("thin", (1,), "float32", 2)
    cut = delay_rewards(limit_time(dense, 2), "cut")
    state = cut.reset(jax.random.key(0))[0]
    for reward in (0.0, 3.0):  # a truncated episode is paid, too
        outcome = cut.step(state, jnp.int32(0), jax.random.key(0))
        state = outcome.state
        assert float(outcome.reward) == reward
    assert outcome.truncated
