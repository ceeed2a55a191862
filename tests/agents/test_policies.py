"""Policies: the density of a squashed normal distribution against its definition, the noise of a deterministic one."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qemrl.agents.policies import (
    AutomaticTemperature,
    Deterministic,
    FixedTemperature,
    TanhGaussian,
    log_tanh_slope,
)

KEY = jax.random.key(3)
POLICY = TanhGaussian()


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Programs run once here: XLA need not make them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def rows(mean, log_std, count: int) -> jax.Array:
    """The same distribution in `count` rows, each of which draws for itself."""
    outputs = np.concatenate([np.atleast_1d(mean), np.atleast_1d(log_std)])
    return jnp.asarray(np.tile(outputs, (count, 1)), jnp.float32)


def naive_log_prob(action, mean, log_std) -> np.ndarray:
    """The density of tanh u, from that of u and the slope of tanh, in float64."""
    raw = np.arctanh(np.asarray(action, np.float64))
    density = stats.norm.logpdf(raw, mean, np.exp(log_std))
    return np.sum(density - np.log(1 - np.tanh(raw) ** 2), axis=-1)


def test_a_gaussian_has_two_outputs_for_each_component_and_a_deterministic_policy_one():
    assert (POLICY.num_outputs(3), Deterministic().num_outputs(3)) == (6, 3)


def test_the_log_probability_is_that_of_the_action_returned():
    """Narrow enough for actions to be known to six digits before tanh: |u| < 2.5, where its slope is 0.026."""
    mean, log_std = np.array([0.3, -0.8, 0.0]), np.log([0.3, 0.1, 0.5])
    for draw in (POLICY.sample, POLICY.follow):
        choice = draw(rows(mean, log_std, 200), KEY)
        assert np.abs(np.arctanh(np.asarray(choice.action))).max() < 2.5
        np.testing.assert_allclose(choice.log_prob, naive_log_prob(choice.action, mean, log_std), atol=2e-4)


def test_the_log_probability_of_an_action_by_hand():
    """A normal distribution so narrow that u = μ = ½ log 3, where tanh u = ½: with ε = (u − μ)/σ as drawn,

    log π = −ε²/2 − log σ − ½ log 2π − log(1 − ¼). Averaged over ε, whose square has mean 1: 8.5 + 0.2877 − 0.9189.
    """
    choice = POLICY.sample(rows(0.5 * np.log(3), -9.0, 40_000), KEY)
    np.testing.assert_allclose(choice.action, 0.5, atol=1e-3)
    assert np.max(choice.log_prob) == pytest.approx(9 - 0.5 * np.log(2 * np.pi) - np.log(0.75), abs=1e-4)
    assert np.mean(choice.log_prob) == pytest.approx(8.5 + 0.28768 - 0.91894, abs=0.02)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.4, -0.7), (-0.5, -1.5)])
def test_the_density_integrates_to_one_over_the_open_interval(mean, log_std):
    """By the trapezium rule between neighboring draws, which are dense; and draws lie where the distribution says."""
    choice = POLICY.sample(rows(mean, log_std, 20_000), KEY)
    action, order = np.asarray(choice.action)[:, 0], np.argsort(np.asarray(choice.action)[:, 0])
    assert -1 < action.min() < action.max() < 1
    density = np.exp(np.asarray(choice.log_prob, np.float64))
    assert np.trapezoid(density[order], action[order].astype(np.float64)) == pytest.approx(1, abs=3e-3)
    distribution = stats.norm(mean, np.exp(log_std))
    assert stats.kstest(np.arctanh(action), distribution.cdf).pvalue > 1e-3


def test_components_add_their_logarithms_and_draw_for_themselves():
    choice = POLICY.sample(rows([0.0, 0.0], [-1.0, -1.0], 100), KEY)
    assert len(np.unique(choice.action)) == 200
    one = [naive_log_prob(np.asarray(choice.action)[:, [i]], 0.0, -1.0) for i in range(2)]
    np.testing.assert_allclose(choice.log_prob, one[0] + one[1], atol=1e-4)


def test_the_slope_of_tanh_is_right_where_tanh_is_one_to_the_last_digit():
    """log(1 − tanh² u) = −2 log cosh u = 2 log 2 − 2|u| − 2 log(1 + e^(−2|u|)), and its derivative is −2 tanh u."""
    raw = np.linspace(-50, 50, 2001)
    size = np.abs(raw)
    exact = 2 * np.log(2) - 2 * size - 2 * np.log1p(np.exp(-2 * size))
    moderate = size < 5
    np.testing.assert_allclose(exact[moderate], np.log(1 - np.tanh(raw[moderate]) ** 2), atol=1e-10)
    found, slope = jax.vmap(jax.value_and_grad(log_tanh_slope))(jnp.asarray(raw, jnp.float32))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=3e-6)
    np.testing.assert_allclose(slope, -2 * np.tanh(raw), atol=3e-6)


@pytest.mark.parametrize("mean", [-50.0, 50.0])
def test_far_out_the_log_probability_is_finite_and_still_pulls_back(mean):
    """There log π = … + 2 |u| − 2 log 2: the derivative in μ is ±2, that in log σ is −1 ± 2 σ ε."""
    outputs = rows(mean, np.log(0.5), 8)
    choice = POLICY.sample(outputs, KEY)
    assert np.isfinite(choice.log_prob).all()
    np.testing.assert_allclose(np.abs(choice.action), 1)
    gradient = np.asarray(jax.grad(lambda outputs: jnp.sum(POLICY.sample(outputs, KEY).log_prob))(outputs))
    np.testing.assert_allclose(gradient[:, 0], 2 * np.sign(mean))
    noise = (gradient[:, 1] + 1) / (2 * np.sign(mean) * 0.5)
    assert len(np.unique(noise)) == 8
    distribution = stats.norm.logpdf(noise) - np.log(0.5)
    np.testing.assert_allclose(
        choice.log_prob, distribution + 2 * np.abs(mean + 0.5 * noise) - 2 * np.log(2), rtol=1e-5
    )


def test_the_gradient_is_that_of_finite_differences():
    """Of log π and of the action, weighted so that none of their parts can hide another's."""
    outputs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 0.5
    weights = jnp.asarray([[1.0, -2.0], [0.5, 3.0], [-1.0, 1.5]])

    @jax.jit
    def number(outputs):
        choice = POLICY.sample(outputs, KEY)
        return jnp.sum(choice.log_prob) + jnp.sum(weights * choice.action)

    found = np.asarray(jax.grad(number)(jnp.asarray(outputs)))
    step = np.float32(1 / 64)
    for place in np.ndindex(outputs.shape):
        change = np.zeros_like(outputs)
        change[place] = step
        high, low = (float(number(jnp.asarray(outputs + sign * change))) for sign in (np.float32(1), np.float32(-1)))
        assert found[place] == pytest.approx((high - low) / (2 * step), abs=5e-3)


def test_the_logarithm_of_the_standard_deviation_is_clipped():
    """To [−20, 2]; beyond, outputs change nothing and have no gradient."""
    for policy, given, kept in ((POLICY, 7.0, 2.0), (POLICY, -90.0, -20.0), (TanhGaussian(-1.0, 1.0), 1.5, 1.0)):
        beyond, at = (policy.sample(rows(0.1, log_std, 5), KEY) for log_std in (given, kept))
        np.testing.assert_array_equal(beyond.action, at.action)
        np.testing.assert_array_equal(beyond.log_prob, at.log_prob)
        gradient = jax.grad(lambda x, policy=policy: jnp.sum(policy.sample(x, KEY).log_prob))(rows(0.1, given, 5))
        np.testing.assert_array_equal(gradient[:, 1], 0)
        assert np.all(np.asarray(gradient[:, 0]) != 0)
    assert np.mean(POLICY.sample(rows(0.0, -20.0, 1000), KEY).log_prob) == pytest.approx(20 - 0.919 - 0.5, abs=0.1)


def test_the_mode_is_tanh_of_the_mean_whatever_the_spread():
    outputs = jnp.asarray([[0.5, -1.0, 3.0, -3.0]])
    np.testing.assert_allclose(POLICY.mode(outputs), np.tanh([[0.5, -1.0]]), rtol=1e-6)
    np.testing.assert_allclose(Deterministic().mode(outputs), np.tanh([[0.5, -1.0, 3.0, -3.0]]), rtol=1e-6)


def test_exploring_is_drawing():
    outputs = rows([0.2, -0.3], [-0.5, 0.5], 50)
    np.testing.assert_array_equal(POLICY.explore(outputs, KEY), POLICY.sample(outputs, KEY).action)
    assert np.all(np.asarray(POLICY.explore(outputs, KEY)) != np.asarray(POLICY.explore(outputs, jax.random.key(4))))


def test_a_deterministic_policy_learns_from_the_action_itself():
    """tanh of the outputs, whose derivative is 1 − tanh²; there is no density, and zero stands in its place."""
    outputs = jnp.asarray([[0.5, -1.0], [0.0, 2.0]])
    choice = Deterministic().sample(outputs, KEY)
    np.testing.assert_allclose(choice.action, np.tanh(outputs), rtol=1e-6)
    np.testing.assert_array_equal(choice.log_prob, [0, 0])
    gradient = jax.grad(lambda outputs: jnp.sum(Deterministic().sample(outputs, KEY).action))(outputs)
    np.testing.assert_allclose(gradient, 1 - np.tanh(outputs) ** 2, rtol=1e-5)


def test_the_noise_of_the_target_is_clipped_and_its_action_stays_within_bounds():
    """N(0, 0.2) cut at 0.5 (2.5 σ: 1.24 % of the draws end there); tanh 2 = 0.964, so that many actions end at 1."""
    outputs = jnp.asarray(np.tile([[0.0, 2.0, -2.0]], (20_000, 1)), jnp.float32)
    choice = Deterministic().follow(outputs, KEY)
    middle, high, low = np.asarray(choice.action).T
    assert (middle.min(), middle.max()) == (-0.5, 0.5)
    assert np.mean(np.abs(middle) == 0.5) == pytest.approx(2 * stats.norm.cdf(-2.5), rel=0.3)
    inside = stats.truncnorm(-2.5, 2.5, scale=0.2).std()
    assert np.std(middle[np.abs(middle) < 0.5]) == pytest.approx(inside, rel=0.03)
    assert (high.max(), low.min()) == (1, -1)
    assert np.mean(high == 1) == pytest.approx(stats.norm.sf((1 - np.tanh(2)) / 0.2), rel=0.05)
    np.testing.assert_allclose(high.min(), np.tanh(2) - 0.5, atol=1e-6)
    np.testing.assert_array_equal(choice.log_prob, np.zeros(20_000))


def test_the_noise_of_exploring_has_its_own_size_and_is_not_clipped():
    outputs = jnp.zeros((20_000, 1), jnp.float32)
    noise = np.asarray(Deterministic(noise=0.1, target_noise=0.2, target_clip=0.05).explore(outputs, KEY))
    assert stats.kstest(noise[:, 0], stats.norm(0, 0.1).cdf).pvalue > 1e-3
    far = Deterministic(noise=5.0).explore(outputs, KEY)
    assert (np.min(far), np.max(far)) == (-1, 1)
    silent = Deterministic(0.0, 0.0)
    for action in (silent.explore(outputs + 0.3, KEY), silent.follow(outputs + 0.3, KEY).action):
        np.testing.assert_array_equal(action, silent.mode(outputs + 0.3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TanhGaussian(2.0, 2.0), "log_std_min must be below log_std_max, got 2.0 and 2.0"),
        (lambda: Deterministic(noise=-0.1), "noise must be finite and not negative, got -0.1"),
        (lambda: Deterministic(target_clip=float("inf")), "target_clip must be finite"),
        (lambda: Deterministic(target_noise=float("nan")), "target_noise must be finite"),
        (lambda: FixedTemperature(-0.2), "a temperature must be finite and not negative, got -0.2"),
        (lambda: AutomaticTemperature(0.0), "must start positive and finite, got 0.0"),
    ],
)
def test_policies_and_temperatures_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
