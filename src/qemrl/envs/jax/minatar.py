"""MinAtar's five games: Atari on 10 × 10 cells, by the rules of pgx, which has them in JAX.

An observation is 10 × 10 × channels of booleans; what a channel means is the game's. Choices that scores depend on:

- Actions are the game's minimal set, pgx's default (version 1 of its games): 3 in Breakout and Freeway, 4 in Space
  Invaders, 5 in Asterix, 6 in Seaquest. MinAtar's own default, and that of published work such as Revisiting Rainbow,
  is the full set of 6, in which the others do nothing.
- With a chance of 0.1 the last action is repeated instead of the one chosen (sticky actions), as in MinAtar.
- Difficulty ramps up, as in MinAtar.
- MinAtar never cuts an episode, and a good player of Breakout never loses. Here an episode is truncated after 10,000
  steps. Freeway's own limit of 2,500 steps comes first; MinAtar calls it a termination, and so do we.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from qemrl.envs.jax.env import JaxEnv, Outcome, delay_rewards, limit_time
from qemrl.extras import how_to_install
from qemrl.types import EnvSpec

MINATAR_GAMES = ("breakout", "asterix", "freeway", "seaquest", "space_invaders")

MAX_STEPS = 10_000
"""Where an episode is truncated."""

FIXED_STARTS = ("asterix", "seaquest", "space_invaders")
"""The games that always begin alike, so that a reset need not be computed at each step."""

CELL = 24
"""The width of a cell in pictures, in pixels."""

COLORS = np.array(
    [
        [240, 240, 240],
        [214, 69, 65],
        [88, 128, 190],
        [236, 178, 70],
        [98, 168, 96],
        [164, 108, 190],
        [96, 190, 190],
        [222, 130, 172],
        [160, 120, 84],
        [130, 136, 46],
    ],
    np.uint8,
)
"""The color of each channel in pictures."""

BACKGROUND = np.array([24, 26, 34], np.uint8)


def make_minatar(game: str) -> JaxEnv:
    """One of MinAtar's games."""
    if game not in MINATAR_GAMES:
        raise ValueError(f"MinAtar has no game {game!r}: choose from {', '.join(MINATAR_GAMES)}")
    try:
        import pgx
    except ModuleNotFoundError as error:
        message = f"'minatar/{game}' needs pgx, which cannot be imported; {how_to_install('minatar')}"
        raise ValueError(message) from error
    with jax.ensure_compile_time_eval():  # pgx imports the game here, and a game's module holds arrays
        rules: Any = pgx.make(f"minatar-{game}")  # type: ignore[arg-type]
    shapes = _shapes(rules)
    start = _fixed_start(rules) if game in FIXED_STARTS else None

    def reset(key: PRNGKeyArray) -> tuple[Any, Bool[Array, "10 10 channels"]]:
        if start is not None:
            state = jax.tree.map(jnp.asarray, start)
        else:
            with _default_promotion():
                state = rules.init(key)
        return state, state.observation

    def step(state: Any, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        with _default_promotion():
            state = rules.step(state, action, key)
        return Outcome(state, state.observation, state.rewards[0], state.terminated, jnp.bool_(False))

    spec = EnvSpec(f"minatar/{game}", shapes.observation.shape, "bool", shapes.legal_action_mask.shape[0])
    return limit_time(JaxEnv(spec, reset, step, _draw), MAX_STEPS)


def make_sparse_minatar(game: str) -> JaxEnv:
    """One of MinAtar's games with all rewards of an episode paid in its last step."""
    return delay_rewards(make_minatar(game), f"minatar/{game}-sparse")


def _shapes(rules: Any) -> Any:
    with _default_promotion():
        return jax.eval_shape(rules.init, jax.random.key(0))


def _fixed_start(rules: Any) -> Any:
    """The state that every episode begins with, as NumPy arrays."""
    with _default_promotion(), jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, jax.jit(rules.init)(jax.random.key(0)))


@contextmanager
def _default_promotion() -> Iterator[None]:
    """Lets JAX promote ranks and types as it does by default, which the rules of pgx rely on."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def _draw(state: Any) -> UInt8[np.ndarray, "height width 3"]:
    """The cells in the colors of their channels; where things overlap, the first channel (the player's) is on top."""
    board = np.asarray(state.observation)
    empty = ~np.any(board, -1, keepdims=True)
    cells = np.where(empty, BACKGROUND, COLORS[board.argmax(-1)])
    return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
