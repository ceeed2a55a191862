"""Bellman targets, and losses between them and what is predicted.

The distribution axis is last, the axes before it are a batch.

The quantile Huber loss of values θ at levels τ, of targets y with probabilities p:

    Σ_i Σ_j p_j |τ_i − 1{u_ij < 0}| L(u_ij) / κ,   u_ij = y_j − θ_i,   L(u) = u²/2 up to |u| = κ, then κ (|u| − κ/2)

a sum over own levels and a mean over targets. κ = 0 means its limit, the pinball loss Σ_i Σ_j p_j |τ_i − 1{u < 0}| |u|.
There a target that equals a value pulls it neither way: of the slopes between −τ and 1 − τ that are possible at u = 0
all versions take 0, the limit of the slopes at u = 0 for κ → 0.

Three versions give the same numbers. `quantile_huber_pairwise` is the formula, differentiated by JAX; it keeps several
arrays of all pairs. `quantile_huber_scanned` goes through the targets one after the other and keeps none.
`quantile_huber_sorted` looks up sums over sorted targets. `quantile_huber` takes the fastest for shape and device: on
the CPU a scan or sorted sums, elsewhere all pairs at once or sorted sums. All differentiate with respect to the values
alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.types import ReturnDist

SORT_FROM = 1536
"""The number of values and of targets, whichever is smaller, from which on sorting is faster than scanning.

Milliseconds for a loss and its gradient, compiled, n = m, the least of several rounds on two busy cores (float32):
batch 32: n = 32 0.04 scanned, 0.13 sorted; 200 0.25, 1.1; 512 3.6, 3.8; 1024 9.5, 15.6; 2048 30, 17;
batch 256: n = 32 0.09, 1.0; 200 2.4, 10.9; 512 13.7, 34. The formula takes 15 at batch 32, n = 200 on idle cores.
"""

_LARGE = 2**15
"""From this number of values on a scan does more in each step, which was faster in a trial."""

WINDOW = 0.05
"""Half the width, in standard deviations of the values, of the window that densities are counted in if κ = 0."""

Rows = Float[Array, "*batch"]
Values = Float[Array, "*batch n"]
Levels = Float[Array, "*#batch n"]
Targets = Float[Array, "*batch m"]
TargetProbs = Float[Array, "*#batch m"] | None


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


def quantile_huber(
    values: Values, levels: Levels, targets: Targets, target_probs: TargetProbs = None, kappa: float = 1.0
) -> Rows:
    """The quantile Huber loss of each row, by the faster algorithm for the shape.

    Args:
        values: Predicted quantiles, in any order.
        levels: The level of each value: one set for all rows, or with axes of size one where levels are shared.
        targets: What the values are to be quantiles of, in any order.
        target_probs: The probability of each target; None where all have the same. They are used as they are.
        kappa: Where the loss turns from quadratic to linear; a Python number, zero for the exact pinball loss.
    """
    if min(values.shape[-1], targets.shape[-1]) >= SORT_FROM:
        return quantile_huber_sorted(values, levels, targets, target_probs, kappa)
    # A scan is many small steps in a row, which is what accelerators are bad at; all pairs at once suit them.
    return jax.lax.platform_dependent(
        values,
        levels,
        targets,
        cpu=lambda v, q, t: quantile_huber_scanned(v, q, t, target_probs, kappa),
        default=lambda v, q, t: quantile_huber_pairwise(v, q, t, target_probs, kappa),
    )


def quantile_huber_pairwise(
    values: Values, levels: Levels, targets: Targets, target_probs: TargetProbs = None, kappa: float = 1.0
) -> Rows:
    """The quantile Huber loss of each row as the formula says: what the fast versions are tested against."""
    _check(kappa)
    levels, targets = jax.lax.stop_gradient((jnp.broadcast_to(levels, values.shape), targets))
    errors = targets[..., None, :] - values[..., :, None]
    sizes = errors * jnp.sign(errors)  # its slope at 0 is 0; JAX gives jnp.abs the slope 1 there
    if kappa == 0:
        losses = sizes
    else:
        losses = jnp.where(sizes <= kappa, 0.5 * errors * errors, kappa * (sizes - 0.5 * kappa)) / kappa
    sides = jax.lax.stop_gradient(jnp.abs(levels[..., None] - (errors < 0).astype(values.dtype)))
    if target_probs is None:
        return jnp.sum(jnp.mean(sides * losses, axis=-1), axis=-1)
    probs = jax.lax.stop_gradient(jnp.broadcast_to(target_probs, targets.shape))
    return jnp.sum(sides * losses * probs[..., None, :], axis=(-2, -1))


def quantile_huber_scanned(
    values: Values, levels: Levels, targets: Targets, target_probs: TargetProbs = None, kappa: float = 1.0
) -> Rows:
    """The quantile Huber loss of each row, one target after the other: O(nm) time, O(n) memory."""
    return _scanned_loss(*_aligned(values, levels, targets, target_probs), _check(kappa))


def quantile_huber_sorted(
    values: Values, levels: Levels, targets: Targets, target_probs: TargetProbs = None, kappa: float = 1.0
) -> Rows:
    """The quantile Huber loss of each row from sums over sorted targets: O((n + m) log m) time.

    The rounding errors are those of sums of squared distances from the median target, so a common offset costs no
    digits. If targets lie many κ apart, the error of a loss is small beside that loss but not beside κ.
    """
    return _sorted_loss(*_aligned(values, levels, targets, target_probs), _check(kappa))


def huber(error: Float[Array, "*shape"], kappa: float) -> Float[Array, "*shape"]:
    """The Huber loss of each error, quadratic up to `kappa`; half the square where `kappa` is infinite."""
    if not kappa > 0:
        raise ValueError(f"kappa must be above 0, where the loss turns from quadratic to linear, got {kappa}")
    clipped = jnp.clip(error, -kappa, kappa)
    return clipped * (error - 0.5 * clipped)


def categorical_cross_entropy(logits: Float[Array, "*batch n"], probs: Float[Array, "*batch n"]) -> Rows:
    """The cross-entropy −Σ p log softmax(logits) of each row; `probs`, the target, is held constant."""
    return -jnp.sum(jax.lax.stop_gradient(probs) * jax.nn.log_softmax(logits, axis=-1), axis=-1)


class QuantileInnovations(NamedTuple):
    """Minus the gradient of the loss, by which a single update moves quantiles, and its curvature, level by level."""

    innovations: Float[Array, "*batch n"]
    curvature: Float[Array, "*batch n"]


def quantile_innovations(
    values: Float[Array, "*batch n"],
    levels: Float[Array, "*shared n"],
    targets: Float[Array, "*batch m"],
    target_probs: Float[Array, "*batch m"] | None = None,
    kappa: float = 1.0,
) -> QuantileInnovations:
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
        return QuantileInnovations(jnp.sum(probs * (levels - below), axis=-1), jnp.sum(probs * near, axis=-1))
    sides = probs * jnp.abs(levels - (errors < 0).astype(values.dtype))
    slopes = jnp.clip(errors / kappa, -1.0, 1.0)
    bends = (jnp.abs(errors) <= kappa).astype(values.dtype) / kappa
    return QuantileInnovations(jnp.sum(sides * slopes, axis=-1), jnp.sum(sides * bends, axis=-1))


def _check(kappa: float) -> float:
    if not 0 <= kappa < float("inf"):
        raise ValueError(f"kappa must be finite and at least 0 (the pinball loss), got {kappa}")
    return float(kappa)


def _aligned(
    values: Values, levels: Levels, targets: Targets, target_probs: TargetProbs
) -> tuple[Values, Values, Targets, Targets | None]:
    probs = None if target_probs is None else jnp.broadcast_to(target_probs, targets.shape)
    return values, jnp.broadcast_to(levels, values.shape), targets, probs


def _with_gradient(loss_and_gradient: Callable[..., tuple[Rows, Values]]) -> Callable[..., Rows]:
    """The loss that `loss_and_gradient` computes, differentiated with respect to the values by what it computes."""

    def forward(values: Values, levels: Values, targets: Targets, probs: Targets | None, kappa: float) -> Rows:
        return loss_and_gradient(values, levels, targets, probs, kappa)[0]

    def backward(_: float, gradient: Values, cotangent: Rows) -> tuple[Values, None, None, None]:
        return cotangent[..., None] * gradient, None, None, None

    loss = jax.custom_vjp(forward, nondiff_argnums=(4,))
    loss.defvjp(loss_and_gradient, backward)
    return loss


def _scan(values: Values, levels: Values, targets: Targets, probs: Targets | None, kappa: float) -> tuple[Rows, Values]:
    """The loss and its gradient, accumulated over the targets."""

    def add(
        sums: tuple[Values, Values], target_and_prob: tuple[Rows, Rows | None]
    ) -> tuple[tuple[Values, Values], None]:
        target, prob = target_and_prob
        error = target[..., None] - values
        slope = jnp.sign(error) if kappa == 0 else jnp.clip(error * (1 / kappa), -1, 1)
        pull = jnp.where(error < 0, 1 - levels, levels) * slope
        if prob is not None:
            pull = prob[..., None] * pull
        losses, pulls = sums
        return (losses + pull * (error - (0.5 * kappa) * slope), pulls + pull), None

    zeros = jnp.zeros_like(values)
    scan_or_once = jax.tree.map(lambda array: jnp.moveaxis(array, -1, 0), (targets, probs))
    (losses, pulls), _ = jax.lax.scan(add, (zeros, zeros), scan_or_once, unroll=8 if values.size >= _LARGE else 2)
    scale = 1 / targets.shape[-1] if probs is None else 1.0
    return scale * jnp.sum(losses, axis=-1), -scale * pulls


def _sort(values: Values, levels: Values, targets: Targets, probs: Targets | None, kappa: float) -> tuple[Rows, Values]:
    """The loss and its gradient from prefix sums of the sorted targets.

    The targets that a value sees fall into four stretches, which end at θ − κ, θ, θ + κ and nowhere: linear and
    quadratic below it, quadratic and linear above it.
    """
    if probs is None:
        targets = jnp.sort(targets, axis=-1)
        weights = jnp.ones_like(targets)
    else:
        targets, weights = jax.lax.sort((targets, probs), dimension=targets.ndim - 1, num_keys=1)
    # Only distances from a point among the targets are squared and summed, so that an offset of all costs no digits.
    # The search compares what was given: a difference may round to a tie.
    middle = targets[..., targets.shape[-1] // 2, None]
    ends = jnp.concatenate(
        [
            _count(targets, jnp.concatenate([values - kappa, values], axis=-1), jnp.less),
            _count(targets, values + kappa, jnp.less_equal),
        ],
        axis=-1,
    )
    values, targets = values - middle, targets - middle
    stretches = [_stretches(weights * power, ends) for power in (jnp.ones_like(targets), targets, targets * targets)]
    (low, below, above, high), (low_1, below_1, above_1, high_1), (_, below_2, above_2, _) = stretches

    curvature = 0.0 if kappa == 0 else 1 / kappa
    slope_below = curvature * (below_1 - values * below) - low
    slope_above = curvature * (above_1 - values * above) + high
    square_below = below_2 - 2 * values * below_1 + values * values * below
    square_above = above_2 - 2 * values * above_1 + values * values * above
    loss_below = (0.5 * curvature) * square_below + (values - 0.5 * kappa) * low - low_1
    loss_above = (0.5 * curvature) * square_above - (values + 0.5 * kappa) * high + high_1
    scale = 1 / targets.shape[-1] if probs is None else 1.0
    loss = jnp.sum((1 - levels) * loss_below + levels * loss_above, axis=-1)
    return scale * loss, -scale * ((1 - levels) * slope_below + levels * slope_above)


def _count(
    ordered: Float[Array, "*batch m"], points: Float[Array, "*batch k"], compare: Callable[..., Array]
) -> Int[Array, "*batch k"]:
    """How many leading entries of a sorted row are, compared to each point, `compare`: by halving, in log₂ m steps.

    `jnp.searchsorted` takes one row; mapped over a batch it was no faster.
    """
    size = ordered.shape[-1]
    counts = jnp.zeros(points.shape, jnp.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        more = counts + step
        last = jnp.take_along_axis(ordered, jnp.minimum(more, size) - 1, axis=-1, mode="promise_in_bounds")
        counts = jnp.where((more <= size) & compare(last, points), more, counts)
        step //= 2
    return counts


def _stretches(terms: Targets, ends: Int[Array, "*batch thrice_n"]) -> list[Values]:
    """The sums of `terms` over the four stretches that three sets of ends, one after the other, divide a row into."""
    sums = jnp.cumsum(terms, axis=-1)
    total = sums[..., -1:]
    sums = jnp.concatenate([jnp.zeros_like(total), sums], axis=-1)
    first, second, third = jnp.split(jnp.take_along_axis(sums, ends, axis=-1, mode="promise_in_bounds"), 3, axis=-1)
    return [first, second - first, third - second, total - third]


_scanned_loss = _with_gradient(_scan)
_sorted_loss = _with_gradient(_sort)
