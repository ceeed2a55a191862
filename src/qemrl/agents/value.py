"""The DQN family: representation × estimator × exploration × network."""

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import AgentState, Update, View
from qemrl.agents.names import ACTOR_CRITICS
from qemrl.agents.optimizer import AdamConfig, apply_gradient, first_update, init_optimizer
from qemrl.agents.q_estimator import Prediction, QEstimator, check_estimator
from qemrl.agents.target_networks import Online, Snapshots
from qemrl.distributional.losses import backup
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.distributional.representation import Purpose, Representation, select_action_distribution
from qemrl.estimators import EmpiricalMean, Statistic, midpoints
from qemrl.exploration import ActionContext, EpsilonGreedy, Exploration, mask_q
from qemrl.exploration.epsilon_greedy import argmax_action
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.networks.layers import Key, check_widths, redraw_fan_average
from qemrl.networks.torsos import NetworkFunction, Torso, TorsoName, make_torso, num_features
from qemrl.replay.config import ReplayConfig
from qemrl.types import Batch, EnvSpec, ReturnDist, UnsupportedEnvironment


@dataclass(frozen=True)
class NetworkConfig:
    """Torso and streams."""

    torso: TorsoName | NetworkFunction = "auto"
    """What reads images: `nature` (from 36x36 pixels), `minatar` (smaller ones) or `mlp`; `auto` goes by their size.

    Or a network of your own that reads all: one that is registered, or from Python a function from the environment's
    spec and a key to an Equinox module.
    """

    widths: tuple[int, ...] = (512, 512)
    """The dense layers of the torso, behind its convolutions or a network of your own, if it has any."""

    hidden: tuple[int, ...] = ()
    """Hidden layers of the streams, between torso and outputs; Atari has one of 512. IQN's levels join before them."""

    dueling: bool = False
    """A stream for the state's value and one for the actions' advantages."""

    noisy: bool = False
    """Learned noise on the weights of the streams. It explores by itself: consider an ε of zero with it."""

    layer_norm: bool = False
    """A LayerNorm before every ReLU."""

    initializer: Literal["fan-in", "fan-average"] = "fan-in"
    """How weights start: uniform in ±1/√(fan-in), biases too, as in DQN Zoo; or Glorot's uniform with zero biases."""

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)
        check_widths("hidden", self.hidden)


@dataclass(frozen=True)
class ValueConfig:
    """An agent of the DQN family. Steps are agent steps: decisions, summed over environments."""

    representation: Representation = field(default_factory=FixedQuantiles)
    """How the network holds a return distribution."""

    estimator: Statistic = field(default_factory=EmpiricalMean)
    """How a return distribution becomes Q, or a risk measure in its place: in acting and in the target's action."""

    averaging: Online = field(default_factory=Online)
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

    munchausen: bool = False
    """Add the log-probability of the action taken to its reward, and bootstrap from a soft policy (Munchausen RL)."""

    munchausen_weight: float = 0.9
    """α: how much of τ log π(a|s) is added to the reward."""

    munchausen_temperature: float = 0.03
    """τ: the policy is the softmax of Q / τ, by the target network."""

    munchausen_floor: float = -1.0
    """The least that τ log π(a|s) counts as."""

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
        check_estimator(self.estimator, self.representation, self.representation.num_members, discrete=True)
        self._check_munchausen()
        if self.representation.has_own_levels and (
            "ema" in self.estimator.needs or isinstance(self.averaging, Snapshots)
        ):
            raise ValueError(
                f"two networks of {self.representation.name} have levels of their own, and cannot be averaged level by "
                "level; use Online() with it, and a V that needs no EMA"
            )
        if "ema" in self.estimator.needs and self.averaging.selects_target_action:
            raise ValueError(
                "Q is estimated from the EMA network here, which V cannot be estimated from as well; use Online()"
            )
        self.exploration.check_compatible(self.representation)
        self.optimizer.check_decay(self.first_update)

    def _check_munchausen(self) -> None:
        names = ("munchausen_weight", "munchausen_temperature", "munchausen_floor")
        given = {name: getattr(self, name) for name in names}
        usual = {each.name: each.default for each in fields(self) if each.name in names}
        if not self.munchausen and given != usual:
            changed = ", ".join(name for name in names if given[name] != usual[name])
            raise ValueError(f"{changed} is for Munchausen targets: switch them on with munchausen=True (--munchausen)")
        if not 0 < self.munchausen_temperature < math.inf:
            raise ValueError(f"munchausen_temperature must be positive, got {self.munchausen_temperature}")
        if not 0 <= self.munchausen_weight <= 1:
            raise ValueError(f"munchausen_weight must be between 0 and 1, got {self.munchausen_weight}")
        if not -math.inf < self.munchausen_floor <= 0:
            raise ValueError(f"munchausen_floor must be finite and not positive, got {self.munchausen_floor}")
        if self.munchausen and (self.double or self.averaging.selects_target_action):
            raise ValueError("Munchausen targets have no greedy action that another network could choose: no double")

    @property
    def num_masked(self) -> int:
        """How many members have a mask that says what they learn from; zero where all learn from all."""
        return 0 if self.representation.mask_rate is None else self.representation.num_members

    @property
    def first_update(self) -> int:
        """The step of the first update."""
        return first_update(self.learning_starts, self.batch_size, self.update_every)

    def fit_num_envs(self, num_envs: int) -> "ValueConfig":
        """The same with a number of steps between copies that whole iterations of this many environments make up."""
        whole = math.lcm(self.update_every, num_envs)
        return replace(self, target_every=-(-self.target_every // whole) * whole)


class WithPrior(eqx.Module):
    """The features of a torso, and behind them as many of one that never learns."""

    torso: Torso
    prior: Torso

    def __call__(self, observation: Any) -> Float[Array, "batch features"]:
        """Both, one behind the other."""
        return jnp.concatenate([self.torso(observation), jax.lax.stop_gradient(self.prior(observation))], axis=-1)


class Network(eqx.Module):
    """Torso and head."""

    torso: Torso | WithPrior
    head: Any


class Params(NamedTuple):
    """What acts."""

    network: Network
    ema: Network | None
    """An EMA of the network, where that acts in its place."""

    estimator: Any
    """The state of the estimator of Q; None for those without."""


@dataclass(frozen=True)
class ValueAgent:
    """DQN and its family: a representation to learn, an estimator to read Q from it, an exploration to act by it."""

    config: ValueConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        if self.spec.box is not None:
            raise UnsupportedEnvironment(
                f"{self.spec.id} has continuous actions; value agents choose among finitely many. "
                f"The actor-critic presets are for continuous ones: {', '.join(ACTOR_CRITICS)}"
            )
        if self.config.munchausen and self.spec.has_mask:
            raise UnsupportedEnvironment(
                f"{self.spec.id} says which actions are allowed, and Munchausen rewards need to know which were when "
                "an action was taken; a replay does not keep that: leave munchausen off"
            )

    @property
    def target_update_every(self) -> int:
        """Updates between copies to the target network."""
        return self.config.target_every // self.config.update_every

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of all parameters of the network."""
        return self.config.representation.optimizer(self.config.optimizer.make())

    @property
    def estimate_q(self) -> QEstimator:
        """From return distributions to Q."""
        return QEstimator(self.config.estimator, self.config.representation)

    def init(self, key: Key) -> AgentState:
        """A fresh network, its optimizer and its target network."""
        torso_key, head_key = jax.random.split(key)
        config = self.config.network
        torso = make_torso(config.torso, self.spec, torso_key, config.widths, config.layer_norm)
        if self.config.representation.has_prior:
            prior_key = jax.random.fold_in(key, 2)
            prior = make_torso(config.torso, self.spec, prior_key, config.widths, config.layer_norm)
            torso = WithPrior(torso, prior)
        features = num_features(torso, self.spec)
        network = Network(torso, self.config.representation.make_head(self._make_streams, features, head_key))
        if config.initializer == "fan-average":
            network = redraw_fan_average(network, jax.random.fold_in(key, 1))
        averaging = self.config.averaging
        params = Params(network, averaging.init_ema(network), self.estimate_q.init(self.spec, network))
        return AgentState(params, init_optimizer(self.optimizer, network), averaging.init_target(network))

    def _make_streams(self, features: int, outputs: int, key: Key) -> ActionStreams:
        config = self.config.network
        streams = StreamConfig(config.hidden, config.dueling, config.noisy, config.layer_norm)
        return ActionStreams(streams, features, self.spec.num_actions, outputs, key)

    # Acting

    def init_actor(self, num_envs: int) -> Any:
        """The state of the exploration."""
        return self.config.exploration.init(num_envs, self.spec)

    def act(
        self, params: Params, actor: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Int[Array, " envs"], Any]:
        """What the exploration makes of Q and of the return distributions."""
        dist_key, action_key = jax.random.split(key)
        prediction = self.predict(params, view.observation, "act", dist_key)
        q = self.estimate_q(prediction, params.estimator)
        starts = self.config.learning_starts
        dist = self.config.representation.convert(prediction.dist, self.config.exploration.requires)
        context = ActionContext(view.observation, dist, q, view.mask, view.first, step, starts)
        return self.config.exploration.select_action(actor, context, action_key, evaluating)

    def intrinsic_reward(self, actor: Any) -> Float[Array, " envs"] | None:
        """What the exploration adds to rewards."""
        return self.config.exploration.intrinsic_reward(actor)

    def member_mask(self, num_envs: int, key: Key) -> Bool[Array, "envs members"] | None:
        """Independent draws for each member, where not all learn from all."""
        rate = self.config.representation.mask_rate
        if rate is None:
            return None
        return jax.random.bernoulli(key, rate, (num_envs, self.config.representation.num_members))

    # Learning

    def update(
        self, state: AgentState, batch: Batch, key: Key, updates: Int[Array, ""]
    ) -> tuple[Params, optax.OptState, Update]:
        """One gradient step on the loss."""
        before = state.params
        gradients = jax.value_and_grad(self.loss, has_aux=True)
        (loss, (losses, target)), gradient = gradients(before.network, before, state.target, batch, key)
        rate = self._rate(updates)
        network, optimizer = apply_gradient(self.optimizer, gradient, state.optimizer, before.network, rate)

        def predict() -> tuple[ReturnDist, ReturnDist]:
            dist = self.predict_by(before.network, batch.observation, "target", jax.random.fold_in(key, 1))
            return select_action_distribution(dist, _for_members(batch.action, dist.values)), target

        step = self.config.learning_starts + updates.astype(jnp.float32) * self.config.update_every
        estimator = self.estimate_q.update(before.estimator, batch, network, updates, step, predict)
        params = Params(network, self.config.averaging.update_ema(before.ema, network), estimator)
        return params, optimizer, Update(loss, jnp.sqrt(losses))

    def _rate(self, updates: Int[Array, ""]) -> float | Float[Array, ""]:
        config = self.config
        return config.optimizer.rate(updates, config.first_update, config.update_every)

    def loss(
        self, network: Network, params: Params, target: Any, batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], tuple[Float[Array, " batch"], ReturnDist]]:
        """The mean loss of the network, and with it the loss of each transition and the Bellman targets.

        `params` are those that act, with the same network; nothing is learned through them.
        """
        target_key, loss_key = jax.random.split(key)
        goal = self.bellman_target(jax.lax.stop_gradient(params), target, batch, target_key)
        features = network.torso(batch.observation)
        losses = self.config.representation.loss(network.head, features, batch.action, goal, loss_key)
        if batch.member_mask is not None:
            losses = jnp.where(batch.member_mask, losses, 0.0)
        losses = jnp.sum(losses, axis=1)
        return jnp.mean(batch.weight * losses), (losses, goal)

    def bellman_target(self, params: Params, target: Any, batch: Batch, key: Key) -> ReturnDist:
        """Reward + discount · return of the greedy action [batch, members, n]; each member has its own."""
        if self.config.munchausen:
            return self._soft_target(params, target, batch, key)
        averaging, observation = self.config.averaging, batch.next_observation
        action_key, target_key = jax.random.split(key)
        by_network = partial(self.predict_by, observation=observation, purpose="act", key=action_key)
        if self.config.double or averaging.selects_target_action:
            choice = self.predict(params, observation, "act", action_key)
        else:
            choice = Prediction(averaging.predict(target, by_network), observation, by_network)
        q = self.estimate_q(choice, params.estimator)
        mask = None if batch.next_mask is None else jnp.broadcast_to(batch.next_mask[:, None], q.shape)
        actions = jnp.argmax(mask_q(q, mask), axis=-1)
        dist = averaging.predict(
            target, partial(self.predict_by, observation=observation, purpose="target", key=target_key)
        )
        following = self.config.representation.to_target(select_action_distribution(dist, actions))
        return jax.lax.stop_gradient(backup(following, batch.reward, batch.discount))

    def _soft_target(self, params: Params, target: Any, batch: Batch, key: Key) -> ReturnDist:
        """The Munchausen target r + α [τ log π(a|s)] + γ Σ_a' π(a'|s') (Z(s', a') − τ log π(a'|s')), π by the target.

        Quantiles are averaged over the actions level by level; other distributions are mixed.
        """
        config, averaging = self.config, self.config.averaging
        here_key, action_key, target_key = jax.random.split(key, 3)

        def log_policy(observation: Any, key: Key) -> Float[Array, "batch members actions"]:
            by_network = partial(self.predict_by, observation=observation, purpose="act", key=key)
            choice = Prediction(averaging.predict(target, by_network), observation, by_network)
            q = self.estimate_q(choice, params.estimator)
            return jax.nn.log_softmax(q / config.munchausen_temperature, axis=-1)

        here = config.munchausen_temperature * log_policy(batch.observation, here_key)
        taken = jnp.take_along_axis(here, _for_members(batch.action, here)[..., None], axis=-1)[..., 0]
        extra = config.munchausen_weight * jnp.clip(taken, config.munchausen_floor, 0.0)
        log_probs = log_policy(batch.next_observation, action_key)
        policy, entropy = jnp.exp(log_probs), -config.munchausen_temperature * log_probs
        dist = averaging.predict(
            target, partial(self.predict_by, observation=batch.next_observation, purpose="target", key=target_key)
        )
        goal = backup(self._mix_actions(dist, policy, entropy), batch.reward, batch.discount)
        return jax.lax.stop_gradient(goal._replace(values=goal.values + extra[..., None]))

    def _mix_actions(
        self, dist: ReturnDist, policy: Float[Array, "batch members actions"], bonus: Float[Array, "b m a"]
    ) -> ReturnDist:
        """The return of a policy, from those of its actions, each of which has a bonus."""
        representation = self.config.representation
        dist = representation.to_target(dist)
        values = dist.values + bonus[..., None]
        shared = dist.probs is None or jnp.ndim(dist.probs) == 1 or dist.probs.shape[2] == 1
        if shared and representation.content != "distribution":
            levels, probs = (each if each is None or jnp.ndim(each) == 1 else each[:, :, 0] for each in dist[1:])
            return ReturnDist(jnp.sum(policy[..., None] * values, axis=2), levels, probs)
        shares = 1 / values.shape[-1] if dist.probs is None else dist.probs
        probs = (policy[..., None] * shares).reshape(*policy.shape[:2], -1)
        return ReturnDist(values.reshape(probs.shape), midpoints(probs.shape[-1]), probs)

    def refresh_target(self, state: AgentState) -> Any:
        """The target network from here on."""
        return self.config.averaging.refresh_target(state.target, state.params.network)

    # Predictions

    def predict(self, params: Params, observation: Any, purpose: Purpose, key: Key | None) -> Prediction:
        """The return distributions of the network that acts."""
        by_network = partial(self.predict_by, observation=observation, purpose=purpose, key=key)
        network = self.config.averaging.acting_network(params.network, params.ema)
        return Prediction(by_network(network), observation, by_network)

    def predict_by(self, network: Network, observation: Any, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The return distributions of a network; the same key draws the same levels."""
        return self.config.representation.predict(network.head, network.torso(observation), purpose, key)

    def predict_distribution(
        self, params: Params, observation: Any, actions: Int[Array, " batch"] | None = None
    ) -> ReturnDist:
        """Those of all actions, or of one that is given for each observation."""
        dist = self.predict(params, observation, "report", None).dist
        dist = self.config.representation.convert(dist, "distribution")
        if actions is None:
            return dist
        chosen = select_action_distribution(dist, _for_members(actions, dist.values))
        return ReturnDist(*(a if a is None or a.ndim == 1 else a[:, :, None] for a in chosen))

    def q_values(self, params: Params, observation: Any) -> Float[Array, "batch actions"]:
        """Q of all actions, averaged over members."""
        prediction = self.predict(params, observation, "report", None)
        return jnp.mean(self.estimate_q(prediction, params.estimator), axis=1)

    def greedy_action(
        self,
        params: Params,
        observation: Any,
        mask: Bool[Array, "batch actions"] | None = None,
        risk: Statistic | None = None,
    ) -> Int[Array, " batch"]:
        """The action with the largest Q, or the largest value of a risk measure."""
        if risk is None:
            scores = self.q_values(params, observation)
        else:
            dist = self.predict(params, observation, "report", None).dist
            dist = self.config.representation.convert(dist, risk.requires)
            scores = jnp.mean(risk.mean(*dist), axis=1)
        return argmax_action(scores, mask)

    def metrics(self, params: Params, observation: Any) -> dict[str, Float[Array, ""]]:
        """What the return distributions look like."""
        return self.estimate_q.metrics(self.predict(params, observation, "report", None), params.estimator)

    def scheduled(self, step: Int[Array, ""], updates: Int[Array, ""]) -> dict[str, float | Float[Array, ""]]:
        """The learning rate of the next update, and what the exploration has scheduled."""
        explored = self.config.exploration.scheduled(step, self.config.learning_starts)
        return {"train/learning_rate": self._rate(updates), **explored}


def _for_members(actions: Int[Array, " batch"], like: Array) -> Int[Array, "batch members"]:
    return jnp.broadcast_to(actions[:, None], like.shape[:2])
