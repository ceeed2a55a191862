"""How much a bonus counts, over the steps of a run."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Float, Int

from qemrl.types import Array


@runtime_checkable
class Schedule(Protocol):
    """A factor that depends on the number of steps alone."""

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The factor after `step` steps."""
        ...


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class SqrtLogDecay:
    """c √(log t / t), with t the number of the step, from one on (Mavrin et al., 2019)."""

    scale: float = 50.0
    """c."""

    until_steps: int | None = None
    """Where t stays; None lets it grow without end. The code released with DLTV stops at 2,000,000."""

    def __post_init__(self) -> None:
        _require(0 <= self.scale < math.inf, f"the bonus must be finite and not negative, got scale={self.scale}")
        _require(
            self.until_steps is None or self.until_steps > 0,
            f"until_steps must be positive or None, got {self.until_steps}",
        )

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The factor after `step` steps."""
        last = step if self.until_steps is None else jnp.minimum(step, self.until_steps)
        t = 1 + last.astype(jnp.float32)
        return self.scale * jnp.sqrt(jnp.log(t) / t)


@dataclass(frozen=True)
class PowerDecay:
    """c · t^−p, with t the number of the step, from one on."""

    scale: float = 1.0
    """c."""

    power: float = 0.5
    """p."""

    def __post_init__(self) -> None:
        _require(0 <= self.scale < math.inf, f"the bonus must be finite and not negative, got scale={self.scale}")
        _require(self.power >= 0, f"the factor must not grow: power must not be negative, got {self.power}")

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The factor after `step` steps."""
        return self.scale * (1 + step.astype(jnp.float32)) ** -self.power


@dataclass(frozen=True)
class LinearDecay:
    """Linear from one factor to another; the same one twice is a constant."""

    initial: float = 1.0
    """The initial factor."""

    final: float = 0.0
    """The final factor."""

    over_steps: int = 100_000
    """How many steps it takes."""

    def __post_init__(self) -> None:
        finite = all(0 <= each < math.inf for each in (self.initial, self.final))
        _require(finite, f"the bonus must be finite and not negative, got {self}")
        _require(self.over_steps >= 1, f"over_steps must be positive, got {self.over_steps}")

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The factor after `step` steps."""
        done = jnp.clip(step.astype(jnp.float32) / self.over_steps, 0.0, 1.0)
        return self.initial + (self.final - self.initial) * done
