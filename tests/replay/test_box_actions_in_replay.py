"""Continuous actions in both replays: stored as they are, beside their transitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.types import ActionBox, EnvSpec, Step

SHAPES = [(), (1,), (2, 3)]


def make_spec(shape: tuple[int, ...], stacked: int = 1) -> EnvSpec:
    size = int(np.prod(shape))
    observation = (3,) if stacked == 1 else (stacked, 2, 2)
    box = ActionBox(shape, (-1.0,) * size, (1.0,) * size)
    return EnvSpec("box", observation, "float32", 0, stacked_frames=stacked, box=box)


def make_box_steps(make_steps, spec: EnvSpec, num_envs: int, count: int) -> list[Step]:
    """Steps with continuous actions that can all be told apart."""
    generator = np.random.default_rng(9)
    steps = make_steps(spec._replace(num_actions=4), num_envs, count)
    shape = (num_envs, *spec.action_shape)
    return [step._replace(action=generator.uniform(-1, 1, shape).astype(np.float32)) for step in steps]


def draw_bits(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 2**32, count, dtype=np.uint32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prioritized", [False, True])
def test_both_replays_draw_the_actions_that_were_taken(make_steps, shape, prioritized):
    spec, config = make_spec(shape), ReplayConfig(21, 3, prioritized)
    host, device = HostReplay(spec, 2, config, 0.97), DeviceReplay(spec, 2, config, 0.97)
    add, sample = jax.jit(device.add), jax.jit(device.sample)
    generator, state = np.random.default_rng(4), device.init()
    steps = make_box_steps(make_steps, spec, 2, 25)
    for row, step in enumerate(steps):
        host.add(step)
        state = add(state, jax.tree.map(jnp.asarray, step), jnp.int32(row))
        bits = draw_bits(generator, 8)
        (one, indices), (another, others) = host.sample(bits), sample(state, jnp.asarray(bits), jnp.int32(row + 1))
        np.testing.assert_array_equal(indices, others)
        newest = [row - (row - index // 2) % 10 for index in indices.tolist()]
        expected_actions = np.stack(
            [steps[at].action[index % 2] for at, index in zip(newest, indices.tolist(), strict=True)]
        )
        for batch in (one, another):
            assert (batch.action.shape, batch.action.dtype) == ((8, *shape), np.float32)
            np.testing.assert_array_equal(batch.action, expected_actions)
            assert batch.next_mask is None
        np.testing.assert_array_equal(one.next_observation, another.next_observation)
        np.testing.assert_array_equal(one.discount, another.discount)
    assert state.action.shape == (10, 2 * int(np.prod(shape)))
    np.testing.assert_array_equal(host.state()["action"].reshape(10, -1), state.action)


def test_the_replay_on_the_device_runs_over_seeds(make_steps):
    spec = make_spec((3,))
    replay = DeviceReplay(spec, 2, ReplayConfig(8), 0.9)
    steps = [jax.tree.map(jnp.asarray, step) for step in make_box_steps(make_steps, spec, 2, 6)]
    pairs = [
        jax.tree.map(lambda one, two: jnp.stack([one, two]), *pair) for pair in zip(steps, steps[::-1], strict=True)
    ]
    many = jax.jit(jax.vmap(replay.add, in_axes=(0, 0, None)))
    states = jax.tree.map(lambda array: jnp.stack([array, array]), replay.init())
    for row, pair in enumerate(pairs):
        states = many(states, pair, jnp.int32(row))
    for seed, order in enumerate((steps, steps[::-1])):
        ring = np.stack([order[row].action for row in (4, 5, 2, 3)])
        np.testing.assert_array_equal(states.action[seed], ring.reshape(4, 6))


@pytest.mark.parametrize("stacked", [1, 2])
def test_the_host_replay_goes_on_from_its_state(make_steps, stacked):
    spec, config = make_spec((2, 3), stacked), ReplayConfig(30, 2)
    replay, again = HostReplay(spec, 2, config, 0.9), HostReplay(spec, 2, config, 0.9)
    steps = make_box_steps(make_steps, spec, 2, 40)
    for step in steps[:22]:
        replay.add(step)
    again.restore({name: np.array(value) for name, value in replay.state().items()})
    generator = np.random.default_rng(2)
    for step in steps[22:]:
        bits = draw_bits(generator, 6)
        jax.tree.map(np.testing.assert_array_equal, replay.sample(bits), again.sample(bits))
        replay.add(step)
        again.add(step)
    discrete = HostReplay(spec._replace(box=None, num_actions=4), 2, config, 0.9)
    with pytest.raises(ValueError, match=r"action is float32.*does not fit into int32"):
        discrete.restore(replay.state())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_that_is_named_is_that_of_the_arrays(shape):
    spec, config = make_spec(shape), ReplayConfig(40)
    size, actions = int(np.prod(shape)), 40
    expected = 40 * (2 * 3 * 4 + 4 + 1 + 1) + actions * size * 4
    assert HostReplay.required_bytes(spec, 4, config) == expected
    assert DeviceReplay.required_bytes(spec, 4, config) == expected


def test_actions_of_another_shape_are_refused(make_steps):
    spec = make_spec((2,))
    (step,) = make_box_steps(make_steps, spec, 2, 1)
    wrong = step._replace(action=np.zeros(2, np.float32))  # NumPy would stretch it
    with pytest.raises(ValueError, match=r"must be \(2, 2\), got \(2,\)"):
        HostReplay(spec, 2, ReplayConfig(8), 0.9).add(wrong)
    device = DeviceReplay(spec, 2, ReplayConfig(8), 0.9)
    with pytest.raises(ValueError, match=r"must be \(2, 2\), got \(2,\)"):
        device.add(device.init(), jax.tree.map(jnp.asarray, wrong), jnp.int32(0))
