"""What an estimator is worth: its bias and variance, exact where they can be, and how well an expansion fits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from qemrl.estimators import backend
from qemrl.estimators.backend import Array, namespace
from qemrl.estimators.basis import columns
from qemrl.estimators.distributions import Distribution, require_distribution
from qemrl.estimators.estimator import QEM, EmpiricalMean, Estimator
from qemrl.estimators.inputs import read_inner_levels, read_numbers, read_sample, require_callable, require_count
from qemrl.estimators.noise import Noise


class BiasVariance(NamedTuple):
    """The error of an estimate of the mean, against the distribution it comes from."""

    bias: Float[Array, "*batch"] | float
    variance: Float[Array, "*batch"] | float

    @property
    def mse(self) -> Float[Array, "*batch"] | float:
        return self.bias**2 + self.variance


def estimation_error(
    estimator: Estimator, distribution: Distribution, levels: Float[np.ndarray, "*batch n"], noise: Noise
) -> BiasVariance:
    """The exact bias and variance of a linear estimator on noisy quantiles of `distribution`, given the levels."""
    _require_method(estimator, "weights", "an estimator such as qemrl.QEM()")
    _require_method(noise, "error_variance", "a model of noise such as qemrl.IndependentNoise()")
    levels = read_inner_levels(levels)
    weights = estimator.weights(levels)[..., 0, :]
    bias = (weights * require_distribution(distribution).quantile(levels)).sum(-1) - distribution.mean
    return BiasVariance(bias, noise.error_variance(weights, distribution, levels))


def efficiency(
    estimator: Estimator, distribution: Distribution, levels: Float[np.ndarray, "*batch n"], noise: Noise
) -> Float[Array, "*batch"] | float:
    """Var(plain mean) / Var(estimator), given the levels: above one where the estimator has less variance."""
    plain = estimation_error(EmpiricalMean(), distribution, levels, noise)
    return plain.variance / estimation_error(estimator, distribution, levels, noise).variance


def sampling_error(
    estimator: Estimator,
    distribution: Distribution,
    draw: Callable[[np.random.Generator, tuple[int, int]], Any],
    count: int,
    rng: np.random.Generator,
    trials: int = 20_000,
) -> BiasVariance:
    """Bias and variance that random levels alone cause on exact quantiles, by simulation.

    Args:
        estimator: The estimator.
        distribution: The distribution whose quantiles are taken.
        draw: A sampler of levels, such as `uniform_levels`; it may return (levels, probs).
        count: The number of levels in a draw.
        rng: Where randomness comes from.
        trials: The number of draws. The variance is then known to about a factor of 1 ± sqrt(2 / trials).
    """
    _require_method(estimator, "mean", "an estimator such as qemrl.QEM()")
    require_distribution(distribution)
    require_callable(draw, "draw", "a sampler such as qemrl.uniform_levels")
    if require_count(trials, "trials") < 2:
        raise ValueError(f"a variance takes at least two trials, got {trials}")
    drawn = draw(rng, (trials, require_count(count, "count")))
    levels, probs = drawn if isinstance(drawn, tuple) else (drawn, None)
    estimates = estimator.mean(distribution.quantile(levels), levels, probs)
    return BiasVariance(float(estimates.mean() - distribution.mean), float(estimates.var(ddof=1)))


def variance_reduction(
    levels: Float[np.ndarray, "*batch n"], variances: Float[np.ndarray, "*batch n"], order: int = 2
) -> Float[Array, "*batch"]:
    """Var(plain mean) − Var(QEM) for independent errors of known `variances`: positive where QEM has less.

    Σv/N² − [(X'V⁻¹X)⁻¹]₁₁, the condition that the paper's Proposition 4.2(ii) should have. At order 2 the second
    term is S₂ / (S₀S₂ − S₁²) with S_k = Σ z^k / v.
    """
    levels, variances = _read_variances(levels, variances)
    order = require_count(order, "order")
    different = min(len(np.unique(row)) for row in levels.reshape(-1, levels.shape[-1]))
    if order > different:
        raise ValueError(f"an expansion of order {order} needs as many different levels, got {different}")
    design = np.moveaxis(np.stack(columns("hermite", levels, order)), 0, -1)
    gram = np.einsum("...ni,...n,...nj->...ij", design, 1 / variances, design)
    return variances.mean(-1) / levels.shape[-1] - np.linalg.inv(gram)[..., 0, 0]


def paper_condition(
    levels: Float[np.ndarray, "*batch n"], variances: Float[np.ndarray, "*batch n"]
) -> Float[Array, "*batch"]:
    """The paper's f(v₁ … v_N), to the letter; it claims that QEM has less variance if and only if f > 0.

    It has sums of v where weighted least squares has sums of 1/v: with all v = 2 it is 3, although the plain mean
    is then the best unbiased estimator. `variance_reduction` is what holds.
    """
    levels, variances = _read_variances(levels, variances)
    if not np.ptp(levels, axis=-1).all():
        raise ValueError(f"the condition needs at least two different levels, got {levels}")
    z = special.ndtri(levels)
    s0, s1, s2 = ((variances * z**k).sum(-1) for k in range(3))
    # 1 / (s0 s2 / s1² − 1), written so that s1 = 0 is no exception
    return variances.mean(-1) ** 2 - 1 - s1**2 / (s0 * s2 - s1**2)


def r_squared(estimator: QEM, values: Any, levels: Any, probs: Any = None) -> Float[Array, "*batch"]:
    """The share of the quantiles' variation that the fitted expansion explains; each counts by its probability."""
    if not isinstance(estimator, QEM):
        raise ValueError(f"an expansion is fitted by a qemrl.QEM, got {estimator!r}")
    sample = read_sample(values, levels, probs, estimator.order)
    values, plain = sample.values, EmpiricalMean()
    residual = values - estimator.fit(values, levels, probs)
    spread = values - plain.mean(values, levels, probs)[..., None]
    left, whole = (plain.mean(each**2, levels, probs) for each in (residual, spread))
    return sample.finish(1 - left / whole)


def _read_variances(levels: Any, variances: Any) -> tuple[np.ndarray, np.ndarray]:
    """Levels with the error variance of each, in NumPy float64."""
    levels, variances = read_inner_levels(levels), read_numbers(variances, "variances")
    if levels.size == 0 or variances.shape[-1:] != levels.shape[-1:]:
        raise ValueError(f"variances of shape {variances.shape} do not fit levels of shape {levels.shape}")
    if not (variances > 0).all():
        raise ValueError(f"variances must be positive, got {variances.min()}")
    return levels, variances


def _require_method(value: Any, method: str, what: str) -> None:
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise ValueError(f"expected {what}, got {value!r}")


def crossing_rate(values: Any, levels: Any = None) -> Float[Array, "*batch"]:
    """The share of neighboring quantiles that are in the wrong order; levels that are not sorted must be given."""
    values = backend.as_array(values, "values")
    xp = namespace(values)
    if values.shape[-1] < 2:
        raise ValueError(f"crossing takes at least two quantiles, got {values.shape[-1]}")
    if levels is not None:
        levels = backend.like(backend.as_array(levels, "levels"), values, "levels")
        if levels.shape[-1] != values.shape[-1] or levels.ndim > values.ndim:
            raise ValueError(f"levels of shape {tuple(levels.shape)} do not fit values of shape {tuple(values.shape)}")
        order = xp.argsort(xp.broadcast_to(levels, values.shape), axis=-1, stable=True)
        values = xp.take_along_axis(values, order, axis=-1)
    wrong = values[..., 1:] < values[..., :-1]
    return xp.mean(xp.astype(wrong, values.dtype), axis=-1)
