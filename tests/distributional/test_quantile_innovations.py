"""Gradient and curvature of the quantile Huber loss, level by level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.distributional.losses import WINDOW, quantile_huber_pairwise, quantile_innovations

LEVELS = jnp.asarray([0.1, 0.5, 0.7], jnp.float32)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_innovation_and_curvature_are_derivatives_of_the_loss(kappa: float, weighted: bool):
    rng = np.random.default_rng(0)
    values, targets = (jnp.asarray(rng.normal(size=(4, n)), jnp.float32) for n in (3, 6))
    probs = jnp.asarray(rng.dirichlet(np.ones(6), 4), jnp.float32) if weighted else None

    def gradient(values):
        return jax.grad(lambda v: quantile_huber_pairwise(v, LEVELS, targets, probs, kappa).sum())(values)

    found = quantile_innovations(values, LEVELS, targets, probs, kappa)
    np.testing.assert_allclose(found.innovations, -gradient(values), atol=1e-6)
    step = 1e-2 * kappa
    slopes = (gradient(values + step) - gradient(values - step)) / (2 * step)
    near = np.abs(np.abs(targets[:, None] - values[:, :, None]) - kappa).min(-1) < 2 * step
    near |= np.abs(targets[:, None] - values[:, :, None]).min(-1) < 2 * step  # where sides change
    np.testing.assert_allclose(np.asarray(found.curvature)[~near], np.asarray(slopes)[~near], atol=1e-4)
    assert (~near).sum() >= 6


def test_without_a_huber_part_by_hand():
    values, targets = jnp.asarray([0.0, 1.0, 2.0]), jnp.asarray([0.0, 1.01, 1.02, 5.0])
    found = quantile_innovations(values, LEVELS, targets, kappa=0.0)
    np.testing.assert_allclose(found.innovations, [0.1 - 0.125, 0.5 - 0.25, 0.7 - 0.75], atol=1e-6)
    reach = WINDOW * np.std([0, 1, 2])
    np.testing.assert_allclose(found.curvature, np.array([0.25, 0.5, 0.0]) / (2 * reach), rtol=1e-5)
