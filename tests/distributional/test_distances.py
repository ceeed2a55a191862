"""Maximum mean discrepancy and Cramér distance against double sums, areas between steps and finite differences."""

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qemrl.distributional.distances import _add_all, _add_pairs, _gaussians, _scan_over, _scan_pairs, cramer, mmd
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.types import ReturnDist

WIDTHS = tuple(float(h) for h in range(1, 11))
MMD = partial(mmd, bandwidths=WIDTHS)
BOTH = pytest.mark.parametrize("distance", [MMD, cramer], ids=["mmd", "cramer"])
WEIGHTED = pytest.mark.parametrize("weighted", [False, True])


def kernel(x: np.ndarray, y: np.ndarray, widths: tuple[float, ...] = WIDTHS) -> np.ndarray:
    return sum((np.exp(-(np.subtract.outer(x, y) ** 2) / h) for h in widths), np.zeros(()))


def by_double_sums(x: np.ndarray, y: np.ndarray, q: np.ndarray, widths: tuple[float, ...] = WIDTHS) -> float:
    """MMD² of equally likely x and of y with probabilities q."""
    p = np.full(len(x), 1 / len(x))
    return float(p @ kernel(x, x, widths) @ p - 2 * p @ kernel(x, y, widths) @ q + q @ kernel(y, y, widths) @ q)


def by_area(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> float:
    """∫ (F − G)²: between two neighbors among all atoms both functions are constant."""
    points = np.unique(np.concatenate([x, y]))
    total = 0.0
    for left, right in itertools.pairwise(points):
        total += (right - left) * (np.mean(x <= left) - np.sum(q[y <= left])) ** 2
    return total


REFERENCES = {MMD: by_double_sums, cramer: by_area}


@partial(jax.jit, static_argnums=0)
def value_and_gradient(distance: Any, values: Any, targets: Any, probs: Any) -> Any:
    found, pull = jax.vjp(lambda values: distance(values, targets, probs), values)
    return found, pull(jnp.ones_like(found))[0]


def rows(seed: int, weighted: bool, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    rng = np.random.default_rng(seed)
    values, targets = rng.normal(scale=scale, size=(2, 2, 5)), rng.normal(0.5, scale, size=(2, 2, 6))
    return values, targets, rng.dirichlet(np.ones(6), (2, 2)) if weighted else None


def in_jax(parts: Iterable[Any], dtype: Any = jnp.float32) -> list[Any]:
    return [None if part is None else jnp.asarray(part, dtype) for part in parts]


def expected(distance: Any, values: np.ndarray, targets: np.ndarray, probs: np.ndarray | None) -> np.ndarray:
    probs = np.full(targets.shape, 1 / targets.shape[-1]) if probs is None else probs
    found = np.zeros(values.shape[:-1])
    for place in np.ndindex(found.shape):
        found[place] = REFERENCES[distance](values[place], targets[place], probs[place])
    return found


def test_the_discrepancy_of_two_pairs():
    """x = (0, 1), y = (0.5, 2): Σ_h over means of exp(−d²/h), d² = 0, 1 twice each; 0, 2.25; 0.25, 4, 0.25, 1."""
    h = np.arange(1, 11)
    own, theirs = (1 + np.exp(-1 / h)) / 2, (1 + np.exp(-2.25 / h)) / 2
    cross = (2 * np.exp(-0.25 / h) + np.exp(-4 / h) + np.exp(-1 / h)) / 4
    assert np.sum(own + theirs - 2 * cross) == pytest.approx(1.498645, abs=1e-6)
    found = mmd(jnp.asarray([0.0, 1.0]), jnp.asarray([0.5, 2.0]), None, WIDTHS)
    assert float(found) == pytest.approx(1.498645, abs=2e-6)


def test_the_cramer_distance_of_two_pairs():
    """F is ½ from 0 on and 1 from 1 on, G ½ from 0.5 and 1 from 2: ¼ · 0.5 + 0 + ¼ · 1."""
    assert float(cramer(jnp.asarray([0.0, 1.0]), jnp.asarray([2.0, 0.5]))) == pytest.approx(0.375)
    assert float(cramer(jnp.asarray([0.0]), jnp.asarray([-3.0, 1.0]), jnp.asarray([0.25, 0.75]))) == pytest.approx(
        0.0625 * 3 + 0.5625 * 1
    )


@BOTH
@WEIGHTED
@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 4.0]))
def test_distances_are_those_of_brute_force(distance, weighted, seed, scale):
    parts = rows(seed, weighted, scale)
    found, _ = value_and_gradient(distance, *in_jax(parts))
    np.testing.assert_allclose(found, expected(distance, *parts), rtol=2e-5, atol=4e-6)


@BOTH
@pytest.mark.parametrize(("n", "m"), [(1, 2), (4, 1)])
def test_few_values_or_few_targets_have_distances_too(distance, n, m):
    rng = np.random.default_rng(n)
    values, targets, probs = rng.normal(size=(2, 1, n)), rng.normal(size=(2, 1, m)), rng.dirichlet(np.ones(m), (2, 1))
    found, _ = value_and_gradient(distance, *in_jax((values, targets, probs)))
    np.testing.assert_allclose(found, expected(distance, values, targets, probs), rtol=2e-5, atol=4e-6)


@BOTH
@WEIGHTED
def test_gradients_are_the_slopes_of_brute_force(distance, weighted):
    values, targets, probs = rows(3, weighted)
    with jax.enable_x64(True):
        found, gradient = value_and_gradient(distance, *in_jax((values, targets, probs), jnp.float64))
    np.testing.assert_allclose(found, expected(distance, values, targets, probs), rtol=1e-10)
    step, slopes = 1e-6, np.zeros(values.shape)
    for place in range(5):
        shift = step * np.eye(5)[place]
        ahead, behind = (expected(distance, values + sign * shift, targets, probs) for sign in (1, -1))
        slopes[..., place] = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(gradient, slopes, atol=1e-7)
    assert np.median(np.abs(slopes)) > 0.02


@BOTH
def test_a_distribution_has_no_distance_from_itself_and_the_order_does_not_matter(distance):
    values, targets, probs = rows(4, True)
    shuffle = np.array([3, 0, 4, 1, 2])
    one, there = value_and_gradient(distance, *in_jax((values, targets, probs)))
    other, moved = value_and_gradient(distance, *in_jax((values[..., shuffle], targets, probs)))
    np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(there[..., shuffle], moved, atol=1e-6)
    same, gradient = value_and_gradient(distance, *in_jax((values, values[..., shuffle], None)))
    assert (np.asarray(same) >= 0).all()
    np.testing.assert_allclose(same, 0, atol=3e-6)
    if distance is MMD:  # the Cramér distance has a kink where a value is on a target
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0], [0.0, 1.5, 5.0], [2.0, 2.0, 2.0]], ids=str)
def test_at_ties_the_cramer_gradient_is_between_the_slopes_of_both_sides(values):
    x, y, q = np.array(values), np.array([1.0, 1.0, 2.0, 5.0]), np.full(4, 0.25)
    found, gradient = value_and_gradient(cramer, *in_jax((x, y)), None)
    assert float(found) == pytest.approx(by_area(x, y, q), abs=1e-6)
    shifts = 1e-6 * np.eye(3)
    sides = [
        [(by_area(x + sign * each, y, q) - by_area(x, y, q)) / (sign * 1e-6) for each in shifts] for sign in (1, -1)
    ]
    assert (np.asarray(gradient) >= np.min(sides, axis=0) - 1e-5).all()
    assert (np.asarray(gradient) <= np.max(sides, axis=0) + 1e-5).all()


def test_one_number_as_the_target_is_not_left_once_it_is_reached():
    """As after a terminal transition with a certain reward."""
    for distance in (MMD, cramer):
        _, gradient = value_and_gradient(distance, jnp.full((2, 2, 5), 3.0), jnp.full((2, 2, 6), 3.0), None)
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_the_cramer_distance_is_least_at_the_quantiles_at_midpoints():
    """Of N equally likely values none are closer than the targets' quantiles at (2i − 1) / 2N."""
    rng = np.random.default_rng(5)
    targets, probs = np.sort(rng.normal(size=9)), rng.dirichlet(np.ones(9))
    levels = (np.arange(4) + 0.5) / 4
    best = targets[np.searchsorted(np.cumsum(probs), levels)]
    others = best + rng.normal(size=(300, 4)) * np.repeat([0.01, 0.1, 1.0], 100)[:, None]
    batch = np.concatenate([best[None], others, targets[rng.integers(9, size=(300, 4))]])
    whole = [np.broadcast_to(each, (len(batch), 9)) for each in (targets, probs)]
    found, _ = value_and_gradient(cramer, *in_jax((batch, *whole)))
    different = np.abs(np.sort(batch, 1) - best).max(1) > 1e-6
    assert different.sum() > 500
    assert float(found[0]) + 1e-6 < np.min(np.asarray(found)[different])


def test_particles_follow_the_gradient_to_the_target():
    """From afar but within the kernels' reach, to the targets' mean and spread."""
    targets = jnp.asarray(np.random.default_rng(6).normal(2.0, 1.0, 24), jnp.float32)[None]
    start = jnp.linspace(-1.0, 1.0, 8)[None]

    @jax.jit
    def descend(values: Any) -> Any:
        slope = jax.grad(lambda values: MMD(values, targets, None).sum())
        return jax.lax.fori_loop(0, 1000, lambda _, values: values - 0.5 * slope(values), values)

    found = np.asarray(descend(start))
    before, after = (float(MMD(each, targets, None)[0]) for each in (start, jnp.asarray(found)))
    assert after < before / 1000
    assert found.mean() == pytest.approx(float(jnp.mean(targets)), abs=0.05)
    assert found.std() == pytest.approx(float(jnp.std(targets)), rel=0.1)


@pytest.mark.parametrize("widths", [(1.0,), (0.5, 3.0, 7.0), (2.0, 1.0, 6.0, 12.0)], ids=str)
def test_other_bandwidths_are_summed(widths):
    values, targets, probs = rows(7, True)
    assert probs is not None
    found, _ = value_and_gradient(partial(mmd, bandwidths=widths), *in_jax((values, targets, probs)))
    for place in np.ndindex(2, 2):
        assert float(found[place]) == pytest.approx(
            by_double_sums(values[place], targets[place], probs[place], widths), rel=1e-5, abs=1e-6
        )


@pytest.mark.parametrize("count", [6, 7])
def test_going_through_sources_one_by_one_gives_what_all_at_once_do(count):
    rng = np.random.default_rng(8)
    shapes = ((3, 4, 5), (3, 4, count), (3, 4, count))
    points, sources, weights = in_jax(rng.normal(size=shape) for shape in shapes)
    one, other = (
        function(partial(_gaussians, WIDTHS), points, sources, weights) for function in (_scan_over, _add_all)
    )
    for left, right in zip(one, other, strict=True):
        assert left.shape == (3, 4, 5)
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-5)
    scale = np.asarray(weights)[..., None, :]
    gaps = np.asarray(points)[..., :, None] - np.asarray(sources)[..., None, :]
    np.testing.assert_allclose(
        one[0], sum((scale * np.exp(-(gaps**2) / h)).sum(-1) for h in range(1, 11)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_pair_once_gives_what_all_pairs_do(count):
    rng = np.random.default_rng(count)
    points, weights = in_jax((rng.normal(size=(3, 2, count)), rng.uniform(size=(3, 2, count))))
    one, other = (function(partial(_gaussians, WIDTHS), points, weights) for function in (_scan_pairs, _add_pairs))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


@WEIGHTED
@BOTH
def test_targets_and_their_probabilities_learn_nothing_and_rows_count_by_their_weights(distance, weighted):
    parts = in_jax(rows(9, weighted))
    weights = jnp.asarray([[1.0, 2.0], [0.0, -3.0]])
    chosen = (0, 1, 2) if weighted else (0, 1)

    def total(values: Any, targets: Any, probs: Any) -> Any:
        return jnp.sum(weights * distance(values, targets, probs))

    to_values, *others = jax.grad(total, argnums=chosen)(*parts)
    assert all((np.asarray(each) == 0).all() for each in others)
    _, slopes = value_and_gradient(distance, *parts)
    np.testing.assert_allclose(to_values, np.asarray(weights)[..., None] * np.asarray(slopes), rtol=1e-4, atol=1e-6)


def make_streams(features: int, outputs: int, key) -> ActionStreams:
    return ActionStreams(StreamConfig((), False, False), features, 2, outputs, key)


@pytest.mark.parametrize(
    "representation", [Particles(200), FixedQuantiles(200, 0.0, loss_function="cramer")], ids=["mmd", "cramer"]
)
def test_no_array_of_all_pairs_is_kept_while_learning(representation):
    """A batch of 32 with 200 particles has 1.28 million pairs, 5 MB; with ten bandwidths each, 51 MB."""
    head = representation.make_head(make_streams, 4, jax.random.key(0))
    features, actions = jnp.ones((32, 4)), jnp.zeros(32, jnp.int32)

    def total(head: Any, values: Any) -> Any:
        target = ReturnDist(values, np.full(200, 0.5))
        return representation.loss(head, features, actions, target, jax.random.key(0)).mean()

    program = jax.jit(jax.grad(total)).lower(head, jnp.ones((32, 1, 200))).compile()
    memory: Any = program.memory_analysis()
    assert memory.temp_size_in_bytes < 3e6


def test_all_pairs_at_once_have_an_array_for_each_pair_and_not_for_each_bandwidth():
    """What accelerators compile; whether they keep it is their compiler's."""
    points, sources = jnp.ones((3, 1, 20)), jnp.ones((3, 1, 30))
    program = jax.make_jaxpr(partial(_add_all, partial(_gaussians, WIDTHS)))(points, sources, sources)
    sizes = [np.prod(each.aval.shape) for line in program.jaxpr.eqns for each in line.outvars]
    assert max(sizes) == 3 * 20 * 30
