"""The actor-critic agent: whole updates against formulas that are written out here, and small numbers by hand.

The draws of the policy here are always the same, so that no formula needs to know how keys are split.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.actor_critic import CANDIDATES, from_box, make_actor_critic_agent, to_box
from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.algorithm import AgentState, View
from qemrl.agents.optimiser import AdamConfig
from qemrl.distributional.ensembles import ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.estimators import QEM, CVaR, EmpiricalMean, MeanStd, TailVariance
from qemrl.policies import AutomaticTemperature, Choice, Deterministic, FixedTemperature, TanhGaussian
from qemrl.representations import FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.types import ActionBox, Batch, EnvSpec, UnsupportedEnvironment

BOX = ActionBox((2,), (-2.0, -1.0), (4.0, 1.0))
"""Neither symmetric nor of the same length everywhere."""

SPEC = EnvSpec("toy", (3,), "float32", 0, box=BOX)
KEY = jax.random.key(0)
RATE, EPSILON, POLYAK = 0.1, 1.0, 0.25
"""Adam's first step is η g / (|g| + ε); with ε = 1 it shows how long the gradient is and not only its sign."""


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Programs run once here: XLA need not make them quick."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@dataclass(frozen=True)
class Steady(TanhGaussian):
    """A squashed normal law whose draws are always the same; 1 − tanh² = 1/cosh²."""

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
    optimiser=AdamConfig(RATE, EPSILON),
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
    agent = make_actor_critic_agent(config, SPEC)
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
    learning = fresh.learning
    slow = learning.target_policy
    return AgentState(
        fresh.params,
        learning._replace(
            target_critics=shaken(learning.target_critics, 100),
            target_policy=None if slow is None else shaken(slow, 200),
        ),
        fresh.frozen,
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
    params, learning = state.params, state.learning
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


@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_is_what_the_formulas_say(name):
    """All of it: the Bellman target, the members' losses, the policy's step on the critics as they then are, the
    temperature's step, and target networks that move towards what was learned just now.
    """
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    found, wanted = updated(config, state, batch), jax.jit(lambda *given: written_out(config, *given))(state, batch)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=2e-4)
    for part in ("critics", "policy", "log temperature", "target critics", "target policy"):
        assert difference(found[part], wanted[part]) < 3e-6, part
    # All of that moved by much more than it may differ, so that it could not be right by standing still.
    assert difference(found["critics"], state.params.critics) > 1e-3
    assert difference(found["policy"], state.params.policy) > 1e-3
    assert difference(found["target critics"], state.learning.target_critics) > 1e-3


def test_the_loss_of_an_update_is_the_weighted_mean_of_the_rows():
    batch = transitions()
    _, _, update = prepared(TQC)[2](in_the_midst(TQC), batch, KEY, jnp.int32(0))
    assert float(update.loss) == pytest.approx(float(jnp.mean(batch.weight * update.priorities**2)), rel=1e-5)


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
    params, learning = fresh.params, fresh.learning
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


def test_the_target_of_sac_by_hand():
    """min(2, 3) + ½ log 2π · 2 · ½ = 2.919; y = r + ½ · 2.919 = 1.709 or, where the episode ended, r = ¼.

    The critics say 1 and −1: the losses are half the squares of y − 1 and y + 1, summed.
    """
    state = flat(HAND_SAC, [[1.0], [-1.0]], [[3.0], [2.0]])
    losses = updated(HAND_SAC, state, rows([0.25, 0.25], [0.5, 0.0]))["losses"]
    goal = np.array([0.25 + 0.5 * (2 + 0.5 * ENTROPY), 0.25])
    assert goal[0] == pytest.approx(1.7095, abs=1e-4)
    np.testing.assert_allclose(losses, 0.5 * (goal - 1) ** 2 + 0.5 * (goal + 1) ** 2, rtol=1e-5)


def pinball(levels, values, goal, probs) -> float:
    """The quantile Huber loss by the formula, one pair after the other."""
    total = 0.0
    for level, value in zip(levels, values, strict=True):
        for atom, prob in zip(goal, probs, strict=True):
            error = atom - value
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += prob * abs(level - (error < 0)) * huber
    return total


def test_the_target_of_dsac_by_hand():
    """Curves (0, 4) and (1, 2): the least at each level is (0, 2), and neither curve. Entropy ½ log 2π is added.

    The target policy has log-deviations 1 instead of 0, which adds ½ · 2 to that; the online policy's do not count.
    """
    state = flat(
        HAND_DSAC, [[0.0, 1.0], [2.0, 3.0]], [[0.0, 4.0], [1.0, 2.0]], policy=(0, 0, -3, -3), target_policy=(0, 0, 1, 1)
    )
    losses = updated(HAND_DSAC, state, rows([0.25, 0.25], [0.5, 0.0]))["losses"]
    soft = np.array([0.0, 2.0]) + 0.5 * (ENTROPY + 2)
    for loss, goal in zip(losses, (0.25 + 0.5 * soft, np.array([0.25, 0.25])), strict=True):
        wanted = sum(pinball((0.25, 0.75), values, goal, (0.5, 0.5)) for values in ((0.0, 1.0), (2.0, 3.0)))
        assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_the_target_of_tqc_by_hand():
    """Atoms (0, 4), (1, 2), (−1, 8) with one dropped for each of three critics: −1, 0 and 1 are left. α = e^0 = 1."""
    online = [[0.0, 1.0], [2.0, 3.0], [-1.0, 0.0]]
    state = with_temperature(flat(HAND_TQC, online, [[0.0, 4.0], [1.0, 2.0], [-1.0, 8.0]]), 1.0)
    losses = updated(HAND_TQC, state, rows([0.25], [0.5]))["losses"]
    goal = 0.25 + 0.5 * (np.array([-1, 0, 1]) + ENTROPY)
    wanted = sum(pinball((0.25, 0.75), values, goal, (1 / 3,) * 3) for values in online)
    assert float(losses[0]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", ["sac", "dsac", "tqc", "td3"])
def test_a_discount_of_zero_makes_the_reward_the_target(name):
    """Whatever target networks and policies say; and another reward makes another target."""
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    other = state._replace(
        learning=state.learning._replace(
            target_critics=shaken(state.learning.target_critics, 7),
            target_policy=None if not config.target_policy else shaken(state.learning.target_policy, 8),
        )
    )
    ended = batch._replace(discount=jnp.zeros(6))
    one, two = (updated(config, each, ended)["losses"] for each in (state, other))
    np.testing.assert_array_equal(one, two)
    assert np.all(np.asarray(updated(config, other, batch)["losses"])[batch.discount > 0] != two[batch.discount > 0])
    moved = updated(config, state, ended._replace(reward=batch.reward + 1))["losses"]
    assert np.all(np.asarray(moved) != np.asarray(one))


@pytest.mark.parametrize("name", ["sac", "tqc", "dsac", "td3"])
def test_targets_follow_the_policy_itself_or_its_slow_copy(name):
    """SAC and TQC the former, DSAC and TD3 the latter."""
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    follows_copy = name in ("dsac", "td3")
    assert (state.learning.target_policy is not None) == follows_copy
    params = state.params
    other = state._replace(params=type(params)(shaken(params.policy, 50), params.critics, params.log_temperature))
    one, two = (np.asarray(updated(config, each, batch)["losses"]) for each in (state, other))
    continuing = np.asarray(batch.discount) > 0
    assert np.all((one == two)[continuing] == follows_copy)
    assert np.all((one == two)[~continuing])


def test_target_networks_are_copies_at_the_start_and_critics_differ():
    for config in (DSAC, TQC):
        params, learning, frozen = jax.jit(prepared(config)[0].init)(KEY)
        assert frozen == ()
        assert difference(learning.target_critics, params.critics) == 0
        assert difference(params.critics[0], params.critics[1]) > 0.1
        if config is DSAC:
            assert difference(learning.target_policy, params.policy) == 0
            assert params.log_temperature is None
        else:
            assert learning.target_policy is None
            assert float(params.log_temperature) == pytest.approx(np.log(0.5), rel=1e-6)  # as it is told


def test_target_networks_move_by_a_share_towards_the_updated_critics():
    """Old + polyak · (new − old)."""
    state = in_the_midst(SAC)
    found = updated(SAC, state, transitions())
    olds, news = (jax.tree.leaves(each) for each in (state.learning.target_critics, found["critics"]))
    for old, new, slow in zip(olds, news, jax.tree.leaves(found["target critics"]), strict=True):
        old, new, slow = (np.asarray(each, np.float64) for each in (old, new, slow))
        np.testing.assert_allclose(slow - old, POLYAK * (new - old), atol=2e-7)


def test_with_a_delay_the_policy_and_the_targets_wait_and_the_critics_do_not():
    """Of every two updates the first leaves them alone, bit for bit; what the second does is compared above."""
    state, batch = in_the_midst(TD3), transitions()
    first, second, third, fourth = (updated(TD3, state, batch, number) for number in range(4))
    assert difference(first, third) == difference(second, fourth) == 0
    assert difference(first["critics"], second["critics"]) == 0
    assert difference(first["policy"], state.params.policy) == 0
    assert difference(first["target critics"], state.learning.target_critics) == 0
    assert difference(first["target policy"], state.learning.target_policy) == 0
    for part in ("policy", "target critics", "target policy"):
        assert difference(first[part], second[part]) > 1e-3


def test_importance_weights_reach_the_critics_and_the_policy():
    """What is in a transition of weight zero does not matter, but to its priority; and weights scale what does."""
    batch = transitions(4)
    silent = batch._replace(weight=jnp.asarray([1.0, 0.0, 0.5, 0.0]))
    changed = silent._replace(
        observation=silent.observation.at[1].add(1.0),
        reward=silent.reward.at[1].add(9.0),
        action=silent.action.at[3, 0].add(0.5),
    )
    for config in (SAC, DSAC):
        state = in_the_midst(config)
        one, two, full = (updated(config, state, each) for each in (silent, changed, batch))
        assert difference(one["critics"], two["critics"]) < 1e-7
        assert difference(one["policy"], two["policy"]) < 1e-7
        assert difference(one["critics"], full["critics"]) > 1e-4
        assert np.all((np.asarray(one["losses"]) != np.asarray(two["losses"]))[[1, 3]])
        np.testing.assert_array_equal(one["losses"], full["losses"])


# The policy's side. `slopes` are how much each output rises with the action's first component, which is tanh of the
# policy's first output at 0, so that dQ/d(output) is the slope itself.


def climbed(config, online, slopes) -> float:
    """By how much the first output of the policy rose in a step of Adam on one row."""
    found = updated(config, flat(config, online, online, slopes=slopes), rows([0.0], [0.0]))
    return float(found["policy"].head.bias[0])


def rise(gradient: float) -> float:
    """Adam's first step up a gradient."""
    return RATE * gradient / (abs(gradient) + EPSILON)


def test_the_policy_climbs_the_least_of_the_means_and_not_the_mean_of_the_least():
    """Curves (−4, 6), slopes (1, 1), and (0, 4), slopes (−1, −1): means 1 and 2, so the first is climbed, up. The
    least at each level is (−4, 4), with one slope of each, and would not be climbed at all. With the second curve at
    (−2, 1), of mean −½, that one is climbed, down. The critics' own step before changes slopes by less than a tenth.
    """
    slopes = [[1.0, 1.0], [-1.0, -1.0]]
    for second, slope in (([0.0, 4.0], 1), ([-2.0, 1.0], -1)):
        assert climbed(HAND_DSAC, [[-4.0, 6.0], second], slopes) == pytest.approx(rise(slope), abs=0.1 * RATE)


def with_temperature(state, alpha):
    params = state.params
    return state._replace(params=type(params)(params.policy, params.critics, jnp.log(jnp.float32(alpha))))


def test_entropy_pushes_the_policy_towards_width():
    """At mean 0, log-deviation 0 and draw 0, −log π has slope 1 in each log-deviation: the policy climbs α of it."""
    state = flat(HAND_TQC, [[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3)
    for alpha in (1e-9, 0.5, 2.0):
        found = updated(HAND_TQC, with_temperature(state, alpha), rows([0.0], [0.0]))
        np.testing.assert_allclose(found["policy"].head.bias, [0, 0, rise(alpha), rise(alpha)], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_a_temperature_rises_where_entropy_is_below_what_is_wanted(alpha):
    """Entropy is log 2π + 2 log σ = 1.838 + 2 log σ, and minus the number of components, −2, is wanted: with

    log σ = −3 (−4.16) the temperature rises, with 0 or 1 it falls. The gradient of −log α (log π + wanted) is
    entropy − wanted, whatever α is.
    """
    for log_std, sign in ((-3.0, 1), (0.0, -1), (1.0, -1)):
        policy = (0, 0, log_std, log_std)
        state = with_temperature(flat(HAND_TQC, [[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3, policy=policy), alpha)
        after = updated(HAND_TQC, state, rows([0.0], [0.0]))["log temperature"]
        step = rise(-(ENTROPY + 2 * log_std + 2))
        assert np.sign(step) == sign
        assert float(after) - np.log(alpha) == pytest.approx(step, abs=1e-5)


def test_a_fixed_temperature_is_no_parameter():
    assert prepared(SAC)[1].params.log_temperature is None
    assert updated(SAC, in_the_midst(SAC), transitions())["log temperature"] is None


# Where the estimator counts.


def test_qem_enters_the_policys_q_and_nothing_else():
    """Equal parameters, equal transitions: equal critics and target critics, bit for bit, and another policy."""
    batch = transitions()
    state = in_the_midst(DSAC)
    assert difference(state, in_the_midst(QEM_DSAC)) == 0
    mean, qem = (updated(config, state, batch) for config in (DSAC, QEM_DSAC))
    for part in ("losses", "critics", "target critics"):
        assert difference(mean[part], qem[part]) == 0
    assert difference(mean["policy"], qem["policy"]) > 1e-4


SKEWED, CONSTANT = [0.0] * 7 + [8.0], [1.1] * 8
"""Means 1 and 1.1; by QEM of order 4 the former is 8 · 0.1587 = 1.27."""


def test_with_the_smallest_critic_the_estimator_enters_the_target():
    """The mean takes the skewed curve for the smaller, QEM the constant one."""
    no_entropy = FixedTemperature(0.0)
    base = replace(HAND_SAC, representation=FixedQuantiles(8), ensemble=SmallestCritic(), temperature=no_entropy)
    levels, online = (np.arange(8) + 0.5) / 8, [[0.5] * 8, [0.5] * 8]
    for estimator, goal in ((EmpiricalMean(), SKEWED), (QEM(order=4), CONSTANT)):
        config = replace(base, estimator=estimator)
        losses = updated(config, flat(config, online, [SKEWED, CONSTANT]), rows([0.0], [1.0]))["losses"]
        wanted = 2 * pinball(levels, [0.5] * 8, goal, [1 / 8] * 8)
        assert float(losses[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_risk_measure_in_training_turns_the_policy_round():
    """Slopes −1, −1, 2, 4 of the quantiles: their mean is 1, that of the lower half −1."""
    config = replace(HAND_DSAC, representation=FixedQuantiles(4), estimator=CVaR(0.5))
    found = climbed(config, [[-0.3, -0.1, 0.1, 0.3]] * 2, [[-1.0, -1.0, 2.0, 4.0]] * 2)
    assert found == pytest.approx(rise(-1), abs=0.15 * RATE)


# What is drawn.

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

    def evaluate(self, head, features, purpose, key):
        dist = super().evaluate(head, features, purpose, key)
        assert dist.probs is not None
        note(purpose, dist.levels[:, 0, 0], dist.probs[:, 0, 0])
        return dist

    def loss(self, head, features, actions, target, key):
        # `loss` and `evaluate` draw as many levels from a key in the same way.
        drawn = super().evaluate(head, features, "target", key)
        assert drawn.probs is not None
        note("loss", drawn.levels[:, 0, 0], drawn.probs[:, 0, 0])
        return super().loss(head, features, actions, target, key)


def curve_at(critic, observation, unit, levels):
    """A critic of levels with two cosines, one layer before the level joins and none after."""
    hidden = jnp.maximum(dense(critic.torso.dense.layers[0], jnp.concatenate([observation, unit], axis=1)), 0)
    cosines = jnp.cos(np.float32(np.pi) * jnp.stack([levels, 2 * levels], axis=-1))
    embedded = cosines @ critic.head.embedding.weight.T + critic.head.embedding.bias[None, None]
    centred = embedded - jnp.mean(embedded, axis=-1, keepdims=True)
    embedded = centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + np.float32(1e-5))
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


def test_critics_are_judged_at_the_same_levels_and_each_purpose_has_its_own(drawn):
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

    goal, own = jax.tree.map(np.asarray, goal_and_own(state.learning, state.params.critics))
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


# Actions.


def test_actions_go_to_the_box_and_back():
    unit = jnp.asarray([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.5, -0.25]])
    wanted = [[-2, -1], [4, 1], [1, 0], [2.5, -0.25]]
    np.testing.assert_allclose(to_box(BOX, unit), wanted, atol=1e-6)
    np.testing.assert_allclose(from_box(BOX, jnp.asarray(wanted, jnp.float32)), unit, atol=1e-6)


def test_actions_with_several_axes_are_flat_inside_the_agent():
    """Components are listed row by row."""
    box = ActionBox((2, 3), tuple(float(-i - 1) for i in range(6)), tuple(float(2 * i + 1) for i in range(6)))
    unit = np.tanh(normal(0, 5, 6))
    action = to_box(box, jnp.asarray(unit))
    assert action.shape == (5, 2, 3)
    low, high = np.reshape(box.low, (2, 3)), np.reshape(box.high, (2, 3))
    np.testing.assert_allclose(action, low + (unit.reshape(5, 2, 3) + 1) / 2 * (high - low), atol=1e-5)
    np.testing.assert_allclose(from_box(box, action), unit, atol=1e-6)


def test_no_rounding_leaves_the_box():
    box = ActionBox((1,), (-0.4,), (0.4,))
    ends = to_box(box, jnp.asarray([[-1.0], [1.0], [1.0000001], [-1.0000001]]))
    low, high = np.float32(-0.4), np.float32(0.4)
    assert np.all((np.asarray(ends) >= low) & (np.asarray(ends) <= high))
    np.testing.assert_allclose(ends[:, 0], [low, high, high, low], atol=1e-7)


def test_actions_are_random_at_first_then_the_policys_and_its_mode_when_judged():
    config = replace(HAND_SAC, random_steps=100)
    agent = prepared(config)[0]
    params = flat(config, [[0.0], [0.0]], [[0.0], [0.0]], policy=(0.5, -0.5, 0, 0)).params
    view = View(jnp.ones((2000, 3)), None, jnp.ones(2000, bool))
    act = jax.jit(agent.act, static_argnums=5)
    mode = np.tanh([0.5, -0.5]) * [3, 1] + [1, 0]
    random, _ = act(params, (), view, jnp.int32(99), KEY, False)
    assert random.shape == (2000, 2)
    np.testing.assert_allclose(np.mean(random, axis=0), [1, 0], atol=0.15)
    np.testing.assert_allclose(np.std(random, axis=0), np.array([6, 2]) / np.sqrt(12), rtol=0.05)
    assert np.all((np.asarray(random) >= [-2, -1]) & (np.asarray(random) <= [4, 1]))
    calm, _ = act(params, (), view, jnp.int32(100), KEY, False)  # without noise in this policy: its mode
    for action in (calm, act(params, (), view, jnp.int32(0), KEY, True)[0]):
        np.testing.assert_allclose(action, np.tile(mode, (2000, 1)), atol=1e-5)


def test_the_policy_explores_with_draws_for_each_environment():
    config = replace(HAND_SAC, policy=TanhGaussian(), random_steps=0)
    agent = prepared(config)[0]
    params = flat(config, [[0.0], [0.0]], [[0.0], [0.0]], policy=(0.5, -0.5, -2, -2)).params
    view = View(jnp.ones((2000, 3)), None, jnp.ones(2000, bool))
    drawn, _ = jax.jit(agent.act, static_argnums=5)(params, (), view, jnp.int32(0), KEY, False)
    unit = np.arctanh((np.asarray(drawn) - [1, 0]) / [3, 1])
    np.testing.assert_allclose(unit.mean(axis=0), [0.5, -0.5], atol=0.02)
    np.testing.assert_allclose(unit.std(axis=0), np.exp(-2), rtol=0.1)


def test_q_is_that_of_the_mode_by_the_ensemble_and_distributions_may_be_asked_of_any_action():
    """Curves (0, 4) + (1, 3) a and (1, 2) + a; the mode is tanh ½ log 3 = ½: means 3 and 2."""
    config = HAND_DSAC
    agent = prepared(config)[0]
    slopes = [[1.0, 3.0], [1.0, 1.0]]
    policy = (np.log(3) / 2, 0, 0, 0)
    params = flat(config, [[0.0, 4.0], [1.0, 2.0]], [[0.0, 0.0]] * 2, policy=policy, slopes=slopes).params
    seen = jnp.ones((1, 3))
    least = jnp.asarray([[-2.0, 1.0]])  # in the first component
    q, dist, other = jax.jit(
        lambda params: (
            agent.q(params, seen),
            agent.distribution(params, seen),
            agent.distribution(params, seen, least),
        )
    )(params)
    np.testing.assert_allclose(q, [[2.0]], rtol=1e-6)
    np.testing.assert_allclose(dist.values, [[[[0.5, 5.5]], [[1.5, 2.5]]]], rtol=1e-6)
    np.testing.assert_allclose(other.values, [[[[-1.0, 1.0]], [[0.0, 1.0]]]], atol=1e-6)


def test_a_risk_measure_decides_among_actions_of_the_policy():
    """Without a measure it is the mode; with one, the best by that measure of the mode and of draws of the policy."""
    config = replace(DSAC, policy=TanhGaussian(), network=replace(SAC.network, policy_widths=()))
    agent, fresh, _ = prepared(config)
    decide = jax.jit(agent.decide, static_argnums=3)
    params = type(fresh.params)(fresh.params.policy, shaken(fresh.params.critics, 300), None)
    observation = jnp.asarray(normal(8, 5, 3))

    @jax.jit
    def candidates_and_curves(params):
        outputs = mlp([params.policy.head], observation)
        keys = jax.random.split(jax.random.key(0), CANDIDATES - 1)
        units = [jnp.tanh(outputs[:, :2])[None], jax.vmap(lambda key: config.policy.explore(outputs, key))(keys)]
        units = jnp.concatenate(units)
        curves = [jax.vmap(lambda unit, each=each: curve(each, observation, unit))(units) for each in params.critics]
        return units, jnp.stack(curves)

    units, curves = jax.tree.map(np.asarray, candidates_and_curves(params))
    scale, middle = np.array([3, 1]), np.array([1, 0])
    np.testing.assert_allclose(decide(params, observation, None, None), units[0] * scale + middle, atol=1e-5)
    measures = {
        CVaR(0.2): lambda values: values[..., 0],  # the lowest of five
        MeanStd(-1.0): lambda values: values.mean(axis=-1) + values.std(axis=-1),
    }
    chosen = []
    for risk, by_hand in measures.items():
        best = by_hand(curves).min(axis=0).argmax(axis=0)  # of the smaller critic
        unit = units[best, np.arange(5)]
        np.testing.assert_allclose(decide(params, observation, None, risk), unit * scale + middle, atol=1e-5)
        chosen.append(best)
    assert np.any(chosen[0] != chosen[1])
    assert np.any(np.concatenate(chosen) > 0)  # the mode is not always the best


def test_what_is_logged_of_the_policy_is_its_entropy_and_temperature():
    agent = prepared(HAND_TQC)[0]
    state = with_temperature(flat(HAND_TQC, [[1.0, 2.0]] * 3, [[0.0, 0.0]] * 3), 0.25)
    numbers = jax.jit(agent.inspect)(state.params, jnp.ones((4, 3)))
    assert float(numbers["policy/entropy"]) == pytest.approx(ENTROPY, rel=1e-5)
    assert float(numbers["policy/temperature"]) == pytest.approx(0.25, rel=1e-5)
    assert float(numbers["dist/q"]) == pytest.approx(1.5, rel=1e-5)


def test_actions_to_choose_from_are_refused_with_the_presets_that_are_for_them():
    with pytest.raises(UnsupportedEnvironment, match=r"has 4 actions to choose from.*qr-dqn"):
        make_actor_critic_agent(SAC, EnvSpec("numbered", (3,), "float32", 4))
