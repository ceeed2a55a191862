"""The fast quantile losses against the formula, the formula against numbers, finite differences and quantiles."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qemrl.distributional import losses
from qemrl.distributional.losses import (
    categorical_cross_entropy,
    huber,
    quantile_huber,
    quantile_huber_pairwise,
    quantile_huber_scanned,
    quantile_huber_sorted,
)

PAIRWISE, SCANNED, SORTED = (
    jax.jit(loss, static_argnames="kappa")
    for loss in (quantile_huber_pairwise, quantile_huber_scanned, quantile_huber_sorted)
)
FAST = pytest.mark.parametrize("fast", [SCANNED, SORTED], ids=["scanned", "sorted"])
ALL = pytest.mark.parametrize("loss", [PAIRWISE, SCANNED, SORTED], ids=["pairwise", "scanned", "sorted"])
KAPPA = pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])


def by_loops(values, levels, targets, probs, kappa):
    """The loss of one row, in float64, pair by pair."""
    total = 0.0
    for value, level in zip(values, levels, strict=True):
        for target, prob in zip(targets, probs, strict=True):
            error = float(target) - float(value)
            side = 1 - level if error < 0 else level
            size = abs(error)
            if kappa == 0:
                total += prob * side * size
            elif size <= kappa:
                total += prob * side * 0.5 * size**2 / kappa
            else:
                total += prob * side * (size - 0.5 * kappa)
    return total


@partial(jax.jit, static_argnums=(0, 5))
def loss_and_gradient(loss, values, levels, targets, probs, kappa):
    def total(values):
        rows = loss(values, levels, targets, probs, kappa)
        return rows.sum(), rows

    (_, rows), gradient = jax.value_and_grad(total, has_aux=True)(values)
    return rows, gradient


def rows(seed, batch=(4,), n=7, m=5, scale=3.0, weighted=True):
    rng = np.random.default_rng(seed)
    values, targets = rng.normal(size=(*batch, n)) * scale, rng.normal(size=(*batch, m)) * scale
    probs = rng.dirichlet(np.ones(m), size=batch) if weighted else None
    return values, rng.uniform(size=(*batch, n)), targets, probs


def in_float32(arrays) -> tuple[Any, ...]:
    return tuple(None if array is None else jnp.asarray(array, jnp.float32) for array in arrays)


@ALL
def test_the_loss_of_two_values_and_two_targets_is_the_sum_over_levels_of_means_over_targets(loss):
    values, levels, targets = in_float32(([0.0, 1.0], [0.25, 0.75], [0.5, -2.0]))
    assert loss(values, levels, targets, None, 1.0) == pytest.approx(0.90625)
    first = loss(values[:1], levels[:1], targets, None, 1.0)
    assert first == pytest.approx((0.03125 + 1.125) / 2)
    only_last = loss(values[1:], levels[1:], targets, jnp.asarray([0.0, 1.0]), 1.0)
    assert only_last == pytest.approx(0.625)


@ALL
@KAPPA
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_formula_evaluated_pair_by_pair(loss, kappa, weighted):
    values, levels, targets, probs = rows(0, weighted=weighted)
    uniform = np.full(targets.shape, 1 / targets.shape[-1])
    by_row = zip(values, levels, targets, uniform if probs is None else probs, strict=True)
    expected = [by_loops(*row, kappa) for row in by_row]
    with jax.enable_x64(True):
        actual = loss(*(None if x is None else jnp.asarray(x) for x in (values, levels, targets, probs)), kappa)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@ALL
def test_values_and_targets_do_not_change_places(loss):
    values, levels, targets, _ = in_float32(rows(1, batch=(), n=2, m=3, weighted=False))
    levels = jnp.asarray([0.05, 0.9])
    right = by_loops(values, [0.05, 0.9], targets, [1 / 3] * 3, 0.0)
    wrong = by_loops(targets, [0.05, 0.475, 0.9], values, [1 / 2] * 2, 0.0)
    reversed_levels = by_loops(values, [0.9, 0.05], targets, [1 / 3] * 3, 0.0)
    assert loss(values, levels, targets, None, 0.0) == pytest.approx(right, rel=1e-5)
    assert abs(right - wrong) > 0.1
    assert abs(right - reversed_levels) > 0.1


@ALL
@KAPPA
def test_the_gradient_is_the_slope_of_the_loss(loss, kappa):
    values, levels, targets, probs = rows(2, batch=(), n=6, m=9)
    step = 1e-6
    with jax.enable_x64(True):
        f = partial(loss, levels=jnp.asarray(levels), targets=jnp.asarray(targets), target_probs=jnp.asarray(probs))
        gradient = jax.grad(lambda values: f(values, kappa=kappa))(jnp.asarray(values))
        slopes = [
            (f(jnp.asarray(values + shift), kappa=kappa) - f(jnp.asarray(values - shift), kappa=kappa)) / (2 * step)
            for shift in step * np.eye(6)
        ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)


# Few shapes, for each is compiled: batch, n, m, axes of the levels before their last, whether targets are weighted.
SHAPES = st.sampled_from([((4,), 3, 8, (), True), ((2, 3), 33, 20, (1, 1), False)])
KAPPAS = st.sampled_from([0.0, 0.5, 1.0])
SEEDS = st.integers(0, 2**32 - 1)


@FAST
@given(SHAPES, KAPPAS, SEEDS, st.sampled_from([0.0, -1.0, 1000.0, -30000.0]), st.sampled_from([0, 2, 8, 40]))
def test_ties_give_the_loss_and_the_gradient_of_the_formula(fast, shape, kappa, seed, offset, spread):
    batch, n, m, shared, weighted = shape
    rng = np.random.default_rng(seed)
    # Few distinct numbers, multiples of 1/4 so that distances and break points are exact and many coincide.
    values, targets = (rng.integers(-spread, spread + 1, (*batch, k)) / 4 + offset for k in (n, m))
    probs = rng.dirichlet(np.ones(m), size=batch) * (rng.random((*batch, m)) < 0.8) if weighted else None
    arrays = in_float32((values, rng.uniform(size=(*shared, n)), targets, probs))
    expected, expected_gradient = loss_and_gradient(PAIRWISE, *arrays, kappa)
    actual, gradient = loss_and_gradient(fast, *arrays, kappa)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


@FAST
@given(SHAPES, KAPPAS, SEEDS, st.sampled_from([0.0, 1000.0, -5000.0]), st.sampled_from([0.01, 1.0, 30.0]))
def test_any_rows_give_the_loss_and_the_gradient_of_the_formula(fast, shape, kappa, seed, offset, scale):
    batch, n, m, shared, weighted = shape
    values, _, targets, probs = rows(seed, batch, n, m, scale, weighted)
    levels = np.random.default_rng(seed).uniform(size=(*shared, n))
    arrays = in_float32((values + offset, levels, targets + offset, probs))
    expected, expected_gradient = loss_and_gradient(PAIRWISE, *arrays, kappa)
    actual, gradient = loss_and_gradient(fast, *arrays, kappa)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-7 * n * scale)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@FAST
@KAPPA
def test_large_returns_with_a_small_spread_keep_their_digits(fast, kappa):
    values, levels, targets, probs = in_float32(rows(3, n=200, m=199, scale=1.0))
    values, targets = values + 1000, targets + 1000
    exact = tuple(np.asarray(x, np.float64) for x in (values, levels, targets, probs))
    with jax.enable_x64(True):
        expected, slopes = loss_and_gradient(PAIRWISE, *(jnp.asarray(x) for x in exact), kappa)
    actual, gradient = loss_and_gradient(fast, values, levels, targets, probs, kappa)
    np.testing.assert_allclose(actual, expected, rtol=2e-6)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-6)


@ALL
def test_a_target_on_a_value_pulls_it_neither_way_in_the_pinball_loss(loss):
    values, targets = jnp.asarray([2.0]), jnp.asarray([2.0, 3.0, 3.0, 1.0])
    _, gradient = loss_and_gradient(loss, values, jnp.asarray([0.3]), targets, None, 0.0)
    assert gradient[0] == pytest.approx((0.7 - 2 * 0.3) / 4)
    _, gradient = loss_and_gradient(loss, values, jnp.asarray([0.3]), targets[:1], None, 0.0)
    assert gradient[0] == 0


@ALL
def test_the_pinball_loss_is_least_at_the_quantile(loss):
    levels = np.asarray([0.05, 0.3, 0.5, 0.71, 0.99], np.float32)
    targets = np.random.default_rng(4).normal(size=101).astype(np.float32)
    candidates = np.sort(targets)
    shape = (len(levels), len(candidates), 1)  # a row of one value for each level and candidate
    values = np.broadcast_to(candidates[:, None], shape)
    at = loss(
        jnp.asarray(values),
        jnp.asarray(np.broadcast_to(levels[:, None, None], shape)),
        jnp.asarray(np.broadcast_to(targets, (*shape[:2], 101))),
        None,
        kappa=0.0,
    )
    best = candidates[np.argmin(at, axis=-1)]
    np.testing.assert_array_equal(best, np.quantile(targets, levels, method="inverted_cdf"))


@ALL
def test_levels_targets_and_their_probabilities_get_no_gradient(loss):
    values, levels, targets, probs = in_float32(rows(5))
    gradients = jax.grad(lambda a, b, c, d: loss(a, b, c, d, 1.0).sum(), (0, 1, 2, 3))(values, levels, targets, probs)
    assert jnp.any(gradients[0] != 0)
    assert all(jnp.all(gradient == 0) for gradient in gradients[1:])


@FAST
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_maps_over_another_axis_and_compiles(fast, weighted):
    values, levels, targets, probs = in_float32(rows(6, batch=(3, 4), weighted=weighted))

    def row_weighted(values, targets, probs):
        weights = jnp.arange(1.0, 5.0)  # rows that count differently, as in prioritized replay
        return jnp.sum(weights * fast(values, levels[0], targets, probs, 0.5))

    mapped = jax.jit(jax.vmap(jax.value_and_grad(row_weighted)))
    totals, gradients = mapped(values, targets, probs)
    for seed in range(3):
        row_losses, slopes = loss_and_gradient(
            PAIRWISE, values[seed], levels[0], targets[seed], None if probs is None else probs[seed], 0.5
        )
        np.testing.assert_allclose(totals[seed], np.arange(1, 5) @ np.asarray(row_losses), rtol=1e-5)
        np.testing.assert_allclose(gradients[seed], np.arange(1, 5)[:, None] * np.asarray(slopes), rtol=1e-5, atol=1e-6)


def test_the_scan_keeps_no_array_of_all_pairs():
    arrays = in_float32(rows(7, batch=(8,), n=37, m=41))
    program = (
        jax.jit(jax.grad(lambda a, b, c, d: quantile_huber_scanned(a, b, c, d, 1.0).sum())).lower(*arrays).as_text()
    )
    assert "8x37" in program
    assert not any(f"{a}x{b}" in program for a, b in [(37, 41), (41, 37), (37, 8), (41, 8 * 37)])


@pytest.mark.parametrize(("n", "m", "sorts"), [(9, 9, True), (9, 30, True), (7, 30, False), (30, 7, False)])
def test_many_values_and_many_targets_are_sorted_and_few_are_scanned(monkeypatch, n, m, sorts):
    monkeypatch.setattr(losses, "SORT_FROM", 8)
    arrays = in_float32(rows(8, n=n, m=m))
    assert ("sort" in str(jax.make_jaxpr(quantile_huber)(*arrays))) == sorts
    expected, slopes = loss_and_gradient(PAIRWISE, *arrays, 1.0)
    actual, gradient = loss_and_gradient(quantile_huber, *arrays, 1.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)


@ALL
@pytest.mark.parametrize("kappa", [-1.0, float("inf"), float("nan")])
def test_a_kappa_that_means_nothing_is_refused(loss, kappa):
    with pytest.raises(ValueError, match=rf"kappa must be finite and at least 0.*{kappa}"):
        loss(jnp.zeros(2), jnp.full(2, 0.5), jnp.zeros(3), None, kappa)


def test_huber_is_quadratic_up_to_kappa_and_linear_beyond():
    errors = jnp.asarray([-3.0, -2.0, -0.5, 0.0, 1.0, 2.0, 5.0])
    np.testing.assert_allclose(huber(errors, 2.0), [4.0, 2.0, 0.125, 0.0, 0.5, 2.0, 8.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda e: huber(e, 2.0)))(errors), [-2, -2, -0.5, 0, 1, 2, 2])
    np.testing.assert_allclose(huber(errors, float("inf")), 0.5 * np.square(errors))
    with pytest.raises(ValueError, match=r"kappa must be above 0.*got 0"):
        huber(errors, 0.0)


def test_the_cross_entropy_is_stable_and_pulls_logits_towards_the_target():
    logits, probs = jnp.asarray([[1000.0, 0.0, -1000.0], [0.5, -0.25, 1.0]]), jnp.asarray([[0.5, 0.5, 0.0]] * 2)
    exact = np.asarray(logits, np.float64)
    log_softmax = exact - np.logaddexp.reduce(exact, axis=-1, keepdims=True)
    np.testing.assert_allclose(categorical_cross_entropy(logits, probs), -(log_softmax[:, :2] / 2).sum(-1), rtol=1e-6)
    gradient, to_probs = jax.grad(lambda *x: categorical_cross_entropy(*x).sum(), argnums=(0, 1))(logits, probs)
    np.testing.assert_allclose(gradient, np.exp(log_softmax) - np.asarray(probs), atol=1e-6)
    assert jnp.all(to_probs == 0)
