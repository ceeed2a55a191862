import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qemrl.envs.jax.env import autoreset_step
from qemrl.envs.jax.probes import BOX_PROBES, FORBIDDEN, LIMIT, PROBES
from qemrl.envs.jax.registry import JAX_ENVS, make_jax_env

ALL = sorted(PROBES)


@lru_cache
def play(name: str, steps: int, seed: int = 0):
    """Observations, masks, actions and outcomes of play by allowed actions at random; NumPy."""
    env = make_jax_env(f"probe/{name}")

    def step(carry, now):
        state, observation = carry
        action_key, step_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), now))
        mask = env.mask(state)
        allowed = jnp.ones(env.spec.num_actions, bool) if mask is None else mask
        action = jax.random.categorical(action_key, jnp.where(allowed, 0.0, -jnp.inf)).astype(jnp.int32)
        following, next_observation, outcome = autoreset_step(env, state, action, step_key)
        next_mask = env.mask(outcome.state)
        next_allowed = jnp.ones(env.spec.num_actions, bool) if next_mask is None else next_mask
        return (following, next_observation), (observation, action, outcome._replace(state=next_allowed))

    def run():
        return jax.lax.scan(step, env.reset(jax.random.key(seed)), jnp.arange(steps, dtype=jnp.int32))[1]

    return jax.tree.map(np.asarray, jax.jit(run)())


def test_the_list_of_jax_environments_has_all_probes():
    assert {f"probe/{name}" for name in [*PROBES, *BOX_PROBES]} == {
        env_id for env_id in JAX_ENVS if env_id.startswith("probe/")
    }


@pytest.mark.parametrize("discount", [0.5, 0.9])
@pytest.mark.parametrize("name", ALL)
def test_the_answers_solve_the_bellman_equation_on_what_is_seen(name, discount):
    """Averaged over transitions, reward + discount · the best allowed next value is the answer for each action."""
    probe = PROBES[name]
    values = np.array(probe.values(discount))
    observations, actions, outcomes = play(name, 4000)
    assert set(np.unique(observations)) <= set(probe.observations)
    here = np.searchsorted(probe.observations, observations[:, 0])
    there = np.searchsorted(probe.observations, outcomes.observation[:, 0])
    best = np.where(outcomes.state & ~np.isnan(values[there]), values[there], -np.inf).max(axis=1)
    targets = outcomes.reward + np.where(outcomes.terminated, 0, discount * best)
    tolerance = 6 * 2 / math.sqrt(4000) if name == "7" else 1e-5
    for place in range(len(probe.observations)):
        for action in range(values.shape[1]):
            seen = (here == place) & (actions == action)
            if math.isnan(values[place, action]):
                assert not seen.any()
            else:
                assert seen.sum() > 200
                assert abs(targets[seen].mean() - values[place, action]) < tolerance


@pytest.mark.parametrize("name", ALL)
def test_the_greedy_policy_of_the_answers_has_the_mean_return(name):
    probe, env = PROBES[name], make_jax_env(f"probe/{name}")
    table = np.nan_to_num(np.array(probe.values(0.9)), nan=-np.inf)
    best = jnp.asarray(table.argmax(axis=1), jnp.int32)
    places = jnp.asarray(probe.observations, jnp.float32)

    def episode(key):
        def step(carry, now):
            state, observation, going = carry
            action = best[jnp.argmin(jnp.abs(places - observation))]
            outcome = env.step(state, action, jax.random.fold_in(key, now))
            reward = jnp.where(going, outcome.reward, jnp.float32(0))
            return (outcome.state, outcome.observation, going & ~outcome.terminated & ~outcome.truncated), reward

        start = (*env.reset(jax.random.fold_in(key, 100)), jnp.bool_(True))
        (_, _, going), rewards = jax.lax.scan(step, start, jnp.arange(6, dtype=jnp.int32))
        return rewards.sum(), going

    returns, going = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 4000))
    assert not going.any()
    assert abs(float(returns.mean()) - probe.mean_return) < (0.15 if name in "27" else 1e-6)


def test_truncation_never_terminates_and_would_be_worth_less_as_a_termination():
    _, _, outcomes = play("6", 50)
    assert not outcomes.terminated.any()
    assert np.flatnonzero(outcomes.truncated).tolist() == list(range(LIMIT - 1, 50, LIMIT))
    assert PROBES["6"].values(0.99)[0][0] > LIMIT


def test_random_rewards_have_the_law_whose_quantiles_are_given():
    _, _, outcomes = play("7", 5000)
    quantiles = PROBES["7"].quantiles
    assert quantiles is not None
    assert stats.kstest(outcomes.reward, stats.norm(1, 2).cdf).pvalue > 0.01
    levels = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(quantiles(levels), stats.norm(1, 2).ppf(levels))


def test_the_forbidden_action_tempts_and_only_the_last_state_forbids_it():
    env = make_jax_env("probe/8")
    assert env.spec.has_mask
    state, _ = env.reset(jax.random.key(0))
    first_mask = env.mask(state)
    state = env.step(state, jnp.int32(0), jax.random.key(0)).state
    last_mask = env.mask(state)
    assert first_mask is not None
    assert last_mask is not None
    assert first_mask.tolist() == [True, True, True]
    assert last_mask.tolist() == [True, True, False]
    rewards = [float(env.step(state, jnp.int32(action), jax.random.key(0)).reward) for action in range(3)]
    assert max(rewards) == rewards[FORBIDDEN] == 10


def test_only_the_masked_probe_has_a_mask():
    assert [name for name in ALL if make_jax_env(f"probe/{name}").spec.has_mask] == ["8"]
