"""How estimates of Q become actions.

An exploration is a frozen record with `start`, which gives the state it keeps for the environments side by side, and
`choose`. It sees the whole situation, the return distributions included, so that bonuses need no other way in.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from qemrl.networks.layers import Key
from qemrl.types import Array, ReturnDist


class Situation(NamedTuple):
    """What is known when an action is chosen."""

    observation: Any
    dist: ReturnDist
    """[batch, members, actions, n]."""

    q: Float[Array, "batch members actions"]
    mask: Bool[Array, "batch actions"] | None
    """The actions allowed; None if all are."""

    first: Bool[Array, " batch"]
    """Whether an episode begins here."""

    step: Int[Array, ""]
    """How many steps each environment has done."""


@runtime_checkable
class Exploration(Protocol):
    """What the agent asks of an exploration."""

    def start(self, num_envs: int) -> Any:
        """The state before the first step."""
        ...

    def choose(self, state: Any, situation: Situation, key: Key, evaluating: bool) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on."""
        ...


def allowed(q: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"] | None) -> Float[Array, "..."]:
    """Q with −∞ for actions that are not allowed: the statistic is masked, never the distribution."""
    return q if mask is None else jnp.where(mask, q, jnp.float32(-jnp.inf))


def greedy(situation: Situation) -> Int[Array, " batch"]:
    """The action with the largest Q, averaged over members; the first of equals."""
    return jnp.argmax(allowed(jnp.mean(situation.q, axis=1), situation.mask), axis=-1).astype(jnp.int32)


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

    def start(self, num_envs: int) -> tuple[()]:
        """No state is kept."""
        del num_envs
        return ()

    def epsilon(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """ε after `step` steps of training."""
        done = (step - self.begin_steps).astype(jnp.float32) / self.over_steps
        return self.initial + (self.final - self.initial) * jnp.clip(done, 0.0, 1.0)

    def choose(
        self, state: tuple[()], situation: Situation, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], tuple[()]]:
        """Actions; the state stays empty."""
        epsilon = jnp.float32(self.evaluation) if evaluating else self.epsilon(situation.step)
        coin_key, action_key = jax.random.split(key)
        best = greedy(situation)
        # Gumbel noise on equal scores: a uniform draw among the allowed actions, however many there are.
        scores = allowed(jax.random.gumbel(action_key, situation.q.shape[::2], jnp.float32), situation.mask)
        random = jnp.argmax(scores, axis=-1).astype(jnp.int32)
        explore = jax.random.uniform(coin_key, best.shape, jnp.float32) < epsilon
        return jnp.where(explore, random, best), state
