"""How a return distribution is written as a row of numbers: quantiles, categories, expectiles, or Q alone.

Each representation says how a row moves toward a sampled target, and with which weights it adds up to Q.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qemrl.distributional.expectiles import expectile_levels, impute
from qemrl.estimators.estimated_variance import VarianceInputs
from qemrl.estimators.estimator import QEM, EmpiricalMean, Estimator
from qemrl.estimators.levels import midpoints

Row = Float[Array, " d"]


@runtime_checkable
class Representation(Protocol):
    """How a return distribution is written as a row of numbers, and learned."""

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row."""
        ...

    def rule(self) -> "Representation":
        """The same without what only `mean_weights` depends on: representations with equal rules share a program."""
        return self

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows to start from, `shape` being that of the table without the length of a row."""
        ...

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """The direction in which a row moves: minus the gradient of its loss at the sampled target."""
        ...


@dataclass(frozen=True)
class Quantiles(Representation):
    """Quantiles at midpoints, learned with the pinball loss (QTD, no Huber); Q by any estimator."""

    num_quantiles: int
    """N, the number of quantiles."""

    estimator: Estimator = EmpiricalMean()
    """How quantiles become Q: the plain mean is QDRL, QEM is QEMRL."""

    low: float = -0.5
    """Initial quantiles are uniform between `low`."""

    high: float = 0.5
    """And `high`."""

    num_heads: int = 1
    """Sets of quantiles, each of which learns from a random half of the transitions; Q is the mean of theirs."""

    @property
    def size(self) -> int:
        """The length of a row."""
        return self.num_heads * self.num_quantiles

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of `VarianceInputs` that the estimator needs."""
        return self.estimator.needs

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row; where V is estimated there are none, and these are zeros."""
        if self.needs:
            return np.zeros(self.size)
        weights = self.estimator.weights(midpoints(self.num_quantiles))[0]
        return np.tile(weights / self.num_heads, self.num_heads)

    def rule(self) -> "Quantiles":
        """The same with the plain mean, unless V is estimated."""
        return self if self.needs else replace(self, estimator=EmpiricalMean())

    def heads(self, rows: Float[Array, "*batch d"]) -> Float[Array, "*batch heads n"]:
        """Rows as the quantiles of each head."""
        return rows.reshape(*rows.shape[:-1], self.num_heads, self.num_quantiles)

    def q(self, rows: Float[Array, "*batch d"], variance_inputs: VarianceInputs) -> Float[Array, "*batch"]:
        """Q of rows, by an estimator whose V is estimated."""
        assert isinstance(self.estimator, QEM)
        estimates = self.estimator.mean(self.heads(rows), midpoints(self.num_quantiles), None, variance_inputs)
        return jnp.mean(estimates, axis=-1)

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.uniform(key, (*shape, self.size), minval=self.low, maxval=self.high)

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """τ_i − (1/N) Σ_j 1{y_j < θ_i}: at a tie the quantile counts as not above the target.

        The sum is written out: XLA then makes one vectorized kernel of it, five times as fast as a reduction.
        """
        if self.num_heads > 1:
            alone = replace(self, num_heads=1)
            directions = [
                alone.update(own, reward, discount, next_own)
                for own, next_own in zip(self.heads(row), self.heads(following), strict=True)
            ]
            return jnp.concatenate(directions)
        targets = reward + discount * following
        none = jnp.zeros(row.shape, jnp.int32)
        below = sum(((targets[j] < row).astype(jnp.int32) for j in range(self.num_quantiles)), none)
        levels = jnp.asarray(midpoints(self.num_quantiles), row.dtype)
        return levels - below.astype(row.dtype) / self.num_quantiles


@dataclass(frozen=True)
class Categories(Representation):
    """Probabilities on a fixed evenly spaced support, moved toward the projected target (CDRL)."""

    low: float
    """The first atom."""

    high: float
    """The last atom."""

    num_atoms: int = 51
    """The number of atoms."""

    @property
    def support(self) -> Float[np.ndarray, " d"]:
        return np.linspace(self.low, self.high, self.num_atoms)

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row: the atoms."""
        return self.support

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows of equal probabilities."""
        del key
        return jnp.full((*shape, self.num_atoms), 1 / self.num_atoms)

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """The projected target less the row."""
        support = jnp.asarray(self.support, row.dtype)
        targets = jnp.clip(reward + discount * support, self.low, self.high)
        width = (self.high - self.low) / (self.num_atoms - 1)
        kernel = jnp.clip(1 - jnp.abs(targets[None, :] - support[:, None]) / width, 0, 1)
        return kernel @ following - row


@dataclass(frozen=True)
class Expectiles(Representation):
    """Expectiles between levels 0.01 and 0.99, learned from imputed distributions (EDRL); Q is the middle one."""

    num_expectiles: int = 11
    """The number of expectiles, odd."""

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row: all on the middle."""
        return np.eye(self.num_expectiles)[self.num_expectiles // 2]

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        del key
        return jnp.zeros((*shape, self.num_expectiles))

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """2 E|τ − 1{Y ≤ e}| (Y − e), so that the middle expectile moves by Y − e, as in Q-learning."""
        levels = expectile_levels(self.num_expectiles)
        atoms, probs = impute(following, levels)
        gaps = (reward + discount * atoms)[None, :] - row[:, None]
        sides = jnp.abs(jnp.asarray(levels, row.dtype)[:, None] - (gaps <= 0).astype(row.dtype))
        return 2 * (sides * gaps) @ probs


@dataclass(frozen=True)
class Scalar(Representation):
    """Q itself: TD(0) and Q-learning."""

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        return np.ones(1)

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        del key
        return jnp.zeros((*shape, 1))

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        return reward + discount * following - row
