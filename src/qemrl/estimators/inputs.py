"""What callers hand in, checked and brought into one form.

Shapes are checked always. Numbers are checked when they can be read: not inside a trace, and not when that
would mean waiting for an accelerator.
"""

import contextlib
import math
import warnings
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.estimators import backend
from qemrl.estimators.backend import Array

MOST = 2**31 - 1
"""How many quantiles there can be."""


class Levels(NamedTuple):
    """Levels, and the probability that each stands for if that is not the same for all.

    Where they are `fixed`, one set (n,) that can be read, both are NumPy float64.
    """

    levels: Array
    probs: Array | None
    fixed: bool
    rising: bool = False
    """Whether they are known to be in increasing order."""
    variance_inputs: Any = None
    """What V is estimated from, where it is."""

    @property
    def key(self) -> tuple[bytes, bytes | None]:
        """What weights for fixed levels are kept by."""
        return self.levels.tobytes(), None if self.probs is None else self.probs.tobytes()


def read_sampled_levels(levels: Any, probs: Any, order: int) -> Levels:
    """Levels whose shapes are checked, and whose numbers are not."""
    levels = backend.as_array(levels, "levels")
    count = levels.shape[-1]
    if order > count:
        raise ValueError(f"an expansion of order {order} needs at least {order} levels, got {count}")
    if probs is not None:
        probs = backend.as_array(probs, "probs")
        if tuple(probs.shape) != tuple(levels.shape):
            raise ValueError(f"probs of shape {tuple(probs.shape)} for levels of shape {tuple(levels.shape)}")
    return Levels(levels, probs, fixed=False)


def read_levels(levels: Any, probs: Any, order: int, model: Array | None = None) -> Levels:
    """Checked levels; those that are not fixed are in the library, dtype and device of `model`."""
    sampled = read_sampled_levels(levels, probs, order)
    levels, probs = sampled.levels, sampled.probs
    if levels.ndim == 1 and _is_constant(levels) and (probs is None or _is_constant(probs)):
        return _read_fixed(backend.read(levels).tobytes(), None if probs is None else backend.read(probs).tobytes())
    _require_levels(levels)
    if probs is not None:
        _require_probs(probs)
    if levels.ndim == 1 and backend.is_torch(levels) and levels.device.type != "cpu":
        warnings.warn(
            f"the levels are on {levels.device}, where they cannot be read: each call solves for their weights. Give "
            "them as NumPy, or use qemrl.torch.QEM",
            stacklevel=4,
        )
    model = backend.promote(levels) if model is None else model
    probs = None if probs is None else backend.like(probs, model, "probs")
    return Levels(backend.like(levels, model, "levels"), probs, fixed=False)


def check_levels(levels: Any) -> Array:
    """Levels, at least one, in [0, 1] where they can be read."""
    levels = backend.as_array(levels, "levels")
    if levels.shape[-1] < 1:
        raise ValueError(f"there must be at least one level, got the shape {tuple(levels.shape)}")
    _require_levels(levels)
    return levels


def read_numbers(given: Any, name: str) -> Float[np.ndarray, "..."]:
    """Finite numbers of any library that can be read, in NumPy float64."""
    array = backend.as_array(given, name)
    if not backend.is_on_host(array):
        raise ValueError(f"{name} must be numbers that can be read here, got a {type(array).__name__}")
    _require(array, name, "must be finite", np.isfinite)
    return backend.read(array)


def read_inner_levels(given: Any) -> Float[np.ndarray, "*batch n"]:
    """Levels between 0 and 1, where quantiles and their slopes are finite, in NumPy float64."""
    levels = read_numbers(given, "levels")
    if levels.shape[-1] < 1:
        raise ValueError(f"there must be at least one level, got the shape {levels.shape}")
    _require(levels, "levels", "must lie between 0 and 1", lambda x: (x > 0) & (x < 1))
    return levels


def require_number(value: Any, name: str) -> float:
    """A finite number, and no array or text; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    number = math.inf
    with contextlib.suppress(OverflowError):  # whole numbers can be larger than floating-point ones
        number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value}")
    return number


def require_count(value: Any, name: str) -> int:
    """A whole number from 1 to what an array can be long; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    count = int(value)
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    if count > MOST:
        raise ValueError(f"{name} must be at most {MOST}, got {count}")
    return count


def require_callable(value: Any, name: str, what: str) -> None:
    """Raise ValueError unless a value can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be {what}, got {value!r}")


def _is_constant(array: Array) -> bool:
    return backend.is_on_host(array) and not backend.wants_gradient(array)


@lru_cache(maxsize=256)
def _read_fixed(levels: bytes, probs: bytes | None) -> Levels:
    """One set of levels that can be read, which is checked once."""
    known = Levels(np.frombuffer(levels), None if probs is None else np.frombuffer(probs), fixed=True)
    _require_levels(known.levels)
    if known.probs is not None:
        _require_probs(known.probs)
    return known


def _require_levels(levels: Array) -> None:
    _require(levels, "levels", "must lie in [0, 1]", lambda x: (x >= 0) & (x <= 1))


def _require_probs(probs: Array) -> None:
    _require(probs, "probs", "must be finite and positive", lambda x: np.isfinite(x) & (x > 0))


class Sample(NamedTuple):
    """Quantiles, at least float32, with their levels."""

    values: Array
    known: Levels
    dtype: Any

    def finish(self, result: Array) -> Array:
        """`result` in the dtype that the values were given in."""
        return backend.in_dtype(result, self.dtype)


def read_sample(values: Any, levels: Any, probs: Any, order: int) -> Sample:
    """Checked values and levels."""
    given = backend.as_array(values, "values")
    values = backend.promote(given)
    levels = backend.as_array(levels, "levels")
    have, want = tuple(levels.shape), tuple(values.shape)
    if have[-1] != want[-1]:
        raise ValueError(f"{want[-1]} values for {have[-1]} levels (shapes {want} and {have})")
    if len(have) != 1 and (len(have) != len(want) or any(h not in (1, w) for h, w in zip(have, want, strict=True))):
        raise ValueError(
            f"levels of shape {have} do not fit values of shape {want}: give one set of shape {want[-1:]}, or the "
            "axes of the values, with size 1 where levels are shared"
        )
    _require(values, "values", "must be finite", np.isfinite)
    return Sample(values, read_levels(levels, probs, order, values), given.dtype)


def _require(array: Array, name: str, rule: str, holds: Any) -> None:
    if not backend.is_on_host(array):
        return
    numbers = backend.view(array)
    good = holds(numbers)
    if not good.all():
        where = [int(i) for i in np.argwhere(~good)[0]]
        index = where[0] if len(where) == 1 else tuple(where)
        raise ValueError(f"{name} {rule}, got {numbers[tuple(where)]} at index {index}")
