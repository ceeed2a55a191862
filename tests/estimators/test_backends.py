"""NumPy, JAX and PyTorch: the same numbers, in the caller's array library, with gradients."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import special

from qemrl import (
    QEM,
    BandVariance,
    ConstantVariance,
    EmpiricalMean,
    TailVariance,
    crossing_rate,
    midpoints,
    r_squared,
    stratified_levels,
    uniform_levels,
)
from qemrl.estimators import backend

ESTIMATORS = {
    "mean": EmpiricalMean(),
    "order 1": QEM(1),
    "order 2, tail": QEM(2, TailVariance(1.2)),
    "order 4": QEM(4),
    "order 4, tail": QEM(4, TailVariance(1.5)),
    "order 4, band": QEM(4, BandVariance(1.5, 0.45, 0.55)),
    "order 4, function": QEM(4, lambda levels: 1 + levels**2),
    "order 6": QEM(6, ConstantVariance(2.0)),
    "auto": QEM(variance="auto"),
    "Legendre 4, tail": QEM(4, TailVariance(1.5), "legendre"),
    "Legendre 6": QEM(6, basis="legendre"),
}


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    levels = stratified_levels(rng, (5, 3, 32))
    return special.ndtri(levels) * 2 + rng.normal(size=levels.shape), levels


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", ["fixed", "shared", "sampled"])
def test_all_libraries_agree_and_keep_kind_and_dtype(library, dtype, tolerance, shape):
    values, levels = data()
    levels = {"fixed": midpoints(32), "shared": levels[:, :1], "sampled": levels}[shape]
    values, levels = values.astype(dtype), levels.astype(dtype)
    reference = values.astype(np.float64), levels.astype(np.float64)
    given = library.make(values, dtype), library.make(levels, dtype)
    for label, estimator in ESTIMATORS.items():
        for part, (mine, theirs) in results(estimator, given, reference).items():
            name = f"{part} of {label}"
            assert isinstance(mine, library.kind | np.generic), name
            assert str(mine.dtype).removeprefix("torch.") == dtype, name
            assert tuple(mine.shape) == tuple(theirs.shape), name
            if part == "mean" or dtype == "float64":
                scale = 1 + np.abs(theirs).max()
                np.testing.assert_allclose(library.read(mine), theirs, atol=tolerance * scale, err_msg=name)


def results(estimator, given, reference) -> dict[str, tuple[Any, Any]]:
    """All that an estimator says of values and levels, and what it says of the same in NumPy."""
    found = {
        "mean": (estimator.mean(*given), estimator.mean(*reference)),
        "weights": (estimator.weights(given[1]), estimator.weights(reference[1])),
    }
    names = ("mean", "variance", "skewness", "excess_kurtosis")
    moments = zip(names, estimator.moments(*given), estimator.moments(*reference), strict=True)
    found |= {f"moments.{name}": (mine, theirs) for name, mine, theirs in moments}
    if isinstance(estimator, QEM):
        found["coefficients"] = estimator.coefficients(*given), estimator.coefficients(*reference)
        found["fit"] = estimator.fit(*given), estimator.fit(*reference)
        found["r_squared"] = r_squared(estimator, *given), r_squared(estimator, *reference)
    return found


def test_the_normal_quantile_is_exact_in_every_library(library):
    levels = np.concatenate([np.geomspace(1e-5, 0.5, 2000), 1 - np.geomspace(1e-5, 0.5, 2000)])
    np.testing.assert_allclose(
        library.read(backend.ndtri(library.make(levels))), special.ndtri(levels), rtol=1e-13, atol=1e-15
    )
    single = levels.astype(np.float32)
    result = library.read(backend.ndtri(library.make(single, "float32")))
    np.testing.assert_allclose(result, special.ndtri(single.astype(np.float64)), rtol=2e-6, atol=2e-7)


def test_crossing_rate_in_every_library(library):
    values = library.make([[0.0, 2.0, 1.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_allclose(library.read(crossing_rate(values)), [1 / 3, 0])
    levels = library.make([[0.1, 0.6, 0.4, 0.8], [0.8, 0.6, 0.4, 0.2]])
    np.testing.assert_allclose(library.read(crossing_rate(values, levels)), [0, 1])
    shared = library.make([0.1, 0.6, 0.4, 0.8])
    np.testing.assert_allclose(library.read(crossing_rate(values, shared)), [0, 1 / 3])


def test_numpy_levels_serve_every_library(library):
    values, levels = data()
    for fixed_or_sampled in (midpoints(32), levels):
        mean = QEM().mean(library.make(values), fixed_or_sampled)
        assert isinstance(mean, library.kind)
        np.testing.assert_allclose(library.read(mean), QEM().mean(values, fixed_or_sampled), rtol=1e-10)


def test_levels_of_another_library_are_refused():
    values, levels = data()
    with pytest.raises(ValueError, match="levels are a Tensor, but the values are a ArrayImpl"):
        QEM().mean(jnp.asarray(values), torch.as_tensor(levels))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "make", [lambda x, d: jnp.asarray(x, d), lambda x, d: torch.tensor(x, dtype=getattr(torch, d))]
)
def test_half_precision_is_summed_in_single(make, dtype):
    values = np.linspace(0.0, 1.0, 64) ** 2
    levels = midpoints(64)
    expected = QEM().mean(values, levels)
    for given in (levels, make(levels[None], dtype)):
        mean = QEM().mean(make(values[None], dtype), given)
        assert str(mean.dtype).removeprefix("torch.") == dtype
        assert float(mean[0]) == pytest.approx(float(expected), rel=2e-2)


def test_integers_and_lists_become_floats():
    assert QEM(2).mean([1, 2, 3, 4], midpoints(4)) == pytest.approx(2.5)
    assert QEM(2).mean(torch.tensor([1, 2, 3, 4]), midpoints(4)).dtype == torch.float32


# --- JAX -------------------------------------------------------------------------------------------------------


def test_jit_vmap_and_eager_agree():
    values, levels = (jnp.asarray(x, jnp.float32) for x in data())
    qem = QEM(4, TailVariance(1.5))
    eager = qem.mean(values, levels)
    np.testing.assert_allclose(jax.jit(qem.mean)(values, levels), eager, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(qem.mean)(values, levels), eager, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.vmap(qem.mean))(values, levels), eager, rtol=1e-5, atol=1e-6)
    fixed = jax.jit(lambda values: qem.mean(values, midpoints(32)))(values)
    np.testing.assert_allclose(fixed, qem.mean(values, midpoints(32)), rtol=1e-6, atol=1e-6)
    moments = jax.jit(qem.moments)(values, levels)
    np.testing.assert_allclose(moments.variance, qem.moments(values, levels).variance, rtol=1e-4)


def test_levels_that_are_traced_arguments_are_solved_for_in_the_program():
    values, levels = jnp.asarray(data()[0], jnp.float32), jnp.asarray(midpoints(32), jnp.float32)
    traced = jax.jit(QEM(4).mean)(values, levels)
    np.testing.assert_allclose(traced, QEM(4).mean(values, midpoints(32)), rtol=1e-5, atol=1e-5)


def test_fixed_levels_compile_to_one_dot_product_and_nothing_else():
    jaxpr = jax.make_jaxpr(lambda values: QEM(4).mean(values, midpoints(32)))(jnp.ones((8, 32)))
    assert [str(equation.primitive) for equation in jaxpr.eqns] == ["dot_general"]


def test_sampled_levels_form_no_square_matrix_and_make_no_call_to_the_host():
    count = 37
    jaxpr = jax.make_jaxpr(QEM(4, TailVariance(1.5)).mean)(jnp.ones((8, count)), jnp.full((8, count), 0.5))
    text = str(jaxpr)
    assert "callback" not in text
    assert f"{count},{count}" not in text
    biggest = max(np.prod(variable.aval.shape) for equation in jaxpr.eqns for variable in equation.outvars)
    assert biggest == 8 * count


def test_the_jax_gradient_of_the_mean_is_its_weights():
    values, levels = data()
    with jax.enable_x64(True):
        for given in (midpoints(32), levels[0, 0]):
            gradient = jax.grad(lambda values, given=given: QEM(4).mean(values, given))(jnp.asarray(values[0, 0]))
            np.testing.assert_allclose(gradient, QEM(4).weights(given)[0], rtol=1e-10)


@pytest.mark.parametrize("basis", ["hermite", "legendre"])
def test_gradients_with_respect_to_levels_are_right(basis):
    values, levels = (x[0, 0] for x in data())
    qem = QEM(4, lambda levels: 1 + levels, basis)
    step = 1e-6
    shifts = step * np.eye(32)
    slopes = [(qem.mean(values, levels + s) - qem.mean(values, levels - s)) / (2 * step) for s in shifts]
    with jax.enable_x64(True):
        gradient = jax.grad(qem.mean, argnums=1)(jnp.asarray(values), jnp.asarray(levels))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-8)
    tensor = torch.tensor(levels, requires_grad=True)
    qem.mean(torch.tensor(values), tensor).backward()
    assert tensor.grad is not None
    np.testing.assert_allclose(tensor.grad.numpy(), slopes, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("order", range(1, 7))
def test_gradients_are_finite_when_levels_coincide_or_touch_the_ends(order):
    levels = jnp.asarray([[0.5] * 8, [0.0] * 4 + [1.0] * 4, [0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.9, 1.0]])
    values = jnp.tile(jnp.linspace(-1.0, 1.0, 8), (3, 1))
    gradients = jax.jit(jax.grad(lambda *given: QEM(order).mean(*given).sum(), argnums=(0, 1)))(values, levels)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    flat = jnp.ones((2, 8))
    skewness = jax.jit(jax.grad(lambda values: QEM(order).moments(values, levels[2:]).skewness.sum()))(flat[:1])
    assert np.isfinite(skewness).all()


def test_no_recompilation_for_the_same_shapes():
    traces = []

    @jax.jit
    def estimate(values, levels):
        traces.append(values.shape)
        return QEM(4, TailVariance(1.5)).mean(values, levels)

    for seed in range(3):
        levels = uniform_levels(jax.random.key(seed), (8, 32))
        estimate(levels, levels)
    assert len(traces) == 1


# --- PyTorch ---------------------------------------------------------------------------------------------------


def test_the_torch_gradient_of_the_mean_is_its_weights():
    values, levels = data()
    for given in (midpoints(32), torch.as_tensor(levels)):
        tensor = torch.tensor(values, requires_grad=True)
        QEM(4).mean(tensor, given).sum().backward()
        assert tensor.grad is not None
        expected = np.broadcast_to(QEM(4).weights(np.asarray(given))[..., 0, :], values.shape)
        np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_torch_func_transforms_pass_through():
    values, levels = (torch.as_tensor(x) for x in data())
    torch.testing.assert_close(torch.func.vmap(QEM(4).mean)(values, levels), QEM(4).mean(values, levels))
    gradient = torch.func.grad(lambda values: QEM(4).mean(values, levels).sum())(values)
    np.testing.assert_allclose(gradient, QEM(4).weights(levels)[..., 0, :], rtol=1e-9, atol=1e-12)


# --- imports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "absent"),
    [
        ("values = numpy.ones((2, 8))", ("jax", "torch")),
        ("import torch; values = torch.ones((2, 8))", ("jax",)),
        ("import jax; values = jax.numpy.ones((2, 8))", ("torch",)),
    ],
)
def test_only_the_callers_array_library_is_imported(use, absent):
    program = (
        "import sys, numpy, qemrl\n"
        f"{use}\n"
        "levels = qemrl.midpoints(8)\n"
        "qemrl.QEM(order=4, variance=qemrl.TailVariance(1.5, tail=0.1)).moments(values, levels)\n"
        f"print(sorted(set(sys.modules) & set({absent!r})))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
