"""What of Gymnasium's spaces agents can take, and how it is read into arrays."""

from typing import Any

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float

from qemrl.envs.jax.classic_control import CARTPOLE_BOUNDS
from qemrl.types import ActionBox, Actions, EnvSpec, UnsupportedEnvironment

_UNBOUNDED = 1e30  # some spaces write the largest number of their dtype where they mean infinity

_Bounds = tuple[float, ...] | None

USUAL_BOUNDS = {"CartPole-v0": CARTPOLE_BOUNDS, "CartPole-v1": CARTPOLE_BOUNDS}
"""Where observations usually lie, for environments that leave their bounds open."""


class NonFiniteError(ValueError):
    """A reward, an observation or an action that is not a finite number."""


def describe_spaces(env_id: str, observations: spaces.Space, actions: spaces.Space, stacked_frames: int) -> EnvSpec:
    """What an agent must know of an environment with these spaces."""
    num_actions, box = _describe_actions(env_id, actions)
    shape, dtype, low, high = _describe_observations(env_id, observations)
    states = int(observations.n) if isinstance(observations, spaces.Discrete) else None
    return EnvSpec(
        env_id,
        shape,
        dtype,
        num_actions,
        stacked_frames=stacked_frames,
        observation_low=low,
        observation_high=high,
        num_states=states,
        box=box,
    )


def _describe_observations(env_id: str, space: spaces.Space) -> tuple[tuple[int, ...], str, _Bounds, _Bounds]:
    """The shape and dtype of an observation, and its bounds if it is a vector that has any."""
    if isinstance(space, spaces.Discrete):
        size = int(space.n)
        return (size,), "float32", (0.0,) * size, (1.0,) * size
    if not isinstance(space, spaces.Box):
        raise UnsupportedEnvironment(
            f"{env_id} has observations {space}; an array is needed. "
            "Register it with gymnasium.wrappers.FlattenObservation around it"
        )
    dtype = space.dtype.name if space.dtype in (np.dtype(np.uint8), np.dtype(np.bool_)) else "float32"
    if len(space.shape) == 1 and _has_bounds(space).all():
        return space.shape, dtype, tuple(map(float, space.low)), tuple(map(float, space.high))
    low, high = USUAL_BOUNDS.get(env_id, (None, None))
    return space.shape, dtype, low, high


def _describe_actions(env_id: str, space: spaces.Space) -> tuple[int, ActionBox | None]:
    """How many actions there are to choose from, or where continuous ones lie."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), None
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise UnsupportedEnvironment(
            f"{env_id} has actions {space}; agents need gymnasium.spaces.Discrete or a Box of floats. "
            "Number the combinations with gymnasium.wrappers.TransformAction"
        )
    bounded = _has_bounds(space)
    if not bounded.all():
        raise UnsupportedEnvironment(
            f"{env_id} has continuous actions {space} without finite bounds at index {_find_first_false(bounded)}. "
            "Wrap it so that its action_space is bounded: gymnasium.wrappers.TransformAction(env, function, "
            "bounded_space) can do that, RescaleAction and ClipAction cannot"
        )
    # agents scale in float32, where bounds that are close may coincide
    open_ = np.asarray(space.low.astype(np.float32) < space.high.astype(np.float32))
    if not (space.low.size and open_.all()):
        where = f"low is not less than high at index {_find_first_false(open_)}" if space.low.size else "there are none"
        raise UnsupportedEnvironment(
            f"{env_id} has continuous actions {space}, but {where}. Register it with "
            "gymnasium.wrappers.TransformAction around it, for an action_space of those components that can be chosen"
        )
    low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
    return 0, ActionBox(space.shape, low, high)


def _has_bounds(space: spaces.Box) -> Bool[np.ndarray, "..."]:
    """Whether both bounds of a component are finite."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return np.asarray((np.abs(low) < _UNBOUNDED) & (np.abs(high) < _UNBOUNDED))


def _find_first_false(mask: Bool[np.ndarray, "..."]) -> tuple[int, ...]:
    return tuple(np.argwhere(np.logical_not(mask))[0].tolist())


def read_actions(actions: Any, spec: EnvSpec) -> Actions:
    """Actions [envs, ...] in an array that the spec promises: numbers, or finite float32 values."""
    if spec.box is None:
        return np.asarray(actions, np.int64)
    actions = np.asarray(actions, np.float32)
    if actions.shape[1:] != spec.box.shape:
        raise ValueError(
            f"the actions of {spec.id} must have the shape {('environments', *spec.box.shape)}, got {actions.shape}"
        )
    if not _all_finite(actions):
        place, *index = _find_first_false(np.isfinite(actions))
        raise NonFiniteError(
            f"the action for environment {place} ({spec.id}) is {actions[(place, *index)]} at index {tuple(index)}: "
            "learning has diverged; a smaller learning rate may help"
        )
    return actions


def write_actions(actions: Actions, space: spaces.Space) -> np.ndarray:
    """What a vector environment takes for these actions."""
    if isinstance(space, spaces.Discrete):
        return actions + space.start
    # rounding may have put an action just outside
    return np.clip(actions.astype(space.dtype), space.low, space.high)  # type: ignore[attr-defined]


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


def read_masks(
    given: Any, told: Bool[np.ndarray, " envs"], exempt: Bool[np.ndarray, " envs"], spec: EnvSpec
) -> Bool[np.ndarray, "envs actions"]:
    """The masks of all environments that told theirs; where a row is exempt, all is allowed if nothing is."""
    mask = np.zeros((len(told), spec.num_actions), np.bool_)
    for place in np.flatnonzero(told).tolist():
        mask[place] = given[place]
    empty = ~mask.any(1)
    if (empty & ~exempt).any():
        place = int(np.flatnonzero(empty & ~exempt)[0])
        raise ValueError(
            f"environment {place} ({spec.id}) allows no action in an observation that is not terminal: "
            "its action mask is missing or all False"
        )
    mask[empty] = True
    return mask


def _float32(values: np.ndarray) -> Float[np.ndarray, "..."]:
    """A copy in float32, infinite where it is too large."""
    if values.dtype == np.float32:
        return values.copy()
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _all_finite(values: Float[np.ndarray, "..."]) -> bool:
    # on few numbers `all` takes twice as long
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)
