"""All runs below a folder, by algorithm and task, whoever made them: `train`, `compare` or `sweep`."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qemrl.agents.names import SUMMARIES
from qemrl.experiments.curves import Curve
from qemrl.experiments.worker import cause_of_failure
from qemrl.training.config import RunConfig, read_config
from qemrl.training.run_directory import RunDirectory

State = Literal["finished", "unfinished", "failed"]


@dataclass(frozen=True)
class RunRecord:
    """What a run directory says about its run."""

    name: str
    """Its folder, as seen from the folder in which it was found."""

    path: Path
    arm: str
    """The algorithm: the name that the run was given in a grid, else its preset."""

    config: RunConfig
    record: dict[str, Any]
    """All of config.json: the configuration, the versions and whatever else was kept."""

    state: State
    cause: str
    """Why it failed; empty if it did not."""

    step: int
    """The last step with a record; zero if there is none yet."""

    evaluations: dict[int, dict[int, float]]
    """The mean return of each evaluation, by seed and step."""

    steps_per_second: float | None
    """Of all seeds together, the median of the run's records; None where no times were kept."""

    seconds: float
    """What learning and evaluating took by these records, parts that were done again included."""

    machines: tuple[str, ...]
    """What computed it; more than one if it went on elsewhere, none where that was not kept."""


@dataclass(frozen=True)
class Unreadable:
    """A run that is not counted, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """All runs of an algorithm on a task."""

    arm: str
    env: str
    runs: tuple[RunRecord, ...]
    curve: Curve | None
    """Of the finished runs at the steps that all of them have; if none is finished, of all runs. None without any."""

    finished: bool
    """Whether the curve is of finished runs."""


@dataclass(frozen=True)
class RunCollection:
    """The runs below a folder, with algorithms in the order of their presets and tasks in that of their names."""

    folder: Path
    runs: tuple[RunRecord, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The algorithms."""
        names = list(SUMMARIES)
        presets = {run.arm: names.index(run.config.preset) for run in reversed(self.runs)}
        return tuple(sorted(presets, key=lambda arm: (presets[arm], arm)))

    @property
    def envs(self) -> tuple[str, ...]:
        """The tasks."""
        return tuple(sorted({run.config.env for run in self.runs}))

    def cells(self) -> dict[tuple[str, str], Cell]:
        """The runs by algorithm and task, in that order."""
        found: dict[tuple[str, str], Cell] = {}
        for arm in self.arms:
            for env in self.envs:
                runs = tuple(run for run in self.runs if (run.arm, run.config.env) == (arm, env))
                if runs:
                    found[arm, env] = _cell(arm, env, runs)
        return found


def read_runs(folder: Path) -> RunCollection:
    """The runs below a folder, or of the folder itself; a run that cannot be read does not stop the others.

    Raises:
        ValueError: There is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give one that holds runs, such as the --out of `qemrl sweep`")
    runs: list[RunRecord] = []
    unreadable: list[Unreadable] = []
    first_by_key: dict[tuple[str, str, int], str] = {}
    for file in files_below(folder, "config.json"):
        name = file.parent.relative_to(folder).as_posix()
        try:
            run = read_run(file.parent, name)
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:  # what damaged files lead to
            plain = isinstance(error, OSError | ValueError)
            reason = str(error) if plain else f"a file is damaged: {error!r}"
            unreadable.append(Unreadable(name, from_there(reason, file.parent, name)))
            continue
        keys = [(run.arm, run.config.env, seed) for seed in run.config.seeds]
        twin = next((first_by_key[key] for key in keys if key in first_by_key), None)
        if twin is not None:
            reason = f"{twin} is of the same algorithm ({run.arm}), task ({run.config.env}) and seed, and came first"
            unreadable.append(Unreadable(name, reason))
            continue
        first_by_key.update(dict.fromkeys(keys, name))
        runs.append(run)
    return RunCollection(folder, tuple(runs), tuple(unreadable))


def from_there(text: str, path: Path, name: str) -> str:
    """A text about a folder that calls it by its name: where that lies is nobody's business who reads about runs."""
    return re.sub(rf"(?<![\w/.-]){re.escape(str(path))}(?![\w.-])", lambda _: name, text)


def files_below(folder: Path, name: str) -> Iterator[Path]:
    """All files of that name in a folder and below it, in order; not in hidden folders, and not inside of runs."""
    for place, folders, files in os.walk(folder):
        if name in files:
            yield Path(place, name)
        inside_run = "config.json" in files
        folders[:] = [] if inside_run else sorted(below for below in folders if not below.startswith("."))


def read_run(path: Path, name: str) -> RunRecord:
    """The run in a run directory.

    Args:
        path: The run directory.
        name: What to call it.

    Raises:
        ValueError: A file of it is damaged.
    """
    directory = RunDirectory(path)
    config = read_config(directory.config)
    if config.preset not in SUMMARIES:
        raise ValueError(f"{path / 'config.json'} names the preset {config.preset!r}, which there is not")
    extra = directory.record.get("extra")
    arm = extra.get("arm", config.preset) if isinstance(extra, dict) else config.preset
    if not isinstance(arm, str) or not arm:
        raise ValueError(f"{path / 'config.json'}: the name of an algorithm must be text, got {arm!r}")
    evaluations, step = _evaluations(directory, config)
    cause = "" if directory.done else cause_of_failure(path) or _not_finite(path, step)
    state: State = "finished" if directory.done else "failed" if cause else "unfinished"
    rates, machines = _timing(directory)
    median = float(np.median([rate for _, rate in rates])) if rates else None
    # A record is of the steps since the last multiple of log_every.
    seconds = sum(((at - 1) % config.log_every + 1) * config.num_seeds / rate for at, rate in rates)
    happened = (state, cause, step, evaluations, median, float(seconds), machines)
    return RunRecord(name, path, arm, config, directory.record, *happened)


def _not_finite(path: Path, step: int) -> str:
    """Why a run stopped that put its state aside, if it has not gone further since; else nothing."""
    steps = [int(folder.name.removeprefix("step_")) for folder in (path / "failed").glob("step_[0-9]*")]
    return f"numbers were not finite at step {max(steps):,}" if steps and max(steps) >= step else ""


def _evaluations(directory: RunDirectory, config: RunConfig) -> tuple[dict[int, dict[int, float]], int]:
    """The evaluations by seed and step, and the last step of any record."""
    means: dict[int, dict[int, float]] = {seed: {} for seed in config.seeds}
    last = 0
    for number, record in enumerate(directory.read_metrics(), start=1):
        place = f"{directory.path / 'metrics.jsonl'}, line {number}"
        if not isinstance(record, dict) or not _is_count(record.get("step")) or record.get("seed") not in means:
            raise ValueError(f"{place}, has no step ≥ 0 or no seed of {config.seeds}")
        last = max(last, record["step"])
        value = record.get("eval/mean_reward")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{place}: eval/mean_reward must be a finite number, got {value!r}")
        means[record["seed"]][record["step"]] = float(value)
    return means, last


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _timing(directory: RunDirectory) -> tuple[list[tuple[int, float]], tuple[str, ...]]:
    """Steps and steps per second of all records, and the machines that they name."""
    rates, machines = [], {}
    for number, record in enumerate(directory.read_timing(), start=1):
        rate = record.get("time/fps") if isinstance(record, dict) else None
        if not isinstance(rate, int | float) or not rate > 0 or not _is_count(record.get("step")):
            raise ValueError(
                f"{directory.path / 'timing.jsonl'}, line {number}, has no step ≥ 0 or no time/fps above 0"
            )
        rates.append((record["step"], float(rate)))
        if "machine" in record:
            machines[str(record["machine"])] = None
    return rates, tuple(machines)


def _cell(arm: str, env: str, runs: Sequence[RunRecord]) -> Cell:
    done = [run for run in runs if run.state == "finished" and any(run.evaluations.values())]
    by_seed: dict[int, dict[int, float]] = {}
    for run in done or runs:
        by_seed |= {seed: means for seed, means in run.evaluations.items() if means}
    steps = sorted(set.intersection(*(set(means) for means in by_seed.values()))) if by_seed else []
    if not steps:
        return Cell(arm, env, tuple(runs), None, bool(done))
    seeds = tuple(sorted(by_seed))
    returns = np.array([[by_seed[seed][step] for step in steps] for seed in seeds], np.float64)
    return Cell(arm, env, tuple(runs), Curve(arm, env, np.array(steps), returns, seeds), bool(done))
