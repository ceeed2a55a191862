"""One run of a sweep, brought to its end in a process of its own: what every engine does.

A run that fails leaves a file FAILED with the cause in its folder, which goes when it is tried again. A run whose
parent dies saves its state and stops. Of the modules that a run's config.json could name for its environment, one is
imported if the engine says which.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from qemrl.training.files import open_regular, parse_json

if TYPE_CHECKING:
    from qemrl.training.run_directory import RunDirectory

PYTHON = (sys.executable, "-P", "-m")
"""How a process begins in which no file of the working folder takes the place of a package."""

FAILED = "FAILED"
PATIENCE_SECONDS = 60.0
"""How long a run waits for a process that still holds its folder: one that was left behind, and is saving."""


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that keep a process to this many threads; they must be set before JAX is imported."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        flags = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: str(threads) for name in names} | {"XLA_FLAGS": flags}


def worker_command(path: Path, module: str = "") -> list[str]:
    """The command line of a process that does a run, as long as this process is there.

    Args:
        path: The folder of the run.
        module: The module that it imports for its environment, if it needs one.
    """
    return [*PYTHON, "qemrl.experiments.worker", str(path), str(os.getpid()), module]


def cause_of_failure(path: Path) -> str | None:
    """Why a run failed when it was last tried; None if it did not."""
    try:
        with open_regular(path / FAILED) as file:
            return str(parse_json(file.read())["cause"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return f"unknown: {path / FAILED} cannot be read"


def work(path: Path, module: str = "") -> None:
    """Bring the run to its end; whatever goes wrong is written down, then raised.

    Args:
        path: The folder of the run.
        module: The module that may be imported for its environment.

    Raises:
        ImportRefused: Its environment is of another module.
        Stopped: A signal asked for it; a checkpoint was written.
    """
    from qemrl.envs.gym.catalog import split_id
    from qemrl.training.config import read_config
    from qemrl.training.files import write_atomic
    from qemrl.training.loops import check_imports
    from qemrl.training.run_directory import RunDirectory
    from qemrl.training.train import Stopped, train

    (path / FAILED).unlink(missing_ok=True)
    try:
        run = RunDirectory(path)
        _wait_for_lock(run)
        config = read_config(run.config)
        check_imports(config, module == split_id(config.env)[0])
        train(config, run)
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        record = {"cause": cause, "traceback": traceback.format_exc()}
        with contextlib.suppress(Exception):  # a full disk is the likeliest cause
            write_atomic(path / FAILED, json.dumps(record, indent=2) + "\n")
        raise


def _wait_for_lock(run: "RunDirectory") -> None:
    from qemrl.training.files import RunLockedError

    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with run.lock():
                return
        except RunLockedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _stop_after(parent: int) -> None:
    """Stop this process, by the signal that makes it save, when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Do the run of `worker_command`; the exit code says how it ended."""
    path, parent, module = arguments
    # Told by the parent: it may have died before this process could ask who it is.
    if os.getppid() != int(parent):
        return 128 + signal.SIGTERM
    threading.Thread(target=_stop_after, args=(int(parent),), daemon=True).start()
    from qemrl.training.train import Stopped

    try:
        work(Path(path), module)
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
