"""Backups and projections against arithmetic with fractions, and what a projection keeps."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qemrl.distributional.losses import backup, project_categorical
from qemrl.types import ReturnDist


def by_fractions(atoms, probs, support):
    """The projection of one distribution, exactly: an atom's mass is divided between its two neighbors."""
    support = [Fraction(point) for point in support]
    shares = [Fraction(0)] * len(support)
    for atom, prob in zip(atoms, probs, strict=True):
        place = min(max(Fraction(atom), support[0]), support[-1])
        left = max(i for i, point in enumerate(support) if point <= place)
        if support[left] == place:
            shares[left] += Fraction(prob)
            continue
        right = (place - support[left]) / (support[left + 1] - support[left])
        shares[left] += Fraction(prob) * (1 - right)
        shares[left + 1] += Fraction(prob) * right
    return shares


def test_c51_with_51_atoms_loses_mean_where_targets_leave_the_support():
    support = jnp.linspace(-10.0, 10.0, 51)
    probs = jnp.full((1, 51), 1 / 51)
    target = backup(ReturnDist(support[None], jnp.zeros(51)), jnp.ones(1), jnp.full(1, 0.99))
    projected = project_categorical(target.values, probs, support)
    # Added up in double precision: the roundings of a sum of 51 products would be most of the tolerance.
    assert np.asarray(projected[0], np.float64) @ np.linspace(-10, 10, 51) == pytest.approx(0.970353, abs=1e-6)
    assert projected.sum() == pytest.approx(1, abs=1e-6)


@given(
    atoms=st.lists(st.integers(-40, 40), min_size=8, max_size=8),
    count=st.sampled_from([2, 5, 9]),
    start=st.integers(-3, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_projection_divides_mass_between_neighbors_and_keeps_it(atoms, count, start, seed):
    atoms = [atom / 8 for atom in atoms]
    support = [start + i / 2 for i in range(count)]
    probs = np.random.default_rng(seed).multinomial(64, np.full(len(atoms), 1 / len(atoms))) / 64
    expected = by_fractions(atoms, probs, support)
    actual = project_categorical(*(jnp.asarray(x, jnp.float32) for x in (atoms, probs, support)))
    np.testing.assert_array_equal(actual, [float(share) for share in expected])  # powers of two: nothing is rounded
    assert sum(expected) == 1


@given(seed=st.integers(0, 2**32 - 1))
def test_the_projection_keeps_the_mean_of_what_lies_inside(seed):
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.normal(size=2) * 50)
    support = np.linspace(low - 1, high + 1, 51)
    atoms = rng.uniform(support[0], support[-1], size=(3, 2, 20))
    probs = rng.dirichlet(np.ones(20), size=(3, 2))
    projected = project_categorical(*(jnp.asarray(x, jnp.float32) for x in (atoms, probs, support)))
    assert projected.shape == (3, 2, len(support))
    assert jnp.all(projected >= 0)
    np.testing.assert_allclose(projected.sum(-1), 1, atol=1e-5)
    width = support[-1] - support[0]
    np.testing.assert_allclose(np.asarray(projected, np.float64) @ support, (probs * atoms).sum(-1), atol=1e-5 * width)


def test_a_distribution_on_the_support_stays_as_it_is():
    support = jnp.linspace(-10.0, 10.0, 51)
    probs = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(51), size=4), jnp.float32)
    kept = project_categorical(jnp.tile(support, (4, 1)), probs, support)
    np.testing.assert_allclose(kept, probs, atol=1e-6)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(1.0, [0, 0, 0, 1, 0]), (0.25, [0, 0, 0.75, 0.25, 0]), (9.0, [0, 0, 0, 0, 1]), (-9.0, [1, 0, 0, 0, 0])],
)
def test_the_end_of_an_episode_is_a_single_point_that_is_projected(reward, expected):
    support = jnp.linspace(-2.0, 2.0, 5)
    probs = jnp.asarray([0.1, 0.2, 0.4, 0.2, 0.1])
    target = backup(ReturnDist(support[None], jnp.zeros(5), probs), jnp.asarray([reward]), jnp.zeros(1))
    np.testing.assert_allclose(project_categorical(target.values, probs, support)[0], expected, atol=1e-6)


def test_a_projection_maps_and_compiles():
    support = jnp.linspace(-1.0, 1.0, 7)
    atoms = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5)), jnp.float32)
    probs = jnp.full((2, 3, 5), 0.2)
    mapped = jax.jit(jax.vmap(project_categorical, (0, 0, None)))(atoms, probs, support)
    np.testing.assert_allclose(mapped, project_categorical(atoms, probs, support), atol=1e-6)


def test_a_support_of_one_point_is_refused():
    with pytest.raises(ValueError, match="at least 2 points to project onto, got 1"):
        project_categorical(jnp.zeros(3), jnp.full(3, 1 / 3), jnp.zeros(1))


def test_a_backup_moves_the_values_of_all_members_by_the_reward_of_their_row():
    values = np.random.default_rng(2).normal(size=(3, 2, 4)).astype(np.float32)
    reward, discount = np.asarray([1.0, -2.0, 3.0], np.float32), np.asarray([0.5, 0.0, 1.0], np.float32)
    levels, probs = jnp.asarray([[[0.1, 0.3, 0.5, 0.9]]]), jnp.full((1, 1, 4), 0.25)
    target = backup(ReturnDist(jnp.asarray(values), levels, probs), jnp.asarray(reward), jnp.asarray(discount))
    for row in range(3):
        np.testing.assert_allclose(target.values[row], reward[row] + discount[row] * values[row], rtol=1e-6)
    assert target.levels is levels
    assert target.probs is probs


def test_a_backup_of_one_state_takes_scalars():
    target = backup(ReturnDist(jnp.asarray([1.0, 2.0]), jnp.asarray([0.25, 0.75])), jnp.float32(1), jnp.float32(0.5))
    np.testing.assert_allclose(target.values, [1.5, 2.0])


@pytest.mark.parametrize(("values", "reward"), [((4, 3), (3,)), ((3,), (3,)), ((2, 4, 3), (2, 3))])
def test_rewards_of_another_batch_are_refused(values, reward):
    with pytest.raises(ValueError, match="do not lead values"):
        backup(ReturnDist(jnp.zeros(values), jnp.zeros(values[-1])), jnp.zeros(reward), jnp.zeros(reward))
