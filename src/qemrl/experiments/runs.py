"""The one reader of finished and unfinished runs: records, learning curves and progress from run directories.

Runs below a folder are sorted by algorithm and task, whether they come from `train`, `compare` or `sweep`.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from qemrl.agents.names import SUMMARIES
from qemrl.experiments.statistics import mean_interval
from qemrl.experiments.worker import cause_of_failure
from qemrl.plotting.curves import Curve
from qemrl.training.config import RunConfig, read_config
from qemrl.training.run_directory import RunDirectory

LEAST_FOR_BAND = 3
"""From how many seeds on a curve has an interval; that of two is so wide that it hides the curves."""

EVALUATION, TRAINING = "eval/mean_reward", "rollout/ep_rew_mean"
"""The tags of the mean return in metrics.jsonl: of an evaluation, and of the episodes of training."""

State = Literal["finished", "unfinished", "failed"]


class Point(NamedTuple):
    """What a line of metrics.jsonl says about returns."""

    seed: int
    step: int
    evaluation: float | None
    """The mean return of an evaluation, if there was one."""

    training: float | None
    """The mean return of the episodes that ended since the last line, if there was one."""


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

    points: tuple[Point, ...]
    """The returns, in the order of metrics.jsonl."""

    steps_per_second: float | None
    """Of all seeds together, the median of the run's records; None where no times were kept."""

    seconds: float
    """What learning and evaluating took by these records, parts that were done again included."""

    machines: tuple[str, ...]
    """What computed it; more than one if it went on elsewhere, none where that was not kept."""

    @property
    def step(self) -> int:
        """The last step with a record; zero if there is none yet."""
        return max((point.step for point in self.points), default=0)

    @cached_property
    def evaluations(self) -> dict[int, dict[int, float]]:
        """The mean return of each evaluation, by seed and step."""
        means: dict[int, dict[int, float]] = {seed: {} for seed in self.config.seeds}
        for point in self.points:
            if point.evaluation is not None:
                means[point.seed][point.step] = point.evaluation
        return means


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
        return tuple(sorted({run.config.env_name for run in self.runs}))

    def cells(self) -> dict[tuple[str, str], Cell]:
        """The runs by algorithm and task, in that order."""
        found: dict[tuple[str, str], Cell] = {}
        for arm in self.arms:
            for env in self.envs:
                runs = tuple(run for run in self.runs if (run.arm, run.config.env_name) == (arm, env))
                if runs:
                    found[arm, env] = _build_cell(arm, env, runs)
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
    for file in find_files(folder, "config.json"):
        name = file.parent.relative_to(folder).as_posix()
        try:
            run = read_run(file.parent, name)
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:  # what damaged files lead to
            plain = isinstance(error, OSError | ValueError)
            reason = str(error) if plain else f"a file is damaged: {error!r}"
            unreadable.append(Unreadable(name, relabel(reason, file.parent, name)))
            continue
        keys = [(run.arm, run.config.env_name, seed) for seed in run.config.seeds]
        twin = next((first_by_key[key] for key in keys if key in first_by_key), None)
        if twin is not None:
            reason = (
                f"{twin} is of the same algorithm ({run.arm}), task ({run.config.env_name}) and seed, and came first"
            )
            unreadable.append(Unreadable(name, reason))
            continue
        first_by_key.update(dict.fromkeys(keys, name))
        runs.append(run)
    return RunCollection(folder, tuple(runs), tuple(unreadable))


def relabel(text: str, path: Path, name: str) -> str:
    """A text with the path of a run replaced by its name: reports do not say where folders lie."""
    return re.sub(rf"(?<![\w/.-]){re.escape(str(path))}(?![\w.-])", lambda _: name, text)


def find_files(folder: Path, name: str) -> Iterator[Path]:
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
        raise ValueError(f"{path / 'config.json'} names the preset {config.preset!r}, which does not exist")
    extra = directory.record.get("extra")
    arm = extra.get("arm", config.preset) if isinstance(extra, dict) else config.preset
    if not isinstance(arm, str) or not arm:
        raise ValueError(f"{path / 'config.json'}: the name of an algorithm must be text, got {arm!r}")
    points = tuple(_read_points(directory, config))
    cause = "" if directory.done else cause_of_failure(path) or _find_non_finite(path, points)
    state: State = "finished" if directory.done else "failed" if cause else "unfinished"
    rates, machines = _read_timing(directory)
    median = float(np.median([rate for _, rate in rates])) if rates else None
    seconds = sum((at - config.last_record(at)) * config.num_seeds / rate for at, rate in rates)
    return RunRecord(name, path, arm, config, directory.record, state, cause, points, median, float(seconds), machines)


def _find_non_finite(path: Path, points: Sequence[Point]) -> str:
    """Why a run stopped that put its state aside, if it has not gone further since; else nothing."""
    steps = [int(folder.name.removeprefix("step_")) for folder in (path / "failed").glob("step_[0-9]*")]
    since = steps and any(point.step > max(steps) for point in points)
    return f"numbers were not finite at step {max(steps):,}" if steps and not since else ""


def _read_points(directory: RunDirectory, config: RunConfig) -> Iterator[Point]:
    for number, record in enumerate(directory.read_metrics(), start=1):
        place = f"{directory.path / 'metrics.jsonl'}, line {number}"
        if not isinstance(record, dict) or not _is_count(record.get("step")) or record.get("seed") not in config.seeds:
            raise ValueError(f"{place}, has no step ≥ 0 or no seed of {config.seeds}")
        for tag in (EVALUATION, TRAINING):
            value = record.get(tag)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{place}: {tag} must be a finite number, got {value!r}")
        yield Point(record["seed"], record["step"], record.get(EVALUATION), record.get(TRAINING))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_timing(directory: RunDirectory) -> tuple[list[tuple[int, float]], tuple[str, ...]]:
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


def build_curve(label: str, env: str, evaluations: Mapping[int, Mapping[int, float]]) -> Curve | None:
    """The curve of evaluations by seed and step, at the steps that all seeds have; None if there is no such step."""
    seeds = tuple(sorted(evaluations))
    steps = sorted(set.intersection(*(set(evaluations[seed]) for seed in seeds))) if seeds else []
    if not steps:
        return None
    returns = np.array([[evaluations[seed][step] for step in steps] for seed in seeds], np.float64)
    band = None
    if len(seeds) >= LEAST_FOR_BAND:
        intervals = [mean_interval(samples) for samples in returns.T]
        band = (np.array([each.low for each in intervals]), np.array([each.high for each in intervals]))
    return Curve(label, env, np.array(steps), returns, seeds, band)


def _build_cell(arm: str, env: str, runs: tuple[RunRecord, ...]) -> Cell:
    done = [run for run in runs if run.state == "finished" and any(run.evaluations.values())]
    by_seed: dict[int, dict[int, float]] = {}
    for run in done or runs:
        by_seed |= {seed: means for seed, means in run.evaluations.items() if means}
    return Cell(arm, env, runs, build_curve(arm, env, by_seed), bool(done))


class Progress(NamedTuple):
    """How far a run is that may be going on."""

    step: int
    steps_per_second: float | None
    score: float | None
    """The latest evaluation return; before the first one that of training."""


def read_progress(path: Path) -> Progress | None:
    """What the newest lines of a run's files say; None before the first."""
    last = _read_newest(path / "timing.jsonl", "step")
    if last is None:
        return None
    metrics = path / "metrics.jsonl"
    scores = (record[tag] for tag in (EVALUATION, TRAINING) if (record := _read_newest(metrics, tag)) is not None)
    step = (_read_newest(metrics, "step") or last)["step"]
    return Progress(step, last.get("time/fps"), next(scores, None))


def _read_newest(file: Path, tag: str) -> dict[str, Any] | None:
    """The newest line that has a value for the tag, among the last ones of the file."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 65_536))
            lines = stream.read().split(b"\n")
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, AttributeError):  # a line that is being written
            record = json.loads(line)
            if record.get(tag) is not None:
                return record
    return None
