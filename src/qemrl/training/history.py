"""What an agent remembers of its learning, and which of its checkpoints are there."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from qemrl.config.override import convert
from qemrl.training import checkpoint
from qemrl.training.callbacks import Callback
from qemrl.training.evaluation import Evaluation
from qemrl.training.loops import Loop
from qemrl.training.machine import summarize_machine
from qemrl.training.run_directory import RunDirectory
from qemrl.training.schedule import Record
from qemrl.training.train import evaluation_name, save_checkpoint, write_episodes


class Home(NamedTuple):
    """The folder that holds the state of an agent, and all checkpoints that were there when it was seen last."""

    path: Path
    step: int
    checkpoints: list[int]

    def is_at(self, path: Path) -> bool:
        """Whether this is the folder, and nobody else has gone on there."""
        return self.path == path.resolve() and self.checkpoints == checkpoint.list_steps(path / "checkpoints")


class History(Callback):
    """A callback that remembers records, evaluations, and where the last checkpoint went."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.timing: list[Record] = []
        self.evaluations: dict[tuple[int, int], Evaluation] = {}
        """By step and seed."""

        self.home: Home | None = None

    def on_record(self, step: int, metrics: Record) -> None:
        self.records.append({tag: value for tag, value in metrics.items() if tag != "time/fps"})
        self.timing.append({"step": step, "time/fps": metrics["time/fps"], "machine": summarize_machine()})

    def on_evaluation(self, step: int, result: Evaluation) -> None:
        self.evaluations[step, result.seed] = result

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.home = Home(path.parent.parent.resolve(), step, checkpoint.list_steps(path.parent))

    def read(self, directory: RunDirectory, metrics_bytes: int) -> None:
        """Remember what a run directory held at a checkpoint."""
        self.records, self.timing = directory.read_metrics(metrics_bytes), directory.read_timing()
        for record in self.records:
            played = directory.read_evaluation(evaluation_name(record["step"], record["seed"]))
            if played is not None:
                returns, lengths = np.asarray(played["returns"], np.float64), np.asarray(played["lengths"], np.int64)
                evaluation = Evaluation(returns, lengths, record["seed"], played.get("cut", 0))
                self.evaluations[record["step"], record["seed"]] = evaluation

    def write(self, directory: RunDirectory, loop: Loop) -> None:
        """Put all of it into a run directory, with a checkpoint."""
        with directory.lock():
            for (step, _), played in self.evaluations.items():
                write_episodes(directory, step, played)
            directory.replace_metrics(self.records, self.timing)
            self.on_checkpoint(loop.step, save_checkpoint(loop, directory))


def locate_checkpoint(directory: RunDirectory, wanted: int | str) -> tuple[Path, int | None]:
    """The folder that holds a checkpoint of a run, and its step; None stands for the last good one there.

    Args:
        directory: The run.
        wanted: `last`, `best`, or a step.

    Raises:
        ValueError: There is no such checkpoint; the message says which there are.
    """
    steps, best = checkpoint.list_steps(directory.checkpoints), checkpoint.list_steps(directory.best)
    if wanted == "last":
        return directory.checkpoints, None
    if wanted == "best":
        if best:
            return directory.best, None
        raise ValueError(
            f"{directory.path} has no best checkpoint: no evaluation has chosen one, or it was run by a version that "
            "kept none; take the last one"
        )
    step = convert(wanted, int, "checkpoint (last, best, or the step of one)")
    for folder, there in ((directory.checkpoints, steps), (directory.best, best)):
        if step in there:
            return folder, step
    known = ", ".join([*(f"{each} (best)" for each in best), *map(str, reversed(steps))]) or "none yet"
    raise ValueError(f"{directory.path} has no checkpoint of step {step}; there are: {known}")
