"""Return distributions with everything known about them, to measure estimators on."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import integrate, special

FloatArray = Float[np.ndarray, "*shape"]


@dataclass(frozen=True)
class Distribution:
    """A distribution, given by its quantile function."""

    name: str
    """What it is called in tables and figures."""

    quantile: Callable[[FloatArray], FloatArray]
    """q(τ) for levels τ in (0, 1)."""

    sparsity: Callable[[FloatArray], FloatArray]
    """q′(τ) = 1 / density at q(τ): how far apart neighboring quantiles are."""

    mean: float
    """The expectation."""

    std: float
    """The standard deviation."""

    @staticmethod
    def from_quantile(quantile: Callable[[FloatArray], FloatArray], name: str = "custom") -> "Distribution":
        """The distribution of a quantile function; moments by quadrature, the sparsity by central differences."""

        def sparsity(levels: FloatArray) -> FloatArray:
            step = 1e-5 * np.minimum(levels, 1 - levels)
            return (quantile(levels + step) - quantile(levels - step)) / (2 * step)

        def moment(power: int, center: float) -> float:
            def integrand(level: float) -> float:
                return float(quantile(np.asarray([level]))[0] - center) ** power

            halves = [integrate.quad(integrand, *ends, limit=500)[0] for ends in ((0, 0.5), (0.5, 1))]
            return math.fsum(halves)

        mean = moment(1, 0.0)
        return Distribution(name, quantile, sparsity, mean, math.sqrt(moment(2, mean)))


def require_distribution(value: Any) -> Distribution:
    """A distribution, and nothing else; ValueError otherwise."""
    if isinstance(value, Distribution):
        return value
    raise ValueError(f"a distribution is one of qemrl.DISTRIBUTIONS or a qemrl.Distribution, got {value!r}")


def normal_mixture(weights: tuple[float, ...], means: tuple[float, ...], stds: tuple[float, ...]) -> Distribution:
    """A mixture of normal distributions."""
    if not (len(weights) == len(means) == len(stds)):
        raise ValueError(f"got {len(weights)} weights, {len(means)} means and {len(stds)} standard deviations")
    if abs(math.fsum(weights) - 1) > 1e-9 or min(weights) <= 0 or min(stds) <= 0:
        raise ValueError(f"weights {weights} must add up to one, and they and the stds {stds} be positive")
    parts = list(zip(weights, means, stds, strict=True))

    def cdf(x: FloatArray) -> FloatArray:
        return sum((w * special.ndtr((x - m) / s) for w, m, s in parts), np.zeros_like(x))

    def density(x: FloatArray) -> FloatArray:
        scale = math.sqrt(2 * math.pi)
        return sum((w * np.exp(-0.5 * ((x - m) / s) ** 2) / (s * scale) for w, m, s in parts), np.zeros_like(x))

    def quantile(levels: FloatArray) -> FloatArray:
        """Newton's method between bounds that close in: never outside, quadratic in the end."""
        levels = np.asarray(levels, dtype=np.float64)
        z = special.ndtri(levels)
        low = np.min([m + s * z for _, m, s in parts], axis=0)
        high = np.max([m + s * z for _, m, s in parts], axis=0)
        x = 0.5 * (low + high)
        for _ in range(100):
            excess = cdf(x) - levels
            low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
            step = x - excess / np.maximum(density(x), 1e-300)
            following = np.where((step >= low) & (step <= high), step, 0.5 * (low + high))
            if np.all(np.abs(following - x) <= 1e-10 * (1 + np.abs(x))):
                return following  # the error of a Newton step is the square of the one before
            x = following
        return x

    mean = math.fsum(w * m for w, m, _ in parts)
    second = math.fsum(w * (m * m + s * s) for w, m, s in parts)
    terms = " + ".join(f"{w:g}N({m:g},{s * s:g})" for w, m, s in parts).replace("-", "−")
    return Distribution(
        terms, quantile, lambda levels: 1 / density(quantile(levels)), mean, math.sqrt(second - mean**2)
    )


def _student_density(x: FloatArray) -> FloatArray:
    return 6 * math.sqrt(3) / (math.pi * (3 + x * x) ** 2)


NORMAL = Distribution(
    "Normal",
    special.ndtri,
    lambda levels: math.sqrt(2 * math.pi) * np.exp(0.5 * special.ndtri(levels) ** 2),
    mean=0.0,
    std=1.0,
)
MIXTURE = normal_mixture((0.7, 0.3), (-2.0, 3.0), (1.0, 1.0))
EXPONENTIAL = Distribution(
    "Exponential", lambda levels: -np.log1p(-levels), lambda levels: 1 / (1 - levels), mean=1.0, std=1.0
)
GUMBEL = Distribution(
    "Gumbel",
    lambda levels: -np.log(-np.log(levels)),
    lambda levels: -1 / (levels * np.log(levels)),
    mean=float(np.euler_gamma),
    std=math.pi / math.sqrt(6),
)
LOG_NORMAL = Distribution(
    "Log-normal",
    lambda levels: np.exp(special.ndtri(levels)),
    lambda levels: np.exp(special.ndtri(levels)) * NORMAL.sparsity(levels),
    mean=math.exp(0.5),
    std=math.sqrt(math.e * (math.e - 1)),
)
STUDENT_T3 = Distribution(
    "Student t3",
    lambda levels: special.stdtrit(3, levels),
    lambda levels: 1 / _student_density(special.stdtrit(3, levels)),
    mean=0.0,
    std=math.sqrt(3),
)

DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": NORMAL,
    "mixture": MIXTURE,
    "exponential": EXPONENTIAL,
    "gumbel": GUMBEL,
    "log-normal": LOG_NORMAL,
    "student-t3": STUDENT_T3,
}
"""The distributions that this project reports on. The first four are those of the paper's appendix C."""
