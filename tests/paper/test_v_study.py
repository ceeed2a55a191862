"""The study of V: its distributions, simulated noise, exact errors and live ratios, against formulas and by hand."""

import numpy as np
import pytest

from qemrl.estimators import (
    DISTRIBUTIONS,
    QEM,
    IndependentNoise,
    SampleQuantileNoise,
    SGDNoise,
    estimation_error,
    midpoints,
)
from qemrl.paper.items.frozen_lake_study import find_truth
from qemrl.paper.items.v_study import live_ratio, summary
from qemrl.paper.items.v_study_distributions import (
    AGENTS,
    LEVELS,
    all_distributions,
    measured_returns,
    names_with_atoms,
    piecewise_distribution,
    standardize,
)
from qemrl.paper.items.v_study_exact import (
    CONDITIONS,
    GRID,
    exact_arms,
    exact_errors,
    project_to_grid,
    simulate_regression,
    simulate_samples,
)
from qemrl.paper.items.v_study_live import live_arms, live_errors


def test_distributions_have_the_moments_that_they_say():
    fine = midpoints(200_000)
    for name, distribution in all_distributions().items():
        values = distribution.quantile(fine)
        assert (np.diff(values) >= 0).all(), name
        assert abs(values.mean() - distribution.mean) < 2e-3, name
        assert abs(values.std() - 1) < 0.05, name  # the tails of t3 are beyond the last level
        assert (distribution.sparsity(fine) > 0).all(), name
    assert names_with_atoms() < {distribution.name for distribution in all_distributions().values()}


def test_the_return_of_the_lake_is_that_of_the_lake():
    returns = find_truth().returns
    distribution = all_distributions()["frozen-lake"]
    assert distribution.mean == pytest.approx(returns.mean / np.sqrt(returns.variance), rel=0.01)


def test_a_piecewise_distribution_by_hand():
    distribution = piecewise_distribution("three", np.array([2.0, 0.0, 2.0]))
    scale = distribution.quantile(np.array([0.9]))[0] / 2
    np.testing.assert_allclose(distribution.quantile(np.array([0.0, 1 / 6, 1 / 3, 0.5, 1.0])) / scale, [0, 0, 1, 2, 2])
    np.testing.assert_allclose(distribution.sparsity(np.array([1 / 3])), 6 * scale)
    np.testing.assert_allclose(
        distribution.mean / scale, 1 / 3 + 1, rtol=1e-4
    )  # a third rises, a half and a sixth are flat


def test_measured_returns_are_those_of_the_agents_that_are_named():
    assert list(measured_returns()) == [env for _, env, _ in AGENTS]
    for quantiles in measured_returns().values():
        assert quantiles.shape == (LEVELS,)
        assert (np.diff(quantiles) >= 0).all()
        assert quantiles.std() > 0


def test_weights_on_a_grid_give_the_same_sums():
    rng = np.random.default_rng(0)
    weights, levels = rng.normal(size=(20, 7)), rng.random((20, 7))
    heights = rng.normal(size=len(GRID))
    expected = (weights * np.interp(levels, GRID, heights)).sum(-1)
    np.testing.assert_allclose(project_to_grid(weights, levels) @ heights, expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["sample quantiles", "SGD"])
def test_simulated_noise_is_that_of_the_formulas_where_these_hold(kind: str):
    distribution = standardize("Normal", DISTRIBUTIONS["normal"])
    if kind == "SGD":
        found, truth = (
            simulate_regression(distribution, 0.02, 3_000, 2_000, 0),
            SGDNoise(0.02).covariance(distribution, GRID),
        )
    else:
        found, truth = (
            simulate_samples(distribution, 1_000, 3_000, 0),
            SampleQuantileNoise(1_000).covariance(distribution, GRID),
        )
    inner = slice(4, -4)
    assert np.linalg.norm((found.covariance - truth)[inner, inner]) < 0.1 * np.linalg.norm(truth[inner, inner])
    np.testing.assert_allclose(found.mean[inner], distribution.quantile(GRID)[inner], atol=0.02)


def test_exact_errors_are_those_of_the_formulas():
    distributions = {name: all_distributions()[name] for name in ("exponential", "frozen-lake")}
    errors = exact_errors(distributions, "smoke", np.random.default_rng(0), lambda _: None)
    levels = CONDITIONS[-1]
    again = np.random.default_rng(0)
    drawn = [condition.draw(again, 40) for condition in CONDITIONS][-1]
    for arm, noise, model in (("H4 I", "SGD", SGDNoise(0.1)), ("auto", "independent", IndependentNoise())):
        estimator = exact_arms()[arm].estimator
        expected = estimation_error(estimator, distributions["exponential"], drawn, model)
        found = errors[str(levels), noise, "exponential", arm]
        assert found.bias == pytest.approx(np.mean(expected.bias))
        assert found.mse.mean() == pytest.approx(np.mean(expected.mse))
    assert summary(errors, "mean", str(levels)) == pytest.approx((1.0, 1.0))
    midpoint = errors["midpoints 32", "SGD", "exponential", "auto"]
    np.testing.assert_allclose(midpoint.mse, errors["midpoints 32", "SGD", "exponential", "mean"].mse)


def test_the_auto_arm_is_auto():
    assert exact_arms()["auto"].estimator == QEM(variance="auto")


def test_live_errors_have_the_variance_of_the_formula():
    distribution = all_distributions()["normal"]
    errors = live_errors(distribution, "small", 3, lambda _: None)
    assert errors.keys() == live_arms().keys()
    levels = midpoints(32)
    weights = np.full(32, 1 / 32)
    expected = weights @ SGDNoise(0.05).covariance(distribution, levels) @ weights
    assert errors["mean"].var() == pytest.approx(expected, rel=0.25)


def test_a_live_ratio_by_hand():
    one, two = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[2.0, 2.0], [2.0, -2.0]])
    live = {("a", "x"): one, ("a", "y"): two, ("b", "x"): two, ("b", "y"): one}
    assert live_ratio({k: v for k, v in live.items() if k[0] == "a"}, "x", "y") == pytest.approx((0.25, 0.25, 0.25))
    assert live_ratio(live, "x", "y").value == pytest.approx(1.0)
