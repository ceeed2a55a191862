"""From a configuration to a loop that is ready to run."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from qemrl.agents.agent import Agent
from qemrl.agents.presets import make_agent
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs
from qemrl.envs.gym.jax_adapter import gymnasium_id
from qemrl.envs.jax.registry import JAX_ENVS, make_jax_env
from qemrl.replay.device import DeviceReplay
from qemrl.replay.host import HostReplay
from qemrl.training import checkpoint
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig
from qemrl.training.evaluation import make_act, play_compiled, play_hosted
from qemrl.training.host_loop import HostLoop
from qemrl.training.memory import require_memory
from qemrl.training.randomness import Keys
from qemrl.training.threads import run_threads
from qemrl.types import EnvSpec

Record = dict[str, Any]

BUILDING = threading.Lock()
"""Held while environments are built, which may change what is one for all threads, such as filters of warnings."""


@runtime_checkable
class Loop(Protocol):
    """What a training needs of a loop, for all seeds of a run."""

    def advance(self, until: int, evaluate: bool, stop: Callable[[], bool]) -> list[Record] | None:
        """Run to `until` steps and give a record for each seed, or None if `stop` asked to stop before."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes."""
        ...

    def meta(self) -> dict[str, Any]:
        """What changes and is no array, as JSON."""
        ...

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
        """Go on from there; what could not be restored is said in words."""
        ...

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        ...

    def evaluate(self, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths [seeds, episodes] of evaluation episodes."""
        ...

    @property
    def step(self) -> int:
        """How many steps every seed has done."""
        ...

    @property
    def mean_step(self) -> float:
        """How many steps the seeds have done on average."""
        ...


class CompiledRun:
    """The compiled loop as a `Loop`; it stops between records only, which are seconds apart."""

    def __init__(self, loop: CompiledLoop) -> None:
        self.loop = loop

    @property
    def step(self) -> int:
        """How many steps every seed has done."""
        return self.loop.step

    @property
    def mean_step(self) -> float:
        """The same: all seeds go in step."""
        return float(self.loop.step)

    def advance(self, until: int, evaluate: bool, stop: Callable[[], bool]) -> list[Record] | None:
        """Run to `until` steps and give a record for each seed."""
        return None if stop() else self.loop.advance(until, evaluate)

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        return self.loop.params(index)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes."""
        return self.loop.arrays()

    def evaluate(self, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths [seeds, episodes] of evaluation episodes."""
        return self.loop.evaluate(episodes)

    def meta(self) -> dict[str, Any]:
        """Nothing: all is in arrays."""
        return {}

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
        """Go on from there."""
        del meta
        self.loop.restore(step, arrays)
        return []


class HostRun:
    """Host loops, one for each seed, that run side by side from record to record, as many at once as there are cores.

    A seed gains little from a second core, because its matrix products are small; two seeds gain all of it. Which seed
    is ahead changes nothing in what they learn.
    """

    def __init__(self, loops: list[HostLoop]) -> None:
        self.loops = loops
        self.records: list[Record | None] = [None] * len(loops)
        """What seeds that are ahead of the others have to say; kept until all have come as far."""

    @property
    def step(self) -> int:
        """How many steps every seed has done."""
        return min(loop.step for loop in self.loops)

    @property
    def mean_step(self) -> float:
        """How many steps the seeds have done on average."""
        return sum(loop.step for loop in self.loops) / len(self.loops)

    def advance(self, until: int, evaluate: bool, stop: Callable[[], bool]) -> list[Record] | None:
        """Run to `until` steps and give a record for each seed, or None if `stop` asked to stop before."""
        behind = [index for index, record in enumerate(self.records) if record is None]
        run_threads([partial(self._advance, index, until, evaluate) for index in behind], stop)
        records = [record for record in self.records if record is not None]
        if len(records) < len(self.loops):
            return None
        self.records = [None for _ in self.loops]
        return records

    def _advance(self, index: int, until: int, evaluate: bool, stop: Callable[[], bool]) -> None:
        self.records[index] = self.loops[index].advance(until, evaluate, stop)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes."""
        loops = enumerate(self.loops)
        return {f"{index}/{name}": array for index, loop in loops for name, array in loop.arrays().items()}

    def meta(self) -> dict[str, Any]:
        """The records of seeds that are ahead."""
        return {"records": self.records}

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
        """Go on from there; what could not be restored is said in words."""
        del step
        lost = []
        for index, loop in enumerate(self.loops):
            start = f"{index}/"
            lost += loop.restore({name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)})
        self.records = json.loads(json.dumps(meta["records"]))
        return lost

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        return self.loops[index].agent_state.params

    def evaluate(self, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths [seeds, episodes] of evaluation episodes."""
        played = [loop.evaluate(episodes) for loop in self.loops]
        return np.stack([returns for returns, _ in played]), np.stack([lengths for _, lengths in played])


def describe_environment(config: RunConfig) -> EnvSpec:
    """What an agent must know of the run's environment."""
    if config.is_compiled:
        return make_jax_env(config.env).spec
    envs = _envs(config, 1)
    try:
        return envs.spec
    finally:
        envs.close()


def replay_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """The memory that the replay of all seeds takes."""
    kind = DeviceReplay if config.is_compiled else HostReplay
    return config.num_seeds * kind.required_bytes(spec, config.num_envs, config.agent.replay)


def require_possible(config: RunConfig) -> None:
    """Raise unless a run can begin.

    Raises:
        MemoryShortageError: The replay does not fit into memory.
        ValueError: The environment is unknown, or not one for this agent.
    """
    spec = describe_environment(config)
    make_agent(config.agent, spec)
    advice = "give it a smaller replay (--replay.capacity), or fewer seeds at once (--num-seeds)"
    require_memory(replay_bytes(config, spec), f"the replay of {config.preset} on {config.env}", advice)


def make_loop(config: RunConfig) -> CompiledRun | HostRun:
    """A loop that is ready to run; what `require_possible` raises, this does too."""
    require_possible(config)
    return CompiledRun(_compiled_loop(config)) if config.is_compiled else HostRun(_host_loops(config))


def _compiled_loop(config: RunConfig) -> CompiledLoop:
    env, agent = make_jax_env(config.env), config.agent
    return CompiledLoop(
        make_agent(agent, env.spec),
        env,
        DeviceReplay(env.spec, config.num_envs, agent.replay, agent.discount),
        config.schedule,
        agent.batch_size,
        agent.clip_rewards,
        config.seeds,
        config.evaluation_episodes,
    )


def _host_loops(config: RunConfig) -> list[HostLoop]:
    loops = []
    for seed in config.seeds:
        envs, agent = _envs(config, config.num_envs), config.agent
        loops.append(
            HostLoop(
                make_agent(agent, envs.spec),
                envs,
                lambda count: evaluation_envs(config, count),
                HostReplay(envs.spec, config.num_envs, agent.replay, agent.discount),
                config.schedule,
                agent.batch_size,
                agent.replay.prioritized,
                agent.clip_rewards,
                seed,
                config.evaluation_episodes,
            )
        )
    return loops


def _envs(config: RunConfig, count: int) -> HostEnvs:
    return make_host_envs(config.env, count, config.protocol, config.asynchronous, also=tuple(JAX_ENVS))


class Learned(NamedTuple):
    """What acts of a checkpoint, without all that only learning needs."""

    step: int
    params: tuple[Any, ...]
    """Of each seed."""


def read_params(config: RunConfig, spec: EnvSpec, folder: Path) -> Learned | None:
    """The parameters in the last good checkpoint, or None if there is none; nothing else is read."""
    place = ".agent.params" if config.is_compiled else "learned/[0].params"

    def path_of(name: str) -> str | None:
        """The path below the parameters; of host loops, each of which has its own, with the number before it."""
        start, found, path = name.partition(place)
        return f"{start}{path}" if found else None

    found = checkpoint.load_latest(folder, lambda name: path_of(name) is not None)
    if found is None:
        return None
    agent = make_agent(config.agent, spec)
    template = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0))).params
    arrays = {str(path_of(name)): array for name, array in found.arrays.items()}
    params = []
    for index in range(config.num_seeds):
        start = f"{index}/"
        mine = (
            {path: array[index] for path, array in arrays.items()}
            if config.is_compiled
            else {path.removeprefix(start): array for path, array in arrays.items() if path.startswith(start)}
        )
        params.append(checkpoint.unflatten(template, mine))
    return Learned(found.step, tuple(params))


class Player:
    """Evaluation episodes of a run's agent, without a loop: there is no replay and nothing is learned."""

    def __init__(self, config: RunConfig, agent: Agent) -> None:
        self.config, self.agent = config, agent
        self.act = make_act(agent, evaluating=True)
        self._play = jax.jit(self._play_compiled, static_argnames="episodes")

    def play(self, params: Any, seed: int, step: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths [episodes]: those that the loop of this seed would play after `step` steps."""
        keys = Keys.of(seed)
        if self.config.is_compiled:
            returns, lengths = self._play(keys, params, jnp.int32(step), episodes=episodes)
            return np.asarray(returns), np.asarray(lengths)
        envs = evaluation_envs(self.config, episodes)
        try:
            return play_hosted(self.act, self.agent.init_actor(episodes), params, envs, keys, step)
        finally:
            envs.close()

    def show(
        self, params: Any, seed: int, step: int, envs: HostEnvs, watch: Callable[[HostEnvs], bool]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return and length of an episode in each of `envs`, before each step of which `watch` is called."""
        start = self.agent.init_actor(envs.num_envs)
        return play_hosted(self.act, start, params, envs, Keys.of(seed), step, watch)

    def _play_compiled(self, keys: Keys, params: Any, step: Any, episodes: int) -> tuple[Any, Any]:
        return play_compiled(self.agent, make_jax_env(self.config.env), keys, params, step, episodes)


def evaluation_envs(config: RunConfig, count: int, render: bool = False) -> HostEnvs:
    """Environments to evaluate in: lost lives end nothing there. Compiled ones are behind Gymnasium's interface."""
    protocol = None if config.protocol is None else config.protocol.for_evaluation()
    env = f"qemrl.envs.gym.jax_adapter:{gymnasium_id(config.env)}" if config.is_compiled else config.env
    with BUILDING:
        return make_host_envs(env, count, protocol, config.asynchronous, render)
