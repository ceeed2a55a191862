"""Models of V that use more than the levels: time, visit counts, or other estimates of the same quantiles.

A model of `variance` is fixed: it depends on the levels alone. A model of this module says in `needs` which fields of
`VarianceInputs` it uses, and gives a V for each set of quantiles: a variance for each level, or with `full` the
whole covariance, for generalized least squares. Only ratios matter, here as there.

V must not be estimated from the quantiles whose mean is sought. A value that chance moved up looks precise to its
neighbors below and noisy to those above, and the fit then follows chance: on two modes the variance of the estimate
doubles. Hence an EMA network, a twin, other heads.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float

from qemrl.estimators import backend
from qemrl.estimators.backend import Array, namespace
from qemrl.estimators.inputs import check_levels, require_callable, require_count, require_number
from qemrl.estimators.variance import TailVariance, VarianceModel

FLOOR = 1e-6
"""No variance is below this share of their mean."""

Variances = Float[Array, "*batch n"] | Float[Array, "*batch n n"]


class VarianceInputs(NamedTuple):
    """What is known of the errors of quantiles (*batch, n); what is not known is None."""

    step: Array | None = None
    """How many steps of learning there were."""

    visits: Float[Array, "*batch"] | None = None
    """How often each distribution was learned from."""

    ema: Float[Array, "*batch n"] | None = None
    """The same quantiles from an EMA of the network that learns them."""

    twin: Float[Array, "*batch n"] | None = None
    """The same quantiles from another learner."""

    heads: Float[Array, "*batch heads n"] | None = None
    """The same quantiles from several learners."""

    innovations: Variances | None = None
    """Running means of the squares, or of all products, of what single updates move the quantiles by."""

    curvature: Float[Array, "*batch n"] | None = None
    """How fast the mean of that movement falls as a quantile rises: the density at it, for quantile regression."""


@runtime_checkable
class EstimatedVariance(Protocol):
    """A model of V that is estimated from `VarianceInputs`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of `VarianceInputs` that it uses."""
        ...

    @property
    def full(self) -> bool:
        """Whether it gives covariances (*batch, n, n) and not variances (*batch, n)."""
        ...

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Variances:
        """V at the levels, in their array library; `rising` says that they are known to be in increasing order."""
        ...


def _require_share(shrinkage: float) -> None:
    if not 0 <= require_number(shrinkage, "shrinkage") <= 1:
        raise ValueError(f"shrinkage must be between 0 and 1, got {shrinkage}")


def _require_power(power: float) -> None:
    if require_number(power, "power") <= 0:
        raise ValueError(f"power must be positive and finite, got {power}")


@dataclass(frozen=True)
class DecayingVariance:
    """V that becomes the identity with time: 1 + (v − 1) · (1 + step / over_steps)^−power (the paper's first idea)."""

    initial: VarianceModel = field(default_factory=lambda: TailVariance(1.5))
    """v, at the first step."""

    over_steps: int = 100_000
    """How many steps it takes to halve what differs from one, with a power of 1."""

    power: float = 1.0
    """How fast it decays in the end."""

    def __post_init__(self) -> None:
        _require_power(self.power)
        require_count(self.over_steps, "over_steps")
        require_callable(self.initial, "initial", "a function from levels to variances")

    needs = ("step",)
    full = False

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Float[Array, "*shared n"]:
        """The variances at this time."""
        del rising
        levels = check_levels(levels)
        step = backend.scalar(_take(variance_inputs, "step", levels, axes=0), levels)
        return 1 + (self.initial(levels) - 1) * (1 + step / self.over_steps) ** -self.power


@dataclass(frozen=True)
class CountedVariance:
    """V that becomes the identity with experience: 1 + (v − 1) · (visits + 1)^−power (the paper's second idea)."""

    initial: VarianceModel = field(default_factory=lambda: TailVariance(1.5))
    """v, of what was never learned from."""

    power: float = 0.5
    """How fast it decays: errors of the mean of n returns fall with a power of one half."""

    def __post_init__(self) -> None:
        _require_power(self.power)
        require_callable(self.initial, "initial", "a function from levels to variances")

    needs = ("visits",)
    full = False

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Float[Array, "*batch n"]:
        del rising
        levels = check_levels(levels)
        visits = _take(variance_inputs, "visits", levels, axes=0)[..., None]
        levels, visits = _align(levels, visits)
        return 1 + (self.initial(levels) - 1) * (visits + 1) ** -self.power


@dataclass(frozen=True)
class SparsityVariance:
    """V from the slope of the quantile function: τ(1 − τ) · q′(τ)^power.

    Quantiles of a sample, or fitted to a replay, have the covariance (min(s, t) − st) q′(s) q′(t), up to a factor:
    power 2. Quantile regression with a constant step has (min(s, t) − st) / (1/q′(s) + 1/q′(t)): power 1. The slope is
    that of an EMA network, or of a twin; where quantiles cross, its size counts.
    """

    power: Literal[1, 2] = 2
    """2 for quantiles that are fitted to many returns at once, 1 for a constant step."""

    source: Literal["ema", "twin"] = "ema"
    """Whose slope is taken."""

    reach: int = 1
    """The slope at a level is that between its neighbors this many places below and above."""

    shrinkage: float = 0.2
    """How much of V is the identity, the rest having a mean variance of one."""

    full: bool = False
    """Whether errors at different levels are correlated, as they are, or taken to be independent."""

    def __post_init__(self) -> None:
        _require_share(self.shrinkage)
        if require_number(self.power, "power") not in (1, 2):
            raise ValueError(f"power must be 1 (constant step) or 2 (sample quantiles), got {self.power!r}")
        if not isinstance(self.source, str) or self.source not in ("ema", "twin"):
            raise ValueError(f"source must be 'ema' or 'twin', got {self.source!r}")
        require_count(self.reach, "reach")

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.source,)

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Variances:
        levels = check_levels(levels)
        levels, values = _align(levels, _take(variance_inputs, self.source, levels))
        slopes = slope(values, levels, self.reach, rising)
        if not self.full:
            return shrink(levels * (1 - levels) * slopes**self.power, self.shrinkage)
        xp = namespace(levels)
        rows, cols = levels[..., :, None], levels[..., None, :]
        bridge = xp.minimum(rows, cols) - rows * cols
        one, other = slopes[..., :, None], slopes[..., None, :]
        if self.power == 2:
            return shrink_matrix(bridge * one * other, self.shrinkage)
        both = one + other
        # 1 / (1/a + 1/b) = ab / (a + b), which is zero and not undefined where both are.
        return shrink_matrix(bridge * one * other / xp.where(both > 0, both, xp.ones_like(both)), self.shrinkage)


@dataclass(frozen=True)
class HeadsVariance:
    """V from how much the heads of an ensemble disagree: their sample variances, or covariances."""

    shrinkage: float = 0.2
    """How much of V is the identity, the rest having a mean variance of one. Few heads need more of it."""

    full: bool = False
    """Whether errors at different levels are correlated, as they are, or taken to be independent."""

    def __post_init__(self) -> None:
        _require_share(self.shrinkage)

    needs = ("heads",)

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Variances:
        del rising
        levels = check_levels(levels)
        heads = _take(variance_inputs, "heads", levels, axes=2)
        if heads.shape[-2] < 2:
            raise ValueError(f"heads disagree if there are at least two, got {heads.shape[-2]}")
        xp = namespace(heads)
        apart = heads - xp.mean(heads, axis=-2, keepdims=True)
        if self.full:
            return shrink_matrix(backend.dot(xp.matrix_transpose(apart), apart), self.shrinkage)
        return shrink(xp.sum(apart * apart, axis=-2), self.shrinkage)


@dataclass(frozen=True)
class ResidualVariance:
    """V from running moments of TD errors, without a density: S_ij / (h_i + h_j).

    Stochastic gradient descent moves quantile i by a step times u_i. Around its limit the errors Σ solve
    H Σ + Σ H = step · S, S being the mean of u u′ and H = diag(h) the curvature of the loss.
    """

    shrinkage: float = 0.2
    """How much of V is the identity, the rest having a mean variance of one."""

    full: bool = False
    """Whether errors at different levels are correlated, as they are, or taken to be independent."""

    def __post_init__(self) -> None:
        _require_share(self.shrinkage)

    needs = ("innovations", "curvature")

    def estimate(
        self, levels: Float[Array, "*shared n"], variance_inputs: VarianceInputs, rising: bool = False
    ) -> Variances:
        """V for each distribution, or one for all."""
        del rising
        levels = check_levels(levels)
        innovations = _take(variance_inputs, "innovations", levels, axes=1 + self.full)
        levels, curvature = _align(levels, _take(variance_inputs, "curvature", levels))
        innovations = backend.add_axes(innovations, curvature.ndim + self.full)
        xp = namespace(levels)
        mean = xp.mean(curvature, axis=-1, keepdims=True)
        curvature = xp.maximum(curvature, FLOOR * xp.where(mean > 0, mean, xp.ones_like(mean)))
        if self.full:
            return shrink_matrix(innovations / (curvature[..., :, None] + curvature[..., None, :]), self.shrinkage)
        return shrink(innovations / curvature, self.shrinkage)


def _take(variance_inputs: VarianceInputs, name: str, levels: Array, axes: int = 1) -> Array:
    """A field of what V is estimated from, in the library of the levels; its last axes count them, if it has any."""
    given = require_variance_inputs(variance_inputs, (name,))[VarianceInputs._fields.index(name)]
    array = backend.like(backend.as_array(given, name, axes), levels, name)
    if axes and any(size != levels.shape[-1] for size in array.shape[-1:]):
        raise ValueError(f"{name} of shape {tuple(array.shape)} for {levels.shape[-1]} levels")
    return array


def require_variance_inputs(given: Any, needs: tuple[str, ...], model: str = "the model") -> VarianceInputs:
    """What V is estimated from, if all that is needed is there; ValueError otherwise."""
    if given is not None and not isinstance(given, VarianceInputs):
        raise ValueError(f"variance_inputs must be qemrl.VarianceInputs(...), got {given!r}")
    found = VarianceInputs() if given is None else given
    missing = [name for name in needs if getattr(found, name) is None]
    if missing:
        raise ValueError(
            f"{model} estimates V from {' and '.join(missing)}: give "
            f"variance_inputs=VarianceInputs({', '.join(f'{name}=...' for name in missing)})"
        )
    return found


def _align(levels: Float[Array, "*shared n"], other: Array) -> tuple[Array, Array]:
    """Both with as many axes as the one that has more."""
    rank = max(levels.ndim, other.ndim)
    return backend.add_axes(levels, rank), backend.add_axes(other, rank)


def slope(
    values: Float[Array, "*batch n"], levels: Float[Array, "*shared n"], reach: int = 1, rising: bool = False
) -> Float[Array, "*batch n"]:
    """|q′| at each level: the slope between the neighbors `reach` places below and above, or as far as there are any.

    Levels that are known to be `rising` need not be sorted.
    """
    count = values.shape[-1]
    if count < 2:
        raise ValueError("the slope of a quantile function needs at least two quantiles")
    levels, values = _align(levels, values)
    xp = namespace(values)
    order = None if rising else xp.argsort(levels, axis=-1)
    if order is not None:
        levels = xp.take_along_axis(levels, order, axis=-1)
        values = xp.take_along_axis(values, xp.broadcast_to(order, values.shape), axis=-1)
    above = [min(place + reach, count - 1) for place in range(count)]
    below = [max(place - reach, 0) for place in range(count)]
    apart = backend.pick(levels, above) - backend.pick(levels, below)
    rise = xp.abs(backend.pick(values, above) - backend.pick(values, below))
    slopes = rise / xp.where(apart > 0, apart, xp.full_like(apart, backend.resolution(apart)))
    if order is None:
        return slopes
    back = xp.argsort(order, axis=-1)
    return xp.take_along_axis(slopes, xp.broadcast_to(back, slopes.shape), axis=-1)


def shrink(variances: Float[Array, "*batch n"], shrinkage: float) -> Float[Array, "*batch n"]:
    """The variances over their mean, mixed with ones."""
    xp = namespace(variances)
    mean = xp.mean(variances, axis=-1, keepdims=True)
    scaled = variances / xp.where(mean > 0, mean, xp.ones_like(mean))
    return (1 - shrinkage) * scaled + (shrinkage + FLOOR)


def shrink_matrix(covariance: Float[Array, "*batch n n"], shrinkage: float) -> Float[Array, "*batch n n"]:
    """The covariance over its mean variance, mixed with the identity."""
    xp = namespace(covariance)
    eye = backend.add_axes(backend.eye(covariance.shape[-1], covariance), covariance.ndim)
    mean = xp.sum(covariance * eye, axis=(-2, -1), keepdims=True) / covariance.shape[-1]
    scaled = covariance / xp.where(mean > 0, mean, xp.ones_like(mean))
    return (1 - shrinkage) * scaled + (shrinkage + FLOOR) * eye
