"""Quantile functions that rise by their form: NC-QR-DQN, SPL-DQN and NDQFN."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qemrl.distributional.losses import quantile_huber
from qemrl.distributional.quantiles import FixedQuantiles, Outputs, Values
from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    require_at_least,
    require_kappa,
    select_action,
    target_probs,
)
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import midpoints, uniform_levels
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key, Linear
from qemrl.types import ReturnDist

Positive = Literal["softplus", "relu"]
POSITIVE: dict[Positive, Any] = {"softplus": jax.nn.softplus, "relu": jax.nn.relu}


def accumulate(steps: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """The sums of the first one, two, … steps: a product with a triangle of ones, which is faster than a scan."""
    count = steps.shape[-1]
    triangle = jnp.asarray(np.tri(count).T, steps.dtype)
    return jnp.matmul(steps, triangle, precision="highest")


def _require_positive_by(name: str, value: str) -> None:
    if value not in POSITIVE:
        raise ValueError(f"{name} must be one of {', '.join(POSITIVE)}; got {value!r}")


@dataclass(frozen=True)
class NonCrossingQuantiles(FixedQuantiles):
    """Quantiles that cannot cross, as in NC-QR-DQN (Zhou et al., 2020): θ_i = α Σ_{j ≤ i} softmax(…)_j + β.

    Logits, α and β are outputs of one network and share its features.
    """

    scale: Positive = "softplus"
    """What keeps α positive. The paper's `relu` freezes the distribution where α falls below zero."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive_by("scale", self.scale)

    @property
    def num_outputs(self) -> int:
        return self.num_quantiles + 2

    def values(self, outputs: Outputs) -> Values:
        """β to α + β, by the steps of a softmax."""
        steps = jax.nn.softmax(outputs[..., :-2], axis=-1)
        spread = POSITIVE[self.scale](outputs[..., -2, None])
        return outputs[..., -1, None] + spread * accumulate(steps)


SMALLEST = 1e-5
"""The least width, height and slope of a spline's bins, so that nothing is divided by zero."""

SERIES = 0.05
"""Below this size of k the integrals of 1 / (1 − k v²) are summed as series."""


class Spline(NamedTuple):
    """Rational-quadratic pieces [..., bins]: where they begin, how far they reach, and the slopes at both ends."""

    left: Values
    width: Values
    bottom: Values
    height: Values
    before: Values
    after: Values

    def read(self, levels: Float[np.ndarray, " n"]) -> Values:
        """The curve at fixed levels."""
        points = jnp.asarray(levels, self.left.dtype)
        passed = self.left[..., None, 1:] <= points.reshape((1,) * (self.left.ndim - 1) + (-1, 1))
        # A piece for each level, by a product with ones and zeros: XLA is slow to look up rows, and slower to add up
        # the gradients of rows that are looked up.
        place = jax.nn.one_hot(jnp.sum(passed, axis=-1), self.left.shape[-1], dtype=self.left.dtype)
        found = jnp.einsum("...nk,...kp->...np", place, jnp.stack(self, axis=-1), precision="highest")
        left, width, bottom, height, before, after = (found[..., i] for i in range(len(self)))
        along = jnp.clip((jnp.broadcast_to(points, left.shape) - left) / width, 0, 1)
        steep, mixed = height / width, along * (1 - along)
        rise = steep * along * along + before * mixed
        return bottom + height * rise / (steep + (before + after - 2 * steep) * mixed)

    def means(self) -> Values:
        """The mean of the curve over each piece, by its integral.

        A piece is bottom + height · (s ξ² + before · u) / (s + c u), ξ from 0 to 1, with s = height / width,
        u = ξ(1 − ξ) and c = before + after − 2s. As ξ² = ξ − u, and ξ counts as 1/2 by symmetry, what is left are the
        integrals of 1 / (s + c u) and u / (s + c u), which v = 2ξ − 1 and k = c / (4s + c) make functions of k.
        """
        s, slopes = self.height / self.width, self.before + self.after
        inverse, mixed = _integrals((slopes - 2 * s) / (slopes + 2 * s))
        rise = (2 * s * inverse + (self.before - s) * mixed) / (slopes + 2 * s)
        return self.bottom + self.height * rise


def _integrals(k: Values) -> tuple[Values, Values]:
    """∫ 1 / (1 − k v²) dv and ∫ (1 − v²) / (1 − k v²) dv from 0 to 1, for −1 < k < 1."""
    small = jnp.abs(k) < SERIES
    near, far = jnp.where(small, k, 0), jnp.where(small, 0.5, k)
    inverse = sum(near**n / (2 * n + 1) for n in range(6))
    mixed = sum(2 * near**n / ((2 * n + 1) * (2 * n + 3)) for n in range(6))
    root = jnp.sqrt(jnp.abs(far))
    closed = jnp.where(far > 0, jnp.arctanh(jnp.minimum(root, 1 - 1e-6)), jnp.arctan(root)) / root
    return jnp.where(small, inverse, closed), jnp.where(small, mixed, (1 - (1 - far) * closed) / far)


@dataclass(frozen=True)
class SplineQuantiles(FixedQuantiles):
    """A monotone rational-quadratic spline in the level, as in SPL-DQN (Luo et al., 2022), read at the midpoints.

    Of K bins on both axes the widths and heights are softmaxes, heights times α, and the slopes between are positive;
    at both ends the slope is 1. The curve runs from β to α + β.
    """

    num_bins: int = 16
    """K."""

    mean: Literal["grid", "exact"] = "grid"
    """What Q is the mean of: the quantiles at the midpoints, or the whole curve by its integral."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_bins", self.num_bins, 2)
        if self.mean not in ("grid", "exact"):
            raise ValueError(f"mean must be grid or exact, got {self.mean!r}")

    @property
    def content(self) -> Content:
        """Quantiles; or bins with their means and widths, where Q is the integral."""
        return "quantiles" if self.mean == "grid" else "distribution"

    @property
    def convertible(self) -> Content:
        return self.content

    @property
    def name(self) -> str:
        return type(self).__name__ if self.mean == "grid" else f"{type(self).__name__} with mean='exact'"

    @property
    def has_own_levels(self) -> bool:
        return self.mean == "exact"

    @property
    def fixed_quantiles(self) -> int | None:
        return self.num_quantiles if self.mean == "grid" else None

    @property
    def num_pairs(self) -> int:
        return self.num_quantiles**2

    @property
    def num_outputs(self) -> int:
        return 3 * self.num_bins + 1

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles; where Q is the integral, the mean of each bin with its width, but for targets."""
        if purpose == "target" or self.mean == "grid":
            return super().predict(head, features, purpose, key)
        spline = self._spline(self._by_head(head(features, key)))
        return ReturnDist(spline.means(), spline.left + spline.width / 2, spline.width)

    def values(self, outputs: Outputs) -> Values:
        """The spline at the midpoints."""
        return self._spline(outputs).read(midpoints(self.num_quantiles))

    def _spline(self, outputs: Outputs) -> Spline:
        count = self.num_bins
        ends = (count, 2 * count, 3 * count - 1, 3 * count)
        widths, heights, slopes, scale, shift = jnp.split(outputs, ends, axis=-1)
        widths, heights = (
            SMALLEST + (1 - SMALLEST * count) * jax.nn.softmax(logits, axis=-1) for logits in (widths, heights)
        )
        ones, inside = jnp.ones_like(scale), jax.nn.softplus(slopes) + SMALLEST
        before, after = jnp.concatenate([ones, inside], axis=-1), jnp.concatenate([inside, ones], axis=-1)
        left, bottom = (accumulate(steps) - steps for steps in (widths, heights))
        factor = jnp.exp(scale)
        return Spline(left, widths, shift + factor * bottom, factor * heights, before, after)


class IncrementHead(eqx.Module):
    """The value at the first level, and streams for the increment to each further one."""

    baseline: ActionStreams
    increments: ActionStreams
    embedding: Linear


@dataclass(frozen=True)
class NonDecreasingQuantiles(Representation):
    """Increments on a grid of levels, interpolated between them, as in NDQFN (Zhou et al., 2021).

    The levels are 0.001, 1/N, …, (N − 1)/N, 0.999. The increment to a level is a network of the features times the
    embedding of that level and of its difference to the one before. Beyond the ends the curve is flat, and Q is the
    integral of what is learned, which is the trapezoid rule on the grid.
    """

    num_levels: int = 32
    """N: how many increments there are."""

    num_loss_levels: int = 64
    """At how many random levels the loss is taken."""

    num_target_levels: int = 64
    """At how many random levels the target is read."""

    num_cosines: int = 64
    """The size of the level's cosine embedding."""

    increment: Positive = "relu"
    """What keeps increments from being negative; the paper has `relu`."""

    kappa: float = 1.0
    """Where the quantile Huber loss turns from quadratic to linear; 0 gives exact quantile regression."""

    def __post_init__(self) -> None:
        for name in ("num_levels", "num_loss_levels", "num_target_levels", "num_cosines"):
            require_at_least(name, getattr(self, name), 2 if name == "num_levels" else 1)
        _require_positive_by("increment", self.increment)
        require_kappa(self.kappa)

    @property
    def content(self) -> Content:
        return "quantiles"

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_levels": self.num_levels}

    @property
    def num_pairs(self) -> int:
        return self.num_loss_levels * self.num_target_levels

    @property
    def levels(self) -> Float[np.ndarray, " n"]:
        """The grid, N + 1 levels."""
        return np.concatenate([[END], np.arange(1, self.num_levels) / self.num_levels, [1 - END]])

    @property
    def probs(self) -> Float[np.ndarray, " n"]:
        """The share of each in the integral of the curve."""
        halves = np.diff(self.levels) / 2
        return np.concatenate([[END], halves]) + np.concatenate([halves, [END]])

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> IncrementHead:
        """An embedding of the level, one output for each action, and one for each action and increment."""
        embedding_key, baseline_key, increments_key = jax.random.split(key, 3)
        return IncrementHead(
            make_streams(features, 1, baseline_key),
            make_streams(2 * features, 1, increments_key),
            Linear(self.num_cosines, features, embedding_key),
        )

    def predict(self, head: IncrementHead, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The grid with its shares; for targets, the curve at random levels."""
        noise_key, levels_key = (None, None) if key is None else jax.random.split(key)
        values = self._grid(head, features, noise_key).swapaxes(1, 2)
        if purpose != "target" or levels_key is None:
            return ReturnDist(values[:, None], self.levels, self.probs)
        levels = uniform_levels(levels_key, (features.shape[0], self.num_target_levels), jnp.float32)
        return ReturnDist((values @ self._hats(levels))[:, None], levels[:, None, None])

    def loss(self, head: IncrementHead, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The quantile Huber loss at random levels: summed over them, averaged over the target's atoms."""
        noise_key, levels_key = jax.random.split(key)
        levels = uniform_levels(levels_key, (features.shape[0], self.num_loss_levels), jnp.float32)
        grid = select_action(self._grid(head, features, noise_key).swapaxes(1, 2), actions)
        values = (grid[:, None] @ self._hats(levels))[:, 0]
        return quantile_huber(values[:, None], levels[:, None], target.values, target_probs(target), self.kappa)

    def _grid(self, head: IncrementHead, features: Features, key: Key | None) -> Float[Array, "batch n actions"]:
        """The curve at the levels of the grid."""
        keys = (None, None) if key is None else jax.random.split(key)
        frequencies = np.pi * np.arange(1, self.num_cosines + 1)
        cosines = np.cos(self.levels[:, None] * frequencies).astype(np.float32)
        embedded = jax.nn.relu(head.embedding(jnp.asarray(cosines), None))
        steps = jnp.concatenate([embedded[1:], embedded[1:] - embedded[:-1]], axis=-1)
        both = jnp.concatenate([features, features], axis=-1)
        increments = head.increments(both[:, None, :] * steps[None], keys[0])[..., 0]
        start = head.baseline(features, keys[1])[:, None, :, 0]
        risen = accumulate(POSITIVE[self.increment](increments).swapaxes(1, 2)).swapaxes(1, 2)
        return jnp.concatenate([start, start + risen], axis=1)

    def _hats(self, levels: Float[Array, "batch m"]) -> Float[Array, "batch n m"]:
        """The share of each point of the grid in the curve at these levels, by linear interpolation."""
        grid = jnp.asarray(self.levels, jnp.float32)
        inside = jnp.clip(levels, grid[0], grid[-1])
        spacing = jnp.asarray(np.diff(self.levels), jnp.float32)
        place = (inside[:, None, :] - grid[None, :-1, None]) / spacing[None, :, None]
        rise = jnp.clip(place, 0, 1)  # how much of each increment there is
        before = jnp.concatenate([jnp.ones_like(rise[:, :1]), rise], axis=1)
        after = jnp.concatenate([rise, jnp.zeros_like(rise[:, :1])], axis=1)
        return before - after


END = 0.001
"""The first level; the last is as far from one."""
