"""Presets against one another on one environment: the runs, the numbers with their uncertainty, and the figure.

Runs are paired by seed: seeds of the same number have the same start of the environment and the same draws of the
exploration, so the difference of a pair has less noise than its parts.
"""

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qemrl.agents.presets import make_agent
from qemrl.agents.value import ValueConfig
from qemrl.config.override import flatten
from qemrl.config.serialize import to_json
from qemrl.experiments.records import EVALUATION, TRAINING
from qemrl.experiments.runs import RunRecord, build_curve, read_run
from qemrl.experiments.scores import pair_curves
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.exploration import EpsilonGreedy
from qemrl.plotting import style
from qemrl.plotting.curves import Curve, draw_curves
from qemrl.training.config import RunConfig, configure, read_config, require_complete
from qemrl.training.files import write_atomic
from qemrl.training.loops import check_imports, describe_environment
from qemrl.training.run_directory import RunDirectory, find_differences

LEAST_EVALUATIONS = 10
"""How many points a learning curve has at least."""

INTERVALS = ("log_every", "evaluate_every", "checkpoint_every")
"""The settings that `evaluate_often` changes, unless they are given."""


@dataclass(frozen=True)
class ComparisonRequest:
    """What to compare; None stands for what the runs that are there already have."""

    presets: tuple[str, ...]
    env: str | None = None
    steps: int | None = None
    seed: int | None = None
    num_seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all presets, by dotted name; of runs that are there, what they must have."""

    allow_imports: bool = False
    """Whether a module that a run names for its environment may be imported, where `env` does not name it."""


DEFAULT_NUM_SEEDS = 3


def plan(asked: ComparisonRequest, folder: Path, explore_over: float | None = None) -> list[RunConfig]:
    """The runs of a comparison: those in the folder as they are, and new ones for what is missing.

    Args:
        asked: The presets, and what the runs must have in common.
        folder: Where each preset has a run directory of its name.
        explore_over: The share of a new run over which exploration fades; by default what the preset says.

    Raises:
        ImportRefused: A run that is there would import a module, and nobody allowed that.
        ValueError: A run is there that is not what was asked for, or one is missing and too little is said about it.
    """
    if len(asked.presets) < 2 or len(set(asked.presets)) < len(asked.presets):
        raise ValueError(f"a comparison takes two or more different presets, got: {' '.join(asked.presets) or 'none'}")
    configs = [_plan_run(preset, asked, folder, explore_over) for preset in asked.presets]
    for what in ("env", "steps", "seeds"):
        found = {getattr(config, what) for config in configs}
        if len(found) > 1:
            each = "; ".join(f"{config.preset} has {getattr(config, what)}" for config in configs)
            raise ValueError(f"runs can be compared only if they have the same {what}: {each}")
    return configs


def _plan_run(preset: str, asked: ComparisonRequest, folder: Path, explore_over: float | None) -> RunConfig:
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
        check_imports(config, asked.allow_imports or asked.env is not None)
        if asked.overrides:
            _require_settings(config, asked, path)
        return config
    if asked.env is None or asked.steps is None:
        raise ValueError(f"there is no run in {path} yet; to train it, say --env and --steps")
    num_seeds = DEFAULT_NUM_SEEDS if asked.num_seeds is None else asked.num_seeds
    config = _configure(preset, asked.env, asked.steps, asked.seed or 0, num_seeds, asked.overrides)
    if explore_over is not None and isinstance(config.agent, ValueConfig):
        exploration = config.agent.exploration
        if isinstance(exploration, EpsilonGreedy):
            exploration = replace(exploration, over_steps=max(1, int(explore_over * asked.steps)))
        config = replace(config, agent=replace(config.agent, exploration=exploration))
    return config if any(name in INTERVALS for name in flatten(asked.overrides)) else evaluate_often(config)


def _configure(preset: str, env: str, steps: int, seed: int, num_seeds: int, overrides: Mapping[str, Any]) -> RunConfig:
    try:
        return configure(preset, env, steps, seed, num_seeds, overrides=overrides)
    except ValueError as error:
        raise ValueError(f"{preset}: {error}" if overrides else str(error)) from error


def _require_settings(config: RunConfig, asked: ComparisonRequest, path: Path) -> None:
    """Raise unless a run that is there has the settings that are asked for."""
    wanted = _configure(config.preset, config.env, config.steps, config.seed, config.num_seeds, asked.overrides)
    kept = {name: getattr(config, name) for name in INTERVALS if name not in flatten(asked.overrides)}
    differences = find_differences(to_json(config), to_json(replace(wanted, **kept)), "")
    if differences:
        raise ValueError(
            f"{path} holds a run with other settings: {'; '.join(differences)}. Choose another --out, or leave the "
            "settings out to compare what is there"
        )


def evaluate_often(config: RunConfig) -> RunConfig:
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
        there = RunDirectory(path)
        if not there.done:
            require_complete(config)
        return there
    make_agent(config.agent, describe_environment(config))
    return RunDirectory.create(path, to_json(config), {"command": "compare"})


@dataclass(frozen=True)
class Result:
    """The results of one preset."""

    run: RunRecord
    curve: Curve

    @property
    def final(self) -> Interval:
        """The last evaluation, over seeds; with one seed, its number without an interval."""
        return mean_interval(self.curve.final)

    @property
    def average(self) -> Interval:
        """The area under the evaluation curve over its length, over seeds."""
        return mean_interval(self.curve.average)


@dataclass(frozen=True)
class Difference:
    """One preset minus the first, over pairs of seeds."""

    preset: str
    against: str
    seeds: tuple[int, ...]
    final: Interval
    average: Interval


@dataclass(frozen=True)
class Comparison:
    """Presets on one environment; differences are against the first."""

    env: str
    steps: int
    results: list[Result]
    differences: list[Difference]


def compare(directories: Sequence[RunDirectory]) -> Comparison:
    """The numbers of runs on the same environment, the first of which the others are compared with."""
    results = [_read_result(directory.path) for directory in directories]
    first = results[0].curve
    others = [subtract(result.curve, first) for result in results[1:]]
    return Comparison(first.env, int(first.steps[-1]), results, others)


def subtract(curve: Curve, against: Curve) -> Difference:
    """The differences between two curves, with intervals over the seeds that both have.

    Raises:
        ValueError: They have no seed in common, or were not last evaluated at the same step.
    """
    mine, theirs = pair_curves(curve, against)
    final, average = mean_interval(mine.final - theirs.final), mean_interval(mine.average - theirs.average)
    return Difference(curve.label, against.label, mine.seeds, final, average)


def _read_result(path: Path) -> Result:
    run = read_run(path, path.name)
    curve = build_curve(run.config.preset, run.config.env_name, run.whole_evaluations)
    if curve is None and run.losses:
        raise ValueError(f"{path} has no seed that lacks nothing: {'; '.join(run.losses)}; remove it to run it again")
    if curve is None:
        raise ValueError(
            f"{path} has no evaluation yet; its first comes after {run.config.evaluate_every} steps: let "
            f"`qemrl resume {path}` run for a while"
        )
    return Result(run, curve)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Save the figure, the data of all seeds and the numbers; the paths are returned."""
    paths = style.save(draw_curves([result.curve for result in comparison.results]), folder, "figure")
    table, numbers = folder / "data.csv", folder / "comparison.json"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["preset", "seed", "step", EVALUATION, TRAINING])
        for result in comparison.results:
            for point in result.run.points:
                values = ["" if value is None else value for value in (point.evaluation, point.training)]
                writer.writerow([result.curve.label, point.seed, point.step, *values])
    data = {
        "env": comparison.env,
        "steps": comparison.steps,
        "runs": [_result_json(result) for result in comparison.results],
        "differences": [_difference_json(difference) for difference in comparison.differences],
    }
    write_atomic(numbers, json.dumps(data, indent=2) + "\n")
    return [*paths, table, numbers]


def _result_json(result: Result) -> dict[str, Any]:
    text = json.dumps(result.run.record["config"], sort_keys=True)
    return {
        "preset": result.curve.label,
        "seeds": list(result.curve.seeds),
        "final": _interval_json(result.final),
        "final_by_seed": result.curve.final.tolist(),
        "average": _interval_json(result.average),
        "average_by_seed": result.curve.average.tolist(),
        "steps_per_second": result.run.steps_per_second,
        "config_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
        "commit": result.run.record.get("commit"),
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "preset": difference.preset,
        "against": difference.against,
        "seeds": list(difference.seeds),
        "final": _interval_json(difference.final),
        "average": _interval_json(difference.average),
        "verdict": difference.final.verdict,
    }


def _interval_json(interval: Interval) -> dict[str, float]:
    """JSON has no infinity: the only seed has its number at both ends."""
    return (interval if interval.bounded else Interval.exact(interval.value))._asdict()
