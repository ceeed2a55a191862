"""FQF's proposals against finite differences of the Wasserstein error, and what does not learn from what."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qemrl.distributional.fractions import FractionHead, GivenFractions, ProposedFractions
from qemrl.estimators import EmpiricalMean
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.types import ReturnDist

KEY = jax.random.key(0)
N = 5
FQF = ProposedFractions(num_fractions=N, num_cosines=2)
FEATURES = np.array([[0.5], [1.5], [2.0]])
ACTIONS = np.array([1, 0, 1], np.int32)
SCALES = np.array([1.0, 0.7])
"""By how much the curve of each action is stretched."""


def curve(levels: Any, stretch: Any) -> Any:
    """A quantile function that the head below holds exactly: it rises on [0, 1], and its slope is not constant."""
    return stretch * (5 - 2 * np.cos(np.pi * levels) + 0.4 * np.cos(2 * np.pi * levels))


def make_streams(features: int, outputs: int, key) -> ActionStreams:
    return ActionStreams(StreamConfig((), False, False), features, 2, outputs, key)


def make_head(seed: int = 0, size: float = 1.0) -> FractionHead:
    """The curve of an action stretched by the feature, and random proposals that depend on the feature."""
    rng = np.random.default_rng(seed)

    def parts(head: Any) -> tuple[Any, ...]:
        last = head.quantiles.streams.advantage.layers[0]
        embedding, network = head.quantiles.embedding, head.fractions.last
        return embedding.weight, embedding.bias, last.weight, last.bias, network.weight, network.bias

    amplitudes, offset, zeros = np.array([[-2.0, 0.4]]), np.array([5.0]), np.zeros(2)
    proposals = (rng.normal(scale=size, size=(N, 1)), rng.normal(scale=size, size=N))
    numbers = (amplitudes, offset, SCALES[:, None], zeros, *proposals)
    head = FQF.make_head(make_streams, 1, KEY)
    return eqx.tree_at(parts, head, [jnp.asarray(each, jnp.float32) for each in numbers])


def own_parts(head: FractionHead) -> tuple[np.ndarray, np.ndarray]:
    """What the proposals of a head are made by."""
    last: Any = head.fractions
    return np.asarray(last.last.weight, np.float64), np.asarray(last.last.bias, np.float64)


def intervals(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends [batch, N + 1], middles and widths of what is proposed for the features."""
    exponentials = np.exp(FEATURES @ weight.T + bias)
    widths = exponentials / exponentials.sum(1, keepdims=True)
    ends = np.concatenate([np.zeros((3, 1)), np.cumsum(widths, 1)], 1)
    return ends, (ends[:, 1:] + ends[:, :-1]) / 2, widths


STRETCH = (FEATURES[:, 0] * SCALES[ACTIONS])[:, None]
GOAL = np.random.default_rng(1).normal(3, 4, (3, 1, 6))


@partial(jax.jit, static_argnums=0)
def loss_and_gradients(levels: ProposedFractions, head: Any, features: Any, goal: Any) -> Any:
    """The losses, and the gradients of their sum with respect to the head and the features."""

    def total(head: Any, features: Any) -> Any:
        losses = levels.loss(head, features, jnp.asarray(ACTIONS), ReturnDist(goal, np.full(6, 0.5)), KEY)
        return jnp.sum(losses), losses

    (_, losses), (to_head, to_features) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(head, features)
    return losses, to_head, to_features


def gradients_of(levels: ProposedFractions, head: Any, goal: Any = GOAL) -> Any:
    return loss_and_gradients(levels, head, jnp.asarray(FEATURES, jnp.float32), jnp.asarray(goal, jnp.float32))


def slopes_of(function: Any, head: FractionHead) -> list[np.ndarray]:
    """Central differences of a function of the weights and the biases of the proposals."""
    parts, step, found = own_parts(head), 1e-5, []
    for place, part in enumerate(parts):
        slope = np.zeros(part.shape)
        for index in np.ndindex(part.shape):
            ahead, behind = ([each.copy() for each in parts] for _ in range(2))
            ahead[place][index] += step
            behind[place][index] -= step
            slope[index] = (function(*ahead) - function(*behind)) / (2 * step)
        found.append(slope)
    return found


POINTS, WEIGHTS = np.polynomial.legendre.leggauss(20)


def wasserstein(weight: np.ndarray, bias: np.ndarray) -> float:
    """∫ |q(τ) − step(τ)| dτ, the steps at the curve's values in the middles, summed over the batch."""
    ends, middles, _ = intervals(weight, bias)
    total = 0.0
    for left, right in ((ends[:, :-1], middles), (middles, ends[:, 1:])):  # the curve crosses its step in the middle
        levels = left[..., None] + (right - left)[..., None] * (POINTS + 1) / 2
        errors = np.abs(curve(levels, STRETCH[..., None]) - curve(middles, STRETCH)[..., None])
        total += np.sum(errors @ WEIGHTS / 2 * (right - left))
    return total


def test_proposals_go_down_the_wasserstein_distance_between_the_curve_and_its_steps():
    head = make_head()
    _, gradient, _ = gradients_of(FQF, head)
    expected = slopes_of(wasserstein, head)
    assert min(np.abs(each).max() for each in expected) > 0.1
    for found, slope in zip(own_parts(gradient), expected, strict=True):
        np.testing.assert_allclose(found, slope, atol=2e-5)


def test_the_squared_option_minimizes_the_squared_slope():
    def squared(weight: np.ndarray, bias: np.ndarray) -> float:
        ends, middles, _ = intervals(weight, bias)
        values = curve(middles, STRETCH)
        return float(np.sum((2 * curve(ends[:, 1:-1], STRETCH) - values[:, 1:] - values[:, :-1]) ** 2))

    head = make_head()
    _, gradient, _ = gradients_of(replace(FQF, fraction_loss="squared"), head)
    for found, slope in zip(own_parts(gradient), slopes_of(squared, head), strict=True):
        np.testing.assert_allclose(found, slope, atol=1e-4)


@pytest.mark.parametrize("kind", ["wasserstein", "squared"])
def test_entropy_is_that_of_the_widths(kind):
    """What it adds to the gradient of the logits is λ p_k (log p_k − Σ p log p), the slope of λ Σ p log p."""
    head = make_head()
    _, without, _ = gradients_of(replace(FQF, fraction_loss=kind), head)
    _, rewarded, _ = gradients_of(replace(FQF, fraction_loss=kind, entropy=0.3), head)
    _, _, widths = intervals(*own_parts(head))
    logs = np.log(widths)
    logits = 0.3 * widths * (logs - (widths * logs).sum(1, keepdims=True))
    expected = (logits.T @ FEATURES, logits.sum(0))
    for found, plain, slope in zip(own_parts(rewarded), own_parts(without), expected, strict=True):
        np.testing.assert_allclose(found - plain, slope, atol=2e-5)
        assert np.abs(slope).max() > 0.05


def frozen(head: FractionHead, features: Any = FEATURES) -> FractionHead:
    """The head with the same intervals, as numbers."""
    return FractionHead(head.quantiles, GivenFractions(head.fractions(jnp.asarray(features, jnp.float32))))


@pytest.mark.parametrize("kind", ["wasserstein", "squared"])
def test_proposals_move_neither_curve_nor_features(kind):
    """Both get the gradient that they get at given fractions, whatever the proposals' loss."""
    head, levels = make_head(), replace(FQF, fraction_loss=kind, entropy=10.0)
    _, gradient, to_features = gradients_of(levels, head)
    _, expected, expected_to_features = gradients_of(levels, frozen(head))
    for found, wanted in zip(jax.tree.leaves(gradient.quantiles), jax.tree.leaves(expected.quantiles), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(to_features, expected_to_features, rtol=1e-5)
    assert np.abs(own_parts(gradient)[0]).max() > 0.1


def test_the_loss_of_the_curve_does_not_move_proposals():
    head = make_head()
    one, other = (gradients_of(FQF, head, goal) for goal in (GOAL, 10 * GOAL + 3))
    for left, right in zip(own_parts(one[1]), own_parts(other[1]), strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.abs(np.asarray(one[2] - other[2])).max() > 0.1


@pytest.mark.parametrize("levels", [FQF, replace(FQF, fraction_loss="squared", entropy=5.0, kappa=0.5)], ids=str)
def test_the_reported_loss_is_the_quantile_huber_loss_alone(levels):
    losses, *_ = gradients_of(levels, make_head())
    _, middles, _ = intervals(*own_parts(make_head()))
    expected = np.zeros((3, 1))
    for b in range(3):
        for level, value in zip(middles[b], curve(middles[b], STRETCH[b]), strict=True):
            for goal in GOAL[b, 0]:
                u, kappa = goal - value, levels.kappa
                size = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                expected[b] += abs(level - (u < 0)) * size / kappa / 6
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 10.0, 100.0]))
def test_intervals_fill_the_levels_from_zero_to_one(seed, size):
    """Also where nearly all of it is one interval."""
    propose: Any = make_head(seed, size).fractions
    ends, middles, widths = (np.asarray(each) for each in propose(jnp.asarray(FEATURES, jnp.float32)))
    np.testing.assert_allclose(widths.sum(1), 1, rtol=1e-6)
    all_ends = np.concatenate([np.zeros((3, 1)), ends, np.ones((3, 1))], 1)
    np.testing.assert_allclose(np.diff(all_ends), widths, atol=1e-6)
    np.testing.assert_allclose((all_ends[:, 1:] + all_ends[:, :-1]) / 2, middles, atol=1e-6)
    assert (widths >= 0).all()
    assert ((middles >= 0) & (middles <= 1)).all()
    if size <= 1:
        expected = intervals(*own_parts(make_head(seed, size)))
        np.testing.assert_allclose(widths, expected[2], atol=1e-6)


def test_fresh_proposals_are_nearly_even():
    propose: Any = FQF.make_head(make_streams, 1, KEY).fractions
    _, _, widths = propose(jnp.ones((1, 1)))
    np.testing.assert_allclose(widths, 1 / N, rtol=0.03)
    assert np.ptp(np.asarray(widths)) > 0


@pytest.mark.parametrize("purpose", ["act", "target", "report"])
def test_q_is_the_sum_of_the_values_in_the_middles_times_the_widths(purpose):
    head = make_head()
    dist = replace(FQF, weigh_targets=True).predict(head, jnp.asarray(FEATURES, jnp.float32), purpose, None)
    _, middles, widths = intervals(*own_parts(head))
    expected = np.stack([(widths * curve(middles, scale * FEATURES)).sum(1) for scale in SCALES], 1)
    np.testing.assert_allclose(EmpiricalMean().mean(*dist)[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(dist.values[:, 0, 1], curve(middles, SCALES[1] * FEATURES), rtol=1e-5)
    np.testing.assert_allclose(dist.levels[:, 0, 0], middles, atol=1e-6)


def test_however_narrow_intervals_are_all_count():
    dist = FQF.predict(make_head(size=1e4), jnp.asarray(FEATURES, jnp.float32), "report", None)
    assert dist.probs is not None
    assert 0 < np.asarray(dist.probs).min() < 1e-20
    assert np.isfinite(EmpiricalMean().mean(*(np.asarray(each) for each in dist))).all()


def test_targets_count_by_their_widths_only_where_that_is_asked_for():
    head, features = make_head(), jnp.asarray(FEATURES, jnp.float32)
    assert FQF.predict(head, features, "target", None).probs is None
    weighed = replace(FQF, weigh_targets=True).predict(head, features, "target", None)
    assert weighed.probs is not None
    np.testing.assert_allclose(weighed.probs[:, 0, 0], intervals(*own_parts(head))[2], rtol=1e-5)
    assert FQF.predict(head, features, "act", None).probs is not None


def test_a_second_critic_is_read_where_the_first_one_proposes():
    """Whatever its own features and proposals are; and what it learns does not come back to the first."""
    leader, second = make_head(0), make_head(1)
    features = jnp.asarray(FEATURES, jnp.float32)
    _, middles, widths = intervals(*own_parts(leader))

    def total(leader: FractionHead, second: FractionHead) -> tuple[Any, ReturnDist]:
        head = FQF.follow(second, leader, features)
        dist = FQF.predict(head, 2 * features, "act", None)
        loss = FQF.loss(head, 2 * features, jnp.asarray(ACTIONS), ReturnDist(jnp.zeros((3, 1, 6)), np.ones(6)), KEY)
        return loss.sum(), dist

    (to_leader, to_second), dist = jax.grad(total, argnums=(0, 1), has_aux=True)(leader, second)
    np.testing.assert_allclose(dist.levels[:, 0, 0], middles, atol=1e-6)
    assert dist.probs is not None
    np.testing.assert_allclose(dist.probs[:, 0, 0], widths, rtol=1e-5)
    np.testing.assert_allclose(dist.values[:, 0, 0], curve(middles, 2 * FEATURES), rtol=1e-5)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves((to_leader, to_second.fractions)))
    assert np.abs(np.asarray(to_second.quantiles.embedding.weight)).max() > 0.1


def test_proposals_have_an_optimizer_of_their_own():
    """RMSProp with g / √(E[g²] − E[g]² + 1e-5), decay 0.95; all else is the default's."""
    levels = replace(FQF, fraction_rate=0.01)
    head, rng = make_head(), np.random.default_rng(0)
    optimizer = levels.optimizer(optax.adam(0.1, eps=1e-3))
    params: Any = {"torso": jnp.ones(3), "head": head}
    state: Any = optimizer.init(params)
    squares = means = first = second = 0.0
    for count in (1, 2, 3):
        gradient: Any = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), params)
        with jax.numpy_dtype_promotion("standard"):
            changes: Any
            changes, state = optimizer.update(gradient, state)
        own = np.asarray(gradient["head"].fractions.last.bias, np.float64)
        squares, means = 0.95 * squares + 0.05 * own**2, 0.95 * means + 0.05 * own
        np.testing.assert_allclose(
            changes["head"].fractions.last.bias, -0.01 * own / np.sqrt(squares - means**2 + 1e-5), rtol=1e-4
        )
        other = np.asarray(gradient["head"].quantiles.embedding.weight, np.float64)
        first, second = 0.9 * first + 0.1 * other, 0.999 * second + 0.001 * other**2
        step = first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-3)
        np.testing.assert_allclose(changes["head"].quantiles.embedding.weight, -0.1 * step, rtol=1e-4)
        assert np.abs(np.asarray(changes["torso"])).max() > 0.01


def test_without_a_rate_proposals_stay_bit_for_bit():
    levels, head = replace(FQF, fraction_rate=0.0), make_head()
    optimizer: Any = levels.optimizer(optax.adam(0.1))
    _, gradient, _ = gradients_of(levels, head)
    assert np.abs(own_parts(gradient)[1]).max() > 0.1
    with jax.numpy_dtype_promotion("standard"):
        changes, _ = optimizer.update(gradient, optimizer.init(head))
    moved = eqx.apply_updates(head, changes)
    for left, right in zip(jax.tree.leaves(moved.fractions), jax.tree.leaves(head.fractions), strict=True):
        np.testing.assert_array_equal(left, right)
    assert all(
        np.abs(np.asarray(left - right)).max() > 0.01
        for left, right in zip(jax.tree.leaves(moved.quantiles), jax.tree.leaves(head.quantiles), strict=True)
    )
