"""The dynamics of Gymnasium's MountainCar-v0 in JAX: a car that is too weak for its hill must swing to get out.

The same physics, start, rewards, goal and 200-step truncation (Moore, 1990); in float32 throughout, where Gymnasium
keeps its state in float64 and rounds what it shows. A policy that chooses at random practically never arrives.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.compiled import CompiledEnv, Outcome, time_limited
from qemrl.types import EnvSpec

MAX_STEPS = 200
"""Where an episode is truncated."""

LEFT, RIGHT = -1.2, 0.6
"""Where the valley ends."""

GOAL = 0.5
MAX_SPEED = 0.07
FORCE = 0.001
GRAVITY = 0.0025

HEIGHT, WIDTH = 200, 300
"""Of pictures, in pixels."""

Physical = Float[Array, "2"]
"""Position and velocity: the state, and the observation too."""


def mountain_car() -> CompiledEnv:
    """MountainCar-v0: a reward of −1 for each step; actions accelerate to the left, not at all, or to the right."""
    spec = EnvSpec(
        "jax/mountain-car", (2,), "float32", 3, observation_low=(LEFT, -MAX_SPEED), observation_high=(RIGHT, MAX_SPEED)
    )
    return time_limited(CompiledEnv(spec, _reset, _step, _draw), MAX_STEPS)


def _reset(key: PRNGKeyArray) -> tuple[Physical, Physical]:
    state = jnp.stack([jax.random.uniform(key, (), jnp.float32, -0.6, -0.4), jnp.float32(0)])
    return state, state


def _step(state: Physical, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    position, velocity = state
    pull = (action - 1).astype(jnp.float32) * FORCE - GRAVITY * jnp.cos(3 * position)
    velocity = jnp.clip(velocity + pull, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(position + velocity, LEFT, RIGHT)
    velocity = jnp.where((position <= LEFT) & (velocity < 0), jnp.float32(0), velocity)
    state = jnp.stack([position, velocity])
    return Outcome(state, state, jnp.float32(-1), (position >= GOAL) & (velocity >= 0), jnp.bool_(False))


def _draw(state: Physical) -> UInt8[np.ndarray, "height width 3"]:
    """The valley, the car and the flag, seen from the side."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    place = LEFT + (RIGHT - LEFT) * columns / (WIDTH - 1)

    def row_of(position: Any) -> Any:
        return HEIGHT * (0.5 - 0.35 * np.sin(3 * position))

    picture = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    picture[rows >= row_of(place)] = (150, 160, 140)
    column = (WIDTH - 1) * (GOAL - LEFT) / (RIGHT - LEFT)
    top = row_of(GOAL) - 30
    picture[(np.abs(columns - column) < 1.5) & (rows >= top) & (rows < row_of(GOAL))] = (40, 44, 52)
    picture[(columns > column) & (columns < column + 16) & (rows >= top) & (rows < top + 10)] = (214, 69, 65)
    position = float(np.asarray(state)[0])
    right, up = columns - (WIDTH - 1) * (position - LEFT) / (RIGHT - LEFT), row_of(position) - 6 - rows
    picture[right**2 + up**2 <= 49] = (40, 44, 52)
    return picture
