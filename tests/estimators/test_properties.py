"""What holds for every estimator, whatever the levels, the order, the basis and V."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from qemrl import (
    QEM,
    BandVariance,
    ConstantVariance,
    EmpiricalMean,
    SpacingVariance,
    TailVariance,
    midpoints,
    r_squared,
)


def bowl(levels):
    """A smooth V of a user's: four times as noisy at the ends as in the middle."""
    return 1 + 12 * (levels - 0.5) ** 2


VARIANCES = [
    ConstantVariance(),
    ConstantVariance(7.0),
    TailVariance(1.5),
    BandVariance(3.0, 0.4, 0.6),
    SpacingVariance(),
    bowl,
]

estimators = st.builds(QEM, st.integers(1, 6), st.sampled_from(VARIANCES), st.sampled_from(["hermite", "legendre"]))
seeds = st.integers(0, 2**32 - 1)


def scattered(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Levels in general position, one in each of N parts of (0, 1)."""
    rng = np.random.default_rng(seed)
    return (np.arange(shape[-1]) + rng.uniform(0.1, 0.9, shape)) / shape[-1]


def quantiles(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.sort(np.random.default_rng(seed + 1).gamma(2.0, size=shape), axis=-1)


@given(estimators, st.integers(6, 40), seeds)
def test_weights_of_the_mean_add_up_to_one_and_the_others_to_zero(qem, count, seed):
    for levels in (scattered(seed, (count,)), scattered(seed, (3, count))):
        sums = qem.weights(levels).sum(-1)
        np.testing.assert_allclose(sums[..., 0], 1, atol=1e-10)
        np.testing.assert_allclose(sums[..., 1:], 0, atol=1e-8)


@given(estimators, st.integers(6, 40), seeds, st.floats(-1e3, 1e3), st.floats(0.01, 1e3), st.booleans())
def test_shifting_and_scaling_quantiles_does_so_to_the_mean(qem, count, seed, shift, scale, sampled):
    shape = (3, count) if sampled else (count,)
    levels, values = scattered(seed, shape), quantiles(seed, shape)
    expected = shift + scale * qem.mean(values, levels)
    np.testing.assert_allclose(qem.mean(shift + scale * values, levels), expected, atol=1e-10 * (abs(shift) + scale))


@given(estimators, st.integers(6, 40), seeds, st.floats(-1e3, 1e3), st.floats(0.01, 1e3))
def test_moments_follow_shifts_and_scales(qem, count, seed, shift, scale):
    levels, values = scattered(seed, (3, count)), quantiles(seed, (3, count))
    before, after = qem.moments(values, levels), qem.moments(shift + scale * values, levels)
    np.testing.assert_allclose(after.variance, scale**2 * before.variance, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(after.skewness, before.skewness, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after.excess_kurtosis, before.excess_kurtosis, rtol=1e-5, atol=1e-5)


@given(estimators, st.integers(6, 40), seeds, st.booleans())
def test_the_order_of_quantiles_does_not_matter(qem, count, seed, sampled):
    shape = (3, count) if sampled else (count,)
    levels, values = scattered(seed, shape), quantiles(seed, shape)
    shuffle = np.random.default_rng(seed).permutation(count)
    np.testing.assert_allclose(
        qem.mean(values[..., shuffle], levels[..., shuffle]), qem.mean(values, levels), rtol=1e-9, atol=1e-9
    )


@given(
    st.integers(2, 6),
    st.sampled_from(VARIANCES),
    st.integers(6, 40),
    seeds,
    st.floats(-10, 10),
    st.floats(0.1, 10),
)
def test_normal_quantiles_give_the_exact_moments(order, variance, count, seed, mean, std):
    qem = QEM(order, variance)
    for levels in (scattered(seed, (count,)), scattered(seed, (2, count))):
        values = mean + std * special.ndtri(levels)
        moments = qem.moments(values, levels)
        np.testing.assert_allclose(qem.mean(values, levels), mean, atol=1e-8)
        np.testing.assert_allclose(moments.mean, mean, atol=1e-8)
        np.testing.assert_allclose(moments.variance, std**2, rtol=1e-7)
        np.testing.assert_allclose(moments.skewness, 0, atol=1e-6)
        np.testing.assert_allclose(moments.excess_kurtosis, 0, atol=1e-6)
        scale_and_mean = qem.coefficients(values, levels)[..., :2]
        np.testing.assert_allclose(scale_and_mean, [mean, std] + 0 * levels[..., :1], atol=1e-8)
        np.testing.assert_allclose(r_squared(qem, values, levels), 1)


@given(st.integers(1, 6), st.integers(6, 40), seeds)
def test_quantile_functions_that_are_polynomials_give_the_exact_mean(order, count, seed):
    coefficients = np.random.default_rng(seed).normal(size=order)
    levels = scattered(seed, (2, count))
    z, x = special.ndtri(levels), 2 * levels - 1
    for qem, values in (
        (QEM(order, bowl, "hermite"), np.polynomial.hermite_e.hermeval(z, coefficients)),
        (QEM(order, bowl, "legendre"), np.polynomial.legendre.legval(x, coefficients)),
    ):
        np.testing.assert_allclose(qem.mean(values, levels), coefficients[0], atol=1e-8)
        np.testing.assert_allclose(qem.fit(values, levels), values, atol=1e-8)
        np.testing.assert_allclose(qem.coefficients(values, levels), np.tile(coefficients, (2, 1)), atol=1e-7)


@given(st.integers(1, 2), st.sampled_from(["hermite", "legendre"]), st.integers(2, 200), seeds)
def test_low_orders_with_equal_variances_are_the_plain_mean_at_midpoints(order, basis, count, seed):
    levels, values = midpoints(count), quantiles(seed, (4, count))
    plain = EmpiricalMean().mean(values, levels)
    np.testing.assert_allclose(QEM(order, basis=basis).mean(values, levels), plain, rtol=1e-14)
    np.testing.assert_allclose(QEM(order, basis=basis).weights(levels)[0], 1 / count, rtol=1e-13)


@given(estimators, st.integers(6, 40), seeds)
def test_one_set_of_levels_gives_the_same_whether_fixed_or_sampled(qem, count, seed):
    levels, values = scattered(seed, (count,)), quantiles(seed, (3, count))
    sampled = np.tile(levels, (3, 1))
    np.testing.assert_allclose(qem.weights(sampled)[1], qem.weights(levels), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(qem.mean(values, sampled), qem.mean(values, levels), rtol=1e-9)
    np.testing.assert_allclose(qem.mean(values, levels[None]), qem.mean(values, levels), rtol=1e-9)
    for fixed, loose in zip(qem.moments(values, levels), qem.moments(values, sampled), strict=True):
        np.testing.assert_allclose(loose, fixed, rtol=1e-6, atol=1e-6)


@given(estimators, st.integers(6, 40), seeds)
def test_coefficients_fit_and_mean_are_one_regression(qem, count, seed):
    for shape in ((count,), (2, count)):
        levels, values = scattered(seed, shape), quantiles(seed, shape)
        coefficients = qem.coefficients(values, levels)
        np.testing.assert_allclose(coefficients[..., 0], qem.mean(values, levels), rtol=1e-9)
        by_hand = (qem.weights(levels) @ values[..., None])[..., 0]
        np.testing.assert_allclose(coefficients, by_hand, rtol=1e-6, atol=1e-7)
        residual = (values - qem.fit(values, levels)) / qem.variance(levels)
        np.testing.assert_allclose(residual.sum(-1), 0, atol=1e-8)  # orthogonal to the constant column


@given(st.integers(6, 40), seeds, st.sampled_from(VARIANCES))
def test_only_ratios_of_variances_matter(count, seed, variance):
    levels, values = scattered(seed, (2, count)), quantiles(seed, (2, count))
    thrice = QEM(4, lambda levels: 3 * variance(levels)).mean(values, levels)
    np.testing.assert_allclose(thrice, QEM(4, variance).mean(values, levels), rtol=1e-10)


@given(st.integers(6, 40), seeds)
def test_probabilities_act_as_weights(count, seed):
    rng = np.random.default_rng(seed)
    for shape in ((count,), (2, count)):
        levels, values = scattered(seed, shape), quantiles(seed, shape)
        probs = rng.dirichlet(np.full(count, 5.0), size=shape[:-1])
        order_1 = QEM(1).mean(values, levels, probs)
        np.testing.assert_allclose(order_1, (probs * values).sum(-1), rtol=1e-12)
        np.testing.assert_allclose(EmpiricalMean().mean(values, levels, probs), order_1, rtol=1e-12)
        weighted = (EmpiricalMean().weights(levels, probs)[..., 0, :] * values).sum(-1)
        np.testing.assert_allclose(weighted, order_1, rtol=1e-12)
        equal = QEM(4).mean(values, levels, np.full(shape, 1 / count))
        np.testing.assert_allclose(equal, QEM(4).mean(values, levels), rtol=1e-9)


@pytest.mark.parametrize("basis", ["hermite", "legendre"])
@pytest.mark.parametrize("order", range(1, 7))
def test_any_levels_even_0_and_1_and_coinciding_ones_give_finite_means(order, basis):
    hard = [
        np.linspace(0, 1, 8),
        np.array([0.0] * 4 + [1.0] * 4),
        np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0]),
        np.full(8, 0.5),
        np.full(8, 0.0),
        np.full(8, 1.0),
        np.nextafter(np.full(8, 0.3), 1) + np.arange(8) * 1e-16,
    ]
    values = np.linspace(-1, 2, 8)
    for dtype in (np.float64, np.float32):
        levels = np.stack(hard).astype(dtype)
        qem = QEM(order, TailVariance(1.5), basis)
        mean = qem.mean(np.tile(values, (len(hard), 1)).astype(dtype), levels)
        assert np.isfinite(mean).all(), mean
        assert np.isfinite(qem.weights(levels)).all()
        constant = qem.mean(np.full_like(levels, 1000.0), levels)
        np.testing.assert_allclose(constant, 1000.0, rtol=1e-6)


def test_a_large_mean_does_not_cost_digits_in_float32():
    rng = np.random.default_rng(0)
    levels = rng.random((2000, 32)).astype(np.float32)
    values = special.ndtri(np.clip(levels, 1e-5, 1 - 1e-5).astype(np.float64))
    near, far = (QEM(4).mean((values + shift).astype(np.float32), levels) for shift in (0.0, 1000.0))
    plain = EmpiricalMean().mean((values + 1000).astype(np.float32), levels)
    rounding = np.abs(plain - values.mean(-1) - 1000).max()
    assert np.quantile(np.abs(far - 1000 - near), 0.99) < 2 * rounding
