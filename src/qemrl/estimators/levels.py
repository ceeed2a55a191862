"""Quantile levels: fixed midpoints, and the random levels of implicit quantile networks.

A sampler takes its randomness first, a NumPy generator or a JAX key, and returns levels in that library; the
last axis of `shape` counts levels, the axes before it are independent draws.
"""

import sys
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.estimators.backend import Array, is_jax, namespace
from qemrl.estimators.inputs import MOST, require_count

Shape = int | tuple[int, ...]


class CumulativeLevels(NamedTuple):
    """Sorted levels and the probability that each stands for."""

    levels: Float[Array, "*batch n"]
    probs: Float[Array, "*batch n"]


def midpoints(num_quantiles: int) -> Float[np.ndarray, " n"]:
    """The levels (2i − 1) / 2N of QR-DQN, i = 1 … N, in float64."""
    count = require_count(num_quantiles, "the number of quantiles")
    return (np.arange(count) + 0.5) / count


def uniform_levels(source: Any, shape: Shape, dtype: Any = None) -> Float[Array, "..."]:
    """Independent uniform levels (IQN)."""
    shape = _as_shape(shape)
    if dtype is not None:
        dtype = _as_dtype(dtype)
    if isinstance(source, np.random.Generator):
        return source.random(shape, dtype=np.float64 if dtype is None else dtype.type)
    if not is_jax(source):
        raise ValueError(f"randomness comes from a numpy.random.Generator or a JAX key, got {source!r}")
    jax = sys.modules["jax"]
    return jax.random.uniform(source, shape, dtype=float if dtype is None else dtype)


def stratified_levels(source: Any, shape: Shape, dtype: Any = None) -> Float[Array, "..."]:
    """One uniform level in each of N equal parts of [0, 1], in increasing order."""
    uniform = uniform_levels(source, shape, dtype)
    xp = namespace(uniform)
    count = uniform.shape[-1]
    starts = xp.broadcast_to(xp.arange(count, dtype=uniform.dtype), uniform.shape)
    return (starts + uniform) / count


def antithetic_levels(source: Any, shape: Shape, dtype: Any = None) -> Float[Array, "..."]:
    """N/2 uniform levels followed by their mirror images 1 − τ."""
    *batch, count = _as_shape(shape)
    if count % 2:
        raise ValueError(f"antithetic levels come in pairs; their number must be even, got {count}")
    half = uniform_levels(source, (*batch, count // 2), dtype)
    return namespace(half).concat([half, 1 - half], axis=-1)


def cumulative_levels(source: Any, shape: Shape, dtype: Any = None) -> CumulativeLevels:
    """The levels of DSAC's implicit critic: the middles of N random intervals that fill [0, 1].

    The intervals' widths, proportional to U(0, 1) + 0.1, are the probabilities ("presum" in DSAC's code);
    the plain mean over such levels is Σ probs · values.
    """
    widths = uniform_levels(source, shape, dtype) + 0.1
    xp = namespace(widths)
    probs = widths / xp.sum(widths, axis=-1, keepdims=True)
    ends = xp.cumulative_sum(probs, axis=-1)
    return CumulativeLevels(ends - 0.5 * probs, probs)


def _as_shape(shape: Shape) -> tuple[int, ...]:
    if isinstance(shape, tuple | list) and not shape:
        raise ValueError(f"the number of levels must be at least 1, got the shape {shape}")
    *batch, count = shape if isinstance(shape, tuple | list) else (shape,)
    if any(isinstance(size, bool) or not isinstance(size, Integral) or not 0 <= size <= MOST for size in batch):
        raise ValueError(f"the shape of levels must be a whole number or a tuple of them, got {shape!r}")
    return (*map(int, batch), require_count(count, "the number of levels"))


def _as_dtype(dtype: Any) -> np.dtype:
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(f"the dtype of levels must be a floating-point dtype, got {dtype!r}") from error
