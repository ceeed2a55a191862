"""What callers hand in, checked and brought into one form.

Shapes are checked always. Numbers are checked when they can be read: not inside a trace, and not when that
would mean waiting for an accelerator.
"""

from typing import Any, NamedTuple

import numpy as np

from qemrl.estimators import backend
from qemrl.estimators.backend import Array


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


def read_levels(levels: Any, probs: Any, order: int, model: Array | None = None) -> Levels:
    """Checked levels; those that are not fixed are in the library, dtype and device of `model`."""
    levels = backend.as_array(levels, "levels")
    count = levels.shape[-1]
    if order > count:
        raise ValueError(f"an expansion of order {order} needs at least {order} levels, got {count}")
    _require(levels, "levels", "must lie in [0, 1]", lambda x: (x >= 0) & (x <= 1))
    if probs is not None:
        probs = backend.as_array(probs, "probs")
        if tuple(probs.shape) != tuple(levels.shape):
            raise ValueError(f"probs of shape {tuple(probs.shape)} for levels of shape {tuple(levels.shape)}")
        _require(probs, "probs", "must be finite and positive", lambda x: np.isfinite(x) & (x > 0))
    given = [levels] if probs is None else [levels, probs]
    if levels.ndim == 1 and all(backend.is_on_host(x) and not backend.wants_gradient(x) for x in given):
        return Levels(backend.read(levels), None if probs is None else backend.read(probs), fixed=True)
    model = backend.promote(levels) if model is None else model
    probs = None if probs is None else backend.like(probs, model, "probs")
    return Levels(backend.like(levels, model, "levels"), probs, fixed=False)


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
