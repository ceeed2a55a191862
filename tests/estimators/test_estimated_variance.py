"""Models of V that is estimated: hand-computed cases, generalized least squares, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from qemrl import DISTRIBUTIONS, QEM, SampleQuantileNoise, SGDNoise, TailVariance, midpoints
from qemrl.estimators import (
    CountedVariance,
    DecayingVariance,
    EstimatedVariance,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
    VarianceInputs,
)
from qemrl.estimators.estimated_variance import FLOOR, shrink, shrink_matrix, slope

RNG = np.random.default_rng(7)
LEVELS = midpoints(8)
VALUES = np.sort(RNG.normal(size=(5, 3, 8)), axis=-1)
SLOW = VALUES + 0.1 * RNG.normal(size=VALUES.shape)
MOVES = RNG.normal(size=(5, 3, 40, 8))
MODELS: list[EstimatedVariance] = [
    DecayingVariance(),
    CountedVariance(),
    SparsityVariance(),
    SparsityVariance(power=1),
    SparsityVariance(source="twin"),
    SparsityVariance(full=True),
    SparsityVariance(power=1, full=True),
    HeadsVariance(),
    HeadsVariance(full=True),
    ResidualVariance(),
    ResidualVariance(full=True),
]


def evidence_for(model: EstimatedVariance) -> VarianceInputs:
    products = MOVES.swapaxes(-1, -2) @ MOVES / MOVES.shape[-2]
    return VarianceInputs(
        step=5_000,
        visits=np.arange(15.0).reshape(5, 3),
        ema=SLOW,
        twin=SLOW[::-1].copy(),
        heads=np.stack([VALUES, SLOW, SLOW[::-1]], axis=-2),
        innovations=products if model.full else np.einsum("...ii->...i", products),
        curvature=0.2 + np.abs(SLOW),
    )


def explicit_weights(order: int, covariance: np.ndarray) -> np.ndarray:
    """The first row of (X'V⁻¹X)⁻¹X'V⁻¹ for one covariance, straight from the formula."""
    z = np.array([float(q) for q in DISTRIBUTIONS["normal"].quantile(LEVELS)])
    design = np.stack([np.ones_like(z), z, z**2 - 1, z**3 - 3 * z], axis=-1)[:, :order]
    inverse = np.linalg.inv(covariance)
    return (np.linalg.inv(design.T @ inverse @ design) @ design.T @ inverse)[0]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("order", [2, 4])
def test_estimates_are_those_of_the_formula(model: EstimatedVariance, order: int):
    qem, variance_inputs = QEM(order, model), evidence_for(model)
    found = np.broadcast_to(model.estimate(LEVELS, variance_inputs), (5, 3, 8, 8) if model.full else (5, 3, 8))
    means = qem.mean(VALUES, LEVELS, None, variance_inputs)
    for place in np.ndindex(5, 3):
        v = found[place] if model.full else np.diag(found[place])
        np.testing.assert_allclose(means[place], explicit_weights(order, v) @ VALUES[place], rtol=1e-7)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_all_libraries_agree(model: EstimatedVariance):
    qem, variance_inputs = QEM(3, model), evidence_for(model)
    expected = qem.mean(VALUES, LEVELS, None, variance_inputs)
    narrow = VarianceInputs(*(jnp.asarray(each, jnp.float32) for each in variance_inputs))
    compiled = jax.jit(lambda values, known: qem.mean(values, LEVELS, None, known))
    np.testing.assert_allclose(compiled(jnp.asarray(VALUES, jnp.float32), narrow), expected, atol=2e-5)
    tensors = VarianceInputs(*(torch.tensor(each) for each in variance_inputs))
    np.testing.assert_allclose(qem.mean(torch.tensor(VALUES), LEVELS, None, tensors).numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_all_faces_of_qem_use_the_same_weights(model: EstimatedVariance):
    qem, variance_inputs = QEM(4, model), evidence_for(model)
    weights = np.broadcast_to(qem.weights(LEVELS, None, variance_inputs), (5, 3, 4, 8))
    coefficients = np.einsum("...kn,...n->...k", weights, VALUES)
    np.testing.assert_allclose(qem.coefficients(VALUES, LEVELS, None, variance_inputs), coefficients, atol=1e-9)
    np.testing.assert_allclose(qem.moments(VALUES, LEVELS, None, variance_inputs).mean, coefficients[..., 0], atol=1e-9)
    z = np.asarray(DISTRIBUTIONS["normal"].quantile(LEVELS))
    design = np.stack([np.ones_like(z), z, z**2 - 1, z**3 - 3 * z])
    np.testing.assert_allclose(qem.fit(VALUES, LEVELS, None, variance_inputs), coefficients @ design, atol=1e-8)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_random_levels_in_any_order(model: EstimatedVariance):
    levels, order = RNG.random((5, 1, 8)), np.array([3, 1, 7, 0, 2, 6, 5, 4])
    qem, variance_inputs = QEM(2, model), evidence_for(model)

    def turned(field: np.ndarray | int | None, axes: int) -> np.ndarray | int | None:
        assert isinstance(field, np.ndarray)
        for axis in range(-axes, 0):
            field = np.take(field, order, axis)
        return field

    other = variance_inputs._replace(
        ema=turned(variance_inputs.ema, 1),
        twin=turned(variance_inputs.twin, 1),
        heads=turned(variance_inputs.heads, 1),
        innovations=turned(variance_inputs.innovations, 2 if model.full else 1),
        curvature=turned(variance_inputs.curvature, 1),
    )
    found = qem.mean(VALUES[..., order], levels[..., order], None, other)
    np.testing.assert_allclose(found, qem.mean(VALUES, levels, None, variance_inputs), rtol=1e-6)


def test_decay_by_hand():
    model = DecayingVariance(TailVariance(3.0), over_steps=100)
    np.testing.assert_allclose(model.estimate(midpoints(10), VarianceInputs(step=0))[:2], [3, 1])
    np.testing.assert_allclose(model.estimate(midpoints(10), VarianceInputs(step=100))[:2], [2, 1])
    np.testing.assert_allclose(model.estimate(midpoints(10), VarianceInputs(step=300))[:2], [1.5, 1])
    fast = DecayingVariance(TailVariance(3.0), over_steps=100, power=2.0)
    np.testing.assert_allclose(fast.estimate(midpoints(10), VarianceInputs(step=100))[0], 1.5)


def test_counts_by_hand():
    model = CountedVariance(TailVariance(3.0))
    found = model.estimate(midpoints(10), VarianceInputs(visits=np.array([0.0, 3.0, 99.0])))
    np.testing.assert_allclose(found[:, 0], [3, 2, 1.2])
    np.testing.assert_allclose(found[:, 1], 1)


def test_slope_by_hand():
    levels, values = np.array([0.1, 0.3, 0.4, 0.8]), np.array([1.0, 2.0, 4.0, 5.0])
    expected = [5, 3 / 0.3, 3 / 0.5, 2.5]
    np.testing.assert_allclose(slope(values, levels), expected)
    np.testing.assert_allclose(slope(values, levels, rising=True), expected)
    np.testing.assert_allclose(slope(-values, levels), expected)  # where quantiles cross, the size counts
    np.testing.assert_allclose(slope(values, levels, reach=2), [3 / 0.3, 4 / 0.7, 4 / 0.7, 3 / 0.5])
    turned = [2, 0, 3, 1]
    np.testing.assert_allclose(slope(values[turned], levels[turned]), np.array(expected)[turned])


def test_shrinkage_by_hand():
    np.testing.assert_allclose(shrink(np.array([1.0, 3.0]), 0.2), [0.6, 1.4], atol=2 * FLOOR)
    np.testing.assert_allclose(shrink(np.zeros(3), 0.2), 0.2, atol=2 * FLOOR)  # no scale: all alike
    matrix = shrink_matrix(np.array([[1.0, 1.0], [1.0, 3.0]]), 0.5)
    np.testing.assert_allclose(matrix, [[0.75, 0.25], [0.25, 1.25]], atol=2 * FLOOR)


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    found, truth = found / np.trace(found), truth / np.trace(truth)
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("name", ["normal", "exponential", "mixture"])
def test_the_slope_of_exact_quantiles_gives_the_covariance_of_learning(name: str):
    distribution, levels = DISTRIBUTIONS[name], midpoints(256)
    variance_inputs = VarianceInputs(ema=distribution.quantile(levels))
    sgd = SparsityVariance(power=1, shrinkage=0.0, full=True).estimate(levels, variance_inputs)
    assert relative(np.asarray(sgd), SGDNoise().covariance(distribution, levels)) < 0.1
    inner = slice(16, -16)  # the slope between neighbors is not that at the ends of heavy tails
    sample = np.asarray(SparsityVariance(shrinkage=0.0, full=True).estimate(levels, variance_inputs))[inner, inner]
    assert relative(sample, SampleQuantileNoise().covariance(distribution, levels)[inner, inner]) < 0.1


def test_a_diagonal_model_is_the_diagonal_of_the_full_one():
    for full, diagonal in (
        (SparsityVariance(full=True), SparsityVariance()),
        (SparsityVariance(power=1, full=True), SparsityVariance(power=1)),
        (HeadsVariance(full=True), HeadsVariance()),
        (ResidualVariance(full=True), ResidualVariance()),
    ):
        matrices = np.asarray(full.estimate(LEVELS, evidence_for(full)))
        diagonals = np.einsum("...ii->...i", matrices)
        np.testing.assert_allclose(diagonals, diagonal.estimate(LEVELS, evidence_for(diagonal)), rtol=1e-9)


def test_what_is_missing_is_named():
    with pytest.raises(
        ValueError, match=r"ResidualVariance estimates V from curvature: give variance_inputs=VarianceInputs\("
    ):
        QEM(2, ResidualVariance()).mean(VALUES, LEVELS, None, VarianceInputs(innovations=np.ones(8)))
    with pytest.raises(ValueError, match="ema"):
        QEM(2, SparsityVariance()).weights(LEVELS)
    with pytest.raises(ValueError, match="at least two"):
        QEM(2, HeadsVariance()).mean(VALUES, LEVELS, None, VarianceInputs(heads=VALUES[..., None, :]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparsityVariance(reach=0), "reach"),
        (lambda: SparsityVariance(shrinkage=1.5), "shrinkage"),
        (lambda: HeadsVariance(shrinkage=-0.1), "shrinkage"),
        (lambda: ResidualVariance(shrinkage=2.0), "shrinkage"),
        (lambda: DecayingVariance(over_steps=0), "over_steps"),
        (lambda: CountedVariance(power=0.0), "power"),
    ],
)
def test_bad_settings_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_without_evidence_variances_are_equal():
    assert QEM(3, HeadsVariance(), "legendre").with_fixed_variance == QEM(3, basis="legendre")
    assert QEM(3, TailVariance(2.0)).with_fixed_variance == QEM(3, TailVariance(2.0))
