"""One number, or probabilities of fixed atoms: DQN, C51, and C51's network taught by a smeared number (HL-Gauss)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qemrl.distributional.losses import categorical_cross_entropy, huber, project_categorical
from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    middle_levels,
    quantiles_of_atoms,
    require_at_least,
    require_positive,
    select_action,
    softmax_shares,
    target_probs,
)
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import midpoints
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import ReturnDist


@dataclass(frozen=True)
class Scalar(Representation):
    """The expected return alone, as in DQN."""

    kappa: float | None = 1.0
    """Where the Huber loss turns from quadratic to linear; None for never, which is half the squared error."""

    def __post_init__(self) -> None:
        if self.kappa is not None and not 0 < self.kappa < float("inf"):
            raise ValueError(f"kappa must be finite and positive, or None, got {self.kappa}")

    @property
    def content(self) -> Content:
        return "mean"

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """One output for each action."""
        return make_streams(features, 1, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """A distribution with all its mass on one value."""
        del purpose
        return ReturnDist(head(features, key)[:, None], midpoints(1))

    def loss(self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
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

    def __post_init__(self) -> None:
        require_at_least("num_atoms", self.num_atoms, 2)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    @property
    def content(self) -> Content:
        return "distribution"

    @property
    def convertible(self) -> Content:
        return "quantiles"

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_atoms": self.num_atoms}

    @property
    def num_pairs(self) -> int:
        return self.num_atoms**2

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
        probs = softmax_shares(head(features, key)[:, None])
        return ReturnDist(jnp.broadcast_to(jnp.asarray(self.support), probs.shape), middle_levels(probs), probs)

    def loss(self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The cross-entropy against the target on the atoms."""
        logits = select_action(head(features, key), actions)[:, None]
        return categorical_cross_entropy(logits, self._project(target))

    def _project(self, target: ReturnDist) -> Float[Array, "batch members n"]:
        """The target's probabilities on the atoms."""
        return project_categorical(target.values, _shares(target), jnp.asarray(self.support))

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """As quantiles: as many of the distribution's own, at midpoints, as there are atoms. This is ours."""
        if content != "quantiles":
            return dist
        assert dist.probs is not None
        return ReturnDist(quantiles_of_atoms(dist.values, dist.probs, self.num_atoms), midpoints(self.num_atoms))


@dataclass(frozen=True)
class GaussianHistogram(Categorical):
    """C51's network as a classifier of the expected return, HL-Gauss (Farebrother et al., 2024).

    The target is one number, smeared by a normal law over the bins around the atoms. Q is the mean of the learned
    probabilities; they are spread by that law and not by the return, so nothing but their mean can be asked for.
    """

    width: float = 0.75
    """The standard deviation of the normal law, in bins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("width", self.width)

    @property
    def content(self) -> Content:
        return "mean"

    @property
    def convertible(self) -> Content:
        return "mean"

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {}

    def _project(self, target: ReturnDist) -> Float[Array, "batch members n"]:
        """The share of each bin in a normal law around the mean of the target, cut off at the outermost bins' ends."""
        mean = jnp.clip(jnp.sum(_shares(target) * target.values, axis=-1, keepdims=True), self.low, self.high)
        spacing = (self.high - self.low) / (self.num_atoms - 1)
        ends = jnp.linspace(self.low - spacing / 2, self.high + spacing / 2, self.num_atoms + 1, dtype=mean.dtype)
        places = (ends.reshape((1,) * (mean.ndim - 1) + (-1,)) - mean) / (self.width * spacing)
        below = jax.scipy.special.ndtr(places)
        return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def _shares(dist: ReturnDist) -> Float[Array, "*batch n"]:
    probs = target_probs(dist)
    return jnp.full_like(dist.values, 1 / dist.values.shape[-1]) if probs is None else probs
