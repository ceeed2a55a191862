"""How steps and updates interleave, by counting; and randomness as a function of counters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.training.schedule import Keys, make_step_schedule

PACES = [
    (num_envs, update_every, learning_starts, batch_size)
    for num_envs in (1, 2, 3, 4, 8)
    for update_every in (1, 2, 4, 8)
    if update_every % num_envs == 0 or num_envs % update_every == 0
    for learning_starts, batch_size in ((1, 1), (10, 32), (101, 32), (64, 8))
]


@pytest.mark.parametrize(("num_envs", "update_every", "learning_starts", "batch_size"), PACES)
def test_updates_are_as_many_as_a_run_step_by_step_makes(num_envs, update_every, learning_starts, batch_size):
    schedule = make_step_schedule(num_envs, update_every, 24 * num_envs * update_every, learning_starts, batch_size)
    assert schedule.steps == max(num_envs, update_every)
    assert schedule.steps / schedule.updates == update_every  # the schedule that was asked for
    assert schedule.steps == num_envs * schedule.vector_steps
    steps = updates = 0
    for _ in range(150):  # iterations
        assert schedule.updates_until(steps) == updates
        assert schedule.whole(steps) == steps
        if steps >= schedule.first_update:
            assert steps >= max(learning_starts, batch_size)  # never from fewer transitions than asked for
            updates += schedule.updates
        steps += schedule.steps
    assert updates > 0
    assert schedule.first_update - schedule.steps < max(learning_starts, batch_size)  # and not later than needed


@pytest.mark.parametrize("steps", range(1, 20))
def test_steps_are_rounded_up_to_whole_iterations(steps):
    schedule = make_step_schedule(2, 6, 6, 1, 1)
    assert schedule.whole(steps) == next(whole for whole in range(0, 100, 6) if whole >= steps)


def test_environments_and_updates_must_fit_into_one_another():
    with pytest.raises(ValueError, match="3 environments do not fit an update every 4 steps"):
        make_step_schedule(3, 4, 12, 1, 1)
    with pytest.raises(ValueError, match="target_every must be a multiple of the 8 environments, got 12"):
        make_step_schedule(8, 4, 12, 1, 1)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_step_schedule(0, 4, 12, 1, 1)


@pytest.mark.parametrize(("num_envs", "update_every", "target_every"), [(1, 4, 40), (4, 4, 40), (8, 2, 16), (2, 8, 24)])
def test_a_refresh_falls_between_iterations(num_envs, update_every, target_every):
    """What is frozen changes every target_every / update_every updates; both loops look only before an iteration."""
    schedule = make_step_schedule(num_envs, update_every, target_every, 1, 1)
    assert (target_every // update_every) % schedule.updates == 0


def test_streams_of_a_seed_differ_from_one_another_and_from_those_of_other_seeds():
    data = np.concatenate([jax.random.key_data(jnp.stack(Keys.from_seed(seed))) for seed in (0, 1, 2**32 - 1)])
    assert data.shape == (18, 2)
    assert len(np.unique(data, axis=0)) == 18


def test_a_seed_gives_the_same_streams_alone_and_beside_others():
    beside = jax.vmap(Keys.from_seed)(jnp.asarray([5, 6], jnp.uint32))
    for alone, together in zip(Keys.from_seed(6), beside, strict=True):
        np.testing.assert_array_equal(jax.random.key_data(alone), jax.random.key_data(together[1]))


def test_bits_of_an_update_depend_on_its_number_alone():
    """Drawn one by one or many at once, in any order: both loops learn from the same transitions."""
    keys = Keys.from_seed(3)
    at_once = np.asarray(jax.jit(jax.vmap(lambda number: keys.bits(number, 6)))(jnp.arange(10)))
    for number in (7, 0, 3):
        np.testing.assert_array_equal(keys.bits(jnp.int32(number), 6), at_once[number])
    assert at_once.dtype == np.uint32
    assert len(np.unique(at_once)) == 60


def test_bits_are_uniform():
    bits = np.asarray(Keys.from_seed(0).bits(jnp.int32(0), 40_000)) / 2**32
    counts = np.histogram(bits, bins=16, range=(0, 1))[0]
    assert ((counts - 2500) ** 2 / 2500).sum() < 37.7  # χ² with 15 degrees of freedom, 0.1%
