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

from qemrl.agents.algorithm import AgentState, Algorithm, Update, View
from qemrl.agents.averaging import SLOW_RATE, Online, SlowCopy, Snapshots, mixed
from qemrl.agents.beliefs import Beliefs, at_step, count, evidence_of, look, needs_of, require_evidence, visits_of
from qemrl.agents.beliefs import begin as begin_beliefs
from qemrl.agents.estimates import Weights, estimate, numbers_of, require_fit
from qemrl.agents.names import ACTOR_CRITICS
from qemrl.agents.optimiser import AdamConfig, begin, descend
from qemrl.distributional.bellman import backup
from qemrl.estimators import CPW, QEM, CVaR, EmpiricalMean, Evidence, MeanStd, Statistic, VaR, Wang
from qemrl.exploration import EpsilonGreedy, Optimism, Situation, allowed
from qemrl.networks.layers import Key
from qemrl.networks.streams import ActionStreams, StreamConfig
from qemrl.networks.torsos import Torso, TorsoName, make_torso, num_features
from qemrl.replay.config import ReplayConfig
from qemrl.representations import (
    Categorical,
    FixedQuantiles,
    ImplicitQuantiles,
    Purpose,
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

    averaging: Online | SlowCopy | Snapshots = field(default_factory=Online)
    """Which networks the quantiles come from that Q is estimated from: the rival of an estimator that errs less."""

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
        members = getattr(self.representation, "num_heads", 1)
        require_evidence(self.estimator, self.representation, members, numbered=True)
        if "slow" in needs_of(self.estimator) and isinstance(self.averaging, SlowCopy):
            raise ValueError("Q is estimated from the slow copy here, which cannot be its own evidence; use Online()")
        self.exploration.require_fit(self.representation)

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
    beliefs: Beliefs | None
    """What V is estimated from, where it is."""


def make_value_agent(config: ValueConfig, spec: EnvSpec) -> Algorithm:
    """An agent for environments with a finite number of actions."""
    if spec.box is not None:
        raise UnsupportedEnvironment(
            f"{spec.id} has continuous actions; value agents choose among finitely many. "
            f"The actor-critic presets are for continuous ones: {', '.join(ACTOR_CRITICS)}"
        )
    representation, estimator = config.representation, config.estimator
    optimiser = representation.optimiser(config.optimiser.make())
    kappa = getattr(representation, "kappa", 1.0)
    slow_rate = config.averaging.rate if isinstance(config.averaging, SlowCopy) else SLOW_RATE
    streams = StreamConfig(config.network.hidden, config.network.dueling, config.network.noisy)

    def make_streams(features: int, outputs: int, key: Key) -> ActionStreams:
        return ActionStreams(streams, features, spec.num_actions, outputs, key)

    needs, averaging = needs_of(estimator), config.averaging
    keeps_slow = "slow" in needs or isinstance(averaging, SlowCopy)

    def init(key: Key) -> AgentState:
        torso_key, head_key = jax.random.split(key)
        torso = make_torso(config.network.torso, config.network.widths, spec, torso_key)
        network = Network(torso, representation.head(make_streams, num_features(torso, spec), head_key))
        slow = jax.tree.map(jnp.copy, network) if keeps_slow else None
        beliefs = begin_beliefs(estimator, representation, spec, slow)
        return AgentState(Knowledge(network, beliefs), begin(optimiser, network), averaging.begin(network))

    def evaluated(network: Network, observation: Any, purpose: Purpose, key: Key | None) -> ReturnDist:
        return representation.evaluate(network.head, network.torso(observation), purpose, key)

    def judged(
        params: Knowledge, observation: Any, purpose: Purpose, key: Key | None
    ) -> tuple[ReturnDist, Evidence | Weights | None]:
        """The return distributions of the network, or of the slow copy if that decides, and what is known of them."""
        network, beliefs = params
        if isinstance(averaging, SlowCopy):
            assert beliefs is not None
            network = beliefs.slow
        dist = evaluated(network, observation, purpose, key)
        return dist, evidence_on(params, observation, dist, purpose, key)

    def evidence_on(
        params: Knowledge, observation: Any, dist: ReturnDist, purpose: Purpose, key: Key | None
    ) -> Evidence | Weights | None:
        beliefs = params.beliefs
        if beliefs is None or not needs:
            return None
        # The same key draws the same levels.
        slow = evaluated(beliefs.slow, observation, purpose, key).values if "slow" in needs else None
        return evidence_of(beliefs, dist, needs, slow, visits_of(beliefs, observation))

    def act(
        params: Knowledge, acting: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Int[Array, " envs"], Any]:
        dist_key, choice_key = jax.random.split(key)
        dist, evidence = judged(params, view.observation, "act", dist_key)
        q = estimate(estimator, dist, evidence)
        situation = Situation(view.observation, dist, q, view.mask, view.first, step, config.learning_starts)
        return config.exploration.choose(acting, situation, choice_key, evaluating)

    def target_of(params: Knowledge, target: Any, batch: Batch, key: Key) -> ReturnDist:
        """The Bellman target [batch, members, n]; each member bootstraps from its own greedy action."""
        choice_key, target_key = jax.random.split(key)
        seen = batch.next_observation
        if config.double or isinstance(averaging, SlowCopy):
            choice, evidence = judged(params, seen, "act", choice_key)
        else:
            choice = averaging.curves(target, partial(evaluated, observation=seen, purpose="act", key=choice_key))
            evidence = evidence_on(params, seen, choice, "act", choice_key)
        q = estimate(estimator, choice, evidence)
        mask = None if batch.next_mask is None else jnp.broadcast_to(batch.next_mask[:, None], q.shape)
        actions = jnp.argmax(allowed(q, mask), axis=-1)
        found = averaging.curves(target, partial(evaluated, observation=seen, purpose="target", key=target_key))
        return jax.lax.stop_gradient(backup(choose(found, actions), batch.reward, batch.discount))

    def loss(
        network: Network, beliefs: Beliefs | None, target: Any, batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], tuple[Float[Array, " batch"], ReturnDist]]:
        target_key, loss_key = jax.random.split(key)
        goal = target_of(jax.lax.stop_gradient(Knowledge(network, beliefs)), target, batch, target_key)
        features = network.torso(batch.observation)
        losses = jnp.sum(representation.loss(network.head, features, batch.action, goal, loss_key), axis=1)
        return jnp.mean(batch.weight * losses), (losses, goal)

    def update(
        state: AgentState, batch: Batch, key: Key, number: Int[Array, ""]
    ) -> tuple[Knowledge, optax.OptState, Update]:
        network, beliefs = state.params
        gradients = jax.value_and_grad(loss, has_aux=True)
        (value, (losses, goal)), gradient = gradients(network, beliefs, state.frozen, batch, key)
        changed, learning = descend(optimiser, gradient, state.learning, network)
        if beliefs is not None:
            beliefs = learned(beliefs, network, changed, batch, goal, key, number)
        return Knowledge(changed, beliefs), learning, Update(value, jnp.sqrt(losses))

    def learned(
        beliefs: Beliefs,
        before: Network,
        after: Network,
        batch: Batch,
        goal: ReturnDist,
        key: Key,
        number: Int[Array, ""],
    ) -> Beliefs:
        """What is remembered after an update."""

        def predict() -> tuple[ReturnDist, ReturnDist]:
            dist = evaluated(before, batch.observation, "target", jax.random.fold_in(key, 1))
            return choose(dist, jnp.broadcast_to(batch.action[:, None], dist.values.shape[:2])), goal

        beliefs = look(count(beliefs, batch.observation, batch.action), estimator, number, kappa, predict)
        beliefs = at_step(beliefs, estimator, config.learning_starts + number.astype(jnp.float32) * config.update_every)
        if keeps_slow:
            beliefs = beliefs._replace(slow=mixed(beliefs.slow, after, slow_rate))
        return beliefs

    def refresh(state: AgentState) -> Any:
        return averaging.refreshed(state.frozen, state.params.network)

    def distribution(params: Knowledge, observation: Any, actions: Int[Array, " batch"] | None = None) -> ReturnDist:
        dist, _ = judged(params, observation, "report", None)
        if actions is None:
            return dist
        members = jnp.broadcast_to(actions[:, None], dist.values.shape[:2])
        return ReturnDist(*(a if a is None or a.ndim == 1 else a[:, :, None] for a in choose(dist, members)))

    def q(params: Knowledge, observation: Any) -> Float[Array, "batch actions"]:
        return worth(params, observation, estimator)

    def worth(params: Knowledge, observation: Any, statistic: Statistic) -> Float[Array, "batch actions"]:
        dist, evidence = judged(params, observation, "report", None)
        return jnp.mean(estimate(statistic, dist, evidence if statistic is estimator else None), axis=1)

    def decide(
        params: Knowledge, observation: Any, mask: Bool[Array, "batch actions"] | None, risk: Statistic | None
    ) -> Int[Array, " batch"]:
        return jnp.argmax(allowed(worth(params, observation, risk or estimator), mask), axis=-1).astype(jnp.int32)

    def inspect(params: Knowledge, observation: Any) -> dict[str, Float[Array, ""]]:
        return numbers_of(estimator, representation, *judged(params, observation, "report", None))

    every = config.target_every // config.update_every
    start, earned = partial(config.exploration.start, spec=spec), config.exploration.reward
    return Algorithm(init, start, act, earned, update, refresh, every, distribution, q, decide, inspect)
