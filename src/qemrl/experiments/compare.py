"""Presets against one another on one environment: the runs, the numbers with their uncertainty, and the figure.

Runs are paired by seed: seeds of the same number have the same start of the environment and the same draws of the
exploration, so the difference of a pair has less noise than its parts.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from qemrl.agents.presets import make_agent
from qemrl.agents.value import ValueConfig
from qemrl.config.serialize import to_json
from qemrl.experiments.curves import Curve, draw, read_curve
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.exploration import EpsilonGreedy
from qemrl.plotting import style as figures
from qemrl.training.callbacks import Callback
from qemrl.training.config import RunConfig, configure, read_config
from qemrl.training.loops import describe_environment
from qemrl.training.run_directory import RunDirectory, write_atomic
from qemrl.training.train import train

LEAST_EVALUATIONS = 10
"""How many points a learning curve has at least."""

Watch = Callable[[RunConfig], AbstractContextManager[Callback]]
"""Whoever is told how a run goes, for as long as it does."""


@dataclass(frozen=True)
class ComparisonRequest:
    """What a comparison is asked to be; None stands for what the runs that are there already have."""

    presets: tuple[str, ...]
    env: str | None = None
    steps: int | None = None
    seed: int | None = None
    num_seeds: int | None = None


DEFAULT_NUM_SEEDS = 3


def plan(asked: ComparisonRequest, folder: Path, explore_over: float | None = None) -> list[RunConfig]:
    """The runs of a comparison: those in the folder as they are, and new ones for what is missing.

    Args:
        asked: The presets, and what the runs must have in common.
        folder: Where each preset has a run directory of its name.
        explore_over: The share of a new run over which exploration fades; by default what the preset says.

    Raises:
        ValueError: A run is there that is not what was asked for, or one is missing and too little is said about it.
    """
    if len(asked.presets) < 2 or len(set(asked.presets)) < len(asked.presets):
        raise ValueError(f"a comparison takes two or more different presets, got: {' '.join(asked.presets) or 'none'}")
    configs = [_planned(preset, asked, folder, explore_over) for preset in asked.presets]
    for what in ("env", "steps", "seeds"):
        found = {getattr(config, what) for config in configs}
        if len(found) > 1:
            each = "; ".join(f"{config.preset} has {getattr(config, what)}" for config in configs)
            raise ValueError(f"runs can be compared only if they have the same {what}: {each}")
    return configs


def _planned(preset: str, asked: ComparisonRequest, folder: Path, explore_over: float | None) -> RunConfig:
    path = folder / preset
    wanted = {"env": asked.env, "steps": asked.steps, "seed": asked.seed, "num_seeds": asked.num_seeds}
    if (path / "config.json").exists():
        config = read_config(RunDirectory(path).config)
        for name, value in ({"preset": preset} | wanted).items():
            there = getattr(config, name)
            if value is not None and there != value:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{path} holds a run with {option} {there}, and {value} is asked for; choose another --out, or "
                    f"leave {option} out to compare what is there"
                )
        return config
    if asked.env is None or asked.steps is None:
        raise ValueError(f"there is no run in {path} yet; to train it, say --env and --steps")
    num_seeds = DEFAULT_NUM_SEEDS if asked.num_seeds is None else asked.num_seeds
    config = configure(preset, asked.env, asked.steps, asked.seed or 0, num_seeds)
    if explore_over is not None and isinstance(config.agent, ValueConfig):
        exploration = config.agent.exploration
        if isinstance(exploration, EpsilonGreedy):
            exploration = replace(exploration, over_steps=max(1, int(explore_over * asked.steps)))
        config = replace(config, agent=replace(config.agent, exploration=exploration))
    return dense(config)


def dense(config: RunConfig) -> RunConfig:
    """The run, evaluated often enough for a curve: a short one more often than its family has it."""
    if config.steps >= LEAST_EVALUATIONS * config.evaluate_every:
        return config
    unit = config.schedule.steps
    wanted = max(1, config.steps // LEAST_EVALUATIONS)
    decade = 10 ** (len(str(wanted)) - 1)
    round_number = max(decade * digit for digit in (1, 2, 5) if decade * digit <= wanted)
    every = max(unit, round_number // unit * unit)
    log_every = every // 5 if every % 5 == 0 and every // 5 % unit == 0 else every
    return replace(config, log_every=log_every, evaluate_every=every, checkpoint_every=LEAST_EVALUATIONS // 2 * every)


def prepare(config: RunConfig, path: Path) -> RunDirectory:
    """The run directory of a configuration: the one that is there, or a new one.

    Raises:
        ValueError: The environment is unknown or not one for this agent, or the folder holds something else.
    """
    if (path / "config.json").exists():
        return RunDirectory(path)
    make_agent(config.agent, describe_environment(config))
    return RunDirectory.create(path, to_json(config), {"command": "compare"})


def complete(config: RunConfig, directory: RunDirectory, watch: Watch) -> None:
    """Train a run to its end from wherever it is; one that is finished is left alone.

    Raises:
        Stopped: The run was asked to stop; its state is saved, and calling this again goes on.
    """
    if not directory.done:
        with watch(config) as callback:
            train(config, directory, callback)


@dataclass(frozen=True)
class Result:
    """What came of one preset."""

    curve: Curve
    final: Interval
    """The last evaluation, over seeds; with one seed, its number without an interval."""

    average: Interval
    """The area under the evaluation curve over its length, over seeds."""

    steps_per_second: float | None
    """Of all seeds together, the median of the run's records; None where no times were kept."""

    config_hash: str
    commit: str | None


@dataclass(frozen=True)
class Difference:
    """One preset minus the first, over pairs of seeds."""

    preset: str
    against: str
    seeds: tuple[int, ...]
    final: Interval
    average: Interval

    @property
    def verdict(self) -> str:
        """What the difference of the last evaluations shows, in words."""
        if len(self.seeds) < 2:
            return "one seed shows nothing"
        if self.final.low <= 0 <= self.final.high:
            return "no significant difference"
        return "higher" if self.final.value > 0 else "lower"


@dataclass(frozen=True)
class Comparison:
    """Presets on one environment; differences are against the first."""

    env: str
    steps: int
    results: list[Result]
    differences: list[Difference]


def compare(directories: Sequence[RunDirectory]) -> Comparison:
    """The numbers of runs on the same environment, the first of which the others are compared with."""
    results = [_result(directory) for directory in directories]
    first = results[0].curve
    others = [paired(result.curve, first) for result in results[1:]]
    return Comparison(first.env, int(first.steps[-1]), results, others)


def paired(curve: Curve, against: Curve) -> Difference:
    """The differences between two curves, with intervals over the seeds that both have.

    Raises:
        ValueError: They have no seed in common, or were not last evaluated at the same step.
    """
    seeds = tuple(seed for seed in curve.seeds if seed in against.seeds)
    if not seeds or curve.steps[-1] != against.steps[-1]:
        raise ValueError(
            f"{curve.label} (seeds {curve.seeds}, {curve.steps[-1]} steps) and {against.label} (seeds "
            f"{against.seeds}, {against.steps[-1]} steps) cannot be paired: give both the same seeds and steps"
        )
    mine = [curve.seeds.index(seed) for seed in seeds]
    theirs = [against.seeds.index(seed) for seed in seeds]
    final = curve.final[mine] - against.final[theirs]
    average = curve.average[mine] - against.average[theirs]
    return Difference(curve.label, against.label, seeds, _interval(final), _interval(average))


def _interval(samples: Float[np.ndarray, " seeds"]) -> Interval:
    return mean_interval(samples) if len(samples) > 1 else Interval.exact(samples[0])


def _result(directory: RunDirectory) -> Result:
    curve = read_curve(directory.path)
    text = json.dumps(directory.config, sort_keys=True)
    return Result(
        curve=curve,
        final=_interval(curve.final),
        average=_interval(curve.average),
        steps_per_second=_speed(directory),
        config_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        commit=directory.record.get("commit"),
    )


def _speed(directory: RunDirectory) -> float | None:
    """The median, so that neither compiling nor a run's short last part counts."""
    rates = [record["time/fps"] for record in directory.read_timing()]
    return float(np.median(rates)) if rates else None


def write(comparison: Comparison, directories: Sequence[RunDirectory], folder: Path) -> list[Path]:
    """Save the figure, the data of all seeds and the numbers; the paths are returned."""
    paths = figures.save(draw([result.curve for result in comparison.results]), folder, "figure")
    table, numbers = folder / "data.csv", folder / "comparison.json"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["preset", "seed", "step", "eval/mean_reward", "rollout/ep_rew_mean"])
        for result, directory in zip(comparison.results, directories, strict=True):
            for record in directory.read_metrics():
                pair = (record.get("eval/mean_reward"), record.get("rollout/ep_rew_mean"))
                values = ["" if value is None else value for value in pair]
                writer.writerow([result.curve.label, record["seed"], record["step"], *values])
    write_atomic(numbers, json.dumps(_as_json(comparison), indent=2) + "\n")
    return [*paths, table, numbers]


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "env": comparison.env,
        "steps": comparison.steps,
        "runs": [
            {
                "preset": result.curve.label,
                "seeds": list(result.curve.seeds),
                "final": result.final._asdict(),
                "final_by_seed": result.curve.final.tolist(),
                "average": result.average._asdict(),
                "average_by_seed": result.curve.average.tolist(),
                "steps_per_second": result.steps_per_second,
                "config_hash": result.config_hash,
                "commit": result.commit,
            }
            for result in comparison.results
        ],
        "differences": [
            {
                "preset": difference.preset,
                "against": difference.against,
                "seeds": list(difference.seeds),
                "final": difference.final._asdict(),
                "average": difference.average._asdict(),
                "verdict": difference.verdict,
            }
            for difference in comparison.differences
        ],
    }
