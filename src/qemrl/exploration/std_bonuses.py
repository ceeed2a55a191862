"""Bonuses from the standard deviation of the learned return distribution, one for each action."""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from qemrl.distributional.representations import Representation, check_compatible
from qemrl.estimators import QEM
from qemrl.exploration.bonus import Bonus
from qemrl.exploration.epsilon_greedy import ActionContext
from qemrl.types import Array, ReturnDist

ROUNDING = 1e-6
"""How far a sum of probabilities may be from one half and still count as one half."""


def _probs(dist: ReturnDist) -> Float[Array, "*batch n"]:
    """The probability that each value stands for, with the axes of the values."""
    shares = jnp.float32(1 / dist.values.shape[-1]) if dist.probs is None else dist.probs
    return jnp.broadcast_to(shares, dist.values.shape)


def _require_distribution(bonus: Any, representation: Representation) -> None:
    if representation.content == "mean":
        raise ValueError(
            f"{type(bonus).__name__} needs a return distribution, and {type(representation).__name__} has none; "
            "use CountBonus with it, or another representation"
        )


@dataclass(frozen=True)
class LeftTruncatedStdBonus(Bonus):
    """The root of DLTV's left-truncated variance σ₊² = 1/2N Σ_{i ≥ N/2} (θ_i − θ_{N/2})² (Mavrin et al., 2019).

    θ_{N/2} is the median, so this is half of the variance above and around it. Quantiles that cross are put in order.
    """

    released: bool = False
    """As in the authors' code: around the mean, averaged over the upper half, and crossed quantiles stay crossed."""

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        variance = self._released_variance if self.released else self._published_variance
        return jnp.mean(jnp.sqrt(variance(context.dist)), axis=1)

    def _published_variance(self, dist: ReturnDist) -> Float[Array, "batch members actions"]:
        order = jnp.argsort(dist.values, axis=-1)
        values, probs = (jnp.take_along_axis(each, order, axis=-1) for each in (dist.values, _probs(dist)))
        reached = jnp.cumsum(probs, axis=-1) >= 0.5 - ROUNDING
        median = jnp.take_along_axis(values, jnp.argmax(reached, axis=-1)[..., None], axis=-1)
        return jnp.sum(probs * jnp.maximum(values - median, 0.0) ** 2, axis=-1) / 2

    def _released_variance(self, dist: ReturnDist) -> Float[Array, "batch members actions"]:
        probs = _probs(dist)
        mean = jnp.sum(probs * dist.values, axis=-1, keepdims=True)
        levels = jnp.broadcast_to(jnp.asarray(dist.levels, jnp.float32), probs.shape)
        upper = jnp.where(levels >= 0.5 - ROUNDING, probs, 0.0)
        return jnp.sum(upper * (dist.values - mean) ** 2, axis=-1) / jnp.maximum(jnp.sum(upper, axis=-1), ROUNDING)

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless there is a distribution, and quantiles for the released variant."""
        _require_distribution(self, representation)
        if self.released and representation.content != "quantiles":
            kind = type(representation).__name__
            raise ValueError(f"the released DLTV takes the upper half of quantiles, and {kind} has none")


@dataclass(frozen=True)
class QEMStdBonus(Bonus):
    """The standard deviation of the return by QEM."""

    estimator: QEM = field(default_factory=QEM)
    """What is fitted to the quantiles."""

    coefficient: bool = False
    """As in the paper's code: |c₁|, the coefficient of the scale, instead of the root of the fit's whole variance."""

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        if self.coefficient:
            return jnp.mean(jnp.abs(self.estimator.coefficients(*context.dist)[..., 1]), axis=1)
        return jnp.mean(jnp.sqrt(self.estimator.moments(*context.dist).variance), axis=1)

    def __post_init__(self) -> None:
        if self.estimator.order < 2:
            raise ValueError(f"a QEM of order {self.estimator.order} fits no standard deviation: use order 2 or more")
        if self.estimator.needs:
            raise ValueError("a bonus has no VarianceInputs to estimate V from: use a variance of the levels alone")

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless there are quantiles to fit."""
        check_compatible(self.estimator, representation)


@dataclass(frozen=True)
class StdBonus(Bonus):
    """The standard deviation of the quantiles or atoms themselves."""

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        dist = context.dist
        probs = _probs(dist)
        mean = jnp.sum(probs * dist.values, axis=-1, keepdims=True)
        return jnp.mean(jnp.sqrt(jnp.sum(probs * (dist.values - mean) ** 2, axis=-1)), axis=1)

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless there is a distribution."""
        _require_distribution(self, representation)
