"""What an environment answers is checked: a wrong answer names the environment, the step and what was expected."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from qemrl.envs.gym.host_envs import FrameStack, HostEnvs, OutOfRangeWarning
from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.envs.gym.interface import InterfaceError

RIGHT = np.zeros(2, np.float32)
BOX, BYTES, NUMBER = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(3)
BOTH = spaces.Dict({"box": BOX, "number": NUMBER})
MODES = list(AutoresetMode)


class Scripted(gymnasium.Env):
    """Answers as it is told, and rightly where it is told nothing; an episode ends after three steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space=BOX, reset=None, step=None):
        self.observation_space, self.told, self.age = space, {"reset": reset, "step": step}, 0
        self.right = space.sample() if isinstance(space, spaces.Dict) else np.zeros(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.age = 0
        return (self.right, {}) if self.told["reset"] is None else self.told["reset"]

    def step(self, action):
        del action
        self.age += 1
        right = (self.right, 1.0, self.age == 3, False, {})
        return right if self.age < 2 or self.told["step"] is None else self.told["step"](*right)


def play(envs, steps=4):
    envs.reset(0)
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, np.int32))


def put(place, value):
    """What puts this in the place of one of the five things that `step` returns."""
    return lambda *right: (*right[:place], value, *right[place + 1 :])


def beside_a_right_one(space=BOX, reset=None, step=None):
    """Two environments, the second of which answers as it is told."""
    made = iter([Scripted(space), Scripted(space, reset, step)])
    return InProcessEnvs(lambda: next(made), 2)


OBSERVATIONS = [
    (BOX, None, "must be an array of shape (2,) and dtype float32, got None (NoneType)"),
    (BOX, "ab", "got 'ab' (str)"),
    (BOX, 0.5, "got 0.5 (float)"),
    (BOX, np.zeros(3, np.float32), "got ndarray of shape (3,) and dtype float32"),
    (BOX, np.zeros((1, 2), np.float32), "got ndarray of shape (1, 2)"),
    (BOX, np.zeros(2, np.complex64), "got ndarray of shape (2,) and dtype complex64"),
    (BOX, np.array(["0", "1"]), "got ndarray of shape (2,) and dtype <U1"),
    (BOX, [[1.0], [1.0, 2.0]], "got [[1.0], [1.0, 2.0]] (list)"),
    (BYTES, np.array([0.5, 1.0]), "and dtype uint8, which cannot hold 0.5 of ndarray of shape (2,) and dtype float64"),
    (BYTES, np.array([3, 256]), "which cannot hold 256"),
    (NUMBER, None, "must be a number of dtype int64, got None"),
    (NUMBER, 1.5, "cannot hold 1.5"),
    (NUMBER, 7, "holds 7; by its space it lies between 0 and 2"),
    (BOTH, {"box": RIGHT}, "of environment 1 has no part ['number']"),
    (BOTH, {"box": np.zeros(3), "number": 0}, "of environment 1 of ['box'] must be an array of shape (2,)"),
    (BOTH, {"box": RIGHT, "number": "1"}, "of environment 1 of ['number'] must be a number of dtype int64, got '1'"),
    (BOTH, None, "of environment 1 has no part ['box']"),
]


@pytest.mark.parametrize(("space", "observation", "message"), OBSERVATIONS)
def test_a_wrong_observation_is_named_from_reset_and_from_step(space, observation, message):
    with pytest.raises(InterfaceError, match=f"^Own-v0, reset: (?=.*environment 1).*{re.escape(message)}"):
        HostEnvs(beside_a_right_one(space, reset=(observation, {})), "Own-v0")
    envs = HostEnvs(beside_a_right_one(space, step=put(0, observation)), "Own-v0")
    with pytest.raises(InterfaceError, match=f"^Own-v0, step 2: (?=.*environment 1).*{re.escape(message)}"):
        play(envs)


OUTCOMES = [
    (
        lambda *right: right[:4],
        "step must return 5 values (observation, reward, terminated, truncated, info), got 4 val",
    ),
    (
        lambda *right: (*right, 0),
        "step must return 5 values (observation, reward, terminated, truncated, info), got 6 val",
    ),
    (lambda *_: None, "got None (NoneType)"),
    (put(1, None), "the reward must be a number, got None"),
    (put(1, "1"), "the reward must be a number, got '1'"),
    (put(1, np.ones(1)), "the reward must be a number, got ndarray of shape (1,)"),
    (put(1, 1j), "the reward must be a number, got 1j"),
    (put(1, 10**400), "the reward must be a number, got 1000"),
    (put(2, None), "terminated must be True or False, got None"),
    (put(2, "no"), "terminated must be True or False, got 'no'"),
    (put(3, 0.5), "truncated must be True or False, got 0.5"),
    (put(3, np.zeros(1, bool)), "truncated must be True or False, got ndarray of shape (1,)"),
    (put(4, None), "the info must be a dict, got None"),
    (put(4, [1]), "the info must be a dict, got [1]"),
]


@pytest.mark.parametrize(("change", "message"), OUTCOMES)
def test_a_wrong_outcome_of_a_step_is_named(change, message):
    envs = HostEnvs(beside_a_right_one(step=change), "Own-v0")
    with pytest.raises(InterfaceError, match=f"^Own-v0, step 2: step of environment 1: .*{re.escape(message)}"):
        play(envs)


@pytest.mark.parametrize("outcome", [RIGHT, (RIGHT,), (RIGHT, {}, {}), 3, (RIGHT, None)], ids=repr)
def test_a_wrong_outcome_of_a_reset_is_named(outcome):
    with pytest.raises(
        InterfaceError, match=r"^Own-v0, reset: reset of environment 1: .*(must return 2 values|a dict)"
    ):
        HostEnvs(beside_a_right_one(reset=outcome), "Own-v0")


def test_numbers_of_other_kinds_are_taken_for_what_they_are():
    def answer(seen, _, over, late, info):
        return seen.tolist(), np.int16(2), np.int64(over), np.array(late), info

    envs = HostEnvs(beside_a_right_one(step=answer), "Own-v0")
    envs.reset(0)
    steps = [envs.step(np.zeros(2, np.int32)) for _ in range(3)]
    assert [step.reward.tolist() for step in steps] == [[1, 1], [1, 2], [1, 2]]
    assert steps[2].terminated.tolist() == [True, True]


class Altered(SyncVectorEnv):
    """A vector environment whose second step is altered, and whose last observations are."""

    alter = staticmethod(lambda *outcome: outcome)
    number = 0

    def step(self, actions):
        self.number += 1
        outcome = super().step(actions)
        return self.alter(*outcome) if self.number == 2 else outcome


BATCHES = [
    (lambda *right: right[:4], "step must return 5 values"),
    (
        put(0, np.zeros((1, 2))),
        "the observations must be an array of shape (2, 2) and dtype float32, got ndarray of shape",
    ),
    (put(0, np.zeros((2, 1))), "got ndarray of shape (2, 1)"),
    (put(0, np.full((2, 2), "1")), "got ndarray of shape (2, 2) and dtype <U1"),
    (put(1, np.ones(1)), "the rewards must be an array of shape (2,)"),
    (put(1, [None, 1.0]), "the rewards must be an array of shape (2,)"),
    (put(2, np.zeros(1, bool)), "terminated must be an array of shape (2,) and dtype bool"),
    (put(3, [0, 2]), "truncated must be an array of shape (2,) and dtype bool, which cannot hold 2"),
    (put(4, []), "the info must be a dict, got []"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("change", "message"), BATCHES)
def test_a_wrong_outcome_of_a_vector_environment_is_named_however_it_resets(mode, change, message):
    envs = HostEnvs(Altered([Scripted] * 2, autoreset_mode=mode), "Own-v0")
    envs.vector.alter = change
    with pytest.raises(InterfaceError, match=f"^Own-v0, step 2: .*{re.escape(message)}"):
        play(envs)


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (None, "must be an array of observations for all 2 environments, got None"),
        (np.array([None, None]), "the observation of environment 0 must be an array of shape (2,)"),
        (np.zeros((2, 3), np.float32), "the observations must be an array of shape (2, 2)"),
    ],
)
def test_a_wrong_last_observation_is_named(final, message):
    envs = HostEnvs(Altered([Scripted] * 2, autoreset_mode=AutoresetMode.SAME_STEP), "Own-v0")
    envs.vector.alter = lambda *right: (*right[:2], np.ones(2, bool), right[3], {"final_obs": final})
    with pytest.raises(InterfaceError, match=f"^Own-v0, step 2: .*{re.escape(message)}"):
        play(envs)


def test_frames_are_checked_before_they_are_stacked():
    with pytest.raises(InterfaceError, match=r"^Own-v0, reset: reset of environment 0: the observation must .*None"):
        HostEnvs(InProcessEnvs(lambda: FrameStack(Scripted(reset=(None, {})), 3), 1), "Own-v0", 3)
    late = Scripted(step=put(0, np.zeros(3)))
    with pytest.raises(InterfaceError, match=r"^Own-v0, step 2: step of environment 0: .*shape \(2,\)"):
        play(HostEnvs(InProcessEnvs(lambda: FrameStack(late, 3), 1), "Own-v0", 3))


@pytest.mark.parametrize("mask", [None, [True], np.array([0.5, 1.0]), "ab"], ids=repr)
def test_a_wrong_action_mask_is_named(mask):
    with pytest.raises(
        InterfaceError, match=r"^Own-v0, reset: the action mask of environment 0 must be an array of sha"
    ):
        HostEnvs(InProcessEnvs(lambda: Scripted(reset=(RIGHT, {"action_mask": mask})), 1), "Own-v0")


def test_an_environment_that_raises_is_named_among_the_others():
    def fail(*_):
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match="its own") as raised:
        play(HostEnvs(beside_a_right_one(step=fail), "Own-v0"))
    assert raised.value.__notes__ == ["raised by step of environment 1 of 2", "in step 2 of Own-v0"]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_observation_outside_of_its_space_is_named_once(where):
    far = np.array([0.0, 1.5], np.float32)
    made = beside_a_right_one(reset=(far, {})) if where == "reset" else beside_a_right_one(step=put(0, far))
    with pytest.warns(OutOfRangeWarning) as told:
        play(HostEnvs(made, "Own-v0"), 8)
    assert len(told) == 1
    place = "reset" if where == "reset" else "step 2"
    assert str(told[0].message).startswith(
        f"Own-v0, {place}: the observation of environment 1 is 1.5 at index 1, outsid"
    )


def test_an_environment_that_cannot_be_closed_hides_nothing_and_the_others_are_closed():
    class Stuck(Scripted):
        closed = 0

        def close(self):
            Stuck.closed += 1
            raise OSError("the window is gone")

    envs = HostEnvs(InProcessEnvs(Stuck, 2), "Own-v0")
    with pytest.warns(UserWarning, match=r"^Own-v0 could not be closed: OSError\('the window is gone'\)"):
        envs.close()
    assert Stuck.closed == 2
