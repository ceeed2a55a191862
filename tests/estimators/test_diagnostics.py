"""Distributions, noise models and the worth of estimators, against simulation and figures computed elsewhere."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special, stats

from qemrl import (
    DISTRIBUTIONS,
    QEM,
    BandVariance,
    Distribution,
    EmpiricalMean,
    IndependentNoise,
    SampleQuantileNoise,
    SGDNoise,
    TailVariance,
    antithetic_levels,
    cumulative_levels,
    efficiency,
    estimation_error,
    midpoints,
    normal_mixture,
    paper_condition,
    r_squared,
    sampling_error,
    stratified_levels,
    uniform_levels,
    variance_reduction,
)

SCIPY: dict[str, Any] = {
    "normal": stats.norm(),
    "exponential": stats.expon(),
    "gumbel": stats.gumbel_r(),
    "log-normal": stats.lognorm(1.0),
    "student-t3": stats.t(3),
}


@pytest.mark.parametrize("name", SCIPY)
def test_laws_are_what_they_are_called(name):
    distribution, reference = DISTRIBUTIONS[name], SCIPY[name]
    levels = np.array([1e-6, 0.01, 0.3, 0.5, 0.77, 0.999])
    np.testing.assert_allclose(distribution.quantile(levels), reference.ppf(levels), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(distribution.sparsity(levels), 1 / reference.pdf(reference.ppf(levels)), rtol=1e-8)
    assert distribution.mean == pytest.approx(reference.mean(), abs=1e-12)
    assert distribution.std == pytest.approx(reference.std(), rel=1e-12)


def test_the_mixture_inverts_its_distribution_function():
    distribution = DISTRIBUTIONS["mixture"]
    levels = np.concatenate([np.geomspace(1e-12, 0.5, 300), 1 - np.geomspace(1e-12, 0.5, 300)])
    x = distribution.quantile(levels)
    np.testing.assert_allclose(0.7 * special.ndtr(x + 2) + 0.3 * special.ndtr(x - 3), levels, rtol=1e-9)
    density = 0.7 * stats.norm.pdf(x, -2) + 0.3 * stats.norm.pdf(x, 3)
    np.testing.assert_allclose(distribution.sparsity(levels), 1 / density, rtol=1e-9)
    assert distribution.mean == pytest.approx(-0.5)
    assert distribution.std == pytest.approx(2.5)
    with pytest.raises(ValueError, match="add up to one"):
        normal_mixture((0.5, 0.6), (0.0, 1.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="2 weights, 1 means"):
        normal_mixture((0.5, 0.5), (0.0,), (1.0, 1.0))


def test_any_quantile_function_makes_a_law():
    distribution = Distribution.from_quantile(lambda levels: levels**2, "square of a uniform")
    assert distribution.mean == pytest.approx(1 / 3)
    assert distribution.std == pytest.approx(np.sqrt(1 / 5 - 1 / 9))
    np.testing.assert_allclose(distribution.sparsity(midpoints(9)), 2 * midpoints(9), rtol=1e-8)


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_sample_quantile_covariance_by_simulation(name):
    distribution, levels, samples = DISTRIBUTIONS[name], np.array([0.1, 0.3, 0.5, 0.8]), 1000
    rng = np.random.default_rng(0)
    draws = np.sort(distribution.quantile(rng.random((20_000, samples))), axis=-1)
    estimates = draws[:, (levels * samples).astype(int)]
    expected = SampleQuantileNoise(samples).covariance(distribution, levels)
    np.testing.assert_allclose(np.cov(estimates.T), expected, rtol=0.06)


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_stochastic_gradient_covariance_by_simulation(name):
    distribution, levels, step = DISTRIBUTIONS[name], np.array([0.2, 0.5, 0.8]), 0.02
    rng = np.random.default_rng(1)
    quantiles = np.tile(distribution.quantile(levels), (20_000, 1))
    for _ in range(1200):  # some ten relaxation times of 1 / (step · density)
        returns = distribution.quantile(rng.random((len(quantiles), 1)))
        quantiles += step * (levels - (returns < quantiles))
    expected = SGDNoise(step).covariance(distribution, levels)
    np.testing.assert_allclose(np.cov(quantiles.T), expected, rtol=0.06)


def test_bias_and_variance_are_those_of_simulated_estimates():
    distribution, levels = DISTRIBUTIONS["exponential"], midpoints(16)
    qem = QEM(order=4, variance=TailVariance(2.0))
    rng = np.random.default_rng(0)
    for noise in (IndependentNoise(BandVariance(3.0, 0.0, 0.3)), SampleQuantileNoise(50), SGDNoise(0.1)):
        errors = rng.multivariate_normal(np.zeros(16), noise.covariance(distribution, levels), size=100_000)
        estimates = qem.mean(distribution.quantile(levels) + errors, levels)
        exact = estimation_error(qem, distribution, levels, noise)
        assert estimates.mean() - distribution.mean == pytest.approx(exact.bias, abs=4 * estimates.std() / np.sqrt(1e5))
        assert estimates.var() == pytest.approx(exact.variance, rel=0.03)
        assert exact.mse == pytest.approx(exact.bias**2 + exact.variance)


def test_batched_levels_are_evaluated_row_by_row():
    distribution, levels = DISTRIBUTIONS["gumbel"], uniform_levels(np.random.default_rng(0), (4, 12))
    for noise in (IndependentNoise(TailVariance(2.0)), SampleQuantileNoise(), SGDNoise()):
        together = estimation_error(QEM(3), distribution, levels, noise)
        alone = [estimation_error(QEM(3), distribution, row, noise) for row in levels]
        np.testing.assert_allclose(together.bias, [one.bias for one in alone], atol=1e-9)
        np.testing.assert_allclose(together.variance, [one.variance for one in alone], rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "sample_quantiles", "gradient"),
    [
        ("normal", 1.00, 1.00),
        ("exponential", 0.99, 1.00),
        ("log-normal", 0.94, 1.00),
        ("student-t3", 0.95, 1.00),
        ("mixture", 0.99, 1.00),
    ],
)
def test_with_correlated_errors_the_papers_estimator_has_no_less_variance(name, sample_quantiles, gradient):
    qem, levels = QEM(order=4, variance=TailVariance(1.5)), midpoints(128)
    assert efficiency(qem, DISTRIBUTIONS[name], levels, SampleQuantileNoise()) == pytest.approx(
        sample_quantiles, abs=0.0075
    )
    assert efficiency(qem, DISTRIBUTIONS[name], levels, SGDNoise()) == pytest.approx(gradient, abs=0.0075)


@pytest.mark.parametrize(
    ("count", "value", "order", "gain"),
    [
        (200, 1.5, 2, 1.027),
        (200, 1.5, 4, 1.008),
        (32, 1.2, 2, 1.005),
        (32, 1.2, 4, 0.996),
        (200, 10.0, 4, 1.47),
    ],
)
def test_the_gain_if_the_papers_variances_were_right(count, value, order, gain):
    variance = TailVariance(value)
    measured = efficiency(QEM(order, variance), DISTRIBUTIONS["normal"], midpoints(count), IndependentNoise(variance))
    assert measured == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("exponential", 32, (0.0315, 0.0066, 0.00001, 0.0107, 0.0010, 0.0, 0.0002)),
        ("log-normal", 32, (0.0310, 0.0134, 0.0008, 0.0201, 0.0060, 0.0002, 0.0007)),
        ("mixture", 32, (0.0293, 0.0036, 0.0060, 0.0048, 0.0001, 0.0002, 0.0000)),
        ("mixture", 8, (0.1219, 0.0210, 0.2755, 0.0191, 0.0042, 0.0080, 0.0005)),
    ],
)
def test_random_levels_are_a_noise_that_qem_removes(name, count, expected):
    pairs = [
        (EmpiricalMean(), uniform_levels),
        (QEM(2), uniform_levels),
        (QEM(4), uniform_levels),
        (EmpiricalMean(), antithetic_levels),
        (EmpiricalMean(), stratified_levels),
        (QEM(4), stratified_levels),
        (EmpiricalMean(), cumulative_levels),
    ]
    distribution, rng = DISTRIBUTIONS[name], np.random.default_rng(0)
    measured = [
        sampling_error(estimator, distribution, draw, count, rng).mse / distribution.std**2 for estimator, draw in pairs
    ]
    np.testing.assert_allclose(measured, expected, rtol=0.3, atol=1.5e-4)


def test_the_papers_condition_claims_a_gain_where_there_is_none():
    levels, twos = midpoints(32), np.full(32, 2.0)
    assert paper_condition(levels, twos) == pytest.approx(3)
    assert variance_reduction(levels, twos) == pytest.approx(0, abs=1e-15)


def test_the_papers_condition_is_its_formula():
    rng = np.random.default_rng(0)
    levels, v = rng.random((5, 20)), rng.uniform(1, 3, (5, 20))
    z = special.ndtri(levels)
    ratio = (v.sum(-1) * (v * z**2).sum(-1)) / (v * z).sum(-1) ** 2
    np.testing.assert_allclose(paper_condition(levels, v), v.mean(-1) ** 2 - 1 - 1 / (ratio - 1), rtol=1e-10)


@pytest.mark.parametrize("order", [2, 4])
def test_variance_reduction_is_the_difference_of_variances(order):
    rng = np.random.default_rng(0)
    for levels in (midpoints(32), rng.random(32)):
        v = rng.uniform(1, 5, 32)
        table = dict(zip(levels, v, strict=True))
        noise = IndependentNoise(lambda levels, table=table: np.array([table[level] for level in levels]))
        plain = estimation_error(EmpiricalMean(), DISTRIBUTIONS["normal"], levels, noise).variance
        qem = estimation_error(QEM(order, noise.variance), DISTRIBUTIONS["normal"], levels, noise).variance
        assert variance_reduction(levels, v, order) == pytest.approx(plain - qem, rel=1e-8)


def test_r_squared_grows_with_the_order_and_reaches_one_on_an_exact_fit():
    levels = midpoints(64)
    for distribution in DISTRIBUTIONS.values():
        values = distribution.quantile(levels)
        scores = [float(r_squared(QEM(order), values, levels)) for order in range(1, 7)]
        assert scores[0] == pytest.approx(0, abs=1e-12)
        assert all(a <= b + 1e-12 for a, b in pairwise(scores))
    assert r_squared(QEM(2), 3 + 2 * DISTRIBUTIONS["normal"].quantile(levels), levels) == pytest.approx(1)


def test_r_squared_by_hand():
    values, levels = np.array([0.0, 1.0, 1.0, 4.0]), midpoints(4)
    z = special.ndtri(levels)
    slope, intercept = np.polyfit(z, values, 1)
    residual = values - intercept - slope * z
    expected = 1 - (residual**2).sum() / ((values - 1.5) ** 2).sum()
    assert r_squared(QEM(2), values, levels) == pytest.approx(expected)


def test_the_mean_is_the_integral_of_the_quantile_function():
    for distribution in DISTRIBUTIONS.values():
        halves = [
            integrate.quad(lambda t, distribution=distribution: float(distribution.quantile(np.array([t]))[0]), *ends)[
                0
            ]
            for ends in ((0, 0.5), (0.5, 1))
        ]
        assert sum(halves) == pytest.approx(distribution.mean, abs=1e-6)
