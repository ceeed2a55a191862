"""DSAC with proposed fractions: whose they are, how critics are joined by them, and what teaches them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_actor_critics import KEY, RATE, SAC, in_the_midst, pinball, prepared, shaken, transitions

from qemrl.agents.actor_critic_presets import dsac_fqf
from qemrl.agents.optimizer import AdamConfig
from qemrl.distributional.fractions import ProposedFractions

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRESET = dsac_fqf("classic").representation
assert isinstance(PRESET, ProposedFractions)
FRACTIONS = replace(PRESET, num_fractions=4, num_cosines=3, fraction_widths=(5,), fraction_rate=0.01)
FQF = replace(SAC, representation=FRACTIONS, target_policy=True, optimizer=AdamConfig(RATE, 1.0))
UNIT = np.tanh(np.linspace(-1, 1, 12)).reshape(6, 2).astype(np.float32)


def in_unit_box(action):
    return ((np.asarray(action) - [1, 0]) / [3, 1]).astype(np.float32)


def state_with_crossing_critics():
    """A state whose target critics are the smaller one in turns."""
    state = in_the_midst(FQF)
    return state._replace(optimizer=state.optimizer._replace(target_critics=shaken(state.params.critics, 300)))


def proposals(critic, observation, unit):
    """Ends, middles and widths [batch, ...] that a critic's own network proposes, by its layers in NumPy."""
    network = critic.head.fractions
    inputs = np.asarray(critic.torso(observation, jnp.asarray(unit)), float)
    for layer in network.dense.layers:
        inputs = np.maximum(inputs @ np.asarray(layer.weight, float).T + np.asarray(layer.bias), 0)
    logits = inputs @ np.asarray(network.last.weight, float).T + np.asarray(network.last.bias)
    widths = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ends = np.cumsum(widths, axis=-1)
    return ends[:, :-1], ends - widths / 2, widths


def curve(critic, observation, unit, levels):
    """The values [batch, n] of a critic at levels."""
    features = critic.torso(observation, jnp.asarray(unit))
    return np.asarray(critic.head.quantiles(features, jnp.asarray(levels, jnp.float32), None))[..., 0]


def test_the_first_critic_proposes_for_both():
    agent, state, batch = prepared(FQF)[0], in_the_midst(FQF), transitions()
    critics = state.params.critics
    _, middles, widths = proposals(critics[0], batch.observation, UNIT)
    assert np.ptp(widths, axis=-1).min() > 0.02
    dist = agent.predict(critics, batch.observation, jnp.asarray(UNIT), "act", KEY)
    np.testing.assert_allclose(dist.levels[:, 0], middles, atol=1e-5)
    assert dist.probs is not None
    np.testing.assert_allclose(dist.probs[:, 0], widths, atol=1e-5)
    for member, critic in enumerate(critics):
        expected = curve(critic, batch.observation, UNIT, middles)
        np.testing.assert_allclose(dist.values[:, member], expected, rtol=1e-4, atol=1e-4)
    # What the second one would propose is not asked for.
    head = critics[1].head
    other = type(critics[1])(critics[1].torso, type(head)(head.quantiles, shaken(head.fractions, 7)))
    again = agent.predict((critics[0], other), batch.observation, jnp.asarray(UNIT), "act", KEY)
    np.testing.assert_array_equal(dist.values, again.values)


def test_q_is_the_least_of_the_sums_over_the_intervals_of_the_first_critic():
    agent, state, batch = prepared(FQF)[0], state_with_crossing_critics(), transitions()
    critics = state.optimizer.target_critics
    unit = np.asarray(FQF.policy.mode(state.params.policy(batch.observation)))
    _, middles, widths = proposals(critics[0], batch.observation, unit)
    sums = [np.sum(widths * curve(critic, batch.observation, unit, middles), axis=-1) for critic in critics]
    assert np.abs(sums[0] - sums[1]).min() > 0.02
    params = type(state.params)(state.params.policy, critics, state.params.log_temperature)
    found = agent.q_values(params, batch.observation)
    np.testing.assert_allclose(found[:, 0], np.minimum(*sums), rtol=1e-3, atol=1e-4)


def goal_by_hand(state, batch):
    """The target's atoms [batch, n] and their probabilities: the least of both target critics at shared levels."""
    config, learning = FQF, state.optimizer
    choice = config.policy.sample(learning.target_policy(batch.next_observation), KEY)
    unit = np.asarray(choice.action)
    _, middles, widths = proposals(learning.target_critics[0], batch.next_observation, unit)
    curves = [curve(critic, batch.next_observation, unit, middles) for critic in learning.target_critics]
    assert (curves[0] < curves[1]).any()
    assert (curves[0] > curves[1]).any()
    soft = np.minimum(*curves) - 0.3 * np.asarray(choice.log_prob)[:, None]
    return np.asarray(batch.reward)[:, None] + np.asarray(batch.discount)[:, None] * soft, widths


def test_targets_are_the_least_at_levels_of_the_first_target_critic_and_count_by_its_widths():
    """DSAC's next_presum_tau: the loss of each critic weighs the target's atoms by them."""
    agent, state, batch = prepared(FQF)[0], state_with_crossing_critics(), transitions()
    atoms, widths = goal_by_hand(state, batch)
    goal = agent.bellman_target(state, batch, KEY)
    np.testing.assert_allclose(goal.values[:, 0], atoms, rtol=1e-4, atol=1e-4)
    assert goal.probs is not None
    np.testing.assert_allclose(goal.probs[:, 0], widths, atol=1e-5)
    unit = in_unit_box(batch.action)
    _, middles, _ = proposals(state.params.critics[0], batch.observation, unit)
    expected = sum(
        np.array([pinball(*row) for row in zip(middles, values, atoms, widths, strict=True)])
        for values in (curve(critic, batch.observation, unit, middles) for critic in state.params.critics)
    )
    _, losses = agent.critic_loss(state.params.critics, batch, goal, KEY)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    plain = replace(FQF, representation=replace(FRACTIONS, weigh_targets=False))
    assert prepared(plain)[0].bellman_target(in_the_midst(plain), batch, KEY).probs is None


def test_an_update_moves_the_first_proposals_by_rmsprop_and_nothing_else_by_it():
    """Centered, of decay 0.95: the first step is η g / √(0.05 g² − (0.05 g)² + ε), ε = 10⁻⁵.

    g goes down Σ_i (2 q(τ_i) − q(τ̂_i) − q(τ̂_{i−1})) τ_i, q as it is, on the mean of weighted transitions.
    """
    (agent, _, update), state = prepared(FQF), in_the_midst(FQF)
    batch = transitions()
    batch = batch._replace(weight=300 * batch.weight)  # of gradients as small as otherwise, ε would be all that counts
    fresh = agent.critic_optimizer.init(state.params.critics)
    state = state._replace(optimizer=state.optimizer._replace(critic_optimizer=fresh))
    params, _, _ = update(state, batch, KEY, jnp.int32(0))
    unit = in_unit_box(batch.action)
    first = state.params.critics[0]
    ends, middles, _ = proposals(first, batch.observation, unit)
    values = curve(first, batch.observation, unit, middles)
    slopes = 2 * curve(first, batch.observation, unit, ends) - values[:, 1:] - values[:, :-1]
    features = first.torso(batch.observation, jnp.asarray(unit))

    def loss(network):
        rows = jnp.sum(jnp.asarray(slopes) * network(features).ends, axis=1)
        return jnp.mean(batch.weight * rows)

    gradient = jax.grad(loss)(first.head.fractions)
    moved = params.critics[0].head.fractions
    for g, old, new in zip(*map(jax.tree.leaves, (gradient, first.head.fractions, moved)), strict=True):
        g = np.asarray(g, float)
        step = 0.01 * g / np.sqrt(0.05 * g**2 - (0.05 * g) ** 2 + 1e-5)
        np.testing.assert_allclose(np.asarray(old) - np.asarray(new), step, rtol=2e-2, atol=2e-5)
        assert np.abs(step).max() > 1e-4
    second = state.params.critics[1].head.fractions, params.critics[1].head.fractions
    for old, new in zip(*map(jax.tree.leaves, second), strict=True):
        np.testing.assert_array_equal(old, new)
    for old, new in zip(state.params.critics, params.critics, strict=True):
        quantiles = zip(*(jax.tree.leaves(each.head.quantiles) for each in (old, new)), strict=True)
        assert all((one != other).any() for one, other in quantiles)
