"""The library in five calls: make, learn, predict, save, load.

agent = qemrl.make("qem-dqn", env="CartPole-v1", seed=0)
agent.learn(50_000)
agent.predict(observation)
agent.save("runs/first")
agent = qemrl.load("runs/first")
"""

import signal
import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped

from qemrl.agents.agent import InspectableAgent, View
from qemrl.agents.presets import make_agent
from qemrl.config.override import convert, flatten, override
from qemrl.config.registry import AXES
from qemrl.config.serialize import to_json
from qemrl.distributional.ensembles import pool_members
from qemrl.distributional.representation import check_compatible
from qemrl.envs.gym.given import Given, GivenEnvs
from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.envs.gym.spaces import encode
from qemrl.estimators import Statistic
from qemrl.extras import require_extra
from qemrl.networks.torsos import register_network as register_network
from qemrl.training import checkpoint as checkpoints
from qemrl.training.callbacks import CallbackList, show_progress
from qemrl.training.config import RunConfig, configure, missing_functions, read_config, require_complete
from qemrl.training.evaluation import CutEpisodeWarning, Evaluation, describe_cut, make_act
from qemrl.training.history import History, locate_checkpoint
from qemrl.training.loops import (
    Evaluator,
    Loop,
    check_imports,
    describe_environment,
    make_envs,
    make_loop,
    read_params,
)
from qemrl.training.run_directory import RunDirectory, RunExistsError
from qemrl.training.trackers import make_trackers
from qemrl.training.train import Stopped, store_config, train
from qemrl.training.wandb import WandbCallback
from qemrl.types import EnvSpec, ReturnDist


class _LoadedRun(NamedTuple):
    """What was read from a run directory; the rest of it is read when learning is resumed."""

    path: Path
    step: int
    params: Any
    obstacle: str
    """Why it cannot go on learning; nothing if it can."""

    is_last: bool
    """Whether the run goes on from there."""


class TrainableAgent:
    """An agent with all that it needs to go on learning; `make` and `load` give one."""

    def __init__(self, config: RunConfig, spec: EnvSpec | None = None, given: GivenEnvs | None = None) -> None:
        """An agent that has learned nothing yet.

        Args:
            config: A run of one seed.
            spec: What is known of the environment. Without it, the environments to learn in are built now.
            given: The environment that was handed over, if it was.
        """
        if config.num_seeds != 1:
            raise ValueError(f"an agent has one seed, got num_seeds={config.num_seeds}")
        self.config, self._given = config, given
        self._envs = None
        if spec is None:
            self._envs = make_envs(config, given)
            spec = self._envs.spec
        self.spec: EnvSpec = spec
        self.agent: InspectableAgent = make_agent(config.agent, self.spec)
        self._loop: Loop | None = None
        self._loaded: _LoadedRun | None = None
        self._history = History()
        self._evaluator = Evaluator(config, self.agent, given)
        self._explore = make_act(self.agent, evaluating=False)
        self._values = jax.jit(self.agent.q_values)
        self._decide = jax.jit(self.agent.greedy_action, static_argnums=3)
        self._distribution = jax.jit(lambda *given: pool_members(self.agent.predict_distribution(*given)))

    @property
    def params(self) -> Any:
        """The parameters that act."""
        if self._loop is None and self._loaded is not None:
            return self._loaded.params
        return self._start().params(0)

    @property
    def steps(self) -> int:
        """How many steps the agent has learned for."""
        if self._loop is not None:
            return self._loop.step
        return 0 if self._loaded is None else self._loaded.step

    @property
    def run(self) -> Path | None:
        """The run directory that the agent was last saved in, or else loaded from; None if there is none."""
        if self._history.home is not None:
            return self._history.home.path
        return None if self._loaded is None else self._loaded.path

    def __repr__(self) -> str:
        config = self.config
        parts = {name: getattr(config.agent, name, None) for name in AXES}
        named = ", ".join(f"{name} {AXES[name].name(part)}" for name, part in parts.items() if part is not None)
        return f"<{config.preset} on {config.env_name}, seed {config.seed}, {self.steps:,} steps: {named}>"

    def learn(
        self,
        steps: int | float,
        out: str | Path | None = None,
        *,
        evaluate_every: int | float | None = None,
        evaluation_episodes: int | None = None,
        callback: Any = None,
        tensorboard: bool = False,
        wandb: str | WandbCallback | None = None,
        progress: bool = True,
    ) -> "TrainableAgent":
        """Learn for `steps` more steps, rounded up to whole iterations; the agent itself is returned.

        Args:
            steps: How many; 1e5 is a number of them, too.
            out: A run directory, new or the one that this agent comes from, in which records, evaluations and
                checkpoints are kept as `qemrl train` keeps them. Without it they are remembered, for `save`.
            evaluate_every: Steps between evaluations. Without it they are as in the settings where there is a run
                directory, and there are none where there is not.
            evaluation_episodes: Episodes in an evaluation; by default as in the settings.
            callback: One or several callbacks: objects with some of the hooks of `qemrl.training.callbacks.Callback`.
                One that returns False stops the run, which is saved in its run directory.
            tensorboard: Whether event files for TensorBoard are written into the run directory.
            wandb: A project of Weights & Biases to track the run in, or a `WandbCallback`.
            progress: Whether progress is shown.

        Raises:
            RunExistsError: `out` holds another run than that of this agent.
            KeyboardInterrupt: Ctrl-C; the agent is whole, can go on, and is saved if it has a run directory.
        """
        more: int = convert(steps, int, "steps")
        if not 1 <= more < 2**31 - self.steps:  # they are counted in 32 bits
            raise ValueError(f"steps must be at least 1, and fewer than 2³¹ with those before, got {steps}")
        given = callback if isinstance(callback, list | tuple) else () if callback is None else (callback,)
        callbacks = CallbackList(given).callbacks
        asked = {"evaluate_every": evaluate_every, "evaluation_episodes": evaluation_episodes}
        settings = {name: convert(value, int, name) for name, value in asked.items() if value is not None}
        tracker = WandbCallback(wandb) if isinstance(wandb, str) else wandb
        if tracker is not None and not isinstance(tracker, WandbCallback):
            raise TypeError(f"wandb must be the name of a project or a WandbCallback, got {wandb!r}")
        if tensorboard:
            require_extra("tensorboard", "--tensorboard")
        loop = self._start()
        config = replace(self.config, steps=self.config.schedule.whole(loop.step + more), **settings)
        loop.set_evaluation_episodes(config.evaluation_episodes)
        directory = None if out is None else self._open(Path(out), config)
        trackers = make_trackers(directory, tensorboard, tracker, self._evaluator)
        self.config = config
        told = (self._history, *trackers, *show_progress(progress, introduce=False), *callbacks)
        try:
            train(config, directory, told, loop, evaluate=directory is not None or evaluate_every is not None)
        except Stopped as stopped:  # between two iterations: the agent is whole, and can go on
            if stopped.signal_number == signal.SIGINT:
                raise KeyboardInterrupt(str(stopped)) from None
            raise SystemExit(128 + stopped.signal_number) from None
        return self

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        mask: Any = None,
        seed: int = 0,
        risk: Any = None,
    ) -> Shaped[np.ndarray, "..."]:
        """The action for an observation, or the actions for a batch of them, in the environment's units.

        Args:
            observation: One observation as the environment gives it, or several: a leading axis in each of its parts.
            deterministic: The best action; else one as in training, drawn with `seed` (value agents explore as they do
                in evaluation, where they do so less).
            mask: The actions that are allowed, with the leading axis of the observation; None for all.
            seed: What makes a draw repeatable.
            risk: A measure such as `CVaR(0.1)` that decides in the place of the agent's estimator: among all actions,
                or among continuous ones that the policy may take, of which a fixed number is drawn.
        """
        batch, single = encode(observation, self.spec)
        masks = self._masks(mask, len(batch))
        if deterministic:
            actions = self._decide(self.params, batch, masks, self._check_risk(risk))
        elif risk is not None:
            raise ValueError("a risk measure decides what is best; leave `deterministic` as it is")
        else:
            actions = self._draw(batch, masks, seed)
        actions = np.asarray(actions)
        actions = actions if self.spec.box is not None else actions + actions.dtype.type(self.spec.action_start)
        return np.asarray(actions[0]) if single else actions

    def _draw(self, batch: np.ndarray, masks: Any, seed: int) -> Any:
        view = View(batch, masks, np.zeros(len(batch), bool))
        start, key = self.agent.init_actor(len(batch)), jax.random.key(_require_whole(seed, "seed", 0, 2**32 - 1))
        if self.spec.box is None:
            return self._evaluator.act(self.params, start, view, np.int32(self.steps), np.int32(0), key)[0]
        late = np.int32(2**31 - 1)  # beyond the steps in which actions are drawn from the whole box
        return self._explore(self.params, start, view, late, np.int32(0), key)[0]

    def _check_risk(self, risk: Any) -> Statistic | None:
        if risk is not None and not isinstance(risk, Statistic):
            raise ValueError(f"risk must be a measure such as qemrl.estimators.CVaR(0.1), got {risk!r}")
        if risk is not None:
            check_compatible(risk, self.config.agent.representation)
        return risk

    def q(self, observation: Any) -> Float[np.ndarray, "*batch actions"]:
        """The estimates of Q for each action; of continuous ones for the one that the policy prefers."""
        batch, single = encode(observation, self.spec)
        q = np.asarray(self._values(self.params, batch))
        return q[0] if single else q

    def predict_distribution(self, observation: Any, action: Any = None) -> ReturnDist:
        """The return distribution of each action: values [*batch, actions, n] with their levels and probabilities.

        Of continuous actions there is one, `action` or else the one that the policy prefers, as there is one where
        `action` is given.
        """
        batch, single = encode(observation, self.spec)
        dist = self._distribution(self.params, batch, self._actions(action, single, len(batch)))
        arrays = (None if array is None else np.asarray(array) for array in dist)
        parts = (array[0] if single and array is not None and array.ndim > 1 else array for array in arrays)
        return ReturnDist(*parts)

    def evaluate(self, episodes: int = 20) -> Evaluation:
        """Play episodes with the exploration of evaluation; the same agent plays the same episodes."""
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        played = self._evaluator.evaluate(self.params, self.config.seed, self.steps, episodes)
        if played.cut:
            warnings.warn(describe_cut(played, self.config.evaluation_max_steps), CutEpisodeWarning, stacklevel=2)
        return played

    def evaluation_envs(self, count: int = 1, render: bool = False) -> HostEnvs:
        """New environments like those that evaluations are played in; close them after use."""
        return self._evaluator.make_envs(count, render)

    def record_video(self, path: str | Path) -> bool:
        """Whether one evaluation episode was written to a .gif or .mp4 file; if not, a warning says why."""
        from qemrl.training.video import record_episode

        return record_episode(self._evaluator, self.params, self.config.seed, self.steps, Path(path))

    def save(self, path: str | Path) -> Path:
        """The run directory at `path`, with everything that is needed to predict and to go on learning.

        What this agent was saved as before is replaced; nothing else is.
        """
        loop, home, directory = self._start(), self._history.home, Path(path)
        if home is not None and home.is_at(directory) and home.step == loop.step:
            return directory
        config = replace(self.config, steps=max(loop.step, 1))
        run = self._find_own(directory, config) or RunDirectory.create(directory, to_json(config), {"saved": True})
        self._history.write(run, loop)
        return directory

    def _open(self, path: Path, config: RunConfig) -> RunDirectory:
        """The run directory to learn in, with this agent as it is now: a new one, or the one that it comes from."""
        loop, home = self._start(), self._history.home
        if (path / "config.json").exists():
            if home is None or not home.is_at(path):
                raise RunExistsError(
                    f"{path} holds another run, or this one gone on; choose another folder, or go on from there: "
                    f"qemrl.load({str(path)!r}).learn({config.steps - loop.step}, out={str(path)!r})"
                )
            directory = RunDirectory(path)
            store_config(directory, config)
        else:
            home, directory = None, RunDirectory.create(path, to_json(config), {"command": "learn"})
        if loop.step and (home is None or home.step != loop.step):
            self._history.write(directory, loop)
        return directory

    def _find_own(self, path: Path, config: RunConfig) -> RunDirectory | None:
        """The folder that this agent, or one with the same settings, was saved in, made ready for its steps."""
        if not (path / "config.json").exists():
            return None
        directory, home = RunDirectory(path), self._history.home
        is_home = home is not None and home.is_at(path)
        is_alike = to_json(replace(read_config(directory.config), steps=config.steps)) == to_json(config)
        if not is_home and not (directory.record["extra"].get("saved") and is_alike):
            return None
        store_config(directory, config)
        return directory

    def _start(self) -> Loop:
        """The loop, made now if it is not there; one that was loaded is read, with its replay."""
        if self._loop is None:
            loaded = self._loaded
            if loaded is not None and loaded.obstacle:
                raise ValueError(loaded.obstacle)
            loop = make_loop(self.config, self._envs, self._given)
            if loaded is not None:
                self._history = _restore(loop, loaded)
            self._loop = loop
        return self._loop

    def _actions(self, action: Any, single: bool, count: int) -> Shaped[np.ndarray, "batch ..."] | None:
        if action is None:
            return None
        try:
            given = np.asarray(action, self.spec.action_dtype)
        except OverflowError as error:
            raise ValueError(f"actions of {self.spec.id} are {self.spec.action_dtype}, got {action!r}") from error
        shape = self.spec.action_shape if single else (count, *self.spec.action_shape)
        if given.shape != shape:
            raise ValueError(f"expected actions of shape {shape}, as there are observations; got shape {given.shape}")
        if self.spec.box is None:
            given = given - given.dtype.type(self.spec.action_start)
            if not ((given >= 0) & (given < self.spec.num_actions)).all():
                first = self.spec.action_start
                raise ValueError(
                    f"actions of {self.spec.id} are {first} to {first + self.spec.num_actions - 1}, got {action!r}"
                )
        return given[None] if single else given

    def _masks(self, mask: Any, count: int) -> Bool[np.ndarray, "batch actions"] | None:
        if mask is None:
            return None
        if self.spec.box is not None:
            raise ValueError(f"a mask is for discrete actions; those of {self.spec.id} are continuous")
        masks = np.broadcast_to(np.asarray(mask, bool), (count, self.spec.num_actions))
        if not masks.any(-1).all():
            raise ValueError("a mask that allows no action at all leaves nothing to choose")
        return masks


def make(
    preset: str,
    env: str | Given,
    seed: int = 0,
    num_envs: int = 1,
    overrides: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    evaluation_env: Given | None = None,
) -> TrainableAgent:
    """An agent with the settings that its preset has for this environment.

    Args:
        preset: A name of `qemrl list`.
        env: The id of a Gymnasium or of a JAX environment; or an environment of Gymnasium, a function that makes one,
            or a vector environment.
        seed: The seed of all randomness.
        num_envs: Environments side by side; a vector environment brings its own number.
        overrides: Other settings by dotted name, as options of `qemrl train` have them, such as {"estimator": "qem",
            "estimator.order": 2, "replay.n_step": 3}.
        env_kwargs: What the environment of an id, or the function, is called with.
        evaluation_env: An environment to evaluate in, or a function that makes one, where it is not like `env`.
    """
    if not isinstance(preset, str):
        raise TypeError(f"a preset is given by its name, such as 'qem-dqn', got {preset!r}")
    _require_whole(seed, "seed", 0, 2**32 - 1)
    _require_names(overrides or {}, "overrides")
    _require_names(env_kwargs or {}, "env_kwargs")
    kwargs = dict(env_kwargs or {})
    if isinstance(env, str):
        if evaluation_env is not None:
            raise ValueError(f"evaluations are played in {env}, too; give `env` as a function for another environment")
        settings = {**(overrides or {}), **{f"env_kwargs.{name}": value for name, value in kwargs.items()}}
        return TrainableAgent(configure(preset, env, steps=1, seed=seed, num_envs=num_envs, overrides=settings))
    given = GivenEnvs(env, kwargs, evaluation_env)
    if num_envs == 1 and given.num_envs is not None:
        num_envs = given.num_envs
    return TrainableAgent(
        configure(preset, given.name, 1, seed, num_envs=num_envs, overrides=overrides or {}, env_is_given=True),
        given=given,
    )


def load(
    path: str | Path,
    seed: int | None = None,
    env: Given | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    evaluation_env: Given | None = None,
    allow_imports: bool = False,
    checkpoint: int | str = "last",
    overrides: Mapping[str, Any] | None = None,
) -> TrainableAgent:
    """The agent of a run directory, as a checkpoint has it.

    Args:
        path: What `TrainableAgent.save`, `TrainableAgent.learn` or `qemrl train` wrote.
        seed: Which of several seeds; by default the first. Of several seeds, one can predict but not go on learning.
        env: The environment, where it was handed over from Python to begin with, or to be used in the place of the
            one that the run names: as in `make`, but no id.
        env_kwargs: What a function `env` is called with.
        evaluation_env: An environment to evaluate in, where it is not like `env`.
        allow_imports: Whether a module that the run names (`module:id`) may be imported, which can do anything.
        checkpoint: `last`, the last good one; `best`, that of the best evaluation, which can predict but not go on
            learning; or the step of one that is there.
        overrides: The functions that the agent was made with from Python, which no file keeps, by the settings that
            they were given as: {"network.torso": …}.
    """
    _require_names(overrides or {}, "overrides")
    directory = RunDirectory(Path(path))
    config = _give_again(read_config(directory.config), flatten(overrides or {}))
    seed = config.seed if seed is None else seed
    if seed not in config.seeds:
        raise ValueError(f"{path} has the seeds {config.seeds}, not {seed}")
    if isinstance(env, str):
        raise ValueError(f"{path} knows the id of its environment, {config.env}; `env` is for an environment itself")
    alone = replace(config, seed=seed, num_seeds=1)
    if env is None:
        check_imports(config, allow_imports)
        agent = TrainableAgent(alone, describe_environment(alone))
    else:
        agent = TrainableAgent(alone, given=GivenEnvs(env, env_kwargs or {}, evaluation_env))
    folder, step = locate_checkpoint(directory, checkpoint)
    found = read_params(config, agent.spec, folder, seed, step)
    if found is None:
        raise ValueError(f"{path} has no checkpoint yet; let `qemrl resume {path}` run for a while")
    obstacle = ""
    if config.num_seeds > 1:
        obstacle = (
            f"{path} has several seeds, of which one alone can predict but not go on learning; all go on together "
            f"with: qemrl resume {path} --steps N"
        )
    elif folder == directory.best:
        obstacle = (
            f"the best checkpoint of {path} has parameters only, which can predict but not go on learning; load the "
            "last one for that"
        )
    agent._loaded = _LoadedRun(directory.path, *found, obstacle, is_last=step is None)
    return agent


def _require_whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number between two others, which may be one of NumPy."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {number}")
    return number


def _require_names(settings: Any, name: str) -> None:
    """Raise unless these are values by name, as are tables among them."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"{name} must be a dict of values by name, got {settings!r}")
    for key, value in settings.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must have names for keys, got {key!r}")
        if isinstance(value, Mapping):
            _require_names(value, f"{name}[{key!r}]")


def _give_again(config: RunConfig, functions: Mapping[str, Any]) -> RunConfig:
    """The configuration of a file with the functions that it could not keep."""
    missing = missing_functions(config)
    for setting in functions:
        if setting not in missing:
            there = ", ".join(missing) or "none here"
            raise ValueError(
                f"{setting} is stored with the run, and what was learned would not fit another value; overrides are "
                f"for functions that were handed over from Python: {there}"
            )
    config = override(config, functions) if functions else config
    require_complete(config)
    return config


def _restore(loop: Loop, loaded: _LoadedRun) -> History:
    """What the agent remembers of the run, whose loop is put where it was."""
    directory, history = RunDirectory(loaded.path), History()
    found = checkpoints.load_latest(directory.checkpoints, step=None if loaded.is_last else loaded.step)
    if found is None or found.step != loaded.step:
        raise ValueError(f"{loaded.path} has changed since step {loaded.step} was loaded from it; load it again")
    for loss in loop.restore(found.step, found.arrays, found.meta["loop"]):
        warnings.warn(loss, stacklevel=3)
    history.read(directory, found.meta["metrics_bytes"])
    if loaded.is_last:
        history.on_checkpoint(found.step, found.path)
    return history
