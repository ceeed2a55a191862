"""Risk measures: numbers that an agent may maximize in the place of the mean of its returns.

`CVaR`, `Wang` and `CPW` are distortions. Dabney et al. (2018, IQN) draw a level u uniformly and read the quantile
at β(u) in its place; the risk value is E[q(β(u))] = ∫ q dg with g = β⁻¹. Nothing is drawn here: a value whose cell is
[left, right] has the weight g(right) − g(left). Such weights are exact for the step function through the values,
never negative, and add up to one.

Cells lie side by side, in the order of the levels, and fill [0, 1]. With `probs` a cell is as wide as its
probability, so that levels of `cumulative_levels` stand in the middle of theirs. Without, cells end halfway between
neighboring levels, so that those of midpoints are N equal parts. Where levels coincide, cells follow the order in
which the values are given.

Shapes, array libraries, dtypes and checks are those of `EmpiricalMean.mean`.
"""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy import special

from qemrl.estimators import backend
from qemrl.estimators.backend import Array, namespace
from qemrl.estimators.estimator import Content, EmpiricalMean
from qemrl.estimators.inputs import read_levels, read_sample, require_number

SMALLEST_EXPONENT = 0.3
"""Of CPW. Below about 0.2792 its β is not increasing, and just above that hardly so."""

Boundaries = Float[Array, "*batch ends"]
"""Numbers that belong between neighboring values: as many as values, less one."""


class _Cells(NamedTuple):
    """Sorted levels, and where the cell of each but the last ends."""

    levels: Float[Array, "*batch n"]
    ends: Boundaries


@runtime_checkable
class _LinearMeasure(Protocol):
    """A weighted sum of the values, by the share of the weight below each boundary between cells."""

    requires: ClassVar[Content] = "distribution"
    min_quantiles = 1
    needs = ()

    def weights(self, levels: Any, probs: Any = None) -> Float[Array, "*batch 1 n"]:
        """The weight of each value in the sum that is `mean`."""
        model = backend.as_array(levels, "levels")
        known = read_levels(levels, probs, order=1)
        if known.fixed:
            return backend.like(_fixed_weights(self, *known.key)[None].copy(), model, "levels")
        return backend.like(weigh_cells(self, known.levels, known.probs)[..., None, :], model, "levels")

    def mean(self, values: Any, levels: Any, probs: Any = None) -> Float[Array, "*batch"]:
        """The number to maximize in the place of Q."""
        sample = read_sample(values, levels, probs, order=1)
        values, known, _ = sample
        if known.fixed:
            weights = backend.cached_constant(values, _fixed_weights, self, *known.key)
            return sample.finish(backend.dot(values, weights))
        weights = weigh_cells(self, known.levels, known.probs)
        # Seen from one of the values, because weights in single precision add up to one only to rounding.
        origin = values[..., :1]
        distances = values - origin
        sums = backend.dot(distances, weights) if weights.ndim == 1 else backend.total(weights * distances)
        return sample.finish(origin[..., 0] + sums)

    def _share_below(self, cells: _Cells) -> Boundaries:
        """The weight of all values below the end of each cell; it increases from 0 to 1."""
        ...


@dataclass(frozen=True)
class CVaR(_LinearMeasure):
    """The conditional value at risk: the mean of the worst `level` share of the returns.

    β(u) = level · u and g(τ) = min(τ / level, 1).
    """

    level: float = 0.25
    """The share that counts, in (0, 1]. Smaller is more risk-averse; 1 is the mean."""

    def __post_init__(self) -> None:
        _require_level(self.level)

    def _share_below(self, cells: _Cells) -> Boundaries:
        return namespace(cells.ends).clip(cells.ends / float(self.level), 0.0, 1.0)


@dataclass(frozen=True)
class VaR(_LinearMeasure):
    """The value at risk: the quantile at `level`.

    Between levels it is interpolated linearly, beyond the first and the last it stays what it is there. Values that
    cross are not sorted: the quantile at 0.3 comes from the values at the levels on either side of 0.3. `probs` are
    checked and have no influence.
    """

    level: float = 0.25
    """Where the quantile is read, in (0, 1]. Smaller is more risk-averse."""

    def __post_init__(self) -> None:
        _require_level(self.level)

    def _share_below(self, cells: _Cells) -> Boundaries:
        levels = cells.levels
        xp = namespace(levels)
        above = levels[..., 1:] - float(self.level)
        width = levels[..., 1:] - levels[..., :-1]
        apart = width > 0
        part = xp.clip(above / xp.where(apart, width, xp.ones_like(width)), 0.0, 1.0)
        return xp.where(apart, part, backend.in_dtype(above > 0, part.dtype))


@dataclass(frozen=True)
class Wang(_LinearMeasure):
    """Wang's transform: β(u) = Φ(Φ⁻¹(u) + shift) and g(τ) = Φ(Φ⁻¹(τ) − shift), with IQN's sign.

    On a normal distribution it is the mean plus `shift` standard deviations. Unlike with `CVaR`, every part of the
    distribution counts.
    """

    shift: float = -0.75
    """Negative is risk-averse, zero is the mean, positive is risk-seeking."""

    def __post_init__(self) -> None:
        require_number(self.shift, "shift")

    def _share_below(self, cells: _Cells) -> Boundaries:
        scores = backend.ndtri(_inside(cells.ends))
        return _with_limits(_normal_cdf(scores - float(self.shift)), cells.ends)


@dataclass(frozen=True)
class CPW(_LinearMeasure):
    """Cumulative probability weighting as IQN has it: β(u) = u^η / (u^η + (1 − u)^η)^(1/η).

    β is steep at both ends, so levels mapped by it gather in the middle: rare returns, good and bad, count less than
    in the mean. Prospect theory, and DSAC's code, apply the same curve to the distribution function (g in the place
    of β), which makes rare returns count more. The two are opposites; this is the first.
    """

    exponent: float = 0.71
    """η, from 0.3 to 1, which is the mean."""

    def __post_init__(self) -> None:
        if not SMALLEST_EXPONENT <= require_number(self.exponent, "exponent") <= 1:
            raise ValueError(
                f"exponent must be from {SMALLEST_EXPONENT} to 1 (the mean), where the distortion is safely "
                f"increasing, got {self.exponent}"
            )

    def _share_below(self, cells: _Cells) -> Boundaries:
        return _with_limits(_cpw_inverse(_inside(cells.ends), float(self.exponent)), cells.ends)


@dataclass(frozen=True)
class MeanStd:
    """The mean less `penalty` standard deviations, both of the values themselves (`EmpiricalMean.moments`)."""

    penalty: float = 1.0
    """Positive is risk-averse, zero is the mean, negative is risk-seeking."""

    requires: ClassVar[Content] = "distribution"
    min_quantiles = 1
    needs = ()

    def __post_init__(self) -> None:
        require_number(self.penalty, "penalty")

    def mean(self, values: Any, levels: Any, probs: Any = None) -> Float[Array, "*batch"]:
        """The number to maximize in the place of Q; its gradient is finite also where all values are equal."""
        given = backend.as_array(values, "values")
        moments = EmpiricalMean().moments(backend.promote(given), levels, probs)
        xp = namespace(moments.variance)
        spread = moments.variance > 0
        std = xp.sqrt(xp.where(spread, moments.variance, xp.ones_like(moments.variance)))
        std = xp.where(spread, std, xp.zeros_like(std))
        return backend.in_dtype(moments.mean - float(self.penalty) * std, given.dtype)


@lru_cache(maxsize=256)
def _fixed_weights(measure: _LinearMeasure, levels: bytes, probs: bytes | None) -> Float[np.ndarray, " n"]:
    """The weights for levels that are known in advance, computed once."""
    weights = weigh_cells(measure, np.frombuffer(levels), None if probs is None else np.frombuffer(probs))
    weights.flags.writeable = False
    return weights


def weigh_cells(
    measure: _LinearMeasure, levels: Float[Array, "*batch n"], probs: Float[Array, "*batch n"] | None
) -> Float[Array, "*batch n"]:
    """The weight of each value, from the shares below the boundaries between them, in the order of the levels."""
    xp = namespace(levels)
    order = xp.argsort(levels, axis=-1)
    ordered = xp.take_along_axis(levels, order, axis=-1)
    if probs is None:
        ends = 0.5 * (ordered[..., :-1] + ordered[..., 1:])
    else:
        masses = xp.take_along_axis(probs, order, axis=-1)
        sums = xp.cumulative_sum(masses, axis=-1)
        ends = xp.clip(sums[..., :-1] / sums[..., -1:], 0.0, 1.0)
    edge = xp.zeros_like(ordered[..., :1])
    below = xp.concat([edge, measure._share_below(_Cells(ordered, ends)), edge + 1], axis=-1)
    # Shares increase, up to rounding.
    weights = xp.clip(below[..., 1:] - below[..., :-1], 0.0, 1.0)
    return xp.take_along_axis(weights, xp.argsort(order, axis=-1), axis=-1)


def _inside(ends: Boundaries) -> Boundaries:
    """The ends, moved to where Φ⁻¹ and the log-odds are finite."""
    return namespace(ends).clip(ends, 1e-10, 1 - max(1e-10, backend.resolution(ends)))


def _with_limits(shares: Boundaries, ends: Boundaries) -> Boundaries:
    """The shares, 0 at the end 0 and 1 at the end 1, whatever they were where `_inside` put these ends."""
    xp = namespace(ends)
    shares = xp.where(ends <= 0, xp.zeros_like(shares), shares)
    return xp.where(ends >= 1, xp.ones_like(shares), shares)


def _normal_cdf(z: Array) -> Array:
    if backend.is_jax(z):
        return 0.5 * sys.modules["jax"].lax.erfc(-math.sqrt(0.5) * z)
    if backend.is_torch(z):
        return sys.modules["torch"].special.ndtr(z)
    return special.ndtr(z)


def _cpw_inverse(shares: Boundaries, exponent: float) -> Boundaries:
    """β⁻¹ of CPW, by Newton's method on log-odds.

    The log-odds of β(u) are nearly a line in the log-odds x of u: the slope is η at both ends, the intercept 0 at one
    and log η at the other. With p = u^η / (u^η + (1 − u)^η), log β = η log u + log(p / u^η) / η, whose
    derivative in x is (1 − p) − (1 − η)(1 − u); written with log(1 + e⁻ˣ) nothing cancels in either tail.
    """
    xp = namespace(shares)
    target = xp.log(shares) - xp.log1p(-shares)
    x = (target - 0.5 * math.log(exponent)) / exponent
    # Either number of steps agrees with bisection to 3e-15. The smaller the exponent, the more the line is bent.
    for _ in range(4 if exponent >= 0.5 else 7):
        complement, surprise = _logistic(x)
        other, penalty = _logistic(exponent * x)
        log_beta = (1 - exponent) * surprise - penalty / exponent
        rest = -xp.expm1(log_beta)
        slope = (other - (1 - exponent) * complement) / rest
        x = x - (log_beta - xp.log(rest) - target) / slope
    return 1 - _logistic(x)[0]


def _logistic(x: Array) -> tuple[Array, Array]:
    """1 − u and −log u of the probability u with log-odds x, with full relative precision in both tails."""
    xp = namespace(x)
    small = xp.exp(-xp.abs(x))
    zero = xp.zeros_like(x)
    complement = xp.where(x > 0, small, xp.ones_like(x)) / (1 + small)
    return complement, xp.maximum(-x, zero) + xp.log1p(small)


def _require_level(level: float) -> None:
    if not 0 < require_number(level, "level") <= 1:
        raise ValueError(f"level must be above 0 and at most 1, got {level}")
