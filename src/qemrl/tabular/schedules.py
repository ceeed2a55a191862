"""Learning rates and exploration over time."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Steps:
    """A schedule of constant pieces: `values[i]` until `ends[i]`, the last value for ever."""

    values: tuple[float, ...]
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.ends) + 1 or list(self.ends) != sorted(self.ends):
            raise ValueError(f"{len(self.values)} values need one end less, in increasing order; got {self.ends}")

    def __call__(self, count: Int[Array, ""]) -> Float[Array, ""]:
        """The value at a count of steps or episodes."""
        piece = sum(((count >= end).astype(jnp.int32) for end in self.ends), jnp.zeros((), jnp.int32))
        return jnp.asarray(self.values, jnp.float32)[piece]


@dataclass(frozen=True)
class Geometric:
    """A schedule of `base ** floor(count / every)`; the paper's ε is 0.9 ** floor(t / 100)."""

    base: float
    every: int = 1

    def __call__(self, count: Int[Array, ""]) -> Float[Array, ""]:
        """The value at a count of steps or episodes."""
        return jnp.float32(self.base) ** (count // self.every).astype(jnp.float32)


Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]
