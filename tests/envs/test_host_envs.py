"""Gymnasium environments behind one interface: episodes, masks, errors, and coming back to a state."""

import importlib.util
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from qemrl.envs.gym.catalog import MissingPackage, UnknownEnvironment, is_atari
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs
from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.envs.gym.spaces import USUAL_BOUNDS, NonFiniteError
from qemrl.types import UnsupportedEnvironment

MODES = list(AutoresetMode)
ACTIONS = np.random.default_rng(0).integers(0, 3, (2, 200))


class Counting(gymnasium.Env):
    """Shows its clock, which actions push on and resets do not touch; episodes end and are cut in turns."""

    observation_space = spaces.Box(-1, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(3, start=5)
    mask_in_info = False

    def __init__(self):
        self.clock, self.age = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.age = 0
        self.first = self.clock
        return self.look(), self.info()

    def step(self, action):
        assert 5 <= action <= 7
        self.clock += int(action) - 4
        self.age += 1
        over = self.age >= 2 + self.first % 3
        return (
            self.look(),
            10 * self.clock + 0.5,
            over and self.clock % 2 == 0,
            over and self.clock % 2 == 1,
            self.info(),
        )

    def look(self):
        return np.array([self.clock, self.age], np.float64)

    def allowed(self):
        return np.array([True, self.clock % 2 == 0, self.age == 0])

    def info(self):
        return {"action_mask": self.allowed()} if self.mask_in_info else {}


class Masked(Counting):
    mask_in_info = True


class MaskedByMethod(Counting):
    def action_masks(self):
        return self.allowed()


class Broken(Counting):
    """Gives what it is told to at its third step."""

    def __init__(self, reward=0.0, value=0.0, allowed=True):
        super().__init__()
        self.broken_reward, self.value, self.still_allowed = reward, value, allowed

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        if self.clock >= 3:
            observation, reward = np.array([0.0, self.value]), self.broken_reward
        return observation, reward, False, False, info

    def info(self):
        return {"action_mask": np.full(3, self.still_allowed or self.clock < 3)}


class Drifting(gymnasium.Env):
    """Depends on something that a seed does not set: a number of the class, added to what it shows or when it ends."""

    observation_space = spaces.Box(-10, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)
    drift, length = 0.0, 1000

    def __init__(self):
        self.age = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.age, self.luck = 0, float(self.np_random.random())
        return np.array([self.luck], np.float32), {}

    def step(self, action):
        self.age += 1
        shown = self.luck + self.age + (self.drift if action else 0.0)
        return np.array([shown], np.float32), 1.0, self.age >= self.length, False, {}


for kind in (Counting, Masked, MaskedByMethod, Drifting):
    gymnasium.register(f"{kind.__name__}-v0", f"{__name__}:{kind.__name__}")


def by_hand(env, actions, count):
    """The transitions of one environment, and the masks that it shows, from a loop with nothing around it."""
    rows = []
    observation, _ = env.reset()
    mask = env.allowed()
    for action in actions[:count].tolist():
        following, reward, terminated, truncated, _ = env.step(action + 5)
        rows.append((observation, mask, action, reward, terminated, truncated, following, env.allowed()))
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
        mask = env.allowed()
    return rows


def stream(envs, actions, count):
    """The valid transitions of each environment."""
    observation, mask = envs.reset(0)
    rows = [[] for _ in range(envs.num_envs)]
    while min(map(len, rows)) < count:
        chosen = np.array([actions[place][len(row)] for place, row in enumerate(rows)])
        step = envs.step(chosen)
        for place in np.flatnonzero(step.valid):
            told = (step.reward[place], step.terminated[place], step.truncated[place], step.next_observation[place])
            allowed = (None, None) if mask is None else (mask[place], step.next_mask[place])
            rows[place].append((observation[place], allowed[0], chosen[place], *told, allowed[1]))
            over = step.terminated[place] or step.truncated[place]
            assert step.ended[place] == over
        observation, mask = step.observation, step.mask
    return [row[:count] for row in rows]


def same_rows(rows, expected):
    assert len(rows) == len(expected)
    for row, right in zip(rows, expected, strict=True):
        for part, true in zip(row, right, strict=True):
            np.testing.assert_array_equal(part, true)


@pytest.mark.parametrize("mode", [*MODES, None])
def test_all_ways_of_resetting_give_the_transitions_of_a_loop_by_hand(mode):
    vector = InProcessEnvs(Counting, 2) if mode is None else SyncVectorEnv([Counting] * 2, autoreset_mode=mode)
    envs = HostEnvs(vector, "Counting-v0")
    rows = stream(envs, ACTIONS, 60)
    for place in range(2):
        expected = [(*r[:1], None, *r[2:7], None) for r in by_hand(Counting(), ACTIONS[place], 60)]
        assert sum(bool(r[4]) for r in expected) > 3
        assert sum(bool(r[5]) for r in expected) > 3
        same_rows(rows[place], expected)
    assert rows[0][0][0].dtype == np.float32
    assert rows[0][0][3].dtype == np.float32


@pytest.mark.parametrize("mode", MODES)
def test_masks_belong_to_the_observation_they_come_with(mode):
    envs = HostEnvs(SyncVectorEnv([Masked] * 2, autoreset_mode=mode), "Masked-v0")
    assert envs.spec.has_mask
    rows = stream(envs, ACTIONS, 60)
    for place in range(2):
        same_rows(rows[place], by_hand(Masked(), ACTIONS[place], 60))


def test_masks_are_asked_of_a_method_where_there_is_one():
    envs = make_host_envs("MaskedByMethod-v0", 2)
    assert envs.spec.has_mask
    rows = stream(envs, ACTIONS, 60)
    for place in range(2):
        same_rows(rows[place], by_hand(MaskedByMethod(), ACTIONS[place], 60))
    assert not make_host_envs("Counting-v0", 1).spec.has_mask
    vector = SyncVectorEnv([MaskedByMethod], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(UnsupportedEnvironment, match="action_masks"):
        HostEnvs(vector, "MaskedByMethod-v0")


def test_an_observation_without_an_allowed_action_is_an_error():
    envs = HostEnvs(InProcessEnvs(partial(Broken, allowed=False), 2), "Broken-v0")
    envs.reset(0)
    envs.step(np.array([0, 0]))
    with pytest.raises(ValueError, match=r"environment 1 .*allows no action"):
        envs.step(np.array([0, 2]))


def test_rows_of_a_reset_are_not_valid_and_frames_restart_there():
    envs = HostEnvs(SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.NEXT_STEP), "Counting-v0")
    envs.reset(0)
    zero = np.zeros(1, np.int64)
    steps = [envs.step(zero) for _ in range(4)]
    assert [bool(step.valid[0]) for step in steps] == [True, True, False, True]
    assert [bool(step.ended[0]) for step in steps] == [False, True, False, False]
    assert [bool(step.restarted[0]) for step in steps] == [False, False, True, False]
    envs = make_host_envs("Counting-v0", 1)
    steps = [envs.step(zero) for _ in range(4)]
    assert all(step.valid[0] for step in steps)
    assert [bool(step.restarted[0]) for step in steps] == [False, True, False, False]


def test_arrays_of_a_step_stay_as_they_were():
    envs = make_host_envs("CartPole-v1", 2)
    observation = envs.reset(0).observation
    first = observation.copy()
    step = envs.step(np.array([0, 1]))
    before = step.next_observation.copy()
    for _ in range(30):
        envs.step(np.array([0, 1]))
    np.testing.assert_array_equal(observation, first)
    np.testing.assert_array_equal(step.next_observation, before)


def test_time_limits_truncate_and_falls_terminate():
    envs = HostEnvs(InProcessEnvs(partial(gymnasium.make, "CartPole-v1", max_episode_steps=4), 2), "CartPole-v1")
    envs.reset(0)
    steps = [envs.step(np.array([k % 2, k % 2])) for k in range(4)]
    assert steps[-1].truncated.all()
    assert not steps[-1].terminated.any()
    envs = make_host_envs("CartPole-v1", 1)
    envs.reset(0)
    steps = [envs.step(np.array([0])) for _ in range(12)]
    assert sum(step.terminated[0] for step in steps) == 1
    assert not any(step.truncated[0] for step in steps)


def test_specs_say_what_spaces_say():
    spec = make_host_envs("MountainCar-v0", 1).spec
    assert (spec.observation_shape, spec.observation_dtype, spec.num_actions) == ((2,), "float32", 3)
    np.testing.assert_allclose(np.array(spec.observation_low), [-1.2, -0.07], rtol=1e-6)
    np.testing.assert_allclose(np.array(spec.observation_high), [0.6, 0.07], rtol=1e-6)
    spec = make_host_envs("CartPole-v1", 1).spec  # open bounds: the usual ones are taken
    assert (spec.observation_low, spec.observation_high) == USUAL_BOUNDS["CartPole-v1"]
    spec = make_host_envs("Counting-v0", 1).spec  # float64, actions from 5
    assert (spec.observation_dtype, spec.num_actions) == ("float32", 3)


def test_states_with_numbers_are_shown_as_one_hot_vectors():
    envs = make_host_envs("FrozenLake-v1", 3)
    assert (envs.spec.observation_shape, envs.spec.observation_dtype, envs.spec.num_actions) == ((16,), "float32", 4)
    observation = envs.reset(0).observation
    np.testing.assert_array_equal(observation, np.eye(16, dtype=np.float32)[[0, 0, 0]])
    seen = np.zeros(16)
    for k in range(60):
        step = envs.step(np.full(3, k % 4))
        np.testing.assert_array_equal(step.next_observation.sum(1), 1)
        seen += step.next_observation.sum(0)
    assert (seen > 0).sum() > 4


def test_runs_repeat_with_their_seed_and_episodes_differ():
    def first_observations(seed):
        envs = make_host_envs("CartPole-v1", 2)
        firsts = [envs.reset(seed).observation]
        for _ in range(40):
            step = envs.step(np.array([0, 0]))
            firsts += [step.observation[[place]] for place in np.flatnonzero(step.ended)]
        return np.concatenate(firsts)

    one = first_observations(3)
    np.testing.assert_array_equal(first_observations(3), one)
    assert len(np.unique(one, axis=0)) == len(one) > 6
    assert not (first_observations(4)[0] == one[0]).any()
    with pytest.raises(ValueError, match="-1"):
        make_host_envs("CartPole-v1", 1).reset(-1)


def continuation(envs, actions):
    return [envs.step(row) for row in actions]


def assert_comes_back(make, num_actions, before=37, seed=11):
    rng = np.random.default_rng(1)
    envs = make()
    envs.reset(seed)
    for row in rng.integers(0, num_actions, (before, envs.num_envs)):
        envs.step(row)
    state = envs.state()
    assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
    assert len(set(state["length"].tolist())) > 1 or before < 30 or envs.spec.id != "CartPole-v1"
    actions = rng.integers(0, num_actions, (50, envs.num_envs))
    steps = continuation(envs, actions)
    envs.close()
    again = make()
    assert again.restore(state) == []
    np.testing.assert_array_equal(again.observation, state["observation"])
    for step, right in zip(continuation(again, actions), steps, strict=True):
        for part, true in zip(step, right, strict=True):
            np.testing.assert_array_equal(part, true)
    for key, value in again.state().items():
        np.testing.assert_array_equal(value, envs.state()[key])
    again.close()


@pytest.mark.parametrize(
    ("env_id", "num_actions"), [("CartPole-v1", 2), ("Acrobot-v1", 3), ("FrozenLake-v1", 4), ("ALE/Pong-v5", 6)]
)
def test_environments_come_back_to_a_state_in_the_middle_of_episodes(env_id, num_actions):
    assert_comes_back(partial(make_host_envs, env_id, 3 if env_id != "ALE/Pong-v5" else 2), num_actions)


def test_vector_environments_of_gymnasium_without_autoreset_come_back_too():
    def make():
        each = partial(gymnasium.make, "CartPole-v1")
        return HostEnvs(SyncVectorEnv([each] * 3, autoreset_mode=AutoresetMode.DISABLED), "CartPole-v1")

    assert_comes_back(make, 2)


def test_a_state_at_the_start_comes_back():
    assert_comes_back(partial(make_host_envs, "CartPole-v1", 2), 2, before=0)


def test_masked_environments_come_back_with_their_masks():
    envs = make_host_envs("Masked-v0", 2)
    envs.reset(0)
    envs.step(np.array([0, 2]))
    state = envs.state()
    again = make_host_envs("Masked-v0", 2)
    assert again.restore(state) == []
    np.testing.assert_array_equal(again.mask, envs.mask)


def test_processes_of_their_own_give_the_same_and_come_back():
    rows = ACTIONS % 2
    alone = stream(make_host_envs("CartPole-v1", 2), rows, 40)
    envs = make_host_envs("CartPole-v1", 2, asynchronous=True)
    assert isinstance(envs.vector, AsyncVectorEnv)
    for place, row in enumerate(stream(envs, rows, 40)):
        same_rows(row, alone[place])
    state = envs.state()
    envs.reset(99)
    assert envs.restore(state) == []
    again = make_host_envs("CartPole-v1", 2)
    assert again.restore(state) == []
    np.testing.assert_array_equal(again.step(np.array([0, 1])).observation, envs.step(np.array([0, 1])).observation)
    envs.close()


@pytest.mark.parametrize("changed", ["drift", "length"])
def test_an_environment_that_does_not_repeat_gives_a_warning_and_a_new_episode(changed, monkeypatch):
    envs = make_host_envs("Drifting-v0", 3)
    envs.reset(5)
    for _ in range(6):
        envs.step(np.array([0, 1, 0]))
    state = envs.state()
    monkeypatch.setattr(Drifting, changed, 0.25 if changed == "drift" else 4)
    again = make_host_envs("Drifting-v0", 3)
    warnings = again.restore(state)
    lost = [1] if changed == "drift" else [0, 1, 2]
    assert len(warnings) == len(lost)
    for warning, place in zip(warnings, lost, strict=True):
        assert f"Drifting-v0: environment {place} did not come back" in warning
        assert again.observation[place, 0] < 1
        assert again.state()["episode"][place] == 1
        assert again.state()["length"][place] == 0
    if changed == "drift":
        np.testing.assert_array_equal(again.observation[[0, 2]], state["observation"][[0, 2]])
    again.step(np.array([0, 0, 0]))


def test_vector_environments_that_reset_themselves_say_that_they_cannot_come_back():
    envs = HostEnvs(SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.SAME_STEP), "Counting-v0")
    envs.reset(0)
    envs.step(np.array([0]))
    (warning,) = envs.restore(envs.state())
    assert "SAME_STEP" in warning
    assert "cannot restore its state" in warning
    assert envs.observation[0, 1] == 0


def test_a_state_of_other_environments_is_refused():
    state = make_host_envs("CartPole-v1", 2).state()
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(3, 4\)"):
        make_host_envs("CartPole-v1", 3).restore(state)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"reward": float("nan")}, "reward of environment 1 .*Broken-v0.* is nan"),
        ({"reward": 1e300}, r"reward of environment 1 .* is 1e\+300"),
        ({"value": -float("inf")}, r"observation of environment 1 .*Broken-v0.* is -inf at index \(1,\)"),
    ],
)
def test_numbers_that_are_not_finite_are_named(parameters, message):
    envs = HostEnvs(InProcessEnvs(partial(Broken, **parameters), 2), "Broken-v0")
    envs.reset(0)
    envs.step(np.array([0, 0]))
    with pytest.raises(NonFiniteError, match=message):
        envs.step(np.array([0, 2]))


def test_unknown_environments_are_met_with_suggestions():
    with pytest.raises(UnknownEnvironment, match="did you mean CartPole-v1"):
        make_host_envs("Cartpol-v1", 1)
    with pytest.raises(UnknownEnvironment, match="CartPole-v1"):
        make_host_envs("cartpole", 1)
    with pytest.raises(UnknownEnvironment, match="ALE/Pong-v5"):
        make_host_envs("ALE/Pogn-v5", 1)
    with pytest.raises(UnknownEnvironment, match="minatar/breakout"):
        make_host_envs("minatar/brekout", 1, also=["minatar/breakout", "minatar/asterix"])
    with pytest.raises(UnknownEnvironment, match="pprint_registry"):
        make_host_envs("Zzyzx", 1)
    with pytest.raises(ValueError, match="at least one environment, got 0"):
        make_host_envs("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("env_id", "module", "package"),
    [("LunarLander-v3", "Box2D", "gymnasium[box2d]"), ("Ant-v5", "mujoco", "qemrl[mujoco]")],
)
def test_a_missing_package_is_named(env_id, module, package):
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(MissingPackage) as raised:
        make_host_envs(env_id, 1)
    assert f"pip install '{package}'" in str(raised.value)


def test_a_missing_namespace_or_module_is_named(monkeypatch):
    with pytest.raises(MissingPackage, match="pip install minatar"):
        make_host_envs("MinAtar/Breakout-v1", 1)
    with pytest.raises(MissingPackage, match="no_such_module"):
        make_host_envs("no_such_module:Env-v0", 1)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingPackage, match=r"qemrl\[atari\]"):
        make_host_envs("ALE/Pong-v5", 1)


def test_atari_is_told_from_all_else_by_the_id():
    assert all(map(is_atari, ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v4", "Qbert-v0", "ale_py:ALE/Pong-v5"]))
    assert not any(map(is_atari, ["CartPole-v1", "MountainCar-v0", "minatar/breakout", "FrozenLake-v1", "Nothing-v4"]))


def test_a_vector_environment_must_say_how_it_resets():
    class Silent(VectorEnv):
        num_envs, metadata = 1, {}
        single_observation_space, single_action_space = Counting.observation_space, Counting.action_space

    with pytest.raises(ValueError, match="autoreset_mode"):
        HostEnvs(Silent(), "Silent-v0")


def test_pictures_are_arrays_of_colors():
    envs = make_host_envs("CartPole-v1", 2, render=True)
    envs.reset(0)
    picture = envs.render()
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert len(np.unique(picture)) > 2
    envs.close()
    with pytest.raises(ValueError, match="render=True"):
        make_host_envs("CartPole-v1", 1).render()
