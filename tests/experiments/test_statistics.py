"""Confidence intervals: against other ways to compute them, and whether they cover."""

import math

import numpy as np
import pytest
from scipy import stats

from qemrl.experiments.statistics import (
    Interval,
    jackknife_interval,
    mean_interval,
    ratio_of_variances_interval,
    share_interval,
)


def test_the_interval_of_a_mean_is_students():
    samples = np.random.default_rng(0).gamma(2.0, size=11)
    low, high = stats.t.interval(0.95, 10, samples.mean(), stats.sem(samples))
    interval = mean_interval(samples)
    np.testing.assert_allclose(interval, [samples.mean(), low, high])
    assert {type(part) for part in interval} == {float}


def test_the_interval_of_two_samples_is_the_one_by_hand():
    # mean 1, standard deviation √2, t = 12.706 with one degree of freedom
    assert mean_interval(np.array([0.0, 2.0])) == pytest.approx((1.0, 1 - 12.7062047, 1 + 12.7062047))


def test_intervals_of_means_cover_the_truth_in_95_of_100_cases():
    rng = np.random.default_rng(1)
    intervals = [mean_interval(rng.normal(3.0, 2.0, 5)) for _ in range(3000)]
    covered = np.mean([i.low <= 3.0 <= i.high for i in intervals])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 3000)


def test_a_single_sample_says_nothing_of_its_uncertainty_and_none_is_refused():
    alone = mean_interval(np.array([1.5]))
    assert alone == (1.5, -math.inf, math.inf)
    assert not alone.bounded
    assert str(alone) == "1.5"
    with pytest.raises(ValueError, match="at least one sample"):
        mean_interval(np.array([]))


def test_the_words_about_a_difference_follow_its_interval():
    assert Interval(2.0, 0.5, 3.5).verdict == "higher"
    assert Interval(-2.0, -3.5, -0.5).verdict == "lower"
    assert Interval(2.0, -0.5, 4.5).verdict == "no significant difference"
    assert Interval.unbounded(2.0).verdict == "one seed shows nothing"


def test_the_interval_of_a_share_is_wilsons():
    # 8 of 10: center (0.8 + z²/20) / (1 + z²/10), and so on, with z = 1.96
    assert share_interval(8, 10) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-7)
    low, high = stats.binomtest(3, 40).proportion_ci(method="wilson")
    assert share_interval(3, 40) == pytest.approx((0.075, low, high))
    assert share_interval(0, 5).low == 0
    assert share_interval(5, 5).high == 1
    assert 0 < share_interval(0, 5).high < 0.5


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_more_hits_than_trials_are_refused(hits, trials):
    with pytest.raises(ValueError, match=f"got {hits} hits in {trials} trials"):
        share_interval(hits, trials)


def test_ratios_of_variances_cover_the_truth_in_95_of_100_cases():
    rng = np.random.default_rng(2)
    covered, widths = [], []
    for _ in range(1500):
        shared, own = rng.normal(size=(2, 40))
        first, second = 2 * shared + 5, shared + 0.5 * own  # variances 4 and 1.25
        interval = ratio_of_variances_interval(first, second)
        assert interval.low < interval.value < interval.high
        covered.append(interval.low <= 3.2 <= interval.high)
        widths.append(interval.high / interval.low)
    assert abs(np.mean(covered) - 0.95) < 0.03
    assert np.median(widths) < 2.5


def test_the_ratio_of_a_sample_and_its_multiple_is_exact():
    samples = np.random.default_rng(3).normal(size=20)
    assert ratio_of_variances_interval(3 * samples, samples) == pytest.approx((9.0, 9.0, 9.0))


def test_the_jackknife_leaves_each_pair_out_in_turn():
    first, second = np.random.default_rng(4).normal(size=(2, 9))
    logs = [math.log(np.delete(first, i).var(ddof=1) / np.delete(second, i).var(ddof=1)) for i in range(9)]
    error = math.sqrt(8 / 9 * np.sum((np.array(logs) - np.mean(logs)) ** 2))
    value = first.var() / second.var()
    reach = stats.t.ppf(0.975, 8) * error
    expected = (value, value * math.exp(-reach), value * math.exp(reach))
    assert ratio_of_variances_interval(first, second) == pytest.approx(expected)


def test_less_than_three_pairs_are_refused():
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(2,\); at least three pairs are needed"):
        ratio_of_variances_interval(np.arange(2.0), np.arange(2.0))


def test_intervals_print_their_ends_unless_they_are_exact():
    assert str(Interval(0.123456, 0.1, 0.2)) == "0.1235 [0.1, 0.2]"
    assert str(Interval.exact(2.0)) == "2"
    assert Interval(0.123456, 0.1, 0.2).format_ends(".2f") == "[0.10, 0.20]"
    assert Interval.unbounded(2.0).format_ends() == ""


def test_the_jackknife_of_a_mean_is_students_interval():
    samples = np.array([1.0, 2.0, 4.0, 9.0])
    assert jackknife_interval(lambda x: float(x.mean()), samples) == pytest.approx(mean_interval(samples))


def test_the_jackknife_of_a_ratio_of_means_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        first = rng.normal(3.0, 1.0, size=(20, 5))
        second = 0.5 * first + rng.normal(0.0, 0.3, size=(20, 5))
        interval = jackknife_interval(lambda a, b: float(a.mean() / b.mean()), first, second)
        hits += interval.low < 2 < interval.high
    assert 0.92 < hits / 400 < 0.98


def test_the_jackknife_needs_three_samples():
    with pytest.raises(ValueError, match="at least three samples are needed, got 2"):
        jackknife_interval(lambda each: float(each.mean()), np.ones(2))
