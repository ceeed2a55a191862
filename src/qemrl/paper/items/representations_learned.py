"""What agents with each representation learn of two processes that are known exactly.

There is one action, that of a fixed policy, so that nothing but the representation differs, and transitions are drawn
from the process itself, all states equally often. Everything else is the agent as it is: network, loss, optimizer,
target network. κ is zero, so that what is learned are quantiles.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qemrl.agents.agent import AgentState
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.presets import PRESETS
from qemrl.agents.q_estimator import QEstimator
from qemrl.agents.value import NetworkConfig, Params, ValueAgent, ValueConfig
from qemrl.distributional.atoms import Categorical
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.representation import Representation
from qemrl.estimators import QEM, crossing_rate, midpoints
from qemrl.experiments.statistics import Interval, jackknife_interval, mean_interval
from qemrl.paper.items.chain import DISCOUNT, REWARD, STATES, process
from qemrl.paper.items.frozen_lake_study import find_truth
from qemrl.tabular import DiscreteDistribution, return_distribution
from qemrl.tabular.fixed_points import Backup, backup
from qemrl.types import Batch, EnvSpec, ReturnDist

COUNT = 32
"""How many quantiles, fractions, increments or particles there are."""

BATCH, RATE, WIDTH, TARGET_EVERY = 32, 1e-3, 64, 10
"""Transitions of an update; Adam's learning rate, which falls to zero along a cosine; units of the one dense layer;
updates between copies to the target network."""

LAKE_SCALE = 3.0
"""FrozenLake's reward, so that returns have a standard deviation of about one, as the kernels of MMD-DQN expect."""

RESOLUTION = 1024
"""How many numbers stand for a reward that is drawn from a distribution."""


class World(NamedTuple):
    """A process under a policy, and the exact distributions of its returns."""

    step: Backup
    states: Int[np.ndarray, " k"]
    """Those that returns are learned of."""
    returns: tuple[DiscreteDistribution, ...]

    @property
    def means(self) -> Float[np.ndarray, " k"]:
        """Q, exactly."""
        return np.array([each.mean for each in self.returns])

    @property
    def std(self) -> float:
        """The root mean variance of the returns, which errors are compared with."""
        return float(np.sqrt(np.mean([each.variance for each in self.returns])))

    def quantiles(self, levels: Float[np.ndarray, "seeds k n"]) -> Float[np.ndarray, "seeds k n"]:
        """The true quantiles."""
        return np.stack([each.quantile(levels[:, k]) for k, each in enumerate(self.returns)], axis=1)


@cache
def make_world(name: str) -> World:
    """`FrozenLake` under its optimal policy, or the `chain`."""
    if name == "FrozenLake":
        mdp, policy = find_truth().mdp, find_truth().solution.policy
        states = np.flatnonzero([field in "SF" for field in "".join(mdp.grid)])
        returns = [return_distribution(mdp, policy, int(state)) for state in states]
        step = backup(mdp, policy)
        scaled = tuple(DiscreteDistribution(LAKE_SCALE * each.atoms, each.probs) for each in returns)
        return World(step._replace(rewards=LAKE_SCALE * step.rewards), states, scaled)
    reward = REWARD.quantile(midpoints(RESOLUTION))
    ends = [DiscreteDistribution.from_atoms(DISCOUNT ** (STATES - 1 - state) * reward) for state in range(STATES)]
    return World(backup(process(), np.zeros(STATES, np.int64), RESOLUTION), np.arange(STATES), tuple(ends))


class Learned(NamedTuple):
    """What the seeds of an agent know of a world's returns at some point of training."""

    updates: int
    q: Float[np.ndarray, "seeds k"]
    qem: Float[np.ndarray, "seeds k"] | None
    """Q by QEM from the same network; None where there are no quantiles."""
    values: Float[np.ndarray, "seeds k n"] | None
    """Quantiles, of several heads those of the first."""
    levels: Float[np.ndarray, "seeds k n"] | None
    crossing: Float[np.ndarray, " seeds"] | None
    """The share of neighboring quantiles in the wrong order; None where it is no network's output that is ordered."""


class _Readings(NamedTuple):
    """`Learned` of one seed, as arrays."""

    q: Array
    qem: Array | None
    values: Array | None
    levels: Array | None
    crossing: Array | None


def learn_world(preset: str, world: str, seeds: int, updates: int, records: int, seed: int) -> Iterator[Learned]:
    """Learn, and read what was learned at equally spaced points, the last of which is the end."""
    agent = make_world_agent(preset, world, updates)
    keys = jax.random.split(jax.random.key(seed), seeds)
    state = jax.vmap(agent.init)(keys)
    stretch = updates // records
    advance, read = _programs(preset, world, updates, stretch)
    for record in range(records):
        state = advance(state, keys, jnp.int32(record * stretch))
        found = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), read(state.params))
        yield Learned((record + 1) * stretch, *found)


@cache
def make_world_agent(preset: str, world: str, updates: int) -> ValueAgent:
    """The agent of a preset, with a small network and few quantiles."""
    config = PRESETS[preset].configure("classic")
    assert isinstance(config, ValueConfig)
    small = replace(
        config,
        representation=_shrink(config.representation, make_world(world)),
        network=NetworkConfig(widths=(WIDTH,)),
        optimizer=AdamConfig(RATE, epsilon=1e-8, schedule="cosine", decay_steps=updates),
        batch_size=BATCH,
        update_every=1,
        target_every=TARGET_EVERY,
        learning_starts=1,
    )
    return ValueAgent(small, EnvSpec(world, (len(make_world(world).step.probs),), "float32", 1))


def _shrink(representation: Representation, world: World) -> Representation:
    match representation:
        case Bootstrapped():
            return replace(representation, head=_shrink(representation.head, world))
        case Categorical():  # twice as wide as what is possible, as supports are wide in practice
            low, high = min(each.atoms[0] for each in world.returns), max(each.atoms[-1] for each in world.returns)
            middle, reach = float(low + high) / 2, float(high - low)
            return replace(representation, low=middle - reach, high=middle + reach)
        case _:
            names = {each.name for each in fields(representation)}  # pyright: ignore[reportArgumentType]
            few = {"num_quantiles": COUNT, "num_particles": COUNT, "kappa": 0.0}
            return replace(representation, **{name: few[name] for name in names & set(few)})  # pyright: ignore


@cache
def _programs(preset: str, world: str, updates: int, stretch: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What learns for some updates, and what reads the distributions of all states, for all seeds."""
    agent = make_world_agent(preset, world, updates)
    draw = _make_draw(make_world(world))
    observations = jnp.eye(len(make_world(world).step.probs))[make_world(world).states]

    def update(state: AgentState, key: PRNGKeyArray, number: Int[Array, ""]) -> AgentState:
        batch_key, update_key = jax.random.split(jax.random.fold_in(key, number))
        params, optimizer, _ = agent.update(state, draw(batch_key), update_key, number)
        after = AgentState(params, optimizer, state.target)
        is_due = (number + 1) % TARGET_EVERY == 0
        moved = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), agent.refresh_target(after), state.target)
        return after._replace(target=moved)

    def advance(state: AgentState, key: PRNGKeyArray, start: Int[Array, ""]) -> AgentState:
        numbers = start + jnp.arange(stretch)
        return jax.lax.scan(lambda carry, number: (update(carry, key, number), None), state, numbers)[0]

    return jax.jit(jax.vmap(advance, (0, 0, None))), jax.jit(
        jax.vmap(lambda params: _read(agent, params, observations))
    )


def _make_draw(world: World) -> Callable[[PRNGKeyArray], Batch]:
    """From a key to transitions of the process, from states that are equally likely."""
    ends = jnp.asarray(np.cumsum(world.step.probs, axis=1), jnp.float32)
    rewards, discounts = (jnp.asarray(each, jnp.float32) for each in (world.step.rewards, world.step.discounts))
    following, states = (jnp.asarray(each, jnp.int32) for each in (world.step.next_states, world.states))
    shown = jnp.eye(len(ends))

    def draw(key: PRNGKeyArray) -> Batch:
        state_key, outcome_key = jax.random.split(key)
        state = states[jax.random.randint(state_key, (BATCH,), 0, len(states))]
        passed = jax.random.uniform(outcome_key, (BATCH, 1)) * ends[state, -1:] >= ends[state]
        place = state, jnp.sum(passed.astype(jnp.int32), axis=1)
        action, weight = jnp.zeros(BATCH, jnp.int32), jnp.ones(BATCH)
        return Batch(shown[state], action, rewards[place], discounts[place], shown[following[place]], None, weight)

    return draw


def _read(agent: ValueAgent, params: Params, observations: Float[Array, "k s"]) -> _Readings:
    representation = agent.config.representation
    q = agent.q_values(params, observations)[:, 0]
    if representation.convertible != "quantiles":
        return _Readings(q, None, None, None, None)
    prediction = agent.predict(params, observations, "report", None)
    qem = jnp.mean(QEstimator(QEM(), representation)(prediction, None), axis=(1, 2))
    dist = representation.convert(prediction.dist, "quantiles")
    values, levels = dist.values[:, 0, 0], levels_of_rows(dist)
    crosses = representation.content == "quantiles"
    return _Readings(q, qem, values, levels, jnp.mean(crossing_rate(values, levels)) if crosses else None)


def levels_of_rows(dist: ReturnDist) -> Float[Array, "k n"]:
    """The levels of the first member and action of each row."""
    levels = jnp.asarray(dist.levels, jnp.float32)
    rows = levels[None] if levels.ndim == 1 else levels[:, 0, 0]
    return jnp.broadcast_to(rows, (dist.values.shape[0], rows.shape[-1]))


def measure(world: str, record: Learned) -> dict[str, Interval]:
    """What the seeds know, against the truth."""
    truth, std = make_world(world).means, make_world(world).std
    found = {
        "error of Q (rms) / std": jackknife_interval(lambda q: rms(q - truth) / std, record.q),
        "bias of Q / std": mean_interval((record.q - truth).mean(1) / std),
    }
    if record.qem is not None:
        found["error of Q by QEM (rms) / std"] = jackknife_interval(lambda q: rms(q - truth) / std, record.qem)
        found["bias of quantiles (rms) / std"] = jackknife_interval(rms_bias, quantile_errors(world, record))
        found["error of quantiles (rms) / std"] = jackknife_interval(rms, quantile_errors(world, record))
    if record.crossing is not None:
        found["neighbors that cross"] = mean_interval(record.crossing)
    return found


def quantile_errors(world: str, record: Learned) -> Float[np.ndarray, "seeds k n"]:
    """Learned less true quantiles, in standard deviations of the return."""
    assert record.values is not None
    assert record.levels is not None
    process = make_world(world)
    return (record.values - process.quantiles(record.levels)) / process.std


def rms(errors: np.ndarray) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(errors**2)))


def rms_bias(errors: Float[np.ndarray, "seeds ..."]) -> float:
    """The root mean square of what the errors have in common over seeds; noise is taken out of its square."""
    noise = errors.var(0, ddof=1) / len(errors)
    return float(np.sqrt(max(0.0, np.mean(errors.mean(0) ** 2 - noise))))
