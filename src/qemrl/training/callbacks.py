"""Callbacks, which are told how a run goes: the protocol, and those that show progress in a terminal."""

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from qemrl.training.config import RunConfig
from qemrl.training.loops import Loop
from qemrl.training.machine import available_bytes
from qemrl.training.schedule import Record


@runtime_checkable
class Callback(Protocol):
    """What is told how a run goes. One that does not care about something inherits that."""

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        """A run starts, or is resumed, at `loop.step`; `lost` says what could not be restored."""

    def on_progress(self, step: float) -> None:
        """`step` steps are done, on average over the seeds."""

    def on_record(self, records: list[Record], steps_per_second: float) -> None:
        """Records of all seeds; steps per second are summed over seeds."""


class CallbackList(Callback):
    """Several callbacks, told one after another."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        for callback in self.callbacks:
            callback.on_start(config, loop, lost)

    def on_progress(self, step: float) -> None:
        for callback in self.callbacks:
            callback.on_progress(step)

    def on_record(self, records: list[Record], steps_per_second: float) -> None:
        for callback in self.callbacks:
            callback.on_record(records, steps_per_second)


@contextlib.contextmanager
def show_progress(config: RunConfig, visible: bool = True, introduce: bool = True) -> Iterator[Callback]:
    """A callback that shows a run on standard output: a bar in a terminal, else a line for each evaluation.

    Args:
        config: What runs, to `config.whole_steps`.
        visible: Whether anything is shown.
        introduce: Whether lines before it say what runs.
    """
    console = Console(highlight=False)
    if not visible:
        yield NullCallback()
    elif not console.is_terminal:
        yield PrintProgress(config, introduce)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
        )
        with Progress(*columns, console=console, expand=True) as progress:
            name = escape(f"{config.preset} {config.env_name}")
            task = progress.add_task(name, total=config.whole_steps, rate="compiling", score="")
            yield ProgressBar(progress, task, introduce)


class NullCallback(Callback):
    """A callback that does nothing."""


class PrintProgress(Callback):
    """A callback that prints what runs, and a line for each evaluation and for the end of the run."""

    def __init__(self, config: RunConfig, introduce: bool = True) -> None:
        self.whole_steps, self.introduce = config.whole_steps, introduce

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        for line in describe_run(config, loop, lost) if self.introduce else []:
            print(line, flush=True)

    def on_record(self, records: list[Record], steps_per_second: float) -> None:
        step = records[0]["step"]
        if "eval/mean_reward" in records[0] or step >= self.whole_steps:
            done, rate = f"step {step:,} of {self.whole_steps:,}", f"{steps_per_second:,.0f} steps/s"
            print("  ".join(part for part in (done, rate, format_score(records)) if part), flush=True)


class ProgressBar(Callback):
    """A callback that moves a bar."""

    def __init__(self, progress: Progress, task: TaskID, introduce: bool = True) -> None:
        self.progress, self.task, self.introduce = progress, task, introduce
        self.evaluated = False

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        for line in describe_run(config, loop, lost) if self.introduce else []:
            self.progress.console.print(escape(line))
        self.progress.update(self.task, completed=loop.step)

    def on_progress(self, step: float) -> None:
        self.progress.update(self.task, completed=step)

    def on_record(self, records: list[Record], steps_per_second: float) -> None:
        """Move the bar and show the latest return; one of an evaluation stays until the next evaluation."""
        is_evaluation = "eval/mean_reward" in records[0]
        self.evaluated |= is_evaluation
        if is_evaluation or not self.evaluated:
            self.progress.update(self.task, score=format_score(records))
        self.progress.update(self.task, completed=records[0]["step"], rate=f"{steps_per_second:,.0f}/s")


def format_score(records: list[Record]) -> str:
    """The latest return, averaged over seeds: of evaluation if there was one, else of training."""
    for tag, name in (("eval/mean_reward", "evaluation return"), ("rollout/ep_rew_mean", "training return")):
        found = [record[tag] for record in records if record.get(tag) is not None]
        if found:
            return f"{name} {statistics.fmean(found):,.1f}"
    return ""


def describe_run(config: RunConfig, loop: Loop, lost: list[str]) -> list[str]:
    """What runs, in lines: preset, environment, seeds, loop, memory, and what could not be restored."""
    seeds = f"seed {config.seed}" if config.num_seeds == 1 else f"seeds {config.seeds[0]} to {config.seeds[-1]}"
    envs = "" if config.num_envs == 1 else f", {config.num_envs} environments each"
    kind = "compiled" if config.is_compiled else "host"
    way = f"from step {loop.step:,} to {config.whole_steps:,}" if loop.step else f"{config.whole_steps:,} steps"
    lines = [f"{config.preset} on {config.env_name}: {way}, {seeds}{envs}, {kind} loop"]
    free = available_bytes()
    there = "" if free is None else f", {_format_bytes(free)} of memory is free"
    lines.append(f"the replay takes up to {_format_bytes(loop.replay_bytes)}{there}")
    if config.protocol is not None:
        game = config.protocol
        sticky = f"sticky actions {game.sticky_actions:g}" if game.sticky_actions else "no sticky actions"
        noops = f"up to {game.noop_max} no-ops" if game.noop_max else "no no-ops"
        lines.append(f"protocol {game.name}: {sticky}, {noops}, life loss {game.life_loss.replace('_', ' ')}")
    return lines + [f"warning: {loss}" for loss in lost]


def _format_bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
