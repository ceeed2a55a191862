"""The stopwatch behind the benches."""

import time

import pytest

from benchmarks.timing import Timing, time_in_turns


def test_functions_are_timed_in_turns_and_every_result_is_waited_for():
    log = []
    functions = {"a": lambda: log.append("a"), "b": lambda: log.append("b")}
    waits = []
    timings = time_in_turns(functions, wait=waits.append, rounds=3, seconds_per_turn=1e-9)
    assert log == ["a"] * 11 + ["b"] * 11 + ["a", "b"] * 3
    assert len(waits) == len(log)
    assert set(timings) == {"a", "b"}
    assert all(len(timing.rounds) == 3 for timing in timings.values())


def test_a_sleep_of_twice_the_length_has_a_ratio_of_two():
    functions = {"short": lambda: time.sleep(0.004), "long": lambda: time.sleep(0.008)}
    timings = time_in_turns(functions, wait=lambda result: result, rounds=5)
    assert 1.5 < timings["long"].ratio_to(timings["short"]) < 2.5


def test_the_ratio_is_the_median_over_rounds():
    # A machine that is ten times slower in the second round is so for both.
    ours, theirs = Timing([2.0, 30.0, 2.2]), Timing([1.0, 10.0, 1.0])
    assert ours.ratio_to(theirs) == pytest.approx(2.2)
    assert ours.seconds == pytest.approx(2.2)
