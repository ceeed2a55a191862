"""Heads side by side that see different data and act in turns: Bootstrapped DQN, of any representation."""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    require_at_least,
    select_action,
)
from qemrl.estimators.estimator import Content
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import ReturnDist

LARGEST_NUMBER = 100
"""Each head is a network of its own in the program that learns."""


class Heads(eqx.Module):
    """The heads, and for each, if there are priors, a function that is never learned."""

    heads: tuple[Any, ...]
    priors: tuple[ActionStreams, ...]


@dataclass(frozen=True)
class Bootstrapped(Representation):
    """K heads of a representation on the same features, as in Bootstrapped DQN (Osband et al., 2016).

    Each learns from its own greedy action, and its gradient reaches the features divided by K. `HeadSampling` lets one
    act for an episode. With a prior each head's distribution is shifted by a random function of its own, which never
    changes (Osband et al., 2018).
    """

    head: Representation = field(default_factory=FixedQuantiles)
    """What each head holds."""

    num_heads: int = 10
    """K."""

    mask_probability: float = 1.0
    """How likely a head is to learn from a transition; drawn once for each, and stored with it."""

    prior_scale: float = 0.0
    """The size of the priors; zero for none."""

    def __post_init__(self) -> None:
        require_at_least("num_heads", self.num_heads, 2)
        if self.num_heads > LARGEST_NUMBER:
            raise ValueError(f"num_heads must be at most {LARGEST_NUMBER}, got {self.num_heads}")
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability must be above 0 and at most 1, got {self.mask_probability}")
        if not 0 <= self.prior_scale < float("inf"):
            raise ValueError(f"prior_scale must be finite and not negative, got {self.prior_scale}")
        if self.head.num_members > 1:
            kind = type(self.head).__name__
            raise ValueError(f"head is one of several here and cannot be several itself, as this {kind} is")

    @property
    def content(self) -> Content:
        return self.head.content

    @property
    def convertible(self) -> Content:
        return self.head.convertible

    @property
    def num_members(self) -> int:
        return self.num_heads

    @property
    def mask_rate(self) -> float | None:
        return None if self.mask_probability == 1 else self.mask_probability

    @property
    def has_own_levels(self) -> bool:
        return self.head.has_own_levels

    @property
    def has_prior(self) -> bool:
        return self.prior_scale > 0

    @property
    def fixed_quantiles(self) -> int | None:
        return self.head.fixed_quantiles

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {f"head.{name}": count for name, count in self.head.quantile_counts.items()}

    @property
    def num_pairs(self) -> int:
        return self.head.num_pairs

    @property
    def kappa(self) -> Any:
        """That of the heads."""
        return getattr(self.head, "kappa", None)

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> Heads:
        """K heads, and K priors on features of their own."""
        head_key, prior_key = jax.random.split(key)
        own = features // 2 if self.has_prior else features
        heads = tuple(
            self.head.make_head(make_streams, own, each) for each in jax.random.split(head_key, self.num_heads)
        )
        if not self.has_prior:
            return Heads(heads, ())
        keys = jax.random.split(prior_key, self.num_heads)
        return Heads(heads, tuple(make_streams(own, 1, each) for each in keys))

    def predict(self, head: Heads, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The distributions of all heads, along the member axis."""
        features, shifts = self._split(head, features)
        keys = [None] * self.num_heads if key is None else list(jax.random.split(key, self.num_heads))
        dists = [
            self.head.predict(each, features, purpose, each_key)
            for each, each_key in zip(head.heads, keys, strict=True)
        ]
        values, levels, probs = (_join(parts) for parts in zip(*dists, strict=True))
        return ReturnDist(values if shifts is None else values + shifts[..., None], levels, probs)

    def loss(self, head: Heads, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The loss of each head against its own target, from which a prior is taken off: that moves the head alike."""
        features, shifts = self._split(head, features)
        share = 1 / self.num_heads
        features = share * features + jax.lax.stop_gradient((1 - share) * features)
        if shifts is not None:
            taken = select_action(shifts.swapaxes(1, 2), actions)
            target = target._replace(values=target.values - taken[..., None])
        losses = [
            self.head.loss(each, features, actions, _member(target, place), each_key)
            for place, (each, each_key) in enumerate(
                zip(head.heads, jax.random.split(key, self.num_heads), strict=True)
            )
        ]
        return jnp.concatenate(losses, axis=1)

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """As the heads convert theirs."""
        return self.head.convert(dist, content)

    def to_target(self, dist: ReturnDist) -> ReturnDist:
        """As the heads do."""
        return self.head.to_target(dist)

    def optimizer(self, default: optax.GradientTransformation) -> optax.GradientTransformation:
        """That of the heads."""
        return self.head.optimizer(default)

    def _split(
        self, head: Heads, features: Float[Array, "batch all"]
    ) -> tuple[Features, Float[Array, "batch members actions"] | None]:
        """The features that are learned, and by how much the priors shift each head's returns."""
        if not self.has_prior:
            return features, None
        own, fixed = jnp.split(features, 2, axis=-1)
        shifts = jnp.stack([prior(fixed, None)[..., 0] for prior in head.priors], axis=1)
        return own, self.prior_scale * jax.lax.stop_gradient(shifts)


def _join(parts: tuple[Any, ...]) -> Any:
    """The members' arrays along the member axis, or what they share."""
    return parts[0] if parts[0] is None or jnp.ndim(parts[0]) == 1 else jnp.concatenate(parts, axis=1)


def _member(dist: ReturnDist, place: int) -> ReturnDist:
    """One member's part of distributions [batch, members, n]."""

    def pick(array: Any) -> Any:
        return array if array is None or jnp.ndim(array) == 1 or array.shape[1] == 1 else array[:, place : place + 1]

    return ReturnDist(*(pick(array) for array in dist))
