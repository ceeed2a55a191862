"""Curves that rise by their form: against formulas in NumPy, inverses that SciPy finds, and integrals."""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import integrate, optimize

from qemrl.distributional.monotone import NonCrossingQuantiles, NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.representation import Representation
from qemrl.estimators import EmpiricalMean, midpoints
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.types import ReturnDist

KEY = jax.random.key(0)
NC, SPLINE, GROWING = NonCrossingQuantiles(7), SplineQuantiles(9, num_bins=4), NonDecreasingQuantiles(5, 6, 7, 3)
EXACT = replace(SPLINE, mean="exact")
K = SPLINE.num_bins
ONE = jnp.ones((1, 1))


def make_streams(features: int, outputs: int, key) -> ActionStreams:
    return ActionStreams(StreamConfig((), False, False), features, 2, outputs, key)


@partial(jax.jit, static_argnums=0)
def values_of(representation: NonCrossingQuantiles | SplineQuantiles, outputs: Any) -> Any:
    return representation.values(outputs)


@partial(jax.jit, static_argnums=(0, 3))
def predicted(representation: Representation, head: Any, features: Any, purpose: Any) -> ReturnDist:
    return representation.predict(head, features, purpose, KEY)


def head_of(outputs: np.ndarray) -> ActionStreams:
    """A head on one feature that gives `outputs` [actions, n] times the feature."""
    head = make_streams(1, outputs.shape[1], KEY)
    weight = jnp.asarray(outputs.reshape(-1, 1), jnp.float32)
    return eqx.tree_at(
        lambda each: (each.advantage.layers[0].weight, each.advantage.layers[0].bias), head, (weight, 0 * weight[:, 0])
    )


def assert_rises(values: Any) -> None:
    """Up to the rounding of float32 numbers of that size, of which there are some to be summed."""
    values = np.asarray(values, np.float64)
    assert np.isfinite(values).all()
    size = np.abs(values).max(axis=-1, keepdims=True)
    assert (np.diff(values, axis=-1) >= -8 * np.finfo(np.float32).eps * size).all()


def logits(count: int, largest: float = 1e4) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float32, (3, count), elements=st.floats(-largest, largest, width=32))


@given(logits(NC.num_outputs))
def test_quantiles_of_a_softmax_never_cross(outputs):
    assert_rises(values_of(NC, outputs))
    assert_rises(values_of(replace(NC, scale="relu"), outputs))


@given(logits(3 * K - 1), logits(2, 40.0))
def test_quantiles_of_a_spline_never_cross(shapes, places):
    """Up to α = exp(40), whose square float32 can hold."""
    assert_rises(values_of(SPLINE, np.concatenate([shapes, places], axis=-1)))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 100.0, 1e4]), st.sampled_from(["relu", "softplus"]))
def test_sums_of_increments_never_cross(seed, size, increment):
    rng = np.random.default_rng(seed)
    head = GROWING.make_head(make_streams, 4, KEY)
    head = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=size, size=leaf.shape), jnp.float32), head)
    features = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    representation = replace(GROWING, increment=increment)
    grid = predicted(representation, head, features, "report").values
    assert grid.shape == (3, 1, 2, 6)
    assert_rises(grid)
    drawn = predicted(representation, head, features, "target")
    order = np.argsort(drawn.levels, axis=-1)
    assert_rises(np.take_along_axis(np.asarray(drawn.values), np.broadcast_to(order, drawn.values.shape), -1))


@pytest.mark.parametrize("scale", ["softplus", "relu"])
def test_quantiles_that_cannot_cross_are_steps_of_a_softmax_between_two_ends(scale):
    outputs = np.random.default_rng(0).normal(scale=2, size=(5, 9))
    steps = np.exp(outputs[:, :7])
    spread = np.log1p(np.exp(outputs[:, 7])) if scale == "softplus" else np.maximum(outputs[:, 7], 0)
    share = np.cumsum(steps, 1) / steps.sum(1, keepdims=True)
    expected = spread[:, None] * share + outputs[:, 8:]
    np.testing.assert_allclose(values_of(replace(NC, scale=scale), outputs.astype(np.float32)), expected, atol=2e-6)
    assert len(np.unique(np.sign(outputs[:, 7]))) == 2


# The spline


def knots(outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    """Where the pieces of one curve begin and end, from 0 to 1 on both axes, the slopes there, α and β."""

    def shares(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max())
        return np.concatenate([[0], np.cumsum(1e-5 + (1 - 1e-5 * K) * e / e.sum())])

    inside = np.logaddexp(0, outputs[2 * K : 3 * K - 1]) + 1e-5
    slopes = np.concatenate([[1], inside, [1]])
    return shares(outputs[:K]), shares(outputs[K : 2 * K]), slopes, np.exp(outputs[-2]), outputs[-1]


def read(outputs: np.ndarray, level: float) -> float:
    """The rational-quadratic interpolation of Gregory and Delbourgo (1982), of the points (τ, β + α y)."""
    x, y, slopes, scale, shift = knots(outputs)
    k = min(int(np.searchsorted(x, level, side="right")) - 1, K - 1)
    rise, xi = scale * (y[k + 1] - y[k]), (level - x[k]) / (x[k + 1] - x[k])
    delta = rise / (x[k + 1] - x[k])
    above = rise * (delta * xi**2 + slopes[k] * xi * (1 - xi))
    return shift + scale * y[k] + above / (delta + (slopes[k + 1] + slopes[k] - 2 * delta) * xi * (1 - xi))


CURVES = np.random.default_rng(2).normal(scale=1.2, size=(6, SPLINE.num_outputs)).astype(np.float32)
"""Outputs for six curves; in float64 the network's numbers are those that NumPy gets."""


def wide(outputs: np.ndarray) -> np.ndarray:
    return np.asarray(outputs, np.float64)


def test_a_spline_is_the_rational_quadratic_formula():
    expected = [[read(row, level) for level in midpoints(9)] for row in wide(CURVES)]
    np.testing.assert_allclose(values_of(SPLINE, CURVES), expected, rtol=1e-5, atol=1e-5)
    with jax.enable_x64(True):
        np.testing.assert_allclose(values_of(SPLINE, wide(CURVES)), expected, rtol=1e-12, atol=1e-12)


def test_a_spline_turns_the_level_of_a_value_into_the_value():
    """The levels are found by bisection of the formula, for values between the curve's ends."""
    with jax.enable_x64(True):
        for row in wide(CURVES):
            _, _, _, scale, shift = knots(row)
            goals = shift + scale * np.linspace(0.02, 0.98, 9)
            roots: Any = [optimize.brentq(lambda t, y=y, r=row: read(r, t) - y, 0, 1, xtol=1e-14) for y in goals]
            levels = np.asarray(roots)
            assert (np.diff(levels) > 0).all()
            np.testing.assert_allclose(SPLINE._spline(jnp.asarray(row)).read(levels), goals, rtol=1e-11)


def test_a_spline_runs_from_shift_to_scale_plus_shift_with_slopes_of_one_at_both_ends():
    step = 1e-9
    with jax.enable_x64(True):
        curve = SPLINE._spline(jnp.asarray(wide(CURVES)))
        values = np.asarray(curve.read(np.array([0.0, step, 1 - step, 1.0])))
    np.testing.assert_allclose(values[:, 0], CURVES[:, -1], rtol=1e-12)
    np.testing.assert_allclose(values[:, 3], np.exp(wide(CURVES[:, -2])) + CURVES[:, -1], rtol=1e-12)
    np.testing.assert_allclose(np.diff(values, axis=1)[:, [0, 2]] / step, 1, atol=2e-5)


@pytest.mark.parametrize("representation", [NC, SPLINE], ids=["softmax", "spline"])
def test_a_softmax_is_over_the_pieces_of_one_action(representation):
    """What another action's outputs are does not matter."""
    rng = np.random.default_rng(4)
    outputs = rng.normal(size=(2, representation.num_outputs))
    other = np.stack([outputs[0], 10 * rng.normal(size=representation.num_outputs)])
    found = [np.asarray(predicted(representation, head_of(each), ONE, "act").values) for each in (outputs, other)]
    np.testing.assert_array_equal(found[0][0, 0, 0], found[1][0, 0, 0])
    assert np.abs(found[0][0, 0, 1] - found[1][0, 0, 1]).max() > 0.1
    alone = values_of(representation, outputs.astype(np.float32)[:, None])
    np.testing.assert_allclose(found[0][0, 0], alone[:, 0], rtol=1e-6)


def collapsed() -> np.ndarray:
    """Shapes of which some bins have no width, no height or slopes without bounds; α = e, β = −1."""
    rng = np.random.default_rng(5)
    shapes = [rng.choice([-1e4, -30.0, 0.0, 30.0, 1e4], size=(60, 3 * K - 1)), np.full((1, 3 * K - 1), -1e4)]
    shapes += [np.full((1, 3 * K - 1), 1e4), np.tile([1e4] + [0] * (K - 1), 3)[None, :-1]]
    rows = np.concatenate(shapes)
    return np.concatenate([rows, np.full((len(rows), 1), 1.0), np.full((len(rows), 1), -1.0)], 1).astype(np.float32)


@partial(jax.jit, static_argnums=0)
def value_and_gradient(function: Any, outputs: Any) -> Any:
    values, pull = jax.vjp(function, outputs)
    return values, pull(jnp.ones_like(values))[0]


def exact_means(outputs: Any) -> Any:
    curve = SPLINE._spline(outputs)
    return jnp.sum(curve.width * curve.means(), axis=-1)


@pytest.mark.parametrize("function", [SPLINE.values, exact_means], ids=["read", "mean"])
def test_bins_that_collapse_give_finite_values_and_gradients(function):
    values, gradient = value_and_gradient(function, collapsed())
    assert np.isfinite(np.asarray(values)).all()
    assert np.isfinite(np.asarray(gradient)).all()
    assert np.min(values) >= -1 - 1e-5
    assert np.max(values) <= np.e - 1 + 1e-5


def test_the_mean_of_a_spline_is_its_integral():
    """By quadrature of the formula from knot to knot, and of collapsed curves on a fine grid."""
    expected = [integrate.quad(partial(read, row), 0, 1, points=knots(row)[0][1:-1])[0] for row in wide(CURVES)]
    np.testing.assert_allclose(value_and_gradient(exact_means, CURVES)[0], expected, rtol=2e-6, atol=2e-6)
    outputs = collapsed()[:8]
    found = value_and_gradient(exact_means, collapsed())[0]
    for row, mean in zip(wide(outputs), found, strict=False):
        x = knots(row)[0]
        pieces = [integrate.quad(partial(read, row), *ends, limit=200)[0] for ends in itertools.pairwise(x)]
        assert float(mean) == pytest.approx(sum(pieces), abs=2e-5)


def test_pieces_that_are_nearly_quadratic_have_their_mean_from_a_series():
    """Where the slopes at both ends of a piece add up to nearly twice its own: on both sides of 0.05 of the sum."""
    slope = np.log(np.expm1(1.0))  # softplus gives 1
    rows = np.tile(np.r_[np.zeros(2 * K), np.full(K - 1, slope), 0.0, 0.0], (9, 1))
    rows[:, 2 * K] = slope + np.array([-0.2, -0.12, -0.1, -0.05, 0.0, 0.05, 0.1, 0.12, 0.2]) * 1.5
    x = knots(rows[0])[0]
    expected = [integrate.quad(partial(read, row), 0, 1, points=x[1:-1])[0] for row in rows]
    with jax.enable_x64(True):
        np.testing.assert_allclose(value_and_gradient(exact_means, rows)[0], expected, rtol=1e-8)


def test_q_is_the_mean_on_the_grid_or_of_the_whole_curve():
    head = head_of(CURVES[:2])
    grid = EmpiricalMean().mean(*predicted(SPLINE, head, ONE, "act"))
    np.testing.assert_allclose(grid[0, 0], np.mean(values_of(SPLINE, CURVES)[:2], axis=1), rtol=1e-6)
    dist = predicted(EXACT, head, ONE, "act")
    whole = np.array([integrate.quad(partial(read, row), 0, 1, points=knots(row)[0])[0] for row in wide(CURVES[:2])])
    np.testing.assert_allclose(EmpiricalMean().mean(*dist)[0, 0], whole, rtol=1e-5)
    assert np.abs(whole - np.asarray(grid)[0, 0]).min() > 1e-4
    assert predicted(EXACT, head, ONE, "target").values.shape[-1] == 9  # what is learned from stays the grid


# Increments on a grid


def test_the_grid_goes_from_a_thousandth_to_all_but_a_thousandth():
    np.testing.assert_allclose(GROWING.levels, [0.001, 0.2, 0.4, 0.6, 0.8, 0.999])


def test_shares_are_those_of_the_trapezoid_rule_with_flat_ends():
    curve = np.sort(np.random.default_rng(6).normal(size=6))
    expected = np.trapezoid(curve, GROWING.levels) + 0.001 * (curve[0] + curve[-1])
    assert GROWING.probs @ curve == pytest.approx(expected, rel=1e-12)
    assert GROWING.probs.sum() == pytest.approx(1, rel=1e-12)
    dense = (np.arange(10**6) + 0.5) / 10**6
    assert GROWING.probs @ curve == pytest.approx(np.interp(dense, GROWING.levels, curve).mean(), rel=1e-6)


def test_the_curve_is_linear_between_the_levels_of_the_grid():
    head = GROWING.make_head(make_streams, 4, jax.random.key(1))
    features = jax.random.normal(jax.random.key(2), (3, 4), jnp.float32)
    grid = predicted(GROWING, head, features, "act")
    drawn = predicted(GROWING, head, features, "target")
    assert drawn.values.shape == (3, 1, 2, 7)
    for b, action in np.ndindex(3, 2):
        curve = np.asarray(grid.values[b, 0, action])
        expected = np.interp(drawn.levels[b, 0, 0], GROWING.levels, curve)
        np.testing.assert_allclose(drawn.values[b, 0, action], expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(np.asarray(grid.values), axis=-1).max() > 0.05
    np.testing.assert_allclose(EmpiricalMean().mean(*grid), np.asarray(grid.values) @ GROWING.probs, rtol=1e-5)


def test_the_curve_is_flat_beyond_the_ends_of_the_grid():
    levels = jnp.asarray([[0.0, 0.0005, 0.001, 0.9995, 1.0]], jnp.float32)
    shares = np.asarray(GROWING._hats(levels))[0]
    np.testing.assert_allclose(shares, np.eye(6)[[0, 0, 0, 5, 5]].T, atol=1e-6)
