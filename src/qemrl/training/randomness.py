"""Randomness by counters: every draw of a run is a pure function of its seed and of a count.

So a checkpoint needs no generator's state, and both loops draw the same numbers.
"""

from typing import NamedTuple

import jax
from jaxtyping import Array, Int, Integer, UInt32

from qemrl.networks.layers import Key


class Keys(NamedTuple):
    """One stream of randomness for each use."""

    init: Key
    """The first weights."""

    act: Key
    """Folded with the number of vector steps: levels, noise and exploration in actor."""

    update: Key
    """Folded with the number of updates: levels and noise in learning."""

    sample: Key
    """Folded with the number of updates: which transitions are learned from."""

    environment: Key
    """Folded with the number of vector steps: what happens in compiled environments."""

    evaluate: Key
    """Folded with the number of steps."""

    @staticmethod
    def of(seed: Integer[Array, ""] | int) -> "Keys":
        """The streams of a seed."""
        return Keys(*jax.random.split(jax.random.key(seed), 6))

    def bits(self, updates: Int[Array, ""], batch_size: int) -> UInt32[Array, " batch"]:
        """What decides which transitions an update learns from."""
        return jax.random.bits(jax.random.fold_in(self.sample, updates), (batch_size,), "uint32")
