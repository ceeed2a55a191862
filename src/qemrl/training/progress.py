"""How a run goes, for whoever waits for it: a bar in a terminal, a line for each evaluation elsewhere."""

import contextlib
import statistics
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from qemrl.training.config import RunConfig
from qemrl.training.loops import Record, describe_environment, replay_bytes
from qemrl.training.memory import available_bytes
from qemrl.training.train import Callback


@contextlib.contextmanager
def bar(config: RunConfig, step: int, visible: bool) -> Iterator[Callback]:
    """A callback that shows a run on the standard output: a bar in a terminal, else a line for each evaluation.

    Args:
        config: What runs, to `config.whole_steps`.
        step: Where it begins.
        visible: Without this nothing is shown.
    """
    console = Console(highlight=False)
    if not visible:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(config)
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
            name = escape(f"{config.preset} {config.env}")
            task = progress.add_task(name, total=config.whole_steps, completed=step, rate="compiling", score="")
            yield Bar(progress, task)


class Silent:
    """A callback that says nothing."""

    def begin(self, config: RunConfig, step: int, lost: list[str]) -> None:
        """Nothing."""

    def at(self, step: float) -> None:
        """Nothing."""

    def record(self, records: list[Record], steps_per_second: float) -> None:
        """Nothing."""


class Lines:
    """A callback that prints what runs, and a line for each evaluation."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def begin(self, config: RunConfig, step: int, lost: list[str]) -> None:
        """Say what runs."""
        for line in introduction(config, step, lost):
            print(line, flush=True)

    def at(self, step: float) -> None:
        """Nothing: a line for each step would be too many."""

    def record(self, records: list[Record], steps_per_second: float) -> None:
        """Print a line if there was an evaluation, or the run has come to its end."""
        step = records[0]["step"]
        if "eval/mean_reward" in records[0] or step >= self.config.whole_steps:
            done, rate = f"step {step:,} of {self.config.whole_steps:,}", f"{steps_per_second:,.0f} steps/s"
            print("  ".join(part for part in (done, rate, format_score(records)) if part), flush=True)


class Bar:
    """A callback that moves a bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task
        self.evaluated = False

    def begin(self, config: RunConfig, step: int, lost: list[str]) -> None:
        """Say what runs."""
        for line in introduction(config, step, lost):
            self.progress.console.print(escape(line))
        self.progress.update(self.task, completed=step)

    def at(self, step: float) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=step)

    def record(self, records: list[Record], steps_per_second: float) -> None:
        """Move the bar and show the latest return; one of evaluation stays until the next of these."""
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


def introduction(config: RunConfig, step: int, lost: list[str]) -> list[str]:
    """What runs, in lines: preset, environment, seeds, loop, memory, and what could not be restored."""
    seeds = f"seed {config.seed}" if config.num_seeds == 1 else f"seeds {config.seeds[0]} to {config.seeds[-1]}"
    envs = "" if config.num_envs == 1 else f", {config.num_envs} environments each"
    loop = "compiled" if config.is_compiled else "host"
    way = f"from step {step:,} to {config.whole_steps:,}" if step else f"{config.whole_steps:,} steps"
    lines = [f"{config.preset} on {config.env}: {way}, {seeds}{envs}, {loop} loop"]
    free = available_bytes()
    needed = replay_bytes(config, describe_environment(config))
    there = "" if free is None else f", {_in_words(free)} of memory are free"
    lines.append(f"the replay takes up to {_in_words(needed)}{there}")
    if config.protocol is not None:
        game = config.protocol
        sticky = f"sticky actions {game.sticky_actions:g}" if game.sticky_actions else "no sticky actions"
        noops = f"up to {game.noop_max} no-ops" if game.noop_max else "no no-ops"
        lines.append(f"protocol {game.name}: {sticky}, {noops}, life loss {game.life_loss.replace('_', ' ')}")
    return lines + [f"warning: {loss}" for loss in lost]


def _in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
