"""What agents compute in an iteration, without an environment: an update from a fixed batch, and actor.

So two agents can be compared to within a percent, which is less than what environments and processes add by chance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.roofline import update_operations
from benchmarks.timing import Timing, time_in_turns
from qemrl.agents.agent import Agent, View
from qemrl.agents.names import EnvFamily
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.types import ActionBox, Batch, EnvSpec

SPECS: Mapping[str, EnvSpec] = {
    "cartpole": EnvSpec("CartPole", (4,), "float32", 2),
    "pong": EnvSpec("Pong", (4, 84, 84), "uint8", 6, stacked_frames=4),
    "minatar": EnvSpec("Breakout", (10, 10, 4), "bool", 3),
    "half-cheetah": EnvSpec("HalfCheetah", (17,), "float32", 0, box=ActionBox((6,), (-1.0,) * 6, (1.0,) * 6)),
}
"""The observations and actions of the benches' tasks."""

PAIRS: tuple[tuple[str, str, float], ...] = (("qem-dqn", "qr-dqn", 1.02), ("iqem-dqn", "iqn", 1.05))
"""A preset with QEM, the same without, and how many times as long the first may take."""

DOMAINS: tuple[tuple[EnvFamily, str], ...] = (("atari", "pong"), ("minatar", "minatar"))
"""Whose settings the presets take, and in which task."""


@dataclass(frozen=True)
class Overhead:
    """What QEM costs: an iteration of an agent with it against one without."""

    family: str
    preset: str
    milliseconds: float
    peer: str
    peer_milliseconds: float
    ratio: float
    """The median over turns, each compared with its twin."""
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the ratio keeps to its limit."""
        return self.ratio <= self.limit


@dataclass(frozen=True)
class Share:
    """How much of the machine's arithmetic an update uses."""

    task: str
    operations: int
    """Of an update, see `roofline`."""
    milliseconds: float
    """The least of an update, as the peak is the most of matrix products."""
    gflops: float
    peak_gflops: float
    share: float


def random_batch(spec: EnvSpec, batch_size: int, seed: int) -> Batch:
    """Transitions that look like the environment's to a computer."""
    rng = np.random.default_rng(seed)

    def observation() -> np.ndarray:
        shape = (batch_size, *spec.observation_shape)
        if spec.observation_dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        if spec.observation_dtype == "bool":
            return rng.random(shape) < 0.1
        return rng.normal(size=shape).astype(spec.observation_dtype)

    def action() -> np.ndarray:
        if spec.box is None:
            return rng.integers(0, spec.num_actions, batch_size).astype(np.int32)
        actions = rng.uniform(spec.box.low, spec.box.high, (batch_size, len(spec.box.low)))
        return actions.astype(np.float32).reshape(batch_size, *spec.box.shape)

    return Batch(
        observation(),
        action(),
        rng.normal(size=batch_size).astype(np.float32),
        np.full(batch_size, 0.99, np.float32),
        observation(),
        None,
        np.ones(batch_size, np.float32),
    )


def make_update(config: AgentConfig, spec: EnvSpec) -> Callable[[], Any]:
    """A call of one compiled update from a fixed batch, always from the same parameters."""
    agent = make_agent(config, spec)
    state, batch, key = fixed_inputs(config, spec)
    update = jax.jit(agent.update)
    return lambda: update(state, batch, key, np.int32(0))


def make_iteration(config: AgentConfig, spec: EnvSpec) -> Callable[[], Any]:
    """A call of one compiled iteration: an update, and as many single actions as there are between updates."""
    agent = make_agent(config, spec)
    state, batch, key = fixed_inputs(config, spec)
    seen = batch.observation[: config.update_every, None]

    @jax.jit
    def iteration(state: Any, batch: Any, seen: Any) -> Any:
        actions = act_in_turn(agent, state.params, seen, key)
        return agent.update(state, batch, key, jnp.int32(0)), actions

    return lambda: iteration(state, batch, seen)


def act_in_turn(agent: Agent, params: Any, seen: Any, key: Any) -> Any:
    """The actions of one environment in observations [steps, 1, ...], one after the other."""

    def act(actor: Any, observation: Any) -> tuple[Any, Any]:
        view = View(observation, None, jnp.zeros(1, bool))
        actions, actor = agent.act(params, actor, view, jnp.int32(10**6), key, False)
        return actor, actions

    return jax.lax.scan(act, agent.init_actor(1), seen)[1]


def fixed_inputs(config: AgentConfig, spec: EnvSpec) -> tuple[Any, Batch, Any]:
    """A fresh state of the agent, a batch and a key."""
    init_key, key = jax.random.split(jax.random.key(0))
    state = jax.jit(make_agent(config, spec).init)(init_key)
    return state, jax.device_put(random_batch(spec, config.batch_size, 0)), key


def compare_iterations(rounds: int, tell: Callable[[str], None]) -> list[Overhead]:
    """What QEM costs in each family, timed in turns."""
    lines = []
    for family, task in DOMAINS:
        for preset, peer, limit in PAIRS:
            tell(f"{preset} and {peer} with the settings of {family}")
            functions = {name: make_iteration(PRESETS[name].configure(family), SPECS[task]) for name in (preset, peer)}
            times = time_in_turns(functions, jax.block_until_ready, rounds, seconds_per_turn=0.02)
            lines.append(make_overhead(family, preset, times[preset], peer, times[peer], limit))
    return lines


def make_overhead(family: str, preset: str, time: Timing, peer: str, peer_time: Timing, limit: float) -> Overhead:
    """What the times of an agent with QEM and of one without come to."""
    ratio = time.ratio_to(peer_time)
    return Overhead(family, preset, 1e3 * time.seconds, peer, 1e3 * peer_time.seconds, ratio, limit)


def measure_shares(
    configs: Mapping[str, AgentConfig], peak: float, rounds: int, tell: Callable[[str], None]
) -> list[Share]:
    """The share of the peak, in GFLOP/s, that the update of each task reaches."""
    lines = []
    for task, config in configs.items():
        tell(f"an update of {task}")
        spec = SPECS[task]
        network = jax.eval_shape(make_agent(config, spec).init, jax.random.key(0)).params.network
        operations = update_operations(network, spec, config.batch_size)
        times = time_in_turns({task: make_update(config, spec)}, jax.block_until_ready, rounds)
        lines.append(make_share(task, operations, times[task], peak))
    return lines


def make_share(task: str, operations: int, time: Timing, peak: float) -> Share:
    """What the time of an update with so many operations comes to."""
    seconds = min(time.rounds)
    gflops = operations / seconds / 1e9
    return Share(task, operations, 1e3 * seconds, gflops, peak, gflops / peak)
