"""The networks of policies and critics against written-out formulas in float64."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.actor_critic import CriticTorso, PolicyNetwork
from qemrl.agents.presets import PRESETS, make_agent
from qemrl.networks.layers import Dense, LayerNorm
from qemrl.types import ActionBox, EnvSpec

SPEC = EnvSpec("toy", (3,), "float32", 0, box=ActionBox((2,), (-2.0, -1.0), (4.0, 1.0)))
KEY = jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Programs run once here: XLA need not make them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shaken(module):
    """The module with other parameters, so that no LayerNorm is left with scale one and bias zero."""
    leaves, structure = jax.tree.flatten(module)
    moved = [np.asarray(leaf) + np.float32(0.1) * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in moved])


def dense(layer, inputs):
    return inputs @ np.asarray(layer.weight, np.float64).T + np.asarray(layer.bias, np.float64)


def layer_norm(norm, inputs):
    mean, variance = inputs.mean(axis=-1, keepdims=True), inputs.var(axis=-1, keepdims=True)
    centered = (inputs - mean) / np.sqrt(variance + 1e-5)
    return centered * np.asarray(norm.scale, np.float64) + np.asarray(norm.bias, np.float64)


def relu(inputs):
    return np.maximum(inputs, 0)


def test_layer_norm_is_its_formula():
    norm = shaken(LayerNorm(5))
    inputs = 10 + 3 * normal(0, 4, 2, 5)
    np.testing.assert_allclose(norm(jnp.asarray(inputs)), layer_norm(norm, inputs.astype(np.float64)), atol=2e-5)
    fresh = np.asarray(LayerNorm(5)(jnp.asarray(inputs)))
    np.testing.assert_allclose(fresh.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(fresh.var(axis=-1), 1, atol=1e-4)


def test_layer_norm_of_equal_inputs_is_the_bias_and_has_a_finite_gradient():
    norm = shaken(LayerNorm(5))
    np.testing.assert_allclose(norm(jnp.full((1, 5), 7.0)), np.asarray(norm.bias)[None], atol=1e-6)
    gradient = jax.grad(lambda inputs: jnp.sum(jnp.square(norm(inputs))))(jnp.full((1, 5), 7.0))
    assert np.isfinite(gradient).all()


@pytest.fixture(scope="module")
def dsac():
    """DSAC's agent with the paper's sizes, fresh parameters, and others of which none is zero or one."""
    agent = make_agent(PRESETS["dsac"].configure("hopper"), SPEC)
    fresh = jax.jit(agent.init)(KEY).params
    return agent, fresh, shaken(fresh)


def test_a_dsac_critic_is_the_papers_network(dsac):
    """h = ReLU(LN(Dense([s, a]))), x = sigmoid(LN(Dense(cos(π i τ)))), i = 1 … 64, then ReLU(LN(Dense(h x))) → 1.

    One layer before and one after the level joins, at the 32 midpoints; actions are brought to [−1, 1] first.
    """
    agent, _, params = dsac
    observation, action = normal(1, 4, 3), np.array([[-2, -1], [4, 1], [1, 0], [2.5, -0.5]], np.float32)
    unit = np.array([[-1, -1], [1, 1], [0, 0], [0.5, -0.5]])
    found = jax.jit(agent.predict_distribution)(params, jnp.asarray(observation), jnp.asarray(action))
    assert found.values.shape == (4, 2, 1, 32)
    levels = (np.arange(32) + 0.5) / 32
    np.testing.assert_allclose(found.levels, levels)
    for member, critic in enumerate(params.critics):
        (before,), (norm_before,) = critic.torso.dense.layers, critic.torso.dense.norms
        (after, last), (norm_after,) = critic.head.streams.advantage.layers, critic.head.streams.advantage.norms
        assert [layer.weight.shape for layer in (before, critic.head.embedding, after, last)] == [
            (256, 5),
            (256, 64),
            (256, 256),
            (1, 256),
        ]
        h = relu(layer_norm(norm_before, dense(before, np.concatenate([observation, unit], axis=1))))
        cosines = np.cos(np.pi * np.arange(1, 65)[None, :] * levels[:, None])
        x = 1 / (1 + np.exp(-layer_norm(critic.head.norm, dense(critic.head.embedding, cosines))))
        merged = relu(layer_norm(norm_after, dense(after, h[:, None, :] * x[None, :, :])))
        np.testing.assert_allclose(found.values[:, member, 0], dense(last, merged)[..., 0], atol=2e-5)


def test_a_policy_is_two_layers_with_relu_and_a_linear_one(dsac):
    params = dsac[2]
    observation = normal(2, 4, 3)
    hidden = observation.astype(np.float64)
    assert [layer.weight.shape for layer in params.policy.dense.layers] == [(256, 3), (256, 256)]
    for layer in params.policy.dense.layers:
        hidden = relu(dense(layer, hidden))
    found = jax.jit(lambda given: params.policy(given))(jnp.asarray(observation))
    assert found.shape == (4, 4)
    np.testing.assert_allclose(found, dense(params.policy.head, hidden), atol=1e-5)


def test_a_fresh_policy_begins_near_zero():
    """Weights and biases of the last layer are at most 0.01/√width, so that no action is at a bound."""
    policy = jax.jit(lambda key: PolicyNetwork("auto", (16, 16), 4, SPEC, key))(KEY)
    for array in (policy.head.weight, policy.head.bias):
        assert 0 < np.abs(array).max() <= 1e-2 / 4
    assert np.abs(policy.dense.layers[1].weight).max() > 0.2  # the others begin as usual, at most 1/√16
    assert np.abs(jax.jit(lambda given: policy(given))(jnp.asarray(normal(3, 50, 3)))).max() < 0.05


def test_critics_differ_from_each_other_at_first(dsac):
    one, other = dsac[1].critics
    weights = [(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True) if a.ndim == 2]
    assert len(weights) == 4
    assert all(np.all(np.asarray(a) != np.asarray(b)) for a, b in weights)


def test_the_action_joins_what_the_torso_makes_of_the_observation():
    """The observation's bounds are known here, so it is brought to [−1, 1]; the action is there already."""
    spec = SPEC._replace(observation_low=(0.0, -1.0, -4.0), observation_high=(2.0, 1.0, 4.0))
    torso = CriticTorso("auto", (), False, spec, KEY)
    found = jax.jit(lambda *given: torso(*given))(jnp.asarray([[2.0, 0.5, -2.0]]), jnp.asarray([[0.25, -1.0]]))
    np.testing.assert_allclose(found, [[1.0, 0.5, -0.5, 0.25, -1.0]], atol=1e-6)


def test_images_go_through_convolutions_before_the_action_joins():
    spec = EnvSpec("board", (5, 5, 2), "float32", 0, box=SPEC.box)
    torso = jax.jit(lambda key: CriticTorso("auto", (7,), True, spec, key))(KEY)
    board, action = jnp.asarray(normal(4, 2, 5, 5, 2)), jnp.asarray([[0.25, -1.0], [0.0, 0.5]])
    assert torso.dense.layers[0].weight.shape == (7, 16 * 25 + 2)
    features, found = jax.jit(lambda board, action: (torso.torso(board), torso(board, action)))(board, action)
    hidden = dense(torso.dense.layers[0], np.concatenate([features, action], axis=1))
    np.testing.assert_allclose(found, relu(layer_norm(torso.dense.norms[0], hidden)), atol=1e-5)


def test_no_dense_layers_leave_the_features_as_they_are():
    features = jnp.asarray(normal(5, 2, 3))
    np.testing.assert_array_equal(Dense(3, (), False, KEY)(features), features)
