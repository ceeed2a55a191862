"""Losses that are distances between two distributions: maximum mean discrepancy and the Cramér distance.

Of values x, each of weight 1/N, and targets y of weights q, the squared maximum mean discrepancy of a kernel k is

    MMD² = Σ_ij k(x_i − x_j) / N² − 2 Σ_ij q_j k(x_i − y_j) / N + Σ_ij q_i q_j k(y_i − y_j),

pairs of a value with itself included, so that it is never negative but by rounding. A distance that rounding makes
negative is reported as zero; its gradient stays.

Of pairs no array is kept: on the CPU a scan goes through the sources one after the other, elsewhere the compiler adds
up pairs as it makes them. Gradients are with respect to the values alone.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.distributional.losses import quantile_huber

Rows = Float[Array, "*batch"]
Values = Float[Array, "*batch n"]
Targets = Float[Array, "*batch m"]
Kernel = Callable[[Array], tuple[Array, Array]]
"""From differences to the kernel and its derivative."""


def mmd(values: Values, targets: Targets, target_probs: Targets | None, bandwidths: tuple[float, ...]) -> Rows:
    """The squared maximum mean discrepancy of each row, by the kernel Σ_h exp(−d²/h).

    Args:
        values: The particles, in any order.
        targets: What they are to be distributed like, in any order.
        target_probs: The probability of each target; None where all have the same.
        bandwidths: The h.
    """
    return _discrepancy(values, targets, target_probs, partial(_gaussians, bandwidths))


def cramer(values: Values, targets: Targets, target_probs: Targets | None = None) -> Rows:
    """The squared Cramér distance ∫ (F − G)² of each row, F that of the values and G that of the targets.

    It is E|X − Y| − E|X − X'| / 2 − E|Y − Y'| / 2. The first two terms are 2/N times the loss of exact quantile
    regression with each value at the level of its rank, and the last is a constant.
    """
    probs = jnp.full_like(targets, 1 / targets.shape[-1]) if target_probs is None else target_probs
    even = jnp.full_like(values, 1 / values.shape[-1])
    levels = jax.lax.stop_gradient(_share_below(values, even))
    regression = quantile_huber(values, levels, targets, target_probs, kappa=0.0)
    spread = jnp.sum(probs * targets * (2 * _share_below(targets, probs) - 1), axis=-1)
    distance = 2 / values.shape[-1] * regression - jax.lax.stop_gradient(spread)
    return distance - jax.lax.stop_gradient(jnp.minimum(distance, 0))


def _share_below(points: Values, probs: Values) -> Values:
    """The share of each row that is below each of its points, of what equals it half."""
    return 0.5 + 0.5 * _sum_own(lambda differences: (jnp.abs(differences), jnp.sign(differences)), points, probs)[1]


def _gaussians(bandwidths: tuple[float, ...], differences: Array) -> tuple[Array, Array]:
    """Σ_h exp(−d²/h) and its derivative; where 2h or 3h is there, too, exp(−d²/h) is a power of what it gave."""
    squares = differences * differences
    powers: dict[float, Array] = {}
    for width in sorted(bandwidths, reverse=True):
        half, third = powers.get(2 * width), powers.get(3 * width)
        if half is not None:
            powers[width] = half * half
        elif third is not None:
            powers[width] = third * third * third
        else:
            powers[width] = jnp.exp(squares * (-1 / width))
    kernel = sum((powers[width] for width in bandwidths), jnp.zeros_like(squares))
    slope = sum((powers[width] * (-2 / width) for width in bandwidths), jnp.zeros_like(squares))
    return kernel, differences * slope


def _discrepancy(values: Values, targets: Targets, target_probs: Targets | None, kernel: Kernel) -> Rows:
    count = targets.shape[-1]
    probs = jnp.full(targets.shape, 1 / count, targets.dtype) if target_probs is None else target_probs
    return _loss(kernel, values, targets, jnp.broadcast_to(probs, targets.shape))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(kernel: Kernel, values: Values, targets: Targets, probs: Targets) -> Rows:
    return _loss_and_gradient(kernel, values, targets, probs)[0]


def _loss_and_gradient(kernel: Kernel, values: Values, targets: Targets, probs: Targets) -> tuple[Rows, Values]:
    size = values.shape[-1]
    own, own_slope = _sum_own(kernel, values, jnp.full_like(values, 1 / size))
    cross, cross_slope = _sum_over(kernel, values, targets, probs)
    theirs, _ = _sum_own(kernel, targets, probs)
    squared = own - 2 * jnp.mean(cross, axis=-1) + theirs
    return jnp.maximum(squared, 0), (2 / size) * (own_slope - cross_slope)


def _scale_gradient(kernel: Kernel, gradient: Values, cotangent: Rows) -> tuple[Values, None, None]:
    del kernel
    return cotangent[..., None] * gradient, None, None


_loss.defvjp(_loss_and_gradient, _scale_gradient)


def _sum_over(kernel: Kernel, points: Values, sources: Targets, weights: Targets) -> tuple[Values, Values]:
    """Σ_j w_j k(p_i − s_j) at each point, and its derivative."""
    return jax.lax.platform_dependent(
        points, sources, weights, cpu=partial(_scan_over, kernel), default=partial(_add_all, kernel)
    )


def _add_all(kernel: Kernel, points: Values, sources: Targets, weights: Targets) -> tuple[Values, Values]:
    parts = kernel(points[..., :, None] - sources[..., None, :])
    total, slope = (jnp.sum(part * weights[..., None, :], axis=-1) for part in parts)
    return total, slope


def _scan_over(kernel: Kernel, points: Values, sources: Targets, weights: Targets) -> tuple[Values, Values]:
    def add(sums: tuple[Values, Values], source: tuple[Rows, Rows]) -> tuple[tuple[Values, Values], None]:
        place, weight = source
        total, slope = kernel(points - place[..., None])
        return (sums[0] + weight[..., None] * total, sums[1] + weight[..., None] * slope), None

    zeros = jnp.zeros_like(points)
    first = jax.tree.map(lambda array: jnp.moveaxis(array, -1, 0), (sources, weights))
    return jax.lax.scan(add, (zeros, zeros), first, unroll=2)[0]


def _sum_own(kernel: Kernel, points: Values, weights: Values) -> tuple[Rows, Values]:
    """Σ_ij w_i w_j k(p_i − p_j), and at each point Σ_j w_j k'(p_i − p_j); the kernel is even."""
    return jax.lax.platform_dependent(
        points, weights, cpu=partial(_scan_pairs, kernel), default=partial(_add_pairs, kernel)
    )


def _add_pairs(kernel: Kernel, points: Values, weights: Values) -> tuple[Rows, Values]:
    total, slope = _add_all(kernel, points, points, weights)
    return jnp.sum(weights * total, axis=-1), slope


def _scan_pairs(kernel: Kernel, points: Values, weights: Values) -> tuple[Rows, Values]:
    """Each pair once: all points against those that are one place on, two places on, …, in a circle."""
    size = points.shape[-1]
    circle = jnp.concatenate([points, points], axis=-1), jnp.concatenate([weights, weights], axis=-1)

    def add(sums: tuple[Values, Values, Array], places: Array) -> tuple[tuple[Values, Values, Array], None]:
        total, slope, onward = sums
        others, shares = (jax.lax.dynamic_slice_in_dim(each, places, size, axis=-1) for each in circle)
        value, change = kernel(points - others)
        back = jax.lax.dynamic_slice_in_dim(onward, places, size, axis=-1) - weights * change
        onward = jax.lax.dynamic_update_slice_in_dim(onward, back, places, axis=-1)
        return (total + shares * value, slope + shares * change, onward), None

    zeros = jnp.zeros_like(points)
    (total, slope, onward), _ = jax.lax.scan(
        add, (zeros, zeros, jnp.zeros_like(circle[0])), jnp.arange(1, (size - 1) // 2 + 1), unroll=2
    )
    total, slope = 2 * total, slope + onward[..., :size] + onward[..., size:]
    if size % 2 == 0:  # opposite points are each other's opposites
        others, shares = (each[..., size // 2 : size // 2 + size] for each in circle)
        value, change = kernel(points - others)
        total, slope = total + shares * value, slope + shares * change
    alone, _ = kernel(jnp.zeros_like(points))
    return jnp.sum(weights * (total + weights * alone), axis=-1), slope
