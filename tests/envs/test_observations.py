"""Observations of all kinds: how they are described, read and stacked, and what is said of those that cannot be."""

import re
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

from qemrl.agents.value_presets import VALUE_PRESETS
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs, wrap_env
from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.envs.gym.spaces import NonFiniteError, describe_spaces, encode, read_observations
from qemrl.replay.config import ReplayConfig
from qemrl.replay.host import HostReplay
from qemrl.training.config import configure
from qemrl.types import Step, UnsupportedEnvironment

IMAGE, VECTOR = spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.Box(-1, 3, (2,), np.float64)
NUMBERS = spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[0, 5], [1, -1]]))
EVERYTHING = spaces.Dict(
    image=IMAGE,
    inner=spaces.Tuple((VECTOR, spaces.Discrete(3, start=-1), spaces.MultiBinary([2, 2]))),
    numbers=NUMBERS,
)
NO_IMAGE = spaces.Tuple((VECTOR, spaces.Dict(number=spaces.Discrete(4), bytes=spaces.Box(0, 255, (3,), np.uint8))))


TWO = spaces.Discrete(2)
for each in (IMAGE, VECTOR, NUMBERS, EVERYTHING, NO_IMAGE):
    each.seed(0)


class Random(gymnasium.Env):
    """Shows samples of its space, and ends after a while."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space = TWO):
        self.observation_space, self.action_space = observation_space, action_space
        self.taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self.age += 1
        return self.observation_space.sample(), 1.0, self.age % 4 == 0, False, {}


def describe(space):
    return describe_spaces("Random-v0", space, spaces.Discrete(2), 1)


def flatten_by_hand(shown):
    """What of EVERYTHING is stored, from its parts."""
    vector, number, flags = shown["inner"]
    one_hot = np.concatenate(
        [np.eye(n)[v] for n, v in zip([2, 3, 1, 2], np.ravel(shown["numbers"] - NUMBERS.start), strict=True)]
    )
    pieces = [
        shown["image"].tobytes(),
        vector.astype(np.float32).tobytes(),
        np.eye(3, dtype=np.float32)[number + 1].tobytes(),
        flags.astype(np.uint8).tobytes(),
        one_hot.astype(np.float32).tobytes(),
    ]
    return np.frombuffer(b"".join(pieces), np.uint8)


def test_a_dict_with_an_image_becomes_bytes_and_one_without_a_vector():
    spec, shown = describe(EVERYTHING), EVERYTHING.sample()
    assert (spec.observation_shape, spec.observation_dtype) == ((60 + 8 + 12 + 4 + 32,), "uint8")
    batch, single = encode(shown, spec)
    assert single
    np.testing.assert_array_equal(batch[0], flatten_by_hand(shown))
    spec, (vector, inner) = describe(NO_IMAGE), cast("Any", NO_IMAGE.sample())
    assert (spec.observation_shape, spec.observation_dtype) == ((2 + 3 + 4,), "float32")
    expected = np.concatenate([vector, np.eye(4)[inner["number"]], inner["bytes"]]).astype(np.float32)
    np.testing.assert_array_equal(encode((vector, inner), spec)[0], expected[None])


def test_single_spaces_keep_their_shape():
    for space, shape, dtype, low in (
        (spaces.MultiBinary(4), (4,), "bool", None),
        (spaces.MultiDiscrete([2, 3]), (5,), "float32", 0.0),
        (spaces.Dict(only=IMAGE), (4, 5, 3), "uint8", None),
        (spaces.Box(0, 2, (3, 4, 1)), (3, 4, 1), "float32", 0.0),
        (spaces.Box(0, np.inf, (3, 4, 1)), (3, 4, 1), "float32", None),
        (spaces.Box(-1, 1, (3, 2)), (3, 2), "float32", -1.0),
    ):
        spec = describe(space)
        assert (spec.observation_shape, spec.observation_dtype) == (shape, dtype), space
        assert (spec.observation_low or (None,))[0] == low
    constant = describe(
        spaces.Box(np.array([0, 5], np.float32), np.array([1, 5], np.float32))
    )  # scaled without a division by zero
    assert constant.observation_high == (1.0, 10.0)


@pytest.mark.parametrize("space", [EVERYTHING, NO_IMAGE, IMAGE, NUMBERS, spaces.Discrete(3, start=4)], ids=str)
def test_one_observation_several_and_stored_ones_are_encoded_the_same(space):
    spec, shown = describe(space), [space.sample() for _ in range(5)]
    stored = np.concatenate([encode(each, spec)[0] for each in shown])
    assert stored.shape == (5, *spec.observation_shape)
    assert stored.dtype == spec.observation_dtype
    batch = gymnasium.vector.utils.concatenate(space, shown, gymnasium.vector.utils.create_empty_array(space, 5))
    for several in (batch, stored):
        found, single = encode(several, spec)
        assert not single
        np.testing.assert_array_equal(found, stored)
    found, single = encode(stored[2], spec)
    assert single
    np.testing.assert_array_equal(found, stored[2:3])
    objects = np.full(5, None, object)
    for place, each in enumerate(shown):
        objects[place] = each
    np.testing.assert_array_equal(read_observations(objects, spec, np.arange(5)), stored)


def test_wrong_observations_are_named():
    spec, shown = describe(EVERYTHING), EVERYTHING.sample()
    with pytest.raises(ValueError, match=r"no part \['inner'\]"):
        encode({"image": shown["image"], "numbers": shown["numbers"]}, spec)
    with pytest.raises(ValueError, match=r"shape \(4, 5, 3\) at \['image'\].* got shape \(4, 5\)"):
        encode(shown | {"image": shown["image"][..., 0]}, spec)
    vector, *others = shown["inner"]
    with pytest.raises(NonFiniteError, match=r"nan at index \(1,\) of \['inner'\]\[0\]"):
        encode(shown | {"inner": (np.array([0, np.nan]), *others)}, spec)
    with pytest.raises(ValueError, match=r"environment 0 \(Random-v0\) holds 9 .*lies between -1 and 1"):
        encode(shown | {"inner": (vector, 9, others[1])}, spec)
    with pytest.raises(UnsupportedEnvironment, match="nothing to see"):
        describe(spaces.Dict())


SHOWN = [EVERYTHING.sample() for _ in range(60)]


class Clock(Random):
    """Shows one thing after the other, in resets and in steps."""

    def __init__(self):
        super().__init__(EVERYTHING)
        self.time = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.time += 1
        return SHOWN[self.time], {}

    def step(self, action):
        self.time += 1
        return SHOWN[self.time], *super().step(action)[1:]


@pytest.mark.parametrize("mode", [*AutoresetMode, None])
def test_vector_environments_give_dicts_in_every_way_of_resetting(mode):
    vector = InProcessEnvs(Clock, 2) if mode is None else SyncVectorEnv([Clock] * 2, autoreset_mode=mode)
    envs, times = HostEnvs(vector, "Clock-v0"), {flatten_by_hand(shown).tobytes(): t for t, shown in enumerate(SHOWN)}

    def tell(observation):
        return np.array([times[row.tobytes()] for row in observation])

    before, ends = envs.reset(0).observation, 0
    for _ in range(14):
        step = envs.step(np.array([0, 1]))
        np.testing.assert_array_equal(tell(step.next_observation), tell(before) + 1)
        restarted = step.ended & (mode is not AutoresetMode.NEXT_STEP)
        np.testing.assert_array_equal(tell(step.observation), tell(step.next_observation) + restarted)
        before, ends = step.observation, ends + step.ended.sum()
    assert ends >= 4


def play(env):
    """What an environment shows in some episodes."""
    shown = [env.reset(seed=4)[0]]
    for _ in range(23):
        observation, _, over, *_ = env.step(0)
        shown.append(observation)
        if over:
            shown.append(env.reset(seed=4)[0])
    return shown


@pytest.mark.parametrize("space", [VECTOR, IMAGE, spaces.Box(0, 1, ())], ids=str)
def test_stacks_are_those_of_gymnasium_and_replay_gives_them_back(space):
    ours, theirs = wrap_env(Random(space), 3), FrameStackObservation(Random(space), 3)
    assert ours.observation_space == theirs.observation_space
    for stack, right in zip(play(ours), play(theirs), strict=True):
        np.testing.assert_array_equal(stack, right)
        assert stack.dtype == right.dtype
    envs = HostEnvs(InProcessEnvs(lambda: wrap_env(Random(space), 3), 2), "Stacked-v0", 3)
    assert (envs.spec.stacked_frames, envs.spec.observation_shape) == (3, (3, *space.shape))
    if space is VECTOR:
        assert envs.spec.observation_low == (-1.0, -1.0) * 3
    replay = HostReplay(envs.spec, 2, ReplayConfig(100), 0.9)
    steps, observation = [], envs.reset(0).observation
    for _ in range(20):
        result = envs.step(np.zeros(2, np.int64))
        steps.append((observation, result.next_observation))
        replay.add(
            Step(
                observation,
                np.zeros(2, np.int32),
                result.reward,
                result.terminated,
                result.truncated,
                result.next_observation,
            )
        )
        observation = result.observation
    batch, indices = replay.sample(np.arange(40, dtype=np.uint32))
    for place, index in enumerate(indices):
        np.testing.assert_array_equal(batch.observation[place], steps[index // 2][0][index % 2])
        np.testing.assert_array_equal(batch.next_observation[place], steps[index // 2][1][index % 2])


def test_stacks_that_cannot_be_are_refused_with_the_reason():
    with pytest.raises(UnsupportedEnvironment, match=r"frames are arrays.*Discrete\(16\).*FlattenObservation"):
        make_host_envs("FrozenLake-v1", 1, frame_stack=2)
    for env, stack, message in (
        ("CartPole-v1", 0, r"from 1 \(no stacking\) to 255, got 0"),
        ("ALE/Pong-v5", 4, r"stacks frames \(protocol.stack\); leave frame_stack=4 out"),
        ("jax/cartpole", 4, "jax/cartpole is a JAX environment"),
    ):
        with pytest.raises(ValueError, match=message):
            configure("dqn", env, 100, overrides={"frame_stack": stack})
    config = configure("dqn", "CartPole-v1", 100, overrides={"frame_stack": "4"})
    assert config.frame_stack == 4
    assert config.agent == VALUE_PRESETS["dqn"]("classic")


def wrap_as_told(env):
    """The environment with what the errors tell to wrap, one after the other."""
    for _ in range(4):
        said = find_fault(env)
        if not said:
            return HostEnvs(InProcessEnvs(partial(lambda env: env, env), 1), "Odd-v0")
        lines = re.findall(r"^    (.*)$", said, flags=re.MULTILINE)
        assert len(lines) == 3, said
        scope = {"env": env}
        exec("\n".join(lines), scope)
        env = scope["env"]
    raise AssertionError("there is no end to it")


def find_fault(env):
    try:
        describe_spaces("Odd-v0", env.observation_space, env.action_space, 1)
    except UnsupportedEnvironment as error:
        return str(error)
    return ""


TEXT, SEQUENCE = spaces.Text(6), spaces.Sequence(spaces.Dict(a=VECTOR, b=spaces.Discrete(2)))


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (TEXT, (6,)),
        (spaces.OneOf([spaces.Discrete(3), VECTOR]), (4,)),
        (SEQUENCE, (64,)),
        (spaces.Sequence(VECTOR, stack=True), (64,)),
        (spaces.Graph(VECTOR, None), (64,)),
        (spaces.Dict(image=IMAGE, words=spaces.Tuple((VECTOR, TEXT, SEQUENCE))), (60 + 8 + 24 + 256,)),
    ],
    ids=str,
)
def test_the_lines_for_observations_that_agents_cannot_read_work(space, shape):
    with pytest.raises(UnsupportedEnvironment, match=r"Odd-v0 has .*which agents cannot read"):
        HostEnvs(InProcessEnvs(lambda: Random(space), 1), "Odd-v0")
    envs = wrap_as_told(Random(space))
    assert envs.spec.observation_shape == shape
    shown = [envs.step(np.zeros(1, np.int64)).observation for _ in range(6)]
    assert len(np.unique(np.stack(shown), axis=0)) > 3


TABLE = spaces.MultiDiscrete(np.array([[3, 2], [2, 2]]), start=np.array([[1, 0], [0, 5]]))


@pytest.mark.parametrize(
    ("space", "message", "chosen", "taken"),
    [
        (spaces.MultiDiscrete([3, 2]), "number the 6 combinations", 3, [1, 1]),
        (TABLE, "the 24 comb", 23, [[3, 1], [1, 6]]),
        (spaces.MultiBinary(3), "number the 8 combinations", 6, [1, 1, 0]),
        (spaces.Box(-1, 1, (2,), np.int64), "number the 9 combinations", 8, [1, 1]),
        (
            spaces.MultiDiscrete([10] * 4 + [5]),
            "too many to number",
            np.array([-1, 1, 0, 0.5, 1], np.float32),
            [0, 9, 5, 7, 4],
        ),
        (spaces.MultiBinary(20), "too many to number", np.linspace(-1, 1, 20), [0] * 10 + [1] * 10),
        (spaces.Box(-np.inf, np.inf, (2,)), "say between which actions", np.array([0.5, 3], np.float32), [0.5, 1]),
        (
            spaces.Box(np.array([4, -9], np.float32), np.array([np.inf, 9], np.float32)),
            "say between",
            np.array([9, -9], np.float32),
            [6, -9],
        ),
    ],
    ids=str,
)
def test_the_lines_for_actions_that_agents_cannot_choose_work(space, message, chosen, taken):
    env = Random(VECTOR, space)
    with pytest.raises(UnsupportedEnvironment, match=message):
        HostEnvs(InProcessEnvs(lambda: env, 1), "Odd-v0")
    wrap_as_told(env).step(np.asarray(chosen)[None])
    np.testing.assert_array_equal(env.taken[0], taken)


def test_other_actions_are_listed():
    env = Random(VECTOR, spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(5)))
    wrap_as_told(env).step(np.array([9]))
    assert env.taken[0].keys() == {"a", "b"}
