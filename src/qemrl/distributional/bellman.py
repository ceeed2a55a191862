"""Bellman targets: the distribution of reward + discount · return, and its projection onto a fixed support."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.types import ReturnDist


def backup(dist: ReturnDist, reward: Float[Array, "*batch"], discount: Float[Array, "*batch"]) -> ReturnDist:
    """The distribution of reward + discount · return: its values moved, its levels and probabilities as they were.

    Args:
        dist: Distributions of the return; their values have the axes of the rewards first, then any others (members
            of an ensemble, say), and the distribution axis last.
        reward: The rewards on the way.
        discount: What the return is multiplied by; zero where an episode terminated.
    """
    shape, leading = jnp.shape(dist.values), jnp.shape(reward)
    if len(shape) <= len(leading) or shape[: len(leading)] != leading:
        raise ValueError(f"rewards of shape {leading} do not lead values of shape {shape}; give both the same batch")
    behind = leading + (1,) * (len(shape) - len(leading))
    return dist._replace(values=reward.reshape(behind) + discount.reshape(behind) * dist.values)


def project_categorical(
    atoms: Float[Array, "*batch m"], probs: Float[Array, "*#batch m"], support: Float[Array, " n"]
) -> Float[Array, "*batch n"]:
    """The probabilities on `support` that C51 gives to a distribution: each atom's goes to its two neighbors.

    The mass is kept, and so is the mean of what lies inside the support; atoms outside are clipped to its nearest end.

    Args:
        atoms: Where the mass is, in any order.
        probs: How much there is.
        support: At least two equally spaced points, in increasing order.
    """
    count = support.shape[0]
    if count < 2:
        raise ValueError(f"a support needs at least 2 points to project onto, got {count}")
    spacing = (support[-1] - support[0]) / (count - 1)
    places = jnp.clip((atoms - support[0]) / spacing, 0, count - 1)
    points = jnp.arange(count, dtype=places.dtype).reshape((1,) * places.ndim + (count,))
    # A share is 1 − distance to a point where that is positive; that needs no case for an atom that is on a point.
    shares = jnp.maximum(1 - jnp.abs(places[..., None] - points), 0)
    probs = jnp.broadcast_to(probs, places.shape)
    return jnp.sum(shares * probs[..., None], axis=-2)
