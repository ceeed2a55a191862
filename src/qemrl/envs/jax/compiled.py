"""Environments that run inside a compiled program: what one is, a time limit, automatic resets, and the list by id.

A compiled environment is a record of pure functions on one environment; `jax.vmap` puts several side by side. It never
resets itself: `autoreset_step` does, and also gives the true next observation where an episode ended. All that an
environment remembers is in its state, a pytree of arrays, so that a state is all there is to save.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
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

PREFIXES = ("minatar/", "jax/", "probe/")
"""What the id of a compiled environment begins with; every other id is Gymnasium's."""

DEEP_SEA_SIZES = range(5, 31)
CHAIN_SIZES = (10, 20, 30, 50, 100)

MINATAR_GAMES = ("breakout", "asterix", "freeway", "seaquest", "space_invaders")


class Outcome(NamedTuple):
    """What a step led to."""

    state: EnvState
    observation: Array
    """The true next one, also where the episode ended."""

    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


@dataclass(frozen=True)
class CompiledEnv:
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
    """The actions that a state allows, at least one; None where all are allowed always (`spec.has_mask` is False)."""


class Timed(NamedTuple):
    """The state of an environment with a time limit."""

    inner: EnvState
    steps: Int[Array, ""]
    """How many steps the episode has had."""


def time_limited(env: CompiledEnv, max_steps: int) -> CompiledEnv:
    """The environment, truncated at the step that is number `max_steps` of an episode.

    As with Gymnasium's limit, an episode that terminates at that very step is both terminated and truncated.
    """
    if max_steps < 1:
        raise ValueError(f"a time limit of {max_steps} steps leaves no episode: give at least 1")

    def reset(key: PRNGKeyArray) -> tuple[Timed, Array]:
        inner, observation = env.reset(key)
        return Timed(inner, jnp.int32(0)), observation

    def step(state: Timed, action: Action, key: PRNGKeyArray) -> Outcome:
        outcome = env.step(state.inner, action, key)
        steps = state.steps + jnp.int32(1)
        truncated = outcome.truncated | (steps >= jnp.int32(max_steps))
        return outcome._replace(state=Timed(outcome.state, steps), truncated=truncated)

    return replace(
        env, reset=reset, step=step, draw=lambda state: env.draw(state.inner), mask=lambda state: env.mask(state.inner)
    )


class Withheld(NamedTuple):
    """The state of an environment whose rewards are held back."""

    inner: EnvState
    reward: Float[Array, ""]
    """What the episode has earned."""


def sparse(env: CompiledEnv, env_id: str) -> CompiledEnv:
    """The environment with all rewards of an episode paid in its last step: the same returns, and little to go by."""

    def reset(key: PRNGKeyArray) -> tuple[Withheld, Array]:
        inner, observation = env.reset(key)
        return Withheld(inner, jnp.float32(0)), observation

    def step(state: Withheld, action: Action, key: PRNGKeyArray) -> Outcome:
        outcome = env.step(state.inner, action, key)
        earned = state.reward + outcome.reward
        paid = jnp.where(outcome.terminated | outcome.truncated, earned, jnp.float32(0))
        return outcome._replace(state=Withheld(outcome.state, earned), reward=paid)

    return replace(
        env,
        spec=env.spec._replace(id=env_id),
        reset=reset,
        step=step,
        draw=lambda state: env.draw(state.inner),
        mask=lambda state: env.mask(state.inner),
    )


def autoreset_step(
    env: CompiledEnv, state: EnvState, action: Action, key: PRNGKeyArray
) -> tuple[EnvState, Array, Outcome]:
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


def is_compiled(env_id: str) -> bool:
    """Whether an id means a compiled environment, told by how it begins alone."""
    return env_id.startswith(PREFIXES)


@lru_cache(maxsize=64)
def make_compiled(env_id: str) -> CompiledEnv:
    """The compiled environment of an id.

    The same object for the same id, so that programs that were compiled for it are found again.
    """
    factory = COMPILED.get(env_id)
    if factory is None:
        close = difflib.get_close_matches(env_id, COMPILED, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(COMPILED)}"
        raise ValueError(f"there is no compiled environment {env_id!r}: {hint}")
    return factory()


# The modules below import this one, and MinAtar's rules are an optional package: so they are imported when asked for.


def _minatar(game: str) -> CompiledEnv:
    from qemrl.envs.jax.minatar import minatar

    return minatar(game)


def _sparse_minatar(game: str) -> CompiledEnv:
    return sparse(_minatar(game), f"minatar/{game}-sparse")


def _cartpole() -> CompiledEnv:
    from qemrl.envs.jax.cartpole import cartpole

    return cartpole()


def _catch() -> CompiledEnv:
    from qemrl.envs.jax.catch import catch

    return catch()


def _mountain_car() -> CompiledEnv:
    from qemrl.envs.jax.mountain_car import mountain_car

    return mountain_car()


def _deep_sea(size: int, stochastic: bool) -> CompiledEnv:
    from qemrl.envs.jax.deep_sea import deep_sea

    return deep_sea(size, stochastic)


def _chain(size: int) -> CompiledEnv:
    from qemrl.envs.jax.chain import chain

    return chain(size)


def _pendulum() -> CompiledEnv:
    from qemrl.envs.jax.pendulum import pendulum

    return pendulum()


def _probe(name: str) -> CompiledEnv:
    from qemrl.envs.jax.probes import PROBES

    return PROBES[name].make()


def _box_probe(name: str) -> CompiledEnv:
    from qemrl.envs.jax.box_probes import BOX_PROBES

    return BOX_PROBES[name].make()


COMPILED: dict[str, Callable[[], CompiledEnv]] = {
    **{f"minatar/{game}": partial(_minatar, game) for game in MINATAR_GAMES},
    **{f"minatar/{game}-sparse": partial(_sparse_minatar, game) for game in MINATAR_GAMES},
    "jax/cartpole": _cartpole,
    "jax/catch": _catch,
    "jax/mountain-car": _mountain_car,
    **{f"jax/deep-sea-{size}": partial(_deep_sea, size, False) for size in DEEP_SEA_SIZES},
    **{f"jax/deep-sea-stochastic-{size}": partial(_deep_sea, size, True) for size in DEEP_SEA_SIZES},
    **{f"jax/chain-{size}": partial(_chain, size) for size in CHAIN_SIZES},
    "jax/pendulum": _pendulum,
    **{f"probe/{number}": partial(_probe, str(number)) for number in range(1, 9)},
    **{f"probe/c{number}": partial(_box_probe, f"c{number}") for number in range(1, 8)},
}
"""What makes each compiled environment, by id."""
