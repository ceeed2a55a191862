"""Models of V: how noisy the quantile at each level is taken to be.

A model is any pure function `levels -> variances`, positive and of the shape of `levels`, in the array library
of `levels`. Only ratios matter: twice the variances give the same estimate. It must be hashable (functions and
frozen dataclasses are), because weights for fixed levels are computed once and cached.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float

from qemrl.estimators.backend import Array, namespace
from qemrl.estimators.inputs import check_levels, require_number

VarianceModel = Callable[[Float[Array, "*batch n"]], Float[Array, "*batch n"]]
"""A pure, hashable function from levels to the error variance of the quantile at each."""


def _require_positive(value: float) -> None:
    if require_number(value, "a variance") <= 0:
        raise ValueError(f"a variance must be positive and finite, got {value}")


@dataclass(frozen=True)
class ConstantVariance:
    """The same variance at every level: ordinary least squares."""

    value: float = 1.0
    """The variance. It has no influence on estimates, only on their predicted variance."""

    def __post_init__(self) -> None:
        _require_positive(self.value)

    def __call__(self, levels: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        levels = check_levels(levels)
        return namespace(levels).full_like(levels, self.value)


@dataclass(frozen=True)
class TailVariance:
    """`value` for levels up to `tail` and from 1 − `tail`, one between them (the remark under Lemma 4.1).

    The paper uses 1.5 on Atari and 1.2 on MuJoCo, with tails of 0.1.
    """

    value: float
    """The variance in both tails."""

    tail: float = 0.1
    """How far each tail reaches into (0, 1)."""

    def __post_init__(self) -> None:
        _require_positive(self.value)
        if not 0 < require_number(self.tail, "tail") <= 0.5:
            raise ValueError(f"a tail reaches from 0 to at most 0.5, got tail={self.tail}")

    def __call__(self, levels: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        levels = check_levels(levels)
        inside = (levels > self.tail) & (levels < 1 - self.tail)
        return _choose(inside, 1.0, self.value, levels)


@dataclass(frozen=True)
class BandVariance:
    """`value` for levels in [`low`, `high`], one elsewhere.

    The paper uses 1.5 on [0.45, 0.55] for FrozenLake.
    """

    value: float
    """The variance inside the band."""

    low: float
    """The lower end of the band."""

    high: float
    """The upper end of the band."""

    def __post_init__(self) -> None:
        _require_positive(self.value)
        if not 0 <= require_number(self.low, "low") < require_number(self.high, "high") <= 1:
            raise ValueError(f"a band needs 0 ≤ low < high ≤ 1, got low={self.low}, high={self.high}")

    def __call__(self, levels: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        levels = check_levels(levels)
        inside = (levels >= self.low) & (levels <= self.high)
        return _choose(inside, self.value, 1.0, levels)


@dataclass(frozen=True)
class SpacingVariance:
    """Smaller for levels that stand for more of [0, 1]: (N · cell)^−power, for levels that were drawn at random.

    The cell of a level reaches halfway to its neighbors, or to the end of [0, 1]. Where levels are crowded, each says
    little that the others do not: with a power of 1 they count as much as their cells, which is the trapezoidal rule,
    with 0 all count the same. Between the two lies what errors of the quantiles themselves suffer least from.
    At midpoints all cells are equal, and so are the variances.
    """

    power: float = 0.5
    """How much the cells count."""

    def __post_init__(self) -> None:
        if require_number(self.power, "power") < 0:
            raise ValueError(f"a larger cell must not count less: power must not be negative, got {self.power}")

    def __call__(self, levels: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        levels = check_levels(levels)
        return (levels.shape[-1] * cells(levels)) ** -self.power


def cells(levels: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """How much of [0, 1] is nearest to each level; they add up to one where no two levels are equal.

    By comparing all pairs: for the few dozen levels that agents draw, this is faster than sorting.
    """
    levels = check_levels(levels)
    xp = namespace(levels)
    own, other = levels[..., :, None], levels[..., None, :]
    # The mirror images beyond 0 and 1 are farther away than any level.
    above = xp.min(xp.where(other > own, other, 2 - own), axis=-1)
    below = xp.max(xp.where(other < own, other, -own), axis=-1)
    return (above - below) / 2


def _choose(condition: Array, yes: float, no: float, levels: Array) -> Array:
    xp = namespace(levels)
    return xp.where(condition, xp.full_like(levels, yes), xp.full_like(levels, no))
