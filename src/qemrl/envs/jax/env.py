"""Environments in JAX, which run inside a compiled program: what one is, a time limit, and automatic resets.

A JAX environment is a record of pure functions on one environment; `jax.vmap` puts several side by side. It never
resets itself: `autoreset_step` does, and also gives the true next observation where an episode ended. All that an
environment remembers is in its state, a pytree of arrays, so that a state is all there is to save.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from qemrl.types import EnvSpec

EnvState = Any
"""A pytree of arrays, of the same structure, shapes and dtypes after every step."""

Action = Int[Array, ""] | Float[Array, "..."]
"""An int32 number, or a float32 array of the shape of `spec.box`, in its units."""


class Outcome(NamedTuple):
    """What a step led to."""

    state: EnvState
    observation: Array
    """The true next one, also where the episode ended."""

    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


@dataclass(frozen=True)
class JaxEnv:
    """An environment as pure functions that may be compiled, mapped and scanned.

    What `step` gives after an episode ended, until the next `reset`, is not specified.
    """

    spec: EnvSpec
    """What agents and replay must know."""

    reset: Callable[[PRNGKeyArray], tuple[EnvState, Array]]
    """From a key to the first state and observation of an episode."""

    step: Callable[[EnvState, Action, PRNGKeyArray], Outcome]
    """From a state, an action and a key to the outcome."""

    draw: Callable[[EnvState], UInt8[np.ndarray, "height width 3"]]
    """A picture of a state, on the host."""

    mask: Callable[[EnvState], Bool[Array, " actions"] | None] = lambda _: None
    """The actions that a state allows, at least one; None where all are always allowed (`spec.has_mask` is False)."""


class TimeLimitState(NamedTuple):
    """The state of an environment with a time limit."""

    inner: EnvState
    steps: Int[Array, ""]
    """How many steps the episode has had."""


def limit_time(env: JaxEnv, max_steps: int) -> JaxEnv:
    """The environment, truncated at the step that is number `max_steps` of an episode.

    As with Gymnasium's limit, an episode that terminates at that very step is both terminated and truncated.
    """
    if max_steps < 1:
        raise ValueError(f"a time limit of {max_steps} steps leaves no episode: give at least 1")

    def reset(key: PRNGKeyArray) -> tuple[TimeLimitState, Array]:
        inner, observation = env.reset(key)
        return TimeLimitState(inner, jnp.int32(0)), observation

    def step(state: TimeLimitState, action: Action, key: PRNGKeyArray) -> Outcome:
        outcome = env.step(state.inner, action, key)
        steps = state.steps + jnp.int32(1)
        truncated = outcome.truncated | (steps >= jnp.int32(max_steps))
        return outcome._replace(state=TimeLimitState(outcome.state, steps), truncated=truncated)

    return replace(
        env, reset=reset, step=step, draw=lambda state: env.draw(state.inner), mask=lambda state: env.mask(state.inner)
    )


class DelayedRewardState(NamedTuple):
    """The state of an environment whose rewards come at the end of an episode."""

    inner: EnvState
    reward: Float[Array, ""]
    """The sum of the episode's rewards so far."""


def delay_rewards(env: JaxEnv, env_id: str) -> JaxEnv:
    """The environment with all rewards of an episode paid in its last step: the same returns, and little to go by."""

    def reset(key: PRNGKeyArray) -> tuple[DelayedRewardState, Array]:
        inner, observation = env.reset(key)
        return DelayedRewardState(inner, jnp.float32(0)), observation

    def step(state: DelayedRewardState, action: Action, key: PRNGKeyArray) -> Outcome:
        outcome = env.step(state.inner, action, key)
        earned = state.reward + outcome.reward
        paid = jnp.where(outcome.terminated | outcome.truncated, earned, jnp.float32(0))
        return outcome._replace(state=DelayedRewardState(outcome.state, earned), reward=paid)

    return replace(
        env,
        spec=env.spec._replace(id=env_id),
        reset=reset,
        step=step,
        draw=lambda state: env.draw(state.inner),
        mask=lambda state: env.mask(state.inner),
    )


def autoreset_step(env: JaxEnv, state: EnvState, action: Action, key: PRNGKeyArray) -> tuple[EnvState, Array, Outcome]:
    """The state and the observation to act on next, and the outcome of the step.

    They are the outcome's own, or those of a new episode where the step ended one. The outcome keeps the true next
    state and observation, and so `env.mask(outcome.state)` is the mask to bootstrap with.
    """
    step_key, reset_key = jax.random.split(key)
    outcome = env.step(state, action, step_key)
    ended = outcome.terminated | outcome.truncated
    # A select and not a condition: mapped over environments a condition is a select, and all resets here are cheap.
    first = env.reset(reset_key)
    following = jax.tree.map(partial(jnp.where, ended), first, (outcome.state, outcome.observation))
    return *following, outcome
