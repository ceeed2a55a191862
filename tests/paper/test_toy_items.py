"""The items on small processes: they judge by their rules and agree with what is known otherwise."""

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import optimize

import qemrl
from qemrl.paper.claims import Claim, Result, judge
from qemrl.paper.items import chain, toy_exponential, toy_uniform
from qemrl.tabular import policy_values, sample_returns

MODULES = (toy_uniform, toy_exponential, chain)


def run_once(module: Any) -> Result:
    return _run_module(module.__name__)


@cache
def _run_module(name: str) -> Result:
    return sys.modules[name].run("smoke", 0, lambda _: None)


def claims_by_name(module: Any) -> dict[str, Claim]:
    return {claim.name: claim for claim in run_once(module).claims}


THRESHOLDS = {
    "first-quantile-is-the-upper-end": ("above", 0.5),
    "every-quantile-is-biased": ("above", 0.5),
    "mean-is-biased": ("above", 0.5),
    "qdrl-prefers-a2": ("above", 0.05),
    "fewer-wrong-choices-32": ("below", 0.0),
    "less-variance-32": ("above", 1.0),
    "underestimates-a1": ("below", 0.0),
    "overestimates-a2": ("above", 0.0),
    "larger-error-gap": ("above", 1.0),
    "larger-error-tails": ("above", 1.0),
    "larger-deviation-gap": ("above", 1.0),
    "larger-deviation-tails": ("above", 1.0),
    "more-crossing-x0": ("above", 0.0),
    "more-crossing-x5": ("above", 0.0),
    "less-variance-paper": ("above", 1.0),
    "less-variance-gap": ("above", 1.0),
    "less-variance-density": ("above", 1.0),
    "independent-errors": ("below", 0.1),
}


def test_verdicts_follow_from_what_was_measured_and_the_threshold_in_the_rule():
    claims = [claim for module in MODULES for claim in run_once(module).claims]
    assert {claim.name for claim in claims} == set(THRESHOLDS)
    assert len(claims) == len(THRESHOLDS)
    for claim in claims:
        side, threshold = THRESHOLDS[claim.name]
        assert claim.verdict == judge(claim.measured, **{side: threshold})
        assert claim.measured.low <= claim.measured.value <= claim.measured.high
        assert all((claim.where, claim.statement, claim.rule, claim.meaning))


def test_quantiles_of_the_two_uniforms_invert_their_distribution_function():
    for count in (4, 32):
        levels = np.concatenate([qemrl.midpoints(count), [0.2 / count, 0.123, 0.5, 1 - 0.2 / count]])
        for level, found in zip(levels, toy_uniform.true_quantiles(levels, count, 0.9), strict=True):

            def excess(x: float, count: int = count, level: float = level) -> float:
                return 0.5 * sum(np.clip(x / 0.9 - shift, 0, 1) for shift in (0, 1 / count)) - level

            assert found == pytest.approx(optimize.brentq(excess, 0, 0.9 * (1 + 1 / count)), abs=1e-9)


def test_true_quantiles_at_midpoints_are_the_middles_of_the_minimizers():
    for count in (4, 8):
        index, half = np.arange(1, count + 1), 0.9 / (2 * count)
        truth = toy_uniform.true_quantiles(qemrl.midpoints(count), count, 0.9)
        np.testing.assert_allclose(truth, 0.9 * index / count, rtol=1e-12)
        lower, middle, upper = toy_uniform.fixed_points(count)
        np.testing.assert_allclose(middle, truth, atol=2e-4)
        np.testing.assert_allclose(lower, truth - half, atol=2e-4)
        np.testing.assert_allclose(upper, truth + half, atol=2e-4)
        assert truth.mean() == pytest.approx(policy_values(toy_uniform.process(count), np.zeros(3, dtype=int))[0, 0])


def test_every_minimizer_of_the_first_level_has_the_same_loss():
    count = 8
    targets = 0.9 * np.concatenate([qemrl.midpoints(count), qemrl.midpoints(count) + 1 / count])

    def loss(theta: float) -> float:
        gaps = targets - theta
        return float(np.mean(np.maximum(gaps / (2 * count), gaps * (1 / (2 * count) - 1))))

    inside = [loss(0.9 * x / (2 * count)) for x in (1.0, 1.5, 2.0, 2.7, 3.0)]
    np.testing.assert_allclose(inside, inside[0], rtol=1e-12)
    assert min(loss(0.9 * 0.8 / (2 * count)), loss(0.9 * 3.2 / (2 * count))) > inside[0] + 1e-4


def test_quantile_td_does_not_go_to_the_upper_ends():
    claims = claims_by_name(toy_uniform)
    assert claims["first-quantile-is-the-upper-end"].verdict == "fails"
    assert claims["mean-is-biased"].verdict == "fails"


def test_wrong_choices_are_those_where_the_second_action_looks_better():
    np.testing.assert_array_equal(
        toy_exponential.wrong_choices(np.array([[1.2, 1.0], [0.9, 1.0], [1.0, 1.0]])), [0, 1, 0]
    )


def test_the_returns_of_both_actions_have_the_stated_means():
    process = toy_exponential.process()
    np.testing.assert_allclose(policy_values(process, toy_exponential.EITHER)[0], toy_exponential.MEANS)


def test_estimators_share_what_is_learned_and_both_means_come_out_too_low():
    rows = [row for row in run_once(toy_exponential).rows if row["transitions"] == 10_000]
    assert {row["estimator"] for row in rows} == set(toy_exponential.ESTIMATORS)
    assert all(row["bias_a1_high"] < 0 and row["bias_a2_high"] < 0 for row in rows)


def test_quantiles_at_the_start_of_the_chain_are_those_of_sampled_returns():
    process = chain.process()
    returns = sample_returns(process, np.zeros(6, dtype=int), 0, 100_000, np.random.default_rng(0))
    levels = qemrl.midpoints(8)
    np.testing.assert_allclose(chain.true_quantiles(levels), np.quantile(returns, levels), atol=0.06)


def test_regions_share_out_all_levels_and_the_gap_is_between_its_ends():
    levels = qemrl.midpoints(128)
    inside = chain.regions(levels)
    np.testing.assert_array_equal(np.sum(list(inside.values()), axis=0), 1)
    low, high = chain.gap_ends()
    np.testing.assert_array_equal(inside["gap"], (levels > low) & (levels < high))


def test_five_filters_of_the_same_rate_leave_a_quarter_of_the_variance():
    state, squares, rate = np.zeros((6, 400)), [], 0.05
    rng = np.random.default_rng(0)
    for step in range(6_000):
        inputs = np.concatenate([rng.normal(size=(1, 400)), state[:-1]])
        state = state + rate * (inputs - state)
        if step > 1_000:
            squares.append((state**2).mean(-1))
    variances = np.mean(squares, 0)
    assert variances[5] / variances[0] == pytest.approx(chain.filtered_share(6), rel=0.05)


def test_crossings_do_not_pair_levels_of_different_pieces():
    values = np.array([[0.0, 1.0, 0.5, 0.4, 2.0, 1.0]])
    inside = np.array([True, True, False, True, True, True])
    np.testing.assert_allclose(chain.crossings(values, inside), [1 / 3])


def test_intervals_of_a_ratio_of_means_and_of_a_correlation_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = np.zeros(2)
    for _ in range(400):
        ratio = chain.ratio_of_means(rng.exponential(2.0, 300), rng.exponential(1.0, 300))
        values = rng.normal(size=(300, 1)) + rng.normal(size=(300, 3))
        correlation = chain.neighbor_correlation(values)
        hits += [ratio.low < 2 < ratio.high, correlation.low < 0.5 < correlation.high]
    assert ((hits / 400 > 0.92) & (hits / 400 < 0.98)).all()


def test_errors_at_neighboring_levels_are_not_independent():
    assert claims_by_name(chain)["independent-errors"].verdict == "fails"
