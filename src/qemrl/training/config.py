"""What a run is: enough to do it again."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qemrl.agents.names import EnvFamily, mujoco_task
from qemrl.agents.presets import PRESETS, AgentConfig
from qemrl.config.limits import LARGEST_COUNT, check_count, check_numbers
from qemrl.config.override import convert, flatten, override
from qemrl.config.registry import collect_classes
from qemrl.config.serialize import find_given, from_json, to_json
from qemrl.config.suggestions import suggestion
from qemrl.envs.gym.atari import AtariProtocol, protocol_for
from qemrl.envs.gym.catalog import is_atari, split_id
from qemrl.envs.jax.registry import is_jax_env
from qemrl.networks.torsos import find_network
from qemrl.training.checkpoint import Checkpoint
from qemrl.training.run_directory import ChangedConfigError, RunDirectory, find_differences
from qemrl.training.schedule import StepSchedule, make_step_schedule

MOST_FRAMES = 255
"""How many frames an observation can stack: replay keeps that number in a byte."""

LARGEST = {
    "steps": LARGEST_COUNT,
    "log_every": LARGEST_COUNT,
    "evaluate_every": LARGEST_COUNT,
    "checkpoint_every": LARGEST_COUNT,
    "num_seeds": 10_000,
    "num_envs": 100_000,
    "evaluation_episodes": 100_000,
    "evaluation_max_steps": LARGEST_COUNT,
}
"""How many there can be at most, at least one of each; evaluations play their episodes side by side."""

LARGEST_ASYNCHRONOUS = 1_000
"""How many environments can each have a process."""

SCHEDULE = ("steps", "log_every", "evaluate_every", "evaluation_episodes", "evaluation_max_steps", "checkpoint_every")
"""The settings that a run may be resumed with others of."""


@dataclass(frozen=True)
class RunConfig:
    """A run: an agent, an environment, seeds, and how often to log, evaluate and save.

    Steps are agent steps of each seed.
    """

    preset: str
    """The preset that the agent came from."""

    env: str
    """The id of the environment; of one that was handed over from Python, what it is called."""

    agent: AgentConfig
    """All settings of the agent."""

    steps: int
    """How many steps each seed learns for."""

    seed: int = 0
    """The first seed."""

    num_seeds: int = 1
    """How many seeds are learned: `seed`, `seed` + 1, …"""

    num_envs: int = 1
    """Environments side by side, for each seed."""

    log_every: int = 1_000
    """Steps between records; there is always one with an evaluation."""

    evaluate_every: int = 5_000
    """Steps between evaluations; there is always one at the end."""

    evaluation_episodes: int = 20
    """Episodes in an evaluation."""

    checkpoint_every: int = 10_000
    """Steps between checkpoints; there is always one at the end."""

    protocol: AtariProtocol | None = None
    """How Atari games are played; None for other environments."""

    asynchronous: bool = False
    """Step Gymnasium environments in processes of their own; pays off for slow ones."""

    env_kwargs: tuple[tuple[str, Any], ...] = ()
    """What the environment is made with, by name; the names in order."""

    env_is_given: bool = False
    """Whether the environment was handed over from Python, so that no file can make it again."""

    frame_stack: int = 1
    """How many of the last observations (images or vectors of a Gymnasium environment) the agent sees at once."""

    evaluation_max_steps: int = 100_000
    """Agent steps after which an episode of an evaluation is cut, so that one without an end does not go on forever."""

    def __post_init__(self) -> None:
        if not self.env:
            raise ValueError("the name of the environment is empty; CartPole-v1 is one, for instance")
        self._check_env()
        if self.env_kwargs and self.is_compiled:
            raise ValueError(f"{self.env} takes no keyword arguments, got {dict(self.env_kwargs)!r}")
        for name, largest in LARGEST.items():
            check_count(name, getattr(self, name), largest)
        if self.asynchronous:
            check_count("num_envs of processes (asynchronous)", self.num_envs, LARGEST_ASYNCHRONOUS)
        check_numbers(self.agent)
        if self.protocol is not None:
            check_numbers(self.protocol, "protocol")
        if not 0 <= self.seed <= 2**32 - self.num_seeds:
            raise ValueError(f"seeds must lie in [0, 2³²), got {self.seed}")
        unit = self.schedule.steps
        for name in ("log_every", "evaluate_every", "checkpoint_every"):
            every = getattr(self, name)
            if every % unit:
                near = sorted({max(unit, every // unit * unit), self.schedule.whole(max(every, 1))})
                raise ValueError(
                    f"{name} must be a multiple of an iteration's steps, {unit}, such as "
                    f"{' or '.join(map(str, near))}; got {every}"
                )
        self._check_frame_stack()
        if (self.protocol is not None) != (is_atari(self.env) and not self.env_is_given):
            raise ValueError(f"a protocol is for Atari games; {self.env} with {self.protocol}")

    def _check_env(self) -> None:
        module, name = split_id(self.env)
        is_whole = bool(name) and (":" not in self.env or all(module.split(".")))
        if not is_whole and not self.env_is_given:
            raise ValueError(f"{self.env!r} names no environment; CartPole-v1 is one, and module:id imports a module")

    def _check_frame_stack(self) -> None:
        if not 1 <= self.frame_stack <= MOST_FRAMES:
            raise ValueError(f"frame_stack must be from 1 (no stacking) to {MOST_FRAMES}, got {self.frame_stack}")
        if self.protocol is not None and not (self.protocol.stack <= MOST_FRAMES and self.protocol.screen <= 1_000):
            raise ValueError(
                f"protocol.stack must be at most {MOST_FRAMES} and protocol.screen at most 1,000, got "
                f"{self.protocol.stack} and {self.protocol.screen}"
            )
        if self.frame_stack > 1 and self.protocol is not None:
            raise ValueError(
                f"the protocol of Atari games stacks frames (protocol.stack); leave frame_stack={self.frame_stack} out"
            )
        if self.frame_stack > 1 and self.is_compiled:
            raise ValueError(
                f"{self.env} is a JAX environment, whose observations are complete: frame_stack is for those of "
                f"Gymnasium; leave frame_stack={self.frame_stack} out"
            )

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(range(self.seed, self.seed + self.num_seeds))

    @property
    def family(self) -> EnvFamily:
        """Whose settings the environment has."""
        return env_family(self.env)

    @property
    def schedule(self) -> StepSchedule:
        """How steps and updates interleave."""
        agent = self.agent
        return make_step_schedule(
            self.num_envs, agent.update_every, agent.target_every, agent.learning_starts, agent.batch_size
        )

    @property
    def whole_steps(self) -> int:
        """The steps in whole iterations."""
        return self.schedule.whole(self.steps)

    @property
    def is_compiled(self) -> bool:
        """Whether the environment runs in the compiled loop."""
        return is_jax_env(self.env) and not self.env_is_given

    @property
    def env_name(self) -> str:
        """The environment in a word, with its keyword arguments: what tables and figures call it."""
        return self.env + "".join(f" {name}={value}" for name, value in self.env_kwargs)

    def find_doubts(self) -> list[str]:
        """What can be said before the run starts about why it will not learn as it is."""
        first, batch, capacity = self.schedule.first_update, self.agent.batch_size, self.agent.replay.capacity
        if not self.schedule.updates_until(self.whole_steps):
            why = "--learning-starts" if self.agent.learning_starts >= batch else "--batch-size"
            return [
                f"nothing will be learned: the first update comes after {first:,} steps ({why}), and the run has "
                f"{self.whole_steps:,}"
            ]
        if batch > capacity:
            return [
                f"a batch of {batch:,} transitions (--batch-size) is larger than the replay, which holds {capacity:,} "
                "(--replay.capacity): every batch repeats some of them"
            ]
        return []

    def next_stop(self, step: int) -> int:
        """The first step after `step` with a record or a checkpoint."""
        due = (every - step % every for every in (self.log_every, self.evaluate_every, self.checkpoint_every))
        return min(step + min(due), self.whole_steps)

    def is_recorded(self, step: int) -> bool:
        """Whether there is a record at `step`."""
        return step % self.log_every == 0 or self.is_evaluated(step)

    def last_record(self, step: int) -> int:
        """The step of the record before the one at `step`; 0 if there is none."""
        return max((step - 1) // every * every for every in (self.log_every, self.evaluate_every))

    def is_evaluated(self, step: int) -> bool:
        """Whether there is an evaluation at `step`."""
        return step % self.evaluate_every == 0 or step >= self.whole_steps

    def is_saved(self, step: int) -> bool:
        """Whether there is a checkpoint at `step`."""
        return step % self.checkpoint_every == 0 or step >= self.whole_steps


REGISTRY: dict[str, type] = collect_classes(RunConfig)
"""What a configuration may hold."""


@dataclass(frozen=True)
class _Intervals:
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    evaluation_episodes: int

    def fit(self, iteration: int) -> "_Intervals":
        """The same in multiples of an iteration's steps, none of them more often."""
        log = -(-self.log_every // iteration) * iteration
        evaluate, save = (every // self.log_every * log for every in (self.evaluate_every, self.checkpoint_every))
        return _Intervals(log, evaluate, save, self.evaluation_episodes)


_MUJOCO = _Intervals(1_000, 5_000, 25_000, 10)
_INTERVALS: dict[EnvFamily, _Intervals] = {
    "classic": _Intervals(1_000, 5_000, 10_000, 20),
    "minatar": _Intervals(10_000, 50_000, 100_000, 20),
    "atari": _Intervals(5_000, 250_000, 250_000, 10),
}


def env_family(env: str) -> EnvFamily:
    """Whose settings an environment gets."""
    if is_atari(env):
        return "atari"
    return "minatar" if env.startswith("minatar/") else mujoco_task(env) or "classic"


def default_steps(env: str) -> int:
    """How many steps are enough to learn something there."""
    return {"classic": 50_000, "minatar": 1_000_000, "atari": 10_000_000}.get(env_family(env), 1_000_000)


def configure(
    preset: str,
    env: str,
    steps: int,
    seed: int = 0,
    num_seeds: int = 1,
    num_envs: int = 1,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    env_is_given: bool = False,
) -> RunConfig:
    """The run of a preset on an environment, with the settings of its family where nothing else is said.

    Args:
        preset: A name of `qemrl list`.
        env: The id of an environment; `env_kwargs.NAME` among the overrides is what it is made with.
        steps: How many steps each seed learns for.
        seed: The first seed.
        num_seeds: How many seeds.
        num_envs: Environments side by side; intervals that come from the preset are made to fit.
        overrides: Other settings by dotted name, as `qemrl.config.override` takes them; `settings` names a whole set
            of them (`qemrl list`), from which the others depart.
        env_is_given: The environment is handed over from Python, and `env` is only what it is called.

    Raises:
        ValueError: There is no such preset or setting, and the nearest is named; or a value makes no sense.
    """
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; {suggestion(preset, PRESETS)}")
    settings = flatten(overrides)
    env_kwargs = _take_env_kwargs(settings)
    num_envs = convert(settings.pop("num_envs", num_envs), int, "num_envs")
    check_count("num_envs", num_envs, LARGEST["num_envs"])
    family = env_family(env)
    agent = PRESETS[preset].configure(family, settings.pop("settings", None)).fit_num_envs(num_envs)
    schedule = make_step_schedule(
        num_envs, agent.update_every, agent.target_every, agent.learning_starts, agent.batch_size
    )
    intervals = _INTERVALS.get(family, _MUJOCO).fit(schedule.steps)
    config = RunConfig(
        preset=preset,
        env=env,
        agent=agent,
        steps=steps,
        seed=seed,
        num_seeds=num_seeds,
        num_envs=num_envs,
        log_every=intervals.log_every,
        evaluate_every=intervals.evaluate_every,
        checkpoint_every=intervals.checkpoint_every,
        evaluation_episodes=intervals.evaluation_episodes,
        protocol=protocol_for(env) if family == "atari" and not env_is_given else None,
        env_kwargs=env_kwargs,
        env_is_given=env_is_given,
    )
    return override(config, settings) if settings else config


def _take_env_kwargs(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What an environment is made with, taken out of settings; ValueError where a file could not hold a value."""
    found = {name: settings.pop(name) for name in sorted(settings) if name.startswith("env_kwargs.")}
    return tuple((name.removeprefix("env_kwargs."), _as_stored(value, name)) for name, value in found.items())


def _as_stored(value: Any, name: str) -> Any:
    value = getattr(value, "tolist", lambda: value)()
    if isinstance(value, list | tuple):
        return tuple(_as_stored(item, name) for item in value)
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError(
        f"{name} is {value!r}, which a run cannot store: keyword arguments are text, finite numbers, truth values, "
        "None and lists of them. Give the environment itself, or a function that makes it: env=lambda: …"
    )


def read_config(data: Any) -> RunConfig:
    """The configuration of a run directory's config.json."""
    config = from_json(data, REGISTRY)
    if not isinstance(config, RunConfig):
        raise ValueError(f"a run's configuration is a RunConfig, got {type(config).__name__}")
    return config


def missing_functions(config: RunConfig) -> dict[str, str]:
    """The names of the functions that a file could not keep, by the settings that they were handed over as."""
    return {path.removeprefix("agent."): given.name for path, given in find_given(config)}


def require_complete(config: RunConfig) -> None:
    """Raise unless all functions of a configuration are there.

    Raises:
        ValueError: It was read from a file, and a function was handed over from Python or registered elsewhere.
    """
    missing = missing_functions(config)
    if missing:
        what = "; ".join(f"{setting} was handed over from Python as `{name}`" for setting, name in missing.items())
        again = ", ".join(f'"{setting}": …' for setting in missing)
        raise ValueError(
            f"{what} and cannot be read from a file: give it again, qemrl.load(path, overrides={{{again}}})"
        )
    find_network(config.agent.network.torso)


def require_same_config(config: RunConfig, found: Checkpoint) -> None:
    """Raise unless a checkpoint is of a run with this configuration, which may go on further and keep more or less."""
    if "config" not in found.meta:  # it is of a version that did not keep it
        return
    kept = read_config(found.meta["config"])
    wanted = replace(config, **{name: getattr(kept, name) for name in SCHEDULE})
    changes = find_differences(to_json(wanted), to_json(kept), "", "in config.json", f"in {found.path.name}")
    if changes:
        raise ChangedConfigError(found.path.parent.parent, changes)


def create_run(path: Path, config: RunConfig, extra: Mapping[str, Any]) -> RunDirectory:
    """A new run in a folder, or the run of the same configuration that is there already.

    One that was written before a field existed has the default there. Functions are the same if their names are.

    Raises:
        RunExistsError: The folder holds a run of another configuration.
        ValueError: There is something in the folder, but no run.
    """
    with contextlib.suppress(ValueError):  # it says below what is wrong
        there = RunDirectory(path)
        if to_json(read_config(there.config)) == to_json(config):
            return there
    return RunDirectory.create(path, to_json(config), extra)
