"""The errors of learned quantiles of distributions with atoms, where formulas of first order do not hold: by simulation.

Means and covariances are found at the levels of a grid; between them they are joined by straight lines.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from qemrl.estimators import Distribution, midpoints

GRID = midpoints(64)
TABLE = 16_384


class Simulated(NamedTuple):
    """Learned quantiles at the grid's levels."""

    mean: Float[np.ndarray, " grid"]
    covariance: Float[np.ndarray, "grid grid"]

    def errors(
        self, weights: Float[np.ndarray, "draws n"], levels: Float[np.ndarray, "draws n"]
    ) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
        """The mean and the variance of Σ weights · quantiles."""
        shares = on_grid(weights, levels)
        return shares @ self.mean, ((shares @ self.covariance) * shares).sum(-1)


def on_grid(
    weights: Float[np.ndarray, "draws n"], levels: Float[np.ndarray, "draws n"]
) -> Float[np.ndarray, "draws grid"]:
    """The weights of the grid's levels that give the same sums of values which are linear between them."""
    place = np.clip(levels * len(GRID) - 0.5, 0, len(GRID) - 1)
    below = np.minimum(place.astype(int), len(GRID) - 2)
    share = place - below
    shares = np.zeros((len(weights), len(GRID)))
    rows = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)
    np.add.at(shares, (rows, below), weights * (1 - share))
    np.add.at(shares, (rows, below + 1), weights * share)
    return shares


def sampled(distribution: Distribution, num_samples: int, copies: int, seed: int) -> Simulated:
    """The quantiles of samples of returns."""
    ranks = np.random.default_rng(seed).random((copies, num_samples))
    found = np.quantile(distribution.quantile(ranks), GRID, axis=-1, method="hazen").T
    return Simulated(found.mean(0), np.cov(found.T))


def regressed(distribution: Distribution, step: float, chains: int, steps: int, seed: int) -> Simulated:
    """The quantiles of regression with a constant step, at its end."""
    table = jnp.asarray(distribution.quantile(midpoints(TABLE)), jnp.float32)
    levels = jnp.asarray(GRID, jnp.float32)[None]
    key = jax.random.key(seed)

    def learn(values: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        returns = table[jax.random.randint(jax.random.fold_in(key, number), (chains, 1), 0, TABLE)]
        return values + step * (levels - (returns < values).astype(jnp.float32)), None

    first = jnp.tile(jnp.asarray(distribution.quantile(GRID), jnp.float32), (chains, 1))
    found = np.asarray(jax.jit(lambda: jax.lax.scan(learn, first, jnp.arange(steps))[0])(), np.float64)
    return Simulated(found.mean(0), np.cov(found.T))
