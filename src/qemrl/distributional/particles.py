"""Particles: samples of the return that have no levels, learned by maximum mean discrepancy (MMD-DQN)."""

from dataclasses import dataclass

import jax.numpy as jnp

from qemrl.distributional.distances import mmd
from qemrl.distributional.representation import (
    Actions,
    Features,
    Losses,
    MakeStreams,
    Purpose,
    Representation,
    require_at_least,
    require_positive,
    select_action,
    target_probs,
)
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import midpoints
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import ReturnDist


@dataclass(frozen=True)
class Particles(Representation):
    """N equally likely particles in no order, as in MMD-DQN (Nguyen-Tang et al., 2021)."""

    num_particles: int = 200
    """N."""

    bandwidths: tuple[float, ...] = tuple(float(width) for width in range(1, 11))
    """The h of the kernel Σ_h exp(−d²/h). Particles much farther than √h from all others are not moved."""

    def __post_init__(self) -> None:
        require_at_least("num_particles", self.num_particles, 1)
        if not self.bandwidths:
            raise ValueError("bandwidths must be at least one positive number, such as 1 2 4; got none")
        for width in self.bandwidths:
            require_positive("bandwidths", width)

    @property
    def content(self) -> Content:
        return "distribution"

    @property
    def convertible(self) -> Content:
        return "quantiles"

    @property
    def has_own_levels(self) -> bool:
        return True

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_particles": self.num_particles}

    @property
    def num_pairs(self) -> int:
        return self.num_particles

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """An output for each particle and action."""
        return make_streams(features, self.num_particles, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The particles; `convert` puts them in the order that their levels stand for."""
        del purpose
        return ReturnDist(head(features, key)[:, None], midpoints(self.num_particles))

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """Sorted, where more than the mean is asked for: quantiles of the particles' own distribution. This is ours."""
        return dist if content == "mean" else dist._replace(values=jnp.sort(dist.values, axis=-1))

    def loss(self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The squared maximum mean discrepancy."""
        values = select_action(head(features, key), actions)[:, None]
        return mmd(values, target.values, target_probs(target), self.bandwidths)
