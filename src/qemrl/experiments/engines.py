"""Engines execute the runs of a sweep. An engine knows processes, not what they learn."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from qemrl.experiments.worker import cause_of_failure, thread_variables, worker_command
from qemrl.training.machine import available_bytes, available_cores


@dataclass(frozen=True)
class Needs:
    """What a run takes while it is going on."""

    memory_bytes: int
    cpus: int = 1
    """Cores, and threads."""

    gpus: float = 0.0
    module: str = ""
    """The module that it imports for its environment; no other is, whatever the files of the run name."""


class EndedRun(NamedTuple):
    """A run that is no longer going on."""

    path: Path
    cause: str | None
    """Why it failed; None if it did not, be it finished or asked to stop."""


@runtime_checkable
class Engine(Protocol):
    """Executes runs, each in a process of its own."""

    @property
    def cores(self) -> int:
        """How many cores it has for runs."""
        ...

    def has_room(self, needs: Needs) -> bool:
        """Whether one more run may be handed over now."""
        ...

    def start(self, path: Path, needs: Needs) -> None:
        """Start, or resume, the run in this folder."""
        ...

    def poll(self) -> list[EndedRun]:
        """The runs that have ended since this was last asked; it may wait a moment for one."""
        ...

    def interrupt(self, path: Path) -> None:
        """Let one run save its state and stop; `poll` says when it has."""
        ...

    def stop(self) -> None:
        """Let every run save its state and stop; returns when all have."""
        ...

    def close(self) -> None:
        """End every process at once; what was saved is kept."""
        ...


class LocalEngine:
    """One process for each core of this machine, one thread each, as many as memory has room for."""

    def __init__(self, cores: int | None = None, programs: Path | None = None) -> None:
        """An engine with this many cores, by default all.

        Args:
            cores: How many may be busy at once.
            programs: A folder for compiled programs, which runs that differ in their seeds only then share.
        """
        self.cores = available_cores() if cores is None else cores
        self.programs = programs
        if self.cores < 1:
            raise ValueError(f"an engine needs at least one core, got {self.cores}")
        free = available_bytes()
        self.memory = None if free is None else 0.9 * free
        self.running: dict[Path, tuple[subprocess.Popen[bytes], Needs]] = {}

    def has_room(self, needs: Needs) -> bool:
        """Whether cores are free, and the memory of all together would fit; one alone may always try."""
        if not self.running:
            return True
        running_needs = [other for _, other in self.running.values()]
        fits = (
            self.memory is None or sum(each.memory_bytes for each in running_needs) + needs.memory_bytes <= self.memory
        )
        return fits and sum(each.cpus for each in running_needs) + needs.cpus <= self.cores

    def start(self, path: Path, needs: Needs) -> None:
        """Start a process; what it says goes into the file log.txt of the run's folder."""
        with (path / "log.txt").open("ab") as log:
            # In a session of its own: Ctrl-C comes here, and is passed on once.
            process = subprocess.Popen(
                worker_command(path, needs.module),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._variables(needs),
                start_new_session=True,
            )
        self.running[path] = (process, needs)

    def _variables(self, needs: Needs) -> dict[str, str]:
        shared = {} if self.programs is None else {"JAX_COMPILATION_CACHE_DIR": str(self.programs.resolve())}
        return {**shared, **os.environ, **thread_variables(needs.cpus)}

    def poll(self) -> list[EndedRun]:
        """The runs whose process has ended."""
        if self.running:
            time.sleep(0.05)
        over = [(path, process) for path, (process, _) in self.running.items() if process.poll() is not None]
        for path, _ in over:
            del self.running[path]
        return [EndedRun(path, _explain_exit(path, process.returncode)) for path, process in over]

    def interrupt(self, path: Path) -> None:
        """Ask the process of a run to stop."""
        self._signal(path, signal.SIGTERM)

    def stop(self) -> None:
        """Ask all to stop, and wait for them."""
        for path in self.running:
            self._signal(path, signal.SIGTERM)
        for process, _ in self.running.values():
            process.wait()

    def close(self) -> None:
        """Kill what is left."""
        for path in self.running:
            self._signal(path, signal.SIGKILL)
        for process, _ in self.running.values():
            process.wait()
        self.running.clear()

    def _signal(self, path: Path, number: signal.Signals) -> None:
        process, _ = self.running[path]
        if process.poll() is None:
            process.send_signal(number)


def _explain_exit(path: Path, code: int) -> str | None:
    if code == 0 or code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        return None
    if code < 0:
        hint = "; the system may have run out of memory" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"
    return cause_of_failure(path) or f"its process ended with code {code}; see {path / 'log.txt'}"
