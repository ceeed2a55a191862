"""Random rewards: a distribution that is known exactly, and a way to draw from it inside a compiled program."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qemrl.estimators.distributions import Distribution, normal_mixture


@dataclass(frozen=True)
class RewardDistribution:
    """The distribution of a reward."""

    distribution: Distribution
    """Quantiles, mean and standard deviation."""

    draw: Callable[[PRNGKeyArray], Float[Array, ""]]
    """One reward, from a JAX key."""


def uniform(low: float, high: float) -> RewardDistribution:
    """A reward that is uniform between `low` and `high`."""
    if not low < high:
        raise ValueError(f"low must be less than high, got {low} and {high}")
    width = high - low
    distribution = Distribution(
        f"U({low:g}, {high:g})",
        lambda levels: low + width * levels,
        lambda levels: np.full_like(levels, width),
        mean=(low + high) / 2,
        std=width / math.sqrt(12),
    )
    return RewardDistribution(distribution, lambda key: jax.random.uniform(key, minval=low, maxval=high))


def exponential(mean: float) -> RewardDistribution:
    """A reward that is exponential with the given mean."""
    if not mean > 0:
        raise ValueError(f"the mean must be positive, got {mean}")
    distribution = Distribution(
        f"Exp, mean {mean:g}",
        lambda levels: -mean * np.log1p(-levels),
        lambda levels: mean / (1 - levels),
        mean=mean,
        std=mean,
    )
    return RewardDistribution(distribution, lambda key: mean * jax.random.exponential(key))


def normal_mixture_reward(
    weights: tuple[float, ...], means: tuple[float, ...], stds: tuple[float, ...]
) -> RewardDistribution:
    """A reward from a mixture of normal distributions."""
    distribution = normal_mixture(weights, means, stds)

    def draw(key: PRNGKeyArray) -> Float[Array, ""]:
        which, noise = jax.random.split(key)
        part = jax.random.choice(which, len(weights), p=jnp.asarray(weights, jnp.float32))
        center, spread = (jnp.asarray(x, jnp.float32)[part] for x in (means, stds))
        return center + spread * jax.random.normal(noise)

    return RewardDistribution(distribution, draw)
