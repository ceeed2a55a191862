"""From a configuration to a loop that is ready to run."""

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from qemrl.agents.agent import InspectableAgent
from qemrl.agents.presets import make_agent
from qemrl.envs.gym.catalog import split_id
from qemrl.envs.gym.given import GivenEnvs
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs, wrap_env, wrap_vector
from qemrl.envs.gym.jax_adapter import gymnasium_id
from qemrl.envs.jax.env import JaxEnv
from qemrl.envs.jax.registry import JAX_ENVS, make_jax_env
from qemrl.replay.device import DeviceReplay
from qemrl.replay.host import HostReplay
from qemrl.training import checkpoint
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, require_complete, require_same_config
from qemrl.training.evaluation import Evaluation, Played, make_act, play_in_host_envs, play_in_jax_env
from qemrl.training.host_loop import HostLoop
from qemrl.training.memory import require_room
from qemrl.training.pytrees import unflatten
from qemrl.training.schedule import Keys, LoopSettings, Record, Stop
from qemrl.training.threads import HostLoops
from qemrl.types import EnvSpec

BUILD_LOCK = threading.Lock()
"""Held while environments are built, which may change what all threads share, such as warning filters."""


@runtime_checkable
class Loop(Protocol):
    """What training needs of a loop, for all seeds of a run."""

    @property
    def agent(self) -> InspectableAgent:
        """The agent that all seeds are runs of."""
        ...

    def advance(self, until: int, evaluate: bool, stop: Stop = ..., keep_sums: bool = ...) -> list[Record] | None:
        """Run to `until` steps and give a record for each seed, or None if `stop` asked to stop before.

        Sums start anew with each record, unless they are to be kept for the next one.
        """
        ...

    def set_evaluation_episodes(self, episodes: int) -> None:
        """Play so many episodes in evaluations from now on."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes."""
        ...

    def param_arrays(self) -> dict[str, np.ndarray]:
        """The parameters alone, under the names that `arrays` gives them."""
        ...

    def meta(self) -> dict[str, Any]:
        """What changes and is not an array, as JSON."""
        ...

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
        """Go on from there; returns a message for everything that could not be restored."""
        ...

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        ...

    def close(self) -> None:
        """Close all environments."""
        ...

    @property
    def step(self) -> int:
        """How many steps every seed has done."""
        ...

    @property
    def mean_step(self) -> float:
        """How many steps the seeds have done on average."""
        ...

    @property
    def replay_bytes(self) -> int:
        """The memory that the replay of all seeds takes."""
        ...


class ImportRefused(ValueError):  # noqa: N818 - what it is, not that it is an error
    """An environment of a file would import a module, and nobody allowed that."""


def check_imports(config: RunConfig, allowed: bool) -> None:
    """Raise where making the environment of a run that was read from a file would import a module that it names.

    Raises:
        ImportRefused: It would, and imports are not allowed; the module is named.
    """
    if not config.env_is_given:
        advice = ", or give the environment: qemrl.load(path, env=…)"
        check_import(config.env, "the environment of this run", allowed, advice)


def check_import(env: str, what: str, allowed: bool, advice: str = "") -> None:
    """Raise where an environment that a file names would import a module.

    Args:
        env: Its id.
        what: What it is, at the start of the message.
        allowed: Whether it may.
        advice: What else can be done, at the end of the message.

    Raises:
        ImportRefused: It would, and may not; the module is named.
    """
    module, _ = split_id(env)
    if module and not allowed and module not in sys.modules:
        raise ImportRefused(
            f"{what}, {env}, would import the module {module!r}, which can do anything on this machine. If you trust "
            "it, allow that: --allow-imports on the command line, allow_imports=True in Python. Or import it yourself "
            f"first{advice}"
        )


def make_envs(config: RunConfig, given: GivenEnvs | None = None) -> HostEnvs | JaxEnv:
    """The environments that one seed of a run learns in.

    Raises:
        ValueError: There is no such environment, or it has to be given and is not.
    """
    if config.is_compiled:
        return make_jax_env(config.env)
    if given is not None:
        if given.num_envs is not None and config.frame_stack > 1:
            raise ValueError(
                f"the vector environment of {config.env} is made already, so frame_stack={config.frame_stack} comes "
                "too late; put gymnasium.wrappers.FrameStackObservation around each of its environments instead"
            )
        wrap = partial(wrap_env, frame_stack=config.frame_stack)
        return wrap_vector(given.training(config.num_envs, config.asynchronous, wrap), config.env, config.frame_stack)
    return _make_host_envs(config, config.num_envs)


def describe_environment(config: RunConfig) -> EnvSpec:
    """What an agent must know of the run's environment; one is built for it, and closed."""
    if config.is_compiled:
        return make_jax_env(config.env).spec
    envs = _make_host_envs(config, 1)
    try:
        return envs.spec
    finally:
        envs.close()


def make_loop(
    config: RunConfig, envs: HostEnvs | JaxEnv | None = None, given: GivenEnvs | None = None
) -> CompiledLoop | HostLoops:
    """A loop that is ready to run.

    Args:
        config: What is to run.
        envs: Those of `make_envs`, if they are there already; the first seed learns in them.
        given: The environment that was handed over from Python, if it was.

    Raises:
        MemoryShortageError: The replay, the networks or an update do not fit into memory.
        ValueError: The environment is unknown, or not one for this agent; or a function is missing.
    """
    require_complete(config)
    envs = make_envs(config, given) if envs is None else envs
    try:
        agent = make_agent(config.agent, envs.spec)
        require_room(config, agent, envs.spec)
        if isinstance(envs, JaxEnv):
            replay = DeviceReplay(
                envs.spec, config.num_envs, config.agent.replay, config.agent.discount, config.agent.num_masked
            )
            return CompiledLoop(agent, envs, replay, _settings(config), config.seeds)
        first = _make_host_loop(config, agent, envs, config.seed, given)
    except BaseException:
        if isinstance(envs, HostEnvs):
            envs.close()
        raise
    others = (
        _make_host_loop(config, agent, _make_host_envs(config, config.num_envs), seed, None)
        for seed in config.seeds[1:]
    )
    return HostLoops([first, *others])


def _settings(config: RunConfig) -> LoopSettings:
    agent = config.agent
    return LoopSettings(
        config.schedule,
        agent.batch_size,
        agent.clip_rewards,
        config.evaluation_episodes,
        config.evaluation_max_steps,
    )


def _make_host_loop(
    config: RunConfig, agent: InspectableAgent, envs: HostEnvs, seed: int, given: GivenEnvs | None
) -> HostLoop:
    replay = HostReplay(envs.spec, config.num_envs, config.agent.replay, config.agent.discount, config.agent.num_masked)

    def make_evaluation_envs(count: int) -> HostEnvs:
        return evaluation_envs(config, count, given=given)

    return HostLoop(agent, envs, replay, _settings(config), seed, make_evaluation_envs)


def _make_host_envs(config: RunConfig, count: int) -> HostEnvs:
    _require_made_by_id(config)
    return make_host_envs(
        config.env,
        count,
        config.protocol,
        config.asynchronous,
        also=tuple(JAX_ENVS),
        kwargs=dict(config.env_kwargs),
        frame_stack=config.frame_stack,
    )


def _require_made_by_id(config: RunConfig) -> None:
    if config.env_is_given:
        raise ValueError(
            f"the environment of this run, {config.env}, was handed over from Python, and a file cannot make it again: "
            "give it with qemrl.load(path, env=…), then learn(steps, out=path) goes on and evaluate() plays"
        )


def read_params(
    config: RunConfig, spec: EnvSpec, folder: Path, seed: int, step: int | None = None
) -> tuple[int, Any] | None:
    """The step of a checkpoint and the parameters of one seed in it, or None if there is none.

    The parameters of all seeds are read, so that all are found at the same step; nothing else is.

    Args:
        config: The run.
        spec: Its environment.
        folder: Where the checkpoints are.
        seed: The seed.
        step: That of the checkpoint; without it, the last good one is taken.
    """
    index, place = config.seeds.index(seed), ".agent.params" if config.is_compiled else "agent/[0].params"
    found = checkpoint.load_latest(folder, lambda name: place in name, step)
    if found is None:
        return None
    require_same_config(config, found)
    if config.is_compiled:
        whole = {name: array for name, array in found.arrays.items() if array.shape[:1] == (config.num_seeds,)}
        arrays = {name.removeprefix(place): array[index] for name, array in whole.items()}
    else:  # each host loop has its own, with its number before them
        start = f"{index}/{place}"
        arrays = {name.removeprefix(start): each for name, each in found.arrays.items() if name.startswith(start)}
    agent = make_agent(config.agent, spec)
    template = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0))).params
    return found.step, unflatten(template, arrays)


class Evaluator:
    """Evaluation episodes of a run's agent, without a loop: there is no replay and nothing is learned."""

    def __init__(self, config: RunConfig, agent: InspectableAgent, given: GivenEnvs | None = None) -> None:
        self.config, self.agent, self.given = config, agent, given
        self.act = make_act(agent, evaluating=True)
        self._play = jax.jit(self._play_in_jax_env, static_argnames="episodes")

    def evaluate(self, params: Any, seed: int, step: int, episodes: int) -> Evaluation:
        """The episodes that the loop of this seed would play after `step` steps."""
        keys, max_steps = Keys.from_seed(seed), self.config.evaluation_max_steps
        if self.config.is_compiled:
            played = self._play(keys, params, jnp.int32(step), episodes=episodes)
            return Played(*map(np.asarray, played)).as_evaluation(seed)
        envs = self.make_envs(episodes)
        try:
            start = self.agent.init_actor(episodes)
            return play_in_host_envs(self.act, start, params, envs, keys, step, max_steps).as_evaluation(seed)
        finally:
            envs.close()

    def make_envs(self, count: int, render: bool = False) -> HostEnvs:
        """Environments to evaluate in."""
        return evaluation_envs(self.config, count, render, self.given)

    def play_in(self, params: Any, seed: int, step: int, envs: HostEnvs, watch: Callable[[HostEnvs], bool]) -> Played:
        """An episode in each of `envs`, before each step of which `watch` is called."""
        start, keys = self.agent.init_actor(envs.num_envs), Keys.from_seed(seed)
        return play_in_host_envs(self.act, start, params, envs, keys, step, self.config.evaluation_max_steps, watch)

    def _play_in_jax_env(self, keys: Keys, params: Any, step: Any, episodes: int) -> Played:
        env, max_steps = make_jax_env(self.config.env), self.config.evaluation_max_steps
        return play_in_jax_env(self.agent, env, keys, params, step, episodes, max_steps)


def evaluation_envs(config: RunConfig, count: int, render: bool = False, given: GivenEnvs | None = None) -> HostEnvs:
    """Environments to evaluate in: lost lives end nothing there. JAX environments are behind Gymnasium's interface."""
    with BUILD_LOCK:
        if given is not None:
            envs = given.evaluation(count, render, partial(wrap_env, frame_stack=config.frame_stack))
            return wrap_vector(envs, config.env, config.frame_stack)
        _require_made_by_id(config)
        protocol = None if config.protocol is None else config.protocol.for_evaluation()
        env = f"qemrl.envs.gym.jax_adapter:{gymnasium_id(config.env)}" if config.is_compiled else config.env
        return make_host_envs(
            env,
            count,
            protocol,
            config.asynchronous,
            render,
            kwargs=dict(config.env_kwargs),
            frame_stack=config.frame_stack,
        )
