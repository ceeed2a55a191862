"""How fast value agents learn: against QR-DQN of sb3-contrib, with QEM against without, and against the hardware.

Rates of the two libraries are taken in turns, each turn in a process of its own, once with one thread of arithmetic and
once with what there is. The best of each library's thread counts is what is compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.iterations import Overhead, Share, compare_iterations, measure_shares
from benchmarks.machine import describe_machine
from benchmarks.peers import SB3, make_peer
from benchmarks.qemrl_value import settings
from benchmarks.roofline import matrix_multiply_peak
from benchmarks.turns import (
    THREADS,
    TURNS,
    Sides,
    Speed,
    compare_best,
    in_words,
    own_turn,
    peer_turn,
)


class Task(NamedTuple):
    """What is compared."""

    title: str
    target: float
    """How many times as many steps per second as the peer are expected."""
    seeds: tuple[int, ...]
    """How many seeds of ours run at once; for the first the target holds."""


TASKS: Mapping[str, Task] = {
    "cartpole": Task("CartPole, N=200, update every step", 8.0, (1,)),
    "pong": Task("Pong, N=200, update every 4", 1.3, (1,)),
    "minatar": Task("MinAtar Breakout, N=51, update every 4", 10.0, (1, 3)),
}
"""Batches of 32 in all."""


@dataclass(frozen=True)
class ValueReport:
    """All lines, and where they come from."""

    speeds: list[Speed]
    overheads: list[Overhead]
    shares: list[Share]
    machine: dict[str, str]

    def as_json(self) -> dict:
        """The report as plain data."""
        return asdict(self)


def run(seconds: float, folder: Path, tell: Callable[[str], None]) -> ValueReport:
    """Time everything.

    Args:
        seconds: How long each side of a task is timed with each number of threads, over all its turns.
        folder: Where the peer's virtual environment is, or is to be made.
        tell: Told what is being done.

    Raises:
        PeerError: The peer's environment could not be made, or one of its turns failed.
    """
    if not seconds > 0:
        raise ValueError(f"timing takes seconds, got {seconds}")
    tell("making the peer's virtual environment, some minutes the first time")
    python = make_peer("sb3", SB3, folder)
    # First, while no other process has run: these are differences of percents.
    overheads = compare_iterations(max(3, round(3 * seconds)), tell)
    configs = {task: settings(task).agent for task in TASKS}
    tell("the peak of matrix products")
    shares = measure_shares(configs, matrix_multiply_peak(), max(3, round(5 * seconds)), tell)
    speeds = [line for name in TASKS for line in compare_rates(name, seconds / TURNS, python, tell)]
    return ValueReport(speeds, overheads, shares, describe_machine(SB3))


def compare_rates(name: str, seconds: float, python: Path, tell: Callable[[str], None]) -> list[Speed]:
    """A line for each number of seeds of ours, from turns of `seconds` each."""
    task = TASKS[name]
    sides: dict[tuple[str, int], list[float]] = {}
    for turn in range(TURNS):
        for threads in THREADS:
            for seeds in task.seeds:
                tell(f"{name}, turn {turn + 1} of {TURNS}: qemrl, {in_words(threads)}, {seeds} at once")
                mine = own_turn("qemrl_value", name, seconds, threads, "--seeds", str(seeds))
                sides.setdefault((f"qemrl {seeds}", threads), []).append(mine.steps_per_second)
            tell(f"{name}, turn {turn + 1} of {TURNS}: sb3-contrib, {in_words(threads)}")
            theirs = peer_turn(python, name, seconds, threads)
            sides.setdefault(("sb3", threads), []).append(theirs.steps_per_second)
    return [make_speed(name, seeds, task.target if seeds == task.seeds[0] else None, sides) for seeds in task.seeds]


def make_speed(name: str, seeds: int, target: float | None, sides: Sides) -> Speed:
    """The best of our thread counts against the best of the peer's, turn by turn."""
    return compare_best(sides, f"qemrl {seeds}", "sb3", name, seeds, target)
