"""The replay on the host: batches against lists of steps, draws against their distribution, and what is saved."""

import re
import tracemalloc

import numpy as np
import pytest

from qemrl.replay import HostReplay, ReplayConfig, sum_tree
from qemrl.types import EnvSpec, Step

VECTOR = EnvSpec("vector", (3,), "float32", 4)
MASKED = EnvSpec("masked", (2, 2), "bool", 4, has_mask=True)
FRAMES = EnvSpec("frames", (4, 3, 2), "uint8", 4, stacked_frames=4)
ATARI = EnvSpec("atari", (4, 84, 84), "uint8", 18, stacked_frames=4)


def bits(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def filled(spec: EnvSpec, num_envs: int, config: ReplayConfig, steps: list[Step], discount: float = 0.9) -> HostReplay:
    replay = HostReplay(spec, num_envs, config, discount)
    for step in steps:
        replay.add(step)
    return replay


def check_all(replay: HostReplay, steps: list[Step], num_envs: int, n_step: int, discount: float = 0.9) -> None:
    """Draw each transition once, and hold it against direct sums over the list of steps."""
    num_rows = replay.capacity // num_envs
    batch, indices = replay.sample(np.arange(replay.size, dtype=np.uint32))
    assert len(set(indices.tolist())) == replay.size
    for i, index in enumerate(indices):
        position, env = divmod(int(index), num_envs)
        row = max(row for row in range(len(steps)) if row % num_rows == position)
        episode = []
        for step in steps[row : row + n_step]:
            episode.append(step)
            if step.terminated[env] or step.truncated[env]:
                break
        last = episode[-1]
        reward = sum(discount**j * float(step.reward[env]) for j, step in enumerate(episode))
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            batch.discount[i], 0 if last.terminated[env] else discount ** len(episode), rtol=1e-6
        )
        np.testing.assert_array_equal(batch.observation[i], steps[row].observation[env])
        np.testing.assert_array_equal(batch.next_observation[i], last.next_observation[env])
        assert batch.action[i] == steps[row].action[env]
        if last.next_mask is None:
            assert batch.next_mask is None
        else:
            assert batch.next_mask is not None
            np.testing.assert_array_equal(batch.next_mask[i], last.next_mask[env])


@pytest.mark.parametrize("spec", [VECTOR, MASKED, FRAMES], ids=lambda spec: spec.id)
@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_transitions_are_those_of_the_steps_before_and_after_the_ring_is_full(make_steps, spec, num_envs, n_step):
    steps = make_steps(spec, num_envs, 67, end=0.1)
    replay = HostReplay(spec, num_envs, ReplayConfig(30, n_step), 0.9)
    for count, step in enumerate(steps, 1):
        replay.add(step)
        if count < 12 or count % 9 == 0:
            check_all(replay, steps[:count], num_envs, n_step)
    assert replay.capacity == 30


def test_truncation_bootstraps_and_termination_does_not():
    def step(now: float, reward: float, terminated: bool = False, truncated: bool = False) -> Step:
        observation = np.full((1, 3), now, np.float32)
        ends = np.array([terminated]), np.array([truncated])
        return Step(observation, np.array([0]), np.array([reward], np.float32), *ends, observation + 1)

    steps = [step(0, 1), step(1, 2, truncated=True), step(10, 4), step(11, 8, terminated=True), step(20, 16)]
    replay = filled(VECTOR, 1, ReplayConfig(8, n_step=3), steps, discount=0.5)
    batch, _ = replay.sample(np.arange(5, dtype=np.uint32))
    np.testing.assert_array_equal(batch.reward, [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8, 16])
    np.testing.assert_array_equal(batch.discount, [0.25, 0.5, 0, 0, 0.5])
    np.testing.assert_array_equal(batch.next_observation[:, 0], [2, 2, 12, 12, 21])
    np.testing.assert_array_equal(batch.weight, np.ones(5))


def test_episodes_that_begin_with_different_frames_are_stored_whole():
    generator = np.random.default_rng(1)
    now = generator.integers(0, 256, (1, 4, 3, 2)).astype(np.uint8)
    steps = []
    for i in range(60):
        then = np.concatenate([now[:, 1:], generator.integers(0, 256, (1, 1, 3, 2)).astype(np.uint8)], 1)
        ends = np.array([i % 7 == 6])
        steps.append(Step(now, np.array([1]), np.ones(1), np.array([False]), ends, then))
        now = generator.integers(0, 256, (1, 4, 3, 2)).astype(np.uint8) if ends[0] else then
    for count in (1, 5, 20, 60):
        check_all(filled(FRAMES, 1, ReplayConfig(40, 3), steps[:count]), steps[:count], 1, 3)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("prioritized", [False, True])
def test_rows_whose_frames_were_overwritten_are_never_drawn(make_steps, num_envs, prioritized):
    """Episodes of about two steps need 1.5 frames a step, so that frames run out before rows do."""
    steps = make_steps(FRAMES, num_envs, 500, seed=3, end=0.5)
    replay = HostReplay(FRAMES, num_envs, ReplayConfig(100 * num_envs, 3, prioritized), 0.9)
    fewest = replay.capacity
    for count, step in enumerate(steps, 1):
        replay.add(step)
        if count > 100 and count % 50 == 0:
            fewest = min(fewest, replay.size)
            if prioritized:
                drawn = replay.sample(bits(500, count))[1]
                ages = (count - 1 - drawn // num_envs) % 100
                assert ages.max() < replay.size // num_envs
                replay.update_priorities(np.arange(replay.capacity), np.ones(replay.capacity, np.float32))
                assert np.count_nonzero(replay.state()["priorities"]) == replay.size  # none came back
            else:
                check_all(replay, steps[:count], num_envs, 3)
    assert 55 * num_envs < fewest < 95 * num_envs


def test_a_replay_that_lost_rows_early_fills_up_again_with_long_episodes(make_steps):
    steps = make_steps(FRAMES, 1, 200, end=0.9)
    last = steps[-1]._replace(truncated=np.array([True]))
    replay = filled(FRAMES, 1, ReplayConfig(100), [*steps[:-1], last])
    assert replay.size < 80
    later = make_steps(FRAMES, 1, 300, seed=5, end=0.0)
    for step in later:
        replay.add(step)
    assert replay.size == 100
    check_all(replay, [*steps[:-1], last, *later], 1, 1)


def test_uniform_draws_take_the_bits_modulo_the_size(make_steps):
    replay = filled(VECTOR, 2, ReplayConfig(20), make_steps(VECTOR, 2, 7))
    draws = bits(50)
    assert replay.size == 14
    np.testing.assert_array_equal(replay.sample(draws)[1], draws % 14)


def test_draws_follow_the_priorities_and_weights_make_up_for_it(make_steps):
    alpha, beta = 0.7, 0.4
    replay = filled(VECTOR, 1, ReplayConfig(13, 1, True, alpha, beta), make_steps(VECTOR, 1, 40))
    priorities = np.random.default_rng(1).uniform(0.1, 5, 13).astype(np.float32)
    replay.update_priorities(np.arange(13), priorities)
    probs = priorities.astype(np.float64) ** alpha
    probs /= probs.sum()
    batch, indices = replay.sample(bits(100_000))
    counts = np.bincount(indices, minlength=13)
    # One draw in each of 100 000 equal parts: only the two parts at the borders of a leaf are left to chance.
    np.testing.assert_allclose(counts, 100_000 * probs, atol=3)
    weights = (13 * probs[indices]) ** -beta
    np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-5)
    small = np.concatenate([replay.sample(bits(4, seed))[1] for seed in range(2000)])
    frequencies = np.bincount(small, minlength=13) / small.size
    assert probs.max() < 0.15
    np.testing.assert_allclose(frequencies, probs, atol=5 * np.sqrt(0.15 * 0.85 / small.size))


def test_new_transitions_enter_with_the_largest_priority_so_far(make_steps):
    steps = make_steps(VECTOR, 2, 5)
    replay = filled(VECTOR, 2, ReplayConfig(8, 1, True, 0.5), steps[:3])
    np.testing.assert_array_equal(replay.state()["priorities"], np.ones(6))
    replay.update_priorities(np.array([1, 4, 1]), np.array([9, 0.25, 4], np.float32))
    replay.update_priorities(np.array([0]), np.array([0.04], np.float32))
    replay.add(steps[3])
    np.testing.assert_allclose(replay.state()["priorities"], [0.2, 3, 1, 1, 0.5, 1, 3, 3], rtol=1e-6)
    replay.add(steps[4])
    np.testing.assert_allclose(replay.state()["priorities"], [3, 3, 1, 1, 0.5, 1, 3, 3], rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_no_rounding_leads_to_an_empty_leaf(seed):
    """Leaves of very different sizes, most of them empty, and the largest and smallest bits there are."""
    generator = np.random.default_rng(seed)
    tree = np.zeros(2 * 1024, np.float32)
    values = (10.0 ** generator.uniform(-6, 6, 1024) * (generator.random(1024) < 0.1)).astype(np.float32)
    sum_tree.set_leaves(tree, np.arange(1024), values)
    for batch in (1, 7, 1000):
        for draws in (bits(batch, seed), np.full(batch, 2**32 - 1, np.uint32), np.zeros(batch, np.uint32)):
            assert (values[sum_tree.find(tree, draws)] > 0).all()


@pytest.mark.parametrize("leaves", [1, 2, 64])
def test_every_node_of_a_tree_is_the_sum_of_its_children(leaves):
    generator = np.random.default_rng(0)
    tree, expected = np.zeros(2 * leaves, np.float32), np.zeros(2 * leaves, np.float32)
    for _ in range(30):
        start = generator.integers(leaves)
        count = generator.integers(1, leaves - start + 1)
        sum_tree.fill(tree, int(start), int(count), np.float32(generator.random()))
        indices = generator.integers(0, leaves, 5)
        sum_tree.set_leaves(tree, indices, generator.random(5).astype(np.float32))
        expected[leaves:] = tree[leaves:]
        sum_tree.rebuild(expected)
        np.testing.assert_array_equal(tree, expected)
        for node in range(1, leaves):
            assert tree[node] == tree[2 * node] + tree[2 * node + 1]


@pytest.mark.parametrize("spec", [VECTOR, MASKED, FRAMES], ids=lambda spec: spec.id)
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("count", [0, 4, 31, 90])
def test_a_restored_replay_goes_on_bit_for_bit(make_steps, spec, prioritized, count):
    config = ReplayConfig(40, 3, prioritized)
    steps = make_steps(spec, 2, 120, end=0.4)
    replay, other = filled(spec, 2, config, steps[:count]), filled(spec, 2, config, make_steps(spec, 2, 33, seed=9))
    if prioritized and count:
        indices = replay.sample(bits(32))[1]
        replay.update_priorities(indices, np.random.default_rng(0).uniform(0, 3, 32).astype(np.float32))
    state = {name: array.copy() for name, array in replay.state().items()}
    assert all(re.fullmatch("[a-z_]+", name) for name in state)
    other.restore(state)
    for i, step in enumerate(steps[count:]):
        replay.add(step)
        other.add(step)
        (batch, indices), (other_batch, other_indices) = replay.sample(bits(16, i)), other.sample(bits(16, i))
        np.testing.assert_array_equal(indices, other_indices)
        for one, another in zip(batch, other_batch, strict=True):
            assert (one is None) == (another is None)
            if one is not None:
                np.testing.assert_array_equal(one, another)
        if prioritized:
            priorities = np.random.default_rng(i).uniform(0, 3, 16).astype(np.float32)
            replay.update_priorities(indices, priorities)
            other.update_priorities(indices, priorities)


def test_a_state_holds_the_written_part_without_copies(make_steps):
    replay = filled(FRAMES, 1, ReplayConfig(1000, 1, True), make_steps(FRAMES, 1, 10, end=0.0))
    state = replay.state()
    assert state["frames"].shape == (11, 1, 3, 2)
    assert state["action"].shape == (10, 1)
    assert state["priorities"].shape == (10,)
    assert all(not array.flags.owndata for name, array in state.items() if name not in {"rows", "largest_priority"})


@pytest.mark.parametrize("spec", [MASKED, FRAMES], ids=lambda spec: spec.id)
def test_the_required_memory_is_what_is_allocated(spec):
    config = ReplayConfig(300_000, prioritized=True)
    tracemalloc.start()
    replay = HostReplay(spec, 3, config, 0.9)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert replay.size == 0
    assert abs(allocated - HostReplay.required_bytes(spec, 3, config)) < 30_000


def test_a_million_transitions_of_atari_fit_into_7_6_gigabytes():
    needed = HostReplay.required_bytes(ATARI, 1, ReplayConfig(1_000_000))
    assert 7.0e9 < needed < 7.6e9
    assert HostReplay.required_bytes(ATARI, 8, ReplayConfig(1_000_000, prioritized=True)) < 7.6e9


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"capacity": 0}, "capacity"),
        ({"n_step": 0}, "n_step"),
        ({"priority_exponent": -0.1}, "priority_exponent"),
        ({"importance_exponent": float("nan")}, "importance_exponent"),
    ],
)
def test_settings_that_make_no_sense_are_named(change, named):
    with pytest.raises(ValueError, match=f"{named}.*got"):
        ReplayConfig(**change)


def test_a_replay_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="raise the capacity to at least 15"):
        HostReplay(VECTOR, 5, ReplayConfig(14, n_step=3), 0.9)
    with pytest.raises(ValueError, match=r"discount .* got 1\.1"):
        HostReplay(VECTOR, 1, ReplayConfig(14), 1.1)
    with pytest.raises(ValueError, match="4 stacked frames"):
        HostReplay(FRAMES._replace(observation_shape=(3, 3, 2)), 1, ReplayConfig(14), 0.9)
    with pytest.raises(ValueError, match="environments must be at least 1, got 0"):
        HostReplay(VECTOR, 0, ReplayConfig(14), 0.9)


def test_misuse_is_refused(make_steps):
    step, masked = make_steps(VECTOR, 1, 1)[0], make_steps(MASKED, 1, 1)[0]
    replay = HostReplay(VECTOR, 1, ReplayConfig(8), 0.9)
    with pytest.raises(ValueError, match="empty"):
        replay.sample(bits(2))
    with pytest.raises(ValueError, match="prioritized"):
        replay.update_priorities(np.array([0]), np.array([1], np.float32))
    with pytest.raises(ValueError, match="next_mask"):
        replay.add(step._replace(next_mask=np.ones((1, 4), bool)))
    with pytest.raises(ValueError, match="next_mask"):
        HostReplay(MASKED, 1, ReplayConfig(8), 0.9).add(masked._replace(next_mask=None))
    assert replay.size == 0
    prioritized = filled(VECTOR, 1, ReplayConfig(8, prioritized=True), [step])
    with pytest.raises(ValueError, match="diverged"):
        prioritized.update_priorities(np.array([0]), np.array([np.nan], np.float32))
    with pytest.raises(ValueError, match=r"\[0, 8\)"):
        prioritized.update_priorities(np.array([8]), np.array([1], np.float32))


def test_a_state_of_another_replay_is_refused(make_steps):
    state = filled(VECTOR, 2, ReplayConfig(20), make_steps(VECTOR, 2, 15)).state()
    with pytest.raises(ValueError, match="priorities"):
        HostReplay(VECTOR, 2, ReplayConfig(20, prioritized=True), 0.9).restore(state)
    with pytest.raises(ValueError, match="does not fit"):
        HostReplay(VECTOR, 4, ReplayConfig(40), 0.9).restore(state)
    with pytest.raises(ValueError, match="10 of 15 rows"):
        HostReplay(VECTOR, 2, ReplayConfig(24), 0.9).restore(state)
