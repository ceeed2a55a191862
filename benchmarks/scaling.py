"""How cost grows with the number of seeds, of environments side by side, and of quantiles.

What is timed is a lap: as many steps of each environment as there are between two updates of a single one, and for each
environment an update. So work grows in proportion to seeds and environments. An exponent of 1 says that doing them
together gains nothing over one after the other; a smaller one, that it pays.

Laps over seeds and environments are those of the compiled loop. Over quantiles they are `make_iteration`'s, without
an environment, which is the same whatever the number of quantiles: those compile in seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from benchmarks.iterations import make_iteration
from benchmarks.machine import describe_machine
from benchmarks.timing import Timing, time_in_turns
from qemrl.agents.presets import AgentConfig
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.training.config import configure
from qemrl.training.loops import describe_environment, make_loop

LOOP_AGENT = "qr-dqn"
"""The preset whose loops are timed."""

QUANTILE_AGENTS: Mapping[str, tuple[str, bool]] = {
    "qr-dqn": ("qr-dqn", False),
    "qem-dqn": ("qem-dqn", False),
    "iqn": ("iqn", False),
    "iqn, shared": ("iqn", True),
}
"""Presets whose quantiles are counted up, and whether the transitions of a batch share their levels."""


@dataclass(frozen=True)
class Sizes:
    """The numbers that are timed, and where; where there are none, none are."""

    env: str = "minatar/breakout"
    seeds: tuple[int, ...] = (1, 2, 4, 8)
    environments: tuple[int, ...] = (1, 4, 16, 64)
    quantiles: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    agents: tuple[str, ...] = tuple(QUANTILE_AGENTS)
    """Whose quantiles are counted up."""
    laps: int = 200
    """Of one seed in one environment, in a call of the compiled loop; of more, fewer, so that calls take as long."""


@dataclass(frozen=True)
class Point:
    """What a lap takes with one number of something."""

    number: int
    milliseconds: float
    steps_per_second: float
    """Of all seeds and environments together."""


@dataclass(frozen=True)
class Growth:
    """How the time of a lap grows with the number of something."""

    over: str
    agent: str
    points: list[Point]
    exponent: float
    """Of the power of the number that fits the times best."""
    ratio: float
    """Time with the largest number over time with the smallest: the median over turns."""


@dataclass(frozen=True)
class ScalingReport:
    """All lines, and where they come from."""

    env: str
    growths: list[Growth]
    machine: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def run(seconds: float, tell: Callable[[str], None], sizes: Sizes | None = None) -> ScalingReport:
    """Time laps of all sizes, in turns.

    Args:
        seconds: A measure of how long; each size gets two turns for each of them, and three at least.
        tell: Told what is being done.
        sizes: What is timed, if not all.
    """
    if not seconds > 0:
        raise ValueError(f"timing takes seconds, got {seconds}")
    sizes = Sizes() if sizes is None else sizes
    rounds = max(3, round(2 * seconds))
    over_quantiles = grow_quantiles(sizes, rounds, tell)  # first, while memory is empty
    return ScalingReport(sizes.env, [*grow_loops(sizes, rounds, tell), *over_quantiles], describe_machine())


def grow_loops(sizes: Sizes, rounds: int, tell: Callable[[str], None]) -> list[Growth]:
    """The compiled loop over seeds, and over environments."""
    seeds = {number: (number, 1) for number in sizes.seeds}
    environments = {number: (1, number) for number in sizes.environments}
    functions, laps = {}, {}
    for case in dict.fromkeys([*seeds.values(), *environments.values()]):  # one seed in one environment is in both
        tell(f"compiling {LOOP_AGENT} on {sizes.env} with seeds x environments = {case[0]} x {case[1]}")
        laps[case] = max(4, sizes.laps // (case[0] * case[1]))
        functions[str(case)] = make_laps(sizes.env, *case, laps[case])
    tell(f"{len(functions)} numbers of seeds and environments in turns")
    calls = time_in_turns(functions, jax.block_until_ready, rounds, seconds_per_turn=0.2)
    times = {case: Timing([seconds / count for seconds in calls[str(case)].rounds]) for case, count in laps.items()}
    steps = configure(LOOP_AGENT, sizes.env, steps=1).agent.update_every
    return [
        make_growth(over, LOOP_AGENT, {n: times[case] for n, case in cases.items()}, {n: steps * n for n in cases})
        for over, cases in (("seeds", seeds), ("environments", environments))
        if cases
    ]


def make_laps(env: str, num_seeds: int, num_envs: int, laps: int) -> Callable[[], Any]:
    """A call of the compiled loop that goes on for so many laps, with learning from the first."""
    config = configure(LOOP_AGENT, env, steps=1, num_seeds=num_seeds, num_envs=num_envs)
    loop = make_loop(replace(config, evaluation_episodes=1))
    loop.advance(config.schedule.first_update, False, lambda: False)
    steps = laps * config.agent.update_every * num_envs
    return lambda: loop.advance(loop.step + steps, False, lambda: False)


def grow_quantiles(sizes: Sizes, rounds: int, tell: Callable[[str], None]) -> list[Growth]:
    """An update and the actions before it over quantiles, for each agent."""
    if not sizes.quantiles:
        return []
    spec = describe_environment(configure(LOOP_AGENT, sizes.env, steps=1))
    functions: dict[str, Callable[[], Any]] = {}
    steps: dict[str, int] = {}
    for agent in sizes.agents:
        for number in sizes.quantiles:
            tell(f"compiling {agent} with {number} quantiles")
            config = with_quantiles(agent, sizes.env, number)
            steps[agent] = config.update_every
            function = functions[f"{agent} {number}"] = make_iteration(config, spec)
            jax.block_until_ready(function())
    tell(f"{len(functions)} numbers of quantiles in turns")
    times = time_in_turns(functions, jax.block_until_ready, rounds, seconds_per_turn=0.02)
    return [
        make_growth(
            "quantiles",
            agent,
            {number: times[f"{agent} {number}"] for number in sizes.quantiles},
            dict.fromkeys(sizes.quantiles, steps[agent]),
        )
        for agent in sizes.agents
    ]


def with_quantiles(agent: str, env: str, number: int) -> AgentConfig:
    """The agent with so many quantiles; with levels that are drawn, so many of each kind (N = N' = K)."""
    preset, shared = QUANTILE_AGENTS[agent]
    config: Any = configure(preset, env, steps=1).agent
    match config.representation:
        case FixedQuantiles() as fixed:
            return replace(config, representation=replace(fixed, num_quantiles=number))
        case ImplicitQuantiles() as implicit:
            counts = replace(implicit, num_levels=number, num_target_levels=number, num_acting_levels=number)
            return replace(config, representation=replace(counts, share_levels=shared))
        case other:
            raise ValueError(f"{agent} has no quantiles to count, but {type(other).__name__}")


def make_growth(over: str, agent: str, times: Mapping[int, Timing], steps: Mapping[int, int]) -> Growth:
    """What the times of a lap, by number, come to.

    Args:
        over: What is counted.
        agent: Who learns.
        times: Of a lap.
        steps: In a lap, of all seeds and environments together.
    """
    smallest, largest = min(times), max(times)
    return Growth(
        over,
        agent,
        [Point(number, 1e3 * time.seconds, steps[number] / time.seconds) for number, time in times.items()],
        fitted_exponent(list(times), [time.seconds for time in times.values()]),
        times[largest].ratio_to(times[smallest]),
    )


def fitted_exponent(numbers: Sequence[int], seconds: Sequence[float]) -> float:
    """The p for which c · number ** p is nearest to the times: least squares of logarithms.

    Raises:
        ValueError: There is no second number, so nothing grows.
    """
    if len(set(numbers)) < 2:
        raise ValueError(f"growth takes two different numbers or more, got {list(numbers)}")
    return float(np.polyfit(np.log(numbers), np.log(seconds), 1)[0])
