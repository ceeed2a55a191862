"""Exploration by a bonus: Q plus a term for what is uncertain or new, which counts less and less.

With the schedules that say how much it counts, and the bonuses from the standard deviation of learned returns.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Float, Int

from qemrl.distributional.representation import Representation, check_compatible, require_content
from qemrl.estimators import QEM
from qemrl.estimators.estimator import Content
from qemrl.exploration.epsilon_greedy import (
    ActionContext,
    Exploration,
    argmax_action,
    check_probabilities,
    greedy_action,
    mix_random,
)
from qemrl.networks.layers import Key
from qemrl.types import Array, EnvSpec, ReturnDist

ROUNDING = 1e-6
"""How far a sum of probabilities may be from one half and still count as one half."""


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


@runtime_checkable
class Bonus(Protocol):
    """What is added to Q for each action. One that keeps no state and adds no reward inherits that."""

    @property
    def requires(self) -> Content:
        """What it reads in the return distributions."""
        return "mean"

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
        name = type(self).__name__
        require_content(name, self.requires, representation, "use CountBonus with it, or another representation")


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
        check_probabilities(self, "evaluation")

    @property
    def requires(self) -> Content:
        return self.bonus.requires

    def init(self, num_envs: int, spec: EnvSpec) -> Any:
        """The state of the bonus."""
        return self.bonus.init(num_envs, spec)

    def select_action(
        self, state: Any, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Any]:
        """Actions, and the state from here on; evaluation leaves the state alone."""
        if evaluating:
            return mix_random(jnp.float32(self.evaluation), context, greedy_action(context), key), state
        factor, warm_up = self._factor_and_epsilon(context.step, context.learning_starts)
        scores = jnp.mean(context.q, axis=1) + factor * self.bonus(state, context)
        actions = mix_random(warm_up, context, argmax_action(scores, context.mask), key)
        return actions, self.bonus.update(state, context, actions)

    def _factor_and_epsilon(
        self, step: Int[Array, ""], learning_starts: int
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """c_t, and the probability of a random action: one in the warm-up, then zero."""
        random_steps = learning_starts if self.random_steps is None else self.random_steps
        counted = step if self.count_from == "start" else jnp.maximum(step - random_steps + 1, 0)
        return self.schedule(counted), (step < random_steps).astype(jnp.float32)

    def scheduled(self, step: Int[Array, ""], learning_starts: int) -> dict[str, Float[Array, ""]]:
        """The weight of the bonus, and the probability of a random action."""
        factor, epsilon = self._factor_and_epsilon(step, learning_starts)
        return {"explore/bonus_factor": factor, "explore/epsilon": epsilon}

    def intrinsic_reward(self, state: Any) -> Float[Array, " envs"] | None:
        """What the bonus adds to rewards."""
        return self.bonus.intrinsic_reward(state)

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless the bonus finds what it needs."""
        self.bonus.check_compatible(representation)


def _probs(dist: ReturnDist) -> Float[Array, "*batch n"]:
    """The probability that each value stands for, with the axes of the values."""
    shares = jnp.float32(1 / dist.values.shape[-1]) if dist.probs is None else dist.probs
    return jnp.broadcast_to(shares, dist.values.shape)


@dataclass(frozen=True)
class LeftTruncatedStdBonus(Bonus):
    """The root of DLTV's left-truncated variance σ₊² = 1/2N Σ_{i ≥ N/2} (θ_i − θ_{N/2})² (Mavrin et al., 2019).

    θ_{N/2} is the median, so this is half of the variance above and around it. Quantiles that cross are put in order.
    """

    released: bool = False
    """As in the authors' code: around the mean, averaged over the upper half, and crossed quantiles stay crossed."""

    @property
    def requires(self) -> Content:
        """Quantiles for the released variant, which takes their upper half."""
        return "quantiles" if self.released else "distribution"

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        variance = self._released_variance if self.released else self._published_variance
        return jnp.mean(jnp.sqrt(variance(context.dist)), axis=1)

    def _published_variance(self, dist: ReturnDist) -> Float[Array, "batch members actions"]:
        order = jnp.argsort(dist.values, axis=-1)
        values, probs = (jnp.take_along_axis(each, order, axis=-1) for each in (dist.values, _probs(dist)))
        reached = jnp.cumsum(probs, axis=-1) >= 0.5 - ROUNDING
        median = jnp.take_along_axis(values, jnp.argmax(reached, axis=-1)[..., None], axis=-1)
        return jnp.sum(probs * jnp.maximum(values - median, 0.0) ** 2, axis=-1) / 2

    def _released_variance(self, dist: ReturnDist) -> Float[Array, "batch members actions"]:
        probs = _probs(dist)
        mean = jnp.sum(probs * dist.values, axis=-1, keepdims=True)
        levels = jnp.broadcast_to(jnp.asarray(dist.levels, jnp.float32), probs.shape)
        upper = jnp.where(levels >= 0.5 - ROUNDING, probs, 0.0)
        return jnp.sum(upper * (dist.values - mean) ** 2, axis=-1) / jnp.maximum(jnp.sum(upper, axis=-1), ROUNDING)


@dataclass(frozen=True)
class QEMStdBonus(Bonus):
    """The standard deviation of the return by QEM."""

    estimator: QEM = field(default_factory=QEM)
    """What is fitted to the quantiles."""

    coefficient: bool = False
    """As in the paper's code: |c₁|, the coefficient of the scale, instead of the root of the fit's whole variance."""

    @property
    def requires(self) -> Content:
        return "quantiles"

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        if self.coefficient:
            return jnp.mean(jnp.abs(self.estimator.coefficients(*context.dist)[..., 1]), axis=1)
        return jnp.mean(jnp.sqrt(self.estimator.moments(*context.dist).variance), axis=1)

    def __post_init__(self) -> None:
        if self.estimator.order < 2:
            raise ValueError(f"a QEM of order {self.estimator.order} fits no standard deviation: use order 2 or more")
        if self.estimator.needs:
            raise ValueError("a bonus has no VarianceInputs to estimate V from: use a variance of the levels alone")

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless there are quantiles to fit."""
        check_compatible(self.estimator, representation)


@dataclass(frozen=True)
class StdBonus(Bonus):
    """The standard deviation of the quantiles or atoms themselves."""

    @property
    def requires(self) -> Content:
        return "distribution"

    def __call__(self, state: Any, context: ActionContext) -> Float[Array, "batch actions"]:
        """The bonus of each action, averaged over members."""
        del state
        dist = context.dist
        probs = _probs(dist)
        mean = jnp.sum(probs * dist.values, axis=-1, keepdims=True)
        return jnp.mean(jnp.sqrt(jnp.sum(probs * (dist.values - mean) ** 2, axis=-1)), axis=1)
