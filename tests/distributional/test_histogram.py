"""HL-Gauss against SciPy's normal law: bins, cross-entropy, and Q."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from qemrl.distributional.atoms import GaussianHistogram
from qemrl.estimators import EmpiricalMean
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.types import ReturnDist

HISTOGRAM = GaussianHistogram(9, -2.0, 2.0)
SPACING = 0.5
LOGITS = np.random.default_rng(0).normal(scale=2, size=(3, 2, 9))
"""For each of three observations and two actions."""
ACTIONS = np.array([1, 0, 1], np.int32)


def head() -> ActionStreams:
    """Gives row s of the logits for the unit vector s."""
    streams = ActionStreams(StreamConfig((), False, False), 3, 2, 9, jax.random.key(0))
    parts = jnp.asarray(LOGITS.reshape(3, 18).T, jnp.float32), jnp.zeros(18, jnp.float32)
    return eqx.tree_at(lambda each: (each.advantage.layers[0].weight, each.advantage.layers[0].bias), streams, parts)


@partial(jax.jit, static_argnums=0)
def loss_and_gradient(histogram: GaussianHistogram, values: Any, probs: Any) -> Any:
    """The losses, and the gradient of their sum with respect to the logits of the actions taken."""
    target = ReturnDist(values, jnp.full(values.shape[-1], 0.5), probs)

    def total(streams: Any) -> Any:
        losses = histogram.loss(streams, jnp.eye(3), jnp.asarray(ACTIONS), target, jax.random.key(0))
        return jnp.sum(losses), losses

    (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(head())
    return losses[:, 0], gradient.advantage.layers[0].weight.T.reshape(3, 2, 9)[np.arange(3), ACTIONS]


def shares(mean: float, width: float = 0.75) -> np.ndarray:
    """Of the bins around the atoms, in the normal law around a mean that is cut off where the bins end."""
    ends = np.linspace(-2.25, 2.25, 10)
    law = stats.norm(np.clip(mean, -2, 2), width * SPACING)
    return np.diff(law.cdf(ends)) / (law.cdf(ends[-1]) - law.cdf(ends[0]))


TAKEN = LOGITS[np.arange(3), ACTIONS]


def check(histogram: GaussianHistogram, means: Any, values: Any, probs: Any = None) -> None:
    """The target is by how much the softmax is larger than the gradient of a logit."""
    losses, gradient = loss_and_gradient(histogram, jnp.asarray(values, jnp.float32), probs)
    expected = np.stack([shares(mean, histogram.width) for mean in means])
    np.testing.assert_allclose(special.softmax(TAKEN, axis=1) - gradient, expected, atol=2e-6)
    np.testing.assert_allclose(losses, -(expected * special.log_softmax(TAKEN, axis=1)).sum(1), rtol=1e-5)


@settings(max_examples=25)
@given(st.tuples(*3 * [st.floats(-2, 2, width=32)]))
def test_the_target_is_a_normal_law_in_bins_around_the_atoms(means):
    check(HISTOGRAM, means, np.array(means)[:, None, None])


def test_what_lies_outside_is_at_the_nearest_end():
    check(HISTOGRAM, [2.0, -2.0, 2.0], np.array([2.5, -900.0, 1e6])[:, None, None])


@pytest.mark.parametrize("width", [0.3, 2.0])
def test_the_width_is_in_bins(width):
    check(GaussianHistogram(9, -2.0, 2.0, width), [0.1, -1.7, 0.6], np.array([0.1, -1.7, 0.6])[:, None, None])


def test_of_a_distribution_only_the_mean_counts():
    """Of atoms without probabilities, and with them; what they are spread by is not smeared."""
    rng = np.random.default_rng(1)
    values = rng.normal(scale=0.8, size=(3, 1, 9))
    probs = rng.dirichlet(np.ones(9), (3, 1))
    check(HISTOGRAM, values.mean((1, 2)), values)
    check(HISTOGRAM, (values * probs).sum((1, 2)), values, jnp.asarray(probs, jnp.float32))


def test_the_mean_is_kept_far_from_the_ends_and_pulled_inward_at_them():
    atoms = np.linspace(-2, 2, 9)
    assert shares(0.3) @ atoms == pytest.approx(0.3, abs=1e-3)
    _, gradient = loss_and_gradient(HISTOGRAM, jnp.asarray([[[0.3]], [[2.0]], [[-2.0]]]), None)
    found = (special.softmax(TAKEN, axis=1) - np.asarray(gradient)) @ atoms
    assert found[0] == pytest.approx(0.3, abs=1e-3)
    assert 1.5 < found[1] < 1.9
    assert found[2] == pytest.approx(-found[1], abs=1e-4)


def test_q_is_the_mean_of_the_softmax_on_the_atoms():
    dist = HISTOGRAM.predict(head(), jnp.eye(3), "act", None)
    expected = special.softmax(LOGITS, axis=-1) @ np.linspace(-2, 2, 9)
    np.testing.assert_allclose(EmpiricalMean().mean(*HISTOGRAM.convert(dist, "mean"))[:, 0], expected, rtol=1e-5)
