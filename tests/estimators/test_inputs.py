"""Bad input is refused with a ValueError that names the offending value."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from qemrl import (
    QEM,
    BandVariance,
    ConstantVariance,
    EmpiricalMean,
    SpacingVariance,
    TailVariance,
    crossing_rate,
    midpoints,
)

LEVELS = midpoints(8)
VALUES = np.arange(8.0)


@pytest.mark.parametrize(
    ("values", "levels", "message"),
    [
        (VALUES, LEVELS + 0.5, r"levels must lie in \[0, 1\], got 1\.0625 at index 4"),
        (VALUES, LEVELS - 0.5, r"levels must lie in \[0, 1\], got -0\.4375 at index 0"),
        (VALUES, np.where(LEVELS > 0.9, np.nan, LEVELS), r"levels must lie in \[0, 1\], got nan at index 7"),
        (VALUES, midpoints(7), r"8 values for 7 levels \(shapes \(8,\) and \(7,\)\)"),
        (VALUES, np.full((2, 8), LEVELS), r"levels of shape \(2, 8\) do not fit values of shape \(8,\)"),
        (
            np.ones((3, 2, 8)),
            np.full((3, 8), LEVELS),
            r"levels of shape \(3, 8\) do not fit values of shape \(3, 2, 8\)",
        ),
        (
            np.ones((3, 8)),
            np.full((2, 8), LEVELS),
            r"levels of shape \(2, 8\) do not fit values of shape \(3, 8\)",
        ),
        (np.array([0, 1, np.inf, 3, 4, 5, 6, 7]), LEVELS, "values must be finite, got inf at index 2"),
        (np.array([[0.0] * 8, [np.nan] * 8]), LEVELS, r"values must be finite, got nan at index \(1, 0\)"),
        (np.array(3.0), LEVELS, "values need at least one axis, got 3.0"),
        (np.array(["a"] * 8), LEVELS, "values must be real numbers"),
        (VALUES + 1j, LEVELS, "values must be real numbers, got an array of complex128"),
        (VALUES, np.full(8, 0.5), "singular: 1 different levels between 0.5 and 0.5 do not determine 4"),
        (VALUES, np.repeat([0.2, 0.5, 0.7], [3, 3, 2]), "singular: 3 different levels between 0.2 and 0.7"),
        (VALUES, 0.5 + 1e-7 * LEVELS, "singular: 8 different levels between 0.5 and 0.5"),
        (VALUES, np.repeat([0.0, 1e-6, 0.5, 0.9], 2), "singular: 3 different levels between 0 and 0.9"),
    ],
)
def test_bad_numbers_and_shapes(values, levels, message):
    with pytest.raises(ValueError, match=message):
        QEM(order=4).mean(values, levels)


def test_an_order_beyond_the_number_of_levels():
    with pytest.raises(ValueError, match="order 4 needs at least 4 levels, got 3"):
        QEM(order=4).mean(np.ones(3), midpoints(3))
    with pytest.raises(ValueError, match="order 4 needs at least 4 levels, got 3"):
        QEM(order=4).weights(midpoints(3))


def test_every_method_and_library_checks(library):
    bad, good = library.make([1.0, 2.0, np.nan, 4.0]), library.make(midpoints(4))
    for method in (QEM(2).mean, QEM(2).moments, QEM(2).coefficients, QEM(2).fit, EmpiricalMean().mean):
        with pytest.raises(ValueError, match="values must be finite, got nan at index 2"):
            method(bad, good)
    for estimator in (QEM(2), EmpiricalMean()):
        with pytest.raises(ValueError, match=r"levels must lie in \[0, 1\], got 2.0 at index 1"):
            estimator.weights(bad)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (np.full(7, 1 / 7), r"probs of shape \(7,\) for levels of shape \(8,\)"),
        (
            np.array([0.5, -0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
            "probs must be finite and positive, got -0.1 at index 1",
        ),
    ],
)
def test_bad_probabilities(probs, message):
    for estimator in (QEM(), EmpiricalMean()):
        with pytest.raises(ValueError, match=message):
            estimator.mean(VALUES, LEVELS, probs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QEM(order=0), "order must be between 1 and 6, got 0"),
        (lambda: QEM(order=7), "order must be between 1 and 6, got 7"),
        (lambda: QEM(order=True), "order must be a whole number, got True"),
        (lambda: ConstantVariance(0.0), "positive and finite, got 0.0"),
        (lambda: QEM(order=3, variance="auto"), "chooses order and basis, too: leave them out; got {'order': 3"),
        (lambda: QEM(variance="auto", basis="legendre"), "leave them out; got .*'legendre'"),
        (lambda: SpacingVariance(-0.5), "power must not be negative, got -0.5"),
        (lambda: TailVariance(-1.0), "positive and finite, got -1.0"),
        (lambda: TailVariance(1.5, tail=0.6), "at most 0.5, got tail=0.6"),
        (lambda: BandVariance(1.5, 0.6, 0.4), "low=0.6, high=0.4"),
        (lambda: BandVariance(float("inf"), 0.4, 0.6), "a variance must be finite, got inf"),
        (lambda: midpoints(0), "at least 1, got 0"),
        (lambda: crossing_rate([1.0]), "at least two quantiles, got 1"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": 2.5}, "order must be a whole number, got 2.5"),
        ({"basis": "fourier"}, "basis must be one of hermite, legendre; got 'fourier'"),
        ({"variance": 1.5}, "variance must be a function from levels to variances, got 1.5"),
    ],
)
def test_settings_of_the_wrong_type(settings, message):
    # The tests' own type checks would catch these first; users do not run with them.
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=message):
            QEM(**settings)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_a_variance_that_cannot_be_hashed():
    @dataclass
    class Loose:
        scale: float

        def __call__(self, levels):
            return self.scale + 0 * levels

    with pytest.raises(ValueError, match="Loose must be hashable"):
        QEM(variance=Loose(1.0))


def test_a_users_variance_that_is_not_positive():
    qem = QEM(variance=lambda levels: levels - 0.5)
    for values, levels in ((VALUES, LEVELS), (np.ones((2, 8)), np.tile(LEVELS, (2, 1)))):
        with pytest.raises(ValueError, match=r"variances must be positive and finite, got -0\.4375"):
            qem.mean(values, levels)


def test_inside_jit_shapes_are_checked_and_numbers_are_not():
    bad = jnp.asarray([1.0, jnp.nan, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert jnp.isnan(jax.jit(lambda values: QEM().mean(values, LEVELS))(bad))
    with pytest.raises(ValueError, match="8 values for 7 levels"):
        jax.jit(lambda values: QEM().mean(values, midpoints(7)))(bad)


def test_cached_weights_cannot_be_spoilt_by_a_caller():
    qem = QEM(order=3)
    before = qem.mean(VALUES, LEVELS)
    qem.weights(LEVELS)[...] = 0
    assert qem.mean(VALUES, LEVELS) == before


def test_weights_are_computed_once_for_fixed_levels():
    calls = []

    def variance(levels):
        calls.append(len(levels))
        return 1 + 0 * levels

    qem = QEM(variance=variance)
    for _ in range(3):
        qem.mean(VALUES, LEVELS)
        qem.moments(VALUES, LEVELS)
    jax.jit(lambda values: qem.mean(values, LEVELS))(jnp.ones((2, 8)))
    assert calls == [8]
