"""The whole DQN family as one function of its parts: representation × estimator × exploration × network."""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from qemrl.agents.algorithm import AgentState, Algorithm, Update, View
from qemrl.distributional.bellman import backup
from qemrl.estimators import QEM, EmpiricalMean, Estimator, crossing_rate, r_squared
from qemrl.exploration import EpsilonGreedy, Situation, allowed
from qemrl.networks.layers import Key
from qemrl.networks.streams import ActionStreams, StreamConfig
from qemrl.networks.torsos import Torso, TorsoName, make_torso, num_features
from qemrl.replay.config import ReplayConfig
from qemrl.representations import (
    Categorical,
    FixedQuantiles,
    ImplicitQuantiles,
    Representation,
    Scalar,
    choose,
)
from qemrl.types import Batch, EnvSpec, ReturnDist


@dataclass(frozen=True)
class NetworkConfig:
    """Torso and streams."""

    torso: TorsoName = "auto"
    """`nature` (Atari), `minatar` (small boards) or `mlp`; `auto` goes by the observation."""

    widths: tuple[int, ...] = (512, 512)
    """The dense layers of the `mlp` torso."""

    hidden: tuple[int, ...] = ()
    """Hidden layers between torso and outputs; Atari has one of 512."""

    dueling: bool = False
    """A stream for the state's value and one for the actions' advantages."""

    noisy: bool = False
    """Learned noise on the weights of the streams. It explores by itself: consider an ε of zero with it."""


@dataclass(frozen=True)
class AdamConfig:
    """The optimiser."""

    learning_rate: float = 5e-5
    """The step size."""

    epsilon: float = 0.01 / 32
    """Adam's ε. With a loss that sums over quantiles it is part of the tuning, not a safeguard."""

    max_gradient_norm: float | None = None
    """Longer gradients are scaled down to this norm; None leaves them alone."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not self.epsilon > 0:
            raise ValueError(f"learning_rate and epsilon must be positive, got {self}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be positive or None, got {self.max_gradient_norm}")

    def make(self) -> optax.GradientTransformation:
        """The optax transformation."""
        adam = optax.adam(self.learning_rate, eps=self.epsilon)
        return (
            adam
            if self.max_gradient_norm is None
            else optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), adam)
        )


@dataclass(frozen=True)
class ValueConfig:
    """An agent of the DQN family. Steps are agent steps: decisions, summed over environments."""

    representation: Scalar | Categorical | FixedQuantiles | ImplicitQuantiles = field(default_factory=FixedQuantiles)
    """How the network holds a return distribution."""

    estimator: EmpiricalMean | QEM = field(default_factory=EmpiricalMean)
    """How a return distribution becomes Q, in acting and in the target's greedy action."""

    exploration: EpsilonGreedy = field(default_factory=EpsilonGreedy)
    """How Q becomes an action."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimiser: AdamConfig = field(default_factory=AdamConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    double: bool = False
    """Let the online network choose the target's action (double Q-learning)."""

    discount: float = 0.99
    """γ."""

    batch_size: int = 32
    """Transitions per update."""

    update_every: int = 4
    """Steps per update."""

    target_every: int = 10_000
    """Steps between copies of the online network to the target network, a multiple of `update_every`."""

    learning_starts: int = 50_000
    """Steps before the first update."""

    clip_rewards: bool = False
    """Learn from rewards cut to [−1, 1]; returns are reported with the rewards as they are."""

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount must be in (0, 1], got {self.discount}")
        for name in ("batch_size", "update_every", "target_every", "learning_starts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.target_every % self.update_every:
            raise ValueError(
                f"target_every must be a multiple of update_every, got {self.target_every} and {self.update_every}"
            )
        if isinstance(self.estimator, QEM):
            _require_quantiles(self.estimator, self.representation)


def _require_quantiles(estimator: QEM, representation: Representation) -> None:
    match representation:
        case FixedQuantiles(num_quantiles=count) | ImplicitQuantiles(num_acting_levels=count):
            if count < estimator.order:
                raise ValueError(f"QEM of order {estimator.order} needs at least as many quantiles, got {count}")
        case _:
            kind = type(representation).__name__
            raise ValueError(f"QEM estimates Q from quantiles, and {kind} has none; use EmpiricalMean with it")


class Network(eqx.Module):
    """Torso and head."""

    torso: Torso
    head: Any


def make_value_agent(config: ValueConfig, spec: EnvSpec) -> Algorithm:
    """An agent for environments with a finite number of actions."""
    representation, estimator = config.representation, config.estimator
    optimiser = representation.optimiser(config.optimiser.make())
    streams = StreamConfig(config.network.hidden, config.network.dueling, config.network.noisy)

    def make_streams(features: int, outputs: int, key: Key) -> ActionStreams:
        return ActionStreams(streams, features, spec.num_actions, outputs, key)

    def init(key: Key) -> AgentState:
        torso_key, head_key = jax.random.split(key)
        torso = make_torso(config.network.torso, config.network.widths, spec, torso_key)
        params = Network(torso, representation.head(make_streams, num_features(torso, spec), head_key))
        return AgentState(params, optimiser.init(eqx.filter(params, eqx.is_array)), jax.tree.map(jnp.copy, params))

    def act(
        params: Network, acting: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Int[Array, " envs"], Any]:
        dist_key, choice_key = jax.random.split(key)
        dist = representation.evaluate(params.head, params.torso(view.observation), "act", dist_key)
        q = estimate(estimator, dist)
        situation = Situation(view.observation, dist, q, view.mask, view.first, step)
        return config.exploration.choose(acting, situation, choice_key, evaluating)

    def target_of(params: Network, target: Network, batch: Batch, key: Key) -> ReturnDist:
        """The Bellman target [batch, members, n]; each member bootstraps from its own greedy action."""
        choice_key, target_key = jax.random.split(key)
        features = target.torso(batch.next_observation)
        chooser, seen = (params, params.torso(batch.next_observation)) if config.double else (target, features)
        q = estimate(estimator, representation.evaluate(chooser.head, seen, "act", choice_key))
        mask = None if batch.next_mask is None else jnp.broadcast_to(batch.next_mask[:, None], q.shape)
        actions = jnp.argmax(allowed(q, mask), axis=-1)
        dist = choose(representation.evaluate(target.head, features, "target", target_key), actions)
        return jax.lax.stop_gradient(backup(dist, batch.reward, batch.discount))

    def loss(
        params: Network, target: Network, batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        target_key, loss_key = jax.random.split(key)
        goal = target_of(jax.lax.stop_gradient(params), target, batch, target_key)
        features = params.torso(batch.observation)
        losses = jnp.sum(representation.loss(params.head, features, batch.action, goal, loss_key), axis=1)
        return jnp.mean(batch.weight * losses), losses

    def update(state: AgentState, batch: Batch, key: Key) -> tuple[Network, optax.OptState, Update]:
        gradients = jax.value_and_grad(loss, has_aux=True)
        (value, losses), gradient = gradients(state.params, state.frozen, batch, key)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            changes, learning = optimiser.update(gradient, state.learning, state.params)
        params = eqx.apply_updates(state.params, changes)
        return params, learning, Update(value, jnp.sqrt(losses))

    def refresh(state: AgentState) -> Network:
        return state.params

    def distribution(params: Network, observation: Any) -> ReturnDist:
        return representation.evaluate(params.head, params.torso(observation), "report", None)

    def q(params: Network, observation: Any) -> Float[Array, "batch actions"]:
        return jnp.mean(estimate(estimator, distribution(params, observation)), axis=1)

    def inspect(params: Network, observation: Any) -> dict[str, Float[Array, ""]]:
        return numbers_of(estimator, representation, distribution(params, observation))

    every = config.target_every // config.update_every
    return Algorithm(init, config.exploration.start, act, update, refresh, every, distribution, q, inspect)


def estimate(estimator: Estimator, dist: ReturnDist) -> Float[Array, "batch members actions"]:
    """Q: the one place where a return distribution becomes a number."""
    return estimator.mean(dist.values, dist.levels, dist.probs)


def numbers_of(estimator: Estimator, representation: Representation, dist: ReturnDist) -> dict[str, Float[Array, ""]]:
    """What the distributions look like: Q, and for quantiles how often they cross, R² of the QEM fit, QEM − mean."""
    numbers = {"dist/q": jnp.mean(estimate(estimator, dist))}
    if isinstance(representation, FixedQuantiles | ImplicitQuantiles):
        count = dist.values.shape[-1]
        qem = estimator if isinstance(estimator, QEM) else QEM(order=min(4, count))
        numbers["dist/crossing_rate"] = (
            jnp.mean(crossing_rate(dist.values, dist.levels)) if count > 1 else jnp.zeros(())
        )
        numbers["dist/r_squared"] = jnp.mean(r_squared(qem, dist.values, dist.levels))
        difference = qem.mean(dist.values, dist.levels) - EmpiricalMean().mean(dist.values, dist.levels)
        numbers["dist/qem_minus_mean"] = jnp.mean(difference)
        numbers["dist/std"] = jnp.mean(jnp.std(dist.values, axis=-1))
    return numbers
