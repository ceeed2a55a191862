"""What to wrap around an environment whose spaces agents cannot take, in three lines of code that work."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

MOST_COMBINATIONS = 4096
"""How many combinations of actions are numbered; an agent learns a value of each."""

PADDED = 64
"""How many numbers are kept of something that has any number of them."""

_OPEN = 2.0**31  # integers have bounds, where there are none those of their dtype


def advise_on_observations(space: spaces.Space, path: Sequence[Any]) -> str:
    """How to change the part of the observations that `path` leads to into an array."""
    part, names = space, "env.observation_space"
    for key in path:
        part, names = part[key], f"{names}[{key!r}]"  # type: ignore[index]
    if part.is_np_flattenable:
        about = "write it as numbers"
        read, array = f"spaces.flatten({names}, part)", f"spaces.flatten_space({names})"
    else:
        about = f"keep {PADDED} numbers of it"
        if isinstance(part, spaces.Graph):
            numbers = "np.ravel(part.nodes)"
        elif isinstance(part, spaces.Sequence) and part.feature_space.is_np_flattenable:
            numbers = f"np.concatenate([[], *(spaces.flatten({names}.feature_space, each) for each in part)])"
        else:
            numbers = "np.ravel(part)"
        read = f"np.pad(np.float32({numbers}), (0, {PADDED}))[:{PADDED}]"
        array = f"spaces.Box(-np.inf, np.inf, ({PADDED},))"
    lines = (
        "import numpy as np; from gymnasium import spaces, wrappers",
        f"def read(part, space=env.observation_space): return {read.replace('env.observation_space', 'space')}",
        "env = wrappers.TransformObservation(env, lambda observation: "
        f"{_replace('observation', space, path, 'read({})')}, "
        f"{_replace_space('env.observation_space', space, path, array)})",
    )
    return _wrap(about, lines)


def _replace(value: str, space: spaces.Space, path: Sequence[Any], change: str) -> str:
    """Code for an observation in which one part is changed."""
    if not path:
        return change.format(value)
    key, *rest = path
    inner = _replace(f"{value}[{key!r}]", space[key], rest, change)  # type: ignore[index]
    if isinstance(space, spaces.Dict):
        return f"{{**{value}, {key!r}: {inner}}}"
    return f"(*{value}[:{key}], {inner}, *{value}[{key + 1}:])"


def _replace_space(value: str, space: spaces.Space, path: Sequence[Any], array: str) -> str:
    """Code for the space of such observations."""
    if not path:
        return array
    key, *rest = path
    inner = _replace_space(f"{value}[{key!r}]", space[key], rest, array)  # type: ignore[index]
    if isinstance(space, spaces.Dict):
        return f"spaces.Dict({{**{value}, {key!r}: {inner}}})"
    return f"spaces.Tuple((*{value}.spaces[:{key}], {inner}, *{value}.spaces[{key + 1}:]))"


def advise_on_actions(space: spaces.Space) -> str:
    """How to change these actions into discrete ones, or into bounded continuous ones."""
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return _advise_on_open_box(space)
    if isinstance(space, spaces.MultiDiscrete):
        return _advise_on_numbers(space, space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return _advise_on_numbers(space, np.full(space.shape, 2), np.zeros(space.shape, np.int64))
    if isinstance(space, spaces.Box) and (np.abs([space.low, space.high]) < _OPEN).all():
        low = space.low.astype(np.int64)
        return _advise_on_numbers(space, space.high.astype(np.int64) - low + 1, low)
    lines = (
        "from gymnasium import spaces, wrappers",
        "choices = [env.action_space.sample() for _ in range(10)]  # those of use instead",
        "env = wrappers.TransformAction(env, lambda action: choices[action], spaces.Discrete(len(choices)))",
    )
    return _wrap("list the actions to choose from", lines)


def _advise_on_numbers(space: spaces.Space, sizes: np.ndarray, starts: np.ndarray) -> str:
    """Number all combinations, or choose each number on a continuous scale if there are too many."""
    flat, shape, dtype = tuple(sizes.reshape(-1).tolist()), sizes.shape, np.dtype(space.dtype).name
    count = math.prod(flat)
    shift = f" + np.array({starts.tolist()}, np.{dtype})" if starts.any() else ""
    if count <= MOST_COMBINATIONS:
        about = f"number the {count} combinations"
        numbers = f"np.array(np.unravel_index(action, {flat}), np.{dtype})"
        numbers = numbers if len(shape) == 1 else f"{numbers}.reshape({shape})"
        target = f"spaces.Discrete({count})"
    else:
        about = f"there are {count:.1e} combinations, too many to number: let an actor-critic choose on a scale"
        few = f"{flat[0]}" if len(set(flat)) == 1 else f"np.array({sizes.tolist()})"
        numbers = f"np.minimum({few} * (action + 1) / 2, {few} - 1).astype(np.{dtype})"
        target = f"spaces.Box(-1.0, 1.0, {shape})"
    lines = (
        "import numpy as np; from gymnasium import spaces, wrappers",
        f"def choose(action): return {numbers}{shift}",
        f"env = wrappers.TransformAction(env, choose, {target})",
    )
    return _wrap(about, lines)


def _advise_on_open_box(space: spaces.Box) -> str:
    """Put bounds of one unit where there are none."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    below, above = np.abs(low) < _OPEN, np.abs(high) < _OPEN
    low, high = np.where(below, low, np.where(above, high - 2, -1)), np.where(above, high, np.where(below, low + 2, 1))
    same = space.low.size and len(np.unique(low)) == len(np.unique(high)) == 1
    kind = f"np.{space.dtype.name}"
    arrays = f"np.array({low.tolist()}, {kind}), np.array({high.tolist()}, {kind})"
    ends = f"{low.flat[0]}, {high.flat[0]}, {space.shape}" if same else arrays
    lines = (
        "import numpy as np; from gymnasium import spaces, wrappers",
        f"bounded = spaces.Box({ends}, dtype={kind})  # as wide as the task needs",
        "env = wrappers.TransformAction(env, lambda action: action, bounded)",
    )
    return _wrap("say between which actions to choose", lines)


def _wrap(about: str, lines: Sequence[str]) -> str:
    return f"Wrap it so that its spaces fit; {about}:\n" + "\n".join(f"    {line}" for line in lines)
