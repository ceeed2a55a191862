"""Actions of actor-critics: boxes, exploration, what is asked of critics, and risk when an action is chosen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_actor_critics import (
    BOX,
    DSAC,
    ENTROPY,
    HAND_DSAC,
    HAND_SAC,
    HAND_TQC,
    KEY,
    SAC,
    curve,
    flat,
    mlp,
    normal,
    prepared,
    shaken,
    with_temperature,
)

from qemrl.agents.actor_critic import CANDIDATES, ActorCriticAgent, from_box, to_box
from qemrl.agents.agent import View
from qemrl.agents.policies import TanhGaussian
from qemrl.estimators import CVaR, MeanStd
from qemrl.types import ActionBox, EnvSpec, UnsupportedEnvironment

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_actions_go_to_the_box_and_back():
    unit = jnp.asarray([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.5, -0.25]])
    wanted = [[-2, -1], [4, 1], [1, 0], [2.5, -0.25]]
    np.testing.assert_allclose(to_box(BOX, unit), wanted, atol=1e-6)
    np.testing.assert_allclose(from_box(BOX, jnp.asarray(wanted, jnp.float32)), unit, atol=1e-6)


def test_actions_with_several_axes_are_flat_inside_the_agent():
    """Components are listed row by row."""
    box = ActionBox((2, 3), tuple(float(-i - 1) for i in range(6)), tuple(float(2 * i + 1) for i in range(6)))
    unit = np.tanh(normal(0, 5, 6))
    action = to_box(box, jnp.asarray(unit))
    assert action.shape == (5, 2, 3)
    low, high = np.reshape(box.low, (2, 3)), np.reshape(box.high, (2, 3))
    np.testing.assert_allclose(action, low + (unit.reshape(5, 2, 3) + 1) / 2 * (high - low), atol=1e-5)
    np.testing.assert_allclose(from_box(box, action), unit, atol=1e-6)


def test_no_rounding_leaves_the_box():
    box = ActionBox((1,), (-0.4,), (0.4,))
    ends = to_box(box, jnp.asarray([[-1.0], [1.0], [1.0000001], [-1.0000001]]))
    low, high = np.float32(-0.4), np.float32(0.4)
    assert np.all((np.asarray(ends) >= low) & (np.asarray(ends) <= high))
    np.testing.assert_allclose(ends[:, 0], [low, high, high, low], atol=1e-7)


def test_actions_are_random_at_first_then_the_policys_and_its_mode_in_evaluation():
    config = replace(HAND_SAC, random_steps=100)
    agent = prepared(config)[0]
    params = flat(config, [[0.0], [0.0]], [[0.0], [0.0]], policy=(0.5, -0.5, 0, 0)).params
    view = View(jnp.ones((2000, 3)), None, jnp.ones(2000, bool))
    act = jax.jit(agent.act, static_argnums=5)
    mode = np.tanh([0.5, -0.5]) * [3, 1] + [1, 0]
    random, _ = act(params, (), view, jnp.int32(99), KEY, False)
    assert random.shape == (2000, 2)
    np.testing.assert_allclose(np.mean(random, axis=0), [1, 0], atol=0.15)
    np.testing.assert_allclose(np.std(random, axis=0), np.array([6, 2]) / np.sqrt(12), rtol=0.05)
    assert np.all((np.asarray(random) >= [-2, -1]) & (np.asarray(random) <= [4, 1]))
    calm, _ = act(params, (), view, jnp.int32(100), KEY, False)  # without noise in this policy: its mode
    for action in (calm, act(params, (), view, jnp.int32(0), KEY, True)[0]):
        np.testing.assert_allclose(action, np.tile(mode, (2000, 1)), atol=1e-5)


def test_the_policy_explores_with_draws_for_each_environment():
    config = replace(HAND_SAC, policy=TanhGaussian(), random_steps=0)
    agent = prepared(config)[0]
    params = flat(config, [[0.0], [0.0]], [[0.0], [0.0]], policy=(0.5, -0.5, -2, -2)).params
    view = View(jnp.ones((2000, 3)), None, jnp.ones(2000, bool))
    drawn, _ = jax.jit(agent.act, static_argnums=5)(params, (), view, jnp.int32(0), KEY, False)
    unit = np.arctanh((np.asarray(drawn) - [1, 0]) / [3, 1])
    np.testing.assert_allclose(unit.mean(axis=0), [0.5, -0.5], atol=0.02)
    np.testing.assert_allclose(unit.std(axis=0), np.exp(-2), rtol=0.1)


def test_q_is_that_of_the_mode_by_the_ensemble_and_distributions_may_be_asked_of_any_action():
    """Curves (0, 4) + (1, 3) a and (1, 2) + a; the mode is tanh ½ log 3 = ½: means 3 and 2."""
    config = HAND_DSAC
    agent = prepared(config)[0]
    slopes = [[1.0, 3.0], [1.0, 1.0]]
    policy = (np.log(3) / 2, 0, 0, 0)
    params = flat(config, [[0.0, 4.0], [1.0, 2.0]], [[0.0, 0.0]] * 2, policy=policy, slopes=slopes).params
    seen = jnp.ones((1, 3))
    least = jnp.asarray([[-2.0, 1.0]])  # in the first component
    q, dist, other = jax.jit(
        lambda params: (
            agent.q_values(params, seen),
            agent.predict_distribution(params, seen),
            agent.predict_distribution(params, seen, least),
        )
    )(params)
    np.testing.assert_allclose(q, [[2.0]], rtol=1e-6)
    np.testing.assert_allclose(dist.values, [[[[0.5, 5.5]], [[1.5, 2.5]]]], rtol=1e-6)
    np.testing.assert_allclose(other.values, [[[[-1.0, 1.0]], [[0.0, 1.0]]]], atol=1e-6)


def test_a_risk_measure_decides_among_actions_of_the_policy():
    """Without a measure it is the mode; with one, the best by that measure of the mode and of draws of the policy."""
    config = replace(DSAC, policy=TanhGaussian(), network=replace(SAC.network, policy_widths=()))
    agent, fresh, _ = prepared(config)
    decide = jax.jit(agent.greedy_action, static_argnums=3)
    params = type(fresh.params)(fresh.params.policy, shaken(fresh.params.critics, 300), None)
    observation = jnp.asarray(normal(8, 5, 3))

    @jax.jit
    def candidates_and_curves(params):
        outputs = mlp([params.policy.head], observation)
        keys = jax.random.split(jax.random.key(0), CANDIDATES - 1)
        units = [jnp.tanh(outputs[:, :2])[None], jax.vmap(lambda key: config.policy.explore(outputs, key))(keys)]
        units = jnp.concatenate(units)
        curves = [jax.vmap(lambda unit, each=each: curve(each, observation, unit))(units) for each in params.critics]
        return units, jnp.stack(curves)

    units, curves = jax.tree.map(np.asarray, candidates_and_curves(params))
    scale, middle = np.array([3, 1]), np.array([1, 0])
    np.testing.assert_allclose(decide(params, observation, None, None), units[0] * scale + middle, atol=1e-5)
    measures = {
        CVaR(0.2): lambda values: values[..., 0],  # the lowest of five
        MeanStd(-1.0): lambda values: values.mean(axis=-1) + values.std(axis=-1),
    }
    chosen = []
    for risk, by_hand in measures.items():
        best = by_hand(curves).min(axis=0).argmax(axis=0)  # of the smaller critic
        unit = units[best, np.arange(5)]
        np.testing.assert_allclose(decide(params, observation, None, risk), unit * scale + middle, atol=1e-5)
        chosen.append(best)
    assert np.any(chosen[0] != chosen[1])
    assert np.any(np.concatenate(chosen) > 0)  # the mode is not always the best


def test_what_is_logged_of_the_policy_is_its_entropy_and_temperature():
    agent = prepared(HAND_TQC)[0]
    state = with_temperature(flat(HAND_TQC, [[1.0, 2.0]] * 3, [[0.0, 0.0]] * 3), 0.25)
    numbers = jax.jit(agent.metrics)(state.params, jnp.ones((4, 3)))
    assert float(numbers["policy/entropy"]) == pytest.approx(ENTROPY, rel=1e-5)
    assert float(numbers["policy/temperature"]) == pytest.approx(0.25, rel=1e-5)
    assert float(numbers["dist/q"]) == pytest.approx(1.5, rel=1e-5)


def test_actions_to_choose_from_are_refused_with_the_presets_that_are_for_them():
    with pytest.raises(UnsupportedEnvironment, match=r"has 4 actions to choose from.*qr-dqn"):
        ActorCriticAgent(SAC, EnvSpec("discrete", (3,), "float32", 4))
