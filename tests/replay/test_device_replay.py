"""The replay on the device: compiled, over seeds, in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qemrl.replay import DeviceReplay, ReplayConfig, ReplayState, sum_tree
from qemrl.types import EnvSpec, Step

GRID = EnvSpec("grid", (3, 2, 2), "bool", 4, has_mask=True)
VECTOR = EnvSpec("vector", (3,), "float32", 4)


def stacked(steps: list[Step]) -> Step:
    """Steps along a new first axis, in the dtypes of a JAX environment."""
    together = jax.tree.map(lambda *arrays: jnp.stack(arrays), *steps)
    return together._replace(action=together.action.astype(jnp.int32))


def first(steps: list[Step]) -> Step:
    return jax.tree.map(lambda array: array[0], stacked(steps))


def run(replay: DeviceReplay, steps: Step, draws: jax.Array, state: ReplayState, rows: jax.Array):
    """Add each step and draw after it, updating priorities if there are any; a whole program."""

    def body(now, given):
        state, rows = now
        step, bits = given
        state = replay.add(state, step, rows)
        batch, indices = replay.sample(state, bits, rows + 1)
        if replay.config.prioritized:
            state = replay.update_priorities(state, indices, jnp.abs(batch.reward))
        return (state, rows + 1), (batch, indices)

    return lax.scan(body, (state, rows), (steps, draws))


def random_bits(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32))


def assert_same(one, another) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, another)


@pytest.mark.parametrize("prioritized", [False, True])
def test_compiled_scans_over_seeds_do_what_single_calls_do(make_steps, prioritized):
    replay = DeviceReplay(GRID, 2, ReplayConfig(20, 3, prioritized), 0.9)
    lists = [make_steps(GRID, 2, 25, seed=seed) for seed in range(3)]
    draws = random_bits(3, 25, 8)
    steps = jax.tree.map(lambda *arrays: jnp.stack(arrays), *[stacked(each) for each in lists])
    many = jax.jit(jax.vmap(lambda steps, bits: run(replay, steps, bits, replay.init(), jnp.int32(0))))
    (states, _), (batches, indices) = many(steps, draws)
    add, sample, update = jax.jit(replay.add), jax.jit(replay.sample), jax.jit(replay.update_priorities)
    for seed in range(3):
        state = replay.init()
        for row in range(25):
            step = jax.tree.map(lambda array, seed=seed, row=row: array[seed, row], steps)
            state = add(state, step, jnp.int32(row))
            batch, drawn = sample(state, draws[seed, row], jnp.int32(row + 1))
            np.testing.assert_array_equal(drawn, indices[seed, row])
            assert batches.next_mask is not None
            np.testing.assert_array_equal(batch.next_mask, batches.next_mask[seed, row])
            np.testing.assert_array_equal(batch.next_observation, batches.next_observation[seed, row])
            np.testing.assert_allclose(batch.reward, batches.reward[seed, row], rtol=1e-5, atol=1e-6)
            if prioritized:
                state = update(state, drawn, jnp.abs(batch.reward))
        np.testing.assert_array_equal(state.observation, states.observation[seed])


def test_batches_have_the_shapes_and_dtypes_of_the_environment(make_steps):
    replay = DeviceReplay(GRID, 2, ReplayConfig(20), 0.9)
    state = replay.add(replay.init(), first(make_steps(GRID, 2, 1)), jnp.int32(0))
    batch, indices = replay.sample(state, random_bits(5), jnp.int32(1))
    assert batch.observation.shape == batch.next_observation.shape == (5, 3, 2, 2)
    assert batch.next_mask is not None
    assert batch.observation.dtype == batch.next_mask.dtype == jnp.bool_
    assert (batch.action.dtype, batch.reward.dtype, indices.dtype) == (jnp.int32, jnp.float32, jnp.int32)


def test_rows_are_written_as_slices_over_seeds_too(make_steps):
    replay = DeviceReplay(VECTOR, 2, ReplayConfig(20), 0.9)
    step = jax.tree.map(lambda array: jnp.stack([array] * 3), first(make_steps(VECTOR, 2, 1)))
    states = jax.vmap(lambda _: replay.init())(jnp.arange(3))
    program = jax.jit(jax.vmap(replay.add, in_axes=(0, 0, None))).lower(states, step, jnp.int32(0)).as_text()
    assert "stablehlo.scatter" not in program
    assert program.count("stablehlo.dynamic_update_slice") == 6
    at_own_rows = jax.vmap(replay.add)(states, step, jnp.array([0, 4, 13], jnp.int32))  # slower, the same
    for seed, row in enumerate([0, 4, 13]):
        one = replay.add(replay.init(), jax.tree.map(lambda array: array[0], step), jnp.int32(row))
        assert_same(jax.tree.map(lambda array, seed=seed: array[seed], at_own_rows), one)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_compiled_run_holds_its_arrays_once(make_steps, prioritized, n_step):
    """A copy of the observations or of the tree in each step would need room of its own."""
    replay = DeviceReplay(VECTOR, 2, ReplayConfig(100_000, n_step, prioritized), 0.9)
    steps, draws = stacked(make_steps(VECTOR, 2, 10)), random_bits(10, 8)
    steps, draws = jax.tree.map(lambda array: jnp.stack([array] * 3), (steps, draws))
    states = jax.vmap(lambda _: replay.init())(jnp.arange(3))
    over_seeds = jax.vmap(lambda steps, bits, state, rows: run(replay, steps, bits, state, rows)[0][0], (0, 0, 0, None))
    compiled = jax.jit(over_seeds, donate_argnums=2).lower(steps, draws, states, jnp.int32(0)).compile()
    smallest = states.terminated.nbytes
    assert smallest == 3 * 100_000
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < smallest
    assert memory.alias_size_in_bytes >= 3 * DeviceReplay.required_bytes(VECTOR, 2, replay.config)


@pytest.mark.parametrize("spec", [GRID, VECTOR], ids=lambda spec: spec.id)
def test_the_required_memory_is_that_of_the_arrays(spec):
    config = ReplayConfig(1001, prioritized=True)
    state = DeviceReplay(spec, 4, config, 0.9).init()
    assert DeviceReplay.required_bytes(spec, 4, config) == sum(array.nbytes for array in jax.tree.leaves(state))
    features = 3 if spec is VECTOR else 12
    size = 4 if spec is VECTOR else 1
    mask = 4 if spec.has_mask else 0
    expected = 1000 * (2 * features * size + 4 + 4 + 1 + 1 + mask) + 2 * 1024 * 4 + 4
    assert DeviceReplay.required_bytes(spec, 4, config) == expected


@pytest.mark.parametrize("leaves", [1, 2, 32])
def test_trees_are_those_of_numpy(leaves):
    generator = np.random.default_rng(2)
    tree, expected = jnp.zeros(2 * leaves), np.zeros(2 * leaves, np.float32)
    update = jax.jit(sum_tree.replace_leaves)
    for _ in range(20):
        indices, values = generator.integers(0, leaves, 6), generator.random(6).astype(np.float32)
        tree = update(tree, jnp.asarray(indices, jnp.int32), jnp.asarray(values))
        sum_tree.set_leaves(expected, indices, values)
        np.testing.assert_array_equal(tree, expected)


@pytest.mark.parametrize("seed", range(3))
def test_no_rounding_leads_to_an_empty_leaf(seed):
    generator = np.random.default_rng(seed)
    values = (10.0 ** generator.uniform(-6, 6, 1024) * (generator.random(1024) < 0.1)).astype(np.float32)
    tree = sum_tree.replace_leaves(jnp.zeros(2048), jnp.arange(1024), jnp.asarray(values))
    for draws in (random_bits(999), jnp.full(999, 2**32 - 1, jnp.uint32), jnp.zeros(999, jnp.uint32)):
        assert (values[np.asarray(jax.jit(sum_tree.find)(tree, draws))] > 0).all()


def test_misuse_is_refused(make_steps):
    with pytest.raises(ValueError, match=r"stacks 4 frames.*HostReplay"):
        DeviceReplay(EnvSpec("atari", (4, 8, 8), "uint8", 4, stacked_frames=4), 1, ReplayConfig(), 0.9)
    with pytest.raises(ValueError, match="raise the capacity"):
        DeviceReplay(VECTOR, 5, ReplayConfig(14, 3), 0.9)
    with pytest.raises(ValueError, match="discount"):
        DeviceReplay(VECTOR, 1, ReplayConfig(14, 3), -0.1)
    replay = DeviceReplay(GRID, 1, ReplayConfig(14), 0.9)
    with pytest.raises(ValueError, match="prioritized"):
        replay.update_priorities(replay.init(), jnp.zeros(1, jnp.int32), jnp.ones(1))
    with pytest.raises(ValueError, match="no next_mask"):
        replay.add(replay.init(), make_steps(GRID, 1, 1)[0]._replace(next_mask=None), jnp.int32(0))
