from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from qemrl.envs.gym import jax_adapter
from qemrl.envs.jax.classic_control import CARTPOLE_MAX_STEPS, MAX_POSITION
from qemrl.envs.jax.env import JaxEnv, TimeLimitState, autoreset_step, limit_time
from qemrl.envs.jax.exploration_tasks import CatchState, make_catch
from qemrl.envs.jax.registry import JAX_ENVS, is_jax_env, make_jax_env

SOME_SIZES = ("jax/deep-sea-5", "jax/deep-sea-30", "jax/deep-sea-stochastic-7", "jax/chain-10", "jax/chain-100")
SMALL = [
    env_id
    for env_id in JAX_ENVS
    if env_id in SOME_SIZES or not env_id.startswith(("minatar/", "jax/deep-sea", "jax/chain"))
]


def random_action(env: JaxEnv, key):
    box = env.spec.box
    if box is None:
        return jax.random.randint(key, (), 0, env.spec.num_actions, jnp.int32)
    low, high = (jnp.array(bound, jnp.float32).reshape(box.shape) for bound in (box.low, box.high))
    return jax.random.uniform(key, box.shape, jnp.float32, low, high)


@lru_cache
def random_play(env: JaxEnv, steps: int):
    """From a key to the observations acted on, the actions and the outcomes of random play, compiled."""

    def run(key):
        def step(carry, now):
            state, observation = carry
            action_key, step_key = jax.random.split(jax.random.fold_in(key, now))
            action = random_action(env, action_key)
            following, next_observation, outcome = autoreset_step(env, state, action, step_key)
            return (following, next_observation), (observation, action, outcome)

        return jax.lax.scan(step, env.reset(key), jnp.arange(steps, dtype=jnp.int32))[1]

    return jax.jit(run)


@lru_cache
def compiled_step(env: JaxEnv):
    return jax.jit(env.step)


def equal(one, other) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.mark.parametrize("env_id", SMALL)
def test_what_an_environment_gives_is_what_its_spec_says(env_id):
    env = make_jax_env(env_id)
    state, observation = jax.jit(env.reset)(jax.random.key(0))
    action = np.zeros(env.spec.action_shape, env.spec.action_dtype)
    outcome = compiled_step(env)(state, action, jax.random.key(1))
    assert env.spec.id == env_id
    assert (env.spec.num_actions == 0) == (env.spec.box is not None)
    for seen in (observation, outcome.observation):
        assert (seen.shape, seen.dtype) == (env.spec.observation_shape, env.spec.observation_dtype)
    assert (outcome.reward.shape, outcome.reward.dtype) == ((), "float32")
    assert outcome.terminated.dtype == outcome.truncated.dtype == bool
    assert jax.tree.map(jnp.shape, outcome.state) == jax.tree.map(jnp.shape, state)
    mask = env.mask(state)
    assert (mask is not None) == env.spec.has_mask
    picture = env.draw(state)
    assert picture.dtype == np.uint8
    assert picture.ndim == 3


@pytest.mark.parametrize("env_id", ["jax/cartpole", "jax/catch", "jax/pendulum", "probe/5", "probe/7"])
def test_one_key_repeats_and_two_keys_differ(env_id):
    env = make_jax_env(env_id)
    play = random_play(env, 60)
    first = play(jax.random.key(0))
    assert equal(first, play(jax.random.key(0)))
    assert not equal(first, play(jax.random.key(1)))


@pytest.mark.parametrize("env_id", ["jax/cartpole", "jax/catch", "jax/pendulum", "probe/6", "probe/8"])
def test_environments_side_by_side_are_the_same_as_one_after_another(env_id):
    env = make_jax_env(env_id)
    keys = jax.random.split(jax.random.key(3), 3)
    states, _ = jax.vmap(env.reset)(keys)
    actions = jax.vmap(partial(random_action, env))(keys)
    step = jax.jit(lambda *inputs: autoreset_step(env, *inputs))
    together = jax.tree.leaves(jax.jit(jax.vmap(step))(states, actions, keys))
    for place in range(3):
        alone = jax.tree.leaves(step(*jax.tree.map(itemgetter(place), (states, actions, keys))))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other[place], rtol=1e-6)


@pytest.mark.parametrize("env_id", ["jax/cartpole", "jax/catch", "probe/3", "probe/6", "probe/c3"])
def test_autoreset_acts_on_the_first_observation_and_keeps_the_true_next_one(env_id):
    env = make_jax_env(env_id)
    seen, actions, outcomes = jax.tree.map(np.asarray, random_play(env, 60)(jax.random.key(2)))
    ended = outcomes.terminated | outcomes.truncated
    assert 0 < ended[:-1].sum() < 59
    np.testing.assert_array_equal(seen[1:][~ended[:-1]], outcomes.observation[:-1][~ended[:-1]])
    # These environments do not draw while they step: a step from where the one before led to is what came next, unless
    # an episode ended between the two.
    again = jax.jit(jax.vmap(env.step, (0, 0, None)))(outcomes.state, np.roll(actions, -1), jax.random.key(0))
    followed = np.append(~ended[:-1], False)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(outcomes), strict=True):
        np.testing.assert_allclose(one[followed], np.roll(other, -1, axis=0)[followed], rtol=1e-5, atol=1e-6)
    if env_id == "jax/catch":
        assert seen[1:][ended[:-1]][:, 0].any(axis=(1, 2)).all(), "the ball is on top again"
        assert not outcomes.observation[ended][:, 0].any(), "the true last board has it at the bottom"
    if env_id == "jax/cartpole":
        assert (np.abs(seen[1:][ended[:-1]]) <= 0.05).all()
        assert (np.abs(outcomes.observation[ended][:, 2]) > 0.2).all()
    if env_id in ("probe/3", "probe/c3"):
        assert (seen[1:][ended[:-1]] == 0).all()
        assert (outcomes.observation[ended] == 1).all()
    if env_id == "probe/6":
        assert set(np.diff(np.flatnonzero(ended))) == {5}, "the count of steps begins anew"


def test_cartpole_steps_as_gymnasiums_does():
    env, reference = make_jax_env("jax/cartpole"), gymnasium.make("CartPole-v1").unwrapped
    step, rng = compiled_step(env), np.random.default_rng(0)
    for _ in range(300):
        state = rng.uniform(-1, 1, 4) * [2.5, 3, 0.22, 3]
        action = int(rng.integers(2))
        reference.reset()
        reference.state = state.astype(np.float32).astype(np.float64)  # type: ignore[attr-defined]
        observation, reward, terminated, _, _ = reference.step(action)
        timed = TimeLimitState(jnp.asarray(state, jnp.float32), jnp.int32(0))
        outcome = step(timed, jnp.int32(action), jax.random.key(0))
        np.testing.assert_allclose(outcome.observation, observation, rtol=2e-6, atol=2e-6)
        assert float(outcome.reward) == reward == 1.0
        assert bool(outcome.terminated) == terminated


def test_cartpole_follows_gymnasium_through_an_episode_that_is_balanced_to_the_truncation():
    env, reference = make_jax_env("jax/cartpole"), gymnasium.make("CartPole-v1")
    state, observation = env.reset(jax.random.key(0))
    reference.reset(seed=0)
    step = compiled_step(env)
    for now in range(1, CARTPOLE_MAX_STEPS + 1):
        position, velocity, angle, spin = map(float, observation)
        action = int(angle + 0.3 * spin + 0.03 * position + 0.06 * velocity > 0)
        # The pole is unstable and rounding would grow, so each step is compared from the same state.
        reference.unwrapped.state = np.asarray(observation, np.float64)  # type: ignore[attr-defined]
        expected, reward, terminated, truncated, _ = reference.step(action)
        state, observation, *outcome = step(state, jnp.int32(action), jax.random.key(0))
        np.testing.assert_allclose(observation, expected, rtol=2e-6, atol=2e-6)
        assert [float(outcome[0]), *map(bool, outcome[1:])] == [reward, terminated, truncated]
        assert not terminated
        assert truncated == (now == CARTPOLE_MAX_STEPS)


def test_cartpole_starts_evenly_within_a_twentieth():
    starts = jax.vmap(lambda key: make_jax_env("jax/cartpole").reset(key)[1])(jax.random.split(jax.random.key(0), 4000))
    assert np.abs(starts).max() <= 0.05
    np.testing.assert_allclose(np.std(starts, axis=0), 0.1 / np.sqrt(12), rtol=0.05)


def test_catch_is_won_by_going_to_the_ball_and_lost_by_staying_away():
    step = compiled_step(make_jax_env("jax/catch"))
    for column in range(5):
        for aim, reward in ((column, 1.0), ((column + 1) % 5, -1.0)):
            state, total = CatchState(jnp.int32(0), jnp.int32(column), jnp.int32(2)), 0.0
            for now in range(9):
                action = np.int32(1 + np.sign(aim - int(state.paddle_column)))
                state, board, gained, terminated, truncated = step(state, action, jax.random.key(0))
                total += float(gained)
                assert bool(terminated) == (now == 8)
                assert not truncated
                assert float(gained) == (reward if now == 8 else 0.0)
                assert board[now + 1, column, 0]
                assert board[9, int(state.paddle_column), 0]
                assert int(board.sum()) == 2 - (now == 8 and reward == 1.0)
            assert total == reward


def test_the_paddle_of_catch_stays_on_the_board():
    state, _ = make_catch().reset(jax.random.key(0))
    for action, place in ((0, 0), (2, 4)):
        now = state
        for _ in range(8):
            now = compiled_step(make_jax_env("jax/catch"))(now, np.int32(action), jax.random.key(0)).state
        assert int(now.paddle_column) == place


def test_a_time_limit_truncates_and_leaves_terminations_alone():
    def flags(max_steps: int) -> list[tuple[bool, bool]]:
        """Whether each step of an episode terminated and truncated it."""
        env = limit_time(make_catch(), max_steps)
        state, _ = env.reset(jax.random.key(0))
        seen, step = [], jax.jit(env.step)
        while not seen or seen[-1] == (False, False):
            state, _, _, terminated, truncated = step(state, np.int32(1), jax.random.key(0))
            seen.append((bool(terminated), bool(truncated)))
        return seen

    assert flags(4) == [(False, False)] * 3 + [(False, True)]
    assert flags(9) == [(False, False)] * 8 + [(True, True)]
    assert flags(10) == [(False, False)] * 8 + [(True, False)]
    with pytest.raises(ValueError, match="0 steps"):
        limit_time(make_catch(), 0)


def test_an_id_alone_tells_a_jax_environment():
    assert all(map(is_jax_env, JAX_ENVS))
    assert is_jax_env("minatar/tetris")
    assert not any(map(is_jax_env, ["CartPole-v1", "ALE/Pong-v5", "qemrl/cartpole-v0", "jax"]))


def test_an_environment_is_made_once():
    assert make_jax_env("jax/catch") is make_jax_env("jax/catch")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("minatar/breakoutt", "minatar/breakout"), ("jax/cart-pole", "jax/cartpole"), ("probe/9", "probe/")],
)
def test_an_unknown_id_gets_a_suggestion(wrong, right):
    with pytest.raises(ValueError, match=f"'{wrong}': did you mean '{right}"):
        make_jax_env(wrong)


def test_an_id_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match=r"choose from minatar/breakout, .*probe/c7"):
        make_jax_env("#")


@pytest.mark.parametrize("env_id", ["jax/catch", "probe/2", "probe/6", "probe/8"])
def test_an_adapter_passes_gymnasiums_checker(env_id):
    check_env(gymnasium.make(jax_adapter.gymnasium_id(env_id), render_mode="rgb_array").unwrapped)


@pytest.mark.filterwarnings("ignore:.*space (min|max)imum value is -?infinity:UserWarning")
def test_the_adapter_of_cartpole_passes_the_checker_but_for_its_unbounded_velocities():
    check_env(gymnasium.make("qemrl/cartpole-v0", render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("env_id", ["jax/cartpole", "jax/catch", "probe/7", "probe/8"])
def test_an_adapter_is_the_jax_environment_with_the_keys_of_its_seed(env_id):
    env = make_jax_env(env_id)
    host = jax_adapter.JaxEnvAdapter(env)
    key, step, reset = jax.random.key(11), compiled_step(env), jax.jit(env.reset)
    seen, info = host.reset(seed=11)
    call = 0
    state, observation = reset(jax.random.fold_in(key, call))
    for now in range(40):
        np.testing.assert_array_equal(seen, observation)
        mask = env.mask(state)
        np.testing.assert_array_equal(info.get("action_mask", 0), 0 if mask is None else mask)
        action = now % env.spec.num_actions
        call += 1
        seen, reward, terminated, truncated, info = host.step(action)
        state, observation, *outcome = step(state, jnp.int32(action), jax.random.fold_in(key, call))
        np.testing.assert_array_equal(seen, observation)
        assert [reward, terminated, truncated] == [outcome[0].item(), outcome[1].item(), outcome[2].item()]
        if terminated or truncated:
            call += 1
            seen, info = host.reset()
            state, observation = reset(jax.random.fold_in(key, call))


def test_all_bits_of_a_seed_count():
    host = jax_adapter.make_adapter("jax/cartpole")
    seeds = (5, 6, 5 + 2**32, 5 + 2**33, 5 + 2**70)
    starts = {tuple(host.reset(seed=seed)[0].tolist()) for seed in seeds}
    assert len(starts) == len(seeds)
    assert jax_adapter.seed_key(5) == jax.random.key(5)
    assert jax_adapter.seed_key(2**32 - 1) == jax.random.key(2**32 - 1)


def test_an_environment_that_was_never_seeded_draws_its_seed():
    host, other = jax_adapter.make_adapter("jax/cartpole"), jax_adapter.make_adapter("jax/cartpole")
    assert (host.reset()[0] != other.reset()[0]).all()


def test_an_adapter_goes_on_from_a_state_that_is_put_back():
    host, other = jax_adapter.make_adapter("jax/cartpole"), jax_adapter.make_adapter("jax/cartpole")
    host.reset(seed=5)
    host.step(1)
    other.state, other.key, other.calls = host.state, host.key, host.calls
    for action in (0, 1, 1):
        np.testing.assert_array_equal(host.step(action)[0], other.step(action)[0])


def test_an_adapter_says_what_it_cannot_do():
    host = jax_adapter.make_adapter("jax/catch")
    with pytest.raises(ValueError, match="call reset"):
        host.step(0)
    with pytest.raises(ValueError, match="call reset"):
        host.render()
    host.reset(seed=0)
    with pytest.raises(ValueError, match="action 3 is none of 0 to 2"):
        host.step(3)
    with pytest.raises(ValueError, match="options"):
        host.reset(options={"speed": 2})
    with pytest.raises(ValueError, match="'human'"):
        jax_adapter.make_adapter("jax/catch", render_mode="human")
    assert host.render() is None


def test_all_jax_environments_are_registered_with_gymnasium():
    assert {jax_adapter.gymnasium_id(env_id) for env_id in JAX_ENVS} <= set(gymnasium.registry)
    assert jax_adapter.gymnasium_id("minatar/space_invaders") == "qemrl/minatar-space_invaders-v0"
    assert jax_adapter.gymnasium_id("probe/1") == "qemrl/probe-1-v0"


def test_the_cart_is_drawn_where_it_is_and_the_pole_leans_as_it_does():
    env = make_jax_env("jax/cartpole")

    def columns_of(position: float, angle: float, color: tuple[int, int, int]) -> float:
        physical = jnp.array([position, 0, angle, 0], jnp.float32)
        picture = env.draw(TimeLimitState(physical, jnp.int32(0)))
        return float(np.nonzero((picture == np.array(color)).all(-1))[1].mean())

    cart, pole = (40, 44, 52), (200, 140, 80)
    middle = columns_of(0, 0, cart)
    assert columns_of(-MAX_POSITION, 0, cart) < middle - 100 < middle + 100 < columns_of(MAX_POSITION, 0, cart)
    assert columns_of(0, -0.2, pole) < middle - 5 < middle + 5 < columns_of(0, 0.2, pole)


def test_a_time_limit_keeps_the_mask():
    env = replace(make_catch(), mask=lambda _: jnp.array([True, True, False]))
    state, _ = env.reset(jax.random.key(0))
    mask = limit_time(env, 3).mask(TimeLimitState(state, jnp.int32(0)))
    assert mask is not None
    assert mask.tolist() == [True, True, False]
