"""Quantiles at the midpoints, as in QR-DQN."""

from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.distributional.distances import cramer
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
from qemrl.estimators.levels import midpoints
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import ReturnDist

QuantileLoss = Literal["quantile-huber", "cramer"]

Outputs = Float[Array, "*batch outputs"]
Values = Float[Array, "*batch n"]


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

    loss_function: QuantileLoss = "quantile-huber"
    """What is minimized; `cramer`, the squared Cramér distance between the two distributions, has no `kappa`."""

    def __post_init__(self) -> None:
        require_at_least("num_quantiles", self.num_quantiles, 1)
        require_at_least("num_heads", self.num_heads, 1)
        require_kappa(self.kappa)
        if self.loss_function not in get_args(QuantileLoss):
            names = ", ".join(get_args(QuantileLoss))
            raise ValueError(f"loss_function must be one of {names}; got {self.loss_function!r}")
        if self.loss_function == "cramer" and self.kappa != 0:
            raise ValueError(f"the Cramér distance has no kappa: set kappa=0 with it, got {self.kappa}")

    @property
    def content(self) -> Content:
        """Quantiles; or particles, since the Cramér distance does not tell one order of them from another."""
        return "quantiles" if self.loss_function == "quantile-huber" else "distribution"

    @property
    def convertible(self) -> Content:
        return "quantiles" if self.loss_function == "cramer" else self.content

    @property
    def name(self) -> str:
        return type(self).__name__ + (" with loss_function='cramer'" if self.loss_function == "cramer" else "")

    @property
    def has_own_levels(self) -> bool:
        return self.loss_function == "cramer"

    @property
    def num_members(self) -> int:
        return self.num_heads

    @property
    def fixed_quantiles(self) -> int | None:
        return self.num_quantiles

    @property
    def quantile_counts(self) -> dict[str, int]:
        return {"num_quantiles": self.num_quantiles}

    @property
    def num_outputs(self) -> int:
        """How many outputs of the network the quantiles of a head and an action are made of."""
        return self.num_quantiles

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> ActionStreams:
        """The outputs for each action and head."""
        return make_streams(features, self.num_heads * self.num_outputs, key)

    def predict(self, head: ActionStreams, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles."""
        del purpose
        outputs = self._by_head(head(features, key))
        return ReturnDist(self.values(outputs), midpoints(self.num_quantiles))

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """Particles in order, where more than their mean is asked for."""
        if self.loss_function == "quantile-huber" or content == "mean":
            return dist
        return dist._replace(values=jnp.sort(dist.values, axis=-1))

    def _by_head(self, outputs: Float[Array, "batch actions all"]) -> Float[Array, "batch members actions outputs"]:
        if self.num_heads == 1:
            return outputs[:, None]
        return outputs.reshape(*outputs.shape[:2], self.num_heads, self.num_outputs).swapaxes(1, 2)

    def values(self, outputs: Outputs) -> Values:
        """The quantiles that outputs stand for: themselves."""
        return outputs

    def loss(self, head: ActionStreams, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The quantile Huber loss, summed over own levels and averaged over the target's atoms; or the Cramér loss."""
        outputs = select_action(head(features, key), actions).reshape(-1, self.num_heads, self.num_outputs)
        values, probs = self.values(outputs), target_probs(target)
        if self.loss_function == "cramer":
            return cramer(values, target.values, probs)
        levels = jnp.asarray(midpoints(self.num_quantiles), jnp.float32)
        return quantile_huber(values, levels, target.values, probs, self.kappa)
