"""Callbacks, which are told how a run goes and may stop it: the hooks, and those that show progress in a terminal."""

import abc
import contextlib
import statistics
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from qemrl.training.config import RunConfig
from qemrl.training.evaluation import Evaluation
from qemrl.training.loops import Loop
from qemrl.training.machine import available_bytes
from qemrl.training.schedule import Record

SPEED_PERIOD = 3_600.0
"""How many seconds the bar looks back for the time that is left: records may be minutes apart."""

Reason = Literal["finished", "callback", "stopped", "failed"]
"""Why a run ends: all steps are done, a callback returned False, a signal came, or an error was raised."""


class CallbackError(Exception):
    """A callback cannot do its work; the message says what to do."""


class Callback:
    """All hooks, none of which does anything. A callback has some of them; it need not inherit this class.

    A run whose callback returns False, from any hook but the last, stops at the next safe point, and is saved where it
    has a folder.
    """

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> bool | None:
        """A run starts, or is resumed, at `loop.step`; `lost` says what could not be restored."""

    def on_progress(self, step: float) -> bool | None:
        """`step` steps are done, on average over the seeds; several times a second in the host loop."""

    def on_record(self, step: int, metrics: Record) -> bool | None:
        """The record of one seed, as metrics.jsonl has it, with "time/fps", the steps per second of all seeds."""

    def on_evaluation(self, step: int, result: Evaluation) -> bool | None:
        """The evaluation of one seed; its record was told before."""

    def on_checkpoint(self, step: int, path: Any) -> bool | None:
        """A checkpoint was written to the folder `path`."""

    def on_end(self, reason: Reason) -> None:
        """Nothing more will come; `reason` is "finished", "callback", "stopped" (by a signal) or "failed"."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackList(Callback):
    """Several callbacks, told one after another; whether one of them asked to stop is remembered.

    Raises:
        ValueError: One has no hook, or a method that is called like a hook and is none.
    """

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self.callbacks = tuple(callbacks)
        self.asks_to_stop = False
        for callback in self.callbacks:
            _check_hooks(callback)

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        self._tell("on_start", config, loop, lost)

    def on_progress(self, step: float) -> None:
        self._tell("on_progress", step)

    def on_record(self, step: int, metrics: Record) -> None:
        self._tell("on_record", step, metrics)

    def on_evaluation(self, step: int, result: Evaluation) -> None:
        self._tell("on_evaluation", step, result)

    def on_checkpoint(self, step: int, path: Any) -> None:
        self._tell("on_checkpoint", step, path)

    def on_end(self, reason: Reason) -> None:
        """Tell all of them, also where one of them fails."""
        with contextlib.ExitStack() as stack:
            for callback in reversed(self.callbacks):
                if hasattr(callback, "on_end"):
                    stack.callback(callback.on_end, reason)

    def _tell(self, hook: str, *about: Any) -> None:
        for callback in self.callbacks:
            answer = getattr(callback, hook)(*about) if hasattr(callback, hook) else None
            self.asks_to_stop |= isinstance(answer, bool | np.bool_) and not answer


def _check_hooks(callback: Any) -> None:
    named = [name for name in dir(callback) if name.startswith("on_")]
    unknown = [name for name in named if name not in HOOKS]
    hooks = ", ".join(HOOKS)
    if unknown:
        raise ValueError(f"{type(callback).__name__} has {unknown[0]}, which is no hook of a callback; hooks: {hooks}")
    if not named or isinstance(callback, type):
        what = f"the class {callback.__name__}, not an object" if isinstance(callback, type) else repr(callback)
        raise ValueError(f"a callback is an object with some of the hooks {hooks}; got {what}")


def show_progress(visible: bool = True, introduce: bool = True) -> list[Callback]:
    """Callbacks that show a run on standard output: a bar in a terminal, else a line for each evaluation.

    Args:
        visible: Whether anything is shown; if not, there are none.
        introduce: Whether lines before it say what runs.
    """
    console = Console(highlight=False)
    if not visible:
        return []
    return [ProgressBar(console, introduce) if console.is_terminal else PrintProgress(introduce)]


class _OverSeeds(Callback, abc.ABC):
    """A callback that waits until all seeds have told their records of a step."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._num_seeds = 1

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        del loop, lost
        self._records, self._num_seeds = [], config.num_seeds

    def on_record(self, step: int, metrics: Record) -> None:
        self._records.append(metrics)
        if len(self._records) == self._num_seeds:
            records, self._records = self._records, []
            self.show(step, records)

    @abc.abstractmethod
    def show(self, step: int, records: list[Record]) -> None:
        """Show the records of all seeds."""


class PrintProgress(_OverSeeds):
    """A callback that prints what runs, and a line for each evaluation and for the end of the run."""

    def __init__(self, introduce: bool = True) -> None:
        super().__init__()
        self.introduce, self.whole_steps = introduce, 0

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        super().on_start(config, loop, lost)
        self.whole_steps = config.whole_steps
        for line in describe_run(config, loop, lost) if self.introduce else []:
            print(line, flush=True)

    def show(self, step: int, records: list[Record]) -> None:
        if "eval/mean_reward" in records[0] or step >= self.whole_steps:
            done, rate = f"step {step:,} of {self.whole_steps:,}", f"{records[0]['time/fps']:,.0f} steps/s"
            print("  ".join(part for part in (done, rate, format_score(records)) if part), flush=True)


class ProgressBar(_OverSeeds):
    """A callback that moves a bar."""

    def __init__(self, console: Console, introduce: bool = True) -> None:
        super().__init__()
        self.introduce, self.evaluated = introduce, False
        columns = (
            _Name(),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} {task.percentage:.0f}%", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[score]}", table_column=Column(no_wrap=True)),
        )
        self.progress = Progress(*columns, console=console, expand=True, speed_estimate_period=SPEED_PERIOD)
        self.task = self.progress.add_task("", rate="compiling", score="")

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        super().on_start(config, loop, lost)
        for line in describe_run(config, loop, lost) if self.introduce else []:
            self.progress.console.print(escape(line))
        name = f"{config.preset} {config.env_name}"
        self.progress.reset(self.task, total=config.whole_steps, completed=loop.step, description=name)
        self.progress.start()

    def on_progress(self, step: float) -> None:
        self.progress.update(self.task, completed=step)

    def show(self, step: int, records: list[Record]) -> None:
        """Move the bar and show the latest return; one of an evaluation stays until the next evaluation."""
        is_evaluation = "eval/mean_reward" in records[0]
        self.evaluated |= is_evaluation
        if is_evaluation or not self.evaluated:
            self.progress.update(self.task, score=format_score(records))
        self.progress.update(self.task, completed=step, rate=f"{records[0]['time/fps']:,.0f}/s")

    def on_end(self, reason: Reason) -> None:
        del reason
        self.progress.stop()


class _Name(ProgressColumn):
    """What runs; it is what is cut where a line is too short."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


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
