"""The bank of return laws that estimators are measured on, each with a standard deviation of one."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from qemrl.estimators import LAWS, Law, midpoints, normal_mixture
from qemrl.paper.frozen_lake_study import find_truth
from qemrl.paper.recorded import recorded

FLAT = 1e-3
"""The least slope of a quantile function, in standard deviations: inside an atom quantiles hardly err."""

FINE = 65_536


def piecewise_law(name: str, quantiles: Float[np.ndarray, " n"]) -> Law:
    """The law whose quantile function joins quantiles at midpoints by straight lines; constant beyond the ends."""
    levels, quantiles = midpoints(len(quantiles)), np.sort(quantiles)
    scale = float(np.interp(midpoints(FINE), levels, quantiles).std())
    quantiles = quantiles / scale
    slopes = np.concatenate([[0.0], np.diff(quantiles) * len(quantiles), [0.0]])
    mean = float(np.interp(midpoints(FINE), levels, quantiles).mean())
    return Law(
        name,
        lambda at: np.interp(at, levels, quantiles),
        lambda at: np.maximum(slopes[np.searchsorted(levels, at)], FLAT),
        mean,
        1.0,
    )


def standardised(name: str, law: Law) -> Law:
    """The law in units of its standard deviation."""
    return Law(
        name,
        lambda levels: law.quantile(levels) / law.std,
        lambda levels: law.sparsity(levels) / law.std,
        law.mean / law.std,
        1.0,
    )


def with_atoms() -> set[str]:
    """The names of the laws that are made of returns which come in lumps."""
    return {"FrozenLake", *recorded()}


@lru_cache(maxsize=1)
def bank() -> dict[str, Law]:
    """All laws: six known ones, another mixture, FrozenLake's return, and returns of trained agents."""
    known = {name: standardised(law.name, law) for name, law in LAWS.items()}
    known["mixture"] = standardised("Mixture 0.7/0.3", LAWS["mixture"])
    equal = normal_mixture((0.5, 0.5), (-3.0, 3.0), (1.0, 1.0))
    known["equal mixture"] = standardised("Mixture 0.5/0.5", equal)
    known["frozen-lake"] = piecewise_law("FrozenLake", find_truth().returns.quantile(midpoints(256)))
    return known | {env: piecewise_law(env, quantiles) for env, quantiles in recorded().items()}
