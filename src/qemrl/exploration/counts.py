"""The bonus for rarely tried actions, from how often each action was taken in each observation.

Observations that an environment numbers are counted exactly, all others by a hash: the signs of random projections
(SimHash, Charikar 2002; for counts Tang et al., 2017), which nearby observations share.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from qemrl.exploration.bonus import Bonus
from qemrl.exploration.epsilon_greedy import ActionContext
from qemrl.networks.torsos import JoinedReaders, make_reader
from qemrl.types import Array, EnvSpec

MAX_BITS = 24


class Counts(NamedTuple):
    """Visit counts, and how observations are found in them."""

    visits: Int[Array, "places actions"]
    """How often each action was taken, by the number or the hash of the observation."""

    projection: Float[Array, "features bits"] | None
    """What observations are hashed with; None where they are discrete."""

    center: Float[Array, " features"] | None
    """What is subtracted from observations before they are projected."""

    reward: Float[Array, " envs"]
    """The intrinsic reward of the last action in each environment."""

    reader: JoinedReaders | None = None
    """What makes a vector of observations that have several parts."""


@dataclass(frozen=True)
class CountBonus(Bonus):
    """(n + offset)^−1/2 for an action that was taken n times in such an observation (Bellemare et al., 2016)."""

    offset: float = 0.01
    """What is added to the count, so that an action never taken has a finite bonus."""

    reward: float = 0.0
    """β: this times the bonus is also added to the reward that is learned from, after the count has grown.

    Q then looks ahead to what is new, and not only at the action at hand. Bellemare et al. use 0.05.
    """

    bits: int = 16
    """The number of bits that observations are hashed to where they are not discrete."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.offset) and self.offset > 0):
            raise ValueError(f"offset must be positive, got {self.offset}")
        if not (math.isfinite(self.reward) and self.reward >= 0):
            raise ValueError(f"the bonus must not be negative, got reward={self.reward}")
        if not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be between 1 and {MAX_BITS}, got {self.bits}")

    def init(self, num_envs: int, spec: EnvSpec) -> Counts:
        """Nothing counted yet."""
        projection = center = reader = None
        if len(spec.sections) > 1:
            reader = cast("JoinedReaders", make_reader("mlp", spec, jax.random.key(0)))
        if spec.num_states is None:
            features = sum(part.num_components for part in spec.sections)
            projection = np.random.default_rng(0).standard_normal((features, self.bits), np.float32)
            center = _middle(spec, features)
            projection, center = jnp.asarray(projection), jnp.asarray(center)
        visits = jnp.zeros((spec.num_states or 2**self.bits, spec.num_actions), jnp.int32)
        return Counts(visits, projection, center, jnp.zeros(num_envs, jnp.float32), reader)

    def __call__(self, state: Counts, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action."""
        return self._bonus(lookup_visits(state, context.observation))

    def update(self, state: Counts, context: ActionContext, actions: Int[Array, " batch"]) -> Counts:
        """With these actions counted, and their intrinsic reward."""
        index = state_index(state, context.observation)
        state = count_visits(state, context.observation, actions)
        return state._replace(reward=self.reward * self._bonus(state.visits[index, actions]))

    def intrinsic_reward(self, state: Counts) -> Float[Array, " envs"] | None:
        """The intrinsic reward of the last actions; None where nothing is added to rewards."""
        return state.reward if self.reward > 0 else None

    def _bonus(self, visits: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        return (visits.astype(jnp.float32) + self.offset) ** -0.5


def _middle(spec: EnvSpec, features: int) -> Float[np.ndarray, " features"]:
    """The center of the observations, as far as it is known: signs of projections around it tell them apart."""
    if len(spec.sections) > 1:  # the reader has centered what has bounds
        return np.concatenate(
            [np.full(part.num_components, 0.5 * (part.dtype == "bool"), np.float32) for part in spec.sections]
        )
    middle = np.float32({"bool": 0.5, "uint8": 127.5}.get(spec.observation_dtype, 0.0))
    if spec.observation_low is not None and spec.observation_high is not None:
        middle = (np.asarray(spec.observation_low, np.float32) + np.asarray(spec.observation_high, np.float32)) / 2
    return np.broadcast_to(middle, features)


def state_index(state: Counts, observation: Any) -> Int[Array, " batch"]:
    """Where observations are counted: their numbers, or their hashes."""
    flat = observation if state.reader is None else state.reader(observation)
    flat = flat.reshape(observation.shape[0], -1).astype(jnp.float32)
    if state.projection is None or state.center is None:
        return jnp.argmax(flat, axis=-1).astype(jnp.int32)
    signs = (flat - state.center[None, :]) @ state.projection > 0
    powers = np.int32(2) ** np.arange(signs.shape[-1], dtype=np.int32)
    return jnp.sum(jnp.where(signs, powers[None, :], np.int32(0)), axis=-1)


def lookup_visits(state: Counts, observation: Any) -> Int[Array, "batch actions"]:
    """How often each action was counted in such observations."""
    return state.visits[state_index(state, observation)]


def count_visits(state: Counts, observation: Any, actions: Int[Array, " batch"]) -> Counts:
    """With these actions counted."""
    return state._replace(visits=state.visits.at[state_index(state, observation), actions].add(1))
