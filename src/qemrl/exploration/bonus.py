"""Exploration by a bonus: Q plus a term for what is uncertain or new, which counts less and less."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Float, Int

from qemrl.distributional.representations import Representation
from qemrl.exploration.epsilon_greedy import ActionContext, Exploration, argmax_action, greedy_action, mix_random
from qemrl.exploration.schedules import Schedule, SqrtLogDecay
from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec


@runtime_checkable
class Bonus(Protocol):
    """What is added to Q for each action. One that keeps no state and adds no reward inherits that."""

    def init(self, num_envs: int, spec: EnvSpec) -> Any:
        """The state before the first step."""
        del num_envs, spec
        return ()

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action."""
        ...

    def update(self, state: Any, context: ActionContext, actions: Int[Array, " batch"]) -> Any:
        """The state after these actions."""
        del context, actions
        return state

    def intrinsic_reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What is added to the reward of the last actions; None if nothing ever is."""
        del state

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless it finds what it needs in what the representation holds."""
        del representation


@dataclass(frozen=True)
class BonusExploration(Exploration):
    """The action with the largest Q + c_t · bonus; in evaluation the greedy one."""

    bonus: Bonus
    """What is added to Q."""

    schedule: Schedule = field(default_factory=SqrtLogDecay)
    """c_t: the weight of the bonus."""

    random_steps: int | None = None
    """For how many steps actions are random at the start; None means until the first update."""

    count_from: Literal["start", "warm-up"] = "start"
    """From where the schedule counts: the first step, as published; or the last random one, as DLTV's code does.

    On Atari, DLTV's first factor c_t is 0.74 by the one and 29.4 by the other.
    """

    evaluation: float = 0.001
    """The probability of a random action in evaluation."""

    def __post_init__(self) -> None:
        if self.random_steps is not None and self.random_steps < 0:
            raise ValueError(f"random_steps must not be negative, got {self.random_steps}")
        if self.count_from not in ("start", "warm-up"):
            raise ValueError(f"count_from must be start or warm-up, got {self.count_from!r}")
        if not 0 <= self.evaluation <= 1:
            raise ValueError(f"evaluation must be a probability, got {self.evaluation}")

    def init(self, num_envs: int, spec: EnvSpec) -> Any:
        """The state of the bonus."""
        return self.bonus.init(num_envs, spec)

    def select_action(
        self, state: Any, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on; evaluation leaves the state alone."""
        if evaluating:
            return mix_random(jnp.float32(self.evaluation), context, greedy_action(context), key), state
        random_steps = context.learning_starts if self.random_steps is None else self.random_steps
        counted = context.step if self.count_from == "start" else jnp.maximum(context.step - random_steps + 1, 0)
        scores = jnp.mean(context.q, axis=1) + self.schedule(counted) * self.bonus(state, context)
        warm_up = (context.step < random_steps).astype(jnp.float32)
        actions = mix_random(warm_up, context, argmax_action(scores, context.mask), key)
        return actions, self.bonus.update(state, context, actions)

    def intrinsic_reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What the bonus adds to rewards."""
        return self.bonus.intrinsic_reward(state)

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless the bonus finds what it needs."""
        self.bonus.check_compatible(representation)
