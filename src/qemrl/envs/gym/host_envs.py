"""Gymnasium environments side by side, behind one interface that hides how vector environments begin new episodes."""

import contextlib
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float, Int

from qemrl.envs.gym.atari import AtariProtocol, make_atari, protocol_for
from qemrl.envs.gym.catalog import find_environment, ignore_age_warnings, is_atari, missing_package, wrong_kwargs
from qemrl.envs.gym.histories import Histories, episode_seed, schedule_replay
from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.envs.gym.interface import (
    InterfaceError,
    read_array,
    read_flags,
    read_info,
    unpack_reset,
    unpack_step,
)
from qemrl.envs.gym.spaces import (
    describe_spaces,
    find_bounds,
    find_outlier,
    read_actions,
    read_masks,
    read_observations,
    read_rewards,
    write_actions,
)
from qemrl.types import Actions, UnsupportedEnvironment

Mask = Bool[np.ndarray, "envs actions"] | None
"""The actions allowed in each environment; None where all are always allowed."""


RANGE_STEPS = 100
"""For how many steps observations are compared with the bounds of their space: to do so always would cost more than all
other checks, and an environment that goes beyond them on purpose does so late."""


class OutOfRangeWarning(UserWarning):
    """An observation lies outside of its space."""


class HostReset(NamedTuple):
    """What environments show first."""

    observation: np.ndarray
    """[envs, ...]"""

    mask: Mask
    """The actions allowed there."""


class HostStep(NamedTuple):
    """What followed an action in each environment."""

    reward: Float[np.ndarray, " envs"]
    terminated: Bool[np.ndarray, " envs"]
    """Whether nothing follows: the end of an episode, or a lost life where the Atari protocol says so."""

    truncated: Bool[np.ndarray, " envs"]
    next_observation: np.ndarray
    """[envs, ...]: the true next one, also where an episode ended."""

    observation: np.ndarray
    """[envs, ...]: to act on next; the first of the new episode where one ended."""

    mask: Mask
    """The actions allowed in `observation`."""

    next_mask: Mask
    """The actions allowed in `next_observation`; all where it is terminal."""

    valid: Bool[np.ndarray, " envs"]
    """False where nothing happened but a reset, in vector environments that reset in a step of its own: such a row must
    not enter replay, and its action did not count."""

    ended: Bool[np.ndarray, " envs"]
    """Whether the environment's own episode is over, so that its return is complete; unlike `terminated` never for a
    lost life."""

    restarted: Bool[np.ndarray, " envs"]
    """Whether `observation` does not continue `next_observation`: frames are stacked anew from here."""


class HostEnvs:
    """Gymnasium environments side by side; every step gives the true next observations and those to act on.

    Without autoreset, every episode is seeded by (seed of the run, environment, number of the episode). The actions of
    the episode then are all there is to know of a deterministic environment: `state` keeps them and `restore` plays
    them again, at the speed of the environment. Vector environments that reset themselves cannot be restored.

    Attributes:
        spec: What an agent and a replay must know.
        observation: [envs, ...], what to act on now.
        mask: The actions allowed now, or None.
    """

    def __init__(self, vector: VectorEnv | InProcessEnvs, env_id: str, stacked_frames: int = 1):
        mode = vector.metadata.get("autoreset_mode")
        if mode is None:
            raise ValueError(
                f'the vector environment of {env_id} does not say how it resets: metadata["autoreset_mode"] is missing'
                "; set it to the AutoresetMode that it follows"
            )
        self.vector: Any = vector
        self.num_envs = vector.num_envs
        self._mode = AutoresetMode(mode)
        within = vector if isinstance(vector, InProcessEnvs) else vector.unwrapped
        # these take a seed for each environment, and calls of its methods; what native ones take is their own affair
        self._made_of_envs = isinstance(within, InProcessEnvs | SyncVectorEnv | AsyncVectorEnv)
        self._replayable = self._made_of_envs and self._mode is AutoresetMode.DISABLED
        self._action_space = vector.single_action_space
        self._places = np.arange(vector.num_envs)
        self.spec = describe_spaces(env_id, vector.single_observation_space, self._action_space, stacked_frames)
        self._bounds = find_bounds(self.spec)
        self._mask_source: str | None = None
        self.reset(0)
        self._mask_source = self._find_masks()
        if self._mask_source is not None:
            self.spec = self.spec._replace(has_mask=True)
            self.reset(0)

    def reset(self, seed: int) -> HostReset:
        """The first observations of a run with this seed."""
        if seed < 0:
            raise ValueError(f"the seed of a run must not be negative, got {seed}")
        self._seed, self._steps = seed, 0
        try:
            self._start_episodes(np.zeros(self.num_envs, np.int64))
        except InterfaceError as error:
            raise InterfaceError(f"{self.spec.id}, reset: {error}") from error
        except Exception as error:
            error.add_note(f"in reset of {self.spec.id}")
            raise
        return HostReset(self.observation, self.mask)

    def step(self, actions: Actions) -> HostStep:
        """What follows these actions; where an episode ended, `observation` is the first of a new one.

        Continuous actions are clipped to `spec.box`.
        """
        actions = read_actions(actions, self.spec)
        self._steps += 1
        try:
            return self._step(actions)
        except InterfaceError as error:
            raise InterfaceError(f"{self.spec.id}, step {self._steps}: {error}") from error
        except Exception as error:
            error.add_note(f"in step {self._steps} of {self.spec.id}")
            raise

    def _step(self, actions: Actions) -> HostStep:
        step = self._transition(actions)
        self._returns += step.reward
        if self._replayable:
            self._histories.add(actions)
        if np.count_nonzero(step.ended):  # this is faster than `any`, and here every microsecond counts
            self._returns[step.ended] = 0.0
            self._episode[step.ended] += 1
            if self._mode is AutoresetMode.DISABLED:
                observation, mask = self._reset_rows(step.ended, step.observation, step.mask)
                step = step._replace(observation=observation, mask=mask, restarted=step.restarted | step.ended)
        self.observation, self.mask = step.observation, step.mask
        return step

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to come back here with `restore`, as arrays."""
        return {
            "seed": np.asarray(self._seed, np.int64),
            "episode": self._episode.copy(),
            **self._histories.state(),
            "episode_return": self._returns.copy(),
            "observation": self.observation.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> list[str]:
        """Come back to where `state` was taken, and return a warning for each environment where that was not possible.

        There, a new episode has begun. `observation` and `mask` are what to act on.
        """
        if state["observation"].shape != (self.num_envs, *self.spec.observation_shape):
            raise ValueError(
                f"the stored environments have observations {state['observation'].shape}, those of {self.spec.id} here "
                f"{(self.num_envs, *self.spec.observation_shape)}; make as many environments of the same kind"
            )
        episodes = self._histories.read(state)
        self._seed = int(state["seed"])
        if not self._replayable:
            self._start_episodes(state["episode"] + 1)
            return [
                f"{self.spec.id}: {type(self.vector).__name__} ({self._mode.name}) is a vector environment that cannot "
                "restore its state; new episodes have begun in it"
            ]
        self._start_episodes(state["episode"])
        lost = self._replay(episodes)
        same = (self.observation == state["observation"]).reshape(self.num_envs, -1).all(1)
        lost |= ~same | (self._returns != state["episode_return"])
        if lost.any():
            self._episode[lost] += 1
            self._restart(lost)
        return [
            f"{self.spec.id}: environment {place} did not come back to its state when its last "
            f"{len(episodes[place])} actions were played again (is it deterministic?); a new episode has begun there"
            for place in np.flatnonzero(lost).tolist()
        ]

    def render(self) -> np.ndarray:
        """A picture of the first environment, [height, width, 3]."""
        if self.vector.render_mode != "rgb_array":
            raise ValueError(f"{self.spec.id} gives no pictures; make it with render=True")
        return np.asarray(self.vector.render()[0])

    def close(self) -> None:
        """Close all environments; where that fails, a warning says so, for what they were needed for is done."""
        try:
            self.vector.close()
        except Exception as error:
            warnings.warn(f"{self.spec.id} could not be closed: {error!r}", stacklevel=2)

    def _start_episodes(self, episodes: Int[np.ndarray, " envs"]) -> None:
        """Start these episodes everywhere."""
        self._episode = episodes.copy()
        self._returns = np.zeros(self.num_envs)
        self._histories = Histories(self.spec, self.num_envs)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        if self._replayable:
            nothing = np.zeros((self.num_envs, *self.spec.observation_shape), self.spec.observation_dtype)
            unmasked = None if self._mask_source is None else np.ones((self.num_envs, self.spec.num_actions), np.bool_)
            self.observation, self.mask = self._reset_rows(np.ones(self.num_envs, np.bool_), nothing, unmasked)
            return
        # halved, because native environments add their number to it and want 32 bits
        seed = episode_seed(self._seed, 0, int(episodes.max())) // 2
        raw, infos = unpack_reset(self.vector.reset(seed=seed))
        self._first_infos = infos = read_info(infos)
        self.observation, self.mask = self._read(raw), self._read_mask(infos, np.zeros(self.num_envs, np.bool_))

    def _reset_rows(
        self, rows: Bool[np.ndarray, " envs"], observation: np.ndarray, mask: Mask
    ) -> tuple[np.ndarray, Mask]:
        """These observations and masks, after a reset of some rows, each with the seed of its episode."""
        options = {"reset_mask": rows}
        if self._replayable:
            seeds: list[int | None] = [None] * self.num_envs
            for place in np.flatnonzero(rows).tolist():
                seeds[place] = episode_seed(self._seed, place, int(self._episode[place]))
                self._histories.forget(place)
            raw, infos = unpack_reset(self.vector.reset(seed=seeds, options=options))
        else:
            raw, infos = unpack_reset(self.vector.reset(options=options))
        self._first_infos = infos = read_info(infos)
        observation = observation.copy()
        observation[rows] = self._read(raw)[rows]
        first_mask = self._read_mask(infos, ~rows)
        if mask is None or first_mask is None:
            return observation, None
        return observation, np.where(rows[:, None], first_mask, mask)

    def _replay(self, episodes: Sequence[np.ndarray]) -> Bool[np.ndarray, " envs"]:
        """Take the actions of these episodes again; true where one ended on the way, which it had not done."""
        empty = np.array([len(episode) == 0 for episode in episodes])
        lost = np.zeros(self.num_envs, np.bool_)
        for time, (restarts, actions) in enumerate(schedule_replay(episodes)):
            if time and (restarts | lost).any():
                self._restart(restarts | lost)
            idle = empty | lost
            if self.mask is not None:
                actions[idle] = self.mask[idle].argmax(1)
            step = self._transition(read_actions(actions, self.spec))
            self._returns += step.reward
            lost |= step.ended & ~empty
            self.observation, self.mask = step.observation, step.mask
        if not empty.all() and (empty | lost).any():
            self._restart(empty | lost)
        self._histories.load(episodes)
        return lost

    def _restart(self, rows: Bool[np.ndarray, " envs"]) -> None:
        """Go back to the first observation of some rows' episodes."""
        self._returns[rows] = 0.0
        self.observation, self.mask = self._reset_rows(rows, self.observation, self.mask)

    def _transition(self, actions: Actions) -> HostStep:
        """A step of the vector environment in terms that are the same in all modes, before resets of our own."""
        outcome = self.vector.step(write_actions(actions, self._action_space))
        raw, reward, terminated, truncated, infos = unpack_step(outcome)
        infos = read_info(infos)
        terminated = read_flags(terminated, self.num_envs, "terminated")
        truncated = read_flags(truncated, self.num_envs, "truncated")
        ended = terminated | truncated
        valid = ~self._resetting
        restarted = self._resetting
        self._resetting = ended if self._mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, np.bool_)
        observation = next_observation = self._read(raw)
        same_step = self._mode is AutoresetMode.SAME_STEP
        mask = next_mask = self._read_mask(infos, terminated & (not same_step))
        if same_step and ended.any():
            next_observation = observation.copy()
            next_observation[ended] = self._read_final(infos, ended)
            restarted = ended
            final_mask = self._read_mask(infos.get("final_info", {}), terminated | ~ended)
            if mask is not None and final_mask is not None:
                next_mask = np.where(ended[:, None], final_mask, mask)
        if "_life_lost" in infos:
            lost = infos["_life_lost"] & ~ended
            terminated = terminated | lost
            if "_restart_observation" in infos:
                observation = next_observation.copy()
                for place in np.flatnonzero(infos["_restart_observation"]).tolist():
                    observation[place] = infos["restart_observation"][place]
                restarted = restarted | infos["_restart_observation"]
        return HostStep(
            read_rewards(reward, self.num_envs, self.spec.id),
            terminated,
            truncated,
            next_observation,
            observation,
            mask,
            next_mask,
            valid,
            ended,
            restarted,
        )

    def _read(self, raw: Any) -> np.ndarray:
        observation = read_observations(raw, self.spec, self._places)
        if self._bounds is not None and self._steps <= RANGE_STEPS:
            outlier = find_outlier(observation, self._bounds)
            if outlier is not None:
                self._bounds = None  # it is said once
                where = f"step {self._steps}" if self._steps else "reset"
                warnings.warn(f"{self.spec.id}, {where}: {outlier}", OutOfRangeWarning, stacklevel=2)
        return observation

    def _read_final(self, infos: Mapping[str, Any], ended: Bool[np.ndarray, " envs"]) -> np.ndarray:
        """The last observations of the episodes that ended, in the mode SAME_STEP."""
        final = infos.get("final_obs")
        if not isinstance(final, np.ndarray) or final.shape[:1] != ended.shape:
            raise InterfaceError(
                'where an episode ends in the mode SAME_STEP, info["final_obs"] must be an array of observations for '
                f"all {self.num_envs} environments, got {reprlib.repr(final)}"
            )
        return read_observations(final[ended], self.spec, np.flatnonzero(ended))

    def _find_masks(self) -> str | None:
        """Where masks come from: the infos of a reset, a method `action_masks`, or nowhere."""
        if self.spec.box is not None:
            return None
        if "action_mask" in self._first_infos:
            return "info"
        if not self._made_of_envs or not all(self.vector.call("has_wrapper_attr", "action_masks")):
            return None
        if self._mode is AutoresetMode.SAME_STEP:
            raise UnsupportedEnvironment(
                f"{self.spec.id} has a method action_masks, which cannot be asked about the last observation of an "
                'episode in the mode SAME_STEP; use another AutoresetMode, or put the mask into info["action_mask"]'
            )
        return "method"

    def _read_mask(self, infos: Mapping[str, Any], exempt: Bool[np.ndarray, " envs"]) -> Mask:
        """The masks of all environments; where a row is exempt (nothing is chosen there), all is allowed if none is."""
        if self._mask_source is None:
            return None
        if self._mask_source == "method":
            given, told = self.vector.call("action_masks"), np.ones(self.num_envs, np.bool_)
        else:
            given = infos.get("action_mask")
            told = infos.get("_action_mask", np.full(self.num_envs, given is not None))
        return read_masks(given, told, exempt, self.spec)


def make_host_envs(
    env_id: str,
    num_envs: int,
    protocol: AtariProtocol | None = None,
    asynchronous: bool = False,
    render: bool = False,
    also: Sequence[str] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    frame_stack: int = 1,
) -> HostEnvs:
    """Environments of Gymnasium with this id, whose episodes can be repeated and restored.

    Args:
        env_id: An id of Gymnasium; `module:id` imports a module that registers it. Atari games need no import.
        num_envs: How many, side by side.
        protocol: For Atari games; by default the one that the id stands for.
        asynchronous: Whether each environment runs in a process of its own (worth it only where its steps are slow;
            a script must then be guarded by `if __name__ == "__main__"`).
        render: Whether `HostEnvs.render` gives pictures.
        also: Names to suggest where the id is unknown, besides those of Gymnasium.
        kwargs: What the environment is made with, by the names of its own arguments.
        frame_stack: How many of the last observations are seen at once; not for Atari games, whose protocol says it.
    """
    if num_envs < 1:
        raise ValueError(f"there must be at least one environment, got {num_envs}")
    find_environment(env_id, also)
    if is_atari(env_id):
        protocol = protocol_for(env_id) if protocol is None else protocol
    elif protocol is not None:
        raise ValueError(f"{env_id} is no Atari game; it cannot have the Atari protocol {protocol.name!r}")
    if protocol is not None and frame_stack != 1:
        raise ValueError(
            f"the protocol of {env_id} stacks {protocol.stack} frames already (protocol.stack); "
            f"leave frame_stack={frame_stack} out"
        )
    make = partial(_make_one, env_id, protocol, render, dict(kwargs), frame_stack)
    if asynchronous:
        # a server that forks, because the threads of JAX do not survive a fork of this process
        vector = AsyncVectorEnv([make] * num_envs, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
    else:
        vector = InProcessEnvs(make, num_envs)
    return wrap_vector(vector, env_id, frame_stack if protocol is None else protocol.stack)


def wrap_vector(vector: VectorEnv | InProcessEnvs, env_id: str, stacked_frames: int = 1) -> HostEnvs:
    """A vector environment behind our interface; it is closed where that is not possible."""
    try:
        return HostEnvs(vector, env_id, stacked_frames)
    except Exception:
        with contextlib.suppress(Exception):  # what made it impossible is what there is to say
            vector.close()
        raise


class FrameStack(gymnasium.Wrapper):
    """The last observations of an environment, the newest last; an episode begins with copies of its first one.

    As Gymnasium's `FrameStackObservation`, in a third of the time or less, and also right where an environment writes
    all its observations into one array.
    """

    def __init__(self, env: gymnasium.Env, num_frames: int):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise UnsupportedEnvironment(
                f"frames are arrays, and {env} has observations {space}; leave frame_stack={num_frames} out, or put "
                "gymnasium.wrappers.FlattenObservation around it"
            )
        self.observation_space = batch_space(space, num_frames)
        self._num_frames, self._dtype = num_frames, space.dtype

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Copies of the first observation."""
        frame, info = unpack_reset(self.env.reset(seed=seed, options=options))
        self._frames = np.stack([self._read(frame)] * self._num_frames)
        return self._frames, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The last observations, one of which is new."""
        frame, *outcome = unpack_step(self.env.step(action))
        self._frames = np.concatenate([self._frames[1:], self._read(frame)[None]])
        return self._frames, *outcome

    def _read(self, frame: Any) -> np.ndarray:
        shape = self.observation_space.shape[1:]  # type: ignore[index]
        return read_array(frame, shape, self._dtype, "the observation").astype(self._dtype, copy=False)


def wrap_env(env: gymnasium.Env, frame_stack: int) -> gymnasium.Env:
    """What is learned in: an environment with its last observations seen at once, if more than one is."""
    return env if frame_stack == 1 else FrameStack(env, frame_stack)


def _make_one(
    env_id: str, protocol: AtariProtocol | None, render: bool, kwargs: Mapping[str, Any], frame_stack: int
) -> gymnasium.Env:
    registration = find_environment(env_id)
    try:
        if protocol is not None:
            return make_atari(env_id, protocol, render, kwargs)
        # only passed where it is needed, for not every environment takes it
        rendering: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
        with ignore_age_warnings(registration):
            return wrap_env(gymnasium.make(env_id, **kwargs, **rendering), frame_stack)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise missing_package(registration, error) from error
    except TypeError as error:
        if not kwargs:
            raise
        raise wrong_kwargs(registration, kwargs, error) from error
