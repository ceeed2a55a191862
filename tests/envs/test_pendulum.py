import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qemrl.envs.jax.classic_control import PENDULUM_MAX_STEPS
from qemrl.envs.jax.env import TimeLimitState
from qemrl.envs.jax.registry import make_jax_env


@pytest.fixture(scope="module")
def env():
    return make_jax_env("jax/pendulum")


@pytest.fixture(scope="module")
def step(env):
    return jax.jit(env.step)


@pytest.fixture
def reference():
    made = gymnasium.make("Pendulum-v1")
    made.reset(seed=0)
    return made


def at(angle: float, spin: float) -> TimeLimitState:
    return TimeLimitState(jnp.array([angle, spin], jnp.float32), jnp.int32(0))


def set_state(reference, state: TimeLimitState) -> None:
    reference.unwrapped.state = np.asarray(state.inner, np.float64)


def test_its_spaces_are_gymnasiums(env, reference):
    box = env.spec.box
    assert box is not None
    assert box.shape == reference.action_space.shape
    np.testing.assert_array_equal(box.low, reference.action_space.low)
    np.testing.assert_array_equal(box.high, reference.action_space.high)
    np.testing.assert_array_equal(env.spec.observation_low, reference.observation_space.low)
    np.testing.assert_array_equal(env.spec.observation_high, reference.observation_space.high)


def test_it_steps_as_gymnasiums_does_from_any_state(step, reference):
    rng, clipped = np.random.default_rng(0), 0
    for _ in range(300):
        state = at(*(rng.uniform(-1, 1, 2) * [2 * np.pi, 8]))
        set_state(reference, state)
        torque = rng.uniform(-4, 4, 1).astype(np.float32)
        observation, reward, terminated, _, _ = reference.unwrapped.step(torque)
        outcome = step(state, torque, jax.random.key(0))
        np.testing.assert_allclose(outcome.observation, observation, rtol=3e-6, atol=3e-6)
        np.testing.assert_allclose(outcome.reward, reward, rtol=3e-6, atol=3e-6)
        assert bool(outcome.terminated) == terminated
        clipped += abs(float(outcome.observation[2])) == 8
    assert clipped > 5, "the limit of the angular velocity was met"


@pytest.mark.parametrize(
    ("angle", "spin", "over_the_top", "tolerance"),
    [(np.pi, 0.5, False, 1e-4), (1.5, -1.0, False, 1e-4), (0.3, 1.0, True, 2e-2)],
)
def test_it_follows_gymnasiums_under_random_torques_to_the_truncation(
    step, reference, angle, spin, over_the_top, tolerance
):
    """Only the start is shared. Near the top the motion is unstable and the rounding of float32 grows."""
    rng, state = np.random.default_rng(1), at(angle, spin)
    set_state(reference, state)
    turns = 0.0
    for now in range(1, PENDULUM_MAX_STEPS + 1):
        torque = rng.uniform(-2.5, 2.5, 1).astype(np.float32)
        expected, reward, terminated, truncated, _ = reference.step(torque)
        state, *outcome = step(state, torque, jax.random.key(0))
        np.testing.assert_allclose(outcome[0], expected, atol=tolerance)
        np.testing.assert_allclose(outcome[1], reward, atol=4 * tolerance)
        assert not terminated
        assert [bool(outcome[2]), bool(outcome[3])] == [terminated, truncated] == [False, now == PENDULUM_MAX_STEPS]
        turns = max(turns, abs(reference.unwrapped.state[0]) / (2 * np.pi))
    assert (turns > 1) == over_the_top


def test_torques_outside_of_the_box_are_clipped_also_in_the_cost(step):
    for torque, most in ((5.0, 2.0), (-2.5, -2.0)):
        one, other = (step(at(1, 0.5), np.array([by], np.float32), jax.random.key(0)) for by in (torque, most))
        assert all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))
    weaker = step(at(1, 0.5), np.array([1.9], np.float32), jax.random.key(0))
    assert float(weaker.reward) > float(step(at(1, 0.5), np.array([2.0], np.float32), jax.random.key(0)).reward)


def test_it_starts_at_any_angle_with_little_spin(env):
    states, observations = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4000))
    angles, spins = np.asarray(states.inner).T
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 0.01
    assert stats.kstest(spins, stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert abs(np.corrcoef(angles, spins)[0, 1]) < 0.06
    np.testing.assert_allclose(observations, np.stack([np.cos(angles), np.sin(angles), spins], 1), atol=1e-6)


def test_the_bob_is_drawn_where_it_is(env):
    def place(angle: float) -> tuple[float, float]:
        """How far right of the axle and above it the middle of the bob is, in lengths of the rod."""
        picture = env.draw(at(angle, 0))
        rows, columns = np.nonzero((picture == (40, 44, 52)).all(-1))
        middle, rod = (len(picture) - 1) / 2, 0.4 * len(picture)
        return (columns.mean() - middle) / rod, (middle - rows.mean()) / rod

    for angle in (0.0, np.pi, np.pi / 2, -0.5):
        # As in Gymnasium's pictures a positive angle is to the left.
        np.testing.assert_allclose(place(angle), (-np.sin(angle), np.cos(angle)), atol=0.01)
