"""The one reader of finished and unfinished runs: records, learning curves and progress from run directories.

Runs below a folder are sorted by algorithm and task, whether they come from `train`, `compare` or `sweep`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qemrl.agents.names import SUMMARIES
from qemrl.experiments.gaps import Gap, find_gaps
from qemrl.experiments.records import Point, is_count, read_points, read_timing
from qemrl.experiments.statistics import mean_interval
from qemrl.experiments.worker import cause_of_failure
from qemrl.plotting.curves import Curve
from qemrl.training.config import RunConfig, read_config
from qemrl.training.run_directory import SUMS, WRONG_NUMBERS, RunDirectory

LEAST_FOR_BAND = 3
"""From how many seeds on a curve has an interval; that of two is so wide that it hides the curves."""

LONGEST_REASON = 1_000
"""How many characters of an error are shown."""

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

    points: tuple[Point, ...]
    """The returns, in the order of metrics.jsonl."""

    steps_per_second: float | None
    """Of all seeds together, the median of the run's records; None where no times were kept."""

    seconds: float
    """What learning and evaluating took by these records, parts that were done again included."""

    machines: tuple[str, ...]
    """What computed it; more than one if it went on elsewhere, none where that was not kept."""

    is_verified: bool = False
    """Whether it is finished, and its metrics are those that its checksums are of."""

    damage: tuple[str, ...] = ()
    """What is known to be lost or changed of it, a sentence each."""

    regular: range = range(0)
    """Steps at which there should be evaluations, whether or not some seed has one."""

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

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Evaluations that seeds lack, and should have at this state of the run."""
        due = {point.step for point in self.points if point.is_evaluated}
        if self.state == "finished":
            due.add(self.config.whole_steps)
        elif due:
            due.remove(max(due))  # some seeds may be just about to write it
        return find_gaps(self.evaluations, due, self.regular)

    @property
    def whole_evaluations(self) -> dict[int, dict[int, float]]:
        """The evaluations of the seeds that lack none, and have some: those that curves are made of."""
        lacking = {seed for gap in self.gaps for seed in gap.seeds}
        return {seed: means for seed, means in self.evaluations.items() if means and seed not in lacking}

    @property
    def losses(self) -> tuple[str, ...]:
        """What readers should know about what is lost, a sentence each."""
        return (*self.damage, *map(str, self.gaps))


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
    """Of the finished runs at the steps that all of them have; if none is finished, of all runs. None without any.

    Seeds with gaps are left out of it: they do not shorten the curve of the others."""

    last: Curve | None
    """The last step of it alone, also of the seeds with gaps that were evaluated there."""

    finished: bool
    """Whether the curve is of finished runs."""


@dataclass(frozen=True)
class RunCollection:
    """The runs below a folder, with algorithms in the order of their presets and tasks in that of their names."""

    folder: Path
    runs: tuple[RunRecord, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def losses(self) -> tuple[tuple[str, str], ...]:
        """What is lost of runs that count as far as they can, and their names."""
        return tuple((run.name, loss) for run in self.runs for loss in run.losses)

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
        name = make_printable(file.parent.relative_to(folder).as_posix())
        try:
            run = read_run(file.parent, name)
        except Exception as error:  # nobody can list what a damaged file leads to, and the others are to be read
            unreadable.append(explain(error, file.parent, name))
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


def explain(error: BaseException, path: Path, name: str) -> Unreadable:
    """What an error says about a run, which is left out."""
    plain = isinstance(error, OSError | ValueError) and not isinstance(error, UnicodeError)
    reason = str(error) if plain else f"a file is damaged: {error!r}"
    return Unreadable(name, make_printable(relabel(reason, path, name))[:LONGEST_REASON])


def make_printable(text: str) -> str:
    """A text with escapes for what no terminal should get, and no file could be written with."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


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
    is_done = directory.done  # before the metrics are read: it may end while they are
    config = read_config(directory.config)
    if config.preset not in SUMMARIES:
        raise ValueError(f"{path / 'config.json'} names the preset {config.preset!r}, which does not exist")
    extra = directory.record.get("extra")
    arm = extra.get("arm", config.preset) if isinstance(extra, dict) else config.preset
    if not isinstance(arm, str) or not arm:
        raise ValueError(f"{path / 'config.json'}: the name of an algorithm must be text, got {arm!r}")
    is_verified, damage, timing = _verify(directory, config.whole_steps) if is_done else (False, [], True)
    points = tuple(read_points(directory, config))
    cause = "" if is_done else cause_of_failure(path) or _find_non_finite(path, points)
    state: State = "finished" if is_done else "failed" if cause else "unfinished"
    rates, machines = [], ()
    try:
        rates, machines = read_timing(directory) if timing else ([], ())
    except ValueError as error:
        damage.append(make_printable(relabel(f"{error}; no time of it counts", path, name)))
    median = float(np.median([rate for _, rate in rates])) if rates else None
    seconds = sum((at - config.last_record(at)) * config.num_seeds / rate for at, rate in rates)
    # A file that is verified tells itself when there were evaluations, even if that has changed on the way.
    regular = range(0) if (is_verified and not damage) or not is_done else _list_regular(config)
    return RunRecord(
        name=name,
        path=path,
        arm=arm,
        config=config,
        record=directory.record,
        state=state,
        cause=cause,
        points=points,
        steps_per_second=median,
        seconds=float(seconds),
        machines=machines,
        is_verified=is_verified,
        damage=tuple(damage),
        regular=regular,
    )


def _verify(directory: RunDirectory, planned: int) -> tuple[bool, list[str], bool]:
    """Whether the metrics of a finished run are verified, what is damaged of it, and whether its times count.

    Raises:
        ValueError: Its metrics are known to be other ones.
    """
    damage = directory.find_damage()
    try:
        done = directory.read_done()
    except (OSError, ValueError):
        return False, damage, True
    steps: Any = done.get("step")
    if is_count(steps) and steps < planned:
        damage.append(f"DONE is of step {steps:,}, and the configuration of {planned:,} steps")
    changes = directory.find_changes() if "config" in done else {SUMS: "none were kept"}
    for sentence in (changes.get("metrics.jsonl"), WRONG_NUMBERS if WRONG_NUMBERS in damage else None):
        if sentence is not None:
            raise ValueError(f"{directory.path}: {sentence}; restore it from a copy, or run it again")
    return SUMS not in changes, [make_printable(each) for each in damage], "timing.jsonl" not in changes


def _list_regular(config: RunConfig) -> range:
    """The steps of a whole run at which it is evaluated, but for the last, which may be between two of these."""
    return range(config.evaluate_every, config.whole_steps + 1, config.evaluate_every)


def _find_non_finite(path: Path, points: Sequence[Point]) -> str:
    """Why a run stopped that put its state aside, if it has not gone further since; else nothing."""
    steps = [int(folder.name.removeprefix("step_")) for folder in (path / "failed").glob("step_[0-9]*")]
    since = steps and any(point.step > max(steps) for point in points)
    return f"numbers were not finite at step {max(steps):,}" if steps and not since else ""


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
    every: dict[int, dict[int, float]] = {}
    whole: dict[int, dict[int, float]] = {}
    for run in done or runs:
        every |= run.evaluations
        whole |= run.whole_evaluations
    curve = build_curve(arm, env, whole)
    last = max((run.config.whole_steps for run in done), default=0) if curve is None else int(curve.steps[-1])
    ends = {seed: {last: means[last]} for seed, means in every.items() if last in means}
    is_known = curve is not None or not whole  # or there is no step that all have
    return Cell(arm, env, runs, curve, build_curve(arm, env, ends) if is_known else None, bool(done))
