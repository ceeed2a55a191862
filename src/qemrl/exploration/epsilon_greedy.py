"""ε-greedy, the exploration of DQN."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, Int

from qemrl.exploration.context import ActionContext, greedy, random_with
from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec


@dataclass(frozen=True)
class EpsilonGreedy:
    """A random allowed action with probability ε, which falls in a straight line; else the greedy one."""

    initial: float = 1.0
    """ε at first."""

    final: float = 0.01
    """ε at last."""

    begin_steps: int = 0
    """How many steps ε stays at its first value."""

    over_steps: int = 250_000
    """Over how many steps it falls from the first to the last."""

    evaluation: float = 0.001
    """ε in evaluation."""

    def __post_init__(self) -> None:
        for name in ("initial", "final", "evaluation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability, got {getattr(self, name)}")
        if self.over_steps < 1 or self.begin_steps < 0:
            raise ValueError(f"over_steps must be positive and begin_steps not negative, got {self}")

    def start(self, num_envs: int, spec: EnvSpec) -> tuple[()]:
        """No state is kept."""
        del num_envs, spec
        return ()

    def epsilon(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """ε after `step` steps of training."""
        done = (step - self.begin_steps).astype(jnp.float32) / self.over_steps
        return self.initial + (self.final - self.initial) * jnp.clip(done, 0.0, 1.0)

    def select_action(
        self, state: tuple[()], context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], tuple[()]]:
        """Actions; the state stays empty."""
        epsilon = jnp.float32(self.evaluation) if evaluating else self.epsilon(context.step)
        return random_with(epsilon, context, greedy(context), key), state

    def reward(self, state: tuple[()]) -> None:
        """Nothing is added to rewards."""
        del state

    def check_compatible(self, representation: Any) -> None:
        """Q is all that it needs."""
        del representation
