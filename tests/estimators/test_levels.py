"""Levels: fixed, and drawn with NumPy generators and JAX keys."""

import jax
import numpy as np
import pytest

from qemrl import antithetic_levels, cumulative_levels, midpoints, stratified_levels, uniform_levels

SOURCES = {"numpy": lambda seed: np.random.default_rng(seed), "jax": jax.random.key}
SAMPLERS = [
    uniform_levels,
    stratified_levels,
    antithetic_levels,
    lambda *given: cumulative_levels(*given).levels,
]


@pytest.fixture(params=SOURCES.values(), ids=list(SOURCES))
def source(request):
    return request.param


def test_midpoints():
    np.testing.assert_allclose(midpoints(4), [1 / 8, 3 / 8, 5 / 8, 7 / 8], rtol=1e-15)
    assert midpoints(4).dtype == np.float64


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_have_the_shape_lie_in_the_unit_interval_and_repeat(sampler, source):
    levels = sampler(source(0), (50, 3, 32))
    assert levels.shape == (50, 3, 32)
    assert type(levels).__module__.split(".")[0].startswith("numpy" if source is SOURCES["numpy"] else "jax")
    assert ((levels >= 0) & (levels <= 1)).all()
    assert (sampler(source(0), (50, 3, 32)) == levels).all()
    assert (sampler(source(1), (50, 3, 32)) != levels).any()
    assert sampler(source(0), 8).shape == (8,)


@pytest.mark.parametrize("sampler", SAMPLERS[:3])
def test_every_draw_is_uniform_on_average(sampler, source):
    levels = np.sort(np.asarray(sampler(source(3), (400, 32))).ravel())
    grid = (np.arange(levels.size) + 0.5) / levels.size
    assert np.abs(levels - grid).max() < 1.63 / np.sqrt(levels.size)  # Kolmogorov-Smirnov at 1%


def test_stratified_levels_have_one_in_each_part(source):
    levels = np.asarray(stratified_levels(source(0), (20, 16)))
    np.testing.assert_array_equal(np.floor(levels * 16), np.tile(np.arange(16), (20, 1)))


def test_antithetic_levels_come_in_mirrored_pairs(source):
    levels = np.asarray(antithetic_levels(source(0), (20, 16)))
    np.testing.assert_allclose(levels[:, :8] + levels[:, 8:], 1, rtol=1e-6)
    with pytest.raises(ValueError, match="must be even, got 7"):
        antithetic_levels(source(0), 7)


def test_cumulative_levels_are_the_middles_of_intervals_that_fill_the_unit(source):
    levels, probs = (np.asarray(x, dtype=np.float64) for x in cumulative_levels(source(0), (20, 16)))
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)
    ends = np.cumsum(probs, axis=-1)
    np.testing.assert_allclose(levels, (ends + ends - probs) / 2, atol=1e-6)
    assert (probs.max(-1) / probs.min(-1)).max() <= 11 + 1e-4  # widths are U(0, 1) + 0.1


def test_dtypes_can_be_chosen():
    assert uniform_levels(np.random.default_rng(0), 8, np.float32).dtype == np.float32
    assert stratified_levels(np.random.default_rng(0), 8, np.float32).dtype == np.float32
    assert uniform_levels(np.random.default_rng(0), 8).dtype == np.float64
    assert cumulative_levels(jax.random.key(0), 8).levels.dtype == np.float32


def test_drawing_works_inside_jit():
    levels = jax.jit(lambda key: stratified_levels(key, (4, 8)))(jax.random.key(0))
    np.testing.assert_array_equal(levels, stratified_levels(jax.random.key(0), (4, 8)))


@pytest.mark.parametrize("shape", [0, (), (3, 0)])
def test_no_levels_at_all_are_refused(shape):
    with pytest.raises(ValueError, match="at least 1"):
        uniform_levels(np.random.default_rng(0), shape)
