"""Short runs of every kind, in processes that can be killed, and what they are if nobody disturbs them."""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.chaos.trials import Verdict
from qemrl.training import checkpoint

SHORT = (
    *("--steps", "800", "--log-every", "100", "--evaluate-every", "250", "--checkpoint-every", "130"),
    *("--evaluation-episodes", "2", "--batch-size", "16", "--learning-starts", "200"),
)
TINY = ("--network.widths", "16", *SHORT)
SUBJECTS = {
    "host-loop": (
        *("qem-dqn", "--env", "CartPole-v1", "--num-seeds", "2", "--replay.prioritized", "--replay.n-step", "3"),
        *TINY,
    ),
    "compiled-loop": ("dqn", "--env", "jax/catch", *TINY),
    "random-levels": ("iqem-dqn", "--env", "jax/cartpole", "--num-seeds", "2", *TINY),
    "actor-critic": (
        *("td3", "--env", "jax/pendulum", "--network.policy-widths", "16", "--network.critic-widths", "16"),
        *("--network.critic-hidden", "16", *SHORT),
    ),
    "actor-critic-host-loop": (
        *("sac", "--env", "Pendulum-v1", "--network.policy-widths", "16", "--network.critic-widths", "16"),
        *("--network.critic-hidden", "16", *SHORT),
    ),
}
"""What is trained, by name: both loops, both families of agents."""

SWEEP = "sweep"
"""The name of the sweep among them."""

GRID = """\
presets = ["dqn", "qem-dqn"]
envs = ["jax/catch"]
seeds = 2
steps = 800

[overrides]
network.widths = [16]
batch_size = 16
log_every = 100
evaluate_every = 250
evaluation_episodes = 2
checkpoint_every = 130
learning_starts = 200
"""
PATIENCE_SECONDS = 300.0
"""How long a process may take, on a machine that has other work."""


def references(work: Path) -> Path:
    """The folder of the runs that nobody disturbed."""
    return work / "references"


def list_subjects(work: Path) -> list[str]:
    """The names of the runs that nobody disturbed, without the sweep."""
    return [name for name in SUBJECTS if (references(work) / name).exists()]


def make_references(work: Path, names: Sequence[str]) -> None:
    """Do the runs of these names, undisturbed, and the sweep if it is one of them; what is finished is left alone.

    Raises:
        RuntimeError: One of them fails.
    """
    folder = references(work)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.toml").write_text(GRID, encoding="utf-8")
    for name in names:
        log = folder / f"{name}.log"
        words = ("train", *SUBJECTS[name]) if name != SWEEP else ("sweep", str(folder / "grid.toml"), "--cores", "1")
        code = wait(start((*words, "--out", str(folder / name)), log))
        if code != 0:
            raise RuntimeError(f"the undisturbed run {name} ended with {code}:\n{log.read_text(errors='replace')}")


def start(words: Sequence[str], log: Path, held: bool = False, place: Path | None = None) -> int:
    """The number of a new process that does a command of `qemrl`; what it says goes into a file.

    It is a fork of this process, which has imported everything, but has not started JAX.

    Args:
        words: The command line.
        log: The file for what it says.
        held: It stops itself before it begins, until it gets SIGCONT.
        place: Its working folder.
    """
    from qemrl.cli import main

    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:  # nothing of the parent may go on in the child, whatever happens
        os.setsid()
        said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if place is not None:
            os.chdir(place)
        # Whatever the campaign itself ignores, as under nohup, the command does not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if held:
            os.kill(os.getpid(), signal.SIGSTOP)
        main(list(words))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def poll(pid: int) -> int | None:
    """How a process ended, as subprocess says it; None if it has not."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def wait(pid: int, seconds: float = PATIENCE_SECONDS) -> int | None:
    """How a process ended; None if it did not in this time, and was killed."""
    until = time.monotonic() + seconds
    while (code := poll(pid)) is None:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)
    return code


def find_processes(folder: Path) -> Iterator[int]:
    """The workers of sweeps that do runs in a folder."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"qemrl.experiments.worker" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                yield int(place.name)


def compare(run: Path, reference: Path) -> Iterator[tuple[Verdict, str]]:
    """In what a finished run differs from the same run that nobody disturbed."""
    there, wanted = (read_content(folder) for folder in (run, reference))
    for name in sorted(wanted.keys() - there.keys()):
        yield "lost", f"{name} is missing"
    for name in sorted(there.keys() - wanted.keys()):
        yield "wrong", f"{name} is there, and is not in the undisturbed run"
    for name in sorted(there.keys() & wanted.keys()):
        if there[name] != wanted[name]:
            yield "wrong", f"{name} has other bytes"
    states = [checkpoint.load_latest(folder / "checkpoints") for folder in (run, reference)]
    if states[0] is None or states[1] is None or states[0].step != states[1].step:
        yield "lost", "the last checkpoint is missing"
        return
    for name, array in states[1].arrays.items():
        if not np.array_equal(states[0].arrays.get(name, np.empty(0)), array, equal_nan=array.dtype.kind == "f"):
            yield "wrong", f"{name} in the last checkpoint differs"


def read_content(run: Path) -> dict[str, bytes]:
    """The files of a run that are the same however often it was interrupted."""
    files = [file for file in (run / "metrics.jsonl", run / "DONE") if file.exists()]
    files += [file for name in ("evaluations", "best") for file in (run / name).rglob("*") if file.is_file()]
    left = [file for file in run.rglob(".*.tmp") if file not in files]
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in [*files, *left]}


if __name__ == "__main__":
    make_references(Path(sys.argv[1]), sys.argv[2:])
