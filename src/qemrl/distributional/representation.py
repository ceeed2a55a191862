"""How a network holds a return distribution: the head, what it predicts, and the loss that teaches it.

A representation is a frozen record of settings with a few functions. The agent knows nothing else of it, so a new one
is a class beside the others here, a line in the registry and a docs page:

- `make_head` makes the parameters on top of the torso's features;
- `predict` gives the return distributions [batch, members, actions, n] for a purpose: `act` (choosing actions, also
  the greedy one of the Bellman target), `target` (what is backed up) or `report` (for people: no randomness);
- `loss` compares the prediction for the actions taken with a target distribution [batch, members, m];
- `convert` makes of a prediction what an estimator or a person reads, and `to_target` what is backed up, where that is
  not the same.

`members` counts heads that learn side by side, each from its own greedy action; it is one except for ensembles.
What is random (levels, noise in the weights) comes from the key; without one there is no noise in the weights.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from qemrl.estimators import Statistic
from qemrl.estimators.estimator import Content
from qemrl.estimators.levels import midpoints
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Key
from qemrl.types import ReturnDist

Purpose = Literal["act", "target", "report"]
MakeStreams = Callable[[int, int, Key], ActionStreams]
"""From features, outputs for each action and a key to a head's streams."""

Features = Float[Array, "batch features"]
Actions = Int[Array, " batch"]
Losses = Float[Array, "batch members"]

CONTENTS: tuple[Content, ...] = get_args(Content)


@runtime_checkable
class Representation(Protocol):
    """What agents ask of a representation. A new one inherits what it need not say."""

    @property
    def content(self) -> Content:
        """What a prediction holds: the mean alone, a distribution, or its quantiles."""
        ...

    @property
    def convertible(self) -> Content:
        """The most that `convert` makes of a prediction."""
        return self.content

    @property
    def num_members(self) -> int:
        """How many heads learn side by side, each from its own greedy action."""
        return 1

    @property
    def mask_rate(self) -> float | None:
        """How likely a member is to learn from a transition, drawn once for each; None where all learn from all."""
        return None

    @property
    def has_prior(self) -> bool:
        """Whether the features are followed by as many of a torso that never learns."""
        return False

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def has_own_levels(self) -> bool:
        """Whether two networks may hold their values at different levels, so that these cannot be averaged in pairs."""
        return False

    @property
    def fixed_quantiles(self) -> int | None:
        """How many quantiles there are, where they are always those at the midpoints; else None."""
        return None

    @property
    def quantile_counts(self) -> dict[str, int]:
        """The settings that say how many quantiles Q is estimated from."""
        return {}

    @property
    def num_pairs(self) -> int:
        """How many pairs of a predicted value and one of the target a member's loss compares."""
        return (self.fixed_quantiles or 1) ** 2

    def make_head(self, make_streams: MakeStreams, features: int, key: Key) -> Any:
        """Fresh parameters."""
        ...

    def predict(self, head: Any, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The return distributions [batch, members, actions, n]."""
        ...

    def loss(self, head: Any, features: Features, actions: Actions, target: ReturnDist, key: Key) -> Losses:
        """The loss of the predictions for `actions` against a fixed target [batch, members, m]."""
        ...

    def convert(self, dist: ReturnDist, content: Content) -> ReturnDist:
        """A prediction, of all actions or of one, as this content: as it is, where nothing else is said."""
        del content
        return dist

    def to_target(self, dist: ReturnDist) -> ReturnDist:
        """A prediction as a loss wants it for its target: as it is, where nothing else is said."""
        return dist

    def follow(self, head: Any, leader: Any, features: Features) -> Any:
        """The head of a further critic, with what it shares with the first one, whose head and features are given.

        Critics are joined level by level, so all must be read at the same levels.
        """
        del leader, features
        return head

    def optimizer(self, default: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer of all parameters: the default, unless some of the head's need their own."""
        return default


def require_content(needs: str, content: Content, representation: Representation, advice: str) -> None:
    """Raise unless predictions can be made this content; the message names what needs it, and what to do."""
    if CONTENTS.index(content) > CONTENTS.index(representation.convertible):
        what = "a return distribution" if content == "distribution" else "quantiles"
        raise ValueError(f"{needs} needs {what}, and {representation.name} has none; {advice}")


def check_compatible(estimator: Statistic, representation: Representation) -> None:
    """Raise unless the estimator can be computed from what the representation holds."""
    name = type(estimator).__name__
    require_content(name, estimator.requires, representation, "use EmpiricalMean with it")
    for field, count in representation.quantile_counts.items():
        if count < estimator.min_quantiles:
            raise ValueError(f"{name} needs at least {estimator.min_quantiles} quantiles, got {field}={count}")


def select_action(outputs: Float[Array, "batch actions n"], actions: Actions) -> Float[Array, "batch n"]:
    """The outputs of the actions taken."""
    if outputs.shape[1] == 1:  # there is nothing to choose, as with critics of continuous actions
        return outputs[:, 0]
    return jnp.take_along_axis(outputs, actions[:, None, None], axis=1)[:, 0]


def select_action_distribution(dist: ReturnDist, actions: Int[Array, "batch members"]) -> ReturnDist:
    """The distributions [batch, members, n] of one action for each member."""

    def pick(array: Any) -> Any:
        if array is None or array.ndim == 1:
            return array
        if array.shape[-2] == 1:  # shared by the actions
            return array[..., 0, :]
        return jnp.take_along_axis(array, actions[:, :, None, None], axis=2)[:, :, 0]

    return ReturnDist(*(pick(array) for array in dist))


def target_probs(target: ReturnDist) -> Float[Array, "batch members m"] | None:
    """The probabilities of a target's values, with the axes of the values; None where all have the same."""
    return None if target.probs is None else jnp.broadcast_to(target.probs, target.values.shape)


def softmax_shares(logits: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Probabilities from logits; none vanishes, as estimators want every value to count."""
    return jnp.maximum(jax.nn.softmax(logits, axis=-1), 1e-30)


def middle_levels(probs: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """The levels in the middle of shares that follow one another; rounding of their sum leads to none above one."""
    return jnp.minimum(jnp.cumsum(probs, axis=-1) - probs / 2, 1.0)


def quantiles_of_atoms(
    values: Float[Array, "*batch m"], probs: Float[Array, "*batch m"], count: int
) -> Float[Array, "*batch n"]:
    """The quantiles at midpoints of distributions on atoms in increasing order: where the levels are first reached."""
    reached = jnp.cumsum(probs, axis=-1)
    # Nothing between two levels and their sum's rounding is lost: the last atom is whatever no other is.
    levels = jnp.asarray(midpoints(count), jnp.float32).reshape((1,) * (reached.ndim - 1) + (count, 1))
    places = jnp.sum((reached[..., None, :-1] < levels).astype(jnp.int32), axis=-1)
    return jnp.take_along_axis(jnp.broadcast_to(values, probs.shape), places, axis=-1)


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise unless a setting is at least this."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_kappa(kappa: float) -> None:
    """Raise unless a quantile Huber loss can have this κ."""
    if not 0 <= kappa < float("inf"):
        raise ValueError(f"kappa must be finite and not negative, got {kappa}")


def require_positive(name: str, value: float) -> None:
    """Raise unless a setting is positive and finite."""
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and positive, got {value}")
