"""Both loops with each preset, compiled once and run once, for all contract tests to look at.

Compiling is what costs time here, not learning. So the probes are played in one environment that begins a random probe
with each episode and shows which one it is, and XLA is told to spend little on optimising.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.algorithm import AgentState, Update
from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueConfig, make_value_agent
from qemrl.envs.compiled import CompiledEnv, Outcome, make_compiled
from qemrl.envs.host import make_host_envs
from qemrl.envs.hosted import hosted
from qemrl.envs.probes import PROBES
from qemrl.exploration import EpsilonGreedy
from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.host_loop import HostLoop
from qemrl.training.pace import make_pace
from qemrl.types import Batch, EnvSpec, ReturnDist

NUM_ENVS = 4
DISCOUNT = 0.8
HOST_PROBES = ("5", "6")
SEEDS = (3, 4, 3)

MARKS = (0, 400, 800, 8_000)
"""Where the compiled loop's state is taken."""

HOST_MARKS = (400, 600, 3_000)


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def mixed_probes(names: tuple[str, ...]) -> CompiledEnv:
    """An environment whose episodes are those of one of the probes, by chance; the observation also says of which."""
    envs = [make_compiled(f"probe/{name}") for name in names]
    count, num_actions = len(envs), max(env.spec.num_actions for env in envs)

    def show(number, observation):
        return jnp.concatenate([observation, jax.nn.one_hot(number, count, dtype=jnp.float32)])

    def reset(key):
        number_key, *keys = jax.random.split(key, count + 1)
        number = jax.random.randint(number_key, (), 0, count, jnp.int32)
        starts = [env.reset(each) for env, each in zip(envs, keys, strict=True)]
        return (number, tuple(state for state, _ in starts)), show(number, jnp.stack([o for _, o in starts])[number])

    def step(state, action, key):
        number, states = state
        outcomes = [
            env.step(own, jnp.minimum(action, env.spec.num_actions - 1), key)
            for env, own in zip(envs, states, strict=True)
        ]
        rest = jax.tree.map(lambda *each: jnp.stack(each)[number], *(outcome[1:] for outcome in outcomes))
        observation, reward, terminated, truncated = rest
        following = (number, tuple(outcome.state for outcome in outcomes))
        return Outcome(following, show(number, observation), reward, terminated, truncated)

    def mask(state):
        number, states = state
        rows = []
        for env, own in zip(envs, states, strict=True):
            allowed = env.mask(own)
            allowed = jnp.ones(env.spec.num_actions, bool) if allowed is None else allowed
            rows.append(jnp.concatenate([allowed, jnp.zeros(num_actions - env.spec.num_actions, bool)]))
        return jnp.stack(rows)[number]

    size = 1 + count
    spec = EnvSpec(
        f"mixed/{'-'.join(names)}", (size,), "float32", num_actions, True, low=(-1,) * size, high=(1,) * size
    )
    return CompiledEnv(spec, reset, step, envs[0].draw, jax.jit(mask))


def shown(names: tuple[str, ...], probe: str) -> np.ndarray:
    """The observations of a probe as the mixed environment shows them."""
    which = np.eye(len(names), dtype=np.float32)[names.index(probe)]
    return np.stack([np.concatenate([[observation], which]) for observation in PROBES[probe].observations]).astype(
        np.float32
    )


def tiny(preset: str, kappa: float = 1.0) -> ValueConfig:
    """The preset with a network and a pace for probes."""
    config = PRESETS[preset].configure("classic")
    match config.representation:
        case Scalar():
            representation = config.representation
        case Categorical():
            representation = replace(config.representation, low=-20.0, high=20.0)
        case FixedQuantiles():
            representation = FixedQuantiles(16, kappa)
        case ImplicitQuantiles():
            representation = ImplicitQuantiles(8, 8, 16, num_cosines=16, kappa=kappa)
    return replace(
        config,
        representation=representation,
        # What is learned does not depend on how actions are chosen, but how soon the worse ones are learned does.
        exploration=EpsilonGreedy(final=0.6, over_steps=100, evaluation=0.0),
        network=NetworkConfig(widths=(32,)),
        optimiser=replace(config.optimiser, learning_rate=2e-3),
        replay=ReplayConfig(capacity=12_000),
        discount=DISCOUNT,
        batch_size=32,
        update_every=4,
        target_every=40,
        learning_starts=100,
    )


class Learned(NamedTuple):
    """What an agent says of a probe's observations."""

    q: np.ndarray
    dist: ReturnDist


class CompiledRun(NamedTuple):
    """The compiled loop after its run."""

    loop: CompiledLoop
    states: dict[int, dict[str, np.ndarray]]
    bad_steps: list[int]
    programs: int
    """How many there were before any state was restored."""

    answers: list[dict[str, Learned]]
    """For each seed, by probe."""


class HostRun(NamedTuple):
    """The host loop after its run."""

    states: dict[int, dict[str, np.ndarray]]
    programs: tuple[int, int]
    answers: dict[str, Learned]


class System:
    """A preset in both loops, made when asked for. Loops are shared: a test restores the state that it starts from."""

    def __init__(self, preset: str) -> None:
        self.preset = preset

    @cached_property
    def compiled(self) -> CompiledRun:
        return _run_compiled(self.preset)

    @cached_property
    def host(self) -> HostLoop:
        return make_host_loop(self.preset, SEEDS[0])

    @cached_property
    def host_start(self) -> AgentState:
        """The agent before it has learned anything; the first to be asked for."""
        assert self.host.step == 0
        return jax.device_get(self.host.agent)

    @cached_property
    def host_run(self) -> HostRun:
        assert self.host_start is not None
        states = {}
        for mark in HOST_MARKS:
            self.host.advance(mark, False, lambda: False)
            states[mark] = _taken(self.host.arrays())
        programs = (_count_programs(self.host._learn), _count_programs(self.host._act))
        return HostRun(states, programs, _answers(self.host.algorithm, [self.host.agent.params], HOST_PROBES)[0])

    @cached_property
    def update(self) -> Callable[[AgentState, Batch, np.int32], tuple[Any, Any, Update]]:
        """The agent's update as the host loop makes it: with the key of its number."""
        algorithm, key = self.host.algorithm, self.host.keys.update
        return jax.jit(lambda state, batch, number: algorithm.update(state, batch, jax.random.fold_in(key, number), number))

    def learn(self, state: AgentState, batch: Batch, number: int = 0) -> tuple[Any, Any, float, np.ndarray]:
        """Params, learning, loss and priorities after an update from this state."""
        params, learning, update = self.update(state, batch, np.int32(number))
        return params, learning, float(update.loss), np.asarray(update.priorities)


def _count_programs(function: Any) -> int:
    return function._cache_size()


def _taken(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in arrays.items()}


def _answers(algorithm: Any, params: list[Any], names: tuple[str, ...]) -> list[dict[str, Learned]]:
    @jax.jit
    def ask(params, observation):
        return algorithm.q(params, observation), algorithm.distribution(params, observation)

    observations = [shown(names, name) for name in names]
    ends = np.cumsum([len(each) for each in observations])[:-1]
    answers = []
    for each in params:
        q, dist = jax.device_get(ask(each, np.concatenate(observations)))
        parts = zip(names, np.split(q, ends), np.split(dist.values, ends), strict=True)
        probs = dict(zip(names, np.split(dist.probs, ends), strict=True)) if dist.probs is not None else {}
        answers.append({n: Learned(own, ReturnDist(values, dist.levels, probs.get(n))) for n, own, values in parts})
    return answers


def make_host_loop(preset: str, seed: int) -> HostLoop:
    config, env = tiny(preset), mixed_probes(HOST_PROBES)
    name = "contract/mixed-probes-v0"
    gymnasium.registry.pop(name, None)
    entry_point: Any = partial(hosted, env)
    gymnasium.register(name, entry_point=entry_point)
    envs = make_host_envs(name, NUM_ENVS)
    return HostLoop(
        make_value_agent(config, envs.spec),
        envs,
        lambda count: make_host_envs(name, count),
        HostReplay(envs.spec, NUM_ENVS, config.replay, config.discount),
        make_pace(NUM_ENVS, config.update_every, config.target_every, config.learning_starts, config.batch_size),
        config.batch_size,
        config.replay.prioritized,
        config.clip_rewards,
        seed,
        2,
    )


def _run_compiled(preset: str) -> CompiledRun:
    config, env = tiny(preset, kappa=0.0), mixed_probes(tuple(PROBES))
    loop = CompiledLoop(
        make_value_agent(config, env.spec),
        env,
        DeviceReplay(env.spec, NUM_ENVS, config.replay, config.discount),
        make_pace(NUM_ENVS, config.update_every, config.target_every, config.learning_starts, config.batch_size),
        config.batch_size,
        config.clip_rewards,
        SEEDS,
        2,
    )
    states, records = {0: _taken(loop.arrays())}, []
    for mark in MARKS[1:]:
        records += loop.advance(mark, mark == MARKS[-1])
        states[mark] = _taken(loop.arrays())
    programs = _count_programs(loop._chunk)
    answers = _answers(loop.algorithm, [loop.params(index) for index in range(len(SEEDS))], tuple(PROBES))
    return CompiledRun(loop, states, [record["bad_step"] for record in records], programs, answers)


@pytest.fixture(scope="session", params=list(PRESETS))
def system(request: pytest.FixtureRequest) -> System:
    return System(request.param)


@pytest.fixture(name="tiny", scope="session")
def tiny_fixture() -> Callable[..., ValueConfig]:
    return tiny
