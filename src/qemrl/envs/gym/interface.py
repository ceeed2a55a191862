"""What Gymnasium's interface promises, checked where an environment answers.

A wrong answer is an `InterfaceError` that says what came and what was expected. The usual answers (an array of the
right shape and dtype, a float, a bool) are recognized at a glance, because each step is checked.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

PLAIN_NUMBERS = frozenset({float, np.float64, np.float32})
"""The types of rewards that need no further look."""

PLAIN_FLAGS = frozenset({bool, np.bool_})
"""The types of flags that need no further look."""

_STEP = ("observation", "reward", "terminated", "truncated", "info")
_REAL = "biuf"
_BOOL = np.dtype(np.bool_)


class InterfaceError(ValueError):
    """An environment answered with something else than Gymnasium's interface and its own spaces promise."""


def unpack_step(outcome: Any) -> Any:
    """What `step` returned, if it is five things."""
    return outcome if outcome.__class__ is tuple and len(outcome) == 5 else _unpack(outcome, "step", _STEP)


def unpack_reset(outcome: Any) -> Any:
    """What `reset` returned, if it is an observation and an info."""
    return outcome if outcome.__class__ is tuple and len(outcome) == 2 else _unpack(outcome, "reset", _STEP[::4])


def read_info(info: Any) -> Mapping[str, Any]:
    """An info, which must be a dict."""
    if info.__class__ is dict or isinstance(info, Mapping):
        return info
    raise InterfaceError(f"the info must be a dict, got {_describe(info)}")


def read_array(given: Any, shape: tuple[int, ...], dtype: np.dtype, what: str) -> Shaped[np.ndarray, "..."]:
    """An array of this shape, of real numbers: any, or where `dtype` is none of floats, those that it can hold."""
    if given.__class__ is np.ndarray and given.shape == shape and given.dtype == dtype:
        return given
    array = _as_array(given)
    expected = f"an array of shape {shape} and dtype {dtype}" if shape else f"a number of dtype {dtype}"
    if array is None or array.shape != shape or array.dtype.kind not in _REAL:
        raise InterfaceError(f"{what} must be {expected}, got {_describe(given)}")
    if dtype.kind != "f" and not np.can_cast(array.dtype, dtype):
        with np.errstate(invalid="ignore"):
            lost = np.asarray(array.astype(dtype) != array)
        if lost.any():
            value = array[lost].reshape(-1)[0]
            raise InterfaceError(f"{what} must be {expected}, which cannot hold {value} of {_describe(given)}")
    return array


def read_reward(given: Any) -> float:
    """The reward of one environment, a real number."""
    if given.__class__ in PLAIN_NUMBERS:
        return given
    array = _as_array(given)
    if array is None or array.shape != () or array.dtype.kind not in _REAL:
        raise InterfaceError(f"the reward must be a number, got {_describe(given)}")
    return float(array)


def read_flag(given: Any, name: str) -> bool:
    """Whether an episode of one environment is `terminated` or `truncated`; 0 and 1 are taken for truth values."""
    if given.__class__ in PLAIN_FLAGS:
        return bool(given)
    array = _as_array(given)
    if array is None or array.shape != () or array.dtype.kind not in _REAL or array not in (0, 1):
        raise InterfaceError(f"{name} must be True or False, got {_describe(given)}")
    return bool(array)


def read_flags(given: Any, num_envs: int, name: str) -> Bool[np.ndarray, " envs"]:
    """Which episodes of a vector environment are `terminated` or `truncated`, in an array of their own."""
    return np.array(read_array(given, (num_envs,), _BOOL, name), np.bool_)


def _unpack(outcome: Any, method: str, names: tuple[str, ...]) -> Any:
    if isinstance(outcome, tuple | list) and len(outcome) == len(names):
        return outcome
    got = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else _describe(outcome)
    raise InterfaceError(
        f"{method} must return {len(names)} values ({', '.join(names)}), got {got}; "
        "environments of the old package gym are converted by `shimmy`"
    )


def _as_array(given: Any) -> np.ndarray | None:
    """The array that it is, or None if it is none."""
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # ragged lists, tensors that are elsewhere
        return None


def _describe(given: Any) -> str:
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape and dtype is not None:
        return f"{type(given).__name__} of shape {tuple(shape)} and dtype {dtype}"
    return f"{reprlib.repr(given)} ({type(given).__name__})"
