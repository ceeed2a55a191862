"""What of Gymnasium's spaces agents can take, and how it is read into arrays."""

from typing import Any

import numpy as np
from gymnasium import spaces
from jaxtyping import Float

from qemrl.envs.bounds import USUAL_BOUNDS
from qemrl.types import EnvSpec

_ACTOR_CRITICS = "sac, td3, dsac, dsac-iqn, tqc, qem-dsac, qem-dsac-iqn"
_UNBOUNDED = 1e30  # some spaces write the largest number of their dtype where they mean infinity


class UnsupportedEnvironment(ValueError):  # noqa: N818 - what it is, not that it is an error
    """An environment whose observations or actions value agents cannot take."""


class NonFiniteError(ValueError):
    """A reward or an observation that is not a finite number."""


def discrete_actions(space: spaces.Space, env_id: str) -> spaces.Discrete:
    """The action space, if it is one of finitely many actions."""
    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box):
        raise UnsupportedEnvironment(
            f"{env_id} has continuous actions {space}; value agents choose among finitely many. "
            f"The actor-critic presets ({_ACTOR_CRITICS}) are for continuous ones; this version has none of them yet"
        )
    raise UnsupportedEnvironment(
        f"{env_id} has actions {space}; value agents need gymnasium.spaces.Discrete. "
        "Number the combinations with gymnasium.wrappers.TransformAction"
    )


def describe(env_id: str, space: spaces.Space, num_actions: int, stacked_frames: int) -> EnvSpec:
    """What an agent must know of an environment with these observations."""
    if isinstance(space, spaces.Discrete):
        size = int(space.n)
        low, high = (0.0,) * size, (1.0,) * size
        return EnvSpec(env_id, (size,), "float32", num_actions, stacked_frames=stacked_frames, low=low, high=high)
    if not isinstance(space, spaces.Box):
        raise UnsupportedEnvironment(
            f"{env_id} has observations {space}; an array is needed. "
            "Register it with gymnasium.wrappers.FlattenObservation around it"
        )
    dtype = space.dtype.name if space.dtype in (np.dtype(np.uint8), np.dtype(np.bool_)) else "float32"
    low, high = USUAL_BOUNDS.get(env_id, (None, None))
    bounds = np.abs([space.low.astype(float), space.high.astype(float)])
    if len(space.shape) == 1 and (bounds < _UNBOUNDED).all():
        low, high = tuple(map(float, space.low)), tuple(map(float, space.high))
    return EnvSpec(env_id, space.shape, dtype, num_actions, stacked_frames=stacked_frames, low=low, high=high)


def read_rewards(reward: Any, env_id: str) -> Float[np.ndarray, " envs"]:
    """Rewards in float32, all finite."""
    reward = np.asarray(reward)
    small = _float32(reward)
    if not _all_finite(small):
        place = int(np.flatnonzero(~np.isfinite(small))[0])
        raise NonFiniteError(f"the reward of environment {place} ({env_id}) is {reward[place]}, not finite in float32")
    return small


def read_observations(raw: Any, space: spaces.Space, spec: EnvSpec) -> np.ndarray:
    """Observations [envs, ...] as the spec promises them, all finite, in an array of their own."""
    if isinstance(space, spaces.Discrete):
        one_hot = np.zeros((len(raw), int(space.n)), np.float32)
        one_hot[np.arange(len(raw)), np.asarray(raw) - space.start] = 1.0
        return one_hot
    if spec.observation_dtype != "float32":
        return np.array(raw, spec.observation_dtype)
    observation = _float32(np.asarray(raw))
    if not _all_finite(observation):
        place, *index = np.argwhere(~np.isfinite(observation))[0].tolist()
        raise NonFiniteError(
            f"the observation of environment {place} ({spec.id}) is {np.asarray(raw)[(place, *index)]} "
            f"at index {tuple(index)}, not finite in float32"
        )
    return observation


def _float32(values: np.ndarray) -> Float[np.ndarray, "..."]:
    """A copy in float32, infinite where it is too large."""
    if values.dtype == np.float32:
        return values.copy()
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _all_finite(values: Float[np.ndarray, "..."]) -> bool:
    # on few numbers `all` takes twice as long
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)
