"""CartPole, MountainCar and Pendulum of Gymnasium's classic control, in JAX.

The same physics, starts, rewards, limits and truncation; in float32 throughout, where Gymnasium keeps its state in
float64 and rounds what it shows.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.env import JaxEnv, Outcome, limit_time
from qemrl.types import ActionBox, EnvSpec

HEIGHT, WIDTH = 200, 300
"""Of pictures of CartPole and MountainCar, in pixels."""

# CartPole-v1: a pole on a cart that is pushed left or right.

CARTPOLE_MAX_STEPS = 500
"""Where an episode is truncated."""

CARTPOLE_GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_LENGTH = 0.5
"""Of the pole, in meters."""

CARTPOLE_FORCE = 10.0
CARTPOLE_SECONDS = 0.02
"""Between two steps."""

MAX_POSITION = 2.4
"""Where the track ends, in meters from its middle."""

MAX_ANGLE = math.radians(12)
"""Where the pole counts as fallen."""

_USUAL = (2.4, 5.0, math.pi / 12, 2 * math.pi)
CARTPOLE_BOUNDS = (tuple(-bound for bound in _USUAL), _USUAL)
"""Where CartPole's observations usually lie; they may go beyond. These bounds are those of Dopamine."""

CartPoleState = Float[Array, "4"]
"""Position, velocity, angle and angular velocity: the state, and the observation too."""


def make_cartpole() -> JaxEnv:
    """CartPole-v1: a reward of 1 for each step, the last one included; action 1 pushes to the right, 0 to the left."""
    low, high = CARTPOLE_BOUNDS
    spec = EnvSpec("jax/cartpole", (4,), "float32", 2, observation_low=low, observation_high=high)
    return limit_time(JaxEnv(spec, _reset_cartpole, _step_cartpole, _draw_cartpole), CARTPOLE_MAX_STEPS)


def _reset_cartpole(key: PRNGKeyArray) -> tuple[CartPoleState, CartPoleState]:
    state = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
    return state, state


def _step_cartpole(state: CartPoleState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    _, velocity, angle, spin = state
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    mass = CART_MASS + POLE_MASS
    force = jnp.where(action == 1, jnp.float32(CARTPOLE_FORCE), jnp.float32(-CARTPOLE_FORCE))
    push = (force + POLE_MASS * HALF_LENGTH * spin**2 * sin) / mass
    spin_rate = (CARTPOLE_GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / mass))
    acceleration = push - POLE_MASS * HALF_LENGTH * spin_rate * cos / mass
    rates = jnp.stack([velocity, acceleration, spin, spin_rate])
    state = state + CARTPOLE_SECONDS * rates
    return Outcome(state, state, jnp.float32(1), _has_fallen(state), jnp.bool_(False))


def _has_fallen(state: CartPoleState) -> Bool[Array, ""]:
    return (jnp.abs(state[0]) > MAX_POSITION) | (jnp.abs(state[2]) > MAX_ANGLE)


def _draw_cartpole(state: CartPoleState) -> UInt8[np.ndarray, "height width 3"]:
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


# MountainCar-v0: a car that is too weak for its hill must swing to get out (Moore, 1990). A policy that chooses at
# random practically never arrives.

MOUNTAIN_CAR_MAX_STEPS = 200
"""Where an episode is truncated."""

LEFT, RIGHT = -1.2, 0.6
"""Where the valley ends."""

GOAL = 0.5
MAX_SPEED = 0.07
MOUNTAIN_CAR_FORCE = 0.001
MOUNTAIN_CAR_GRAVITY = 0.0025

MountainCarState = Float[Array, "2"]
"""Position and velocity: the state, and the observation too."""


def make_mountain_car() -> JaxEnv:
    """MountainCar-v0: a reward of −1 for each step; actions accelerate to the left, not at all, or to the right."""
    spec = EnvSpec(
        "jax/mountain-car", (2,), "float32", 3, observation_low=(LEFT, -MAX_SPEED), observation_high=(RIGHT, MAX_SPEED)
    )
    return limit_time(JaxEnv(spec, _reset_mountain_car, _step_mountain_car, _draw_mountain_car), MOUNTAIN_CAR_MAX_STEPS)


def _reset_mountain_car(key: PRNGKeyArray) -> tuple[MountainCarState, MountainCarState]:
    state = jnp.stack([jax.random.uniform(key, (), jnp.float32, -0.6, -0.4), jnp.float32(0)])
    return state, state


def _step_mountain_car(state: MountainCarState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    position, velocity = state
    pull = (action - 1).astype(jnp.float32) * MOUNTAIN_CAR_FORCE - MOUNTAIN_CAR_GRAVITY * jnp.cos(3 * position)
    velocity = jnp.clip(velocity + pull, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(position + velocity, LEFT, RIGHT)
    velocity = jnp.where((position <= LEFT) & (velocity < 0), jnp.float32(0), velocity)
    state = jnp.stack([position, velocity])
    return Outcome(state, state, jnp.float32(-1), (position >= GOAL) & (velocity >= 0), jnp.bool_(False))


def _draw_mountain_car(state: MountainCarState) -> UInt8[np.ndarray, "height width 3"]:
    """The valley, the car and the flag, seen from the side."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    place = LEFT + (RIGHT - LEFT) * columns / (WIDTH - 1)

    def surface_row(position: Any) -> Any:
        return HEIGHT * (0.5 - 0.35 * np.sin(3 * position))

    picture = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    picture[rows >= surface_row(place)] = (150, 160, 140)
    column = (WIDTH - 1) * (GOAL - LEFT) / (RIGHT - LEFT)
    top = surface_row(GOAL) - 30
    picture[(np.abs(columns - column) < 1.5) & (rows >= top) & (rows < surface_row(GOAL))] = (40, 44, 52)
    picture[(columns > column) & (columns < column + 16) & (rows >= top) & (rows < top + 10)] = (214, 69, 65)
    position = float(np.asarray(state)[0])
    right, up = columns - (WIDTH - 1) * (position - LEFT) / (RIGHT - LEFT), surface_row(position) - 6 - rows
    picture[right**2 + up**2 <= 49] = (40, 44, 52)
    return picture


# Pendulum-v1: a pendulum that is swung up and held there by a torque. So that float32 is enough, the angle is kept
# within half a turn of upright.

PENDULUM_MAX_STEPS = 200
"""Where an episode is truncated."""

PENDULUM_GRAVITY = 10.0
PENDULUM_MASS = 1.0
PENDULUM_LENGTH = 1.0
"""Of the rod, in meters."""

PENDULUM_SECONDS = 0.05
"""Between two steps."""

MAX_TORQUE = 2.0
"""What larger torques are clipped to, in either direction."""

MAX_SPIN = 8.0
"""What the angular velocity is clipped to, in radians per second."""

START_SPIN = 1.0
"""The largest angular velocity that an episode starts with."""

TURN = 2 * math.pi

SIZE = 240
"""The height and the width of pictures, in pixels."""

PendulumState = Float[Array, "2"]
"""The state: the angle, zero upright and growing counterclockwise, and the angular velocity."""


def make_pendulum() -> JaxEnv:
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
    return limit_time(JaxEnv(spec, _reset_pendulum, _step_pendulum, _draw_pendulum), PENDULUM_MAX_STEPS)


def _reset_pendulum(key: PRNGKeyArray) -> tuple[PendulumState, Float[Array, "3"]]:
    most = jnp.array([math.pi, START_SPIN], jnp.float32)
    state = jax.random.uniform(key, (2,), jnp.float32, -most, most)
    return state, _observe(state)


def _step_pendulum(state: PendulumState, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
    del key  # the dynamics are deterministic
    angle, spin = state
    torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
    # Of the state that the torque acts on, not of the one that it leads to.
    cost = _wrap_angle(angle) ** 2 + 0.1 * spin**2 + 0.001 * torque**2
    spin_rate = (
        3 * PENDULUM_GRAVITY / (2 * PENDULUM_LENGTH) * jnp.sin(angle)
        + 3 / (PENDULUM_MASS * PENDULUM_LENGTH**2) * torque
    )
    spin = jnp.clip(spin + PENDULUM_SECONDS * spin_rate, -MAX_SPIN, MAX_SPIN)
    state = jnp.stack([_wrap_angle(angle + PENDULUM_SECONDS * spin), spin])
    return Outcome(state, _observe(state), -cost, jnp.bool_(False), jnp.bool_(False))


def _observe(state: PendulumState) -> Float[Array, "3"]:
    angle, spin = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])


def _wrap_angle(angle: Float[Array, ""]) -> Float[Array, ""]:
    """The same angle from −π to π; one that is there already is left as it is, to the last bit."""
    return angle - TURN * jnp.round(angle / TURN)


def _draw_pendulum(state: PendulumState) -> UInt8[np.ndarray, "height width 3"]:
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
