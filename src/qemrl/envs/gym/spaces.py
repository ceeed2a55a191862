"""What of Gymnasium's spaces agents can take, and how it is read into arrays."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float, Int, Shaped

from qemrl.envs.gym.interface import InterfaceError, read_array
from qemrl.envs.gym.wrapper_advice import advise_on_actions, advise_on_observations
from qemrl.envs.jax.classic_control import CARTPOLE_BOUNDS
from qemrl.types import ActionBox, Actions, EnvSpec, Part, UnsupportedEnvironment

_UNBOUNDED = 1e30  # some spaces write the largest number of their dtype where they mean infinity

STORED = {name: np.dtype(name) for name in ("float32", "uint8", "bool")}
"""The dtypes of observations by their names: to make one at every step takes longer than to compare it."""

_FLOAT64 = np.dtype(np.float64)

USUAL_BOUNDS = {"CartPole-v0": CARTPOLE_BOUNDS, "CartPole-v1": CARTPOLE_BOUNDS}
"""Where observations usually lie, for environments that leave their bounds open."""


class NonFiniteError(ValueError):
    """A reward, an observation or an action that is not a finite number."""


def describe_spaces(env_id: str, observations: spaces.Space, actions: spaces.Space, stacked_frames: int) -> EnvSpec:
    """What an agent must know of an environment with these spaces."""
    num_actions, start, box = _describe_actions(env_id, actions)
    parts = list(_list_parts(env_id, observations, stacked_frames))
    if not parts:
        raise UnsupportedEnvironment(f"{env_id} has observations {observations}, in which there is nothing to see")
    spec = EnvSpec(env_id, (0,), "float32", num_actions, stacked_frames=stacked_frames, box=box, action_start=start)
    if len(parts) > 1:
        if any(part.channel_axes is not None and part.dtype != "float32" for part in parts):
            size, dtype = sum(part.num_bytes for part in parts), "uint8"
        else:
            size, dtype = sum(part.num_components for part in parts), "float32"
        return spec._replace(observation_shape=(size,), observation_dtype=dtype, parts=tuple(parts))
    part = parts[0]
    low, high = part.low, part.high
    if low is None and high is None and env_id in USUAL_BOUNDS:
        low, high = (bounds * stacked_frames for bounds in USUAL_BOUNDS[env_id])
    return spec._replace(
        observation_shape=part.stored_shape,
        observation_dtype=part.dtype,
        observation_low=low,
        observation_high=high,
        num_states=part.sizes[0] if len(part.sizes) == 1 else None,
        parts=(part,) if part.path or part.sizes else (),
    )


def _list_parts(
    env_id: str,
    whole: spaces.Space,
    stacked_frames: int,
    path: tuple[Any, ...] = (),
    within: spaces.Space | None = None,
) -> Iterator[Part]:
    """All arrays and numbers in an observation space, in the order in which they are stored."""
    space = whole if within is None else within
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, each in inner:
            yield from _list_parts(env_id, whole, stacked_frames, (*path, key), each)
    elif isinstance(space, spaces.Discrete):
        yield _describe_numbers(path, (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(map(int, numbers.reshape(-1))) for numbers in (space.nvec, space.start))
        yield _describe_numbers(path, space.shape, sizes, starts)
    elif isinstance(space, spaces.MultiBinary):
        yield Part(path, space.shape, "bool")
    elif isinstance(space, spaces.Box):
        yield _describe_box(path, space, stacked_frames)
    else:
        where = "".join(f"[{key!r}]" for key in path)
        at = f" at {where} of its observations" if path else " as observations"
        raise UnsupportedEnvironment(
            f"{env_id} has {space}{at}, which agents cannot read. {advise_on_observations(whole, path)}"
        )


def _describe_numbers(
    path: tuple[Any, ...], shape: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[int, ...]
) -> Part:
    low, high = ((end,) * sum(sizes) for end in (0.0, 1.0))
    return Part(path, shape, "float32", low, high, sizes, starts)


def _describe_box(path: tuple[Any, ...], space: spaces.Box, stacked_frames: int) -> Part:
    dtype = space.dtype.name if space.dtype in (np.dtype(np.uint8), np.dtype(np.bool_)) else "float32"
    part = Part(path, space.shape, dtype, frames=stacked_frames)
    if not _has_bounds(space).all():
        return part
    low, high = (ends.reshape(-1).astype(np.float64) for ends in (space.low, space.high))
    if part.channel_axes is not None:
        if dtype != "float32":  # these have the bounds of their dtype
            return part
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    # a component that is always the same must not be divided by zero
    high = np.where(high.astype(np.float32) > low.astype(np.float32), high, low + np.maximum(1, np.abs(low)))
    return part._replace(low=tuple(low.tolist()), high=tuple(high.tolist()))


def _describe_actions(env_id: str, space: spaces.Space) -> tuple[int, int, ActionBox | None]:
    """How many actions there are to choose from and what the first is called, or where continuous ones lie."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), int(space.start), None
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise UnsupportedEnvironment(
            f"{env_id} has actions {space}; agents need gymnasium.spaces.Discrete or a Box of floats. "
            f"{advise_on_actions(space)}"
        )
    bounded = _has_bounds(space)
    if not bounded.all():
        raise UnsupportedEnvironment(
            f"{env_id} has continuous actions {space} without finite bounds at index {_find_first_false(bounded)}. "
            f"{advise_on_actions(space)}"
        )
    # agents scale in float32, where bounds that are close may coincide
    open_ = np.asarray(space.low.astype(np.float32) < space.high.astype(np.float32))
    if not (space.low.size and open_.all()):
        where = f"low is not less than high at index {_find_first_false(open_)}" if space.low.size else "there are none"
        raise UnsupportedEnvironment(
            f"{env_id} has continuous actions {space}, but {where}. Put gymnasium.wrappers.TransformAction around it, "
            "for an action_space of those components that can be chosen"
        )
    low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
    return 0, 0, ActionBox(space.shape, low, high)


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


def read_rewards(reward: Any, num_envs: int, env_id: str) -> Float[np.ndarray, " envs"]:
    """Rewards in float32, all finite."""
    reward = read_array(reward, (num_envs,), _FLOAT64, "the rewards")
    small = _float32(reward)
    if not _all_finite(small):
        place = int(np.flatnonzero(~np.isfinite(small))[0])
        raise NonFiniteError(f"the reward of environment {place} ({env_id}) is {reward[place]}, not finite in float32")
    return small


def read_observations(raw: Any, spec: EnvSpec, envs: Int[np.ndarray, " envs"]) -> np.ndarray:
    """Observations [envs, ...] as the spec promises them, all finite, in an array of their own.

    Args:
        raw: As vector environments give them, with a leading axis in every part; or an array of objects, one
            observation for each environment.
        spec: Of the environments.
        envs: Which environments these are.
    """
    if not spec.parts and (raw.__class__ is not np.ndarray or raw.dtype != object):
        shape = (len(envs), *spec.observation_shape)
        return _join([read_array(raw, shape, STORED[spec.observation_dtype], "the observations")], spec, envs)
    parts = spec.parts or spec.sections
    if isinstance(raw, np.ndarray) and raw.dtype == object:
        rows = list(zip(raw, envs.tolist(), strict=True))
        found = [
            np.stack([_read_part(row, part, (), f" of environment {place}") for row, place in rows]) for part in parts
        ]
    else:
        found = [_read_part(raw, part, (len(envs),), "s") for part in parts]
    return _join(found, spec, envs)


def _read_part(observation: Any, part: Part, lead: tuple[int, ...], whose: str) -> np.ndarray:
    """A part of an observation, or of several with a leading axis."""
    given = look_up(observation, part.path, whose) if part.path else observation
    dtype = np.dtype(np.int64) if part.sizes else STORED[part.dtype]
    return read_array(given, (*lead, *part.shape), dtype, f"the observation{whose}{_at(part.path)}")


class Bounds(NamedTuple):
    """Where the numbers of an observation lie, as it is stored, flat."""

    low: Float[np.ndarray, " values"]
    high: Float[np.ndarray, " values"]


def find_bounds(spec: EnvSpec) -> Bounds | None:
    """Where observations lie by their space, with room for rounding; None where that is not known, and for bytes."""
    if spec.observation_dtype != "float32" or spec.id in USUAL_BOUNDS:
        return None
    ends = [[], []]
    for part in spec.sections:
        known = part.low is not None and part.high is not None
        low, high = (np.array(part.low), np.array(part.high)) if known else (np.array([-np.inf]), np.array([np.inf]))
        room = 1e-4 * (high - low)
        for end, values in zip(ends, (low - room, high + room), strict=True):
            end.append(np.broadcast_to(values, part.num_components))
    low, high = map(np.concatenate, ends)
    return Bounds(low, high) if np.isfinite(low).any() else None


def find_outlier(observation: Float[np.ndarray, "envs ..."], bounds: Bounds) -> str | None:
    """What to say of a number that lies outside of the bounds, if there is one."""
    flat = observation.reshape(len(observation), -1)
    outside = (flat < bounds.low) | (flat > bounds.high)
    if not outside.any():
        return None
    place, index = np.argwhere(outside)[0].tolist()
    return (
        f"the observation of environment {place} is {flat[place, index]} at index {index}, outside of its space, from "
        f"{bounds.low[index]:.6g} to {bounds.high[index]:.6g}: make observation_space as wide as observations are"
    )


def encode(observation: Any, spec: EnvSpec) -> tuple[np.ndarray, bool]:
    """Observations [batch, ...] as the spec promises them, and whether there was but one.

    Args:
        observation: One of the environment's own, or several: then every part of it has a leading axis. One that is
            stored as the spec says is taken as well, but whole numbers are always the environment's own.
        spec: Of the environment.

    Raises:
        ValueError: It is none of these; what was expected is said.
    """
    if not spec.parts or _is_stored(observation, spec):
        given, shape = np.asarray(observation), spec.observation_shape
        if given.shape != shape and given.shape[1:] != shape:
            raise ValueError(
                f"{spec.id} has observations of shape {shape}: expected that, or several of them along a first "
                f"axis; got shape {given.shape}"
            )
        single = given.shape == shape
        batch = (given[None] if single else given).astype(spec.observation_dtype)
        if not np.isfinite(batch).all():
            raise ValueError("the observation holds numbers that are not finite")
        return batch, single
    given = [np.asarray(look_up(observation, part.path)) for part in spec.parts]
    single = given[0].shape == spec.parts[0].shape
    lead = () if single else given[0].shape[:1]
    for part, array in zip(spec.parts, given, strict=True):
        if array.shape != (*lead, *part.shape):
            name = "".join(f"[{key!r}]" for key in part.path) or "its observations"
            raise ValueError(
                f"{spec.id} has the shape {part.shape} at {name}: expected that everywhere, or everywhere the same "
                f"number of them along a first axis; got shape {array.shape}"
            )
    return _join([array[None] for array in given] if single else given, spec), single


def _is_stored(observation: Any, spec: EnvSpec) -> bool:
    """Whether an observation that may have parts comes as an array in which they are joined."""
    part = spec.parts[0]
    if part.path:
        return not isinstance(observation, Mapping | tuple | list)
    given = np.asarray(observation)
    return given.dtype.kind not in "iu" or part.shape not in (given.shape, given.shape[1:])


def look_up(observation: Any, path: tuple[Any, ...], whose: str = "") -> Any:
    """What the keys and places of a path lead to."""
    for place, key in enumerate(path):
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            name = "".join(f"[{each!r}]" for each in path[: place + 1])
            raise InterfaceError(f"the observation{whose} has no part {name}: {observation!r}") from error
    return observation


def _join(
    found: list[np.ndarray], spec: EnvSpec, envs: Int[np.ndarray, " envs"] | None = None
) -> Shaped[np.ndarray, "envs ..."]:
    """The parts [envs, ...] of observations in one array."""
    if not spec.parts:
        return _read_array(found[0], spec.observation_dtype, spec.id, envs)
    stored = [
        _read_numbers(array, part, spec.id, envs)
        if part.sizes
        else _read_array(array, part.dtype, spec.id, envs, part.path)
        for array, part in zip(found, spec.parts, strict=True)
    ]
    if len(stored) == 1:
        return stored[0]
    flat = [np.ascontiguousarray(array.reshape(len(array), -1)) for array in stored]
    of_bytes = spec.observation_dtype == "uint8"
    return np.concatenate([array.view(np.uint8) if of_bytes else _float32(array) for array in flat], axis=1)


def _read_numbers(
    raw: np.ndarray, part: Part, env_id: str, envs: Int[np.ndarray, " envs"] | None
) -> Float[np.ndarray, "envs values"]:
    """The one-hot vectors of numbers [envs, ...], one behind the other."""
    starts, sizes, offsets = _tabulate(part.starts, part.sizes)
    raw = raw.reshape(len(raw), -1)
    values = raw.astype(np.int64, copy=False) - starts
    wrong = (values < 0) | (values >= sizes)
    if np.count_nonzero(wrong):
        place, index = np.argwhere(wrong)[0].tolist()
        low = part.starts[index]
        raise InterfaceError(
            f"the observation of environment {_name(place, envs)} ({env_id}) holds {raw[place, index]}{_at(part.path)}"
            f"; by its space it lies between {low} and {low + part.sizes[index] - 1}"
        )
    one_hot = np.zeros((len(raw), sum(part.sizes)), np.float32)
    one_hot[np.arange(len(raw))[:, None], values + offsets] = 1.0
    return one_hot


@lru_cache(maxsize=64)
def _tabulate(starts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where numbers start, how many values each has, and where the one-hot vector of each begins."""
    return np.array(starts), np.array(sizes), np.cumsum([0, *sizes[:-1]])


def _read_array(
    raw: np.ndarray, dtype: str, env_id: str, envs: Int[np.ndarray, " envs"] | None, path: tuple[Any, ...] = ()
) -> Shaped[np.ndarray, "envs ..."]:
    """A copy of an array [envs, ...] in the dtype in which it is stored."""
    if dtype != "float32":
        return np.array(raw, dtype)
    small = _float32(raw)
    if not _all_finite(small):
        place, *index = np.argwhere(~np.isfinite(small))[0].tolist()
        raise NonFiniteError(
            f"the observation of environment {_name(place, envs)} ({env_id}) is {raw[(place, *index)]} "
            f"at index {tuple(index)}{_at(path)}, not finite in float32"
        )
    return small


def _name(place: int, envs: Int[np.ndarray, " envs"] | None) -> int:
    return place if envs is None else int(envs[place])


def _at(path: tuple[Any, ...]) -> str:
    return f" of {''.join(f'[{key!r}]' for key in path)}" if path else ""


def read_masks(
    given: Any, told: Bool[np.ndarray, " envs"], exempt: Bool[np.ndarray, " envs"], spec: EnvSpec
) -> Bool[np.ndarray, "envs actions"]:
    """The masks of all environments that told theirs; where a row is exempt, all is allowed if nothing is."""
    mask = np.zeros((len(told), spec.num_actions), np.bool_)
    for place in np.flatnonzero(told).tolist():
        what = f"the action mask of environment {place}"
        mask[place] = read_array(given[place], (spec.num_actions,), STORED["bool"], what)
    empty = ~mask.any(1)
    if (empty & ~exempt).any():
        place = int(np.flatnonzero(empty & ~exempt)[0])
        raise InterfaceError(
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
