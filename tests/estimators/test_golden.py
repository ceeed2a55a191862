"""Numbers computed independently of this code, and small cases done by hand."""

import numpy as np
import pytest
from scipy import special

from qemrl import QEM, BandVariance, ConstantVariance, EmpiricalMean, TailVariance, midpoints


def mirrored(half: list[float]) -> np.ndarray:
    return np.array(half + half[::-1])


def test_ordinary_weights_of_order_4_at_8_midpoints():
    weights = QEM(order=4).weights(midpoints(8))[0]
    np.testing.assert_allclose(weights, mirrored([0.158713, 0.123563, 0.111264, 0.106459]), atol=5e-7)


def test_tail_weights_of_order_4_at_8_midpoints():
    weights = QEM(order=4, variance=TailVariance(1.5, tail=0.1)).weights(midpoints(8))[0]
    np.testing.assert_allclose(weights, mirrored([0.153357, 0.140511, 0.109185, 0.096947]), atol=5e-7)


def test_tail_weights_of_order_2_at_8_midpoints_are_eleventh_parts():
    # Symmetric levels and V decouple the slope, so the mean is weighted by 1/v alone:
    # the shares are 2/3 : 1 with 2 tail points and 6 others, 1/11 and 3/22.
    weights = QEM(order=2, variance=TailVariance(1.5, tail=0.1)).weights(midpoints(8))[0]
    np.testing.assert_allclose(weights, mirrored([1 / 11, 3 / 22, 3 / 22, 3 / 22]), rtol=1e-14)


def test_the_papers_mujoco_weights():
    weights = 32 * QEM(order=4, variance=TailVariance(1.2)).weights(midpoints(32))[0]
    np.testing.assert_allclose(weights[:6], [1.120008, 0.993158, 0.937812, 1.083993, 1.054760, 1.032752], atol=5e-7)
    np.testing.assert_allclose(weights[15:17], 0.958333, atol=5e-7)


def test_the_papers_atari_weights_raise_the_outermost_quantiles():
    weights = 200 * QEM(order=4, variance=TailVariance(1.5)).weights(midpoints(200))[0]
    expected = {
        1: 1.283714,
        2: 1.125045,
        5: 0.971642,
        10: 0.872131,
        20: 0.782561,
        21: 1.164985,
        100: 0.970221,
    }
    for index, weight in expected.items():
        assert weights[index - 1] == pytest.approx(weight, abs=5e-7)


def test_the_papers_frozen_lake_band_holds_12_of_128_levels():
    variances = BandVariance(1.5, 0.45, 0.55)(midpoints(128))
    assert (variances == 1.5).sum() == 12
    assert (variances == 1.0).sum() == 116


def test_weights_are_the_textbook_formula():
    levels = np.array([0.03, 0.2, 0.33, 0.5, 0.71, 0.8, 0.99])
    variances = np.array([3.0, 1.0, 2.0, 1.0, 1.5, 1.0, 4.0])
    z = special.ndtri(levels)
    design = np.stack([np.ones_like(z), z, z**2 - 1, z**3 - 3 * z], axis=1)
    inverse = np.diag(1 / variances)
    expected = np.linalg.inv(design.T @ inverse @ design) @ design.T @ inverse
    table = dict(zip(levels, variances, strict=True))
    qem = QEM(order=4, variance=lambda levels: np.array([table[level] for level in levels]))
    np.testing.assert_allclose(qem.weights(levels), expected, rtol=1e-9)


def test_legendre_weights_of_order_3_by_hand():
    # Levels 0, 1/2, 1 are x = -1, 0, 1. The parabola through (y0, y1, y2) averages to (y0 + 4 y1 + y2) / 6
    # over [0, 1]: Simpson's rule. Clipping moves the outer levels by 1e-5.
    weights = QEM(order=3, basis="legendre").weights(np.array([0.0, 0.5, 1.0]))[0]
    np.testing.assert_allclose(weights, [1 / 6, 4 / 6, 1 / 6], atol=1e-4)


def test_orders_3_and_4_have_the_same_mean_on_symmetric_levels():
    for variance in (ConstantVariance(), TailVariance(1.5)):
        third, fourth = (QEM(order, variance).weights(midpoints(50))[0] for order in (3, 4))
        np.testing.assert_allclose(third, fourth, rtol=1e-11)


def test_the_papers_fifth_column_is_collinear():
    z = special.ndtri(midpoints(50))
    design = np.stack([np.ones_like(z), z, z**2 - 1, z**3 - 3 * z, -2 * z**3 + 5 * z], axis=1)
    assert np.linalg.matrix_rank(design) == 4
    np.testing.assert_allclose(design[:, 4], -2 * design[:, 3] - design[:, 1], atol=1e-12)


def test_coefficients_of_the_exponential_distribution():
    # E[q(τ) He_k(z)] / k! for q = -log(1 - τ): 1, 0.903, 0.297, 0.033
    levels = midpoints(20_000)
    coefficients = QEM(order=4).coefficients(-np.log1p(-levels), levels)
    np.testing.assert_allclose(coefficients, [1.0, 0.9032, 0.2977, 0.0336], atol=2e-4)


def test_the_plain_mean_weighs_all_quantiles_alike_or_by_their_probabilities():
    assert EmpiricalMean().mean([1.0, 2.0, 6.0], midpoints(3)) == 3.0
    assert EmpiricalMean().mean([1.0, 2.0, 6.0], midpoints(3), probs=[0.5, 0.25, 0.25]) == 2.5
    np.testing.assert_array_equal(EmpiricalMean().weights(midpoints(4)), np.full((1, 4), 0.25))
