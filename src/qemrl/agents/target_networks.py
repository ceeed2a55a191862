"""Which networks quantiles come from before Q is estimated: averaging, the rival of estimators that err less."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from qemrl.types import ReturnDist

EMA_RATE = 5e-4
"""How far a EMA network moves to the network with each update."""


def polyak_update(slow: Any, network: Any, rate: float) -> Any:
    """The EMA network after it has moved to the network by a share of the way."""
    return jax.tree.map(lambda old, new: old + rate * (new - old), slow, network)


@dataclass(frozen=True)
class Online:
    """The online network acts, the target network is its latest copy: DQN."""

    def begin(self, network: Any) -> Any:
        """The target network."""
        return jax.tree.map(jnp.copy, network)

    def refreshed(self, frozen: Any, network: Any) -> Any:
        """The target network from here on."""
        del frozen
        return network

    def curves(self, frozen: Any, evaluate: Callable[[Any], ReturnDist]) -> ReturnDist:
        """The target network's return distributions."""
        return evaluate(frozen)


@dataclass(frozen=True)
class EMA(Online):
    """A EMA network of the online network, an exponential average of its past, acts and chooses the target's action."""

    rate: float = EMA_RATE
    """How far it moves to the online network with each update."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}")


@dataclass(frozen=True)
class Snapshots:
    """Targets are the mean curve of the last `count` target networks: Averaged-DQN (Anschel et al., 2017) in quantiles.

    Curves are averaged level by level, probabilities atom by atom. The online network acts.
    """

    count: int = 10
    """How many target networks are kept."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"there is nothing to average with fewer than two snapshots, got count={self.count}")

    def begin(self, network: Any) -> Any:
        """The target networks, side by side."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], self.count, axis=0), network)

    def refreshed(self, frozen: Any, network: Any) -> Any:
        """The target networks from here on: the newest first, the oldest is dropped."""
        return jax.tree.map(lambda old, new: jnp.concatenate([new[None], old[:-1]]), frozen, network)

    def curves(self, frozen: Any, evaluate: Callable[[Any], ReturnDist]) -> ReturnDist:
        """The mean of the target networks' return distributions."""

        def parts(network: Any) -> tuple[Any, Any]:
            dist = evaluate(network)
            return dist.values, dist.probs

        values, probs = (None if each is None else jnp.mean(each, axis=0) for each in jax.vmap(parts)(frozen))
        if probs is not None:
            return ReturnDist(values, jnp.cumsum(probs, axis=-1) - probs / 2, probs)
        # All snapshots have the same levels; fixed ones are no arrays of JAX, and must stay so to be known in advance.
        return evaluate(jax.tree.map(lambda leaf: leaf[0], frozen))._replace(values=values)
