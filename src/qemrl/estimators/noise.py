"""Models of the error of learned quantiles, as covariances.

The paper takes the errors at different levels to be independent (its equation 3). Quantiles that are learned
from the same returns are not: one return moves them all. The other two models are what that does to them.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from qemrl.estimators.backend import Array
from qemrl.estimators.distributions import Distribution, require_distribution
from qemrl.estimators.inputs import (
    read_inner_levels,
    read_numbers,
    require_callable,
    require_count,
    require_number,
)
from qemrl.estimators.variance import ConstantVariance, VarianceModel


@runtime_checkable
class Noise(Protocol):
    """The errors of quantiles, by their covariance."""

    def error_variance(
        self, weights: Float[np.ndarray, "*batch n"], distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[Array, "*batch"]:
        """The variance of Σ weights · errors."""
        weights = read_numbers(weights, "weights")
        products = np.einsum("...ij,...j->...i", self.covariance(distribution, levels), weights)
        return np.einsum("...i,...i->...", weights, products)

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`."""
        ...


@dataclass(frozen=True)
class IndependentNoise(Noise):
    """Independent errors with a variance for each level: the paper's assumption."""

    variance: VarianceModel = ConstantVariance()
    """The variance of the error at each level."""

    def __post_init__(self) -> None:
        require_callable(self.variance, "variance", "a function from levels to variances")

    def error_variance(
        self, weights: Float[np.ndarray, "*batch n"], distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[Array, "*batch"]:
        """The variance of Σ weights · errors; no matrix is formed, and the distribution does not matter."""
        del distribution
        return np.sum(read_numbers(weights, "weights") ** 2 * self.variance(read_inner_levels(levels)), axis=-1)

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`; the distribution does not matter."""
        del distribution
        levels = read_inner_levels(levels)
        variances = self.variance(levels) + 0 * levels
        return variances[..., None] * np.eye(levels.shape[-1])


@dataclass(frozen=True)
class SampleQuantileNoise(Noise):
    """The errors of the empirical quantiles of independent returns: (min(s,t) − st) / (n f_s f_t)."""

    num_samples: int = 1
    """n, the number of returns."""

    def __post_init__(self) -> None:
        require_count(self.num_samples, "num_samples")

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`, to first order in 1/n."""
        levels = read_inner_levels(levels)
        sparsity = require_distribution(distribution).sparsity(levels)
        return _bridge(levels) * sparsity[..., :, None] * sparsity[..., None, :] / self.num_samples


@dataclass(frozen=True)
class SGDNoise(Noise):
    """The stationary errors of quantile regression with a constant step a: a (min(s,t) − st) / (f_s + f_t)."""

    step: float = 1.0
    """a, the step size."""

    def __post_init__(self) -> None:
        if require_number(self.step, "step") <= 0:
            raise ValueError(f"step must be positive, got {self.step}")

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`, to first order in the step."""
        levels = read_inner_levels(levels)
        density = 1 / require_distribution(distribution).sparsity(levels)
        return self.step * _bridge(levels) / (density[..., :, None] + density[..., None, :])


def _bridge(levels: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n n"]:
    """The covariance min(s, t) − st of the indicators 1{τ ≤ s}, a Brownian bridge."""
    rows, cols = levels[..., :, None], levels[..., None, :]
    return np.minimum(rows, cols) - rows * cols
