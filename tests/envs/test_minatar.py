import sys
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.envs.jax.env import JaxEnv, autoreset_step
from qemrl.envs.jax.minatar import COLORS, FIXED_STARTS, MAX_STEPS, MINATAR_GAMES, make_minatar
from qemrl.envs.jax.registry import make_jax_env
from qemrl.types import EnvSpec

pgx: Any = pytest.importorskip("pgx")

CHANNELS_AND_ACTIONS = {
    "breakout": (4, 3),
    "asterix": (4, 5),
    "freeway": (7, 3),
    "seaquest": (10, 6),
    "space_invaders": (6, 4),
}


@lru_cache
def random_play(env: JaxEnv, steps: int):
    """From a key to the observations acted on and the outcomes of random play, compiled.

    Of the states only the count of steps is kept; that of the first episode begins with `already`.
    """

    def run(key, already):
        def step(carry, now):
            state, observation = carry
            action_key, step_key = jax.random.split(jax.random.fold_in(key, now))
            action = jax.random.randint(action_key, (), 0, env.spec.num_actions, jnp.int32)
            following, next_observation, outcome = autoreset_step(env, state, action, step_key)
            return (following, next_observation), (observation, outcome._replace(state=outcome.state.steps))

        state, observation = env.reset(key)
        start = (state._replace(steps=already), observation)
        return jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))[1]

    program = jax.jit(run)
    return lambda key, already=0: program(key, jnp.int32(already))


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_specs_are_those_of_the_games(game):
    env = make_jax_env(f"minatar/{game}")
    channels, actions = CHANNELS_AND_ACTIONS[game]
    assert env.spec == EnvSpec(f"minatar/{game}", (10, 10, channels), "bool", actions)
    observation = jax.eval_shape(env.reset, jax.random.key(0))[1]
    assert (observation.shape, observation.dtype) == (env.spec.observation_shape, bool)


@pytest.mark.parametrize("game", FIXED_STARTS)
def test_the_start_that_is_kept_is_that_of_the_rules_whatever_the_key(game):
    rules: Any = pgx.make(f"minatar-{game}")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = jax.jit(jax.vmap(rules.init))(jax.random.split(jax.random.key(5), 3))
    start, observation = make_jax_env(f"minatar/{game}").reset(jax.random.key(1))
    np.testing.assert_array_equal(observation, expected.observation[0])
    for leaf, others in zip(jax.tree.leaves(start.inner), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == others.dtype
        for other in others:
            np.testing.assert_array_equal(leaf, other)


@pytest.mark.parametrize("game", sorted(set(MINATAR_GAMES) - set(FIXED_STARTS)))
def test_the_other_games_begin_by_chance(game):
    keys = jax.random.split(jax.random.key(0), 8)
    observations = jax.jit(jax.vmap(lambda key: make_jax_env(f"minatar/{game}").reset(key)[1]))(keys)
    assert (observations != observations[:1]).any()


def test_a_game_first_made_while_jax_traces_can_be_made_again(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("pgx.minatar.freeway")]:
        monkeypatch.delitem(sys.modules, module)
    jax.make_jaxpr(lambda key: make_jax_env("minatar/freeway").reset(key)[1])(jax.random.key(0))
    _, observation = make_jax_env("minatar/freeway").reset(jax.random.key(0))
    assert np.asarray(observation).any()


@pytest.mark.parametrize("game", ["breakout", "space_invaders"])
def test_one_key_repeats_and_episodes_end_and_begin_anew(game):
    play = random_play(make_jax_env(f"minatar/{game}"), 400)
    seen, outcomes = jax.tree.map(np.asarray, play(jax.random.key(0)))
    again, _ = play(jax.random.key(0))
    other, _ = play(jax.random.key(1))
    np.testing.assert_array_equal(seen, again)
    assert (seen != np.asarray(other)).any()
    ended = outcomes.terminated
    assert ended.sum() > 1
    assert not outcomes.truncated.any()
    np.testing.assert_array_equal(seen[1:][~ended[:-1]], outcomes.observation[:-1][~ended[:-1]])
    assert (seen[1:][ended[:-1]] != outcomes.observation[:-1][ended[:-1]]).any(axis=(1, 2, 3)).all()
    assert (outcomes.state[1:][ended[:-1]] == 1).all(), "the count of steps begins anew"


def test_breakout_gives_one_for_each_brick_and_ends_when_the_ball_is_lost():
    seen, outcomes = jax.tree.map(np.asarray, random_play(make_jax_env("minatar/breakout"), 400)(jax.random.key(0)))
    paddle, ball, bricks = (outcomes.observation[..., channel] for channel in (0, 1, 3))
    broken = seen[..., 3].sum(axis=(1, 2)) - bricks.sum(axis=(1, 2))
    assert outcomes.reward.sum() > 3
    np.testing.assert_array_equal(outcomes.reward, broken)
    # A ball in the last row is a ball that the paddle was not under.
    lost = ball[:, 9].any(axis=1)
    np.testing.assert_array_equal(outcomes.terminated, lost)
    assert not (ball & paddle)[outcomes.terminated].any()


def test_space_invaders_gives_one_for_each_alien():
    play = random_play(make_jax_env("minatar/space_invaders"), 400)
    seen, outcomes = jax.tree.map(np.asarray, play(jax.random.key(0)))
    shot = seen[..., 1].sum(axis=(1, 2)) - outcomes.observation[..., 1].sum(axis=(1, 2))
    assert outcomes.reward.sum() > 3
    np.testing.assert_array_equal(outcomes.reward[shot >= 0], shot[shot >= 0])


def test_a_tenth_of_actions_are_the_last_one_again():
    """Right after the start the last action is to stay: the paddle of Breakout moves right nine times in ten."""
    env = make_jax_env("minatar/breakout")
    keys = jax.random.split(jax.random.key(0), 3000)
    state, _ = env.reset(jax.random.key(0))
    outcomes = jax.jit(jax.vmap(lambda key: env.step(state, jnp.int32(2), key).observation))(keys)
    moved = np.asarray(outcomes)[:, 9, 5, 0]
    assert abs(moved.mean() - 0.9) < 4 * np.sqrt(0.09 / 3000)


def test_an_episode_is_truncated_and_not_terminated_at_the_limit():
    play = random_play(make_jax_env("minatar/breakout"), 400)
    seen, outcomes = jax.tree.map(np.asarray, play(jax.random.key(0), MAX_STEPS - 3))
    assert np.flatnonzero(outcomes.truncated).tolist() == [2]
    assert not outcomes.terminated[:3].any()
    assert outcomes.state[:4].tolist() == [MAX_STEPS - 2, MAX_STEPS - 1, MAX_STEPS, 1]
    assert (seen[3] != outcomes.observation[2]).any()


def test_games_side_by_side_are_the_same_as_one_after_another():
    env = make_jax_env("minatar/breakout")
    keys = jax.random.split(jax.random.key(3), 3)
    play = random_play(env, 400)
    together = jax.vmap(play)(keys)
    for place in range(3):
        for one, other in zip(jax.tree.leaves(play(keys[place])), jax.tree.leaves(together), strict=True):
            np.testing.assert_array_equal(one, other[place])


def test_the_player_is_drawn_on_top():
    env = make_jax_env("minatar/breakout")
    state, observation = env.reset(jax.random.key(0))
    picture = env.draw(state)
    assert picture.shape == (240, 240, 3)
    row, column = np.argwhere(np.asarray(observation)[..., 0])[0]
    assert (picture[row * 24 + 12, column * 24 + 12] == COLORS[0]).all()
    assert (picture[2 * 24 + 12, 12] == COLORS[3]).all(), "a brick"


def test_a_missing_pgx_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pgx", None)
    with pytest.raises(ValueError, match=r"'minatar/freeway' needs pgx.*pip install 'qemrl\[minatar\]'"):
        make_minatar("freeway")


def test_an_unknown_game_gets_the_list():
    with pytest.raises(ValueError, match="'pong': choose from breakout"):
        make_minatar("pong")
