"""Masks of members in both replays: each stays with the transition that it was drawn for."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.types import Batch, EnvSpec, Step

SPEC = EnvSpec("vector", (2,), "float32", 3)
ENVS, MEMBERS, COUNT = 2, 5, 30


def masked_steps(make_steps, spec: EnvSpec = SPEC, count: int = COUNT) -> list[Step]:
    rng = np.random.default_rng(7)
    steps = make_steps(spec, ENVS, count)
    return [step._replace(member_mask=rng.random((ENVS, MEMBERS)) < 0.5) for step in steps]


def on_device(step: Step) -> Step:
    return Step(*(None if each is None else jnp.asarray(each) for each in step))


def draws(config: ReplayConfig, steps: list[Step]) -> Iterator[tuple[int, tuple[Batch, np.ndarray]]]:
    """Batches from both replays after each step from the third on, with the step's number."""
    host = HostReplay(SPEC, ENVS, config, 0.9, MEMBERS)
    device = DeviceReplay(SPEC, ENVS, config, 0.9, MEMBERS)
    state, add, sample = device.init(), jax.jit(device.add), jax.jit(device.sample)
    update, rng = jax.jit(device.update_priorities), np.random.default_rng(0)
    for row, step in enumerate(steps):
        host.add(step)
        state = add(state, on_device(step), jnp.int32(row))
        if row < 2:
            continue
        bits = rng.integers(0, 2**32, 24, dtype=np.uint32)
        one, other = host.sample(bits), sample(state, jnp.asarray(bits), jnp.int32(row + 1))
        yield row, one
        yield row, (other[0], np.asarray(other[1]))
        if config.prioritized:
            priorities = rng.uniform(0, 3, 24).astype(np.float32)
            host.update_priorities(one[1], priorities)
            state = update(state, other[1], jnp.asarray(priorities))


@pytest.mark.parametrize("config", [ReplayConfig(100), ReplayConfig(16, n_step=3), ReplayConfig(16, 3, True)], ids=str)
def test_a_mask_is_that_of_the_first_step_of_its_transition(make_steps, config):
    """Also when the ring has gone around, over several steps, and where draws go by priority."""
    steps = masked_steps(make_steps)
    rows, seen = config.capacity // ENVS, set()
    for row, (batch, indices) in draws(config, steps):
        places, envs = indices // ENVS, indices % ENVS
        written = row - (row - places) % rows  # the last step that was stored there
        seen.update(written.tolist())
        np.testing.assert_array_equal(
            batch.member_mask, [steps[i].member_mask[e] for i, e in zip(written, envs, strict=True)]
        )
        np.testing.assert_array_equal(
            batch.observation, [steps[i].observation[e] for i, e in zip(written, envs, strict=True)]
        )
    assert len(seen) > 25


@pytest.mark.parametrize("stacked", [1, 2])
def test_a_restored_replay_has_the_masks(make_steps, stacked):
    spec = EnvSpec("frames", (2, 3, 3), "uint8", 3, stacked_frames=stacked)
    whole, part, again = (HostReplay(spec, ENVS, ReplayConfig(24), 0.9, MEMBERS) for _ in range(3))
    steps = masked_steps(make_steps, spec)
    for step in steps:
        whole.add(step)
    for step in steps[:25]:  # some of the rows are still there at the end
        part.add(step)
    again.restore({name: array.copy() for name, array in part.state().items()})
    for step in steps[25:]:
        again.add(step)
    bits = np.random.default_rng(0).integers(0, 2**32, 40, dtype=np.uint32)
    np.testing.assert_array_equal(whole.sample(bits)[0].member_mask, again.sample(bits)[0].member_mask)
    with pytest.raises(ValueError, match="member_mask"):
        HostReplay(spec, ENVS, ReplayConfig(24), 0.9).restore(part.state())


def test_the_memory_of_masks_is_a_byte_for_each_and_none_without():
    for kind in (HostReplay, DeviceReplay):
        plain, masked = (kind.required_bytes(SPEC, ENVS, ReplayConfig(100), members) for members in (0, MEMBERS))
        assert masked - plain == 100 * MEMBERS
    assert HostReplay(SPEC, ENVS, ReplayConfig(100), 0.9, MEMBERS).nbytes == HostReplay.required_bytes(
        SPEC, ENVS, ReplayConfig(100), MEMBERS
    )


@pytest.mark.parametrize(
    ("members", "shape", "said"),
    [
        (MEMBERS, None, "masks of 5 members for each of 2 environments, and the step has none"),
        (MEMBERS, (ENVS, 1), r"masks of 5 members for each of 2 environments, and the step has one of shape \(2, 1\)"),
        (0, (ENVS, MEMBERS), r"masks of 0 members for each of 2 environments, and the step has one of shape \(2, 5\)"),
    ],
)
def test_masks_that_would_be_stretched_or_lost_are_refused(make_steps, members, shape, said):
    step = make_steps(SPEC, ENVS, 1)[0]._replace(member_mask=None if shape is None else np.ones(shape, bool))
    with pytest.raises(ValueError, match=said):
        HostReplay(SPEC, ENVS, ReplayConfig(10), 0.9, members).add(step)
    device = DeviceReplay(SPEC, ENVS, ReplayConfig(10), 0.9, members)
    with pytest.raises(ValueError, match=said):
        device.add(device.init(), on_device(step), jnp.int32(0))
