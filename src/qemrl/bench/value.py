"""How fast value agents learn: against QR-DQN of sb3-contrib, with QEM against without, and against the hardware.

Rates of the two libraries are taken in turns, each turn in a process of its own, once with one thread of arithmetic and
once with what there is. The best of each library's thread counts is what is compared.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import jax

from qemrl.bench.iterations import Overhead, Share, compare_iterations, measure_shares
from qemrl.bench.peers import SB3, PeerError, last_lines, make_peer
from qemrl.bench.qemrl_value import settings
from qemrl.bench.roofline import matrix_multiply_peak

TURNS = 3
"""How many turns each side gets with each number of threads."""

SINGLE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""Makes XLA compute each operation in one thread. Learning still has a thread beside that of the environment."""

THREADS = (1, 2)
"""The numbers of threads that both sides are tried with; for XLA, two means as many as it likes."""


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
class Speed:
    """Steps per second of ours and of the peer in one task."""

    task: str
    seeds: int
    """How many seeds of ours ran at once; steps are counted over all of them."""
    steps_per_second: float
    threads: int
    """With how many threads that was."""
    peer_steps_per_second: float
    peer_threads: int
    ratio: float
    """The median over turns, each compared with its twin."""
    target: float | None
    rates: dict[str, list[float]]
    """All turns, by side and number of threads."""

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches its target; None if there is none."""
        return None if self.target is None else self.ratio >= self.target


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
    device = jax.devices()[0]
    machine = {"jax": jax.__version__, "device": f"{device.platform}: {device.device_kind}"}
    machine |= {"python": platform.python_version(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    return ValueReport(speeds, overheads, shares, machine | {"peer": " ".join(package for g in SB3 for package in g)})


def compare_rates(name: str, seconds: float, python: Path, tell: Callable[[str], None]) -> list[Speed]:
    """A line for each number of seeds of ours, from turns of `seconds` each."""
    task = TASKS[name]
    sides: dict[tuple[str, int], list[float]] = {}
    for turn in range(TURNS):
        for threads in THREADS:
            for seeds in task.seeds:
                tell(f"{name}, turn {turn + 1} of {TURNS}: qemrl, {_count(threads)}, {seeds} at once")
                rate = own_rate(name, seconds, threads, seeds)
                sides.setdefault((f"qemrl {seeds}", threads), []).append(rate)
            tell(f"{name}, turn {turn + 1} of {TURNS}: sb3-contrib, {_count(threads)}")
            sides.setdefault(("sb3", threads), []).append(peer_rate(python, name, seconds, threads))
    return [speed_of(name, seeds, task.target if seeds == task.seeds[0] else None, sides) for seeds in task.seeds]


def speed_of(name: str, seeds: int, target: float | None, sides: Mapping[tuple[str, int], Sequence[float]]) -> Speed:
    """The best of our thread counts against the best of the peer's, turn by turn."""
    mine, threads = _best(sides, f"qemrl {seeds}")
    peer, peer_threads = _best(sides, "sb3")
    return Speed(
        name,
        seeds,
        statistics.median(mine),
        threads,
        statistics.median(peer),
        peer_threads,
        statistics.median(a / b for a, b in zip(mine, peer, strict=True)),
        target,
        {f"{side}, {_count(count)}": list(rates) for (side, count), rates in sides.items()},
    )


def _best(sides: Mapping[tuple[str, int], Sequence[float]], side: str) -> tuple[Sequence[float], int]:
    """The turns with the number of threads whose median is largest."""
    candidates = [(rates, count) for (name, count), rates in sides.items() if name == side]
    return max(candidates, key=lambda candidate: statistics.median(candidate[0]))


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def own_rate(name: str, seconds: float, threads: int, seeds: int) -> float:
    """Steps per second of ours, of all seeds together, in a process of its own."""
    environment = dict(os.environ)
    if threads == 1:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {SINGLE_THREAD}".strip()
    options = ["--seconds", str(seconds), "--seeds", str(seeds)]
    return _rate([sys.executable, "-m", "qemrl.bench.qemrl_value", name, *options], environment)


def peer_rate(python: Path, name: str, seconds: float, threads: int) -> float:
    """Steps per second of the peer in a process of its own."""
    program = Path(__file__).with_name("sb3_value.py")
    options = ["--seconds", str(seconds), "--threads", str(threads)]
    # Isolated: neither our folders nor the user's packages are in its way.
    return _rate([str(python), "-I", str(program), name, *options], dict(os.environ))


def _rate(command: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise PeerError(f"`{' '.join(command)}` failed with\n{last_lines(done.stderr)}")
    return read_rate(done.stdout)


def read_rate(output: str) -> float:
    """The rate in the last line of what a turn printed; libraries greet before it.

    Raises:
        PeerError: There is none.
    """
    lines = output.strip().splitlines()
    try:
        return float(json.loads(lines[-1])["steps_per_second"])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise PeerError(f"a turn should end with its steps per second as JSON, got {last_lines(output)!r}") from error
