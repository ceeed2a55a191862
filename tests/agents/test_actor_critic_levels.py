"""What an update of an actor-critic draws, and how drawn levels count."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_actor_critics import (
    DSAC,
    KEY,
    SAC,
    Steady,
    acted,
    dense,
    difference,
    first_step,
    in_the_midst,
    pinball,
    prepared,
    transitions,
)

from qemrl.distributional.implicit import ImplicitQuantiles

pytestmark = pytest.mark.usefixtures("quick_compilation")

SEEN: dict[str, list] = {"act": [], "target": [], "loss": [], "keys": []}


def note(kind, *arrays) -> None:
    """Keep what a compiled update draws."""
    jax.debug.callback(lambda *drawn: SEEN[kind].append([np.asarray(each) for each in drawn]), *arrays)


@dataclass(frozen=True)
class NotedDraws(Steady):
    """A policy that notes the keys it is given."""

    def sample(self, outputs, key):
        note("keys", jax.random.key_data(key))
        return super().sample(outputs, key)


@dataclass(frozen=True)
class NotedLevels(ImplicitQuantiles):
    """A representation that notes its levels and their probabilities [batch, n]."""

    def predict(self, head, features, purpose, key):
        dist = super().predict(head, features, purpose, key)
        assert dist.probs is not None
        note(purpose, dist.levels[:, 0, 0], dist.probs[:, 0, 0])
        return dist

    def loss(self, head, features, actions, target, key):
        # `loss` and `evaluate` draw as many levels from a key in the same way.
        drawn = super().predict(head, features, "target", key)
        assert drawn.probs is not None
        note("loss", drawn.levels[:, 0, 0], drawn.probs[:, 0, 0])
        return super().loss(head, features, actions, target, key)


def curve_at(critic, observation, unit, levels):
    """A critic of levels with two cosines, one layer before the level joins and none after."""
    hidden = jnp.maximum(dense(critic.torso.dense.layers[0], jnp.concatenate([observation, unit], axis=1)), 0)
    cosines = jnp.cos(np.float32(np.pi) * jnp.stack([levels, 2 * levels], axis=-1))
    embedded = cosines @ critic.head.embedding.weight.T + critic.head.embedding.bias[None, None]
    centered = embedded - jnp.mean(embedded, axis=-1, keepdims=True)
    embedded = centered / jnp.sqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + np.float32(1e-5))
    embedded = embedded * critic.head.norm.scale[None, None] + critic.head.norm.bias[None, None]
    (last,) = critic.head.streams.advantage.layers
    return jnp.sum(hidden[:, None, :] / (1 + jnp.exp(-embedded)) * last.weight[None], axis=-1) + last.bias[0]


LEVELS = NotedLevels(3, 3, 4, "cumulative", "cumulative", num_cosines=2, gate="sigmoid", layer_norm=True)
DSAC_IQN = replace(DSAC, representation=LEVELS, policy=NotedDraws(), network=replace(SAC.network, critic_hidden=()))


@pytest.fixture(scope="module")
def drawn():
    """A state, transitions, parameters and losses after an update, and what was drawn in it."""
    state, batch = in_the_midst(DSAC_IQN), transitions(3)
    program = prepared(DSAC_IQN)[2]
    for each in SEEN.values():
        each.clear()
    params, _, update = jax.block_until_ready(program(state, batch, KEY, jnp.int32(0)))
    jax.effects_barrier()
    return state, batch, params, update.priorities**2, {kind: list(noted) for kind, noted in SEEN.items()}


def test_critics_are_evaluated_at_the_same_levels_and_each_purpose_has_its_own(drawn):
    *_, seen = drawn
    for purpose, count in (("act", 4), ("target", 3), ("loss", 3)):
        (levels, probs), (other, _) = seen[purpose]
        assert levels.shape == (3, count)
        np.testing.assert_array_equal(levels, other)
        np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-6)
        assert np.ptp(probs) > 0.05
    all_levels = [seen[purpose][0][0].ravel() for purpose in ("act", "target", "loss")]
    assert len(np.unique(np.concatenate(all_levels))) == 3 * (4 + 3 + 3)


def test_the_target_and_the_policy_draw_different_actions(drawn):
    """A policy that learned on the draws its critics learned from would learn their errors too."""
    (one,), (other,) = drawn[-1]["keys"]
    assert one.tolist() != other.tolist()


def test_quantiles_at_drawn_levels_count_by_the_intervals_they_stand_for(drawn):
    """DSAC(IQN): the least of both critics at each level, and probabilities weigh the target's atoms and Q."""
    state, batch, params, losses, seen = drawn
    (goal_levels, goal_probs), (own_levels, _), (acting_levels, acting_probs) = (
        seen[purpose][0] for purpose in ("target", "loss", "act")
    )
    unit = jnp.stack([(batch.action[:, 0] - 1) / 3, batch.action[:, 1]], axis=1)

    @jax.jit
    def goal_and_own(learning, critics):
        next_unit, log_prob = acted(DSAC_IQN, learning.target_policy, batch.next_observation)
        curves = [curve_at(each, batch.next_observation, next_unit, goal_levels) for each in learning.target_critics]
        atoms = jnp.minimum(*curves) - 0.3 * log_prob[:, None]
        own = [curve_at(each, batch.observation, unit, own_levels) for each in critics]
        return batch.reward[:, None] + batch.discount[:, None] * atoms, own

    goal, own = jax.tree.map(np.asarray, goal_and_own(state.optimizer, state.params.critics))
    wanted = [sum(pinball(own_levels[i], values[i], goal[i], goal_probs[i]) for values in own) for i in range(3)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)

    @jax.jit
    @jax.grad
    def gradient(policy):
        choice, log_prob = acted(DSAC_IQN, policy, batch.observation)
        curves = [curve_at(each, batch.observation, choice, acting_levels) for each in params.critics]
        q = jnp.minimum(*(jnp.sum(acting_probs * values, axis=1) for values in curves))
        return jnp.mean(batch.weight * (0.3 * log_prob - q))

    assert difference(params.policy, first_step(state.params.policy, gradient(state.params.policy))) < 3e-6
