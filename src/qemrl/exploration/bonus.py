"""BonusExploration: Q with a bonus for what is uncertain or new, which counts less and less."""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, Int

from qemrl.exploration.context import ActionContext, best, greedy, random_with
from qemrl.exploration.counts import CountBonus, Counts
from qemrl.exploration.schedules import LinearDecay, PowerDecay, SqrtLogDecay
from qemrl.exploration.std_bonuses import LeftTruncatedStdBonus, QEMStdBonus, StdBonus
from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec


@dataclass(frozen=True)
class BonusExploration:
    """The action with the largest Q + c_t · bonus; in evaluation the greedy one."""

    bonus: LeftTruncatedStdBonus | QEMStdBonus | StdBonus | CountBonus = field(default_factory=LeftTruncatedStdBonus)
    """What is added to Q."""

    schedule: SqrtLogDecay | PowerDecay | LinearDecay = field(default_factory=SqrtLogDecay)
    """c_t: how much of it."""

    random_steps: int | None = None
    """For how many steps actions are random, before; None means until the first update."""

    evaluation: float = 0.001
    """The probability of a random action in evaluation."""

    def __post_init__(self) -> None:
        if self.random_steps is not None and self.random_steps < 0:
            raise ValueError(f"random_steps must not be negative, got {self.random_steps}")
        if not 0 <= self.evaluation <= 1:
            raise ValueError(f"evaluation must be a probability, got {self.evaluation}")

    def start(self, num_envs: int, spec: EnvSpec) -> Counts | tuple[()]:
        """Counts, where they are the bonus; else no state is kept."""
        return self.bonus.start(num_envs, spec) if isinstance(self.bonus, CountBonus) else ()

    def select_action(
        self, state: Any, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on; in evaluation nothing is counted."""
        if evaluating:
            return random_with(jnp.float32(self.evaluation), context, greedy(context), key), state
        if isinstance(self.bonus, CountBonus):
            bonus = self.bonus.of(state, context.observation)
        else:
            bonus = self.bonus(context.dist)
        scores = jnp.mean(context.q, axis=1) + self.schedule(context.step) * bonus
        random_steps = context.learning_starts if self.random_steps is None else self.random_steps
        warm_up = (context.step < random_steps).astype(jnp.float32)
        actions = random_with(warm_up, context, best(scores, context.mask), key)
        if isinstance(self.bonus, CountBonus):
            state = self.bonus.after(state, context.observation, actions)
        return actions, state

    def reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What novelty earned, if it earns anything."""
        return state.reward if isinstance(self.bonus, CountBonus) and self.bonus.reward > 0 else None

    def check_compatible(self, representation: Any) -> None:
        """Raise unless the bonus finds what it needs."""
        self.bonus.check_compatible(representation)
