"""Models of the error of learned quantiles, as covariances.

The paper takes the errors at different levels to be independent (its equation 3). Quantiles that are learned
from the same returns are not: one return moves them all. The other two models are what that does to them.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from qemrl.estimators.backend import Array
from qemrl.estimators.distributions import Distribution
from qemrl.estimators.variance import ConstantVariance, VarianceModel


@runtime_checkable
class Noise(Protocol):
    """The errors of quantiles, by their covariance."""

    def error_variance(
        self, weights: Float[np.ndarray, "*batch n"], distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[Array, "*batch"]:
        """The variance of Σ weights · errors."""
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

    def error_variance(
        self, weights: Float[np.ndarray, "*batch n"], distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[Array, "*batch"]:
        """The variance of Σ weights · errors; no matrix is formed, and the distribution does not matter."""
        del distribution
        return np.sum(weights**2 * self.variance(levels), axis=-1)

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`; the distribution does not matter."""
        del distribution
        variances = self.variance(levels) + 0 * levels
        return variances[..., None] * np.eye(levels.shape[-1])


@dataclass(frozen=True)
class SampleQuantileNoise(Noise):
    """The errors of the empirical quantiles of independent returns: (min(s,t) − st) / (n f_s f_t)."""

    num_samples: int = 1
    """n, the number of returns."""

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`, to first order in 1/n."""
        sparsity = distribution.sparsity(levels)
        return _bridge(levels) * sparsity[..., :, None] * sparsity[..., None, :] / self.num_samples


@dataclass(frozen=True)
class SGDNoise(Noise):
    """The stationary errors of quantile regression with a constant step a: a (min(s,t) − st) / (f_s + f_t)."""

    step: float = 1.0
    """a, the step size."""

    def covariance(
        self, distribution: Distribution, levels: Float[np.ndarray, "*batch n"]
    ) -> Float[np.ndarray, "*batch n n"]:
        """The covariance matrix of the errors at `levels`, to first order in the step."""
        density = 1 / distribution.sparsity(levels)
        return self.step * _bridge(levels) / (density[..., :, None] + density[..., None, :])


def _bridge(levels: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n n"]:
    """The covariance min(s, t) − st of the indicators 1{τ ≤ s}, a Brownian bridge."""
    rows, cols = levels[..., :, None], levels[..., None, :]
    return np.minimum(rows, cols) - rows * cols
