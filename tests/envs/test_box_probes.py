import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qemrl.envs.jax.env import autoreset_step
from qemrl.envs.jax.probes import BOX_PROBES, LIMIT, PROBES
from qemrl.envs.jax.registry import make_jax_env

ALL = sorted(BOX_PROBES)
STEPS = 4000
GRID = 61
"""How many actions are tried for each observation; the best ones are among them."""


def box_of(name: str) -> tuple[float, float]:
    box = make_jax_env(f"probe/{name}").spec.box
    assert box is not None
    return box.low[0], box.high[0]


@lru_cache
def play(name: str):
    """Observations and outcomes of play by best actions, at random where any is as good; NumPy."""
    probe, env = BOX_PROBES[name], make_jax_env(f"probe/{name}")
    low, high = box_of(name)
    places = jnp.asarray(probe.observations, jnp.float32)

    def step(carry, now):
        state, observation = carry
        action_key, step_key = jax.random.split(jax.random.fold_in(jax.random.key(0), now))
        action = jax.random.uniform(action_key, (1,), jnp.float32, low, high)
        if probe.best_actions is not None:
            best = jnp.asarray(probe.best_actions, jnp.float32)
            action = best[jnp.argmin(jnp.abs(places - observation))][None]
        following, next_observation, outcome = autoreset_step(env, state, action, step_key)
        return (following, next_observation), (observation, outcome)

    def run():
        return jax.lax.scan(step, env.reset(jax.random.key(0)), jnp.arange(STEPS, dtype=jnp.int32))[1]

    return jax.tree.map(np.asarray, jax.jit(run)())


@pytest.mark.parametrize("name", ALL)
def test_observations_and_actions_are_one_number_each(name):
    probe, spec = BOX_PROBES[name], make_jax_env(f"probe/{name}").spec
    assert (spec.observation_shape, spec.observation_low, spec.observation_high) == ((1,), (-1.0,), (1.0,))
    assert (spec.num_actions, spec.action_shape, spec.action_dtype, spec.has_mask) == (0, (1,), "float32", False)
    assert box_of(name) == ((-2.0, 4.0) if name == "c5" else (-1.0, 1.0))
    seen, outcomes = play(name)
    assert set(np.unique(seen)) == set(probe.observations)
    assert set(np.unique(outcomes.observation)) <= set(probe.observations)
    if probe.best_actions is not None:
        assert len(probe.best_actions) == len(probe.observations)


@pytest.mark.parametrize("discount", [0.5, 0.9])
@pytest.mark.parametrize("name", ALL)
def test_the_values_are_the_discounted_sums_of_rewards_that_the_best_actions_get(name, discount):
    """Summed backwards through all that was played, and cut where an episode terminated alone.

    What follows a truncation is a new episode, and only c6 truncates: its one observation makes them the same.
    """
    seen, outcomes = play(name)
    sums, ahead = np.zeros(STEPS), 0.0
    for now in reversed(range(STEPS)):
        ahead = outcomes.reward[now] + discount * ahead * (1 - outcomes.terminated[now])
        sums[now] = ahead
    values = BOX_PROBES[name].values(discount)
    tolerance = 6 * 2 / math.sqrt(STEPS) if name == "c7" else 1e-5
    for observation, (value,) in zip(BOX_PROBES[name].observations, values, strict=True):
        here = sums[:-200][seen[:-200, 0] == observation]
        assert len(here) > 1000
        assert abs(here.mean() - value) < tolerance
        if name != "c7":
            np.testing.assert_allclose(here, value, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_best_actions_have_the_mean_return(name):
    _, outcomes = play(name)
    ended = np.flatnonzero(outcomes.terminated | outcomes.truncated)
    returns = np.diff(np.cumsum(outcomes.reward, dtype=np.float64)[ended], prepend=0.0)
    assert abs(returns.mean() - BOX_PROBES[name].mean_return) < (0.15 if name in ("c2", "c7") else 1e-6)


@pytest.mark.parametrize("name", ALL)
def test_no_action_of_the_box_is_better_than_the_best(name):
    """One step from each first state with each of many actions, all with the same key."""
    probe, env = BOX_PROBES[name], make_jax_env(f"probe/{name}")
    tried = np.linspace(*box_of(name), GRID).astype(np.float32)
    step = jax.jit(jax.vmap(env.step, (None, 0, None)))
    starts = {}
    for number in range(20):
        state, observation = env.reset(jax.random.key(number))
        starts[float(observation[0])] = state
    assert set(starts) == (set(probe.observations) if name != "c3" else {0.0})
    for observation, state in starts.items():
        outcomes = step(state, tried[:, None], jax.random.key(0))
        if probe.best_actions is None:
            assert all((np.asarray(leaf) == np.asarray(leaf)[:1]).all() for leaf in jax.tree.leaves(outcomes))
        else:
            place = probe.observations.index(observation)
            best = int(np.argmax(outcomes.reward))
            assert tried[best] == pytest.approx(probe.best_actions[place], abs=1e-6)
            assert float(outcomes.reward[best]) == pytest.approx(probe.values(0.9)[place][0], abs=1e-6)
            assert np.sort(outcomes.reward)[-2] < outcomes.reward[best] - 1e-4, "there is one best action"


def test_the_aims_are_missed_by_an_agent_that_does_not_scale_or_look():
    env = make_jax_env("probe/c5")
    rewards = {}
    for number in range(20):
        state, observation = env.reset(jax.random.key(number))
        for action in (-0.5, 0.5, 1.0):
            outcome = env.step(state, jnp.array([action], jnp.float32), jax.random.key(0))
            rewards[float(observation[0]), action] = float(outcome.reward)
    # Halfway to either end of the box, in the units of an agent, is ±0.5; its middle is the best for both together.
    assert rewards[-1.0, -0.5] == pytest.approx(1)
    assert rewards[1.0, 0.5] == pytest.approx(1 - (2 / 3) ** 2)
    assert rewards[-1.0, 1.0] == rewards[1.0, 1.0] == pytest.approx(0.75)


def test_truncation_never_terminates_and_would_be_worth_less_as_a_termination():
    _, outcomes = play("c6")
    assert not outcomes.terminated.any()
    assert np.flatnonzero(outcomes.truncated).tolist() == list(range(LIMIT - 1, STEPS, LIMIT))
    assert BOX_PROBES["c6"].values(0.99)[0][0] > LIMIT


def test_only_the_probe_of_truncation_truncates():
    assert [name for name in ALL if play(name)[1].truncated.any()] == ["c6"]


def test_random_rewards_have_the_law_whose_quantiles_are_given():
    _, outcomes = play("c7")
    quantiles = BOX_PROBES["c7"].quantiles
    assert quantiles is not None
    assert stats.kstest(outcomes.reward, stats.norm(1, 2).cdf).pvalue > 0.01
    levels = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(quantiles(levels), stats.norm(1, 2).ppf(levels))


def test_numbered_probes_keep_their_own_spec():
    for name in PROBES:
        spec = make_jax_env(f"probe/{name}").spec
        assert (spec.id, spec.box) == (f"probe/{name}", None)
        assert spec.num_actions > 0
