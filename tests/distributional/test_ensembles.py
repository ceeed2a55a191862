"""Ensembles: what several critics are together, by hand and by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.types import ReturnDist

THIRDS = (np.arange(3) + 0.5) / 3
CURVES = jnp.asarray([[[0.0, 3.0, 9.0], [1.0, 2.0, 5.0]], [[4.0, 4.0, 4.0], [-1.0, 6.0, 8.0]]])
"""Two rows of two members; their means are (4, 8/3) and (4, 13/3)."""

MEANS = jnp.mean(CURVES, axis=-1)
LEVELS = jnp.asarray([[[0.1, 0.4, 0.8]], [[0.2, 0.5, 0.9]]])
PROBS = jnp.asarray([[[0.2, 0.4, 0.4]], [[0.4, 0.3, 0.3]]])


def test_all_have_the_size_they_say():
    kinds = (ElementwiseMin, SmallestCritic, PooledTruncation, Averaged)
    assert all(kind(size=3).size == 3 for kind in kinds)
    assert [kind().size for kind in kinds] == [2, 2, 5, 1]


def test_the_least_at_each_level():
    """It lies below both curves: its means 7/3 and 7/3 are less than the least of the means, 8/3 and 4."""
    together = ElementwiseMin().target(ReturnDist(CURVES, THIRDS), MEANS)
    assert together.values.tolist() == [[[0.0, 2.0, 5.0]], [[-1.0, 4.0, 4.0]]]
    assert together.levels is THIRDS
    assert together.probs is None
    np.testing.assert_allclose(ElementwiseMin().value(MEANS), [8 / 3, 4], rtol=1e-6)


def test_levels_and_probabilities_of_the_least_are_the_shared_ones():
    for ensemble in (ElementwiseMin(), SmallestCritic(), Averaged(2)):
        together = ensemble.target(ReturnDist(CURVES, LEVELS, PROBS), MEANS)
        assert together.values.shape == (2, 1, 3)
        np.testing.assert_array_equal(together.levels, LEVELS)
        np.testing.assert_array_equal(together.probs, PROBS)


def test_the_target_does_not_see_the_estimates_but_for_the_smallest_critic():
    dist = ReturnDist(CURVES, THIRDS)
    for ensemble in (ElementwiseMin(), ElementwiseMin(policy="first"), PooledTruncation(2, 1), Averaged(2)):
        one, other = (ensemble.target(dist, q) for q in (MEANS, -MEANS))
        np.testing.assert_array_equal(one.values, other.values)


def test_the_policy_may_climb_the_first_critic_alone():
    """As in TD3; the target is the least all the same."""
    first = ElementwiseMin(policy="first")
    assert first.value(jnp.asarray([[3.0, 1.0], [-2.0, 5.0]])).tolist() == [3.0, -2.0]
    gradient = jax.grad(lambda q: jnp.sum(first.value(q)))(jnp.asarray([[3.0, 1.0], [-2.0, 5.0]]))
    assert gradient.tolist() == [[1, 0], [1, 0]]
    together = first.target(ReturnDist(CURVES, THIRDS), MEANS)
    assert together.values.tolist() == [[[0.0, 2.0, 5.0]], [[-1.0, 4.0, 4.0]]]


def test_with_one_value_for_each_member_the_least_is_clipped_double_q_learning():
    q = jnp.asarray([[3.0, 1.0], [-2.0, 5.0]])
    for ensemble in (ElementwiseMin(), SmallestCritic()):
        together = ensemble.target(ReturnDist(q[:, :, None], np.array([0.5])), q)
        assert together.values.tolist() == [[[1.0]], [[-2.0]]]


def test_the_smallest_critic_is_taken_whole():
    """By the means, the second member in the first row and the first in the second; by other estimates, otherwise."""
    dist = ReturnDist(CURVES, THIRDS)
    assert SmallestCritic().target(dist, MEANS).values.tolist() == [[[1.0, 2.0, 5.0]], [[4.0, 4.0, 4.0]]]
    by_first_value = CURVES[:, :, 0]
    assert SmallestCritic().target(dist, by_first_value).values.tolist() == [[[0.0, 3.0, 9.0]], [[-1.0, 6.0, 8.0]]]
    np.testing.assert_allclose(SmallestCritic().value(MEANS), [8 / 3, 4], rtol=1e-6)


def test_the_mean_at_each_level():
    together = Averaged(2).target(ReturnDist(CURVES, THIRDS), MEANS)
    assert together.values.tolist() == [[[0.5, 2.5, 7.0]], [[1.5, 5.0, 6.0]]]
    np.testing.assert_allclose(Averaged(2).value(MEANS), [10 / 3, 25 / 6], rtol=1e-6)
    alone = Averaged().target(ReturnDist(CURVES[:, :1], THIRDS), MEANS[:, :1])
    np.testing.assert_array_equal(alone.values, CURVES[:, :1])


def test_pooled_atoms_lose_the_largest_of_all_and_not_of_each():
    """Two are dropped in all, one for each critic: of 0 1 2 3 5 9 the last two, which in the first row are one of each

    member's, and of −1 4 4 4 6 8 the 6 and the 8, both of the second member's.
    """
    together = PooledTruncation(2, 1).target(ReturnDist(CURVES, THIRDS), MEANS)
    assert together.values.tolist() == [[[0.0, 1.0, 2.0, 3.0]], [[-1.0, 4.0, 4.0, 4.0]]]
    np.testing.assert_allclose(together.levels, [0.125, 0.375, 0.625, 0.875])
    assert together.probs is None


def test_without_a_drop_all_atoms_are_kept():
    together = PooledTruncation(2, 0).target(ReturnDist(CURVES, THIRDS), MEANS)
    assert together.values.tolist() == [[[0, 1, 2, 3, 5, 9]], [[-1, 4, 4, 4, 6, 8]]]
    np.testing.assert_allclose(together.levels, (np.arange(6) + 0.5) / 6, rtol=1e-6)


@pytest.mark.parametrize("drop", [0, 1, 4])
def test_pooled_atoms_are_those_of_brute_force(drop):
    values = np.random.default_rng(drop).normal(size=(3, 5, 7)).astype(np.float32)
    found = PooledTruncation(5, drop).target(ReturnDist(jnp.asarray(values), np.zeros(7)), jnp.zeros((3, 5)))
    for row in range(3):
        wanted = sorted(values[row].ravel().tolist())[: 35 - 5 * drop]
        np.testing.assert_array_equal(found.values[row, 0], np.array(wanted, np.float32))


def test_pooled_atoms_take_their_probabilities_along():
    """First row: the atoms 0 (0.2), 1 (0.2), 2 (0.4), 3 (0.4) are left, with 1.2 in all; so 1/6, 1/6, 1/3, 1/3, each

    with its level in its middle: 1/12, 1/4, 1/2, 5/6. Second: −1 (0.4) and the three fours (0.4, 0.3, 0.3), of 1.4.
    """
    together = PooledTruncation(2, 1).target(ReturnDist(CURVES, LEVELS, PROBS), MEANS)
    assert together.values.tolist() == [[[0.0, 1.0, 2.0, 3.0]], [[-1.0, 4.0, 4.0, 4.0]]]
    assert together.probs is not None
    np.testing.assert_allclose(together.probs[0, 0], [1 / 6, 1 / 6, 1 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(together.levels[0, 0], [1 / 12, 1 / 4, 1 / 2, 5 / 6], rtol=1e-6)
    np.testing.assert_allclose(together.probs[1, 0, 0], 0.4 / 1.4, rtol=1e-6)
    np.testing.assert_allclose(np.sort(together.probs[1, 0, 1:]), np.array([0.3, 0.3, 0.4]) / 1.4, rtol=1e-6)
    np.testing.assert_allclose(np.sum(together.probs, axis=-1), 1, rtol=1e-6)


def test_the_policy_climbs_the_mean_of_all_pooled_critics():
    """Nothing is dropped there."""
    np.testing.assert_allclose(PooledTruncation(2, 1).value(MEANS), [10 / 3, 25 / 6], rtol=1e-6)


@pytest.mark.parametrize("drop", [3, 4])
def test_atoms_that_are_not_there_cannot_be_dropped(drop):
    with pytest.raises(ValueError, match=f"of 3 atoms at most 2 can be dropped, got drop={drop}"):
        PooledTruncation(2, drop).target(ReturnDist(CURVES, THIRDS), MEANS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ElementwiseMin(0), "at least one member, got 0"),
        (lambda: SmallestCritic(-1), "at least one member, got -1"),
        (lambda: PooledTruncation(0), "at least one member, got 0"),
        (lambda: Averaged(0), "at least one member, got 0"),
        (lambda: PooledTruncation(2, -1), "must not be negative, got -1"),
    ],
)
def test_ensembles_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
