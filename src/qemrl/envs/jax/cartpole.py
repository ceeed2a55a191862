"""The dynamics of Gymnasium's CartPole-v1 in JAX: a pole on a cart that is pushed left or right.

The same physics, start, rewards, limits and 500-step truncation; in float32 throughout, where Gymnasium keeps its
state in float64 and rounds what it shows.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from qemrl.envs.gym.bounds import USUAL_BOUNDS
from qemrl.envs.jax.compiled import CompiledEnv, Outcome, time_limited
from qemrl.types import EnvSpec

MAX_STEPS = 500
"""Where an episode is truncated."""

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_LENGTH = 0.5
"""Of the pole, in meters."""

FORCE = 10.0
SECONDS = 0.02
"""Between two steps."""

MAX_POSITION = 2.4
"""Where the track ends, in meters from its middle."""

MAX_ANGLE = math.radians(12)
"""Where the pole counts as fallen."""

HEIGHT, WIDTH = 200, 300
"""Of pictures, in pixels."""

Physical = Float[Array, "4"]
"""Position, velocity, angle and angular velocity: the state, and the observation too."""


def cartpole() -> CompiledEnv:
    """CartPole-v1: a reward of 1 for each step, the last one included; action 1 pushes to the right, 0 to the left."""
    low, high = USUAL_BOUNDS["jax/cartpole"]
    spec = EnvSpec("jax/cartpole", (4,), "float32", 2, observation_low=low, observation_high=high)
    return time_limited(CompiledEnv(spec, _reset, _step, _draw), MAX_STEPS)


def _reset(key: PRNGKeyArray) -> tuple[Physical, Physical]:
    state = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
    return state, state


def _step(state: Physical, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    _, velocity, angle, spin = state
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    mass = CART_MASS + POLE_MASS
    force = jnp.where(action == 1, jnp.float32(FORCE), jnp.float32(-FORCE))
    push = (force + POLE_MASS * HALF_LENGTH * spin**2 * sin) / mass
    spin_rate = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / mass))
    acceleration = push - POLE_MASS * HALF_LENGTH * spin_rate * cos / mass
    rates = jnp.stack([velocity, acceleration, spin, spin_rate])
    state = state + SECONDS * rates
    return Outcome(state, state, jnp.float32(1), _fallen(state), jnp.bool_(False))


def _fallen(state: Physical) -> Bool[Array, ""]:
    return (jnp.abs(state[0]) > MAX_POSITION) | (jnp.abs(state[2]) > MAX_ANGLE)


def _draw(state: Physical) -> UInt8[np.ndarray, "height width 3"]:
    """The track, the cart and the pole, seen from the side."""
    position, _, angle, _ = np.asarray(state, np.float64)
    meter = WIDTH / (2 * MAX_POSITION + 0.6)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    track = 0.8 * HEIGHT
    axle_row, axle_column = track - 20, WIDTH / 2 + position * meter
    # Along the pole from the axle, and across it.
    right, up = columns - axle_column, axle_row - rows
    along = right * math.sin(angle) + up * math.cos(angle)
    across = right * math.cos(angle) - up * math.sin(angle)
    picture = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    picture[np.abs(rows - track) < 1] = (120, 120, 120)
    picture[(np.abs(columns - axle_column) <= 22) & (rows <= track) & (rows >= axle_row)] = (40, 44, 52)
    picture[(along >= 0) & (along <= 2 * HALF_LENGTH * meter * 1.6) & (np.abs(across) <= 3)] = (200, 140, 80)
    picture[right**2 + up**2 <= 25] = (88, 128, 190)
    return picture
