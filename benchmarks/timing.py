"""Times of functions that are to be compared, taken in turns so that a busy machine is busy for all of them."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Seconds per call, in each round."""

    rounds: list[float]

    @property
    def seconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    def ratio_to(self, other: "Timing") -> float:
        """How many times as long as `other` this takes: the median over rounds, each compared with its twin."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


def time_in_turns(
    functions: Mapping[str, Callable[[], Any]],
    wait: Callable[[Any], Any],
    rounds: int = 60,
    seconds_per_turn: float = 0.01,
) -> dict[str, Timing]:
    """Time each function once a round, for as many calls as fit into a turn.

    Args:
        functions: What to time, by name. Each is called twice before, to compile it.
        wait: Blocks until the result that it is given is there.
        rounds: How many turns each function gets.
        seconds_per_turn: How long a turn is, about.
    """
    calls = {}
    for name, function in functions.items():
        wait(function())
        start = time.perf_counter()
        for _ in range(10):
            wait(function())
        calls[name] = max(1, round(10 * seconds_per_turn / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, function in functions.items():
                start = time.perf_counter()
                for _ in range(calls[name]):
                    wait(function())
                times[name].append((time.perf_counter() - start) / calls[name])
    finally:
        gc.enable()
    return {name: Timing(values) for name, values in times.items()}
