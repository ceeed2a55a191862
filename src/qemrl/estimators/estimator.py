"""How quantiles become numbers: the plain mean, and the Quantiled Expansion Mean (QEM).

Shapes: `values` are (*batch, N), the quantiles θ. `levels` are (N,), one set for all, or have the axes of
`values`, with size one where they are shared: levels (B, 1, N) serve values (B, A, N). `probs` are like `levels`
and say how much probability each quantile stands for; without them each stands for 1/N.

Results come in the array library, dtype and device of `values`. Bad input raises ValueError (see `inputs`).
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from qemrl.estimators import backend
from qemrl.estimators.backend import Array, namespace
from qemrl.estimators.basis import BASES, BasisName, columns, norms, triple_products
from qemrl.estimators.estimated_variance import EstimatedVariance, VarianceInputs, require_variance_inputs
from qemrl.estimators.inputs import Levels, Sample, read_levels, read_sample, read_sampled_levels
from qemrl.estimators.least_squares import correlated_weights, fixed_weights, sampled_mean_weights, sampled_weights
from qemrl.estimators.variance import ConstantVariance, SpacingVariance, VarianceModel

MAX_ORDER = 6


class Moments(NamedTuple):
    """The first four standardized moments of a return distribution."""

    mean: Float[Array, "*batch"]
    variance: Float[Array, "*batch"]
    skewness: Float[Array, "*batch"]
    excess_kurtosis: Float[Array, "*batch"]


Content = Literal["mean", "distribution", "quantiles"]
"""What is known of returns: the mean, a distribution of any form, or quantiles; each holds all the one before does."""


@runtime_checkable
class Statistic(Protocol):
    """What agents ask of a number that they maximize: Q, by an `Estimator`, or a risk measure."""

    requires: ClassVar[Content]
    """What must be known of the returns."""

    @property
    def min_quantiles(self) -> int:
        """The least number of quantiles that it can be computed from."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of `VarianceInputs` that it needs with every call."""
        ...

    def mean(self, values: Any, levels: Any, probs: Any = None) -> Float[Array, "*batch"]:
        """The number to maximize in the place of Q."""
        ...


@runtime_checkable
class Estimator(Statistic, Protocol):
    """What agents and diagnostics ask of an estimator of Q that is linear in the quantiles."""

    def weights(self, levels: Any, probs: Any = None) -> Float[Array, "*batch rows n"]:
        """The weights of each coefficient; those of the mean are the first row."""
        ...

    def moments(self, values: Any, levels: Any, probs: Any = None) -> Moments:
        """Estimates of mean, variance, skewness and excess kurtosis."""
        ...


@dataclass(frozen=True)
class EmpiricalMean:
    """The plain mean of the quantiles, as in QR-DQN and IQN; its moments are those of the quantiles."""

    requires: ClassVar[Content] = "mean"
    min_quantiles = 1
    needs = ()

    def weights(self, levels: Any, probs: Any = None) -> Float[Array, "*batch 1 n"]:
        """The weights of the mean: 1/N each, or the probabilities."""
        model = backend.as_array(levels, "levels")
        known = read_levels(levels, probs, order=1)
        ones = namespace(known.levels).ones_like(known.levels)
        shares = _shares(ones if known.probs is None else known.probs)[..., None, :]
        return backend.like(shares, model, "levels")

    def mean(self, values: Any, levels: Any, probs: Any = None) -> Float[Array, "*batch"]:
        """The estimate of Q, Σ_i probs_i θ_i."""
        sample = read_sample(values, levels, probs, order=1)
        return sample.finish(_average(sample.values, sample.known))

    def moments(self, values: Any, levels: Any, probs: Any = None) -> Moments:
        """The moments of the distribution that puts its probability on the quantiles themselves."""
        sample = read_sample(values, levels, probs, order=1)
        mean = _average(sample.values, sample.known)
        centered = sample.values - mean[..., None]
        return _standardize(sample, mean, *(_average(centered**k, sample.known) for k in (2, 3, 4)))


@dataclass(frozen=True)
class QEM:
    """The Quantiled Expansion Mean: Q as the intercept of a regression of the quantiles.

    The quantiles θ are regressed on polynomials that average to zero over all levels, by least squares weighted
    with V⁻¹. The intercept is then an estimate of the mean: W[0]·θ, W = (X'V⁻¹X)⁻¹X'V⁻¹ (the paper's Lemma 4.1).

    For one set of levels (N,) that can be read, such as NumPy levels inside or outside `jit`, W is computed once
    in float64 and cached, and the mean is one dot product. For sampled levels W comes from a batched Cholesky solve
    in the dtype of the values.
    """

    order: int = 4
    """The number of columns, 1 to 6. The paper's default is 4: location, scale, skewness, kurtosis."""

    variance: VarianceModel | EstimatedVariance | Literal["auto"] = ConstantVariance()
    """V: how noisy the quantile at each level is. "auto" stands for `AUTO`, a choice of all three fields.

    A model of `estimated_variance` takes `VarianceInputs` with every call; `needs` names the fields.
    """

    basis: BasisName = "hermite"
    """`hermite`: He_0 … He_{order−1} of z = Φ⁻¹(τ), the paper's choice. `legendre`: shifted Legendre in τ."""

    requires: ClassVar[Content] = "quantiles"

    def __post_init__(self) -> None:
        if isinstance(self.variance, str):
            self._set_auto()
        if isinstance(self.order, bool) or not isinstance(self.order, int | np.integer):
            raise ValueError(f"order must be a whole number, got {self.order!r}")
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(f"order must be between 1 and {MAX_ORDER}, got {self.order}")
        if self.basis not in BASES:
            raise ValueError(f"basis must be one of {', '.join(BASES)}; got {self.basis!r}")
        if not callable(self.variance) and not isinstance(self.variance, EstimatedVariance):
            raise ValueError(f"variance must be a function from levels to variances, got {self.variance!r}")
        try:
            hash(self.variance)
        except TypeError:
            kind = type(self.variance).__name__
            raise ValueError(f"weights are cached by variance, so {kind} must be hashable: freeze it") from None

    def _set_auto(self) -> None:
        if self.variance != "auto":
            raise ValueError(f"variance must be a function from levels to variances, or 'auto'; got {self.variance!r}")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "variance"}
        chosen = {field.name: field.default for field in fields(self) if field.name != "variance"}
        if given != chosen:
            raise ValueError(f"variance='auto' chooses order and basis, too: leave them out; got {given}")
        for name, value in AUTO.items():
            object.__setattr__(self, name, value)

    @property
    def min_quantiles(self) -> int:
        """As many quantiles as there are columns."""
        return self.order

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of `VarianceInputs` that V is estimated from; none where V is fixed."""
        return self._needs

    @cached_property
    def _needs(self) -> tuple[str, ...]:  # to ask a protocol takes longer than to estimate Q
        return self.variance.needs if isinstance(self.variance, EstimatedVariance) else ()

    @property
    def full(self) -> bool:
        """Whether V is a whole covariance, and the fit that of generalized least squares."""
        return isinstance(self.variance, EstimatedVariance) and self.variance.full

    @property
    def with_fixed_variance(self) -> "QEM":
        """This QEM, or, where V is estimated, the same with equal variances."""
        return replace(self, variance=ConstantVariance()) if self.needs else self

    def weights(
        self, levels: Any, probs: Any = None, variance_inputs: VarianceInputs | None = None
    ) -> Float[Array, "*batch order n"]:
        """The weights W of each coefficient; `coefficients` are W θ."""
        model = backend.as_array(levels, "levels")
        known = self._add_inputs(read_levels(levels, probs, self.order), variance_inputs)
        scale = norms(self.basis, self.order)
        if known.fixed:
            return backend.like(_fixed_weights(self, *known.key) / scale[:, None], model, "levels")
        rows = [row / float(norm) for row, norm in zip(self._sampled_weights(known), scale, strict=True)]
        weights = namespace(rows[0]).stack(rows, axis=-2)
        return weights if self.needs else backend.like(weights, model, "levels")

    def mean(
        self, values: Any, levels: Any, probs: Any = None, variance_inputs: VarianceInputs | None = None
    ) -> Float[Array, "*batch"]:
        """The estimate of Q, W[0]·θ."""
        sample = read_sample(values, levels, probs, self.order)
        values, known = sample.values, self._add_inputs(sample.known, variance_inputs, sample.values)
        if known.fixed:
            weights = backend.cached_constant(values, _fixed_mean_weights, self, *known.key)
            return sample.finish(backend.dot(values, weights))
        weights = self._sampled_mean_weights(known)
        # The weights add up to one, but only to rounding: seen from one of the values, a Q of 1000 whose spread
        # is 1 keeps its digits.
        origin = values[..., :1]
        return sample.finish(origin[..., 0] + _contract(values - origin, weights))

    def moments(
        self, values: Any, levels: Any, probs: Any = None, variance_inputs: VarianceInputs | None = None
    ) -> Moments:
        """The moments of the fitted curve: mean, variance, skewness, excess kurtosis.

        With coefficients e of orthonormal polynomials the variance is Σ_{k≥1} e_k² (Parseval), and the square of
        the curve has the coefficients s_k = Σ_ij E[φ_k φ_i φ_j] e_i e_j, which give the third moment Σ s_k e_k and
        the fourth Σ s_k². The only division is by the variance, so crossing quantiles do no harm.
        """
        sample = read_sample(values, levels, probs, self.order)
        values = sample.values
        coefficients = self._orthonormal_coefficients(sample, variance_inputs)
        shape = coefficients[..., 1:]
        products = triple_products(self.basis, self.order)[:, 1:, 1:]
        pairs = shape[..., :, None] * shape[..., None, :]
        pairs = namespace(values).reshape(pairs, (*pairs.shape[:-2], (self.order - 1) ** 2))
        square = backend.dot(pairs, backend.constant(products.reshape(len(products), -1).T, values))
        third = backend.total(square[..., 1 : self.order] * shape)
        return _standardize(sample, coefficients[..., 0], square[..., 0], third, backend.total(square * square))

    def coefficients(
        self, values: Any, levels: Any, probs: Any = None, variance_inputs: VarianceInputs | None = None
    ) -> Float[Array, "*batch order"]:
        """The coefficients of He_0 … or P_0 …, as fitted.

        The paper reads the first four as (μ, σ, σs/6, σk/24), which holds to first order in skewness s and excess
        kurtosis k only. `moments` has no such limit.
        """
        sample = read_sample(values, levels, probs, self.order)
        scale = backend.constant(np.diag(1 / norms(self.basis, self.order)), sample.values)
        return sample.finish(backend.dot(self._orthonormal_coefficients(sample, variance_inputs), scale))

    def fit(
        self, values: Any, levels: Any, probs: Any = None, variance_inputs: VarianceInputs | None = None
    ) -> Float[Array, "*batch n"]:
        """The fitted quantile function at the levels of the values."""
        sample = read_sample(values, levels, probs, self.order)
        values, known, _ = sample
        coefficients = self._orthonormal_coefficients(sample, variance_inputs)
        design = namespace(values).stack(
            columns(self.basis, backend.like(known.levels, values, "levels"), self.order), axis=-2
        )
        if known.levels.ndim == 1:
            return sample.finish(backend.dot(coefficients, design))
        return sample.finish(backend.dot(coefficients[..., None, :], design)[..., 0, :])

    def _orthonormal_coefficients(
        self, sample: Sample, variance_inputs: VarianceInputs | None
    ) -> Float[Array, "*batch order"]:
        values, known = sample.values, self._add_inputs(sample.known, variance_inputs, sample.values)
        if known.fixed:
            return backend.dot(values, backend.constant(_fixed_weights(self, *known.key).T, values))
        origin = values[..., :1]
        first, *rest = (_contract(values - origin, row) for row in self._sampled_weights(known))
        return namespace(values).stack([first + origin[..., 0], *rest], axis=-1)

    def _add_inputs(self, known: Levels, variance_inputs: VarianceInputs | None, model: Array | None = None) -> Levels:
        """The levels as they are, or where V is estimated with what it is estimated from, and not fixed."""
        if not self.needs:
            return known
        variance_inputs = require_variance_inputs(variance_inputs, self.needs, type(self.variance).__name__)
        if not known.fixed:
            return known._replace(variance_inputs=variance_inputs)
        rank = 1 if model is None else model.ndim
        if model is None:
            model = next((each for each in variance_inputs or () if getattr(each, "ndim", 0)), known.levels)
        levels, probs = (
            None if each is None else backend.add_axes(backend.constant(each, model), rank)
            for each in (known.levels, known.probs)
        )
        return Levels(levels, probs, False, bool((np.diff(known.levels) > 0).all()), variance_inputs)

    def weigh_sampled(
        self, levels: Float[Array, "*batch n"], probs: Float[Array, "*batch n"] | None = None
    ) -> Float[Array, "*batch n"]:
        """The weights of the mean at sampled levels, whose numbers are not checked; V must be fixed."""
        return self._sampled_mean_weights(read_sampled_levels(levels, probs, self.order))

    def _sampled_mean_weights(self, known: Levels) -> Array:
        if self.full:
            return self._correlated_weights(known)[..., 0, :]
        return sampled_mean_weights(self.basis, self.order, known.levels, self._precision(known))

    def _sampled_weights(self, known: Levels) -> list[Array]:
        if self.full:
            rows = self._correlated_weights(known)
            return [rows[..., k, :] for k in range(self.order)]
        return sampled_weights(self.basis, self.order, known.levels, self._precision(known))

    def _correlated_weights(self, known: Levels) -> Float[Array, "*batch order n"]:
        assert isinstance(self.variance, EstimatedVariance)
        covariance = self.variance.estimate(known.levels, known.variance_inputs, known.rising)
        if known.probs is not None:
            root = namespace(known.probs).sqrt(known.probs)
            covariance = covariance / (root[..., :, None] * root[..., None, :])
        return correlated_weights(self.basis, self.order, known.levels, covariance)

    def _precision(self, known: Levels) -> Float[Array, "*batch n"] | None:
        """1/v at each level, times its probability if that is not the same for all; None if all are equal."""
        levels, probs = known.levels, known.probs
        if probs is None and isinstance(self.variance, ConstantVariance):
            return None
        assert not isinstance(self.variance, str)  # "auto" is replaced when a QEM is made
        if isinstance(self.variance, EstimatedVariance):
            variances = self.variance.estimate(levels, known.variance_inputs, known.rising)
            return (1 if probs is None else probs) / variances
        variances = self.variance(levels) + 0 * levels
        if backend.is_on_host(variances):
            numbers = backend.read(variances)
            good = np.isfinite(numbers) & (numbers > 0)
            if not good.all():
                raise ValueError(f"variances must be positive and finite, got {numbers[~good][0]}")
        return (1 if probs is None else probs) / variances


AUTO: dict[str, Any] = {"order": 2, "variance": SpacingVariance(0.5), "basis": "legendre"}
"""What `QEM(variance="auto")` is: safe at random, stratified and fixed levels alike.

At midpoints it is the plain mean. At random levels a straight line in τ, which bounded columns keep from erring wildly,
removes most of the error of the draw."""


@lru_cache(maxsize=256)
def _fixed_weights(qem: QEM, levels: bytes, probs: bytes | None) -> Float[np.ndarray, "order n"]:
    """The weights for levels that are known in advance, computed once."""
    known = Levels(np.frombuffer(levels), None if probs is None else np.frombuffer(probs), fixed=True)
    precision = qem._precision(known)
    precision = np.ones_like(known.levels) if precision is None else precision
    weights = fixed_weights(qem.basis, qem.order, known.levels, precision)
    weights.flags.writeable = False
    return weights


def _fixed_mean_weights(qem: QEM, levels: bytes, probs: bytes | None) -> Float[np.ndarray, " n"]:
    return _fixed_weights(qem, levels, probs)[0]


def _shares(probs: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    return probs / backend.total(probs)[..., None]


def _contract(values: Float[Array, "*batch n"], weights: Array) -> Float[Array, "*batch"]:
    """The weighted sums of the values; the weights are (n,) or have the axes of the values."""
    return backend.dot(values, weights) if weights.ndim == 1 else backend.total(weights * values)


def _average(values: Float[Array, "*batch n"], known: Levels) -> Float[Array, "*batch"]:
    if known.probs is None:
        return namespace(values).mean(values, axis=-1)
    return _contract(values, backend.like(_shares(known.probs), values, "probs"))


def _standardize(sample: Sample, mean: Array, second: Array, third: Array, fourth: Array) -> Moments:
    """Skewness and excess kurtosis from central moments; both are zero where the variance is."""
    xp = namespace(second)
    spread = second > 0
    safe = xp.where(spread, second, xp.ones_like(second))
    zero = xp.zeros_like(second)
    skewness = xp.where(spread, third / (safe * xp.sqrt(safe)), zero)
    kurtosis = xp.where(spread, fourth / (safe * safe) - 3, zero)
    return Moments(*(sample.finish(moment) for moment in (mean, second, skewness, kurtosis)))
