"""What a single update would move quantiles by, and how fast that falls as they rise, level by level."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

WINDOW = 0.05
"""Half the width, in standard deviations of the values, of the window that densities are counted in if κ = 0."""


class Residuals(NamedTuple):
    """Minus the gradient of the loss, and its curvature, for each value."""

    innovations: Float[Array, "*batch n"]
    curvature: Float[Array, "*batch n"]


def residuals(
    values: Float[Array, "*batch n"],
    levels: Float[Array, "*shared n"],
    targets: Float[Array, "*batch m"],
    target_probs: Float[Array, "*batch m"] | None = None,
    kappa: float = 1.0,
) -> Residuals:
    """Of the loss Σ_j p_j |τ − 1{u < 0}| L(u) / κ, u = y_j − θ.

    For κ = 0 the innovation is τ − F(θ) with half of a target that equals θ counted as below it, and the curvature is
    the density of the targets, counted in a window of `WINDOW` standard deviations of the values around θ.
    """
    probs = jnp.full_like(targets, 1 / targets.shape[-1]) if target_probs is None else target_probs
    errors, probs = targets[..., None, :] - values[..., :, None], probs[..., None, :]
    levels = jnp.broadcast_to(levels, values.shape)[..., None]
    if kappa == 0:
        below = (errors < 0).astype(values.dtype) + 0.5 * (errors == 0).astype(values.dtype)
        spread = jnp.std(values, axis=-1)[..., None, None]
        reach = WINDOW * jnp.where(spread > 0, spread, jnp.ones_like(spread))
        near = (jnp.abs(errors) <= reach).astype(values.dtype) / (2 * reach)
        return Residuals(jnp.sum(probs * (levels - below), axis=-1), jnp.sum(probs * near, axis=-1))
    sides = probs * jnp.abs(levels - (errors < 0).astype(values.dtype))
    slopes = jnp.clip(errors / kappa, -1.0, 1.0)
    bends = (jnp.abs(errors) <= kappa).astype(values.dtype) / kappa
    return Residuals(jnp.sum(sides * slopes, axis=-1), jnp.sum(sides * bends, axis=-1))
