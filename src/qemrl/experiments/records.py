"""The lines of metrics.jsonl and timing.jsonl that are about returns, speed and progress; what is wrong is refused."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from qemrl.training.config import RunConfig
from qemrl.training.files import open_regular, parse_json
from qemrl.training.run_directory import RunDirectory

EVALUATION, TRAINING = "eval/mean_reward", "rollout/ep_rew_mean"
"""The tags of the mean return in metrics.jsonl: of an evaluation, and of the episodes of training."""

LARGEST_RETURN = 1e100
"""No task has larger ones, and their squares are still finite."""

MOST_STEPS = 2**53
"""Steps beyond are none: floats cannot tell them apart."""


class Point(NamedTuple):
    """What a line of metrics.jsonl says about returns."""

    seed: int
    step: int
    evaluation: float | None
    """The mean return of an evaluation, if there was one."""

    training: float | None
    """The mean return of the episodes that ended since the last line, if there was one."""

    is_evaluated: bool
    """Whether there was an evaluation, even one whose mean is not finite, which is null in a file."""


def read_points(directory: RunDirectory, config: RunConfig) -> Iterator[Point]:
    """The points of a run.

    Raises:
        ValueError: A line is none of its metrics.
    """
    seen: set[tuple[int, int]] = set()
    for number, record in enumerate(directory.read_metrics(), start=1):
        place = f"{directory.path / 'metrics.jsonl'}, line {number}"
        if not isinstance(record, dict) or not is_count(record.get("step")) or not _is_seed(record, config):
            first, last = config.seeds[0], config.seeds[-1]
            raise ValueError(f"{place}, has no step ≥ 0 or no seed from {first} to {last}")
        for tag in (EVALUATION, TRAINING):
            value = record.get(tag)
            if value is not None and not (_is_number(value) and abs(value) <= LARGEST_RETURN):
                raise ValueError(f"{place}: {tag} must be a number of at most {LARGEST_RETURN:g}, got {value!r}")
        if (record["step"], record["seed"]) in seen:
            raise ValueError(f"{place}: step {record['step']} of seed {record['seed']} was there before")
        seen.add((record["step"], record["seed"]))
        yield Point(record["seed"], record["step"], record.get(EVALUATION), record.get(TRAINING), EVALUATION in record)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value can be a number of steps."""
    return type(value) is int and 0 <= value <= MOST_STEPS


def _is_number(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float) and math.isfinite(value)


def _is_seed(record: Mapping[str, Any], config: RunConfig) -> bool:
    seed = record.get("seed")
    return type(seed) is int and config.seed <= seed < config.seed + config.num_seeds


def read_timing(directory: RunDirectory) -> tuple[list[tuple[int, float]], tuple[str, ...]]:
    """Steps and steps per second of all records, and the machines that they name.

    Raises:
        ValueError: A line is none of its times.
    """
    rates, machines = [], {}
    for number, record in enumerate(directory.read_timing(), start=1):
        rate = record.get("time/fps") if isinstance(record, dict) else None
        if not _is_number(rate) or not rate > 0 or not is_count(record.get("step")):
            raise ValueError(
                f"{directory.path / 'timing.jsonl'}, line {number}, has no step ≥ 0 or no time/fps above 0"
            )
        rates.append((record["step"], float(rate)))
        if "machine" in record:
            machines[str(record["machine"])] = None
    return rates, tuple(machines)


class Progress(NamedTuple):
    """How far a run is that may be going on."""

    step: int
    steps_per_second: float | None
    score: float | None
    """The latest evaluation return; before the first one that of training."""


def read_progress(path: Path) -> Progress | None:
    """What the newest lines of a run's files say; None before the first."""
    last = _read_newest(path / "timing.jsonl", "step", is_count)
    if last is None:
        return None
    metrics = path / "metrics.jsonl"
    scores = (record[tag] for tag in (EVALUATION, TRAINING) if (record := _read_newest(metrics, tag, _is_number)))
    step = (_read_newest(metrics, "step", is_count) or last)["step"]
    rate = last.get("time/fps")
    return Progress(step, rate if _is_number(rate) else None, next(scores, None))


def _read_newest(file: Path, tag: str, is_valid: Callable[[Any], bool]) -> dict[str, Any] | None:
    """The newest line that has a valid value for the tag, among the last ones of the file."""
    try:
        with open_regular(file) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 65_536))
            lines = stream.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, AttributeError):  # a line that is being written
            record = parse_json(line)
            if is_valid(record.get(tag)):
                return record
    return None
