"""Scores of many runs: against cases by hand, brute force, other libraries, and whether the intervals cover."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qemrl.experiments.scores import (
    STATISTICS,
    Scores,
    aggregate,
    compute_profile,
    find_references,
    find_steps_to,
    normalize,
    pair_curves,
    paired_difference,
    probability_of_improvement,
)
from qemrl.experiments.statistics import Interval
from qemrl.plotting.curves import Curve

# Few different values, so that ties between runs are common.
RUNS = st.lists(st.integers(-20, 20), min_size=2, max_size=6).map(lambda found: np.array(found, np.float64))
ARM = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), RUNS, min_size=1)
NAMES = pytest.mark.parametrize("name", list(STATISTICS))


def arm(seed: int, tasks: int = 5, runs: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"task {i}": rng.normal(i, 2.0, runs) for i in range(tasks)}


def compute(name: str, found: Scores) -> float:
    """A statistic without its interval."""
    return aggregate(found, name, 0, 40).value


def interquartile_mean(values: np.ndarray) -> float:
    return compute("IQM", {"a": values})


UNIT = (0.0, 1.0)
"""References that leave scores as they are."""


def ends(scores: list[float], seeds: tuple[int, ...] = ()) -> Curve:
    """A curve of one evaluation."""
    return Curve("x", "a", np.array([10]), np.array(scores)[:, None], seeds)


# Values


def test_a_quarter_is_left_out_at_either_end():
    assert interquartile_mean(np.array([100.0, 1.0, 3.0, -50.0])) == 2.0
    # two of nine go at either end, five stay
    assert interquartile_mean(np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, -99.0, -99.0])) == 5.0
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0
    assert interquartile_mean(np.array([7.0])) == 7.0


@pytest.mark.parametrize("count", range(1, 26))
def test_the_interquartile_mean_is_the_trimmed_mean(count):
    values = np.random.default_rng(count).gamma(0.5, size=count)
    middle = sorted(values)[count // 4 : count - count // 4]
    assert interquartile_mean(values) == pytest.approx(sum(middle) / len(middle))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_aggregates_pool_runs_or_average_tasks():
    found = {"a": np.array([0.0, 1.0]), "b": np.array([4.0, 5.0, 6.0, 100.0]), "c": np.array([10.0])}
    assert compute("IQM", found) == (1 + 4 + 5 + 6 + 10) / 5
    assert compute("mean", found) == pytest.approx((0.5 + 28.75 + 10) / 3)
    assert compute("median", found) == 10.0
    assert {type(compute(name, found)) for name in STATISTICS} == {float}


def test_scores_of_single_precision_are_aggregated_in_double():
    found = {"a": np.array([0.1, 0.2], np.float32)}
    assert compute("mean", found) == (float(np.float32(0.1)) + float(np.float32(0.2))) / 2


@NAMES
@given(found=ARM, shift=st.integers(-50, 50), scale=st.integers(1, 9))
def test_aggregates_move_and_stretch_with_the_scores(name, found, shift, scale):
    moved = {task: runs * scale + shift for task, runs in found.items()}
    expected = np.array(aggregate(found, name, 3, 100)) * scale + shift
    np.testing.assert_allclose(aggregate(moved, name, 3, 100), expected, atol=1e-9)


# The bootstrap


def check_against_enumeration(interval: Interval, resamples: int, every: list[float], value: float) -> None:
    """The ends are where the equally likely outcomes have 2.5% below and above, within Monte Carlo error."""
    assert interval.value == pytest.approx(value)
    slack = 5 * math.sqrt(0.025 * 0.975 / resamples)
    outcomes, rounding = np.array(every), 1e-9
    for end, share in ((interval.low, 0.025), (interval.high, 0.975)):
        assert (outcomes < end - rounding).mean() <= share + slack
        assert (outcomes <= end + rounding).mean() >= share - slack


def every_resample(*strata: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """All equally likely ways to redraw each stratum from itself."""
    return list(itertools.product(*(map(np.array, itertools.product(runs, repeat=len(runs))) for runs in strata)))


FIRST, SECOND = np.array([1.0, 2.5, 7.0]), np.array([0.0, 3.0, 3.5])


@NAMES
def test_intervals_of_aggregates_are_those_of_all_resamples(name):
    resamples = 20_000
    found = {"a": FIRST, "b": SECOND}
    every = [compute(name, {"a": a, "b": b}) for a, b in every_resample(FIRST, SECOND)]
    assert len(every) == 27 * 27
    check_against_enumeration(aggregate(found, name, 5, resamples), resamples, every, compute(name, found))


def test_tasks_of_equal_scores_are_redrawn_independently():
    # Were both redrawn alike, the lowest outcome (1, in 1 of 27 cases) would be the lower end.
    resamples = 20_000
    every = [(a.mean() + b.mean()) / 2 for a, b in every_resample(FIRST, FIRST)]
    interval = aggregate({"a": FIRST, "b": FIRST}, "mean", 6, resamples)
    check_against_enumeration(interval, resamples, every, FIRST.mean())
    assert interval.low > 1.2


def pairwise(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in theirs]))


def test_intervals_of_improvements_are_those_of_all_resamples():
    resamples = 20_000
    ours, theirs = np.array([1.0, 3.0, 7.0]), np.array([0.0, 3.0, 3.5])
    every = [pairwise(x, y) for x, y in every_resample(ours, theirs)]
    interval = probability_of_improvement({"a": ours}, {"a": theirs}, 7, resamples)
    check_against_enumeration(interval, resamples, every, pairwise(ours, theirs))


def test_an_arm_and_its_copy_are_redrawn_independently():
    # Were both redrawn alike, each resample would have one half exactly.
    interval = probability_of_improvement(arm(1), arm(1), 0)
    assert interval.value == 0.5
    assert interval.low < 0.4 < 0.6 < interval.high


def test_intervals_of_profiles_are_those_of_all_resamples():
    resamples = 20_000
    thresholds = np.array([0.5, 2.5, 3.2])
    shares = compute_profile({"a": FIRST, "b": SECOND}, thresholds, 8, resamples)
    for place, threshold in enumerate(thresholds):
        every = [((a > threshold).mean() + (b > threshold).mean()) / 2 for a, b in every_resample(FIRST, SECOND)]
        value = (np.mean(threshold < FIRST) + np.mean(threshold < SECOND)) / 2
        interval = Interval(*(float(part[place]) for part in shares))
        check_against_enumeration(interval, resamples, every, float(value))


def test_intervals_of_paired_differences_are_those_of_all_resamples():
    resamples = 20_000
    first = {"a": ends([1.0, 2.0, 9.0]), "b": ends([0.0, 1.0, 2.0])}
    second = {"a": ends([0.5, 2.5, 4.0]), "b": ends([1.0, 0.0, 5.0])}
    every = [(a.mean() + b.mean()) / 2 for a, b in every_resample(np.array([0.5, -0.5, 5]), np.array([-1.0, 1, -3]))]
    check_against_enumeration(
        paired_difference(first, second, {"a": UNIT, "b": UNIT}, 9, resamples), resamples, every, (5 / 3 - 1) / 2
    )


def everything(found: Scores, seed: int) -> list[np.ndarray]:
    """All intervals that there are, of one arm or of it and another; few resamples, so that seeds differ in each."""
    curves = {task: ends(runs.tolist()) for task, runs in found.items()}
    zeros = {task: ends([0.0] * 5) for task in found}
    units = dict.fromkeys(found, UNIT)
    single = [aggregate(found, name, seed, 100) for name in STATISTICS]
    pairs = [probability_of_improvement(found, arm(2), seed, 100), paired_difference(curves, zeros, units, seed, 100)]
    return [np.array(one) for one in (*single, *pairs, compute_profile(found, np.linspace(-2, 6, 50), seed, 100))]


def test_the_seed_is_honored_bit_for_bit():
    once, again, other = (everything(arm(1), seed) for seed in (11, 11, 12))
    for one, same, different in zip(once, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, different)


def test_the_order_of_tasks_does_not_matter():
    found = arm(1)
    for one, same in zip(everything(found, 4), everything(dict(reversed(found.items())), 4), strict=True):
        np.testing.assert_array_equal(one, same)


def test_the_draws_of_a_task_do_not_depend_on_the_other_tasks():
    found = arm(1)
    exact = {"task 9": np.zeros(3), "another": np.zeros(4)}
    alone = aggregate({"task 2": found["task 2"]}, "mean", 4)
    among = aggregate({"task 2": found["task 2"], **exact}, "mean", 4)
    np.testing.assert_allclose(np.array(among) * 3, alone)


def test_runs_without_spread_have_an_exact_interval():
    found = {"a": np.full(3, 0.1), "b": np.full(2, 7.0)}
    for name in STATISTICS:
        interval = aggregate(found, name, 0)
        assert interval.low == interval.value == interval.high


@pytest.mark.parametrize(("runs", "expected"), [(5, 0.90), (10, 0.93)])
def test_intervals_of_interquartile_means_cover_the_truth_about_as_often_as_they_say(runs, expected):
    rng = np.random.default_rng(3)
    covered = []
    for trial in range(200):
        # The pool of all tasks is symmetric about zero, so its interquartile mean is zero.
        found = {f"task {shift}": rng.normal(shift, 1.0, runs) for shift in (-2, -1, 0, 1, 2)}
        interval = aggregate(found, "IQM", trial, 500)
        covered.append(interval.low <= 0 <= interval.high)
    assert np.mean(covered) == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 200))


@NAMES
def test_intervals_are_as_wide_as_the_spread_of_the_estimate(name):
    rng = np.random.default_rng(4)
    draws = [{task: rng.normal(shift, 1.0, 40) for task, shift in (("a", -1), ("b", 0), ("c", 1))} for _ in range(300)]
    low, high = np.quantile([compute(name, found) for found in draws], (0.025, 0.975))
    widths = [interval.high - interval.low for interval in (aggregate(found, name, 0, 400) for found in draws[:20])]
    assert np.mean(widths) == pytest.approx(high - low, rel=0.2)


# Comparisons


@given(first=RUNS, second=RUNS)
def test_the_probability_of_improvement_is_that_of_all_pairs(first, second):
    value = probability_of_improvement({"a": first}, {"a": second}, 0, 40).value
    assert value == pytest.approx(pairwise(first, second))
    count = stats.mannwhitneyu(first, second, method="asymptotic").statistic
    assert value == pytest.approx(count / (len(first) * len(second)))


@given(first=ARM, second=ARM)
def test_one_of_two_arms_is_better_or_it_is_a_tie(first, second):
    first, second = {"a": np.arange(2.0), **first}, {"a": np.arange(3.0), **second}
    there, back = probability_of_improvement(first, second, 0, 40), probability_of_improvement(second, first, 0, 40)
    assert there.value + back.value == pytest.approx(1.0)
    assert 0 <= there.low <= there.high <= 1


def test_improvements_are_averaged_over_the_tasks_of_both():
    first = {"a": np.array([1.0, 2.0]), "b": np.array([0.0, 4.0, 4.0]), "only here": np.array([9.0])}
    second = {"only there": np.array([9.0]), "b": np.array([4.0, 5.0]), "a": np.array([0.0, 0.5])}
    # on a always better; on b two ties among six pairs
    assert probability_of_improvement(first, second, 0).value == pytest.approx((1 + (2 * 0.5) / 6) / 2)


def test_pairs_are_those_of_the_seeds_and_tasks_of_both():
    first = {"a": ends([5.0, 2.0, 100.0], (3, 1, 8)), "b": ends([1.0, 1.0]), "only here": ends([0.0])}
    second = {"a": ends([1.0, 2.0, -100.0], (1, 3, 2)), "b": ends([6.0, 4.0, 0.0], (1, 0, 7))}
    # differences on a: 1 and 3; on b: -3 and -5, which are -1.5 and -2.5 of its unit
    interval = paired_difference(first, second, {"a": UNIT, "b": (1.0, 3.0)}, 0)
    assert interval == pytest.approx((0.0, (1 - 2.5) / 2, (3 - 1.5) / 2))


def test_pairs_remove_what_both_arms_owe_to_the_seed():
    shared = np.random.default_rng(5).normal(0, 100.0, 8)
    first = {"a": ends([luck + 1 + 0.1 * (seed % 2) for seed, luck in enumerate(shared.tolist())])}
    interval = paired_difference(first, {"a": ends(shared.tolist())}, {"a": UNIT}, 0)
    assert 1.0 <= interval.low < interval.value < interval.high <= 1.1 + 1e-9


# Profiles


def test_a_profile_counts_the_runs_above_each_threshold():
    found = {"a": np.array([1.0, 2.0]), "b": np.array([0.0, 1.0, 2.0, 3.0])}
    thresholds = np.array([-1.0, 0.0, 1.0, 2.5, 3.0])
    shares = compute_profile(found, thresholds, 0)
    np.testing.assert_allclose(shares.share, [1, (1 + 3 / 4) / 2, (1 / 2 + 1 / 2) / 2, (0 + 1 / 4) / 2, 0])
    assert {part.shape for part in shares} == {(5,)}


@given(found=ARM, thresholds=st.lists(st.integers(-21, 21), min_size=1, max_size=9))
def test_profiles_fall_from_one_to_zero(found, thresholds):
    shares = compute_profile(found, np.array(sorted(thresholds), np.float64), 0, 40)
    for part in shares:
        assert (np.diff(part) <= 1e-12).all()
        assert (part >= 0).all()
        assert (part <= 1).all()
    outside = compute_profile(found, np.array([-21.0, 21.0]), 0, 40)
    np.testing.assert_array_equal(np.stack(outside), [[1, 0]] * 3)


def test_the_order_of_thresholds_does_not_matter():
    thresholds = np.array([2.0, -1.0, 0.5])
    shares, sorted_shares = (compute_profile(arm(0), wanted, 0) for wanted in (thresholds, np.sort(thresholds)))
    np.testing.assert_array_equal(np.stack(shares)[:, [1, 2, 0]], np.stack(sorted_shares))


# Scales


def test_normalized_scores_are_zero_and_one_at_the_references():
    found = {"b": np.array([1.0, 3.0, 2.0]), "a": np.array([-10.0, 10.0])}
    scaled = normalize(found, {"a": (-10.0, 0.0), "b": (1.0, 3.0), "unused": (0.0, 1.0)})
    assert list(scaled) == ["b", "a"]
    np.testing.assert_allclose(scaled["b"], [0, 1, 0.5])
    np.testing.assert_allclose(scaled["a"], [0, 2])


def curve(label: str, env: str, returns: list[list[float]], steps: tuple[int, ...] = (10, 20, 30)) -> Curve:
    return Curve(label, env, np.array(steps), np.array(returns, np.float64))


def test_references_are_the_lowest_mean_and_the_best_last_mean():
    curves = [
        curve("x", "a", [[0.0, 9.0, 4.0], [2.0, 9.0, 6.0]]),  # means 1, 9, 5
        curve("y", "a", [[3.0, -4.0, 4.0], [3.0, 6.0, 4.0]]),  # means 3, 1, 4
        curve("y", "b", [[-5.0, -7.0, -6.0]]),
    ]
    assert find_references(curves) == {"a": (1.0, 5.0), "b": (-7.0, -6.0)}


def test_where_nothing_was_better_than_the_lowest_scores_keep_their_unit():
    flat = [curve("x", "a", [[2.0, 2.0, 2.0]]), curve("y", "b", [[5.0, 4.0, 3.0]])]
    assert find_references(flat) == {"a": (2.0, 3.0), "b": (3.0, 4.0)}


# Sample efficiency


def test_the_first_evaluation_at_or_above_the_score_counts():
    found = curve("x", "a", [[0.0, 5.0, 1.0], [5.5, 0.0, 0.0], [0.0, 4.9, 4.9], [0.0, math.nan, 5.0]])
    np.testing.assert_array_equal(find_steps_to(found, 5.0), [20, 10, np.inf, 30])


# What is refused


INTERVALS: list[Callable[[dict[str, np.ndarray]], tuple]] = [
    lambda found: aggregate(found, "IQM", 0),
    lambda found: compute_profile(found, np.zeros(1), 0),
    lambda found: probability_of_improvement(found, {"a": np.arange(3.0)}, 0),
    lambda found: probability_of_improvement({"a": np.arange(3.0)}, found, 0),
]


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_single_run_has_a_value_and_no_interval(interval):
    value, low, high = interval({"a": np.array([1.0])})
    assert np.isfinite(value).all()
    assert (low, high) == (-math.inf, math.inf)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(interval, bad):
    with pytest.raises(ValueError, match=r"a has scores that are not finite: .*leave out the runs that failed"):
        interval({"a": np.array([1.0, bad])})


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_task_without_runs_is_refused(interval):
    with pytest.raises(ValueError, match="a has no runs; leave it out"):
        interval({"a": np.array([])})


@pytest.mark.parametrize("interval", INTERVALS)
def test_no_tasks_are_refused(interval):
    with pytest.raises(ValueError, match="there are no scores; give those of at least one task"):
        interval({})


def test_unknown_statistics_are_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="no statistic 'iqm'; choose one of IQM, mean, median"):
        aggregate(arm(0), "iqm", 0)


def test_bootstraps_need_enough_resamples_and_a_seed():
    with pytest.raises(ValueError, match="39 resamples do not give a 95% interval; draw 40 or more"):
        aggregate(arm(0), "mean", 0, 39)
    with pytest.raises(ValueError, match="cannot be -1; choose 0 or more"):
        aggregate(arm(0), "mean", -1)


def test_arms_without_a_common_task_are_refused():
    with pytest.raises(ValueError, match="there are no scores"):
        probability_of_improvement({"a": np.arange(2.0)}, {"b": np.arange(2.0)}, 0)


def test_rows_of_paired_curves_are_of_the_same_seeds():
    mine, theirs = pair_curves(ends([5.0, 2.0, 9.0], (3, 1, 8)), ends([1.0, 7.0, 2.0], (1, 0, 3)))
    assert mine.seeds == theirs.seeds == (3, 1)
    assert mine.final.tolist() == [5.0, 2.0]
    assert theirs.final.tolist() == [2.0, 1.0]
    with pytest.raises(ValueError, match=r"seeds \(0, 1\), 10 steps.*cannot be paired: give both the same seeds"):
        pair_curves(ends([1.0, 2.0]), ends([1.0, 2.0], (2, 3)))


def test_a_single_common_seed_has_no_interval():
    difference = paired_difference({"a": ends([1.0, 2.0], (0, 1))}, {"a": ends([1.5, 2.0], (1, 2))}, {"a": UNIT}, 0)
    assert difference == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize("thresholds", [[], [0.0, np.inf]])
def test_thresholds_must_be_finite(thresholds):
    with pytest.raises(ValueError, match="thresholds must be a list of finite numbers"):
        compute_profile(arm(0), np.array(thresholds), 0)
