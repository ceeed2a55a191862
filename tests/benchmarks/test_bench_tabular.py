"""The tabular bench: both sides of its comparison do the same work, and its report adds up."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tabular import TARGET, learn_in_numpy, numpy_direction, paper_learning, run
from qemrl import midpoints
from qemrl.tabular import Quantiles, frozen_lake, learn


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 16]))
def test_the_numpy_loop_makes_the_same_update(seed, count):
    rng = np.random.default_rng(seed)
    row, following = rng.integers(-8, 9, (2, count)) / 4  # exact in float32, with ties
    reward, discount = rng.integers(-2, 3) / 4, rng.choice([0.0, 0.5, 1.0])
    arguments = (jnp.asarray(part, jnp.float32) for part in (row, reward, discount, following))
    compiled = np.asarray(Quantiles(count).update(*arguments))
    plain = numpy_direction(row, reward + discount * following, midpoints(count))
    np.testing.assert_array_equal(compiled, plain.astype(np.float32))  # multiples of 1/32 at most: no rounding


def test_both_sides_learn_the_same_on_average():
    # A lake of three squares in a row; the means over seeds agree within four times their error
    mdp, quantiles, steps = frozen_lake(["SFG"], discount=0.9), Quantiles(8), 1500
    compiled = learn(mdp, paper_learning(quantiles, steps), range(12)).table.mean(-1)
    plain = np.stack([learn_in_numpy(mdp, quantiles, steps, np.random.default_rng(s)) for s in range(12)]).mean(-1)
    error = np.sqrt((compiled.var(0, ddof=1) + plain.var(0, ddof=1)) / 12)
    visited = [0, 1]
    np.testing.assert_array_less(np.abs(compiled.mean(0) - plain.mean(0))[visited], 4 * error[visited] + 1e-3)
    assert plain.mean(0)[1].max() > 0.5


def test_a_report_has_a_line_for_each_algorithm_that_adds_up():
    report = run(seeds=2, steps=40)
    assert [line.algorithm for line in report.comparisons] == ["QDRL", "QEMRL"]
    for line in report.comparisons:
        assert (line.seeds, line.steps, line.numpy_steps, line.target) == (2, 40, 40, TARGET)
        assert line.steps_per_second == pytest.approx(2 * 40 / line.seconds)
        assert line.numpy_steps_per_second > 0
        assert line.ratio > 0
        assert line.holds == (line.ratio >= TARGET)
    assert report.comparisons[0].compile_seconds > report.comparisons[0].seconds
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["comparisons"][1]["algorithm"] == "QEMRL"
    assert {"jax", "numpy", "device", "cores"} <= set(plain["machine"])


@pytest.mark.parametrize(("seeds", "steps"), [(0, 10), (1, 0), (1, 15)])
def test_what_cannot_be_timed_is_refused(seeds, steps):
    with pytest.raises(ValueError, match=f"multiples of 10; got {seeds} and {steps}"):
        run(seeds, steps)
