"""Continuous actions of Gymnasium environments: which are taken, how they are passed on, and coming back to a state."""

import sys
import warnings
from functools import partial

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from qemrl.envs.gym.catalog import UnknownEnvironment, missing_package
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs
from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.envs.gym.jax_adapter import JaxEnvAdapter
from qemrl.envs.gym.spaces import NonFiniteError
from qemrl.envs.jax.env import JaxEnv, Outcome
from qemrl.types import ActionBox, EnvSpec, UnsupportedEnvironment


class Echo(gymnasium.Env):
    """Shows the action that it was given, and forgets it in the next step; `received` are all as they came."""

    observation_space = spaces.Box(-100, 100, (6,), np.float32)

    def __init__(self, action_space, info=None):
        self.action_space, self.received, self.info = action_space, [], info or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.zeros(6, np.float32), self.info

    def step(self, action):
        self.received.append(np.array(action))
        assert isinstance(action, np.ndarray)
        shown = np.zeros(6, np.float32)
        shown[: action.size] = action.reshape(-1)
        action[...] = 77  # an environment may do what it likes with its own
        return shown, 0.0, False, False, self.info


def echoes(action_space, num_envs=1, info=None):
    return HostEnvs(InProcessEnvs(partial(Echo, action_space, info), num_envs), "Echo-v0")


def random_actions(envs, count, seed=1):
    box = envs.spec.box
    low, high = (np.reshape(bound, box.shape) for bound in (box.low, box.high))
    generator = np.random.default_rng(seed)
    return generator.uniform(low, high, (count, envs.num_envs, *box.shape)).astype(np.float32)


def test_specs_say_where_continuous_actions_lie():
    spec = make_host_envs("Pendulum-v1", 1).spec
    assert (spec.num_actions, spec.has_mask, spec.box) == (0, False, ActionBox((1,), (-2.0,), (2.0,)))
    assert (spec.action_shape, spec.action_dtype) == ((1,), "float32")
    assert make_host_envs("CartPole-v1", 1).spec.box is None
    low = np.arange(6, dtype=np.float64).reshape(2, 3)
    box = echoes(spaces.Box(low, low + 1, dtype=np.float64)).spec.box
    assert box == ActionBox((2, 3), (0.0, 1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert echoes(spaces.Box(-1, 3, ())).spec.box == ActionBox((), (-1.0,), (3.0,))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), r"index \(1,\).*say between which"),
        (spaces.Box(-3e38, 3e38, (2,)), "without finite bounds"),
        (
            spaces.Box(np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]]), dtype=np.float64),
            r"less than high at index \(0, 1",
        ),
        (spaces.Box(0, 1, (0,)), "there are none"),
        (spaces.Box(0, 3, (2,), np.int64), "Discrete or a Box of floats"),
        (spaces.MultiDiscrete([2, 3]), "number the 6 combinations"),
    ],
)
def test_actions_that_no_agent_can_take_are_refused_with_advice(space, message):
    with pytest.raises(UnsupportedEnvironment, match=message):
        echoes(space)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_environments_get_actions_in_the_dtype_of_their_space(shape, dtype):
    envs = echoes(spaces.Box(-1.5, 2.5, shape, dtype), 2)
    actions = random_actions(envs, 1)[0]
    step = envs.step(jnp.asarray(actions))
    for place, env in enumerate(envs.vector.envs):
        assert (env.received[0].shape, env.received[0].dtype) == (shape, dtype)
        np.testing.assert_array_equal(env.received[0], actions[place])
    np.testing.assert_array_equal(step.observation[:, : actions[0].size], actions.reshape(2, -1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_clipped_to_the_box(dtype):
    space = spaces.Box(-0.1, 0.1, (3,), dtype)
    envs = echoes(space)
    outside = np.nextafter(np.float32(0.1), np.float32(1))
    envs.step(np.array([[outside, -outside, 0.05]], np.float32))
    (received,) = envs.vector.envs[0].received
    assert space.contains(received)
    np.testing.assert_array_equal(received, np.array([space.high[0], space.low[1], np.float32(0.05)], dtype))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_not_finite_says_that_learning_has_diverged(value):
    envs = echoes(spaces.Box(-1, 1, (3,)), 2)
    actions = np.zeros((2, 3), np.float32)
    actions[1, 2] = value
    with pytest.raises(NonFiniteError, match=rf"environment 1 \(Echo-v0\) is {value} at index \(2,\).*diverged"):
        envs.step(actions)
    assert envs.vector.envs[0].received == []


def test_actions_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\('environments', 1\), got \(3,\)"):
        make_host_envs("Pendulum-v1", 3).step(np.zeros(3, np.float32))


def test_masks_are_for_numbered_actions_only():
    envs = echoes(spaces.Box(-1, 1, (2,)), info={"action_mask": np.array([True, False])})
    assert not envs.spec.has_mask
    assert envs.step(np.zeros((1, 2), np.float32)).next_mask is None


def assert_comes_back(make, before):
    envs = make()
    envs.reset(11)
    actions = random_actions(envs, before + 60)
    for row in actions[:before]:
        envs.step(row)
    state = envs.state()
    assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
    assert state["actions"].dtype == np.float32
    last = [actions[before - length : before, place] for place, length in enumerate(state["length"].tolist())]
    np.testing.assert_array_equal(state["actions"], np.concatenate(last))
    again = make()
    assert again.restore(state) == []
    for key, value in again.state().items():
        np.testing.assert_array_equal(value, state[key], err_msg=key)
    for row in actions[before:]:
        for part, true in zip(again.step(row), envs.step(row), strict=True):
            np.testing.assert_array_equal(part, true)
    for key, value in again.state().items():
        np.testing.assert_array_equal(value, envs.state()[key], err_msg=key)
    envs.close()
    again.close()
    return state["length"].tolist()


@pytest.mark.parametrize(("env_id", "before"), [("Pendulum-v1", 230), ("MountainCarContinuous-v0", 40)])
def test_environments_with_continuous_actions_come_back_to_a_state(env_id, before):
    assert assert_comes_back(partial(make_host_envs, env_id, 2), before) == [before % 200] * 2


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5"])
def test_mujoco_comes_back_to_states_of_episodes_of_different_lengths(env_id):
    pytest.importorskip("mujoco")
    lengths = assert_comes_back(partial(make_host_envs, env_id, 4), 70)
    assert len(set(lengths)) > 1


def test_an_environment_that_has_just_begun_comes_back_beside_others():
    def make():
        limits = iter([5, 7, 100])
        return HostEnvs(InProcessEnvs(lambda: gymnasium.make("Pendulum-v1", max_episode_steps=next(limits)), 3), "P")

    assert assert_comes_back(make, 35) == [0, 0, 35]
    assert assert_comes_back(make, 10) == [0, 3, 10]
    assert assert_comes_back(make, 0) == [0, 0, 0]


def test_processes_of_their_own_take_continuous_actions_and_come_back():
    alone, envs = make_host_envs("Pendulum-v1", 2), make_host_envs("Pendulum-v1", 2, asynchronous=True)
    assert isinstance(envs.vector, AsyncVectorEnv)
    alone.reset(3)
    envs.reset(3)
    actions = random_actions(envs, 20)
    for row in actions[:10]:
        np.testing.assert_array_equal(alone.step(row).observation, envs.step(row).observation)
    state = envs.state()
    envs.reset(99)
    assert envs.restore(state) == []
    for row in actions[10:]:
        np.testing.assert_array_equal(alone.step(row).observation, envs.step(row).observation)
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_of_gymnasium_take_continuous_actions(mode):
    each = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=6)
    envs = HostEnvs(SyncVectorEnv([each] * 2, autoreset_mode=mode), "Pendulum-v1")
    actions = random_actions(envs, 15)
    steps = [envs.step(row) for row in actions]
    assert sum(bool(step.truncated[0]) for step in steps) == 2
    assert envs.state()["actions"].shape == ((6, 1) if mode is AutoresetMode.DISABLED else (0, 1))


def test_a_state_of_other_actions_is_refused():
    state = echoes(spaces.Discrete(3)).state()
    with pytest.raises(ValueError, match=r"uint32\[\], those of the environments here float32\[2\]"):
        echoes(spaces.Box(-1, 1, (2,))).restore(state)


def test_old_versions_of_mujoco_environments_run_without_a_warning_or_lead_to_the_newest():
    pytest.importorskip("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = make_host_envs("Hopper-v4", 1)
    assert envs.spec.box == ActionBox((3,), (-1.0,) * 3, (1.0,) * 3)
    for env_id in ("Hopper-v2", "Hopper-v3"):
        with pytest.raises(UnknownEnvironment, match=r"mujoco-py.*use Hopper-v5"):
            make_host_envs(env_id, 1)
    with pytest.raises(UnknownEnvironment) as raised:
        make_host_envs("hopper", 1)
    assert "Hopper-v5" in str(raised.value)
    assert "Hopper-v3" not in str(raised.value)


def test_without_mujoco_the_extra_is_named(monkeypatch):
    error = ImportError("no module")
    old, new = gymnasium.registry["Pusher-v4"], gymnasium.registry["Pusher-v5"]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "mujoco", None)
        for registration in (old, new):
            assert "pip install 'qemrl[mujoco]'" in str(missing_package(registration, error))
    pytest.importorskip("mujoco")
    assert "use Pusher-v5 (no module)" in str(missing_package(old, error))  # it needs a MuJoCo of years ago


def sliding():
    """A JAX environment that adds its actions up."""
    box = ActionBox((2, 1), (-1.0, -0.1), (1.0, 0.3))
    return JaxEnv(
        EnvSpec("sliding", (2,), "float32", 0, box=box),
        reset=lambda _: (jnp.zeros(2), jnp.zeros(2)),
        step=lambda state, action, _: Outcome(
            state + action.reshape(2), state + action.reshape(2), action[0, 0], jnp.bool_(False), jnp.bool_(False)
        ),
        draw=lambda _: np.zeros((1, 1, 3), np.uint8),
    )


def test_jax_environments_with_continuous_actions_are_adapted():
    env = JaxEnvAdapter(sliding())
    low, high = np.array([[-1.0], [-0.1]], np.float32), np.array([[1.0], [0.3]], np.float32)
    assert env.action_space == spaces.Box(low, high, dtype=np.float32)
    env.reset(seed=0)
    env.step(low)
    observation, reward, *_ = env.step(high)
    np.testing.assert_array_equal(observation, (low + high).reshape(-1))
    assert reward == 1
    with pytest.raises(ValueError, match=r"has the shape \(2,\), actions of sliding \(2, 1\)"):
        env.step(np.zeros(2, np.float32))
    for wrong in (1.5, np.nan):
        with pytest.raises(ValueError, match="clip it"):
            env.step(np.full((2, 1), wrong, np.float32))


def test_adapters_run_side_by_side():
    envs = HostEnvs(InProcessEnvs(lambda: JaxEnvAdapter(sliding()), 2), "sliding")
    assert envs.spec.box is not None
    np.testing.assert_allclose(np.array(envs.spec.box.low), [-1, -0.1], rtol=1e-6)
    step = envs.step(np.full((2, 2, 1), 9, np.float32))
    np.testing.assert_array_equal(step.observation, np.array([[1.0, 0.3]] * 2, np.float32))
