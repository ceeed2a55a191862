"""Discrete actions from estimates of Q: what an exploration sees, what an agent asks of it, and ε-greedy."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from qemrl.distributional.representation import Representation
from qemrl.estimators.estimator import Content
from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec, ReturnDist


class ActionContext(NamedTuple):
    """What is known when an action is chosen."""

    observation: Any
    dist: ReturnDist
    """[batch, members, actions, n], as the content that the exploration requires."""

    q: Float[Array, "batch members actions"]
    mask: Bool[Array, "batch actions"] | None
    """The actions allowed; None if all are."""

    first: Bool[Array, " batch"]
    """Whether an episode begins here."""

    step: Int[Array, ""]
    """How many steps the agent has done in all its environments."""

    learning_starts: int = 0
    """How many steps there are before the first update."""


@runtime_checkable
class Exploration(Protocol):
    """What an agent asks of an exploration. One that keeps no state and adds no reward inherits that."""

    @property
    def requires(self) -> Content:
        """What it must be shown of the return distributions, beside Q."""
        return "mean"

    def init(self, num_envs: int, spec: EnvSpec) -> Any:
        """The state before the first step."""
        del num_envs, spec
        return ()

    def select_action(
        self, state: Any, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on."""
        ...

    def intrinsic_reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What is added to the reward of the last actions; None if nothing ever is."""
        del state

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless it finds what it needs in what the representation holds."""
        del representation

    def scheduled(self, step: Int[Array, ""], learning_starts: int) -> dict[str, Float[Array, ""]]:
        """What depends on the number of steps alone, by tag, for a log."""
        del step, learning_starts
        return {}


def mask_q(q: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"] | None) -> Float[Array, "..."]:
    """Q with −∞ for actions that are not allowed: the statistic is masked, never the distribution."""
    return q if mask is None else jnp.where(mask, q, jnp.float32(-jnp.inf))


def argmax_action(
    scores: Float[Array, "batch actions"], mask: Bool[Array, "batch actions"] | None
) -> Int[Array, " batch"]:
    """The allowed action with the largest score; the first of equals."""
    return jnp.argmax(mask_q(scores, mask), axis=-1).astype(jnp.int32)


def greedy_action(context: ActionContext) -> Int[Array, " batch"]:
    """The action with the largest Q, averaged over members."""
    return argmax_action(jnp.mean(context.q, axis=1), context.mask)


def mix_random(
    epsilon: Float[Array, ""], context: ActionContext, action: Int[Array, " batch"], key: Key
) -> Int[Array, " batch"]:
    """A random allowed action with probability ε, else `action`."""
    coin_key, action_key = jax.random.split(key)
    # Gumbel noise on equal scores: a uniform draw among the allowed actions, however many there are.
    random = argmax_action(jax.random.gumbel(action_key, context.q.shape[::2], jnp.float32), context.mask)
    explore = jax.random.uniform(coin_key, action.shape, jnp.float32) < epsilon
    return jnp.where(explore, random, action)


def check_probabilities(record: Any, *names: str) -> None:
    """Raise unless these fields are probabilities."""
    for name in names:
        if not 0 <= getattr(record, name) <= 1:
            raise ValueError(f"{name} must be a probability, got {getattr(record, name)}")


@dataclass(frozen=True)
class EpsilonGreedy(Exploration):
    """A random allowed action with probability ε, which falls linearly; else the greedy one."""

    initial: float = 1.0
    """The initial ε."""

    final: float = 0.01
    """The final ε."""

    begin_steps: int = 0
    """How many steps ε stays at its initial value."""

    over_steps: int = 250_000
    """Over how many steps it falls from the initial to the final value."""

    evaluation: float = 0.001
    """ε in evaluation."""

    def __post_init__(self) -> None:
        check_probabilities(self, "initial", "final", "evaluation")
        if self.over_steps < 1 or self.begin_steps < 0:
            raise ValueError(f"over_steps must be positive and begin_steps not negative, got {self}")

    def epsilon(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """ε after `step` steps of training."""
        done = (step - self.begin_steps).astype(jnp.float32) / self.over_steps
        return self.initial + (self.final - self.initial) * jnp.clip(done, 0.0, 1.0)

    def select_action(
        self, state: tuple[()], context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], tuple[()]]:
        """A random action with probability ε."""
        epsilon = jnp.float32(self.evaluation) if evaluating else self.epsilon(context.step)
        return mix_random(epsilon, context, greedy_action(context), key), state

    def scheduled(self, step: Int[Array, ""], learning_starts: int) -> dict[str, Float[Array, ""]]:
        """ε."""
        del learning_starts
        return {"explore/epsilon": self.epsilon(step)}
