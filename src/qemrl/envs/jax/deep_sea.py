"""Deep sea: a treasure that no random walk finds, and every step towards it costs (Osband et al., 2019).

A diver starts in the upper left corner of a board of N × N cells and goes down one row with each step, to the left or
to the right. Going right costs 0.01/N. Whoever goes right N times in a row is in the lower right corner at the end and
finds a treasure of 1; all other ends give nothing. The best return is 0.99. A policy that chooses at random finds the
treasure once in 2^N episodes, and learns to go left from all others. Which of the two actions is right is drawn for
each cell, once for all, so that a network cannot guess it from other cells.

In the stochastic version a step to the right goes left with a chance of 1/N, and a last step from one of the two lower
corners has normal noise with standard deviation 1 in its reward. The treasure then is worth trying again and again,
and the best return is about (1 − 1/N)^(N − 1) on average, which is near 0.37 for a large N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.compiled import Action, CompiledEnv, Outcome
from qemrl.types import EnvSpec

MOVE_COST = 0.01
"""What going right all the way costs."""

CELL = 16
"""The width of a cell in pictures, in pixels."""


class DeepSeaState(NamedTuple):
    """Where the diver is."""

    row: Int[Array, ""]
    column: Int[Array, ""]


def right_actions(size: int) -> Int[np.ndarray, "size size"]:
    """The action that goes right in each cell, by row and column; the other one goes left."""
    return np.random.default_rng(size).integers(2, size=(size, size)).astype(np.int32)


def deep_sea(size: int, stochastic: bool = False) -> CompiledEnv:
    """Deep sea with `size` rows; an observation has a true value in the place of the diver's cell."""
    if size < 2:
        raise ValueError(f"a sea of size {size} is not deep: give at least 2")
    cells, rights = size * size, right_actions(size)

    def reset(key: PRNGKeyArray) -> tuple[DeepSeaState, Bool[Array, " cells"]]:
        del key
        state = DeepSeaState(jnp.int32(0), jnp.int32(0))
        return state, show(state)

    def step(state: DeepSeaState, action: Action, key: PRNGKeyArray) -> Outcome:
        right = action == jnp.asarray(rights)[state.row, state.column]
        cost = jnp.where(right, jnp.float32(MOVE_COST / size), jnp.float32(0))
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
        return Outcome(following, show(following), reward, ends, jnp.bool_(False))

    def show(state: DeepSeaState) -> Bool[Array, " cells"]:
        return jnp.arange(cells, dtype=jnp.int32) == state.row * size + state.column

    def draw(state: DeepSeaState) -> UInt8[np.ndarray, "height width 3"]:
        board = np.empty((size, size, 3), np.uint8)
        board[:] = np.linspace((70, 130, 190), (16, 30, 66), size).astype(np.uint8)[:, None]
        board[-1, -1] = (236, 178, 70)
        board[int(state.row), int(state.column)] = (240, 240, 240)
        return board.repeat(CELL, axis=0).repeat(CELL, axis=1)

    name = f"jax/deep-sea-{'stochastic-' if stochastic else ''}{size}"
    return CompiledEnv(EnvSpec(name, (cells,), "bool", 2, num_states=cells), reset, step, draw)
