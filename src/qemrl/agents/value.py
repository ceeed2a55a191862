"""The whole DQN family as one function of its parts: representation × estimator × exploration × network."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import Agent, AgentState, Update, View
from qemrl.agents.estimates import Weights, check_compatible, distribution_metrics, estimate
from qemrl.agents.names import ACTOR_CRITICS
from qemrl.agents.optimizer import AdamConfig, apply_gradient, begin
from qemrl.agents.target_networks import EMA, EMA_RATE, Online, Snapshots, polyak_update
from qemrl.agents.variance_state import (
    VarianceState,
    at_step,
    check_variance_inputs,
    count,
    evidence_of,
    look,
    lookup_visits,
    needs_of,
)
from qemrl.agents.variance_state import begin as init_variance_state
from qemrl.distributional.bellman import backup
from qemrl.distributional.representations import (
    FixedQuantiles,
    Purpose,
    Representation,
    select_action_distribution,
)
from qemrl.estimators import EmpiricalMean, Statistic, VarianceInputs
from qemrl.exploration import ActionContext, EpsilonGreedy, Exploration, allowed
from qemrl.networks.layers import Key
from qemrl.networks.streams import ActionStreams, StreamConfig
from qemrl.networks.torsos import Torso, TorsoName, make_torso, num_features
from qemrl.replay.config import ReplayConfig
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

    representation: Representation = field(default_factory=FixedQuantiles)
    """How the network holds a return distribution."""

    estimator: Statistic = field(default_factory=EmpiricalMean)
    """How a return distribution becomes Q, or a risk measure in its place: in acting and in the target's action."""

    averaging: Online | EMA | Snapshots = field(default_factory=Online)
    """Which networks the quantiles come from that Q is estimated from: the rival of an estimator that errs less."""

    exploration: Exploration = field(default_factory=EpsilonGreedy)
    """How Q becomes an action."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: AdamConfig = field(default_factory=AdamConfig)
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
        check_compatible(self.estimator, self.representation)
        members = getattr(self.representation, "num_heads", 1)
        check_variance_inputs(self.estimator, self.representation, members, discrete=True)
        if "ema" in needs_of(self.estimator) and isinstance(self.averaging, EMA):
            raise ValueError("Q is estimated from the EMA network here, which cannot be its own evidence; use Online()")
        self.exploration.check_compatible(self.representation)

    def fitted(self, num_envs: int) -> "ValueConfig":
        """The same with a number of steps between copies that whole iterations of so many environments make up."""
        whole = math.lcm(self.update_every, num_envs)
        return replace(self, target_every=-(-self.target_every // whole) * whole)


class Network(eqx.Module):
    """Torso and head."""

    torso: Torso
    head: Any


class Knowledge(NamedTuple):
    """What acts."""

    network: Network
    variance_state: VarianceState | None
    """What V is estimated from, where it is."""


def make_value_agent(config: ValueConfig, spec: EnvSpec) -> Agent:
    """An agent for environments with a finite number of actions."""
    if spec.box is not None:
        raise UnsupportedEnvironment(
            f"{spec.id} has continuous actions; value agents choose among finitely many. "
            f"The actor-critic presets are for continuous ones: {', '.join(ACTOR_CRITICS)}"
        )
    representation, estimator = config.representation, config.estimator
    optimizer = representation.optimizer(config.optimizer.make())
    kappa = getattr(representation, "kappa", 1.0)
    slow_rate = config.averaging.rate if isinstance(config.averaging, EMA) else EMA_RATE
    streams = StreamConfig(config.network.hidden, config.network.dueling, config.network.noisy)

    def make_streams(features: int, outputs: int, key: Key) -> ActionStreams:
        return ActionStreams(streams, features, spec.num_actions, outputs, key)

    needs, averaging = needs_of(estimator), config.averaging
    keeps_slow = "ema" in needs or isinstance(averaging, EMA)

    def init(key: Key) -> AgentState:
        torso_key, head_key = jax.random.split(key)
        torso = make_torso(config.network.torso, config.network.widths, spec, torso_key)
        network = Network(torso, representation.head(make_streams, num_features(torso, spec), head_key))
        slow = jax.tree.map(jnp.copy, network) if keeps_slow else None
        variance_state = init_variance_state(estimator, representation, spec, slow)
        return AgentState(Knowledge(network, variance_state), begin(optimizer, network), averaging.begin(network))

    def evaluated(network: Network, observation: Any, purpose: Purpose, key: Key | None) -> ReturnDist:
        return representation.evaluate(network.head, network.torso(observation), purpose, key)

    def judged(
        params: Knowledge, observation: Any, purpose: Purpose, key: Key | None
    ) -> tuple[ReturnDist, VarianceInputs | Weights | None]:
        """The return distributions of the network, or of the EMA network if that decides, and what is known of them."""
        network, variance_state = params
        if isinstance(averaging, EMA):
            assert variance_state is not None
            network = variance_state.slow
        dist = evaluated(network, observation, purpose, key)
        return dist, evidence_on(params, observation, dist, purpose, key)

    def evidence_on(
        params: Knowledge, observation: Any, dist: ReturnDist, purpose: Purpose, key: Key | None
    ) -> VarianceInputs | Weights | None:
        variance_state = params.variance_state
        if variance_state is None or not needs:
            return None
        # The same key draws the same levels.
        slow = evaluated(variance_state.slow, observation, purpose, key).values if "ema" in needs else None
        return evidence_of(variance_state, dist, needs, slow, lookup_visits(variance_state, observation))

    def act(
        params: Knowledge, acting: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Int[Array, " envs"], Any]:
        dist_key, choice_key = jax.random.split(key)
        dist, variance_inputs = judged(params, view.observation, "act", dist_key)
        q = estimate(estimator, dist, variance_inputs)
        context = ActionContext(view.observation, dist, q, view.mask, view.first, step, config.learning_starts)
        return config.exploration.select_action(acting, context, choice_key, evaluating)

    def target_of(params: Knowledge, target: Any, batch: Batch, key: Key) -> ReturnDist:
        """The Bellman target [batch, members, n]; each member bootstraps from its own greedy action."""
        choice_key, target_key = jax.random.split(key)
        seen = batch.next_observation
        if config.double or isinstance(averaging, EMA):
            choice, variance_inputs = judged(params, seen, "act", choice_key)
        else:
            choice = averaging.curves(target, partial(evaluated, observation=seen, purpose="act", key=choice_key))
            variance_inputs = evidence_on(params, seen, choice, "act", choice_key)
        q = estimate(estimator, choice, variance_inputs)
        mask = None if batch.next_mask is None else jnp.broadcast_to(batch.next_mask[:, None], q.shape)
        actions = jnp.argmax(allowed(q, mask), axis=-1)
        found = averaging.curves(target, partial(evaluated, observation=seen, purpose="target", key=target_key))
        return jax.lax.stop_gradient(backup(select_action_distribution(found, actions), batch.reward, batch.discount))

    def loss(
        network: Network, variance_state: VarianceState | None, target: Any, batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], tuple[Float[Array, " batch"], ReturnDist]]:
        target_key, loss_key = jax.random.split(key)
        goal = target_of(jax.lax.stop_gradient(Knowledge(network, variance_state)), target, batch, target_key)
        features = network.torso(batch.observation)
        losses = jnp.sum(representation.loss(network.head, features, batch.action, goal, loss_key), axis=1)
        return jnp.mean(batch.weight * losses), (losses, goal)

    def update(
        state: AgentState, batch: Batch, key: Key, number: Int[Array, ""]
    ) -> tuple[Knowledge, optax.OptState, Update]:
        network, variance_state = state.params
        gradients = jax.value_and_grad(loss, has_aux=True)
        (value, (losses, goal)), gradient = gradients(network, variance_state, state.target, batch, key)
        changed, learning = apply_gradient(optimizer, gradient, state.optimizer, network)
        if variance_state is not None:
            variance_state = learned(variance_state, network, changed, batch, goal, key, number)
        return Knowledge(changed, variance_state), learning, Update(value, jnp.sqrt(losses))

    def learned(
        variance_state: VarianceState,
        before: Network,
        after: Network,
        batch: Batch,
        goal: ReturnDist,
        key: Key,
        number: Int[Array, ""],
    ) -> VarianceState:
        """What is remembered after an update."""

        def predict() -> tuple[ReturnDist, ReturnDist]:
            dist = evaluated(before, batch.observation, "target", jax.random.fold_in(key, 1))
            return select_action_distribution(
                dist, jnp.broadcast_to(batch.action[:, None], dist.values.shape[:2])
            ), goal

        variance_state = look(count(variance_state, batch.observation, batch.action), estimator, number, kappa, predict)
        variance_state = at_step(
            variance_state, estimator, config.learning_starts + number.astype(jnp.float32) * config.update_every
        )
        if keeps_slow:
            variance_state = variance_state._replace(slow=polyak_update(variance_state.slow, after, slow_rate))
        return variance_state

    def refresh(state: AgentState) -> Any:
        return averaging.refreshed(state.target, state.params.network)

    def distribution(params: Knowledge, observation: Any, actions: Int[Array, " batch"] | None = None) -> ReturnDist:
        dist, _ = judged(params, observation, "report", None)
        if actions is None:
            return dist
        members = jnp.broadcast_to(actions[:, None], dist.values.shape[:2])
        return ReturnDist(
            *(a if a is None or a.ndim == 1 else a[:, :, None] for a in select_action_distribution(dist, members))
        )

    def q(params: Knowledge, observation: Any) -> Float[Array, "batch actions"]:
        return worth(params, observation, estimator)

    def worth(params: Knowledge, observation: Any, statistic: Statistic) -> Float[Array, "batch actions"]:
        dist, variance_inputs = judged(params, observation, "report", None)
        return jnp.mean(estimate(statistic, dist, variance_inputs if statistic is estimator else None), axis=1)

    def decide(
        params: Knowledge, observation: Any, mask: Bool[Array, "batch actions"] | None, risk: Statistic | None
    ) -> Int[Array, " batch"]:
        return jnp.argmax(allowed(worth(params, observation, risk or estimator), mask), axis=-1).astype(jnp.int32)

    def inspect(params: Knowledge, observation: Any) -> dict[str, Float[Array, ""]]:
        return distribution_metrics(estimator, representation, *judged(params, observation, "report", None))

    every = config.target_every // config.update_every
    start, earned = partial(config.exploration.start, spec=spec), config.exploration.reward
    return Agent(init, start, act, earned, update, refresh, every, distribution, q, decide, inspect)
