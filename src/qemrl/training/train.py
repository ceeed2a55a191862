"""A run from its first step or its last checkpoint to its end, with everything kept in its directory."""

import contextlib
import json
import math
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qemrl.config.serialize import to_json
from qemrl.training import checkpoint
from qemrl.training.config import RunConfig, read_config
from qemrl.training.loops import Loop, Record, make_loop
from qemrl.training.machine import machine_in_short
from qemrl.training.run_directory import RunDirectory, write_atomic


@runtime_checkable
class Callback(Protocol):
    """Who is told how a run goes."""

    def begin(self, config: RunConfig, step: int, lost: list[str]) -> None:
        """A run begins, or goes on, at `step`; `lost` says what could not be restored."""
        ...

    def at(self, step: float) -> None:
        """So many steps are done, on average over the seeds."""
        ...

    def record(self, records: list[Record], steps_per_second: float) -> None:
        """Records of all seeds; steps per second are summed over seeds."""
        ...


class CallbackList:
    """Several callbacks, told one after another."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def begin(self, config: RunConfig, step: int, lost: list[str]) -> None:
        """Tell all."""
        for callback in self.callbacks:
            callback.begin(config, step, lost)

    def at(self, step: float) -> None:
        """Tell all."""
        for callback in self.callbacks:
            callback.at(step)

    def record(self, records: list[Record], steps_per_second: float) -> None:
        """Tell all."""
        for callback in self.callbacks:
            callback.record(records, steps_per_second)


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop, and its state is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


class NonFiniteTrainingError(Exception):
    """A reward, an observation or a loss was not finite."""


def train(config: RunConfig, directory: RunDirectory, callback: Callback) -> Loop:
    """Bring a run to its end, from wherever it is; nothing is done to one that is finished.

    Raises:
        Stopped: SIGINT or SIGTERM came; a checkpoint was written.
        NonFiniteTrainingError: Numbers went wrong; the state then is in the folder `failed`, checkpoints before it are kept.
    """
    with directory.lock(), catch_stop_signals() as asked:
        loop = make_loop(config)
        lost = _restore(loop, directory)
        callback.begin(config, loop.step, lost)
        while loop.step < config.whole_steps:
            _advance(config, loop, directory, callback, asked)
        if not directory.done:
            directory.finish({"step": loop.step, "seeds": list(config.seeds), **_last_evaluation(directory)})
        return loop


def extend(directory: RunDirectory, steps: int) -> RunConfig:
    """The configuration of a run that is to go on to `steps` steps, stored in its folder; it is no longer finished."""
    config = replace(read_config(directory.config), steps=steps)
    with directory.lock():
        # In this order: a run that is not marked as finished and has nothing left to do is merely marked again.
        (directory.path / "DONE").unlink(missing_ok=True)
        record = directory.record | {"config": to_json(config)}
        write_atomic(directory.path / "config.json", json.dumps(record, indent=2, sort_keys=True) + "\n")
    return config


def _advance(config: RunConfig, loop: Loop, directory: RunDirectory, callback: Callback, asked: "list[int]") -> None:
    until, before, start = config.next_record(loop.step), loop.step, time.perf_counter()
    last_look = [start]

    def stop() -> bool:
        now = time.perf_counter()
        if now - last_look[0] > 0.2:
            last_look[0] = now
            callback.at(loop.mean_step)
        return bool(asked)

    try:
        records = loop.advance(until, config.is_evaluated(until), stop)
    except FloatingPointError as error:
        raise _failed(loop, directory, str(error)) from error
    if records is None:
        _save(loop, directory)
        raise Stopped(loop.step, asked[0])
    reason = describe_nonfinite(records)
    if reason is not None:
        raise _failed(loop, directory, reason)
    for record in records:
        directory.append(_with_evaluation(record, directory))
    rate = config.num_seeds * (until - before) / (time.perf_counter() - start)
    directory.append_timing({"step": until, "time/fps": rate, "machine": machine_in_short()})
    callback.record(records, rate)
    if config.is_saved(until):
        _save(loop, directory)


def describe_nonfinite(records: list[Record]) -> str | None:
    """What was not finite, and when, or None; the records then no longer hold the step of it."""
    bad = {record["seed"]: record.pop("bad_step") for record in records}
    found = [f"seed {seed} met a number that is not finite at step {step}" for seed, step in bad.items() if step >= 0]
    return "; ".join(found) or None


def _with_evaluation(record: Record, directory: RunDirectory) -> Record:
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


def _save(loop: Loop, directory: RunDirectory) -> None:
    meta = {"metrics_bytes": directory.metrics_bytes, "loop": loop.meta()}
    checkpoint.save(directory.checkpoints, loop.step, loop.arrays(), meta)


def _failed(loop: Loop, directory: RunDirectory, reason: str) -> NonFiniteTrainingError:
    """An error to raise, after the state was put aside for those who look for the cause."""
    path = checkpoint.save(directory.path / "failed", loop.step, loop.arrays(), {"loop": loop.meta()}, keep=1)
    return NonFiniteTrainingError(
        f"{reason}; the state is in {path}, and the checkpoints before it are kept. LineStyle for the cause in the "
        "environment's rewards and observations, then in the learning rate (--optimizer.learning-rate) and in "
        "the gradient's length (--optimizer.max-gradient-norm)"
    )


def _last_evaluation(directory: RunDirectory) -> dict[str, Any]:
    last = {record["seed"]: record.get("eval/mean_reward") for record in directory.read_metrics()}
    return {"eval/mean_reward": [value for value in last.values() if value is not None and math.isfinite(value)]}


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """A list that receives the number of the signal that asks to stop; a second Ctrl-C stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def take_note(number: int, frame: types.FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        if number == signal.SIGINT:  # a print may not be interrupted by another one
            os.write(2, b"\nqemrl: stopping at the next safe point; Ctrl-C again stops at once\n")
        asked.append(number)

    before: dict[int, Callable | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, take_note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
