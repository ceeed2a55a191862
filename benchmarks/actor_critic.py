"""How fast actor-critics learn: against TQC and SAC of others, with QEM against without, and against the hardware.

All are on HalfCheetah with batches of 256, an update every step, two critics and two layers of 256; 32 quantiles where
there are any. Rates are taken in rounds, in which each side has a turn in a process of its own: in the first round with
one thread of arithmetic and with what there is, and then with the better of the two, which is what is compared.

The cores of a machine can also run several seeds, each in a process of its own that has one thread. Whether that makes
more steps than one seed after the other with all threads is measured here too.
"""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.iterations import SPECS, Overhead, Share, make_overhead, make_share, make_update, random_batch
from benchmarks.machine import describe_machine
from benchmarks.peers import SBX, make_peer
from benchmarks.qemrl_actor_critic import FAMILY, PRESETS_TIMED, agent
from benchmarks.roofline import matrix_multiply_peak, product_operations
from benchmarks.timing import Timing, time_in_turns
from benchmarks.turns import (
    THREADS,
    TURNS,
    Sides,
    Speed,
    Turn,
    compare_best,
    environment_for,
    in_words,
    own_command,
    own_turn,
    peer_turn,
    ratio_by_turns,
    turns_at_once,
)
from qemrl.agents.presets import make_agent

PROGRAM = "qemrl_actor_critic"
"""The module that takes our turns."""


class Contest(NamedTuple):
    """A preset of ours, whom it is timed against, and how many times as many steps per second are expected."""

    preset: str
    peer: str
    title: str
    target: float


CONTESTS = (
    Contest("dsac-mlp", "sb3-tqc", "dsac-mlp / TQC of sb3-contrib", 4.0),
    Contest("dsac-mlp", "sbx-tqc", "dsac-mlp / TQC of SBX", 1.5),
    Contest("sac", "sbx-sac", "sac / SAC of SBX", 1.2),
)


class Pair(NamedTuple):
    """A preset with QEM, the same without, and how many times as long an update of the first may take."""

    preset: str
    peer: str
    limit: float
    rounds: int
    """For each second of the bench; the slower, the fewer."""


PAIRS = (Pair("qem-dsac-mlp", "dsac-mlp", 1.01, 12), Pair("qem-dsac-iqn", "dsac-iqn", 1.05, 2))

ENGINE = "dsac-mlp"
"""The preset that seeds are run of in several ways."""

SEEDS = 2
"""How many seeds there are at once, and cores to run them on."""


@dataclass(frozen=True)
class Engine:
    """A way to run seeds on two cores."""

    name: str
    rates: list[float]
    """Steps per second of all seeds together, in each turn."""
    cores: float
    """How many cores it kept busy."""
    ratio: float
    """How many times as many steps as one seed with two threads: the median over turns, each compared with its twin."""


@dataclass(frozen=True)
class ActorCriticReport:
    """All lines, and where they come from."""

    speeds: list[Speed]
    overheads: list[Overhead]
    shares: list[Share]
    engines: list[Engine]
    machine: dict[str, str]

    def as_json(self) -> dict:
        """The report as plain data."""
        return asdict(self) | {"seeds_engine": self.best_engine.name}

    @property
    def best_engine(self) -> Engine:
        """The way to run seeds that makes the most steps."""
        return max(self.engines, key=lambda engine: engine.ratio)


def run(seconds: float, folder: Path, tell: Callable[[str], None]) -> ActorCriticReport:
    """Time everything.

    Args:
        seconds: How long each side is timed with each number of threads, over all its turns.
        folder: Where the peers' virtual environment is, or is to be made.
        tell: Told what is being done.

    Raises:
        PeerError: The peers' environment could not be made, or one of the turns failed.
    """
    if not seconds > 0:
        raise ValueError(f"timing takes seconds, got {seconds}")
    tell("making the peers' virtual environment, some minutes the first time")
    python = make_peer("sbx", SBX, folder)
    tell("the peak of matrix products")
    peak = matrix_multiply_peak()
    # First, while no other process has run: these are differences of percents.
    overheads, shares = compare_updates(seconds, peak, tell)
    speeds, engines = compare_rates(seconds / TURNS, python, tell)
    return ActorCriticReport(speeds, overheads, shares, engines, describe_machine(SBX))


def compare_updates(seconds: float, peak: float, tell: Callable[[str], None]) -> tuple[list[Overhead], list[Share]]:
    """What QEM costs in an update, and the share of the peak, in GFLOP/s, that each update reaches."""
    overheads, times = [], time_updates(("sac",), 5 * seconds, tell)
    for preset, peer, limit, rounds in PAIRS:
        pair = time_updates((preset, peer), rounds * seconds, tell)
        overheads.append(make_overhead(FAMILY, preset, pair[preset], peer, pair[peer], limit))
        times |= pair
    return overheads, [make_share(name, operations(name), time, peak) for name, time in times.items()]


def time_updates(presets: tuple[str, ...], rounds: float, tell: Callable[[str], None]) -> dict[str, Timing]:
    """The times of updates of presets, taken in turns."""
    tell(f"an update of {' and '.join(presets)}")
    functions = {name: make_update(agent(name), SPECS[FAMILY]) for name in presets}
    return time_in_turns(functions, jax.block_until_ready, max(3, round(rounds)), seconds_per_turn=0.02)


def operations(preset: str) -> int:
    """Floating-point operations of an update, see `roofline`."""
    config, spec = agent(preset), SPECS[FAMILY]
    learner = make_agent(config, spec)
    key = jax.random.key(0)
    state = jax.eval_shape(learner.init, key)
    return product_operations(learner.update, state, random_batch(spec, config.batch_size, 0), key, np.int32(0))


def compare_rates(seconds: float, python: Path, tell: Callable[[str], None]) -> tuple[list[Speed], list[Engine]]:
    """A line for each contest, and the ways to run seeds, from turns of `seconds` each."""
    turns: dict[tuple[str, int], list[Turn]] = {
        (side, threads): [] for threads in THREADS for side in (*PRESETS_TIMED, *(each.peer for each in CONTESTS))
    }
    together: dict[str, list[Turn]] = {name: [] for name in ENGINES}
    for number in range(1, TURNS + 1):
        for side, threads in list(turns) if number == 1 else worth_another(turns):
            tell(f"turn {number} of {TURNS}: {side}, {in_words(threads)}")
            ours = side in PRESETS_TIMED
            turn = own_turn(PROGRAM, side, seconds, threads) if ours else peer_turn(python, side, seconds, threads)
            turns[side, threads].append(turn)
            if (side, threads) == (ENGINE, SEEDS):  # right after what they are compared with
                for name, engine in ENGINES.items():
                    tell(f"turn {number} of {TURNS}: {ENGINE}, {name}")
                    together[name].append(engine(seconds))
    sides = {side: [turn.steps_per_second for turn in turns_taken] for side, turns_taken in turns.items()}
    return make_speeds(sides), make_engines(together | {ALONE: turns[ENGINE, SEEDS]})


def worth_another(turns: Mapping[tuple[str, int], list[Turn]]) -> list[tuple[str, int]]:
    """Each side with the number of threads that it was faster with in its first turn, and that of `ALONE`."""
    first = {case: turns_taken[0].steps_per_second for case, turns_taken in turns.items()}
    return [
        (side, threads)
        for side, threads in first
        if (side, threads) == (ENGINE, SEEDS) or first[side, threads] == max(first[side, count] for count in THREADS)
    ]


def processes_turn(seconds: float) -> Turn:
    """Processes of one thread each at once: all their steps, and the cores that they kept busy together."""
    command = [*own_command(PROGRAM, ENGINE, seconds), "--wait"]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    commands = [[*command, "--core", str(cores[number % len(cores)])] if cores else command for number in range(SEEDS)]
    # XLA has as many threads as NPROC says, where a process cannot be kept on a core.
    turns = turns_at_once(commands, environment_for(1) | {"NPROC": "1"})
    return Turn(sum(turn.steps_per_second for turn in turns), sum(turn.cores for turn in turns))


def side_by_side_turn(seconds: float) -> Turn:
    """The seeds of one run, as `qemrl train --num-seeds` trains them."""
    return own_turn(PROGRAM, ENGINE, seconds, SEEDS, "--num-seeds", str(SEEDS))


ENGINES = {
    "a process of one thread for each seed": processes_turn,
    "one process, seeds side by side": side_by_side_turn,
}

ALONE = "one process, one seed with two threads"
"""What the other ways are compared with."""


def make_speeds(sides: Sides) -> list[Speed]:
    """A line for each contest."""
    return [compare_best(sides, contest.preset, contest.peer, contest.title, 1, contest.target) for contest in CONTESTS]


def make_engines(turns: Mapping[str, list[Turn]]) -> list[Engine]:
    """The ways to run seeds, compared turn by turn."""
    rates = {name: [turn.steps_per_second for turn in turns_taken] for name, turns_taken in turns.items()}
    return [
        Engine(
            name,
            rates[name],
            statistics.median(turn.cores for turn in turns_taken),
            ratio_by_turns(rates[name], rates[ALONE]),
        )
        for name, turns_taken in turns.items()
    ]
