"""A sweep: the runs of a grid in one folder, brought to their end by an engine.

    DIR/grid.json                             the grid that was asked for last
    DIR/runs/ARM_ENV_seed-S_ID/               a run directory, known by arm and settings in its config.json
    DIR/lock                                  held by the process that drives the sweep

Nothing but the run directories says how far a sweep is. So it can be driven again after anything, from anywhere that
sees the folder: runs that are finished are left alone, others resume from their last checkpoints.
"""

import contextlib
import enum
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qemrl.experiments.engines import Engine, Needs
from qemrl.experiments.grid import Grid, Run
from qemrl.experiments.records import read_progress
from qemrl.experiments.worker import cause_of_failure
from qemrl.training.config import create_run, read_config
from qemrl.training.files import hold_lock, write_atomic
from qemrl.training.run_directory import RunDirectory

POLL_EVERY_SECONDS = 1.0
"""How often the folders of running runs are polled."""


class State(enum.Enum):
    """The state of a run; the order is that of a table."""

    RUNNING = "running"
    STARTING = "starting"
    FAILED = "failed"
    WAITING = "waiting"
    STOPPED = "stopped"
    FINISHED = "finished"


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    run: Run
    path: Path
    state: State
    step: int = 0
    steps_per_second: float | None = None
    score: float | None = None
    """The latest evaluation return; before the first one that of training."""

    cause: str | None = None
    """Why it failed."""

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at the present speed, if that is known."""
        if self.state is not State.RUNNING or not self.steps_per_second:
            return None
        return (self.run.config.whole_steps - self.step) / self.steps_per_second


class Driver:
    """Hands runs to an engine, and keeps their states up to date."""

    def __init__(self, engine: Engine, statuses: dict[Path, RunStatus]) -> None:
        self.engine, self.statuses = engine, statuses
        self.going: set[Path] = set()
        """The runs that the engine has."""

        self._timed: dict[Path, int] = {}
        """How long timing.jsonl was when a run was handed over: it is only ever added to."""

        self._polled = -math.inf

    def start(self, path: Path, needs: Needs) -> None:
        """Hand a run over; one that cannot start has failed, and does not keep the others from starting."""
        known = self.statuses[path]
        try:
            create_run(path, known.run.config, {"arm": known.run.arm})
            self.engine.start(path, needs)
        except Exception as error:
            self.statuses[path] = replace(known, state=State.FAILED, cause=str(error))
            return
        self.going.add(path)
        self._timed[path] = _size(path / "timing.jsonl")
        self.statuses[path] = replace(known, state=State.STARTING, cause=None)

    def poll(self) -> bool:
        """Look for runs that have ended, and about once a second at the others; returns whether it looked at them."""
        if self._collect():
            self._polled = -math.inf
        if time.monotonic() - self._polled < POLL_EVERY_SECONDS:
            return False
        for path in self.going:
            self.statuses[path] = self._read(path)
        self._polled = time.monotonic()
        return True

    def stop(self) -> None:
        """Let every run save its state and stop."""
        if self.going:
            self.engine.stop()
            self._collect()

    def _collect(self) -> bool:
        """Take note of the runs that have ended; returns whether there were any."""
        ended = self.engine.poll()
        for path, cause in ended:
            self.going.discard(path)
            self.statuses[path] = _read_last_status(self.statuses[path], cause)
        return bool(ended)

    def _read(self, path: Path) -> RunStatus:
        """The status of a run that is going on; until its first record it may still be queueing or compiling."""
        known = self.statuses[path]
        if _size(path / "timing.jsonl") == self._timed[path]:
            return known
        return replace(_update(known), state=State.RUNNING)


class Sweep:
    """The runs of a grid in a folder."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self.runs = grid.runs()
        self.statuses: dict[Path, RunStatus] = {}
        home = folder / "runs"
        there = _find_runs(home)
        for run in self.runs:
            path = there.get((run.arm, run.id)) or home / run.name
            self.statuses[path] = read_first_status(run, path)

    @property
    def missing(self) -> list[RunStatus]:
        """The runs that are not finished, in the order of the grid."""
        return [status for status in self.statuses.values() if status.state is not State.FINISHED]

    def find_doubts(self) -> list[str]:
        """What can be said before they start about runs that will not learn, each thing once."""
        doubts = {f"{each.run.arm} on {each.run.config.env}": each.run.config.find_doubts() for each in self.missing}
        return [f"{runs}: {doubt}" for runs, found in doubts.items() for doubt in found]

    def drive(
        self,
        engine: Engine,
        needs: Mapping[Path, Needs],
        watch: Callable[[Sequence[RunStatus]], None],
        should_stop: Callable[[], bool],
    ) -> list[RunStatus]:
        """Bring all runs to their end, and return their states then.

        Args:
            engine: What executes them.
            needs: What each run takes.
            watch: Called with the states of all runs, about once a second.
            should_stop: Whether to stop; the runs then save their state first.

        Raises:
            RunLockedError: Another process drives a sweep in this folder.
        """
        with self._lock():
            driver = Driver(engine, self.statuses)
            waiting = [status.path for status in self.missing]
            while (waiting or driver.going) and not should_stop():
                for path in [path for path in waiting if engine.has_room(needs[path])]:
                    if engine.has_room(needs[path]):  # those before it may have taken the room
                        waiting.remove(path)
                        driver.start(path, needs[path])
                if driver.poll():
                    watch(list(self.statuses.values()))
                if not driver.going and waiting:  # none of them could start just now
                    time.sleep(POLL_EVERY_SECONDS / 10)
            driver.stop()
            watch(list(self.statuses.values()))
        return list(self.statuses.values())

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"the sweep in {self.folder} is being driven"
        with (self.folder / "lock").open("a+b", buffering=0) as file, hold_lock(file, busy):
            write_atomic(self.folder / "grid.json", json.dumps(self.grid.as_json(), indent=2) + "\n")
            yield


def _find_runs(folder: Path) -> dict[tuple[str, str], Path]:
    """The runs in a folder by algorithm and id: that of their settings, which may not be the one in an old name."""
    found = {}
    for file in sorted(folder.glob("*/config.json")):
        # What cannot be read is found by its name alone.
        with contextlib.suppress(Exception):
            directory = RunDirectory(file.parent)
            run = Run(str(directory.record["extra"]["arm"]), read_config(directory.config))
            found[run.arm, run.id] = file.parent
    return found


def read_first_status(run: Run, path: Path) -> RunStatus:
    """The status of a run that nobody has been handed yet."""
    if not path.is_dir():  # as are most runs of a large grid: nothing else is looked for
        return RunStatus(run, path, State.WAITING)
    if (path / "DONE").exists():
        return replace(_update(RunStatus(run, path, State.FINISHED)), state=State.FINISHED)
    known = _update(RunStatus(run, path, State.WAITING))
    return replace(known, state=State.WAITING, steps_per_second=None)


def _read_last_status(status: RunStatus, cause: str | None) -> RunStatus:
    known = _update(status)
    if (status.path / "DONE").exists():
        return replace(known, state=State.FINISHED)
    if cause is None:
        started = (status.path / "metrics.jsonl").exists()  # or it was still in a queue
        return replace(known, state=State.STOPPED if started else State.WAITING)
    return replace(known, state=State.FAILED, cause=cause_of_failure(status.path) or cause)


def _update(status: RunStatus) -> RunStatus:
    """The status with what the newest records of the run say."""
    found = read_progress(status.path)
    return status if found is None else replace(status, **found._asdict())


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
