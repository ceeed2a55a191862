"""What an exploration sees, what an agent asks of it, and the two choices that all of them are made of."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec, ReturnDist


class ActionContext(NamedTuple):
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
    """How many steps the agent has done in all its environments."""

    learning_starts: int = 0
    """How many steps there are before the first update."""


@runtime_checkable
class Exploration(Protocol):
    """What the agent asks of an exploration."""

    def start(self, num_envs: int, spec: EnvSpec) -> Any:
        """The state before the first step."""
        ...

    def select_action(
        self, state: Any, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on."""
        ...

    def reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What is added to the reward of the actions that were chosen last; None if nothing ever is."""
        ...

    def check_compatible(self, representation: Any) -> None:
        """Raise unless it finds what it needs in what the representation holds."""
        ...


def allowed(q: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"] | None) -> Float[Array, "..."]:
    """Q with −∞ for actions that are not allowed: the statistic is masked, never the distribution."""
    return q if mask is None else jnp.where(mask, q, jnp.float32(-jnp.inf))


def best(scores: Float[Array, "batch actions"], mask: Bool[Array, "batch actions"] | None) -> Int[Array, " batch"]:
    """The allowed action with the largest score; the first of equals."""
    return jnp.argmax(allowed(scores, mask), axis=-1).astype(jnp.int32)


def greedy(context: ActionContext) -> Int[Array, " batch"]:
    """The action with the largest Q, averaged over members."""
    return best(jnp.mean(context.q, axis=1), context.mask)


def random_with(
    epsilon: Float[Array, ""], context: ActionContext, otherwise: Int[Array, " batch"], key: Key
) -> Int[Array, " batch"]:
    """A random allowed action with probability ε, else the other one."""
    coin_key, action_key = jax.random.split(key)
    # Gumbel noise on equal scores: a uniform draw among the allowed actions, however many there are.
    random = best(jax.random.gumbel(action_key, context.q.shape[::2], jnp.float32), context.mask)
    explore = jax.random.uniform(coin_key, otherwise.shape, jnp.float32) < epsilon
    return jnp.where(explore, random, otherwise)
