"""Agents learn from every kind of observation: in each task here the observation tells which action is right."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import qemrl
from qemrl.envs.gym.spaces import encode
from qemrl.export.program import FORMATS, make_policy, measure_difference, split_observations
from qemrl.training import checkpoint
from qemrl.training.run_directory import RunDirectory

BITS = np.array([[image, vector, number] for image in (0, 1) for vector in (0, 1) for number in (0, 1)])


def draw_image(bit, shape):
    """Bright in the upper half or in the lower one, whatever axis the channels have."""
    image = np.full(shape, 30, np.uint8)
    rows = np.moveaxis(image, 0, -1) if shape[0] < shape[-1] else image
    half = rows.shape[0] // 2
    (rows[half:] if bit else rows[:half])[:] = 220
    return image


class Guess(gymnasium.Env):
    """Shows bits, and pays for each one that the number of the action has in common with them; a step is all."""

    def __init__(self, kind):
        self.kind = kind
        small, vector = spaces.Box(0, 255, (6, 6, 1), np.uint8), spaces.Box(-np.inf, np.inf, (2,))
        number, flags = spaces.Discrete(2, start=7), spaces.MultiBinary(3)
        self.observation_space = {
            "hwc": lambda: spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "chw": lambda: spaces.Box(0, 255, (1, 8, 6), np.uint8),
            "dict": lambda: spaces.Dict(number=number, image=small, inner=spaces.Dict(vector=vector)),
            "tuple": lambda: spaces.Tuple((vector, flags, number)),
            "flags": lambda: flags,
            "numbers": lambda: spaces.MultiDiscrete([2, 3, 2], start=[0, 4, -1]),
            "steering": lambda: spaces.Dict(image=small, vector=vector),
        }[kind]()
        self.known = 1 if kind in ("hwc", "chw") else 3
        self.action_space = spaces.Discrete(2**self.known, start=5)
        if kind == "steering":
            self.known, self.action_space = 2, spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.bits = self.np_random.integers(0, 2, 3)
        return self.show(self.bits), {}

    def show(self, bits):
        first, second, third = bits.tolist()
        vector = np.array([0.5, 2.0 * second - 1], np.float32)
        return {
            "hwc": lambda: draw_image(first, (36, 36, 3)),
            "chw": lambda: draw_image(first, (1, 8, 6)),
            "dict": lambda: {
                "image": draw_image(first, (6, 6, 1)),
                "inner": {"vector": vector},
                "number": np.int64(7 + third),
            },
            "tuple": lambda: (vector, np.array([1, first, 0], np.int8), np.int64(7 + third)),
            "flags": lambda: bits.astype(np.int8),
            "numbers": lambda: np.array([first, 4 + 2 * second, third - 1]),
            "steering": lambda: {"image": draw_image(first, (6, 6, 1)), "vector": vector},
        }[self.kind]()

    def step(self, action):
        assert self.action_space.contains(action)
        if self.kind == "steering":
            reward = -float(np.square(action - (self.bits[:2] - 0.5)).sum())
        else:
            chosen = (int(action) - 5) >> np.arange(self.known)[::-1] & 1
            reward = float((chosen == self.bits[: self.known]).mean())
        return self.show(self.bits), reward, True, False, {}


class Remember(gymnasium.Env):
    """Shows a bit, and pays for the action that the observation before told."""

    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.shown = np.zeros(1)  # always the same array

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.before, self.age = self.look(), 0
        return self.shown, {}

    def look(self):
        self.shown[0] = self.np_random.integers(0, 2)
        return self.shown[0]

    def step(self, action):
        reward, self.age = float(action == self.before), self.age + 1
        self.before = self.shown[0]
        self.look()
        return self.shown, reward, False, self.age == 5, {}


gymnasium.register("Remember-v0", f"{__name__}:Remember", disable_env_checker=True)
for kind in ("hwc", "chw", "dict", "tuple", "flags", "numbers", "steering"):
    gymnasium.register(f"Guess-{kind}-v0", f"{__name__}:Guess", kwargs={"kind": kind}, disable_env_checker=True)

QUICK = {
    "network.widths": (16,),
    "batch_size": 32,
    "learning_starts": 64,
    "update_every": 1,
    "replay.n_step": 1,
    "discount": 0.1,
    "optimizer.learning_rate": 0.01,
    "exploration.final": 1.0,
    "evaluation_episodes": 1,
}


def learn(env, steps, **further):
    return qemrl.make("dqn", env, overrides=QUICK | further).learn(steps, progress=False)


@pytest.mark.parametrize(
    ("kind", "steps", "further"),
    [
        ("hwc", 70, {"batch_size": 8, "learning_starts": 32, "optimizer.learning_rate": 0.003}),
        ("chw", 300, {}),
        ("tuple", 500, {}),
        ("flags", 400, {}),
        ("numbers", 400, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_observation_tells_is_learned(kind, steps, further):
    check_guesses(learn(f"Guess-{kind}-v0", steps, **further), Guess(kind))


def check_guesses(agent, env):
    """The right action for all bits, one observation at a time and in a batch."""
    shown = [env.show(bits) for bits in BITS]
    right = 5 + BITS[:, : env.known] @ 2 ** np.arange(env.known)[::-1]
    assert [int(agent.predict(each)) for each in shown] == right.tolist()
    batch = gymnasium.vector.utils.concatenate(
        env.observation_space, shown, gymnasium.vector.utils.create_empty_array(env.observation_space, len(shown))
    )
    np.testing.assert_array_equal(agent.predict(batch), right)
    np.testing.assert_array_equal(agent.q(batch).argmax(-1) + 5, right)


@pytest.fixture(scope="module")
def of_parts():
    """An agent that has learned from an image, a vector and a number at once."""
    return learn("Guess-dict-v0", 600)


@pytest.fixture(scope="module")
def remembering():
    """An agent that sees two observations at once."""
    return learn("Remember-v0", 300, frame_stack=2)


def test_all_parts_of_a_dict_are_used(of_parts):
    check_guesses(of_parts, Guess("dict"))
    assert of_parts.spec.observation_dtype == "uint8"  # the image takes a byte a pixel
    shown = Guess("dict").show(BITS[0])
    values = of_parts.predict_distribution(shown).values
    np.testing.assert_allclose(of_parts.predict_distribution(shown, action=7).values, values[[2]], rtol=1e-5)
    with pytest.raises(ValueError, match="actions of Guess-dict-v0 are 5 to 12, got 4"):
        of_parts.predict_distribution(shown, action=4)


def test_what_was_seen_before_is_learned_from_a_stack(remembering):
    assert remembering.spec.observation_shape == (2, 1)
    stacks = np.array([[[0], [0]], [[0], [1]], [[1], [0]], [[1], [1]]])
    assert remembering.predict(stacks).tolist() == [0, 0, 1, 1]


def test_the_exported_policy_reads_the_same_parts_and_gives_the_same_actions(of_parts):
    env, policy, kind = Guess("dict"), make_policy(of_parts), FORMATS["stablehlo"]
    shown = [env.show(bits) for bits in BITS]
    stored = np.concatenate([encode(each, of_parts.spec)[0] for each in shown])
    program = kind.load(kind.write(policy), policy)
    assert measure_difference(of_parts, policy, program, stored) < 1e-5
    actions = program(split_observations(of_parts, stored))[0]
    np.testing.assert_array_equal(actions, [of_parts.predict(each) for each in shown])


@pytest.mark.parametrize("name", ["of_parts", "remembering"])
def test_learning_goes_on_from_a_file_bit_for_bit(name, request, tmp_path):
    agent = request.getfixturevalue(name)
    loaded = qemrl.load(agent.save(tmp_path / "first"))
    assert loaded.config.frame_stack == agent.config.frame_stack
    folders = [each.learn(41, progress=False).save(tmp_path / str(n)) for n, each in enumerate((loaded, agent))]
    left, right = (checkpoint.load_latest(RunDirectory(folder).checkpoints) for folder in folders)
    assert left is not None
    assert right is not None
    assert left.arrays.keys() == right.arrays.keys()
    for array in left.arrays:
        np.testing.assert_array_equal(left.arrays[array], right.arrays[array], err_msg=array)


def test_actor_critics_read_images_and_vectors_at_once():
    widths = dict.fromkeys(("network.policy_widths", "network.critic_widths", "network.critic_hidden"), (64,))
    quick = {"batch_size": 64, "learning_starts": 64, "random_steps": 700, "evaluation_episodes": 1, "polyak": 0.05}
    rates = {"optimizer.learning_rate": 0.003, "discount": 0.1}
    agent = qemrl.make("sac", "Guess-steering-v0", overrides=widths | quick | rates).learn(700, progress=False)
    env = Guess("steering")
    chosen = np.array([agent.predict(env.show(bits)) for bits in BITS])
    np.testing.assert_allclose(chosen, BITS[:, :2] - 0.5, atol=0.4)
