"""The whole DQN family as one function of its parts: representation × estimator × exploration × network."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.algorithm import AgentState, Algorithm, Update, View
from qemrl.agents.estimates import estimate, numbers_of, require_fit
from qemrl.agents.names import ACTOR_CRITICS
from qemrl.agents.optimiser import AdamConfig, begin, descend
from qemrl.distributional.bellman import backup
from qemrl.estimators import CPW, QEM, CVaR, EmpiricalMean, MeanStd, Statistic, VaR, Wang
from qemrl.exploration import EpsilonGreedy, Optimism, Situation, allowed
from qemrl.networks.layers import Key
from qemrl.networks.streams import ActionStreams, StreamConfig
from qemrl.networks.torsos import Torso, TorsoName, make_torso, num_features
from qemrl.replay.config import ReplayConfig
from qemrl.representations import (
    Categorical,
    FixedQuantiles,
    ImplicitQuantiles,
    Scalar,
    choose,
)
from qemrl.types import Batch, EnvSpec, ReturnDist, UnsupportedEnvironment


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
class ValueConfig:
    """An agent of the DQN family. Steps are agent steps: decisions, summed over environments."""

    representation: Scalar | Categorical | FixedQuantiles | ImplicitQuantiles = field(default_factory=FixedQuantiles)
    """How the network holds a return distribution."""

    estimator: EmpiricalMean | QEM | CVaR | VaR | Wang | CPW | MeanStd = field(default_factory=EmpiricalMean)
    """How a return distribution becomes Q, or a risk measure in its place: in acting and in the target's action."""

    exploration: EpsilonGreedy | Optimism = field(default_factory=EpsilonGreedy)
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
        require_fit(self.estimator, self.representation)
        self.exploration.require_fit(self.representation)

    def fitted(self, num_envs: int) -> "ValueConfig":
        """The same with a number of steps between copies that whole iterations of so many environments make up."""
        whole = math.lcm(self.update_every, num_envs)
        return replace(self, target_every=-(-self.target_every // whole) * whole)


class Network(eqx.Module):
    """Torso and head."""

    torso: Torso
    head: Any


def make_value_agent(config: ValueConfig, spec: EnvSpec) -> Algorithm:
    """An agent for environments with a finite number of actions."""
    if spec.box is not None:
        raise UnsupportedEnvironment(
            f"{spec.id} has continuous actions; value agents choose among finitely many. "
            f"The actor-critic presets are for continuous ones: {', '.join(ACTOR_CRITICS)}"
        )
    representation, estimator = config.representation, config.estimator
    optimiser = representation.optimiser(config.optimiser.make())
    streams = StreamConfig(config.network.hidden, config.network.dueling, config.network.noisy)

    def make_streams(features: int, outputs: int, key: Key) -> ActionStreams:
        return ActionStreams(streams, features, spec.num_actions, outputs, key)

    def init(key: Key) -> AgentState:
        torso_key, head_key = jax.random.split(key)
        torso = make_torso(config.network.torso, config.network.widths, spec, torso_key)
        params = Network(torso, representation.head(make_streams, num_features(torso, spec), head_key))
        return AgentState(params, begin(optimiser, params), jax.tree.map(jnp.copy, params))

    def act(
        params: Network, acting: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Int[Array, " envs"], Any]:
        dist_key, choice_key = jax.random.split(key)
        dist = representation.evaluate(params.head, params.torso(view.observation), "act", dist_key)
        q = estimate(estimator, dist)
        situation = Situation(view.observation, dist, q, view.mask, view.first, step, config.learning_starts)
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

    def update(
        state: AgentState, batch: Batch, key: Key, number: Int[Array, ""]
    ) -> tuple[Network, optax.OptState, Update]:
        del number
        gradients = jax.value_and_grad(loss, has_aux=True)
        (value, losses), gradient = gradients(state.params, state.frozen, batch, key)
        params, learning = descend(optimiser, gradient, state.learning, state.params)
        return params, learning, Update(value, jnp.sqrt(losses))

    def refresh(state: AgentState) -> Network:
        return state.params

    def distribution(params: Network, observation: Any, actions: Int[Array, " batch"] | None = None) -> ReturnDist:
        dist = representation.evaluate(params.head, params.torso(observation), "report", None)
        if actions is None:
            return dist
        members = jnp.broadcast_to(actions[:, None], dist.values.shape[:2])
        return ReturnDist(*(a if a is None or a.ndim == 1 else a[:, :, None] for a in choose(dist, members)))

    def q(params: Network, observation: Any) -> Float[Array, "batch actions"]:
        return jnp.mean(estimate(estimator, distribution(params, observation)), axis=1)

    def decide(
        params: Network, observation: Any, mask: Bool[Array, "batch actions"] | None, risk: Statistic | None
    ) -> Int[Array, " batch"]:
        worth = jnp.mean(estimate(risk or estimator, distribution(params, observation)), axis=1)
        return jnp.argmax(allowed(worth, mask), axis=-1).astype(jnp.int32)

    def inspect(params: Network, observation: Any) -> dict[str, Float[Array, ""]]:
        return numbers_of(estimator, representation, distribution(params, observation))

    every = config.target_every // config.update_every
    start, earned = partial(config.exploration.start, spec=spec), config.exploration.reward
    return Algorithm(init, start, act, earned, update, refresh, every, distribution, q, decide, inspect)
