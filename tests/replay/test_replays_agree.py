"""Host and device: the same steps and the same bits give the same batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.types import EnvSpec, Step

SPECS = [EnvSpec("vector", (3,), "float32", 4), EnvSpec("grid", (3, 2, 2), "bool", 4, has_mask=True)]


def on_device(step: Step) -> Step:
    return jax.tree.map(jnp.asarray, step._replace(action=step.action.astype(np.int32)))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_same_bits_draw_the_same_transitions(make_steps, spec, num_envs, n_step, prioritized):
    config = ReplayConfig(50, n_step, prioritized)
    host, device = HostReplay(spec, num_envs, config, 0.97), DeviceReplay(spec, num_envs, config, 0.97)
    add, sample, update = jax.jit(device.add), jax.jit(device.sample), jax.jit(device.update_priorities)
    generator = np.random.default_rng(4)
    state = device.init()
    for row, step in enumerate(make_steps(spec, num_envs, 80)):
        host.add(step)
        state = add(state, on_device(step), jnp.int32(row))
        bits = generator.integers(0, 2**32, 12, dtype=np.uint32)
        (one, indices), (another, others) = host.sample(bits), sample(state, jnp.asarray(bits), jnp.int32(row + 1))
        np.testing.assert_array_equal(indices, others)
        for name in ("observation", "action", "discount", "next_observation"):
            np.testing.assert_array_equal(getattr(one, name), getattr(another, name), err_msg=name)
        np.testing.assert_allclose(one.reward, another.reward, rtol=1e-5, atol=1e-6)  # a compiler may fuse a · b + c
        np.testing.assert_allclose(one.weight, another.weight, rtol=1e-5)  # powers differ in the last digit
        assert (one.next_mask is None) == (another.next_mask is None) == (not spec.has_mask)
        if one.next_mask is not None:
            np.testing.assert_array_equal(one.next_mask, another.next_mask)
        if prioritized:
            priorities = generator.uniform(0, 3, 12).astype(np.float32)
            host.update_priorities(indices, priorities)
            state = update(state, others, jnp.asarray(priorities))
    assert host.capacity == device.capacity == host.size == 50 // num_envs * num_envs


def test_both_keep_the_same_bytes_of_a_state(make_steps):
    """What the host saves is what the device holds, so that either can be looked at with the same eyes."""
    spec = SPECS[1]
    config = ReplayConfig(12, 3, True, priority_exponent=1.0)
    host, device = HostReplay(spec, 2, config, 0.5), DeviceReplay(spec, 2, config, 0.5)
    state, add, update = device.init(), jax.jit(device.add), jax.jit(device.update_priorities)
    for row, step in enumerate(make_steps(spec, 2, 20)):
        host.add(step)
        state = add(state, on_device(step), jnp.int32(row))
        priorities = np.array([0.5 + row, 2.0, 0.25], np.float32)
        host.update_priorities(np.array([0, 1, 1]), priorities)
        state = update(state, jnp.array([0, 1, 1], jnp.int32), jnp.asarray(priorities))
    saved = host.state()
    for name in ("observation", "next_observation", "action", "reward", "terminated", "truncated", "next_mask"):
        np.testing.assert_array_equal(saved[name].reshape(6, -1), getattr(state, name), err_msg=name)
    assert state.tree is not None
    np.testing.assert_array_equal(saved["priorities"], state.tree[16:28])
    np.testing.assert_array_equal(saved["largest_priority"], state.largest)
