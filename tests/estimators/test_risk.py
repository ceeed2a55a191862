"""Risk measures: closed forms, brute force, and what holds for every one of them."""

import math
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special

from qemrl import (
    CPW,
    QEM,
    CVaR,
    EmpiricalMean,
    Estimator,
    MeanStd,
    ResidualVariance,
    Statistic,
    VaR,
    Wang,
    cumulative_levels,
    midpoints,
)

LINEAR = {
    "CVaR": CVaR(0.25),
    "CVaR 0.03": CVaR(0.03),
    "VaR": VaR(0.25),
    "Wang": Wang(-0.75),
    "Wang, seeking": Wang(1.5),
    "CPW": CPW(0.71),
    "CPW 0.3": CPW(0.3),
}
MEASURES = {**LINEAR, "mean-std": MeanStd(1.0), "mean-std, seeking": MeanStd(-0.5)}
KINDS = {name: MEASURES[name] for name in ("CVaR", "VaR", "Wang", "CPW", "mean-std")}
NEUTRAL = [CVaR(1.0), Wang(0.0), CPW(1.0), MeanStd(0.0)]
DISTORTIONS = [CVaR(0.25), CVaR(0.03), CVaR(1.0), Wang(-0.75), Wang(1.5), CPW(0.71), CPW(0.3), CPW(1.0)]

measures = st.one_of(
    st.builds(CVaR, st.floats(0.01, 1.0)),
    st.builds(VaR, st.floats(0.01, 1.0)),
    st.builds(Wang, st.floats(-3.0, 3.0)),
    st.builds(CPW, st.floats(0.3, 1.0)),
    st.builds(MeanStd, st.floats(-2.0, 2.0)),
)
seeds = st.integers(0, 2**32 - 1)


def beta(measure: CVaR | Wang | CPW, u: Any) -> Any:
    """IQN's map of sampled levels, straight from the paper."""
    if isinstance(measure, CVaR):
        return measure.level * u
    if isinstance(measure, Wang):
        return special.ndtr(special.ndtri(u) + measure.shift)
    power = u**measure.exponent
    return power / (power + (1 - u) ** measure.exponent) ** (1 / measure.exponent)


def data(seed: int, shape: tuple[int, ...] = (5, 3, 16)) -> tuple[np.ndarray, np.ndarray]:
    """Values in no order, some of them crossing, and random levels in no order."""
    rng = np.random.default_rng(seed)
    levels = rng.random(shape)
    return 2 * special.ndtri(levels) + rng.normal(size=shape), levels


# --- Closed forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.05, 0.25, 0.5, 1.0])
def test_cvar_of_the_normal_and_the_uniform_distribution(level):
    levels = midpoints(20_000)
    expected = -math.exp(-(special.ndtri(level) ** 2) / 2) / math.sqrt(2 * math.pi) / level
    assert CVaR(level).mean(special.ndtri(levels), levels) == pytest.approx(expected, abs=1e-3)
    assert CVaR(level).mean(levels, levels) == pytest.approx(level / 2, abs=1e-12)


@pytest.mark.parametrize("level", [0.05, 0.25, 0.5, 0.9])
def test_var_of_the_normal_and_the_uniform_distribution(level):
    levels = midpoints(2_000)
    assert VaR(level).mean(special.ndtri(levels), levels) == pytest.approx(special.ndtri(level), abs=1e-5)
    assert VaR(level).mean(levels, levels) == pytest.approx(level, abs=1e-12)


@pytest.mark.parametrize("shift", [-1.5, -0.75, 0.0, 0.4])
def test_wang_shifts_the_mean_of_a_normal_distribution_by_as_many_standard_deviations(shift):
    levels = midpoints(20_000)
    values = 3 + 2 * special.ndtri(levels)
    assert Wang(shift).mean(values, levels) == pytest.approx(3 + 2 * shift, abs=3e-3)


@pytest.mark.parametrize("measure", DISTORTIONS, ids=repr)
def test_a_distortion_is_the_expectation_over_mapped_levels(measure):
    """E[q(β(u))] by quadrature, for the skewed q(τ) = τ³."""
    levels = midpoints(20_000)
    expected, _ = integrate.quad(lambda u: beta(measure, u) ** 3, 0, 1, epsabs=1e-10, limit=200)
    assert measure.mean(levels**3, levels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("exponent", [0.3, 0.31, 0.4, 0.499, 0.5, 0.71, 0.95, 1.0])
def test_the_inverse_of_cpw_is_exact(exponent):
    """The weight of the first of two values is g at the end of its cell."""
    measure = CPW(exponent)
    for end in (1e-6, 0.01, 0.2, 0.5, 0.77, 0.99, 1 - 1e-6):
        g = measure.weights([end / 2, (1 + end) / 2], probs=[end, 1 - end])[0, 0]
        root = optimize.brentq(lambda u, end=end: beta(measure, u) - end, 0, 1, xtol=1e-15)
        assert g == pytest.approx(root, abs=1e-12)


def test_cpw_makes_rare_returns_count_less():
    weights = CPW(0.71).weights(midpoints(100))[0]
    assert weights[0] < 0.005
    assert weights[-1] < 0.005
    assert weights[30:60].min() > 0.01


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0])
def test_mean_less_standard_deviations(penalty):
    values, levels = data(0)
    np.testing.assert_allclose(
        MeanStd(penalty).mean(values, levels), values.mean(-1) - penalty * values.std(-1), rtol=1e-12
    )
    assert MeanStd(penalty).mean([0.0, 1.0], [0.1, 0.6], probs=[0.2, 0.8]) == pytest.approx(0.8 - penalty * 0.4)


# --- By hand ---------------------------------------------------------------------------------------------------


def test_cvar_by_hand():
    values, levels = np.array([1.0, 2.0, 4.0, 8.0]), midpoints(4)
    assert CVaR(0.25).mean(values, levels) == 1
    assert CVaR(0.5).mean(values, levels) == 1.5
    assert CVaR(0.1).mean(values, levels) == 1
    assert CVaR(0.375).mean(values, levels) == pytest.approx((1 + 2 / 2) / 1.5)


def test_cvar_of_scattered_levels_by_hand():
    # Sorted: 0.1, 0.3, 0.9 with the values 5, 7, 6; cells end at 0.2 and 0.6.
    np.testing.assert_allclose(CVaR(0.5).weights([0.9, 0.1, 0.3]), [[0, 0.4, 0.6]], atol=1e-15)
    assert CVaR(0.5).mean([6.0, 5.0, 7.0], [0.9, 0.1, 0.3]) == pytest.approx(0.4 * 5 + 0.6 * 7)


def test_probabilities_are_the_widths_of_cells_by_hand():
    levels, probs = [0.95, 0.05, 0.5], [0.1, 0.1, 0.8]
    np.testing.assert_allclose(CVaR(0.5).weights(levels, probs), [[0, 0.2, 0.8]], atol=1e-15)
    np.testing.assert_allclose(CVaR(0.5).weights(levels, [1, 1, 8]), [[0, 0.2, 0.8]], atol=1e-15)
    shift = Wang(-1.0).weights(levels, probs)[0]
    first, second = special.ndtr(special.ndtri([0.1, 0.9]) + 1)
    np.testing.assert_allclose(shift, [1 - second, first, second - first], atol=1e-14)


@pytest.mark.parametrize(
    ("level", "expected"), [(0.05, 5), (0.1, 5), (0.2, 6), (0.3, 7), (0.6, 6.5), (0.9, 6), (0.95, 6), (1.0, 6)]
)
def test_var_by_hand_interpolates_between_neighbors_even_if_values_cross(level, expected):
    assert VaR(level).mean([6.0, 5.0, 7.0], [0.9, 0.1, 0.3]) == pytest.approx(expected)


@pytest.mark.parametrize("level", [0.2, 0.5, 0.7])
def test_var_of_levels_that_coincide_is_one_of_the_values_or_between(level):
    result = VaR(level).mean(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.5, 0.5, 0.5, 0.5]]))
    assert 1 <= result[0] <= 4


def test_var_is_numpys_interpolation():
    values, levels = data(4, (50, 9))
    for level in (0.02, 0.25, 0.61):
        expected = []
        for row, at in zip(values, levels, strict=True):
            order = np.argsort(at)
            expected.append(np.interp(level, at[order], row[order]))
        np.testing.assert_allclose(VaR(level).mean(values, levels), expected, atol=1e-12)


@pytest.mark.parametrize("measure", DISTORTIONS, ids=repr)
def test_weights_are_the_chances_that_a_mapped_level_falls_into_the_cell(measure):
    levels = np.array([0.31, 0.05, 0.72, 0.5])
    ends = np.array([0, 0.18, 0.405, 0.61, 1.0])
    cells = np.digitize(beta(measure, midpoints(200_000)), ends[1:-1])
    chances = np.bincount(cells, minlength=4) / 200_000
    np.testing.assert_allclose(measure.weights(levels)[0], chances[[1, 0, 3, 2]], atol=1e-5)


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_one_value_is_its_own_risk(measure):
    assert measure.mean([3.0], [0.5]) == 3
    np.testing.assert_array_equal(measure.mean(np.full((2, 1), 3.0), np.full((2, 1), 0.2)), [3, 3])


# --- What holds for all ----------------------------------------------------------------------------------------


@given(st.sampled_from(list(LINEAR.values())), st.integers(1, 40), seeds, st.booleans())
def test_weights_add_up_to_one_and_are_never_negative(measure, count, seed, with_probs):
    rng = np.random.default_rng(seed)
    for shape in ((count,), (3, count)):
        levels, probs = rng.random(shape), rng.random(shape) + 0.01 if with_probs else None
        weights = measure.weights(levels, probs)
        assert weights.shape == (*shape[:-1], 1, count)
        assert weights.min() >= 0
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-12)
        values = rng.normal(size=shape)
        np.testing.assert_allclose(measure.mean(values, levels, probs), (weights[..., 0, :] * values).sum(-1))


@pytest.mark.parametrize("measure", NEUTRAL, ids=repr)
def test_neutral_parameters_give_the_plain_mean(measure):
    values, _ = data(1)
    np.testing.assert_allclose(measure.mean(values, midpoints(16)), values.mean(-1), rtol=1e-12, atol=1e-12)
    levels, probs = cumulative_levels(np.random.default_rng(0), (5, 3, 16))
    np.testing.assert_allclose(
        measure.mean(values, levels, probs), EmpiricalMean().mean(values, levels, probs), rtol=1e-12, atol=1e-12
    )


@given(measures, st.integers(1, 30), seeds, st.booleans())
def test_the_order_of_values_does_not_matter(measure, count, seed, with_probs):
    values, levels = data(seed, (3, count))
    rng = np.random.default_rng(seed)
    probs = rng.random((3, count)) + 0.01 if with_probs else np.ones((3, count))
    shuffle = rng.permutation(count)
    np.testing.assert_allclose(
        measure.mean(values[:, shuffle], levels[:, shuffle], probs[:, shuffle]),
        measure.mean(values, levels, probs),
        atol=1e-9,
    )


@given(measures, st.integers(1, 30), seeds, st.floats(-1e3, 1e3), st.floats(0.01, 1e3), st.booleans())
def test_shifting_and_scaling_returns_does_so_to_the_risk(measure, count, seed, shift, scale, sampled):
    values, levels = data(seed, (3, count))
    levels = levels if sampled else levels[0]
    expected = shift + scale * measure.mean(values, levels)
    np.testing.assert_allclose(
        measure.mean(shift + scale * values, levels), expected, atol=1e-10 * (abs(shift) + 10 * scale)
    )


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(-3.0, 0.0), st.integers(1, 30), seeds)
def test_cautious_measures_are_at_most_the_mean_and_fall_with_caution(one, other, shift, count, seed):
    values, levels = np.sort(data(seed, (3, count))[0], axis=-1), midpoints(count)
    mean = values.mean(-1) + 1e-10
    low, high = sorted((one, other))
    assert (CVaR(low).mean(values, levels) <= CVaR(high).mean(values, levels) + 1e-10).all()
    for measure in (CVaR(one), Wang(shift), MeanStd(-shift)):
        assert (measure.mean(values, levels) <= mean).all()
    assert (Wang(-shift).mean(values, levels) >= mean - 2e-10).all()


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_a_risk_measure_is_a_statistic_and_no_estimator(measure):
    assert isinstance(measure, Statistic)
    assert not isinstance(measure, Estimator)
    assert isinstance(QEM(), Statistic)
    assert measure == type(measure)(*vars(measure).values())
    assert hash(measure) == hash(type(measure)(*vars(measure).values()))


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_a_risk_measure_requires_a_distribution_of_one_value_or_more(measure):
    assert (measure.requires, measure.min_quantiles, measure.needs) == ("distribution", 1, ())


def test_estimators_say_what_they_need_and_require():
    mean, qem, residuals = EmpiricalMean(), QEM(order=3), QEM(order=5, variance=ResidualVariance())
    assert (mean.requires, mean.min_quantiles, mean.needs) == ("mean", 1, ())
    assert (qem.requires, qem.min_quantiles, qem.needs) == ("quantiles", 3, ())
    assert (residuals.min_quantiles, residuals.needs) == (5, ("innovations", "curvature"))
    for statistic in (mean, qem, CVaR(), MeanStd()):
        assert not {"requires", "min_quantiles", "needs"} & {field.name for field in fields(statistic)}


# --- Libraries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("shape", "dtype", "tolerance"),
    [
        ("fixed", "float64", 1e-11),
        ("sampled", "float64", 1e-11),
        ("probs", "float64", 1e-11),
        ("shared", "float32", 1e-5),
    ],
)
def test_all_libraries_agree_and_keep_kind_and_dtype(library, measure, dtype, tolerance, shape):
    values, levels = data(2)
    probs = None
    if shape == "probs":
        levels, probs = cumulative_levels(np.random.default_rng(3), (5, 3, 16))
        probs = probs.astype(dtype)
    levels = {"fixed": midpoints(16), "shared": levels[:, :1]}.get(shape, levels).astype(dtype)
    values = values.astype(dtype)
    reference = measure.mean(*(None if x is None else x.astype(np.float64) for x in (values, levels, probs)))
    arrays = [None if x is None else library.make(x, dtype) for x in (values, levels, probs)]
    result = measure.mean(*arrays)
    assert isinstance(result, library.kind)
    assert str(result.dtype).removeprefix("torch.") == dtype
    assert tuple(result.shape) == (5, 3)
    np.testing.assert_allclose(library.read(result), reference, atol=tolerance * 5)
    if shape != "probs":
        from_numpy = measure.mean(arrays[0], levels)
        assert isinstance(from_numpy, library.kind)
        np.testing.assert_allclose(library.read(from_numpy), reference, atol=tolerance * 5)
    if not isinstance(measure, MeanStd):
        weights = measure.weights(arrays[1], arrays[2])
        assert isinstance(weights, library.kind)
        assert str(weights.dtype).removeprefix("torch.") == dtype


@pytest.mark.parametrize("measure", KINDS.values(), ids=KINDS)
def test_levels_at_the_ends_and_levels_that_coincide_stay_finite(library, measure):
    sets = np.array([[0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5], [0.0, 1e-30, 1 - 1e-16, 1.0]])
    levels = np.broadcast_to(np.repeat(sets, 4, axis=-1)[:, None], (3, 5, 16)).swapaxes(0, 1)
    values = np.broadcast_to(np.repeat([1.0, 1.0, 2.0, 2.0], 4), (5, 3, 16))
    result = library.read(measure.mean(library.make(values), library.make(levels)))
    assert np.isfinite(result).all()
    if not isinstance(measure, MeanStd):
        assert ((result >= 1 - 1e-12) & (result <= 2 + 1e-12)).all()


@pytest.mark.parametrize("measure", KINDS.values(), ids=KINDS)
def test_half_precision_is_summed_in_single(measure):
    values, levels = 1000 * np.linspace(0.0, 1.0, 64) ** 2, midpoints(64)
    expected = float(measure.mean(values, levels))
    for half in (jnp.asarray(values, jnp.float16), torch.tensor(values, dtype=torch.float16)):
        result = measure.mean(half, levels)
        assert result.dtype == half.dtype
        assert float(result) == pytest.approx(expected, rel=2e-3, abs=1)


def test_a_large_q_keeps_its_digits_with_sampled_levels_in_single_precision():
    values, levels = data(5)
    for measure in LINEAR.values():
        far = measure.mean(torch.tensor(1e4 + values, dtype=torch.float32), torch.tensor(levels, dtype=torch.float32))
        np.testing.assert_allclose(far, 1e4 + measure.mean(values, levels), rtol=0, atol=3e-3)


# --- JAX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", KINDS.values(), ids=KINDS)
def test_jit_with_sampled_and_with_numpy_levels_and_gradients(measure):
    values, levels = data(6)
    single, sampled = jnp.asarray(values, jnp.float32), jnp.asarray(levels, jnp.float32)

    def both(values, levels):
        mean = measure.mean(values, levels)
        return mean.sum(), (mean, measure.mean(values, midpoints(16)))

    program = jax.jit(jax.grad(both, has_aux=True))
    gradient, (mean, fixed) = program(single, sampled)
    np.testing.assert_allclose(mean, measure.mean(values, levels), atol=5e-5)
    np.testing.assert_allclose(fixed, measure.mean(values, midpoints(16)), atol=5e-5)
    np.testing.assert_allclose(gradient.sum(-1), 1, atol=1e-5)
    if not isinstance(measure, MeanStd):
        np.testing.assert_allclose(gradient, measure.weights(levels)[..., 0, :], atol=1e-5)
    equal, _ = program(jnp.ones_like(single), sampled)
    assert jnp.isfinite(equal).all()
    np.testing.assert_allclose(equal.sum(-1), 1, atol=1e-5)
    ends, (mean, _) = program(single, jnp.round(sampled))
    assert jnp.isfinite(ends).all()
    assert jnp.isfinite(mean).all()


def test_vmap_agrees():
    values, levels = data(6)
    single, sampled = jnp.asarray(values, jnp.float32), jnp.asarray(levels, jnp.float32)
    mapped = jax.jit(jax.vmap(CPW().mean))(single, sampled)
    np.testing.assert_allclose(mapped, CPW().mean(values, levels), atol=5e-5)


@pytest.mark.parametrize("measure", LINEAR.values(), ids=LINEAR)
def test_fixed_levels_compile_to_one_dot_product(measure):
    program = jax.make_jaxpr(lambda values: measure.mean(values, midpoints(16)))(jnp.ones((5, 3, 16)))
    assert [equation.primitive.name for equation in program.eqns] == ["dot_general"]


@pytest.mark.parametrize("measure", [Wang(-0.75), CPW(0.3)], ids=repr)
def test_gradients_by_level_are_right(measure):
    values, levels = data(8, (1, 6))
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda values, levels: measure.mean(values, levels).sum(), argnums=1))
        gradient = slope(jnp.asarray(values), jnp.asarray(levels))
    for i in range(6):
        step = 1e-6 * (np.arange(6) == i)
        difference = measure.mean(values, levels + step) - measure.mean(values, levels - step)
        np.testing.assert_allclose(gradient[0, i], difference[0] / 2e-6, rtol=1e-5, atol=1e-8)


def test_gradients_in_torch():
    values, levels = data(9, (4, 8))
    for measure in MEASURES.values():
        followed = torch.tensor(values, requires_grad=True)
        measure.mean(followed, torch.tensor(levels)).sum().backward()
        assert followed.grad is not None
        np.testing.assert_allclose(followed.grad.sum(-1).numpy(), 1, atol=1e-9)
    equal = torch.ones(3, 8, requires_grad=True)
    MeanStd().mean(equal, midpoints(8)).sum().backward()
    assert equal.grad is not None
    assert torch.isfinite(equal.grad).all()


# --- Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CVaR(0.0), r"level must be above 0 and at most 1, got 0\.0"),
        (lambda: CVaR(1.5), r"level must be above 0 and at most 1, got 1\.5"),
        (lambda: CVaR(math.nan), "level must be finite, got nan"),
        (lambda: VaR(-0.1), r"level must be above 0 and at most 1, got -0\.1"),
        (lambda: Wang(math.inf), "shift must be finite, got inf"),
        (lambda: Wang(math.nan), "shift must be finite, got nan"),
        (lambda: CPW(0.29), r"exponent must be from 0\.3 to 1 .* got 0\.29"),
        (lambda: CPW(1.1), r"exponent must be from 0\.3 to 1 .* got 1\.1"),
        (lambda: CPW(math.nan), "exponent must be finite, got nan"),
        (lambda: MeanStd(math.inf), "penalty must be finite, got inf"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_smallest_exponent_leaves_cpw_increasing_and_a_smaller_one_does_not():
    u = midpoints(100_000)
    assert np.diff(beta(CPW(0.3), u)).min() > 0
    power = u**0.27
    assert np.diff(power / (power + (1 - u) ** 0.27) ** (1 / 0.27)).min() < 0


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(
    ("values", "levels", "probs", "message"),
    [
        ([1.0, np.nan], [0.2, 0.7], None, "values must be finite, got nan at index 1"),
        ([1.0, 2.0], [0.2, 1.7], None, r"levels must lie in \[0, 1\], got 1\.7 at index 1"),
        ([1.0, 2.0], [0.2], None, r"2 values for 1 levels"),
        ([1.0, 2.0], [[0.2, 0.7]], None, r"levels of shape \(1, 2\) do not fit values of shape \(2,\)"),
        ([1.0, 2.0], [0.2, 0.7], [0.5, 0.0], r"probs must be finite and positive, got 0\.0 at index 1"),
        ([1.0, 2.0], [0.2, 0.7], [1.0], r"probs of shape \(1,\) for levels of shape \(2,\)"),
        (["a", "b"], [0.2, 0.7], None, "values must be real numbers"),
        (1.0, [0.5], None, "values need at least one axis"),
    ],
)
def test_bad_numbers_and_shapes(measure, values, levels, probs, message):
    with pytest.raises(ValueError, match=message):
        measure.mean(values, levels, probs)


def test_cached_weights_cannot_be_spoilt_by_a_caller():
    values, levels = np.arange(8.0), midpoints(8)
    before = CVaR(0.4).mean(values, levels)
    CVaR(0.4).weights(levels)[...] = 0
    assert CVaR(0.4).mean(values, levels) == before
