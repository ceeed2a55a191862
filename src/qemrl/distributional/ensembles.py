"""How several critics become one: the distribution that a target bootstraps from, and the Q that a policy maximizes.

Members share levels and probabilities, so that values at the same place are quantiles of the same level.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.types import ReturnDist

Estimates = Float[Array, "batch members"]


@runtime_checkable
class Ensemble(Protocol):
    """What the agent asks of an ensemble."""

    pools_atoms: ClassVar[bool] = False
    """Whether it pools the atoms of its members, which must then have some."""

    size: int
    """How many members there are."""

    def target(self, dist: ReturnDist, q: Estimates) -> ReturnDist:
        """From the members' distributions [batch, members, n] and estimates of Q to one distribution [batch, 1, m]."""
        ...

    def value(self, q: Estimates) -> Float[Array, " batch"]:
        """The Q that the policy maximizes."""
        ...


LARGEST_SIZE = 100
"""Each critic is a network of its own in the program that learns."""


def _require_members(size: int) -> None:
    if size < 1:
        raise ValueError(f"an ensemble has at least one member, got {size}")
    if size > LARGEST_SIZE:
        raise ValueError(f"an ensemble has at most {LARGEST_SIZE} members, got size={size}")


@dataclass(frozen=True)
class ElementwiseMin(Ensemble):
    """The minimum at each level, as in DSAC; with one value for each member, clipped double Q-learning.

    The policy maximizes the minimum of the members' estimates. The target can only be lower: the mean of the minimum at
    each level is at most the smallest of the members' means.
    """

    size: int = 2
    """How many critics there are."""

    policy: Literal["min", "first"] = "min"
    """Whose Q the policy maximizes: the minimum, or, as in TD3, that of the first critic."""

    def __post_init__(self) -> None:
        _require_members(self.size)
        if self.policy not in ("min", "first"):
            raise ValueError(f"policy must be 'min' or 'first', got {self.policy!r}")

    def target(self, dist: ReturnDist, q: Estimates) -> ReturnDist:
        """The minimum at each level."""
        del q
        return dist._replace(values=jnp.min(dist.values, axis=1, keepdims=True))

    def value(self, q: Estimates) -> Float[Array, " batch"]:
        """The minimum of the estimates, or the first."""
        return q[:, 0] if self.policy == "first" else jnp.min(q, axis=1)


@dataclass(frozen=True)
class SmallestCritic(Ensemble):
    """The whole distribution of the critic whose estimate of Q is smallest: here the estimator enters the target."""

    size: int = 2
    """How many critics there are."""

    def __post_init__(self) -> None:
        _require_members(self.size)

    def target(self, dist: ReturnDist, q: Estimates) -> ReturnDist:
        """The distribution of the member with the smallest estimate."""
        least = jnp.argmin(q, axis=1)[:, None, None]
        return dist._replace(values=jnp.take_along_axis(dist.values, least, axis=1))

    def value(self, q: Estimates) -> Float[Array, " batch"]:
        """The smallest estimate."""
        return jnp.min(q, axis=1)


@dataclass(frozen=True)
class PooledTruncation(Ensemble):
    """The atoms of all critics pooled and sorted, without the largest, as in TQC (Kuznetsov et al., 2020)."""

    pools_atoms: ClassVar[bool] = True

    size: int = 5
    """How many critics there are."""

    drop: int = 2
    """How many atoms are dropped for each critic."""

    def __post_init__(self) -> None:
        _require_members(self.size)
        if self.drop < 0:
            raise ValueError(f"the number of atoms to drop must not be negative, got {self.drop}")

    def target(self, dist: ReturnDist, q: Estimates) -> ReturnDist:
        """The size · (n − drop) smallest atoms, with levels of their own."""
        del q
        batch, members, count = dist.values.shape
        if self.drop >= count:
            raise ValueError(f"of {count} atoms at most {count - 1} can be dropped, got drop={self.drop}")
        kept = members * (count - self.drop)
        values = dist.values.reshape(batch, members * count)
        levels = (jnp.arange(kept, dtype=jnp.float32) + 0.5) / kept
        if dist.probs is None:
            return ReturnDist(jnp.sort(values, axis=-1)[:, None, :kept], levels)
        probs = jnp.broadcast_to(dist.probs, dist.values.shape).reshape(batch, members * count)
        values, probs = jax.lax.sort((values, probs), dimension=1, num_keys=1)
        probs = probs[:, :kept] / jnp.sum(probs[:, :kept], axis=1, keepdims=True)
        levels = jnp.cumsum(probs, axis=1) - 0.5 * probs
        return ReturnDist(values[:, None, :kept], levels[:, None], probs[:, None])

    def value(self, q: Estimates) -> Float[Array, " batch"]:
        """The mean of the members' estimates; nothing is dropped there."""
        return jnp.mean(q, axis=1)


@dataclass(frozen=True)
class Averaged(Ensemble):
    """The mean at each level; with one member, that member."""

    size: int = 1
    """How many critics there are."""

    def __post_init__(self) -> None:
        _require_members(self.size)

    def target(self, dist: ReturnDist, q: Estimates) -> ReturnDist:
        """The mean at each level."""
        del q
        return dist._replace(values=jnp.mean(dist.values, axis=1, keepdims=True))

    def value(self, q: Estimates) -> Float[Array, " batch"]:
        """The mean of the members' estimates."""
        return jnp.mean(q, axis=1)


def pool_members(dist: ReturnDist) -> ReturnDist:
    """The distributions [batch, actions, members · n] that hold the values of all members, from [batch, members, ...].

    Levels stay those that a value has in its own member.
    """
    shape = dist.values.shape

    def pool(array: Any) -> Any:
        if array is None:
            return None
        if array.ndim == 1:
            return jnp.tile(array, shape[1])
        if shape[1] == 1:
            return array[:, 0]
        full = jnp.broadcast_to(array, shape).swapaxes(1, 2)
        return full.reshape(*full.shape[:2], -1)

    return ReturnDist(*(pool(array) for array in dist))
