"""The records of a run for TensorBoard: event files, written again from metrics.jsonl whenever a run is resumed."""

import importlib
import importlib.util
import shutil
import time
from pathlib import Path
from typing import Any

from qemrl.extras import require_extra
from qemrl.training.callbacks import Callback, Reason
from qemrl.training.config import RunConfig
from qemrl.training.loops import Loop
from qemrl.training.run_directory import RunDirectory
from qemrl.training.schedule import Record

FOLDER = "tensorboard"


class TensorBoardCallback(Callback):
    """A callback that writes event files into the folder `tensorboard` of a run directory, a folder for each seed."""

    def __init__(self, directory: RunDirectory) -> None:
        require_extra("tensorboard", "--tensorboard")
        self.directory = directory
        self._writers: dict[int, Any] = {}

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        """Write what metrics.jsonl holds, in place of whatever was there: steps that were undone must not stay."""
        del loop, lost
        folder = self.directory.path / FOLDER
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        self._writers = {seed: _writer(folder / f"seed_{seed}") for seed in config.seeds}
        # Of a record that was written twice, the last.
        rates = {record["step"]: record["time/fps"] for record in self.directory.read_timing()}
        for record in self.directory.read_metrics():
            self._write({**record, "time/fps": rates.get(record["step"])})
        for writer in self._writers.values():
            writer.flush()

    def on_record(self, step: int, metrics: Record) -> None:
        """Write the record, and flush it to disk."""
        del step
        self._write(metrics)
        self._writers[metrics["seed"]].flush()

    def on_end(self, reason: Reason) -> None:
        """Close all files."""
        del reason
        for writer in self._writers.values():
            writer.close()

    def _write(self, record: Record) -> None:
        # modules that are generated: their classes are not in their source
        messages: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        numbers = {tag: value for tag, value in record.items() if "/" in tag and isinstance(value, int | float)}
        values = [summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        event = messages.Event(step=record["step"], wall_time=time.time(), summary=summaries.Summary(value=values))
        self._writers[record["seed"]].add_event(event)


def _writer(folder: Path) -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder))
