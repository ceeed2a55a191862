"""The whole SAC family as one function of its parts: representation × estimator × ensemble × policy × temperature."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.agent import NEVER, Agent, AgentState, Update, View
from qemrl.agents.estimates import distribution_metrics, estimate
from qemrl.agents.names import VALUE_AGENTS
from qemrl.agents.optimizer import apply_gradient, begin
from qemrl.agents.policies import AutomaticTemperature, FixedTemperature, TanhGaussian
from qemrl.agents.target_networks import polyak_update
from qemrl.agents.variance_state import VarianceState, at_step, evidence_of, look, needs_of
from qemrl.agents.variance_state import begin as init_variance_state
from qemrl.distributional.bellman import backup
from qemrl.distributional.representations import Purpose
from qemrl.estimators import Statistic
from qemrl.networks.actor_critic import CriticTorso, PolicyNetwork
from qemrl.networks.layers import Key
from qemrl.networks.streams import ActionStreams, StreamConfig
from qemrl.types import ActionBox, Batch, EnvSpec, ReturnDist, UnsupportedEnvironment

CANDIDATES = 64
"""How many actions, the policy's mode among them, are compared where a risk measure decides at acting time."""


class Critic(eqx.Module):
    """Torso and head."""

    torso: CriticTorso
    head: Any


class ActorCritic(eqx.Module):
    """All that acts and judges."""

    policy: PolicyNetwork
    critics: tuple[Critic, ...]
    log_temperature: Float[Array, ""] | None
    """None where the temperature is fixed."""

    variance_state: VarianceState | None = None
    """What V is estimated from, where it is."""


class Learning(NamedTuple):
    """What only learning needs."""

    target_critics: tuple[Critic, ...]
    target_policy: PolicyNetwork | None
    critic_optimizer: optax.OptState
    policy_optimizer: optax.OptState
    temperature_optimizer: optax.OptState


def to_box(box: ActionBox, action: Float[Array, "batch components"]) -> Float[Array, "batch ..."]:
    """Actions in the environment's units, from [−1, 1]."""
    low, high = (np.asarray(ends, np.float32)[None, :] for ends in (box.low, box.high))
    scaled = jnp.clip(low + (action + 1) * ((high - low) / 2), low, high)
    return scaled.reshape(action.shape[0], *box.shape)


def from_box(box: ActionBox, action: Float[Array, "batch ..."]) -> Float[Array, "batch components"]:
    """Actions in [−1, 1], from the environment's units."""
    low, high = (np.asarray(ends, np.float32)[None, :] for ends in (box.low, box.high))
    return (action.reshape(action.shape[0], -1) - low) * (2 / (high - low)) - 1


def make_actor_critic_agent(config: ActorCriticConfig, spec: EnvSpec) -> Agent:
    """An agent for environments with continuous actions."""
    if spec.box is None:
        raise UnsupportedEnvironment(
            f"{spec.id} has {spec.num_actions} actions to choose from; actor-critic agents need continuous ones. "
            f"The value presets are for such environments: {', '.join(VALUE_AGENTS)}"
        )
    box, representation, estimator, policy = spec.box, config.representation, config.estimator, config.policy
    network, ensemble, components, needs = config.network, config.ensemble, len(box.low), needs_of(estimator)
    usual = config.optimizer.make()
    critic_optimizer = representation.optimizer(usual)
    streams = StreamConfig(network.critic_hidden, dueling=False, noisy=False, layer_norm=network.layer_norm)

    def make_streams(features: int, outputs: int, key: Key) -> ActionStreams:
        return ActionStreams(streams, features, 1, outputs, key)

    def make_critic(key: Key) -> Critic:
        torso_key, head_key = jax.random.split(key)
        torso = CriticTorso(network.torso, network.critic_widths, network.layer_norm, spec, torso_key)
        observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
        features = jax.eval_shape(torso, observation, jax.ShapeDtypeStruct((1, components), jnp.float32))
        return Critic(torso, representation.head(make_streams, features.shape[-1], head_key))

    def init(key: Key) -> AgentState:
        policy_key, *critic_keys = jax.random.split(key, 1 + ensemble.size)
        outputs = policy.outputs(components)
        actor = PolicyNetwork(network.torso, network.policy_widths, outputs, spec, policy_key)
        critics = tuple(make_critic(critic_key) for critic_key in critic_keys)
        log_temperature = (
            jnp.log(jnp.float32(config.temperature.initial))
            if isinstance(config.temperature, AutomaticTemperature)
            else None
        )
        learning = Learning(
            jax.tree.map(jnp.copy, critics),
            jax.tree.map(jnp.copy, actor) if config.target_policy else None,
            begin(critic_optimizer, critics),
            begin(usual, actor),
            begin(usual, log_temperature),
        )
        variance_state = init_variance_state(estimator, representation, spec, None)
        return AgentState(ActorCritic(actor, critics, log_temperature, variance_state), learning, ())

    def act(
        params: ActorCritic, acting: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Float[Array, "envs ..."], Any]:
        outputs = params.policy(view.observation)
        if evaluating:
            return to_box(box, policy.mode(outputs)), acting
        policy_key, random_key = jax.random.split(key)
        random = jax.random.uniform(random_key, (outputs.shape[0], components), jnp.float32, -1, 1)
        action = jnp.where(step < config.random_steps, random, policy.explore(outputs, policy_key))
        return to_box(box, action), acting

    def judged(
        critics: tuple[Critic, ...], observation: Any, action: Array, purpose: Purpose, key: Key | None
    ) -> ReturnDist:
        """The members' return distributions [batch, members, n], all at the same levels."""
        dists = [representation.evaluate(each.head, each.torso(observation, action), purpose, key) for each in critics]
        values = jnp.concatenate([dist.values[:, :, 0] for dist in dists], axis=1)
        levels, probs = dists[0].levels, dists[0].probs
        return ReturnDist(
            values, levels if levels.ndim == 1 else levels[:, :, 0], None if probs is None else probs[:, :, 0]
        )

    def temperature(log_temperature: Float[Array, ""] | None) -> Float[Array, ""]:
        if log_temperature is not None:
            return jnp.exp(log_temperature)
        assert isinstance(config.temperature, FixedTemperature)
        return jnp.float32(config.temperature.value)

    def target_of(state: AgentState, batch: Batch, key: Key) -> ReturnDist:
        """The Bellman target [batch, 1, m]: reward + discount · (value of the members together − α log π)."""
        action_key, target_key = jax.random.split(key)
        actor = state.params.policy if state.optimizer.target_policy is None else state.optimizer.target_policy
        choice = policy.follow(actor(batch.next_observation), action_key)
        critics = state.optimizer.target_critics
        dist = judged(critics, batch.next_observation, choice.action, "target", target_key)
        together = ensemble.target(
            dist, estimate(estimator, dist, evidence_of(state.params.variance_state, dist, needs))
        )
        entropy = -temperature(state.params.log_temperature) * choice.log_prob
        soft = together._replace(values=together.values + entropy[:, None, None])
        return jax.lax.stop_gradient(backup(soft, batch.reward, batch.discount))

    def critic_loss(
        critics: tuple[Critic, ...], batch: Batch, goal: ReturnDist, key: Key
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """The sum over the members, each of which learns from the same target."""
        action, only = from_box(box, batch.action), jnp.zeros(batch.reward.shape, jnp.int32)
        losses = [
            representation.loss(each.head, each.torso(batch.observation, action), only, goal, key) for each in critics
        ]
        total = jnp.sum(jnp.concatenate(losses, axis=1), axis=1)
        return jnp.mean(batch.weight * total), total

    def policy_loss(
        actor: PolicyNetwork, params: ActorCritic, alpha: Float[Array, ""], batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """The mean of α log π − Q, and log π."""
        action_key, level_key = jax.random.split(key)
        choice = policy.sample(actor(batch.observation), action_key)
        dist = judged(params.critics, batch.observation, choice.action, "act", level_key)
        # V is given: the policy climbs the estimate, and not the evidence.
        variance_inputs = jax.lax.stop_gradient(evidence_of(params.variance_state, dist, needs))
        q = estimate(estimator, dist, variance_inputs)
        return jnp.mean(batch.weight * (alpha * choice.log_prob - ensemble.value(q))), choice.log_prob

    def improve(
        params: ActorCritic, learning: Learning, batch: Batch, key: Key
    ) -> tuple[PolicyNetwork, Float[Array, ""] | None, Learning]:
        """The policy and the temperature after a step each, and target networks that have moved."""
        alpha = temperature(params.log_temperature)
        gradient, log_prob = jax.grad(policy_loss, has_aux=True)(params.policy, params, alpha, batch, key)
        actor, policy_optimizer = apply_gradient(usual, gradient, learning.policy_optimizer, params.policy)
        log_temperature, temperature_optimizer = params.log_temperature, learning.temperature_optimizer
        if isinstance(config.temperature, AutomaticTemperature):
            wanted = config.temperature.target_entropy
            excess = jnp.mean(log_prob) + (-float(components) if wanted is None else wanted)
            # The gradient of −log α · (log π + target), which does not vanish where α is small.
            log_temperature, temperature_optimizer = apply_gradient(
                usual, -excess, temperature_optimizer, log_temperature
            )
        slow = learning.target_policy
        return (
            actor,
            log_temperature,
            learning._replace(
                target_critics=polyak_update(learning.target_critics, params.critics, config.polyak),
                target_policy=None if slow is None else polyak_update(slow, actor, config.polyak),
                policy_optimizer=policy_optimizer,
                temperature_optimizer=temperature_optimizer,
            ),
        )

    def update(
        state: AgentState, batch: Batch, key: Key, number: Int[Array, ""]
    ) -> tuple[ActorCritic, Learning, Update]:
        target_key, critic_key, policy_key = jax.random.split(key, 3)
        params, learning = state.params, state.optimizer
        goal = target_of(state, batch, target_key)
        gradients = jax.value_and_grad(critic_loss, has_aux=True)
        (loss, losses), gradient = gradients(params.critics, batch, goal, critic_key)
        critics, optimizer = apply_gradient(critic_optimizer, gradient, learning.critic_optimizer, params.critics)
        variance_state = learned(params, batch, goal, critic_key, number)
        params = ActorCritic(params.policy, critics, params.log_temperature, variance_state)
        learning = learning._replace(critic_optimizer=optimizer)
        if config.policy_every == 1:
            actor, log_temperature, learning = improve(params, learning, batch, policy_key)
        else:
            actor, log_temperature, learning = jax.lax.cond(
                (number + 1) % config.policy_every == 0,
                lambda: improve(params, learning, batch, policy_key),
                lambda: (params.policy, params.log_temperature, learning),
            )
        return ActorCritic(actor, critics, log_temperature, variance_state), learning, Update(loss, jnp.sqrt(losses))

    def learned(
        params: ActorCritic, batch: Batch, goal: ReturnDist, key: Key, number: Int[Array, ""]
    ) -> VarianceState | None:
        """What is remembered after an update."""
        variance_state = params.variance_state
        if variance_state is None:
            return None

        def predict() -> tuple[ReturnDist, ReturnDist]:
            action = from_box(box, batch.action)
            dist = judged(params.critics, batch.observation, action, "target", jax.random.fold_in(key, 1))
            shape = (*dist.values.shape[:2], goal.values.shape[-1])
            return dist, goal._replace(values=jnp.broadcast_to(goal.values, shape))

        variance_state = look(variance_state, estimator, number, getattr(representation, "kappa", 1.0), predict)
        return at_step(
            variance_state, estimator, config.learning_starts + number.astype(jnp.float32) * config.update_every
        )

    def distribution(params: ActorCritic, observation: Any, actions: Array | None = None) -> ReturnDist:
        action = policy.mode(params.policy(observation)) if actions is None else from_box(box, actions)
        values, levels, probs = judged(params.critics, observation, action, "report", None)
        return ReturnDist(values[:, :, None], levels, probs)

    def q(params: ActorCritic, observation: Any) -> Float[Array, "batch 1"]:
        dist = distribution(params, observation)
        members = estimate(estimator, dist, evidence_of(params.variance_state, dist, needs))[:, :, 0]
        return ensemble.value(members)[:, None]

    def decide(params: ActorCritic, observation: Any, mask: None, risk: Statistic | None) -> Float[Array, "batch ..."]:
        del mask
        outputs = params.policy(observation)
        best = policy.mode(outputs)
        if risk is None:
            return to_box(box, best)
        drawn = jax.vmap(policy.explore, in_axes=(None, 0))(
            outputs, jax.random.split(jax.random.key(0), CANDIDATES - 1)
        )
        candidates = jnp.concatenate([best[None], drawn])

        def worth(action: Array) -> Float[Array, " batch"]:
            dist = judged(params.critics, observation, action, "report", None)
            return ensemble.value(estimate(risk, dist))

        chosen = jnp.argmax(jax.lax.map(worth, candidates), axis=0)
        return to_box(box, jnp.take_along_axis(candidates, chosen[None, :, None], axis=0)[0])

    def inspect(params: ActorCritic, observation: Any) -> dict[str, Float[Array, ""]]:
        dist = distribution(params, observation)
        numbers = distribution_metrics(estimator, representation, dist, evidence_of(params.variance_state, dist, needs))
        choice = policy.sample(params.policy(observation), jax.random.key(0))
        if isinstance(policy, TanhGaussian):
            numbers["policy/entropy"] = -jnp.mean(choice.log_prob)
        numbers["policy/temperature"] = temperature(params.log_temperature)
        return numbers

    return Agent(init, lambda _: (), act, lambda _: None, update, lambda _: (), NEVER, distribution, q, decide, inspect)
