"""The sparse chain: a small reward near the start, and a large one at the far end (Osband et al., 2016).

There are N cells in a row. An episode begins in the second and lasts N + 9 steps; actions go left or right. A step that
ends in the first cell gives 0.001, one that ends in the last gives 1, all others nothing. The best policy goes right
always and is in the last cell after N − 2 steps, for a return of 12. Episodes terminate: the time that is left is part
of the task, as published, but it is not observed. Unlike the published chain, and as in deep sea, which of the two
actions goes right is drawn for each cell, once for all: a network that has learned nothing often prefers one action
everywhere, and would solve the task by chance.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.compiled import Action, CompiledEnv, Outcome
from qemrl.types import EnvSpec

EXTRA_STEPS = 9
"""How many steps an episode has beyond N."""

SMALL_REWARD = 0.001

CELL = 16
"""The width of a cell in pictures, in pixels."""


class ChainState(NamedTuple):
    """Where the agent is, and for how long."""

    cell: Int[Array, ""]
    steps: Int[Array, ""]


def right_actions(size: int) -> Int[np.ndarray, " size"]:
    """The action that goes right in each cell; the other one goes left."""
    return np.random.default_rng(size).integers(2, size=size).astype(np.int32)


def chain(size: int) -> CompiledEnv:
    """The chain of `size` cells; an observation has a true value in the place of the agent's."""
    if size < 3:
        raise ValueError(f"a chain of {size} cells has no way to go: give at least 3")
    rights = right_actions(size)

    def reset(key: PRNGKeyArray) -> tuple[ChainState, Bool[Array, " cells"]]:
        del key
        state = ChainState(jnp.int32(1), jnp.int32(0))
        return state, show(state)

    def step(state: ChainState, action: Action, key: PRNGKeyArray) -> Outcome:
        del key
        move = jnp.where(action == jnp.asarray(rights)[state.cell], jnp.int32(1), jnp.int32(-1))
        cell, steps = jnp.clip(state.cell + move, 0, size - 1), state.steps + 1
        far = jnp.where(cell == size - 1, jnp.float32(1), jnp.float32(0))
        reward = jnp.where(cell == 0, jnp.float32(SMALL_REWARD), far)
        following = ChainState(cell, steps)
        return Outcome(following, show(following), reward, steps >= size + EXTRA_STEPS, jnp.bool_(False))

    def show(state: ChainState) -> Bool[Array, " cells"]:
        return jnp.arange(size, dtype=jnp.int32) == state.cell

    def draw(state: ChainState) -> UInt8[np.ndarray, "height width 3"]:
        cells = np.full((1, size, 3), (24, 26, 34), np.uint8)
        cells[0, 0], cells[0, -1] = (98, 168, 96), (236, 178, 70)
        cells[0, int(state.cell)] = (240, 240, 240)
        return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)

    return CompiledEnv(EnvSpec(f"jax/chain-{size}", (size,), "bool", 2, num_states=size), reset, step, draw)
