"""Small actor-critics, updates of them as formulas that are written out, and networks whose outputs are given.

The draws of the policy here are always the same, so that no formula needs to know how keys are split.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from qemrl.agents.actor_critic import ActorCriticAgent
from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.agent import AgentState
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.policies import AutomaticTemperature, Choice, Deterministic, FixedTemperature, TanhGaussian
from qemrl.distributional.atoms import Scalar
from qemrl.distributional.ensembles import ElementwiseMin, PooledTruncation
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, TailVariance
from qemrl.types import ActionBox, Batch, EnvSpec

BOX = ActionBox((2,), (-2.0, -1.0), (4.0, 1.0))
"""Neither symmetric nor of the same length everywhere."""

SPEC = EnvSpec("toy", (3,), "float32", 0, box=BOX)
KEY = jax.random.key(0)
RATE, EPSILON, POLYAK = 0.1, 1.0, 0.25
"""Adam's first step is η g / (|g| + ε); with ε = 1 it shows how long the gradient is and not only its sign."""


@dataclass(frozen=True)
class Steady(TanhGaussian):
    """A squashed normal distribution whose draws are always the same; 1 − tanh² = 1/cosh²."""

    noise: tuple[float, ...] = (0.7, -0.4)

    def sample(self, outputs, key):
        del key
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        noise = jnp.broadcast_to(jnp.asarray(self.noise, jnp.float32)[None], mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        normal = -(noise**2) / 2 - log_std - np.float32(np.log(2 * np.pi) / 2)
        return Choice(jnp.tanh(raw), jnp.sum(normal + 2 * jnp.log(jnp.cosh(raw)), axis=-1))


SAC = ActorCriticConfig(
    representation=Scalar(None),
    policy=Steady(),
    temperature=FixedTemperature(0.3),
    network=ActorCriticNetworkConfig("mlp", (6,), (5,), (4,)),
    optimizer=AdamConfig(RATE, EPSILON),
    polyak=POLYAK,
)
DSAC = replace(SAC, representation=FixedQuantiles(5), target_policy=True)
TQC = replace(
    SAC,
    representation=FixedQuantiles(4),
    ensemble=PooledTruncation(3, 1),
    temperature=AutomaticTemperature(0.5, 0.25),
)
TD3 = replace(
    SAC,
    ensemble=ElementwiseMin(policy="first"),
    policy=Deterministic(target_noise=0.0),
    temperature=FixedTemperature(0.0),
    target_policy=True,
    policy_every=2,
)
QEM_DSAC = replace(DSAC, estimator=QEM(order=4, variance=TailVariance(1.2)))
CONFIGS = {"sac": SAC, "dsac": DSAC, "qem-dsac": QEM_DSAC, "tqc": TQC, "td3": TD3}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shaken(module, seed: int):
    """The module with other parameters."""
    leaves, structure = jax.tree.flatten(module)
    moved = [np.asarray(leaf) + np.float32(0.4) * normal(seed + i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in moved])


@lru_cache
def prepared(config: ActorCriticConfig):
    """An agent, a state of it, and its update, compiled once for each configuration.

    The parameters are drawn by NumPy, which spares a program for each configuration.
    """
    agent = ActorCriticAgent(config, SPEC)
    shapes = jax.eval_shape(agent.init, KEY)
    params, learning, _ = jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)
    temperature = None if params.log_temperature is None else jnp.asarray(np.log(0.5), jnp.float32)
    params = type(params)(shaken(params.policy, 0), shaken(params.critics, 20), temperature)
    slow = params.policy if config.target_policy else None
    learning = learning._replace(target_critics=params.critics, target_policy=slow)
    return agent, AgentState(params, learning, ()), jax.jit(agent.update)


@lru_cache
def in_the_midst(config: ActorCriticConfig) -> AgentState:
    """A state in which target networks differ from the online ones."""
    _, fresh, _ = prepared(config)
    learning = fresh.optimizer
    slow = learning.target_policy
    return AgentState(
        fresh.params,
        learning._replace(
            target_critics=shaken(learning.target_critics, 100),
            target_policy=None if slow is None else shaken(slow, 200),
        ),
        fresh.target,
    )


def transitions(count: int = 6, seed: int = 0) -> Batch:
    """Some that terminate, of different weights."""
    unit = np.tanh(normal(seed, count, 2))
    return Batch(
        jnp.asarray(normal(seed + 1, count, 3)),
        jnp.asarray(unit * [3, 1] + [1, 0], jnp.float32),
        jnp.asarray(normal(seed + 2, count)),
        jnp.asarray(np.where(np.arange(count) % 3 == 1, 0, 0.9), jnp.float32),
        jnp.asarray(normal(seed + 3, count, 3)),
        None,
        jnp.asarray(np.linspace(0.25, 1, count), jnp.float32),
    )


# The formulas.


def dense(layer, inputs):
    return inputs @ layer.weight.T + layer.bias[None, :]


def layers(*stacks):
    return [layer for stack in stacks for layer in stack]


def mlp(all_layers, inputs):
    *hidden, last = all_layers
    for layer in hidden:
        inputs = jnp.maximum(dense(layer, inputs), 0)
    return dense(last, inputs)


def curve(critic, observation, unit):
    """The values [batch, n] of one critic."""
    stack = layers(critic.torso.dense.layers, critic.head.advantage.layers)
    return mlp(stack, jnp.concatenate([observation, unit], axis=1))


def acted(config, policy, observation):
    """The action in [−1, 1] and log π."""
    outputs = mlp(layers(policy.dense.layers, [policy.head]), observation)
    if isinstance(config.policy, Deterministic):
        return jnp.tanh(outputs), jnp.zeros(len(outputs))
    mean, log_std = outputs[:, :2], outputs[:, 2:]
    noise = jnp.tile(jnp.asarray(config.policy.noise)[None], (len(outputs), 1))
    raw = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * ((raw - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * np.float32(np.log(2 * np.pi))
    return jnp.tanh(raw), jnp.sum(log_normal + 2 * jnp.log(jnp.cosh(raw)), axis=1)


def q_weights(config, count):
    """The weights of the quantiles in Q."""
    if isinstance(config.estimator, QEM):
        return jnp.asarray(config.estimator.weights((np.arange(count) + 0.5) / count)[0], jnp.float32)
    return jnp.full(count, 1 / count, jnp.float32)


def together(config, curves):
    """The target's atoms [batch, m] from the members' curves, a list of [batch, n]."""
    match config.ensemble:
        case ElementwiseMin():
            return jnp.min(jnp.stack(curves), axis=0)
        case PooledTruncation(size=size, drop=drop):
            pooled = jnp.sort(jnp.concatenate(curves, axis=1), axis=1)
            return pooled[:, : size * (curves[0].shape[1] - drop)]
        case _:
            raise ValueError(f"no formula here for {config.ensemble}")


def of_members(config, q):
    """The Q that the policy climbs, from the members' [batch, members]."""
    match config.ensemble:
        case ElementwiseMin(policy="first"):
            return q[:, 0]
        case ElementwiseMin():
            return jnp.min(q, axis=1)
        case _:
            return jnp.mean(q, axis=1)


def row_losses(config, values, goal):
    """Half the squared error, or Σ_i mean_j |τ_i − 1{u < 0}| huber(u), u = goal_j − value_i."""
    if isinstance(config.representation, Scalar):
        return 0.5 * (goal[:, 0] - values[:, 0]) ** 2
    count = values.shape[1]
    levels = jnp.asarray((np.arange(count) + 0.5) / count, jnp.float32)[None, :, None]
    error = goal[:, None, :] - values[:, :, None]
    size = jnp.abs(error)
    huber = jnp.where(size < 1, 0.5 * error**2, size - 0.5)
    return jnp.sum(jnp.mean(jnp.abs(levels - (error < 0).astype(jnp.float32)) * huber, axis=2), axis=1)


def first_step(params, gradient):
    """Adam's, from nothing."""
    return jax.tree.map(lambda p, g: p - RATE * g / (jnp.abs(g) + EPSILON), params, gradient)


def polyak(slow, online):
    return jax.tree.map(lambda old, new: (1 - POLYAK) * old + POLYAK * new, slow, online)


def alpha_of(config, params):
    learned = isinstance(config.temperature, AutomaticTemperature)
    return jnp.exp(params.log_temperature) if learned else jnp.float32(config.temperature.value)


def written_out(config, state, batch):
    """Parameters, target critics, target policy and the losses [batch] after one update, from the formulas."""
    params, learning = state.params, state.optimizer
    unit = jnp.stack([(batch.action[:, 0] - 1) / 3, batch.action[:, 1]], axis=1)
    alpha = alpha_of(config, params)

    actor = learning.target_policy if config.target_policy else params.policy
    next_unit, next_log_prob = acted(config, actor, batch.next_observation)
    atoms = together(config, [curve(each, batch.next_observation, next_unit) for each in learning.target_critics])
    goal = batch.reward[:, None] + batch.discount[:, None] * (atoms - alpha * next_log_prob[:, None])

    def critic_loss(critics):
        losses = sum(row_losses(config, curve(each, batch.observation, unit), goal) for each in critics)
        return jnp.mean(batch.weight * losses), losses

    gradient, losses = jax.grad(critic_loss, has_aux=True)(params.critics)
    critics = first_step(params.critics, gradient)

    def policy_loss(policy):
        drawn, log_prob = acted(config, policy, batch.observation)
        curves = [curve(each, batch.observation, drawn) for each in critics]
        q = jnp.stack([each @ q_weights(config, each.shape[1]) for each in curves], axis=1)
        return jnp.mean(batch.weight * (alpha * log_prob - of_members(config, q))), log_prob

    gradient, log_prob = jax.grad(policy_loss, has_aux=True)(params.policy)
    policy = first_step(params.policy, gradient)
    log_temperature = params.log_temperature
    if isinstance(config.temperature, AutomaticTemperature):
        wanted = config.temperature.target_entropy
        wanted = -2.0 if wanted is None else wanted
        slope = jax.grad(lambda log_alpha: jnp.mean(-log_alpha * (log_prob + wanted)))(log_temperature)
        log_temperature = first_step(log_temperature, slope)
    return {
        "losses": losses,
        "critics": critics,
        "policy": policy,
        "log temperature": log_temperature,
        "target critics": polyak(learning.target_critics, critics),
        "target policy": polyak(learning.target_policy, policy) if config.target_policy else None,
    }


def updated(config, state, batch, number=1):
    """The same from the agent; number 1 is an update of everything also where policies wait for every other one."""
    params, learning, update = prepared(config)[2](state, batch, KEY, jnp.int32(number))
    return {
        "losses": update.priorities**2,
        "critics": params.critics,
        "policy": params.policy,
        "log temperature": params.log_temperature,
        "target critics": learning.target_critics,
        "target policy": learning.target_policy,
    }


def difference(one, other) -> float:
    """The largest of any two numbers that belong together."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    return max((float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs), default=0.0)


# Networks without layers, whose outputs are numbers given here.

LINEAR = ActorCriticNetworkConfig("mlp", (), (), ())


def critic(fresh, outputs, slopes=None):
    """A critic with these outputs, to each of which `slopes` times the first component of the action is added."""
    outputs = jnp.asarray(outputs, jnp.float32)
    weight, bias = jax.tree.leaves(fresh)
    assert bias.shape == outputs.shape
    slopes = np.zeros(len(outputs)) if slopes is None else slopes
    weight = jnp.zeros_like(weight).at[:, 3].set(jnp.asarray(slopes, jnp.float32))
    return jax.tree.unflatten(jax.tree.structure(fresh), [weight, outputs])


def actor(fresh, outputs):
    """A policy with these outputs whatever it sees."""
    weight, bias = jax.tree.leaves(fresh)
    return jax.tree.unflatten(
        jax.tree.structure(fresh), [jnp.zeros_like(weight), jnp.asarray(outputs, jnp.float32).reshape(bias.shape)]
    )


def flat(config, online, target, policy=(0, 0, 0, 0), target_policy=(0, 0, 0, 0), slopes=None):
    """A state with these curves of the critics and these outputs of the policies."""
    _, fresh, _ = prepared(config)
    params, learning = fresh.params, fresh.optimizer
    slopes = [None] * len(online) if slopes is None else slopes
    make = [critic(each, values, slope) for each, values, slope in zip(params.critics, online, slopes, strict=True)]
    slow = [critic(each, values) for each, values in zip(params.critics, target, strict=True)]
    return AgentState(
        type(params)(actor(params.policy, policy), tuple(make), params.log_temperature),
        learning._replace(
            target_critics=tuple(slow),
            target_policy=None if learning.target_policy is None else actor(learning.target_policy, target_policy),
        ),
        (),
    )


def rows(reward, discount) -> Batch:
    count = len(reward)
    one = transitions(count)
    return one._replace(
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        weight=jnp.ones(count, jnp.float32),
    )


CALM = Steady(noise=(0.0, 0.0))
ENTROPY = float(np.log(2 * np.pi))
"""Where means, log-deviations and draws are 0: tanh has slope 1, and −log π is ½ log 2π for each of two components."""

HAND_SAC = replace(SAC, policy=CALM, network=LINEAR, temperature=FixedTemperature(0.5))
HAND_DSAC = replace(HAND_SAC, representation=FixedQuantiles(2), target_policy=True)
HAND_TQC = replace(
    HAND_SAC, representation=FixedQuantiles(2), ensemble=PooledTruncation(3, 1), temperature=AutomaticTemperature()
)


def pinball(levels, values, goal, probs) -> float:
    """The quantile Huber loss by the formula, one pair after the other."""
    total = 0.0
    for level, value in zip(levels, values, strict=True):
        for atom, prob in zip(goal, probs, strict=True):
            error = atom - value
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += prob * abs(level - (error < 0)) * huber
    return total


def with_temperature(state, alpha):
    params = state.params
    return state._replace(params=type(params)(params.policy, params.critics, jnp.log(jnp.float32(alpha))))
