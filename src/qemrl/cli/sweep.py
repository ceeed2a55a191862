"""The command that runs a grid: sweep."""

import contextlib
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from qemrl.cli.console import print_table, require, require_folder, require_text, show_status, table, usage

if TYPE_CHECKING:
    from qemrl.experiments.engines import Engine, Needs
    from qemrl.experiments.forecast import Forecast
    from qemrl.experiments.sweep import RunStatus, Sweep


LARGEST = 1_000_000
"""What no option of an engine is larger than."""


@dataclass(frozen=True)
class EngineOptions:
    """What executes runs, and what each of them gets."""

    engine: Literal["local", "ray"] = "local"
    """`local` is a process for each core of this machine, `ray` a Ray cluster."""

    address: str | None = None
    """The Ray cluster, HOST:PORT or `auto`; without it one is started here, on the loopback interface."""

    cores: int | None = None
    """How many cores of this machine to use; all by default."""

    cpus_per_run: int = 1
    """Cores, and threads, of each run; results are the same, byte for byte, only for the same number."""

    gpus_per_run: float = 0.0
    """GPUs of each run, for Ray."""

    memory_per_run: float | None = None
    """Gigabytes that are set aside for each run; estimated from its replay by default."""

    retries: int = 10
    """How often Ray retries a run whose node died."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory of each run, if it is given."""
        return None if self.memory_per_run is None else round(self.memory_per_run * 1e9)

    def check(self) -> None:
        """Raise a `UsageError` unless all makes sense."""
        cores, cpus, gpus, memory = self.cores, self.cpus_per_run, self.gpus_per_run, self.memory_per_run
        for name, value, least in (("cores", cores, 1), ("cpus-per-run", cpus, 1), ("retries", self.retries, 0)):
            valid = value is None or least <= value <= LARGEST
            require(valid, f"--{name} must be at least {least} and at most {LARGEST:,}; got {value}")
        require(0 <= gpus <= LARGEST, f"--gpus-per-run must not be negative, and at most {LARGEST:,}; got {gpus:g}")
        valid = memory is None or 0 < memory <= LARGEST
        require(valid, f"--memory-per-run must be positive, and at most {LARGEST:,} GB; got {memory}")
        ray = self.engine == "ray"
        require(ray or self.address is None, "--address is for --engine ray")
        require(ray or gpus == 0, "--gpus-per-run is for --engine ray, which knows who has GPUs")
        require(
            self.address is None or cores is None, "--cores is for this machine; the cluster at --address has its own"
        )

    @contextlib.contextmanager
    def start(self) -> "Iterator[Engine]":
        """The engine; its processes end with the context."""
        from qemrl.experiments.engines import LocalEngine

        # Compiled programs are machine code: they come from no folder that somebody else may have filled.
        with tempfile.TemporaryDirectory(prefix="qemrl-programs-") as programs:
            if self.engine == "ray":
                from qemrl.experiments.ray_engine import RayEngine

                engine: Engine = RayEngine(self.address, self.cores, self.retries)
            else:
                engine = LocalEngine(self.cores, Path(programs))
            try:
                yield engine
            finally:
                engine.close()


def sweep(
    file: Positional[str],
    out: Path,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    dry_run: bool = False,
    cores: int | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float = 0.0,
    memory_per_run: float | None = None,
    retries: int = 10,
    trial_seconds: float = 5.0,
    allow_imports: bool = False,
) -> None:
    """Execute all runs of a grid: every algorithm on every environment with every seed.

    What is finished in the folder is left alone, what was interrupted resumes from its last checkpoint. A run that
    fails does not stop the others; the same command tries it again.

    Args:
        file: A TOML file with presets, envs, seeds, steps and overrides, or a built-in grid of `qemrl list`.
        out: The folder of the sweep; each run has a run directory in it.
        engine: `local` is a process for each core of this machine, `ray` a Ray cluster.
        address: The Ray cluster, HOST:PORT or `auto`; without it one is started here, on the loopback interface.
        dry_run: Only say what is left to do: runs, core-hours, memory and storage, from speeds measured now.
        cores: How many cores of this machine to use; all by default.
        cpus_per_run: Cores, and threads, of each run; results are the same, byte for byte, only for the same number.
        gpus_per_run: GPUs of each run, for Ray.
        memory_per_run: Gigabytes that are set aside for each run; estimated from its replay by default.
        retries: How often Ray retries a run whose node died.
        trial_seconds: How long a kind of run is tried out for --dry-run.
        allow_imports: Import the modules that the file names for environments (module:id), if it names any.
    """
    options = EngineOptions(engine, address, cores, cpus_per_run, gpus_per_run, memory_per_run, retries)
    options.check()
    require(0 < trial_seconds < 1e6, f"--trial-seconds must be positive; got {trial_seconds:g}")
    require_folder(out)
    require_text("`qemrl sweep`", Path(file))
    from qemrl.experiments.forecast import estimate_needs
    from qemrl.experiments.grid import read_grid
    from qemrl.experiments.sweep import Sweep

    with usage():
        asked = Sweep(read_grid(file, allow_imports), out)
        if dry_run:
            _print_forecast(asked, cpus_per_run, cores, trial_seconds)
            return
        for doubt in asked.find_doubts():
            warnings.warn(doubt, stacklevel=1)
        needs = estimate_needs(asked.missing, cpus_per_run, gpus_per_run, options.memory_bytes)
    finished = len(asked.runs) - len(asked.missing)
    print(f"{len(asked.runs)} runs in {out}, {finished} of them finished", flush=True)
    if asked.missing:
        again = ["qemrl", "sweep", file, "--out", str(out), *["--allow-imports"] * allow_imports]
        _drive(asked, options.start(), needs, shlex.join(again))


def _drive(asked: "Sweep", engine: "AbstractContextManager[Engine]", needs: "Mapping[Path, Needs]", again: str) -> None:
    from qemrl.training.train import catch_stop_signals

    with usage(), engine as started, catch_stop_signals() as signals, _watch() as watch:
        statuses = asked.drive(started, needs, watch, lambda: bool(signals))
    _conclude(statuses, signals, again, asked.folder)


@contextlib.contextmanager
def _watch() -> "Iterator[Callable[[Sequence[RunStatus]], None]]":
    """A live table in a terminal; elsewhere a line for each run that starts or ends."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield LinePrinter()
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(statuses: "Sequence[RunStatus]") -> None:
            live.update(status_table(statuses, max(5, console.height - 6)), refresh=True)

        yield show


class LinePrinter:
    """Prints a line for each run that starts to learn or ends."""

    def __init__(self) -> None:
        self.said: dict[Path, str] = {}

    def __call__(self, statuses: "Sequence[RunStatus]") -> None:
        """Say what is new."""
        for status in statuses:
            state = status.state.value
            before = self.said.get(status.path)
            if before != state and (before is not None or state not in ("finished", "waiting")):
                print("  ".join(part for part in _describe(status) if part), flush=True)
            self.said[status.path] = state


def status_table(statuses: "Sequence[RunStatus]", rows: int) -> Table:
    """A table of the runs: those that run first, as many as there are rows, and how many more there are."""
    from qemrl.experiments.sweep import State

    counts = {state: sum(status.state is state for status in statuses) for state in State}
    title = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    shown = table(title, "algorithm", "environment", ">seed", "state", ">done", ">steps/s", ">return", ">left")
    colors = {State.RUNNING: "cyan", State.FAILED: "red", State.FINISHED: "green"}
    order = list(State)
    ranked = sorted(statuses, key=lambda status: order.index(status.state))
    for status in ranked[:rows]:
        run = status.run
        names = (escape(run.arm), escape(run.config.env_name))
        rest = (
            str(run.config.seed),
            status.state.value,
            f"{status.step / run.config.whole_steps:.0%}",
            "" if status.steps_per_second is None else f"{status.steps_per_second:,.0f}",
            "" if status.score is None else f"{status.score:,.1f}",
            "" if status.seconds_left is None else _duration(status.seconds_left),
        )
        for column, text in zip(shown.columns[2:], rest, strict=True):  # of what is too wide, names are cut first
            column.min_width = max(column.min_width or len(str(column.header)), len(text))
        color = colors.get(status.state)
        shown.add_row(*names, rest[0], f"[{color}]{rest[1]}" if color else rest[1], *rest[2:])
    if len(ranked) > rows:
        shown.caption = f"… and {len(ranked) - rows} more"
    return shown


def _describe(status: "RunStatus") -> tuple[str, ...]:
    run = status.run
    name = f"{run.arm} on {run.config.env_name}, seed {run.config.seed}: {status.state.value}"
    score = "" if status.score is None else f"return {status.score:,.1f}"
    step = f"step {status.step:,} of {run.config.whole_steps:,}" if status.step else ""
    return (name, step, score, status.cause or "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _conclude(statuses: "Sequence[RunStatus]", signals: list[int], again: str, out: Path) -> None:
    """Print the states of all runs, and end the process accordingly; `again` is the command."""
    from qemrl.experiments.sweep import State

    print_table(status_table(statuses, len(statuses)))
    failed = [status for status in statuses if status.state is State.FAILED]
    for status in failed:
        print(f"failed: {status.path}: {status.cause}", file=sys.stderr)
    if signals:
        print(f"qemrl: stopped, and saved; resume: {again}", file=sys.stderr)
        sys.exit(128 + signals[0])
    if failed:
        print(f"qemrl: {len(failed)} of {len(statuses)} runs failed; try them again with: {again}", file=sys.stderr)
        sys.exit(1)
    print(f"finished: look at it with: qemrl report {shlex.quote(str(out))} --out report.html")


def _print_forecast(asked: "Sweep", cpus: int, cores: int | None, seconds: float) -> None:
    from qemrl.experiments.forecast import forecast
    from qemrl.training.machine import available_cores

    with show_status("trying out the runs") as status:
        costs = forecast(list(asked.statuses.values()), cpus, seconds, lambda what: status.update(escape(f"{what} …")))
    left = sum(cost.runs for cost in costs)
    print(f"{len(asked.runs)} runs, {len(asked.runs) - left} of them finished, {left} to do")
    if not left:
        return
    columns = ("algorithm", "environment", ">runs", ">steps/s", ">core-h", ">memory", ">disk", "speed of")
    shown = table("What is left to do", *columns)
    for cost in costs:
        shown.add_row(
            escape(cost.arm),
            escape(cost.env),
            str(cost.runs),
            f"{cost.measured.steps_per_second:,.0f}",
            f"{cost.core_hours:,.2f}",
            f"{cost.memory_bytes / 1e9:.1f} GB",
            f"{cost.storage_bytes / 1e9:.1f} GB",
            cost.measured.source,
        )
    print_table(shown)
    _print_totals(costs, cpus, available_cores() if cores is None else cores)


def _print_totals(costs: "Sequence[Forecast]", cpus: int, cores: int) -> None:
    hours = sum(cost.core_hours for cost in costs)
    disk = sum(cost.runs * cost.storage_bytes for cost in costs) / 1e9
    at_once = max(1, cores // cpus)
    print(f"together {hours:,.1f} core-hours: {hours / (at_once * cpus):,.1f} hours with {at_once} runs at a time here")
    print(f"memory {at_once * max(cost.memory_bytes for cost in costs) / 1e9:,.1f} GB for {at_once} runs at a time")
    print(f"storage {disk:,.1f} GB, of which most are replays in checkpoints")
    print("Speeds of a trial are without evaluations, those of runs with them. Memory and disk are of each run.")
