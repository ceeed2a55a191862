"""Tasks in which exploration is the hard part, deep sea and the sparse chain, and Catch, in which nothing is hard."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.env import Action, JaxEnv, Outcome
from qemrl.types import EnvSpec

CELL = 16
"""The width of a cell in pictures of the chain and of deep sea, in pixels."""

CATCH_ROWS, CATCH_COLUMNS = 10, 5

CATCH_CELL = 24
"""The width of a cell in pictures of Catch, in pixels."""


class CatchState(NamedTuple):
    """Where ball and paddle are."""

    ball_row: Int[Array, ""]
    ball_column: Int[Array, ""]
    paddle_column: Int[Array, ""]


def make_catch() -> JaxEnv:
    """Catch: a ball falls down a board of 10 rows and 5 columns, and a paddle in the last row must be under it.

    The ball starts in the first row at a random column, the paddle in the middle; actions move the paddle left, not at
    all, or right, and never off the board. The episode ends when the ball is in the last row, after 9 steps,
    with a reward of 1 if it was caught and −1 if not; until then rewards are 0. From the middle every column can be
    reached, so the best return is 1, and Q of every state from which the ball can be caught is
    discount^(steps left − 1). An observation is the board, true where the ball and the paddle are.
    """
    spec = EnvSpec("jax/catch", (CATCH_ROWS, CATCH_COLUMNS, 1), "bool", 3)
    return JaxEnv(spec, _reset_catch, _step_catch, _draw_catch)


def _reset_catch(key: PRNGKeyArray) -> tuple[CatchState, Bool[Array, "10 5 1"]]:
    column = jax.random.randint(key, (), 0, CATCH_COLUMNS, jnp.int32)
    state = CatchState(jnp.int32(0), column, jnp.int32(CATCH_COLUMNS // 2))
    return state, _board(state)


def _step_catch(state: CatchState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
    del key  # only the start is random
    paddle = jnp.clip(state.paddle_column + action - 1, 0, CATCH_COLUMNS - 1)
    state = CatchState(state.ball_row + 1, state.ball_column, paddle)
    terminated = state.ball_row >= CATCH_ROWS - 1
    caught = jnp.where(paddle == state.ball_column, jnp.float32(1), jnp.float32(-1))
    reward = jnp.where(terminated, caught, jnp.float32(0))
    return Outcome(state, _board(state), reward, terminated, jnp.bool_(False))


def _board(state: CatchState) -> Bool[Array, "10 5 1"]:
    cell = jnp.arange(CATCH_ROWS * CATCH_COLUMNS, dtype=jnp.int32)
    ball = cell == state.ball_row * CATCH_COLUMNS + state.ball_column
    paddle = cell == (CATCH_ROWS - 1) * CATCH_COLUMNS + state.paddle_column
    return (ball | paddle).reshape(CATCH_ROWS, CATCH_COLUMNS, 1)


def _draw_catch(state: CatchState) -> UInt8[np.ndarray, "height width 3"]:
    """The board, the ball in red and the paddle in white."""
    ball_row, ball_column, paddle_column = map(int, state)
    cells = np.full((CATCH_ROWS, CATCH_COLUMNS, 3), (24, 26, 34), np.uint8)
    cells[-1, paddle_column] = (240, 240, 240)
    cells[ball_row, ball_column] = (214, 69, 65)
    return cells.repeat(CATCH_CELL, axis=0).repeat(CATCH_CELL, axis=1)


CHAIN_EXTRA_STEPS = 9
"""How many steps an episode has beyond N."""

CHAIN_SMALL_REWARD = 0.001


class ChainState(NamedTuple):
    """Where the agent is, and for how long."""

    cell: Int[Array, ""]
    steps: Int[Array, ""]


def chain_right_actions(size: int) -> Int[np.ndarray, " size"]:
    """The action that goes right in each cell; the other one goes left."""
    return np.random.default_rng(size).integers(2, size=size).astype(np.int32)


def make_chain(size: int) -> JaxEnv:
    """The sparse chain: a small reward near the start, and a large one at the far end (Osband et al., 2016).

    There are N = `size` cells in a row. An episode begins in the second and lasts N + 9 steps; actions go left or
    right. A step that ends in the first cell gives 0.001, one that ends in the last gives 1, all others nothing. The
    best policy goes right always and is in the last cell after N − 2 steps, for a return of 12. Episodes terminate: the
    time that is left is part of the task, as published, but it is not observed. Unlike the published chain, and as in
    deep sea, which of the two actions goes right is drawn for each cell, once and for all: a network that has learned
    nothing often prefers one action everywhere, and would solve the task by chance. An observation has a true value in
    the place of the agent's cell.
    """
    if size < 3:
        raise ValueError(f"a chain of {size} cells has no way to go: give at least 3")
    rights = chain_right_actions(size)

    def reset(key: PRNGKeyArray) -> tuple[ChainState, Bool[Array, " cells"]]:
        del key
        state = ChainState(jnp.int32(1), jnp.int32(0))
        return state, observe(state)

    def step(state: ChainState, action: Action, key: PRNGKeyArray) -> Outcome:
        del key
        move = jnp.where(action == jnp.asarray(rights)[state.cell], jnp.int32(1), jnp.int32(-1))
        cell, steps = jnp.clip(state.cell + move, 0, size - 1), state.steps + 1
        far = jnp.where(cell == size - 1, jnp.float32(1), jnp.float32(0))
        reward = jnp.where(cell == 0, jnp.float32(CHAIN_SMALL_REWARD), far)
        following = ChainState(cell, steps)
        return Outcome(following, observe(following), reward, steps >= size + CHAIN_EXTRA_STEPS, jnp.bool_(False))

    def observe(state: ChainState) -> Bool[Array, " cells"]:
        return jnp.arange(size, dtype=jnp.int32) == state.cell

    def draw(state: ChainState) -> UInt8[np.ndarray, "height width 3"]:
        cells = np.full((1, size, 3), (24, 26, 34), np.uint8)
        cells[0, 0], cells[0, -1] = (98, 168, 96), (236, 178, 70)
        cells[0, int(state.cell)] = (240, 240, 240)
        return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)

    return JaxEnv(EnvSpec(f"jax/chain-{size}", (size,), "bool", 2, num_states=size), reset, step, draw)


DEEP_SEA_MOVE_COST = 0.01
"""What going right all the way costs."""


class DeepSeaState(NamedTuple):
    """Where the diver is."""

    row: Int[Array, ""]
    column: Int[Array, ""]


def deep_sea_right_actions(size: int) -> Int[np.ndarray, "size size"]:
    """The action that goes right in each cell, by row and column; the other one goes left."""
    return np.random.default_rng(size).integers(2, size=(size, size)).astype(np.int32)


def make_deep_sea(size: int, stochastic: bool = False) -> JaxEnv:
    """Deep sea: a treasure that no random walk finds, and every step toward it costs (Osband et al., 2019).

    A diver starts in the upper left corner of a board of N × N cells, N = `size`, and goes down one row with each step,
    to the left or to the right. Going right costs 0.01/N. Whoever goes right N times in a row is in the lower right
    corner at the end and finds a treasure of 1; all other ends give nothing. The best return is 0.99. A policy that
    chooses at random finds the treasure once in 2^N episodes, and learns to go left from all others. Which of the two
    actions is right is drawn for each cell, once and for all, so that a network cannot guess it from other cells. An
    observation has a true value in the place of the diver's cell.

    In the stochastic version a step to the right goes left with a chance of 1/N, and a last step from one of the two
    lower corners has normal noise with standard deviation 1 in its reward. The treasure then is worth trying again and
    again, and the best return is about (1 − 1/N)^(N − 1) on average, which is near 0.37 for a large N.
    """
    if size < 2:
        raise ValueError(f"a sea of size {size} is not deep: give at least 2")
    cells, rights = size * size, deep_sea_right_actions(size)

    def reset(key: PRNGKeyArray) -> tuple[DeepSeaState, Bool[Array, " cells"]]:
        del key
        state = DeepSeaState(jnp.int32(0), jnp.int32(0))
        return state, observe(state)

    def step(state: DeepSeaState, action: Action, key: PRNGKeyArray) -> Outcome:
        right = action == jnp.asarray(rights)[state.row, state.column]
        cost = jnp.where(right, jnp.float32(DEEP_SEA_MOVE_COST / size), jnp.float32(0))
        ends = state.row == size - 1
        reward = jnp.where(ends & right & (state.column == size - 1), jnp.float32(1), jnp.float32(0)) - cost
        moves = right
        if stochastic:
            noise_key, luck_key = jax.random.split(key)
            moves = right & (jax.random.uniform(luck_key, (), jnp.float32) >= 1 / size)
            corner = ends & ((state.column == 0) | (state.column == size - 1))
            noise = jax.random.normal(noise_key, (), jnp.float32)
            reward += jnp.where(corner, noise, jnp.float32(0))
        column = jnp.clip(state.column + jnp.where(moves, jnp.int32(1), jnp.int32(-1)), 0, size - 1)
        following = DeepSeaState(jnp.minimum(state.row + 1, jnp.int32(size - 1)), column)
        return Outcome(following, observe(following), reward, ends, jnp.bool_(False))

    def observe(state: DeepSeaState) -> Bool[Array, " cells"]:
        return jnp.arange(cells, dtype=jnp.int32) == state.row * size + state.column

    def draw(state: DeepSeaState) -> UInt8[np.ndarray, "height width 3"]:
        board = np.empty((size, size, 3), np.uint8)
        board[:] = np.linspace((70, 130, 190), (16, 30, 66), size).astype(np.uint8)[:, None]
        board[-1, -1] = (236, 178, 70)
        board[int(state.row), int(state.column)] = (240, 240, 240)
        return board.repeat(CELL, axis=0).repeat(CELL, axis=1)

    name = f"jax/deep-sea-{'stochastic-' if stochastic else ''}{size}"
    return JaxEnv(EnvSpec(name, (cells,), "bool", 2, num_states=cells), reset, step, draw)
