"""V from the spacing of the levels, and `QEM(variance="auto")`, which is made of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from qemrl import (
    DISTRIBUTIONS,
    QEM,
    EmpiricalMean,
    IndependentNoise,
    SampleQuantileNoise,
    SGDNoise,
    SpacingVariance,
    estimation_error,
    midpoints,
    stratified_levels,
    uniform_levels,
)
from qemrl.estimators import BiasVariance, Distribution, Noise, cells, normal_mixture


def test_a_cell_reaches_half_way_to_the_neighbors_and_to_the_ends():
    np.testing.assert_allclose(cells(np.array([0.5, 0.1, 0.6])), [0.25, 0.3, 0.45])
    np.testing.assert_allclose(cells(np.array([0.37])), [1.0])
    np.testing.assert_allclose(cells(midpoints(7)), np.full(7, 1 / 7))
    assert (cells(np.full(4, 0.3)) == 1).all()  # equal levels share a cell


def test_cells_are_those_of_sorted_levels_in_any_order():
    levels = np.random.default_rng(0).random((50, 9))
    order = np.argsort(levels, axis=-1)
    edges = np.sort(levels, axis=-1)
    edges = np.concatenate([np.zeros((50, 1)), (edges[:, 1:] + edges[:, :-1]) / 2, np.ones((50, 1))], axis=-1)
    np.testing.assert_allclose(np.take_along_axis(cells(levels), order, axis=-1), np.diff(edges), atol=1e-15)
    np.testing.assert_allclose(cells(jnp.asarray(levels, jnp.float32)), cells(levels), atol=1e-6)


def test_a_fit_of_order_one_with_whole_cells_is_the_trapezoidal_rule():
    levels, values = np.random.default_rng(1).random((2, 20, 8))
    expected = (cells(levels) * values).sum(-1)
    np.testing.assert_allclose(QEM(1, SpacingVariance(1.0)).mean(values, levels), expected, rtol=1e-9)
    np.testing.assert_allclose(QEM(1, SpacingVariance(0.0)).mean(values, levels), values.mean(-1), rtol=1e-9)


def test_auto_is_the_plain_mean_at_midpoints():
    auto, values = QEM(variance="auto"), np.random.default_rng(2).normal(size=(5, 33))
    assert auto == QEM(2, SpacingVariance(0.5), "legendre")
    np.testing.assert_allclose(auto.weights(midpoints(33))[0], np.full(33, 1 / 33), rtol=1e-12)
    np.testing.assert_allclose(auto.mean(values, midpoints(33)), values.mean(-1), rtol=1e-12)


BANK: list[Distribution] = [*DISTRIBUTIONS.values(), normal_mixture((0.5, 0.5), (-3.0, 3.0), (1.0, 1.0))]
NOISES: dict[str, Noise | None] = {
    "none": None,
    "independent": IndependentNoise(),
    "sample quantiles": SampleQuantileNoise(50),
    "SGD": SGDNoise(0.1),
}


def ratio(distribution: Distribution, levels: np.ndarray, kind: str) -> float:
    """The mean squared error of `auto` over that of the plain mean; exact given the levels."""
    errors = []
    for estimator in (QEM(variance="auto"), EmpiricalMean()):
        found = estimation_error(estimator, distribution, levels, NOISES[kind] or IndependentNoise())
        # Independent errors have 0.3 of the distribution's standard deviation; those of SGD grow with its scale.
        scale = {"none": 0.0, "independent": 0.09 * distribution.std**2, "SGD": distribution.std}.get(kind, 1.0)
        errors.append(np.mean(BiasVariance(found.bias, scale * np.asarray(found.variance)).mse))
    return float(errors[0] / errors[1])


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("count", [8, 32])
def test_auto_is_never_worse_than_the_plain_mean_and_much_better_at_random_levels(count, kind):
    rng = np.random.default_rng(3)
    uniform = np.clip(uniform_levels(rng, (600, count)), 1e-4, 1 - 1e-4)
    stratified = stratified_levels(rng, (600, count))
    random = [ratio(distribution, uniform, kind) for distribution in BANK]
    assert max(random) < 1.01
    assert np.mean(random) < 0.8
    assert max(ratio(distribution, stratified, kind) for distribution in BANK) < 1.01
    fixed = [ratio(distribution, midpoints(count)[None], kind) for distribution in BANK if kind != "none"]
    np.testing.assert_allclose(fixed, np.ones(len(fixed)), rtol=1e-9)
