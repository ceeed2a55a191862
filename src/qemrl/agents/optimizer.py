"""The optimizer that all agents use, and the schedules of its learning rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

RateFunction = Callable[[Any], Any]
"""A schedule of optax: from the number of updates before an update to its learning rate."""


@dataclass(frozen=True)
class AdamConfig:
    """The optimizer."""

    learning_rate: float | RateFunction = 5e-5
    """The step size; from Python also a schedule of optax, which is a function of the number of updates."""

    epsilon: float = 0.01 / 32
    """Adam's ε. With a loss that sums over quantiles it is part of the tuning, not a safeguard."""

    max_gradient_norm: float | None = None
    """Larger gradients are scaled down to this norm; None leaves them alone."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls, from the end of the warm-up to step `decay_steps`."""

    warmup_steps: int = 0
    """Over how many steps from the first update on the learning rate rises from zero."""

    decay_steps: int | None = None
    """The step at which a linear or cosine schedule arrives at `final_rate`, such as the run's `steps`."""

    final_rate: float = 0.0
    """The learning rate from there on."""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be positive or None, got {self.max_gradient_norm}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {self.warmup_steps}")
        decay = (self.schedule, self.decay_steps, self.final_rate)
        if callable(self.learning_rate):
            if decay != ("constant", None, 0.0) or self.warmup_steps:
                raise ValueError(
                    "learning_rate is a schedule of its own here: leave schedule, warmup_steps, decay_steps and "
                    "final_rate as they are, or give a number"
                )
            return
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.final_rate <= self.learning_rate:
            raise ValueError(f"final_rate must be in [0, learning_rate = {self.learning_rate}], got {self.final_rate}")
        if self.schedule != "constant" and self.decay_steps is None:
            raise ValueError(
                f"a {self.schedule} schedule needs decay_steps: the step at which it ends, such as `steps`"
            )
        if self.schedule == "constant" and decay != ("constant", None, 0.0):
            raise ValueError(
                f"decay_steps and final_rate are for the schedules linear and cosine; got {self.decay_steps} and "
                f"{self.final_rate} with a constant one"
            )

    def check_decay(self, first_update: int) -> None:
        """Raise unless there is something left to decay over when learning has begun."""
        begin = first_update + self.warmup_steps
        if self.decay_steps is not None and self.decay_steps <= begin:
            raise ValueError(
                f"optimizer.decay_steps is the step at which the learning rate has fallen, and must be beyond {begin}, "
                f"where the warm-up ends; got {self.decay_steps}"
            )

    def rate(self, updates: Int[Array, ""], first_update: int, update_every: int) -> float | Float[Array, ""]:
        """The learning rate of the update with this number, counted from zero.

        Args:
            updates: The number.
            first_update: The step of the first one.
            update_every: The steps between two.
        """
        if callable(self.learning_rate):
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                return jnp.asarray(self.learning_rate(updates), jnp.float32).reshape(())
        if self.schedule == "constant" and not self.warmup_steps:
            return self.learning_rate
        since = (updates * update_every).astype(jnp.float32)
        warmth = jnp.clip(since / self.warmup_steps, 0.0, 1.0) if self.warmup_steps else jnp.float32(1)
        if self.decay_steps is None:
            return self.learning_rate * warmth
        over = self.decay_steps - first_update - self.warmup_steps
        done = jnp.clip((since - self.warmup_steps) / over, 0.0, 1.0)
        left = 1 - done if self.schedule == "linear" else (1 + jnp.cos(jnp.pi * done)) / 2
        return warmth * (self.final_rate + (self.learning_rate - self.final_rate) * left)

    def make(self) -> optax.GradientTransformation:
        """The optax transformation; one with a schedule is told the rate with each update, and does not count."""
        if callable(self.learning_rate) or self.schedule != "constant" or self.warmup_steps:
            adam = optax.chain(optax.scale_by_adam(eps=self.epsilon), _scale_by_rate())
        else:
            adam = optax.adam(self.learning_rate, eps=self.epsilon)
        return (
            adam
            if self.max_gradient_norm is None
            else optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), adam)
        )


def first_update(learning_starts: int, batch_size: int, update_every: int) -> int:
    """The step of the first update."""
    return -(-max(learning_starts, batch_size) // update_every) * update_every


def _scale_by_rate() -> optax.GradientTransformationExtraArgs:
    """A step against the gradient, as long as the `rate` that is handed over with it."""

    def init(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        del params
        return jax.tree.map(lambda each: -extra_args["rate"] * each, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def init_optimizer(optimizer: optax.GradientTransformation, params: Any) -> optax.OptState:
    """The state of the optimizer before its first step."""
    return optimizer.init(eqx.filter(params, eqx.is_array))


def apply_gradient(
    optimizer: optax.GradientTransformation,
    gradient: Any,
    state: optax.OptState,
    params: Any,
    rate: float | Float[Array, ""],
) -> tuple[Any, optax.OptState]:
    """Parameters and the state of the optimizer after a step down the gradient, at this learning rate."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        changes, state = optax.with_extra_args_support(optimizer).update(gradient, state, params, rate=rate)
    return eqx.apply_updates(params, changes), state
