"""The dynamics of Gymnasium's Pendulum-v1 in JAX: a pendulum that is swung up and held there by a torque.

The same physics, start, rewards, limits and 200-step truncation; in float32 throughout, where Gymnasium keeps its
state in float64 and rounds what it shows. So that float32 is enough, the angle is kept within half a turn of upright.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from qemrl.envs.jax.compiled import CompiledEnv, Outcome, time_limited
from qemrl.types import ActionBox, EnvSpec

MAX_STEPS = 200
"""Where an episode is truncated."""

GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0
"""Of the rod, in meters."""

SECONDS = 0.05
"""Between two steps."""

MAX_TORQUE = 2.0
"""What larger torques are clipped to, either way round."""

MAX_SPIN = 8.0
"""What the angular velocity is clipped to, in radians per second."""

START_SPIN = 1.0
"""The largest angular velocity that an episode starts with."""

TURN = 2 * math.pi

SIZE = 240
"""The height and the width of pictures, in pixels."""

Physical = Float[Array, "2"]
"""The state: the angle, zero upright and growing counterclockwise, and the angular velocity."""


def pendulum() -> CompiledEnv:
    """Pendulum-v1: the action is a torque, the reward is minus a cost of angle, angular velocity and torque."""
    box = ActionBox((1,), (-MAX_TORQUE,), (MAX_TORQUE,))
    bounds = (1.0, 1.0, MAX_SPIN)
    spec = EnvSpec(
        "jax/pendulum",
        (3,),
        "float32",
        0,
        observation_low=tuple(-bound for bound in bounds),
        observation_high=bounds,
        box=box,
    )
    return time_limited(CompiledEnv(spec, _reset, _step, _draw), MAX_STEPS)


def _reset(key: PRNGKeyArray) -> tuple[Physical, Float[Array, "3"]]:
    most = jnp.array([math.pi, START_SPIN], jnp.float32)
    state = jax.random.uniform(key, (2,), jnp.float32, -most, most)
    return state, _observe(state)


def _step(state: Physical, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    angle, spin = state
    torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
    # Of the state that the torque acts on, not of the one that it leads to.
    cost = _within_half_a_turn(angle) ** 2 + 0.1 * spin**2 + 0.001 * torque**2
    spin_rate = 3 * GRAVITY / (2 * LENGTH) * jnp.sin(angle) + 3 / (MASS * LENGTH**2) * torque
    spin = jnp.clip(spin + SECONDS * spin_rate, -MAX_SPIN, MAX_SPIN)
    state = jnp.stack([_within_half_a_turn(angle + SECONDS * spin), spin])
    return Outcome(state, _observe(state), -cost, jnp.bool_(False), jnp.bool_(False))


def _observe(state: Physical) -> Float[Array, "3"]:
    angle, spin = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])


def _within_half_a_turn(angle: Float[Array, ""]) -> Float[Array, ""]:
    """The same angle from −π to π; one that is there already is left as it is, to the last bit."""
    return angle - TURN * jnp.round(angle / TURN)


def _draw(state: Physical) -> UInt8[np.ndarray, "height width 3"]:
    """The rod, its bob and the axle in the middle, seen from the side."""
    angle = float(state[0])
    rows, columns = np.mgrid[:SIZE, :SIZE]
    middle, rod = (SIZE - 1) / 2, 0.4 * SIZE
    # Along the rod from the axle, and across it; a positive angle leans to the left.
    right, up = columns - middle, middle - rows
    along = up * math.cos(angle) - right * math.sin(angle)
    across = up * math.sin(angle) + right * math.cos(angle)
    picture = np.full((SIZE, SIZE, 3), 255, np.uint8)
    picture[(along >= 0) & (along <= rod) & (np.abs(across) <= 4)] = (200, 140, 80)
    picture[(along - rod) ** 2 + across**2 <= 144] = (40, 44, 52)
    picture[right**2 + up**2 <= 25] = (88, 128, 190)
    return picture
