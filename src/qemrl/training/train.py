"""The one path of training: a loop goes from record to record, from its first step or its last checkpoint to its end.

With a run directory, metrics and checkpoints are kept there.
"""

import contextlib
import json
import math
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from qemrl.config.serialize import to_json
from qemrl.training import checkpoint
from qemrl.training.callbacks import Callback
from qemrl.training.config import RunConfig, read_config
from qemrl.training.loops import Loop, make_loop
from qemrl.training.machine import summarize_machine
from qemrl.training.run_directory import RunDirectory, write_atomic
from qemrl.training.schedule import Record

PROGRESS_EVERY = 0.2
"""Seconds between two calls of `Callback.on_progress`, at least."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop; with a run directory, its state is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


class NonFiniteTrainingError(Exception):
    """A reward, an observation or a loss was not finite."""


def train(config: RunConfig, directory: RunDirectory | None, callback: Callback, loop: Loop | None = None) -> None:
    """Bring a run to its end, from wherever it is; nothing is done to one that is finished.

    Args:
        config: What runs.
        directory: Where metrics, evaluations and checkpoints are kept, and what the run is resumed from. Without one
            there are no evaluations, and what is learned is only in the loop.
        callback: What is told how it goes.
        loop: That of `make_loop`, if it is there already; it is left open.

    Raises:
        Stopped: SIGINT or SIGTERM came; a checkpoint was written.
        NonFiniteTrainingError: A number was not finite; the state is then in the folder `failed`, and checkpoints
            before it are kept.
    """
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.enter_context(directory.lock())
        signals = stack.enter_context(catch_stop_signals())
        if loop is None:
            loop = make_loop(config)
            stack.callback(loop.close)
        lost = [] if directory is None else _restore(loop, directory)
        callback.on_start(config, loop, lost)
        while loop.step < config.whole_steps:
            _advance(config, loop, directory, callback, signals)
        if directory is not None and not directory.done:
            directory.finish({"step": loop.step, "seeds": list(config.seeds), **_last_evaluation(directory)})


def extend(directory: RunDirectory, steps: int) -> RunConfig:
    """The configuration of a run that is to go on to `steps` steps, stored in its folder; it is no longer finished."""
    config = replace(read_config(directory.config), steps=steps)
    with directory.lock():
        # In this order: a run that is not marked as finished and has nothing left to do is merely marked again.
        (directory.path / "DONE").unlink(missing_ok=True)
        record = directory.record | {"config": to_json(config)}
        write_atomic(directory.path / "config.json", json.dumps(record, indent=2, sort_keys=True) + "\n")
    return config


def _advance(
    config: RunConfig, loop: Loop, directory: RunDirectory | None, callback: Callback, signals: list[int]
) -> None:
    """Run to the next record, and keep and tell what it says."""
    until, before, start = config.next_record(loop.step), loop.step, time.perf_counter()
    told = start

    def stop() -> bool:
        nonlocal told
        now = time.perf_counter()
        if now - told > PROGRESS_EVERY:
            told = now
            callback.on_progress(loop.mean_step)
        return bool(signals)

    try:
        records = loop.advance(until, directory is not None and config.is_evaluated(until), stop)
    except FloatingPointError as error:
        raise _describe_failure(str(error), loop, directory) from error
    if records is None:
        if directory is not None:
            save_checkpoint(loop, directory)
        raise Stopped(loop.step, signals[0])
    reason = _find_nonfinite(records)
    if reason is not None:
        raise _describe_failure(reason, loop, directory)
    rate = config.num_seeds * (until - before) / (time.perf_counter() - start)
    if directory is not None:
        for record in records:
            directory.append(_store_evaluation(record, directory))
        directory.append_timing({"step": until, "time/fps": rate, "machine": summarize_machine()})
    callback.on_record(records, rate)
    if directory is not None and config.is_saved(until):
        save_checkpoint(loop, directory)


def _find_nonfinite(records: list[Record]) -> str | None:
    """What was not finite, and when, or None; the records then no longer hold the step of it."""
    bad = {record["seed"]: record.pop("bad_step") for record in records}
    found = [f"seed {seed} met a number that is not finite at step {step}" for seed, step in bad.items() if step >= 0]
    return "; ".join(found) or None


def _store_evaluation(record: Record, directory: RunDirectory) -> Record:
    """The record with a summary of its evaluation, whose episodes go into a file of their own."""
    if "eval/returns" not in record:
        return record
    returns, lengths = np.asarray(record.pop("eval/returns")), np.asarray(record.pop("eval/lengths"))
    episodes = {"step": record["step"], "seed": record["seed"], "returns": returns, "lengths": lengths}
    directory.write_evaluation(f"seed_{record['seed']}_step_{record['step']:012d}", episodes)
    record["eval/mean_reward"] = float(returns.mean())
    record["eval/std_reward"] = float(returns.std())
    record["eval/mean_ep_length"] = float(lengths.mean())
    return record


def save_checkpoint(loop: Loop, directory: RunDirectory) -> None:
    """Write a checkpoint of a loop into a run directory."""
    meta = {"metrics_bytes": directory.metrics_bytes, "loop": loop.meta()}
    checkpoint.save(directory.checkpoints, loop.step, loop.arrays(), meta)


def _restore(loop: Loop, directory: RunDirectory) -> list[str]:
    found = checkpoint.load_latest(directory.checkpoints)
    if found is None:
        directory.truncate_metrics(0)
        return []
    try:
        directory.truncate_metrics(found.meta["metrics_bytes"])
        return loop.restore(found.step, found.arrays, found.meta["loop"])
    except ValueError as error:
        raise checkpoint.CheckpointError(f"{directory.path} cannot go on from {found.path.name}: {error}") from error


def _describe_failure(reason: str, loop: Loop, directory: RunDirectory | None) -> NonFiniteTrainingError:
    """An error to raise; in a run directory the state is put aside before, for those who look for the cause."""
    if directory is None:
        return NonFiniteTrainingError(reason)
    path = checkpoint.save(directory.path / "failed", loop.step, loop.arrays(), {"loop": loop.meta()}, keep=1)
    return NonFiniteTrainingError(
        f"{reason}; the state is in {path}, and the checkpoints before it are kept. Look for the cause in the "
        "environment's rewards and observations, then in the learning rate (--optimizer.learning-rate) and in "
        "the gradient's norm (--optimizer.max-gradient-norm)"
    )


def _last_evaluation(directory: RunDirectory) -> dict[str, Any]:
    last = {record["seed"]: record.get("eval/mean_reward") for record in directory.read_metrics()}
    return {"eval/mean_reward": [value for value in last.values() if value is not None and math.isfinite(value)]}


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """A list that receives the number of the signal that asks to stop; a second Ctrl-C stops at once."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def note_signal(number: int, frame: types.FrameType | None) -> None:
        if signals and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        if number == signal.SIGINT:  # a print may not be interrupted by another one
            os.write(2, b"\nqemrl: stopping at the next safe point; Ctrl-C again stops at once\n")
        signals.append(number)

    before: dict[int, Callable | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note_signal)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
