"""The quantile function as a network of the level: IQN, and DSAC's critics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.distributional.losses import quantile_huber
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
from qemrl.estimators.levels import cumulative_levels, midpoints, stratified_levels, uniform_levels
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key, LayerNorm, Linear
from qemrl.types import ReturnDist

LevelSampler = Literal["uniform", "stratified", "cumulative", "midpoints"]

Gate = Literal["relu", "sigmoid"]
GATES: dict[Gate, Callable[[Array], Array]] = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid}


class ImplicitHead(eqx.Module):
    """The quantile function as a network of the level: features times an embedding of the level, then streams."""

    embedding: Linear
    streams: ActionStreams
    norm: LayerNorm | None = None
    gate: Gate = eqx.field(static=True, default="relu")

    def __call__(
        self, features: Features, levels: Float[Array, "rows n"], key: Key | None
    ) -> Float[Array, "batch n actions"]:
        """The values at levels [batch, n], or [1, n] for all alike; φ(τ) = gate(W cos(π i τ) + b), i = 1 … n."""
        embedded, last = self._embed(levels), self.streams.linear
        if levels.shape[0] > 1 or last is None:
            return self.streams(features[:, None, :] * embedded, key)[..., 0]
        # Σ_f ψ_bf φ_nf W_af as (ψ W) φ: never an array of batch x levels x features.
        weighed = features[:, None, :] * last.weight[None, :, :]
        values = jax.lax.dot_general(weighed, embedded[0], (((2,), (1,)), ((), ())))
        return values.swapaxes(1, 2) + last.bias[None, None, :]

    def select_values(
        self, features: Features, levels: Float[Array, "rows n"], actions: Actions, key: Key | None
    ) -> Float[Array, "batch n"]:
        """The values of one action for each row of the batch."""
        last = self.streams.linear
        if levels.shape[0] > 1 or last is None:
            return select_action(self(features, levels, key).swapaxes(1, 2), actions)
        # A product with ones and zeros, because XLA is slow to add up the gradients of rows that are looked up.
        chosen = jax.nn.one_hot(actions, self.streams.num_actions, dtype=jnp.float32)
        values = (features * (chosen @ last.weight)) @ self._embed(levels)[0].T
        return values + (chosen @ last.bias)[:, None]

    def _embed(self, levels: Float[Array, "rows n"]) -> Float[Array, "rows n features"]:
        frequencies = jnp.pi * jnp.arange(1, self.embedding.weight.shape[1] + 1, dtype=jnp.float32)
        cosines = jnp.cos(levels[..., None] * frequencies[None, None, :])
        embedded = self.embedding(cosines, None)
        return GATES[self.gate](embedded if self.norm is None else self.norm(embedded))


@dataclass(frozen=True)
class ImplicitQuantiles(Representation):
    """Quantiles at any level, sampled anew at each use, as in IQN.

    The table of the QEM paper says 32 levels; its code, and IQN's paper, have 64 / 64 / 32.
    """

    num_levels: int = 64
    """N: at how many levels the loss is taken."""

    num_target_levels: int = 64
    """N': at how many levels the target is evaluated."""

    num_acting_levels: int = 32
    """K: how many levels Q is estimated from, in acting and in choosing the target's action."""

    learning_levels: LevelSampler = "uniform"
    """How the N and the N' levels are drawn; IQN draws them independent and uniform."""

    acting_levels: LevelSampler = "uniform"
    """How the K levels are drawn; `stratified` and `midpoints` take most of the sampling noise out of Q.

    `cumulative` is DSAC's: the middles of random intervals that fill [0, 1], each of which counts by its width.
    """

    num_cosines: int = 64
    """The size of the level's cosine embedding."""

    gate: Gate = "relu"
    """What the embedding goes through before it multiplies the features; DSAC has `sigmoid`."""

    layer_norm: bool = False
    """A LayerNorm before the gate, as in DSAC."""

    kappa: float = 1.0
    """Where the quantile Huber loss turns from quadratic to linear; 0 gives exact quantile regression."""

    share_levels: bool = False
    """Whether the transitions of a batch share their levels, which saves most of the work on small networks.

    Each transition's levels are distributed as before, so expected gradients are the same; IQN draws them apart.
    """

    def __post_init__(self) -> None:
        for name in ("num_levels", "num_target_levels", "num_acting_levels", "num_cosines"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("learning_levels", "acting_levels"):
            if getattr(self, name) not in LEVEL_SAMPLERS:
                raise ValueError(f"{name} must be one of {', '.join(LEVEL_SAMPLERS)}; got {getattr(self, name)!r}")
        require_kappa(self.kappa)

    @property
    def content(self) -> Content:
        return "quantiles"

    @property
    def num_pairs(self) -> int:
        return self.num_levels * self.num_target_levels

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("num_levels", "num_target_levels", "num_acting_levels")}

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ImplicitHead:
        """An embedding of the level and one output for each action."""
        embedding_key, streams_key = jax.random.split(key)
        norm = LayerNorm(features) if self.layer_norm else None
        embedding = Linear(self.num_cosines, features, embedding_key)
        return ImplicitHead(embedding, make_streams(features, 1, streams_key), norm, self.gate)

    def predict(self, head: ImplicitHead, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles at the levels of the purpose; `report`, and acting without a key, use midpoints."""
        noise_key, levels_key = (None, None) if key is None else jax.random.split(key)
        sampler, count = self._sampler(purpose)
        if levels_key is None or sampler == "midpoints":
            fixed = midpoints(count)
            values = head(features, jnp.asarray(fixed, jnp.float32)[None], noise_key)
            return ReturnDist(values.swapaxes(1, 2)[:, None], fixed)
        levels, probs = LEVEL_SAMPLERS[sampler](levels_key, (self._rows(features), count))
        values = head(features, levels, noise_key).swapaxes(1, 2)
        return ReturnDist(values[:, None], levels[:, None, None], None if probs is None else probs[:, None, None])

    def loss(self, head: ImplicitHead, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The quantile Huber loss: summed over own levels, averaged over the target's atoms."""
        noise_key, levels_key = jax.random.split(key)
        levels, _ = LEVEL_SAMPLERS[self.learning_levels](levels_key, (self._rows(features), self.num_levels))
        values = head.select_values(features, levels, actions, noise_key)
        return quantile_huber(values[:, None], levels[:, None], target.values, target_probs(target), self.kappa)

    def _rows(self, features: Features) -> int:
        """How many sets of levels are drawn."""
        return 1 if self.share_levels else features.shape[0]

    def _sampler(self, purpose: Purpose) -> tuple[LevelSampler, int]:
        if purpose == "report":
            return "midpoints", self.num_levels
        if purpose == "target":
            return self.learning_levels, self.num_target_levels
        return self.acting_levels, self.num_acting_levels


Levels = Float[Array, "rows n"]
"""A set for each row of a batch, or one for all."""


def _same_midpoints(key: Key, shape: tuple[int, int]) -> tuple[Levels, None]:
    del key
    return jnp.asarray(midpoints(shape[1]), jnp.float32)[None], None


LEVEL_SAMPLERS: dict[str, Callable[[Key, tuple[int, int]], tuple[Levels, Levels | None]]] = {
    "uniform": lambda key, shape: (uniform_levels(key, shape, jnp.float32), None),
    "stratified": lambda key, shape: (stratified_levels(key, shape, jnp.float32), None),
    "cumulative": lambda key, shape: cumulative_levels(key, shape, jnp.float32),
    "midpoints": _same_midpoints,
}
"""Levels, and the probability that each stands for where they do not all stand for the same."""
