"""The optimizer that all agents use."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import optax


@dataclass(frozen=True)
class AdamConfig:
    """The optimizer."""

    learning_rate: float = 5e-5
    """The step size."""

    epsilon: float = 0.01 / 32
    """Adam's ε. With a loss that sums over quantiles it is part of the tuning, not a safeguard."""

    max_gradient_norm: float | None = None
    """Larger gradients are scaled down to this norm; None leaves them alone."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not self.epsilon > 0:
            raise ValueError(f"learning_rate and epsilon must be positive, got {self}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be positive or None, got {self.max_gradient_norm}")

    def make(self) -> optax.GradientTransformation:
        """The optax transformation."""
        adam = optax.adam(self.learning_rate, eps=self.epsilon)
        return (
            adam
            if self.max_gradient_norm is None
            else optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), adam)
        )


def init_optimizer(optimizer: optax.GradientTransformation, params: Any) -> optax.OptState:
    """The state of the optimizer before its first step."""
    return optimizer.init(eqx.filter(params, eqx.is_array))


def apply_gradient(
    optimizer: optax.GradientTransformation, gradient: Any, state: optax.OptState, params: Any
) -> tuple[Any, optax.OptState]:
    """Parameters and the state of the optimizer after a step down the gradient."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        changes, state = optimizer.update(gradient, state, params)
    return eqx.apply_updates(params, changes), state
