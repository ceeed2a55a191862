"""BonusExploration: each spread against cases worked out by hand, its schedules, and what is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from qemrl.agents.value import ValueConfig
from qemrl.distributional.atoms import Categorical, GaussianHistogram, Scalar
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, TailVariance, midpoints
from qemrl.exploration import (
    ActionContext,
    Bonus,
    BonusExploration,
    CountBonus,
    LeftTruncatedStdBonus,
    LinearDecay,
    PowerDecay,
    QEMStdBonus,
    SqrtLogDecay,
    StdBonus,
)
from qemrl.types import EnvSpec, ReturnDist

SPEC = EnvSpec("none", (1,), "float32", 2)


def make_dist(*actions, levels=None, probs=None) -> ReturnDist:
    """One observation and one member, with these values for each action."""
    values = jnp.asarray(actions, jnp.float32)[None, None]
    levels = midpoints(values.shape[-1]).astype(np.float32) if levels is None else levels
    return ReturnDist(values, levels, probs)


def context(dist: ReturnDist, q, step=0, mask=None, learning_starts=0) -> ActionContext:
    q = jnp.asarray(q, jnp.float32)[None, None]
    mask = None if mask is None else jnp.asarray(mask)[None]
    return ActionContext(None, dist, q, mask, jnp.zeros(1, bool), jnp.int32(step), learning_starts)


def bonus_values(bonus: Bonus, dist: ReturnDist) -> jax.Array:
    return bonus((), context(dist, [0.0] * dist.values.shape[2]))


@pytest.mark.parametrize(
    ("values", "variance"),
    [
        ([1.0, 2.0, 4.0, 8.0], (0 + 4 + 36) / 8),  # the median is θ₂ = 2
        ([8.0, 1.0, 4.0, 2.0], (0 + 4 + 36) / 8),
        ([0.0, 1.0, 2.0, 4.0, 7.0], (0 + 4 + 25) / 10),
        ([3.0], 0.0),
        ([-100.0, 5.0, 5.0, 5.0], 0.0),  # what lies below the median is cut off
    ],
)
def test_the_published_std_is_that_above_the_median(values, variance):
    spread = bonus_values(LeftTruncatedStdBonus(), make_dist(values, [0.0] * len(values)))
    np.testing.assert_allclose(spread, [[variance**0.5, 0.0]], rtol=1e-6)


def test_the_median_is_found_for_any_number_of_quantiles():
    """Sums of 1/N in float32 are not exactly one half: the formula itself says which quantile is meant."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 33, 51, 99, 200):
        values = np.sort(rng.normal(size=count).astype(np.float32))
        middle = -(-count // 2) - 1
        expected = np.sum((values[middle:] - values[middle]) ** 2) / (2 * count)
        np.testing.assert_allclose(
            bonus_values(LeftTruncatedStdBonus(), make_dist(values))[0, 0] ** 2, expected, rtol=1e-4, atol=1e-9
        )


@pytest.mark.parametrize(
    ("values", "variance"),
    [
        ([1.0, 2.0, 4.0, 8.0], (0.25**2 + 4.25**2) / 2),  # around the mean, 3.75
        ([8.0, 4.0, 2.0, 1.0], (1.75**2 + 2.75**2) / 2),  # crossed quantiles stay where they are
        ([0.0, 3.0, 3.0], (1 + 1) / 2),
    ],
)
def test_the_released_std_is_that_of_the_upper_half_around_the_mean(values, variance):
    spread = bonus_values(LeftTruncatedStdBonus(released=True), make_dist(values))
    np.testing.assert_allclose(spread, [[variance**0.5]], rtol=1e-6)


def test_std_bonuses_weigh_values_with_their_probabilities():
    """Atoms 0, 1, 2 with 0.2, 0.5, 0.3: the median is 1, the mean 1.1, the variance 0.2·1.21 + 0.5·0.01 + 0.3·0.81."""
    dist = ReturnDist(jnp.asarray([[[[0.0, 1.0, 2.0]]]]), np.zeros(3, np.float32), jnp.asarray([[[[0.2, 0.5, 0.3]]]]))
    np.testing.assert_allclose(bonus_values(LeftTruncatedStdBonus(), dist), [[0.15**0.5]], rtol=1e-6)
    np.testing.assert_allclose(bonus_values(StdBonus(), dist), [[0.49**0.5]], rtol=1e-6)


def test_std_bonuses_are_averaged_over_members():
    values = jnp.asarray([[[[1.0, 2.0, 4.0, 8.0]], [[0.0, 0.0, 0.0, 0.0]]]])
    dist = ReturnDist(values, midpoints(4).astype(np.float32))
    for bonus in (LeftTruncatedStdBonus(), LeftTruncatedStdBonus(released=True), StdBonus(), QEMStdBonus()):
        one = bonus_values(bonus, ReturnDist(values[:, :1], dist.levels))
        np.testing.assert_allclose(bonus_values(bonus, dist), one / 2, rtol=1e-5)


@pytest.mark.parametrize("coefficient", [False, True])
@pytest.mark.parametrize("levels", ["fixed", "random"])
def test_qem_finds_the_std_of_a_normal_distribution_exactly_whatever_its_sign(coefficient, levels):
    taus = midpoints(32) if levels == "fixed" else np.random.default_rng(0).uniform(size=(1, 1, 1, 32))
    z = ndtri(taus).reshape(-1)
    dist = make_dist(3 + 2 * z, 1 - 0.5 * z, levels=taus.astype(np.float32))
    spread = bonus_values(QEMStdBonus(QEM(4, TailVariance(1.5)), coefficient), dist)
    np.testing.assert_allclose(spread, [[2.0, 0.5]], rtol=1e-3)


def test_the_whole_variance_of_the_fit_has_more_in_it_than_the_coefficient_of_the_scale():
    """Exp(1) has variance 1; its expansion has a coefficient of 0.903 for the scale alone (E[z·q(Φ(z))])."""
    dist = make_dist(-np.log1p(-midpoints(200)))
    whole, scale = (float(bonus_values(QEMStdBonus(coefficient=c), dist)[0, 0]) for c in (False, True))
    assert whole == pytest.approx(1.0, abs=0.01)
    assert scale == pytest.approx(0.903, abs=0.005)


def test_the_plain_std_is_the_standard_deviation_of_the_quantiles():
    values = np.random.default_rng(1).normal(size=(3, 20))
    np.testing.assert_allclose(bonus_values(StdBonus(), make_dist(*values)), values.std(-1)[None], rtol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "step", "factor"),
    [
        (SqrtLogDecay(), 0, 0.0),  # log 1
        (SqrtLogDecay(), 1, 50 * (np.log(2) / 2) ** 0.5),
        (SqrtLogDecay(), 99, 50 * (np.log(100) / 100) ** 0.5),
        (SqrtLogDecay(1.0, until_steps=99), 10**9, (np.log(100) / 100) ** 0.5),
        (PowerDecay(3.0, 0.5), 8, 1.0),
        (PowerDecay(3.0, 0.0), 8, 3.0),
        (LinearDecay(1.0, 0.2, 100), 50, 0.6),
        (LinearDecay(1.0, 0.2, 100), 1000, 0.2),
    ],
)
def test_schedules(schedule, step, factor):
    assert float(schedule(jnp.int32(step))) == pytest.approx(factor, rel=1e-5)


def choose(exploration: BonusExploration, now: ActionContext, seed=0, evaluating=False) -> int:
    start = exploration.init(1, SPEC)
    actions, state = exploration.select_action(start, now, jax.random.key(seed), evaluating)
    assert state == ()
    assert exploration.intrinsic_reward(state) is None
    assert actions.dtype == jnp.int32
    return int(actions[0])


def test_the_bonus_is_added_to_q_as_much_as_the_schedule_says():
    """Spreads 0 and √5: with c the second action has c·√5 more, against a Q of 1 less."""
    dist = make_dist([0.0] * 4, [1.0, 2.0, 4.0, 8.0])
    for factor, action in ((0.44, 0), (0.45, 1)):
        exploration = BonusExploration(LeftTruncatedStdBonus(), LinearDecay(factor, factor))
        assert choose(exploration, context(dist, [1.0, 0.0])) == action
        assert choose(exploration, context(dist, [1.0, 0.0]), evaluating=True) == 0
        assert choose(exploration, context(dist, [1.0, 0.0], mask=[True, False])) == 0


@pytest.mark.parametrize(("random_steps", "learning_starts", "end"), [(None, 7, 7), (3, 7, 3), (0, 7, 0)])
def test_actions_are_random_before(random_steps, learning_starts, end):
    exploration = BonusExploration(LeftTruncatedStdBonus(), random_steps=random_steps)
    dist = make_dist([0.0] * 4, [0.0] * 4)
    for step in (0, 2, 3, 6, 7):
        now = context(dist, [1.0, 0.0], step, learning_starts=learning_starts)
        chosen = {choose(exploration, now, seed) for seed in range(30)}
        assert chosen == ({0, 1} if step < end else {0})


@pytest.mark.parametrize(("count_from", "factor"), [("start", 0.7356), ("warm-up", 29.436)])
def test_the_first_factor_on_atari_depends_on_where_t_starts(count_from, factor):
    """The second action has c·√5 more by DLTV: it is taken while its Q is less than that below the first one's."""
    dist = make_dist([0.0] * 4, [1.0, 2.0, 4.0, 8.0])
    exploration = BonusExploration(LeftTruncatedStdBonus(), SqrtLogDecay(50.0, 2_000_000), count_from=count_from)
    for gap, action in ((0.999, 1), (1.001, 0)):
        now = context(dist, [gap * factor * 5**0.5, 0.0], step=50_000, learning_starts=50_000)
        assert choose(exploration, now) == action


def test_in_evaluation_actions_are_random_as_often_as_asked():
    now = context(make_dist([0.0] * 4, [0.0] * 4), [1.0, 0.0])
    for evaluation, expected in ((0.0, {0}), (1.0, {0, 1})):
        exploration = BonusExploration(StdBonus(), evaluation=evaluation)
        assert {choose(exploration, now, seed, evaluating=True) for seed in range(30)} == expected


@pytest.mark.parametrize(
    ("bonus", "representation", "message"),
    [
        (LeftTruncatedStdBonus(), Scalar(), "LeftTruncatedStdBonus needs a return distribution"),
        (StdBonus(), Scalar(), "StdBonus needs a return distribution"),
        (LeftTruncatedStdBonus(released=True), GaussianHistogram(), "needs quantiles, and GaussianHistogram has none"),
        (QEMStdBonus(), Scalar(), "QEM needs quantiles, and Scalar has none"),
        (QEMStdBonus(), GaussianHistogram(), "QEM needs quantiles, and GaussianHistogram has none"),
        (QEMStdBonus(QEM(5)), FixedQuantiles(4), "QEM needs at least 5 quantiles, got num_quantiles=4"),
    ],
)
def test_a_bonus_that_does_not_fit_is_refused(bonus, representation, message):
    with pytest.raises(ValueError, match=message):
        ValueConfig(representation=representation, exploration=BonusExploration(bonus))


@pytest.mark.parametrize("representation", [Categorical(), FixedQuantiles(), ImplicitQuantiles()])
@pytest.mark.parametrize("bonus", [LeftTruncatedStdBonus(), StdBonus(), CountBonus()])
def test_bonuses_of_any_distribution_fit_all_of_them(bonus, representation):
    assert ValueConfig(
        representation=representation, exploration=BonusExploration(bonus)
    ).exploration == BonusExploration(bonus)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BonusExploration(StdBonus(), random_steps=-1), "random_steps must not be negative, got -1"),
        (lambda: BonusExploration(StdBonus(), evaluation=1.5), "evaluation must be a probability, got 1.5"),
        (lambda: QEMStdBonus(QEM(1)), "order 1 fits no standard deviation"),
        (lambda: SqrtLogDecay(-1.0), "scale=-1.0"),
        (lambda: SqrtLogDecay(until_steps=0), "until_steps must be positive or None, got 0"),
        (lambda: PowerDecay(-1.0), "scale=-1.0"),
        (lambda: PowerDecay(power=-0.5), "power must not be negative"),
        (lambda: LinearDecay(final=-0.5), "finite and not negative"),
        (lambda: LinearDecay(final=float("nan")), "finite and not negative"),
        (lambda: LinearDecay(initial=float("inf")), "finite and not negative"),
        (lambda: SqrtLogDecay(float("inf")), "finite and not negative"),
        (lambda: LinearDecay(over_steps=0), "over_steps must be positive, got 0"),
        (lambda: CountBonus(offset=0.0), "offset must be positive, got 0.0"),
        (lambda: CountBonus(reward=-0.1), "reward=-0.1"),
        (lambda: CountBonus(bits=25), "bits must be between 1 and 24, got 25"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
