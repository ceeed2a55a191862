"""The one path of training: a loop goes from record to record, from its first step or its last checkpoint to its end.

With a run directory, metrics and checkpoints are kept there, and the parameters that did best in an evaluation.
"""

import contextlib
import math
import os
import signal
import statistics
import threading
import time
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qemrl.config.serialize import to_json
from qemrl.training import checkpoint
from qemrl.training.callbacks import CallbackList, Reason
from qemrl.training.config import RunConfig, require_same_config
from qemrl.training.evaluation import CutEpisodeWarning, Evaluation, describe_cut
from qemrl.training.loops import Loop, make_loop
from qemrl.training.machine import summarize_machine
from qemrl.training.run_directory import RunDirectory
from qemrl.training.schedule import Record, Stop

PROGRESS_EVERY = 0.2
"""Seconds between two calls of `Callback.on_progress`, at least."""

FIRST, GROWTH, LARGE = 5, 1e4, 1e6
"""A loss has grown without bound when it is larger than so many times the median of a run's first so many records, and
larger than this. In all runs under results/ it is never larger than 335, nor than 620 times that median."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to stop: Ctrl-C, `kill`, and a terminal that is closed."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop; with a run directory, its state is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


class NonFiniteTrainingError(Exception):
    """A reward, an observation or a loss was not finite."""


class LossWatch:
    """What says, once in a run, that the loss has grown without bound."""

    def __init__(self, earlier: Iterable[Record]) -> None:
        """What has seen the records before, about which nothing is said any more."""
        self.first: dict[int, list[float]] = {}
        self.told = False
        for record in earlier:
            self.find_growth([record])

    def find_growth(self, records: list[Record]) -> str | None:
        """What to say about these records, one for each seed."""
        for record in records:
            loss, first = record.get("train/loss"), self.first.setdefault(record["seed"], [])
            if loss is None or self.told:
                continue
            if len(first) < FIRST:
                first.append(loss)
            elif loss > max(LARGE, GROWTH * statistics.median(first)):
                self.told = True
                return (
                    f"seed {record['seed']}, step {record['step']:,}: the loss has grown from "
                    f"{statistics.median(first):.3g} in the first records to {loss:.3g}, as it does in a run that "
                    "diverges. Try a smaller learning rate (--optimizer.learning-rate), or limit the gradient's norm "
                    "(--optimizer.max-gradient-norm)"
                )
        return None


def train(
    config: RunConfig,
    directory: RunDirectory | None = None,
    callbacks: Iterable[Any] = (),
    loop: Loop | None = None,
    evaluate: bool = True,
) -> Reason:
    """Bring a run to its end, from wherever it is, and say why it ended: it is finished, or a callback stopped it.

    Args:
        config: What runs.
        directory: Where metrics, evaluations and checkpoints are kept, and what the run is resumed from. Without one,
            what is learned is only in the loop.
        callbacks: What is told how it goes (see `callbacks`).
        loop: That of `make_loop`, if it is there already; it is left open. One that is as far as the last checkpoint
            is taken as it is.
        evaluate: Whether there are evaluations.

    Raises:
        Stopped: A signal of `STOP_SIGNALS` came; a checkpoint was written.
        NonFiniteTrainingError: A number was not finite; the state is then in the folder `failed`, and checkpoints
            before it are kept.
    """
    told = CallbackList(callbacks)
    with contextlib.ExitStack() as stack:
        if directory is not None:
            stack.enter_context(directory.lock())
        signals = stack.enter_context(catch_stop_signals())
        if loop is None:
            loop = make_loop(config)
            stack.callback(loop.close)
        lost = [] if directory is None else _restore(config, loop, directory)
        if directory is not None:  # else the steps are those of one call, and others may follow
            for doubt in config.find_doubts():
                warnings.warn(doubt, stacklevel=2)
        reason: Reason = "failed"
        try:
            told.on_start(config, loop, lost)
            run = _Run(config if evaluate else _without_evaluations(config), loop, directory, told, signals, evaluate)
            run.advance_to_end()
            is_finished = loop.step >= config.whole_steps
            if is_finished and directory is not None and not directory.done:
                directory.finish({"step": loop.step, "seeds": list(config.seeds), **_last_evaluation(directory)})
            reason = "finished" if is_finished else "callback"
        except Stopped:
            reason = "stopped"
            raise
        finally:
            told.on_end(reason)
    return reason


def store_config(directory: RunDirectory, config: RunConfig) -> None:
    """Put another configuration into the folder of a run, which is then no longer finished."""
    with directory.lock():
        directory.replace_config(to_json(config))


def _without_evaluations(config: RunConfig) -> RunConfig:
    """The run with nothing to do at the steps of evaluations."""
    return replace(config, evaluate_every=config.log_every)


@dataclass
class _Run:
    """A run that goes from stop to stop: from record to record, with checkpoints there or in between."""

    config: RunConfig
    loop: Loop
    directory: RunDirectory | None
    told: CallbackList
    signals: list[int]
    evaluate: bool
    best: float = field(init=False)
    """The best mean over the seeds of an evaluation so far."""

    watch: LossWatch = field(init=False)
    told_of_cut: bool = False
    """Whether it was said that evaluation episodes were cut."""

    def __post_init__(self) -> None:
        earlier = [] if self.directory is None else self.directory.read_metrics()
        self.best = max(_average_evaluations(earlier).values(), default=-math.inf)
        self.watch = LossWatch(earlier)

    def advance_to_end(self) -> None:
        """Run until all steps are done or a callback asks to stop."""
        while self.loop.step < self.config.whole_steps and not self.told.asks_to_stop:
            self._advance()

    def _advance(self) -> None:
        """Run to the next stop, and keep and tell what happens there."""
        before, start = self.loop.step, time.perf_counter()
        until = self.config.next_stop(before)
        is_recorded = self.config.is_recorded(until)
        evaluate = self.evaluate and self.config.is_evaluated(until)
        try:
            records = self.loop.advance(until, evaluate, self._poll(start), not is_recorded)
        except FloatingPointError as error:
            raise _describe_failure(str(error), self.loop, self.directory) from error
        if records is None:
            self._save()
            if self.signals:
                raise Stopped(self.loop.step, self.signals[0])
            return
        reason = _find_nonfinite(records)
        if reason is not None:
            raise _describe_failure(reason, self.loop, self.directory)
        if is_recorded:
            self._record(records, self.config.num_seeds * (until - before) / (time.perf_counter() - start))
        if self.config.is_saved(until) or self.told.asks_to_stop:
            self._save()

    def _poll(self, start: float) -> Stop:
        """What tells callbacks how far the run is, and says whether it is asked to stop."""
        last = start

        def stop() -> bool:
            nonlocal last
            now = time.perf_counter()
            if now - last > PROGRESS_EVERY:
                last = now
                self.told.on_progress(self.loop.mean_step)
            return bool(self.signals) or self.told.asks_to_stop

        return stop

    def _record(self, records: list[Record], rate: float) -> None:
        """Keep the records of all seeds, then tell them."""
        evaluations = [_split_evaluation(record) for record in records]
        step = self.loop.step
        if self.directory is not None:
            for record, played in zip(records, evaluations, strict=True):
                if played is not None:
                    write_episodes(self.directory, step, played)
                self.directory.append(record)
            self.directory.append_timing({"step": step, "time/fps": rate, "machine": summarize_machine()})
        cut = next((played for played in evaluations if played is not None and played.cut), None)
        if cut is not None and not self.told_of_cut:
            self.told_of_cut = True
            warnings.warn(describe_cut(cut, self.config.evaluation_max_steps), CutEpisodeWarning, stacklevel=5)
        growth = self.watch.find_growth(records)
        if growth is not None:
            warnings.warn(growth, stacklevel=5)
        for mean in _average_evaluations(records).values():
            if mean > self.best:
                self.best = mean
                self._save_best(mean)
        for record, played in zip(records, evaluations, strict=True):
            self.told.on_record(step, {**record, "time/fps": rate})
            if played is not None:
                self.told.on_evaluation(step, played)

    def _save_best(self, mean: float) -> None:
        """Keep the parameters; before the checkpoint of this step, so that a run that is killed does so again."""
        if self.directory is not None:
            step, arrays = self.loop.step, self.loop.param_arrays()
            meta = {"eval/mean_reward": mean, "config": self.directory.config}
            checkpoint.save(self.directory.best, step, arrays, meta, keep=1)

    def _save(self) -> None:
        if self.directory is not None:
            self.told.on_checkpoint(self.loop.step, save_checkpoint(self.loop, self.directory))


def _find_nonfinite(records: list[Record]) -> str | None:
    """What was not finite, and when, or None; the records then no longer hold the step of it."""
    bad = {record["seed"]: record.pop("bad_step") for record in records}
    found = [f"seed {seed} met a number that is not finite at step {step}" for seed, step in bad.items() if step >= 0]
    return "; ".join(found) or None


def _split_evaluation(record: Record) -> Evaluation | None:
    """The evaluation of a record, if there is one; in its place, the record then has a summary of it."""
    if "eval/returns" not in record:
        return None
    returns, lengths = np.asarray(record.pop("eval/returns")), np.asarray(record.pop("eval/lengths"))
    record["eval/mean_reward"] = float(returns.mean())
    record["eval/std_reward"] = float(returns.std())
    record["eval/mean_ep_length"] = float(lengths.mean())
    return Evaluation(returns, lengths, record["seed"], record.pop("eval/cut", 0))


def _average_evaluations(records: Iterable[Record]) -> dict[int, float]:
    """The mean return over the seeds of each evaluation, by step."""
    returns: dict[int, list[float]] = {}
    for record in records:
        mean = record.get("eval/mean_reward")
        if mean is not None and math.isfinite(mean):
            returns.setdefault(record["step"], []).append(mean)
    return {step: statistics.fmean(each) for step, each in returns.items()}


def evaluation_name(step: int, seed: int) -> str:
    """What the file of an evaluation is called in a run directory."""
    return f"seed_{seed}_step_{step:012d}"


def write_episodes(directory: RunDirectory, step: int, played: Evaluation) -> None:
    """Write the episodes of an evaluation into a run directory."""
    episodes = {"step": step, "seed": played.seed, "returns": played.returns, "lengths": played.lengths}
    directory.write_evaluation(
        evaluation_name(step, played.seed), episodes | ({"cut": played.cut} if played.cut else {})
    )


def save_checkpoint(loop: Loop, directory: RunDirectory) -> Path:
    """The folder of a new checkpoint of a loop in a run directory."""
    return checkpoint.save(
        directory.checkpoints, loop.step, loop.arrays(), {**directory.describe(), "loop": loop.meta()}
    )


def _restore(config: RunConfig, loop: Loop, directory: RunDirectory) -> list[str]:
    """Put the loop and the metrics back to a checkpoint; returns what is lost, a sentence each."""
    # A loop that is there already needs no arrays, and so no replay, from the disk.
    found = checkpoint.load_latest(directory.checkpoints, lambda _: False) if loop.step else None
    is_there = found is not None and found.step == loop.step
    found = found if is_there else _find_checkpoint(directory)
    if found is None:
        directory.truncate_metrics(0)
        return []
    try:
        require_same_config(config, found)
        newest = max(checkpoint.list_steps(directory.checkpoints))
        lost = directory.restore_metrics(found.step, found.meta)
        lost += _find_damaged_files(directory, found.step)
        directory.damage = lost
        if found.step < newest and not lost:
            lost = [f"the run goes back from step {newest:,} to {found.step:,}, to make what was damaged again"]
        return lost if is_there else [*lost, *loop.restore(found.step, found.arrays, found.meta["loop"])]
    except (KeyError, TypeError, ValueError) as error:
        raise checkpoint.CheckpointError(f"{directory.path} cannot go on from {found.path.name}: {error}") from error


def _find_checkpoint(directory: RunDirectory) -> checkpoint.Checkpoint | None:
    """The newest checkpoint after which all that is damaged can be made again; else the newest with whole metrics."""
    with_metrics: list[int] = []
    for step, meta in checkpoint.read_metas(directory.checkpoints):
        with contextlib.suppress(KeyError, TypeError):
            if directory.has_metrics_of(meta):
                with_metrics.append(step)
    whole = [step for step in with_metrics if not _find_damaged_files(directory, step)]
    for step in (*whole, *with_metrics):
        with contextlib.suppress(checkpoint.CheckpointError):
            return checkpoint.load_latest(directory.checkpoints, step=step)
    return checkpoint.load_latest(directory.checkpoints)


def _find_damaged_files(directory: RunDirectory, last: int) -> list[str]:
    """What is damaged of the evaluations and of the best parameters up to a step, a sentence each."""
    found = []
    bad = [name for name in _list_evaluations(directory, last) if not _can_be_read(directory, name)]
    if bad:
        rest = f" and {len(bad) - 1:,} more files" if len(bad) > 1 else ""
        found.append(f"evaluations/{bad[0]}.json{rest}: damaged or lost")
    for step in checkpoint.list_steps(directory.best):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", checkpoint.CheckpointWarning)
            try:
                if step <= last:
                    checkpoint.load_latest(directory.best, step=step)
            except checkpoint.CheckpointError:
                found.append(f"best: the parameters of step {step:,} are damaged")
    return found


def _list_evaluations(directory: RunDirectory, last: int) -> list[str]:
    """The names of the evaluations up to a step: those whose files are there, and those of the metrics."""
    names = {file.stem for file in (directory.path / "evaluations").glob("seed_*_step_*.json")}
    if not names:  # somebody may have removed them all, or they were never kept
        return []
    kept = {name for name in names if not (step := name.rpartition("_")[2]).isdecimal() or int(step) <= last}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # a damaged line, which is found elsewhere
        for record in directory.read_metrics():
            if "eval/mean_reward" in record and record["step"] <= last:
                kept.add(evaluation_name(record["step"], record["seed"]))
    return sorted(kept)


def _can_be_read(directory: RunDirectory, evaluation: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return directory.read_evaluation(evaluation) is not None
    return False


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
    """A list that receives the number of the signal that asks to stop; a second Ctrl-C stops at once.

    Signals that are ignored stay ignored, as those of a terminal that is closed are under `nohup`.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def note_signal(number: int, frame: types.FrameType | None) -> None:
        if signals and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        signals.append(number)
        if number == signal.SIGINT:  # a print may not be interrupted by another one
            with contextlib.suppress(OSError):  # nobody is there to read it
                os.write(2, b"\nqemrl: stopping at the next safe point; Ctrl-C again stops at once\n")

    with contextlib.ExitStack() as stack:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                stack.callback(signal.signal, number, signal.signal(number, note_signal))
        yield signals
