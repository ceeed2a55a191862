"""Quantiles at levels that the network proposes for each state: FQF, and DSAC's third kind of levels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from qemrl.distributional.implicit import Gate, ImplicitHead, ImplicitQuantiles
from qemrl.distributional.losses import quantile_huber
from qemrl.distributional.monotone import accumulate
from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    require_at_least,
    require_kappa,
    softmax_shares,
    target_probs,
)
from qemrl.estimators.estimator import Content
from qemrl.networks.layers import Dense, Key, Linear
from qemrl.types import ReturnDist


class Fractions(NamedTuple):
    """Intervals that fill [0, 1]: the ends inside of it, the middles, and the widths, for each row of a batch."""

    ends: Float[Array, "batch n-1"]
    middles: Float[Array, "batch n"]
    widths: Float[Array, "batch n"]


class FractionNetwork(eqx.Module):
    """From features to the widths of intervals; the last layer begins near zero, and the widths near 1/N."""

    dense: Dense
    last: Linear

    def __call__(self, features: Features) -> Fractions:
        """The intervals; no gradient reaches the features."""
        logits = self.last(self.dense(jax.lax.stop_gradient(features)), None)
        widths = softmax_shares(logits)
        ends = accumulate(widths)
        return Fractions(ends[:, :-1], jnp.minimum(ends - widths / 2, 1.0), widths)  # a rounded sum may exceed one


class GivenFractions(eqx.Module):
    """Intervals that another head has proposed."""

    fractions: Fractions

    def __call__(self, features: Features) -> Fractions:
        """The same for all features."""
        del features
        return self.fractions


class FractionHead(eqx.Module):
    """The quantile function, and what proposes where it is read."""

    quantiles: ImplicitHead
    fractions: FractionNetwork | GivenFractions


@dataclass(frozen=True)
class ProposedFractions(Representation):
    """Quantiles in the middles of proposed intervals, each of which counts by its width, as in FQF (Yang et al., 2019).

    The ends of the intervals go down the gradient of the Wasserstein distance between the curve and its steps. Target
    network and online network propose their own. The proposals' gradient reaches nothing but their own network, which
    has an optimizer of its own, RMSProp.
    """

    num_fractions: int = 32
    """N."""

    num_cosines: int = 64
    """The size of the level's cosine embedding."""

    gate: Gate = "relu"
    """What the embedding goes through before it multiplies the features; DSAC has `sigmoid`."""

    layer_norm: bool = False
    """A LayerNorm before the gate, as in DSAC."""

    kappa: float = 1.0
    """Where the quantile Huber loss turns from quadratic to linear; 0 gives exact quantile regression."""

    fraction_widths: tuple[int, ...] = ()
    """The hidden layers of what proposes, between the features and the logits of the widths."""

    fraction_rate: float = 2.5e-9
    """The learning rate of the proposals. At the paper's they hardly move: compare with `fqf-uniform`."""

    fraction_loss: Literal["wasserstein", "squared"] = "wasserstein"
    """What the proposals minimize: the Wasserstein distance, or its squared slope, as in the authors' later code."""

    entropy: float = 0.0
    """How much the entropy of the widths is rewarded, so that no interval vanishes."""

    weigh_targets: bool = False
    """Whether target quantiles count by their widths, as in DSAC; FQF averages them as if all had the same."""

    def __post_init__(self) -> None:
        require_at_least("num_fractions", self.num_fractions, 2)
        require_at_least("num_cosines", self.num_cosines, 1)
        require_kappa(self.kappa)
        if any(width < 1 for width in self.fraction_widths):
            raise ValueError(f"fraction_widths must be at least 1 each, got {self.fraction_widths}")
        for name in ("fraction_rate", "entropy"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if self.fraction_loss not in ("wasserstein", "squared"):
            raise ValueError(f"fraction_loss must be wasserstein or squared, got {self.fraction_loss!r}")

    @property
    def content(self) -> Content:
        return "quantiles"

    @property
    def has_own_levels(self) -> bool:
        return True

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_fractions": self.num_fractions}

    @property
    def num_pairs(self) -> int:
        return self.num_fractions**2

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> FractionHead:
        """The head of IQN, and a network that proposes."""
        head_key, dense_key, last_key = jax.random.split(key, 3)
        levels = ImplicitQuantiles(num_cosines=self.num_cosines, gate=self.gate, layer_norm=self.layer_norm)
        dense = Dense(features, self.fraction_widths, False, dense_key)
        before = self.fraction_widths[-1] if self.fraction_widths else features
        network = FractionNetwork(dense, Linear(before, self.num_fractions, last_key, scale=0.01))
        return FractionHead(levels.make_head(make_streams, features, head_key), network)

    def follow(self, head: FractionHead, leader: FractionHead, features: Features) -> FractionHead:
        """The head with the intervals that the first critic proposes for its own features."""
        return FractionHead(head.quantiles, GivenFractions(jax.lax.stop_gradient(leader.fractions(features))))

    def predict(self, head: FractionHead, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles in the middles of the intervals, with the widths; the same for all purposes."""
        fractions = jax.lax.stop_gradient(head.fractions(features))
        values = head.quantiles(features, fractions.middles, key).swapaxes(1, 2)
        probs = None if purpose == "target" and not self.weigh_targets else fractions.widths[:, None, None]
        return ReturnDist(values[:, None], fractions.middles[:, None, None], probs)

    def loss(self, head: FractionHead, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The quantile Huber loss; the proposals' own loss adds its gradient, and nothing to the number."""
        fractions = head.fractions(features)
        middles = jax.lax.stop_gradient(fractions.middles)
        values = head.quantiles.select_values(features, middles, actions, key)
        losses = quantile_huber(values[:, None], middles[:, None], target.values, target_probs(target), self.kappa)
        if isinstance(head.fractions, GivenFractions):
            return losses
        frozen, features, values = jax.lax.stop_gradient((head.quantiles, features, values))
        proposals = self._fraction_loss(
            fractions, values, lambda levels: frozen.select_values(features, levels, actions, key)
        )
        return losses + (proposals - jax.lax.stop_gradient(proposals))[:, None]

    def _fraction_loss(
        self, fractions: Fractions, values: Float[Array, "batch n"], read: Callable[[Array], Array]
    ) -> Float[Array, " batch"]:
        """What the proposals minimize, with the curve as it is: the values in the middles, and `read` anywhere.

        The slope of the Wasserstein distance in the end τ_i is 2 q(τ_i) − q(τ̂_i) − q(τ̂_{i−1}).
        """
        if self.fraction_loss == "squared":
            values = read(fractions.middles)
            loss = jnp.sum(jnp.square(2 * read(fractions.ends) - values[:, 1:] - values[:, :-1]), axis=1)
        else:
            slopes = jax.lax.stop_gradient(2 * read(fractions.ends) - values[:, 1:] - values[:, :-1])
            loss = jnp.sum(slopes * fractions.ends, axis=1)
        if self.entropy:
            loss += self.entropy * jnp.sum(fractions.widths * jnp.log(fractions.widths + 1e-12), axis=1)
        return loss

    def optimizer(self, default: optax.GradientTransformation) -> optax.GradientTransformation:
        """RMSProp for what proposes, the default for the rest."""
        own = optax.rmsprop(self.fraction_rate, decay=0.95, eps=1e-5, centered=True)

        def label(params: Any) -> Any:
            def name(path: tuple[Any, ...], _: Any) -> str:
                inside = any(getattr(part, "name", None) == "fractions" for part in path)
                return "fractions" if inside else "default"

            return jax.tree_util.tree_map_with_path(name, params)

        return optax.partition({"default": default, "fractions": own}, label)
