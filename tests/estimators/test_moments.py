"""Variance, skewness and kurtosis: against sampling the fitted curve, and against the distributions themselves."""

import numpy as np
import pytest
from scipy import special

from qemrl import DISTRIBUTIONS, QEM, EmpiricalMean, midpoints
from qemrl.estimators.basis import columns, norms, triple_products


@pytest.mark.parametrize("basis", ["hermite", "legendre"])
@pytest.mark.parametrize("order", range(1, 7))
def test_moments_are_those_of_the_fitted_curve(basis, order):
    rng = np.random.default_rng(order)
    levels, values = midpoints(24), rng.normal(size=24)  # crossing all over
    qem = QEM(order=order, basis=basis)
    moments = qem.moments(values, levels)
    if basis == "hermite":
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        curve = np.polynomial.hermite_e.hermeval(nodes, qem.coefficients(values, levels))
    else:
        nodes, weights = np.polynomial.legendre.leggauss(40)
        curve = np.polynomial.legendre.legval(nodes, qem.coefficients(values, levels))
    weights = weights / weights.sum()
    mean = weights @ curve
    second, third, fourth = (weights @ (curve - mean) ** k for k in (2, 3, 4))
    assert moments.mean == pytest.approx(mean, rel=1e-10)
    assert moments.variance == pytest.approx(second, rel=1e-9, abs=1e-20)
    if order > 1:
        assert moments.skewness == pytest.approx(third / second**1.5, rel=1e-8)
        assert moments.excess_kurtosis == pytest.approx(fourth / second**2 - 3, rel=1e-8)
    else:
        assert moments.skewness == moments.excess_kurtosis == 0


def test_the_papers_formulas_are_first_terms_only():
    # Exp(1) has variance 1, skewness 2, excess kurtosis 6. The paper reads c1 as σ and 24 c3 / c1 as kurtosis.
    levels = midpoints(200)
    values = -np.log1p(-levels)
    moments = QEM().moments(values, levels)
    c = QEM().coefficients(values, levels)
    assert c[1] ** 2 == pytest.approx(0.817, abs=0.002)
    assert 24 * c[3] / c[1] == pytest.approx(0.90, abs=0.02)
    assert moments.variance == pytest.approx(1, abs=0.005)
    assert moments.skewness == pytest.approx(2, abs=0.05)
    assert moments.excess_kurtosis == pytest.approx(6, abs=0.6)


@pytest.mark.parametrize("name", ["normal", "exponential", "gumbel", "log-normal", "student-t3"])
def test_the_variance_is_nearer_to_the_truth_than_that_of_32_quantiles(name):
    distribution, levels = DISTRIBUTIONS[name], midpoints(32)
    values = distribution.quantile(levels)
    fitted = QEM().moments(values, levels).variance
    plain = EmpiricalMean().moments(values, levels).variance
    assert abs(fitted - distribution.std**2) < abs(plain - distribution.std**2)


def test_moments_of_the_plain_mean_are_sample_moments():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    moments = EmpiricalMean().moments(values, midpoints(4))
    centered = values - 4
    assert moments.mean == 4
    assert moments.variance == pytest.approx((centered**2).mean())
    assert moments.skewness == pytest.approx((centered**3).mean() / (centered**2).mean() ** 1.5)
    assert moments.excess_kurtosis == pytest.approx((centered**4).mean() / (centered**2).mean() ** 2 - 3)
    weighted = EmpiricalMean().moments(values, midpoints(4), probs=np.array([0.5, 0.5, 1e-12, 1e-12]))
    assert weighted.variance == pytest.approx(0.25, rel=1e-6)


def test_equal_quantiles_have_no_spread_and_no_shape():
    for estimator in (QEM(), EmpiricalMean()):
        moments = estimator.moments(np.full((2, 8), 3.0), np.tile(midpoints(8), (2, 1)))
        np.testing.assert_allclose(moments.mean, 3)
        np.testing.assert_allclose(moments.variance, 0, atol=1e-25)
        assert np.isfinite(moments.skewness).all()


@pytest.mark.parametrize("basis", ["hermite", "legendre"])
def test_columns_are_orthonormal_and_in_the_families_scale(basis):
    levels = (np.arange(200_000) + 0.5) / 200_000
    table = np.stack(columns(basis, levels, 4))
    np.testing.assert_allclose(table @ table.T / levels.size, np.eye(4), atol=1e-2)  # clipped at 1e-5
    x = special.ndtri(levels[::997].clip(1e-5, 1 - 1e-5)) if basis == "hermite" else 2 * levels[::997] - 1
    family = np.polynomial.hermite_e.hermevander if basis == "hermite" else np.polynomial.legendre.legvander
    scaled = np.stack(columns(basis, levels[::997], 7)) * norms(basis, 7)[:, None]
    np.testing.assert_allclose(scaled, family(x, 6).T, atol=1e-3, rtol=1e-6)


@pytest.mark.parametrize("basis", ["hermite", "legendre"])
def test_products_of_columns_are_combinations_of_columns(basis):
    levels = midpoints(11)
    table = np.stack(columns(basis, levels, 11))
    products = np.einsum("kij,kn->ijn", triple_products(basis, 6), table)
    np.testing.assert_allclose(products, table[:6, None] * table[None, :6], atol=1e-10)
