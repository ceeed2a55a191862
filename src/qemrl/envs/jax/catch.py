"""Catch: a ball falls down a board of 10 rows and 5 columns, and a paddle in the last row must be under it.

The ball starts in the first row at a column drawn evenly, the paddle in the middle; actions move the paddle left, not
at all, or right, and never off the board. The episode ends when the ball is in the last row, after 9 steps, with a
reward of 1 if it was caught and −1 if not; until then rewards are 0. From the middle every column can be reached, so
the best return is 1, and Q of every state from which the ball can be caught is discount^(steps left − 1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.compiled import CompiledEnv, Outcome
from qemrl.types import EnvSpec

ROWS, COLUMNS = 10, 5

CELL = 24
"""The width of a cell in pictures, in pixels."""


class CatchState(NamedTuple):
    """Where ball and paddle are."""

    ball_row: Int[Array, ""]
    ball_column: Int[Array, ""]
    paddle_column: Int[Array, ""]


def catch() -> CompiledEnv:
    """Catch; an observation is the board, 10 × 5 × 1 booleans, true where the ball and the paddle are."""
    return CompiledEnv(EnvSpec("jax/catch", (ROWS, COLUMNS, 1), "bool", 3), _reset, _step, _draw)


def _reset(key: PRNGKeyArray) -> tuple[CatchState, Bool[Array, "10 5 1"]]:
    state = CatchState(jnp.int32(0), jax.random.randint(key, (), 0, COLUMNS, jnp.int32), jnp.int32(COLUMNS // 2))
    return state, _board(state)


def _step(state: CatchState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # only the start is random
    paddle = jnp.clip(state.paddle_column + action - 1, 0, COLUMNS - 1)
    state = CatchState(state.ball_row + 1, state.ball_column, paddle)
    terminated = state.ball_row >= ROWS - 1
    caught = jnp.where(paddle == state.ball_column, jnp.float32(1), jnp.float32(-1))
    reward = jnp.where(terminated, caught, jnp.float32(0))
    return Outcome(state, _board(state), reward, terminated, jnp.bool_(False))


def _board(state: CatchState) -> Bool[Array, "10 5 1"]:
    cell = jnp.arange(ROWS * COLUMNS, dtype=jnp.int32)
    ball = cell == state.ball_row * COLUMNS + state.ball_column
    paddle = cell == (ROWS - 1) * COLUMNS + state.paddle_column
    return (ball | paddle).reshape(ROWS, COLUMNS, 1)


def _draw(state: CatchState) -> UInt8[np.ndarray, "height width 3"]:
    """The board, the ball in red and the paddle in white."""
    ball_row, ball_column, paddle_column = map(int, state)
    cells = np.full((ROWS, COLUMNS, 3), (24, 26, 34), np.uint8)
    cells[-1, paddle_column] = (240, 240, 240)
    cells[ball_row, ball_column] = (214, 69, 65)
    return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
