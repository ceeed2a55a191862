"""The bank of return distributions that estimators are measured on, each with a standard deviation of one."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from qemrl.estimators import DISTRIBUTIONS, Distribution, midpoints, normal_mixture
from qemrl.paper.items.frozen_lake_study import find_truth
from qemrl.paper.recorded import recorded

FLAT = 1e-3
"""The least slope of a quantile function, in standard deviations: inside an atom quantiles hardly err."""

FINE = 65_536


def piecewise_distribution(name: str, quantiles: Float[np.ndarray, " n"]) -> Distribution:
    """The distribution whose quantile function joins quantiles at midpoints by straight lines; constant beyond the ends."""
    levels, quantiles = midpoints(len(quantiles)), np.sort(quantiles)
    scale = float(np.interp(midpoints(FINE), levels, quantiles).std())
    quantiles = quantiles / scale
    slopes = np.concatenate([[0.0], np.diff(quantiles) * len(quantiles), [0.0]])
    mean = float(np.interp(midpoints(FINE), levels, quantiles).mean())
    return Distribution(
        name,
        lambda at: np.interp(at, levels, quantiles),
        lambda at: np.maximum(slopes[np.searchsorted(levels, at)], FLAT),
        mean,
        1.0,
    )


def standardized(name: str, distribution: Distribution) -> Distribution:
    """The distribution in units of its standard deviation."""
    return Distribution(
        name,
        lambda levels: distribution.quantile(levels) / distribution.std,
        lambda levels: distribution.sparsity(levels) / distribution.std,
        distribution.mean / distribution.std,
        1.0,
    )


def with_atoms() -> set[str]:
    """The names of the distributions that are made of returns which come in lumps."""
    return {"FrozenLake", *recorded()}


@lru_cache(maxsize=1)
def bank() -> dict[str, Distribution]:
    """All distributions: six known ones, another mixture, FrozenLake's return, and returns of trained agents."""
    known = {name: standardized(distribution.name, distribution) for name, distribution in DISTRIBUTIONS.items()}
    known["mixture"] = standardized("Mixture 0.7/0.3", DISTRIBUTIONS["mixture"])
    equal = normal_mixture((0.5, 0.5), (-3.0, 3.0), (1.0, 1.0))
    known["equal mixture"] = standardized("Mixture 0.5/0.5", equal)
    known["frozen-lake"] = piecewise_distribution("FrozenLake", find_truth().returns.quantile(midpoints(256)))
    return known | {env: piecewise_distribution(env, quantiles) for env, quantiles in recorded().items()}
