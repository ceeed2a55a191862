"""Which networks act and which ones targets come from: the online network, an EMA of it, or the last snapshots."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from qemrl.types import ReturnDist

EMA_RATE = 5e-4
"""How far an EMA network moves toward the online network with each update."""


def polyak_update(average: Any, network: Any, rate: float) -> Any:
    """The average after it has moved by `rate` of the way to the network."""
    return jax.tree.map(lambda old, new: old + rate * (new - old), average, network)


@dataclass(frozen=True)
class Online:
    """The online network acts, the target network is its latest copy: DQN."""

    selects_target_action: ClassVar[bool] = False
    """Whether the network that acts also chooses the target's action."""

    def init_ema(self, network: Any) -> Any:
        """The network that acts in the place of the online one, if there is one."""
        del network

    def update_ema(self, ema: Any, network: Any) -> Any:
        """That network after an update of the online one."""
        del ema, network

    def acting_network(self, network: Any, ema: Any) -> Any:
        """The network that acts."""
        del ema
        return network

    def init_target(self, network: Any) -> Any:
        """The target network."""
        return jax.tree.map(jnp.copy, network)

    def refresh_target(self, target: Any, network: Any) -> Any:
        """The target network from here on."""
        del target
        return network

    def predict(self, target: Any, by_network: Callable[[Any], ReturnDist]) -> ReturnDist:
        """The target network's return distributions."""
        return by_network(target)


@dataclass(frozen=True)
class EMA(Online):
    """An exponential moving average of the online network acts and chooses the target's action."""

    rate: float = EMA_RATE
    """How far it moves toward the online network with each update."""

    selects_target_action: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}")

    def init_ema(self, network: Any) -> Any:
        return jax.tree.map(jnp.copy, network)

    def update_ema(self, ema: Any, network: Any) -> Any:
        return polyak_update(ema, network, self.rate)

    def acting_network(self, network: Any, ema: Any) -> Any:
        del network
        return ema


@dataclass(frozen=True)
class Snapshots(Online):
    """Targets are the mean of the last `count` target networks: Averaged-DQN (Anschel et al., 2017) in quantiles.

    Quantiles are averaged level by level, probabilities atom by atom. The online network acts.
    """

    count: int = 10
    """How many target networks are kept."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"there is nothing to average with fewer than two snapshots, got count={self.count}")

    def init_target(self, network: Any) -> Any:
        """The target networks, along a first axis."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], self.count, axis=0), network)

    def refresh_target(self, target: Any, network: Any) -> Any:
        """The target networks from here on: the newest first, the oldest is dropped."""
        return jax.tree.map(lambda old, new: jnp.concatenate([new[None], old[:-1]]), target, network)

    def predict(self, target: Any, by_network: Callable[[Any], ReturnDist]) -> ReturnDist:
        """The mean of the target networks' return distributions."""

        def predict_one(network: Any) -> tuple[Any, Any]:
            dist = by_network(network)
            return dist.values, dist.probs

        values, probs = (None if each is None else jnp.mean(each, axis=0) for each in jax.vmap(predict_one)(target))
        if probs is not None:
            return ReturnDist(values, jnp.cumsum(probs, axis=-1) - probs / 2, probs)
        # All snapshots have the same levels; fixed ones are not JAX arrays, and must stay so to be known in advance.
        return by_network(jax.tree.map(lambda leaf: leaf[0], target))._replace(values=values)
