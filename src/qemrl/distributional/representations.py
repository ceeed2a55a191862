"""How a network holds a return distribution: the head, what it predicts, and the loss that teaches it.

A representation is a frozen record of settings with three functions. The agent knows nothing else of it, so a new one
is a class here, a line in the registry and a docs page:

- `make_head` makes the parameters on top of the torso's features;
- `predict` gives the return distributions [batch, members, actions, n] for a purpose: `act` (choosing actions, also
  the greedy one of the Bellman target), `target` (what is backed up) or `report` (for people: no randomness);
- `loss` compares the prediction for the actions taken with a target distribution [batch, members, m].

`members` counts heads that learn side by side, each from its own greedy action; it is one except for ensembles.
What is random (levels, noise in the weights) comes from the key; without one there is no noise in the weights.

What comes next fits: proposed fractions (FQF) make levels and probs in `predict` and add the fraction loss in `loss`,
with `optimizer` giving the fraction parameters their own step; non-crossing and non-decreasing heads and splines change
`make_head` and `predict`; expectiles impute atoms in `predict(purpose="target")`; particles bring their own `loss`;
bootstrap heads use the member axis, and the exploration picks one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from qemrl.distributional.losses import categorical_cross_entropy, huber, project_categorical, quantile_huber
from qemrl.estimators import Statistic
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import cumulative_levels, midpoints, stratified_levels, uniform_levels
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key, LayerNorm, Linear
from qemrl.types import ReturnDist

Purpose = Literal["act", "target", "report"]
LevelSampler = Literal["uniform", "stratified", "cumulative", "midpoints"]
MakeStreams = Callable[[int, int, Key], ActionStreams]
"""From features, outputs for each action and a key to a head's streams."""

Gate = Literal["relu", "sigmoid"]
GATES: dict[Gate, Callable[[Array], Array]] = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid}

Features = Float[Array, "batch features"]
Actions = Int[Array, " batch"]

CONTENTS: tuple[Content, ...] = get_args(Content)


@runtime_checkable
class Representation(Protocol):
    """What agents ask of a representation. A new one inherits what it need not say."""

    content: ClassVar[Content]
    """What can be read from it: the mean alone, a distribution, or its quantiles."""

    @property
    def num_members(self) -> int:
        """How many heads learn side by side, each from its own greedy action."""
        return 1

    @property
    def fixed_quantiles(self) -> int | None:
        """How many quantiles there are, where they are always those at the midpoints; else None."""
        return None

    @property
    def quantile_counts(self) -> dict[str, int]:
        """The settings that say how many quantiles Q is estimated from."""
        return {}

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> Any:
        """Fresh parameters."""
        ...

    def predict(self, head: Any, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The return distributions [batch, members, actions, n]."""
        ...

    def loss(
        self, head: Any, features: Features, actions: Actions, target: ReturnDist, key: Key
    ) -> Float[Array, "batch members"]:
        """The loss of the predictions for `actions` against a fixed target [batch, members, m]."""
        ...

    def optimizer(self, default: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer of all parameters: the default, unless some of the head's need their own."""
        return default


def check_compatible(estimator: Statistic, representation: Representation) -> None:
    """Raise unless the estimator can be computed from what the representation holds."""
    name, kind = type(estimator).__name__, type(representation).__name__
    if CONTENTS.index(estimator.requires) > CONTENTS.index(representation.content):
        what = "a return distribution" if estimator.requires == "distribution" else "quantiles"
        raise ValueError(f"{name} needs {what}, and {kind} has none; use EmpiricalMean with it")
    for field, count in representation.quantile_counts.items():
        if count < estimator.min_quantiles:
            raise ValueError(f"{name} needs at least {estimator.min_quantiles} quantiles, got {field}={count}")


def select_action(outputs: Float[Array, "batch actions n"], actions: Actions) -> Float[Array, "batch n"]:
    """The outputs of the actions taken."""
    if outputs.shape[1] == 1:  # there is nothing to choose, as with critics of continuous actions
        return outputs[:, 0]
    return jnp.take_along_axis(outputs, actions[:, None, None], axis=1)[:, 0]


def _require_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _require_kappa(kappa: float) -> None:
    if not 0 <= kappa < float("inf"):
        raise ValueError(f"kappa must be finite and not negative, got {kappa}")


@dataclass(frozen=True)
class Scalar(Representation):
    """The expected return alone, as in DQN."""

    kappa: float | None = 1.0
    """Where the Huber loss turns from quadratic to linear; None for never, which is half the squared error."""

    content: ClassVar[Content] = "mean"

    def __post_init__(self) -> None:
        if self.kappa is not None and not 0 < self.kappa < float("inf"):
            raise ValueError(f"kappa must be finite and positive, or None, got {self.kappa}")

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """One output for each action."""
        return make_streams(features, 1, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """A distribution with all its mass on one value."""
        del purpose
        return ReturnDist(head(features, key)[:, None], midpoints(1))

    def loss(
        self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key
    ) -> Float[Array, "batch members"]:
        """The Huber loss of the TD error, or half its square."""
        error = jax.lax.stop_gradient(target.values) - select_action(head(features, key), actions)[:, None]
        return huber(error[..., 0], float("inf") if self.kappa is None else self.kappa)


@dataclass(frozen=True)
class Categorical(Representation):
    """Probabilities of fixed atoms, as in C51."""

    num_atoms: int = 51
    """How many atoms there are, equally spaced."""

    low: float = -10.0
    """The smallest return that can be represented."""

    high: float = 10.0
    """The largest return that can be represented. Larger ones are clipped, which biases Q."""

    content: ClassVar[Content] = "distribution"

    def __post_init__(self) -> None:
        _require_at_least("num_atoms", self.num_atoms, 2)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    @property
    def support(self) -> Float[np.ndarray, " n"]:
        """The atoms."""
        return np.linspace(self.low, self.high, self.num_atoms, dtype=np.float32)

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """A logit for each atom and action."""
        return make_streams(features, self.num_atoms, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The atoms with their probabilities; an atom's level is in the middle of its mass."""
        del purpose
        probs = jax.nn.softmax(head(features, key)[:, None], axis=-1)
        levels = jnp.cumsum(probs, axis=-1) - probs / 2
        return ReturnDist(jnp.broadcast_to(jnp.asarray(self.support), probs.shape), levels, probs)

    def loss(
        self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key
    ) -> Float[Array, "batch members"]:
        """The cross-entropy against the target's projection onto the atoms."""
        logits = select_action(head(features, key), actions)[:, None]
        probs = jnp.full_like(target.values, 1 / target.values.shape[-1]) if target.probs is None else target.probs
        projected = project_categorical(target.values, probs, jnp.asarray(self.support))
        return categorical_cross_entropy(logits, projected)


@dataclass(frozen=True)
class FixedQuantiles(Representation):
    """Quantiles at the midpoints (2i − 1) / 2N, as in QR-DQN."""

    num_quantiles: int = 200
    """N."""

    kappa: float = 1.0
    """Where the quantile Huber loss turns from quadratic to linear; 0 gives exact quantile regression."""

    num_heads: int = 1
    """Sets of quantiles on the same features, each of which learns from its own greedy action.

    They act on their mean. How much they disagree can be V (`HeadsVariance`).
    """

    content: ClassVar[Content] = "quantiles"

    def __post_init__(self) -> None:
        _require_at_least("num_quantiles", self.num_quantiles, 1)
        _require_at_least("num_heads", self.num_heads, 1)
        _require_kappa(self.kappa)

    @property
    def num_members(self) -> int:
        return self.num_heads

    @property
    def fixed_quantiles(self) -> int:
        return self.num_quantiles

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_quantiles": self.num_quantiles}

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """N outputs for each action and head."""
        return make_streams(features, self.num_heads * self.num_quantiles, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles."""
        del purpose
        return ReturnDist(self._by_head(head(features, key)), midpoints(self.num_quantiles))

    def _by_head(self, outputs: Float[Array, "batch actions outputs"]) -> Float[Array, "batch members actions n"]:
        if self.num_heads == 1:
            return outputs[:, None]
        return outputs.reshape(*outputs.shape[:2], self.num_heads, self.num_quantiles).swapaxes(1, 2)

    def loss(
        self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key
    ) -> Float[Array, "batch members"]:
        """The quantile Huber loss: summed over own levels, averaged over the target's atoms."""
        values = select_action(head(features, key), actions).reshape(-1, self.num_heads, self.num_quantiles)
        levels = jnp.asarray(midpoints(self.num_quantiles), jnp.float32)
        return quantile_huber(values, levels, target.values, _target_probs(target), self.kappa)


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

    content: ClassVar[Content] = "quantiles"

    def __post_init__(self) -> None:
        for name in ("num_levels", "num_target_levels", "num_acting_levels", "num_cosines"):
            _require_at_least(name, getattr(self, name), 1)
        for name in ("learning_levels", "acting_levels"):
            if getattr(self, name) not in LEVEL_SAMPLERS:
                raise ValueError(f"{name} must be one of {', '.join(LEVEL_SAMPLERS)}; got {getattr(self, name)!r}")
        _require_kappa(self.kappa)

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

    def loss(
        self, head: ImplicitHead, features: Features, actions: Actions, target: ReturnDist, key: Key
    ) -> Float[Array, "batch members"]:
        """The quantile Huber loss: summed over own levels, averaged over the target's atoms."""
        noise_key, levels_key = jax.random.split(key)
        levels, _ = LEVEL_SAMPLERS[self.learning_levels](levels_key, (self._rows(features), self.num_levels))
        values = head.select_values(features, levels, actions, noise_key)
        return quantile_huber(values[:, None], levels[:, None], target.values, _target_probs(target), self.kappa)

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


def _target_probs(target: ReturnDist) -> Float[Array, "batch members m"] | None:
    return None if target.probs is None else jnp.broadcast_to(target.probs, target.values.shape)


def select_action_distribution(dist: ReturnDist, actions: Int[Array, "batch members"]) -> ReturnDist:
    """The distributions [batch, members, n] of one action for each member."""

    def pick(array: Any) -> Any:
        if array is None or array.ndim == 1:
            return array
        if array.shape[-2] == 1:  # shared by the actions
            return array[..., 0, :]
        return jnp.take_along_axis(array, actions[:, :, None, None], axis=2)[:, :, 0]

    return ReturnDist(*(pick(array) for array in dist))
