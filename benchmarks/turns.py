"""Turns: stretches of learning, ours and others', each in a process of its own, and what is made of their rates.

A program that takes a turn prints a line of JSON at its end: its steps per second, and how many cores it kept busy.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PeerError, last_lines

TURNS = 3
"""How many turns each side gets with each number of threads."""

SINGLE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""Makes XLA compute each operation in one thread. Learning still has a thread beside that of the environment."""

THREADS = (1, 2)
"""The numbers of threads that all sides are tried with; for XLA, two means as many as it likes."""

READY = "ready"
"""What a program says when it is warm and waits."""

Sides = Mapping[tuple[str, int], Sequence[float]]
"""Steps per second in each turn, by side and number of threads."""


class Turn(NamedTuple):
    """What a turn came to."""

    steps_per_second: float
    cores: float
    """Processor time for each second on the clock."""


@dataclass(frozen=True)
class Speed:
    """Steps per second of ours and of a peer in one task."""

    task: str
    seeds: int
    """How many seeds of ours ran at once; steps are counted over all of them."""
    steps_per_second: float
    threads: int
    """With how many threads that was."""
    peer: str
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


def compare_best(sides: Sides, side: str, peer: str, task: str, seeds: int, target: float | None) -> Speed:
    """The best of our thread counts against the best of the peer's, turn by turn."""
    mine, threads = _best(sides, side)
    theirs, peer_threads = _best(sides, peer)
    return Speed(
        task,
        seeds,
        statistics.median(mine),
        threads,
        peer,
        statistics.median(theirs),
        peer_threads,
        ratio_by_turns(mine, theirs),
        target,
        {f"{name}, {in_words(count)}": list(rates) for (name, count), rates in sides.items() if name in (side, peer)},
    )


def ratio_by_turns(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over turns, each compared with its twin."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def _best(sides: Sides, side: str) -> tuple[Sequence[float], int]:
    """The turns with the number of threads whose median is largest, of those that were not given up."""
    candidates = [(rates, count) for (name, count), rates in sides.items() if name == side]
    return max(candidates, key=lambda candidate: (len(candidate[0]), statistics.median(candidate[0])))


def in_words(threads: int) -> str:
    """A number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def environment_for(threads: int) -> dict[str, str]:
    """The environment variables of a process whose XLA is to use so many threads."""
    environment = dict(os.environ)
    if threads == 1:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {SINGLE_THREAD}".strip()
    return environment


def own_turn(module: str, task: str, seconds: float, threads: int, *options: str) -> Turn:
    """A turn of ours, taken by a module of this package."""
    return _take([*own_command(module, task, seconds), *options], environment_for(threads))


def own_command(module: str, task: str, seconds: float) -> list[str]:
    """What starts a turn of ours."""
    return [sys.executable, "-m", f"benchmarks.{module}", task, "--seconds", str(seconds)]


def peer_turn(python: Path, task: str, seconds: float, threads: int) -> Turn:
    """A turn of a peer, whose virtual environment has this interpreter."""
    program = Path(__file__).with_name("peer_turns.py")
    options = ["--seconds", str(seconds), "--threads", str(threads)]
    # Isolated: neither our folders nor the user's packages are in its way.
    return _take([str(python), "-I", str(program), task, *options], environment_for(threads))


def _take(command: list[str], environment: dict[str, str]) -> Turn:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise _failed(command, done.stderr)
    return read_turn(done.stdout)


def _failed(command: list[str], errors: str) -> PeerError:
    return PeerError(f"`{' '.join(command)}` failed with\n{last_lines(errors)}")


def turns_at_once(commands: Sequence[list[str]], environment: dict[str, str]) -> list[Turn]:
    """Turns that are taken at the same time.

    The programs are those that say when they are warm, and then wait for a line before they start their clocks.

    Raises:
        PeerError: One of them failed.
    """
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
            )
            for command in commands
        ]
        try:
            return _taken_together(processes, commands)
        finally:
            for process in processes:  # where one failed, the others would wait for ever
                process.kill()


def _taken_together(processes: Sequence[subprocess.Popen[str]], commands: Sequence[list[str]]) -> list[Turn]:
    for process, command in zip(processes, commands, strict=True):
        if not _says_ready(process):
            raise _failed(command, process.communicate()[1])
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    turns = []
    for process, command in zip(processes, commands, strict=True):
        output, errors = process.communicate()
        if process.returncode:
            raise _failed(command, errors)
        turns.append(read_turn(output))
    return turns


def _says_ready(process: subprocess.Popen[str]) -> bool:
    """Whether a program says that it is warm before it comes to its end."""
    assert process.stdout is not None
    return any(line.strip() == READY for line in iter(process.stdout.readline, ""))


def wait_for_the_others() -> None:
    """Say that this program is warm, and wait until all are; see `turns_at_once`."""
    print(READY, flush=True)
    sys.stdin.readline()


def read_turn(output: str) -> Turn:
    """What a turn came to, from the last line that it printed; libraries greet before it.

    Raises:
        PeerError: It does not say.
    """
    lines = output.strip().splitlines()
    try:
        said = json.loads(lines[-1])
        return Turn(float(said["steps_per_second"]), float(said["cores"]))
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise PeerError(f"a turn should end with its steps per second as JSON, got {last_lines(output)!r}") from error
