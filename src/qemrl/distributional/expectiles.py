"""Expectiles, and the distributions that have given ones: ER-DQN (Rowland et al., 2019)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    middle_levels,
    quantiles_of_atoms,
    select_action,
    target_probs,
)
from qemrl.estimators import backend
from qemrl.estimators.backend import namespace
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import midpoints
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import Array as Either
from qemrl.types import ReturnDist

SMALLEST = 1e-7
"""The least probability of an imputed atom."""

FARTHEST = 100
"""How many times their range an imputed atom may lie beyond the expectiles; its probability is then below 1/9,000.

Further out, rounding of the probability would move the mean, and learned expectiles are not as exact as that.
"""


@dataclass(frozen=True)
class Expectiles(Representation):
    """Expectiles at evenly spaced levels, as in ER-DQN; the middle one, at 1/2, is Q.

    A target's expectiles become atoms of a distribution that has these expectiles (`impute`).
    """

    num_expectiles: int = 11
    """How many there are, odd and at least 5, at levels from 0.01 to 0.99."""

    imputation: bool = True
    """Whether a target is a distribution with the expectiles; without, the expectiles are taken for samples themselves.

    That is the naive variant, whose distributions lose their variance.
    """

    def __post_init__(self) -> None:
        expectile_levels(self.num_expectiles)

    @property
    def content(self) -> Content:
        return "distribution"

    @property
    def convertible(self) -> Content:
        return "quantiles"

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_expectiles": self.num_expectiles}

    @property
    def num_pairs(self) -> int:
        return self.num_expectiles**2

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """An output for each expectile and action."""
        return make_streams(features, self.num_expectiles, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The expectiles at their levels; `convert` makes distributions of them."""
        del purpose
        return ReturnDist(head(features, key)[:, None], expectile_levels(self.num_expectiles))

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """The middle expectile alone; or the imputed distribution, whose own quantiles are ours."""
        if content == "mean":
            middle = self.num_expectiles // 2
            return ReturnDist(dist.values[..., middle : middle + 1], midpoints(1))
        if not self.imputation:
            return ReturnDist(jnp.sort(dist.values, axis=-1), midpoints(self.num_expectiles))
        atoms, probs = impute(dist.values, expectile_levels(self.num_expectiles))
        probs = jnp.maximum(probs, SMALLEST)  # atoms that expectiles leave no mass: readers want every one to count
        if content == "distribution":
            return ReturnDist(atoms, middle_levels(probs), probs)
        return ReturnDist(quantiles_of_atoms(atoms, probs, self.num_expectiles), midpoints(self.num_expectiles))

    def to_target(self, dist: ReturnDist) -> ReturnDist:
        """The imputed distribution."""
        return self.convert(dist, "distribution")

    def loss(self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """Σ_k Σ_j p_j |τ_k − 1{y_j < e_k}| (y_j − e_k)²."""
        values = select_action(head(features, key), actions)[:, None]
        levels = jnp.asarray(expectile_levels(self.num_expectiles), jnp.float32)
        return expectile_loss(values, levels, target.values, target_probs(target))


def expectile_loss(
    values: Float[Array, "*batch n"],
    levels: Float[Array, " n"],
    targets: Float[Array, "*batch m"],
    probs: Float[Array, "*batch m"] | None = None,
) -> Float[Array, "*batch"]:
    """The asymmetric squared error of each row: summed over own levels, averaged over the targets."""
    targets = jax.lax.stop_gradient(targets)
    errors = targets[..., None, :] - values[..., :, None]
    sides = jnp.abs(levels.reshape((1,) * (values.ndim - 1) + (-1, 1)) - (errors < 0).astype(values.dtype))
    losses = sides * jnp.square(errors)
    if probs is None:
        return jnp.sum(jnp.mean(losses, axis=-1), axis=-1)
    return jnp.sum(losses * jax.lax.stop_gradient(probs)[..., None, :], axis=(-2, -1))


def expectile_levels(num_expectiles: int) -> Float[np.ndarray, " n"]:
    """Levels between 0.01 and 0.99, an odd number of them, so that the one in the middle is the mean."""
    if num_expectiles < 5 or num_expectiles % 2 == 0:
        raise ValueError(f"the number of expectiles must be odd and at least 5, got {num_expectiles}")
    return np.linspace(0.01, 0.99, num_expectiles)


def impute(
    values: Float[Either, "*batch n"], levels: Float[np.ndarray, " n"]
) -> tuple[Float[Either, "*batch m"], Float[Either, "*batch m"]]:
    """Atoms and probabilities of a distribution that has the expectiles `values`; NumPy or JAX.

    Expectiles are values of the stop-loss function: with the mean μ = e(1/2), π(e) = E(Z − e)₊ is
    (1 − τ)(μ − e)/(1 − 2τ) at the expectile e of level τ. Joining these points by straight lines, and going on with the
    first and the last line until they meet μ − e and zero, gives the stop-loss function of a distribution whose atoms
    are the corners and whose probabilities are the changes of slope. Its mean is μ. Where values are the expectiles of
    no distribution, slopes that fall are left out, and the atoms are moved so that their mean is μ all the same.
    """
    xp = namespace(values)
    middle = len(levels) // 2
    others = [k for k in range(len(levels)) if k != middle]
    factor = backend.constant((1 - levels[others]) / (1 - 2 * levels[others]), values)
    ordered = xp.sort(values, axis=-1)
    mean = ordered[..., middle : middle + 1]
    points = xp.concat([ordered[..., :middle], ordered[..., middle + 1 :]], axis=-1)
    stop_loss = xp.reshape(factor, (1,) * (values.ndim - 1) + (-1,)) * (mean - points)
    tiny = 1e-9 * (1 + xp.abs(mean))
    widths = points[..., 1:] - points[..., :-1]
    slopes = (stop_loss[..., 1:] - stop_loss[..., :-1]) / xp.maximum(widths, tiny)
    slopes = xp.clip(slopes, -1.0, 0.0)
    first, last = slopes[..., :1], slopes[..., -1:]
    left = (mean - stop_loss[..., :1] + first * points[..., :1]) / xp.maximum(1 + first, tiny)
    right = points[..., -1:] + stop_loss[..., -1:] / xp.maximum(-last, tiny)
    reach = FARTHEST * (points[..., -1:] - points[..., :1])
    lowest, highest = xp.maximum(left, points[..., :1] - reach), xp.minimum(right, points[..., -1:] + reach)
    ends = xp.minimum(lowest, points[..., :1]), xp.maximum(highest, points[..., -1:])
    atoms = xp.concat([ends[0], points[..., 1:-1], ends[1]], axis=-1)
    corners = xp.concat([1 + first, slopes[..., 1:] - slopes[..., :-1], -last], axis=-1)
    probs = xp.maximum(corners, 0 * corners)  # learned expectiles need not be those of any distribution
    probs = probs / xp.sum(probs, axis=-1, keepdims=True)
    return atoms + (mean - xp.sum(probs * atoms, axis=-1, keepdims=True)), probs
