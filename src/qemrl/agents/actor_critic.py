"""The SAC family: representation × estimator × ensemble × policy × temperature."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.agent import NEVER, AgentState, Update, View
from qemrl.agents.names import VALUE_AGENTS
from qemrl.agents.optimizer import apply_gradient, init_optimizer
from qemrl.agents.q_estimator import Prediction, QEstimator
from qemrl.agents.target_networks import polyak_update
from qemrl.distributional.losses import backup
from qemrl.distributional.representation import Purpose
from qemrl.estimators import Statistic
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.networks.layers import Dense, Key, Linear
from qemrl.networks.torsos import NetworkFunction, Torso, TorsoName, make_torso, num_features
from qemrl.types import ActionBox, Batch, EnvSpec, ReturnDist, UnsupportedEnvironment

CANDIDATES = 64
"""How many actions, the policy's mode among them, are compared where a risk measure chooses between them."""


class PolicyNetwork(eqx.Module):
    """From an observation to the outputs that a policy reads; the last layer begins near zero, as in DSAC's code."""

    torso: Torso
    dense: Dense
    head: Linear

    def __init__(
        self, torso: TorsoName | NetworkFunction, widths: tuple[int, ...], outputs: int, spec: EnvSpec, key: Key
    ) -> None:
        torso_key, dense_key, head_key = jax.random.split(key, 3)
        self.torso = make_torso(torso, spec, torso_key)
        features = num_features(self.torso, spec)
        self.dense = Dense(features, widths, False, dense_key)
        self.head = Linear(widths[-1] if widths else features, outputs, head_key, scale=1e-2)

    def __call__(self, observation: Array) -> Float[Array, "batch outputs"]:
        """The outputs for observations [batch, ...]."""
        return self.head(self.dense(self.torso(observation)), None)


class CriticTorso(eqx.Module):
    """From an observation and an action to features: the action joins what the torso makes of the observation."""

    torso: Torso
    dense: Dense

    def __init__(
        self, torso: TorsoName | NetworkFunction, widths: tuple[int, ...], layer_norm: bool, spec: EnvSpec, key: Key
    ) -> None:
        torso_key, dense_key = jax.random.split(key)
        self.torso = make_torso(torso, spec, torso_key)
        components = 0 if spec.box is None else len(spec.box.low)
        self.dense = Dense(num_features(self.torso, spec) + components, widths, layer_norm, dense_key)

    def __call__(self, observation: Array, action: Float[Array, "batch components"]) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...] and actions in [−1, 1]."""
        return self.dense(jnp.concatenate([self.torso(observation), action], axis=-1))


class Critic(eqx.Module):
    """Torso and head."""

    torso: CriticTorso
    head: Any


class ActorCritic(eqx.Module):
    """The parameters: policy, critics, and what is learned beside them."""

    policy: PolicyNetwork
    critics: tuple[Critic, ...]
    log_temperature: Float[Array, ""] | None
    """None where the temperature is fixed."""

    estimator: Any = None
    """The state of the estimator of Q; None for those without."""


class Learning(NamedTuple):
    """What only learning needs: target networks, which move with every update, and the states of the optimizers."""

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


@dataclass(frozen=True)
class ActorCriticAgent:
    """SAC and its family: critics that hold return distributions, and a policy that maximizes the Q read from them."""

    config: ActorCriticConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        if self.spec.box is None:
            raise UnsupportedEnvironment(
                f"{self.spec.id} has {self.spec.num_actions} actions to choose from; actor-critic agents need "
                f"continuous ones. The value presets are for such environments: {', '.join(VALUE_AGENTS)}"
            )

    target_update_every = NEVER

    @property
    def box(self) -> ActionBox:
        """Where actions lie."""
        assert self.spec.box is not None
        return self.spec.box

    @property
    def num_components(self) -> int:
        """How many numbers an action is."""
        return len(self.box.low)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of the policy and of a temperature that is learned."""
        return self.config.optimizer.make()

    @cached_property
    def critic_optimizer(self) -> optax.GradientTransformation:
        """The optimizer of the critics."""
        return self.config.representation.optimizer(self.optimizer)

    @property
    def estimate_q(self) -> QEstimator:
        """From return distributions to Q."""
        return QEstimator(self.config.estimator, self.config.representation)

    def init(self, key: Key) -> AgentState:
        """A fresh policy and critics, with their target networks and optimizers."""
        config = self.config
        policy_key, *critic_keys = jax.random.split(key, 1 + config.ensemble.size)
        outputs = config.policy.num_outputs(self.num_components)
        policy = PolicyNetwork(config.network.torso, config.network.policy_widths, outputs, self.spec, policy_key)
        critics = tuple(self._make_critic(critic_key) for critic_key in critic_keys)
        log_temperature = config.temperature.init()
        learning = Learning(
            jax.tree.map(jnp.copy, critics),
            jax.tree.map(jnp.copy, policy) if config.target_policy else None,
            init_optimizer(self.critic_optimizer, critics),
            init_optimizer(self.optimizer, policy),
            init_optimizer(self.optimizer, log_temperature),
        )
        estimator = self.estimate_q.init(self.spec, critics)
        return AgentState(ActorCritic(policy, critics, log_temperature, estimator), learning, ())

    def _make_critic(self, key: Key) -> Critic:
        torso_key, head_key = jax.random.split(key)
        network, spec = self.config.network, self.spec
        torso = CriticTorso(network.torso, network.critic_widths, network.layer_norm, spec, torso_key)
        observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
        features = jax.eval_shape(torso, observation, jax.ShapeDtypeStruct((1, self.num_components), jnp.float32))
        return Critic(torso, self.config.representation.make_head(self._make_streams, features.shape[-1], head_key))

    def _make_streams(self, features: int, outputs: int, key: Key) -> ActionStreams:
        network = self.config.network
        streams = StreamConfig(network.critic_hidden, dueling=False, noisy=False, layer_norm=network.layer_norm)
        return ActionStreams(streams, features, 1, outputs, key)

    # Acting

    def init_actor(self, num_envs: int) -> tuple[()]:
        """No state: the policy explores by itself."""
        del num_envs
        return ()

    def act(
        self, params: ActorCritic, actor: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Float[Array, "envs ..."], Any]:
        """Uniform actions at first, then those that the policy explores with; in evaluation its mode."""
        policy, outputs = self.config.policy, params.policy(view.observation)
        if evaluating:
            return to_box(self.box, policy.mode(outputs)), actor
        policy_key, random_key = jax.random.split(key)
        random = jax.random.uniform(random_key, (outputs.shape[0], self.num_components), jnp.float32, -1, 1)
        action = jnp.where(step < self.config.random_steps, random, policy.explore(outputs, policy_key))
        return to_box(self.box, action), actor

    def intrinsic_reward(self, actor: Any) -> None:
        """None: nothing is added to rewards."""
        del actor

    def member_mask(self, num_envs: int, key: Key) -> None:
        """None: every critic learns from every transition."""
        del num_envs, key

    # Learning

    def update(
        self, state: AgentState, batch: Batch, key: Key, updates: Int[Array, ""]
    ) -> tuple[ActorCritic, Learning, Update]:
        """A gradient step on the critics and, where due, on the policy and the temperature."""
        target_key, critic_key, policy_key = jax.random.split(key, 3)
        before, learning = state.params, state.optimizer
        target = self.bellman_target(state, batch, target_key)
        gradients = jax.value_and_grad(self.critic_loss, has_aux=True)
        (loss, losses), gradient = gradients(before.critics, batch, target, critic_key)
        rate = self._rate(updates)
        critics, optimizer = apply_gradient(
            self.critic_optimizer, gradient, learning.critic_optimizer, before.critics, rate
        )

        def predict() -> tuple[ReturnDist, ReturnDist]:
            action, level_key = from_box(self.box, batch.action), jax.random.fold_in(critic_key, 1)
            dist = self.predict(before.critics, batch.observation, action, "target", level_key)
            shape = (*dist.values.shape[:2], target.values.shape[-1])
            return dist, target._replace(values=jnp.broadcast_to(target.values, shape))

        step = self.config.learning_starts + updates.astype(jnp.float32) * self.config.update_every
        estimator = self.estimate_q.update(before.estimator, batch, critics, updates, step, predict)
        params = ActorCritic(before.policy, critics, before.log_temperature, estimator)
        learning = learning._replace(critic_optimizer=optimizer)
        every = self.config.policy_every
        if every == 1:
            policy, log_temperature, learning = self.improve_policy(params, learning, batch, policy_key, rate)
        else:
            policy, log_temperature, learning = jax.lax.cond(
                (updates + 1) % every == 0,
                lambda: self.improve_policy(params, learning, batch, policy_key, rate),
                lambda: (params.policy, params.log_temperature, learning),
            )
        return ActorCritic(policy, critics, log_temperature, estimator), learning, Update(loss, jnp.sqrt(losses))

    def _rate(self, updates: Int[Array, ""]) -> float | Float[Array, ""]:
        config = self.config
        return config.optimizer.rate(updates, config.first_update, config.update_every)

    def bellman_target(self, state: AgentState, batch: Batch, key: Key) -> ReturnDist:
        """Reward + discount · (return by the ensemble of target critics − α log π) [batch, 1, m]."""
        action_key, level_key = jax.random.split(key)
        params, learning = state.params, state.optimizer
        policy = params.policy if learning.target_policy is None else learning.target_policy
        choice = self.config.policy.follow(policy(batch.next_observation), action_key)
        dist = self.predict(learning.target_critics, batch.next_observation, choice.action, "target", level_key)
        pooled = self.config.ensemble.target(dist, self.estimate_q(Prediction(dist), params.estimator))
        entropy = -self.config.temperature.value_at(params.log_temperature) * choice.log_prob
        soft = pooled._replace(values=pooled.values + entropy[:, None, None])
        return jax.lax.stop_gradient(backup(soft, batch.reward, batch.discount))

    def critic_loss(
        self, critics: tuple[Critic, ...], batch: Batch, target: ReturnDist, key: Key
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """The sum over the members, each of which learns from the same target."""
        action, first = from_box(self.box, batch.action), jnp.zeros(batch.reward.shape, jnp.int32)
        losses = [
            self.config.representation.loss(head, features, first, target, key)
            for head, features in self._heads(critics, batch.observation, action)
        ]
        total = jnp.sum(jnp.concatenate(losses, axis=1), axis=1)
        return jnp.mean(batch.weight * total), total

    def policy_loss(
        self, policy: PolicyNetwork, params: ActorCritic, alpha: Float[Array, ""], batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """The mean of α log π − Q, and log π."""
        action_key, level_key = jax.random.split(key)
        choice = self.config.policy.sample(policy(batch.observation), action_key)
        dist = self.predict(params.critics, batch.observation, choice.action, "act", level_key)
        q = self.config.ensemble.value(self.estimate_q(Prediction(dist), params.estimator))
        return jnp.mean(batch.weight * (alpha * choice.log_prob - q)), choice.log_prob

    def improve_policy(
        self, params: ActorCritic, learning: Learning, batch: Batch, key: Key, rate: float | Float[Array, ""]
    ) -> tuple[PolicyNetwork, Float[Array, ""] | None, Learning]:
        """The policy and the temperature after a step each, and target networks that have moved."""
        config = self.config
        alpha = config.temperature.value_at(params.log_temperature)
        gradient, log_prob = jax.grad(self.policy_loss, has_aux=True)(params.policy, params, alpha, batch, key)
        policy, policy_optimizer = apply_gradient(
            self.optimizer, gradient, learning.policy_optimizer, params.policy, rate
        )
        log_temperature, temperature_optimizer = params.log_temperature, learning.temperature_optimizer
        if log_temperature is not None:
            gradient = config.temperature.gradient(log_prob, self.num_components)
            log_temperature, temperature_optimizer = apply_gradient(
                self.optimizer, gradient, temperature_optimizer, log_temperature, rate
            )
        target = learning.target_policy
        learning = learning._replace(
            target_critics=polyak_update(learning.target_critics, params.critics, config.polyak),
            target_policy=None if target is None else polyak_update(target, policy, config.polyak),
            policy_optimizer=policy_optimizer,
            temperature_optimizer=temperature_optimizer,
        )
        return policy, log_temperature, learning

    def refresh_target(self, state: AgentState) -> tuple[()]:
        """Nothing: target networks move with every update."""
        del state
        return ()

    # Predictions

    def predict(
        self, critics: tuple[Critic, ...], observation: Any, action: Array, purpose: Purpose, key: Key | None
    ) -> ReturnDist:
        """The critics' return distributions [batch, members, n], all at the same levels."""
        representation = self.config.representation
        dists = [
            representation.predict(head, features, purpose, key)
            for head, features in self._heads(critics, observation, action)
        ]
        values = jnp.concatenate([dist.values[:, :, 0] for dist in dists], axis=1)
        levels, probs = dists[0].levels, dists[0].probs
        return ReturnDist(
            values, levels if levels.ndim == 1 else levels[:, :, 0], None if probs is None else probs[:, :, 0]
        )

    def _heads(self, critics: tuple[Critic, ...], observation: Any, action: Array) -> list[tuple[Any, Array]]:
        """The critics' heads with what they share, and their features."""
        features = [critic.torso(observation, action) for critic in critics]
        follow, leader = self.config.representation.follow, critics[0].head
        heads = [leader, *(follow(critic.head, leader, features[0]) for critic in critics[1:])]
        return list(zip(heads, features, strict=True))

    def predict_distribution(self, params: ActorCritic, observation: Any, actions: Array | None = None) -> ReturnDist:
        """That of the action that the policy prefers, or of one that is given for each observation."""
        policy = self.config.policy
        action = policy.mode(params.policy(observation)) if actions is None else from_box(self.box, actions)
        dist = self.predict(params.critics, observation, action, "report", None)
        return ReturnDist(*(each if each is None or each.ndim == 1 else each[:, :, None] for each in dist))

    def q_values(self, params: ActorCritic, observation: Any) -> Float[Array, "batch 1"]:
        """Q of the action that the policy prefers."""
        prediction = Prediction(self.predict_distribution(params, observation))
        members = self.estimate_q(prediction, params.estimator)[:, :, 0]
        return self.config.ensemble.value(members)[:, None]

    def greedy_action(
        self, params: ActorCritic, observation: Any, mask: None = None, risk: Statistic | None = None
    ) -> Float[Array, "batch ..."]:
        """The policy's mode, or the best by a risk measure among the mode and samples from the policy."""
        del mask
        policy, outputs = self.config.policy, params.policy(observation)
        mode = policy.mode(outputs)
        if risk is None:
            return to_box(self.box, mode)
        keys = jax.random.split(jax.random.key(0), CANDIDATES - 1)
        draws = jax.vmap(policy.explore, in_axes=(None, 0))(outputs, keys)
        candidates = jnp.concatenate([mode[None], draws])

        def measure(action: Array) -> Float[Array, " batch"]:
            dist = self.predict(params.critics, observation, action, "report", None)
            return self.config.ensemble.value(risk.mean(*dist))

        best = jnp.argmax(jax.lax.map(measure, candidates), axis=0)
        return to_box(self.box, jnp.take_along_axis(candidates, best[None, :, None], axis=0)[0])

    def metrics(self, params: ActorCritic, observation: Any) -> dict[str, Float[Array, ""]]:
        """What the return distributions look like, and the policy's entropy and its weight."""
        prediction = Prediction(self.predict_distribution(params, observation))
        metrics = self.estimate_q.metrics(prediction, params.estimator)
        if self.config.policy.has_entropy:
            choice = self.config.policy.sample(params.policy(observation), jax.random.key(0))
            metrics["policy/entropy"] = -jnp.mean(choice.log_prob)
        metrics["policy/temperature"] = self.config.temperature.value_at(params.log_temperature)
        return metrics

    def scheduled(self, step: Int[Array, ""], updates: Int[Array, ""]) -> dict[str, float | Float[Array, ""]]:
        """The learning rate of the next update, the same for critics, policy and temperature."""
        del step
        return {"train/learning_rate": self._rate(updates)}
