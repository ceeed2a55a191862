"""Runs and sweeps that are killed, interrupted and stopped, at any moment, until they are finished."""

import contextlib
import ctypes
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.chaos.runs import (
    PATIENCE_SECONDS,
    SUBJECTS,
    SWEEP,
    compare,
    find_processes,
    list_subjects,
    poll,
    references,
    start,
    wait,
)
from benchmarks.chaos.trials import Outcome, Trial

SIGNALS = (*[signal.SIGKILL] * 6, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SYSTEM_CALLS = {
    "fsync": 150,
    "openat": 500,
    "write": 300,
    "unlinkat": 60,
    "rename": 12,
    "mkdir": 8,
    "ftruncate": 15,
    "close": 500,
}
"""System calls, and about how many of them an undisturbed run makes."""

FORGOTTEN = re.compile(r"Exception ignored in: .*?\nKeyboardInterrupt", re.DOTALL)
"""What Python prints of an interrupt that comes inside of a callback, such as JAX's for the collection of garbage: it
goes on then, and so does the run."""

SWEEPS = 0.06
"""The share of trials that disturb a sweep."""

LONGEST_SECONDS = 4.0
"""About what an undisturbed run takes."""

IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_ISDIR = 0x8, 0x40, 0x80, 0x100, 0x200, 0x40000000


class Moment(NamedTuple):
    """When a process is struck: after some time, after so many events in its folder, or at a system call."""

    kind: str
    after: float
    """Seconds, events, or calls."""

    call: str = ""


class Strike(NamedTuple):
    """What happened to a process that was to be struck."""

    moment: Moment
    signal: signal.Signals
    code: int | None
    """How it ended; None if it did not."""

    said: str

    @property
    def has_hit(self) -> bool:
        """Whether it was the signal that ended the process."""
        return self.code in (-self.signal, 128 + self.signal)

    def find_fault(self) -> str | None:
        """What is wrong with how it ended, if something is."""
        if self.code is None:
            return "it did not end"
        if "Traceback" in FORGOTTEN.sub("", self.said):
            return self.said[-3_000:]
        if not self.has_hit and self.code != 0:
            return f"it ended with {self.code}: {self.said[-1_000:]}"
        if self.code == 128 + self.signal and not any(word in self.said for word in ("saved", "interrupt", "stop")):
            return f"it did not say that it was stopped: {self.said[-1_000:]}"
        return None


def try_kills(trial: Trial) -> Outcome:
    """Bring a run, or now and then a sweep, to its end in spite of everything."""
    chance = trial.chance
    shutil.rmtree(trial.folder, ignore_errors=True)
    trial.folder.mkdir(parents=True)
    outcome = Outcome()
    if chance.random() < SWEEPS and (references(trial.work) / SWEEP).exists():
        _disturb_sweep(trial, chance, outcome)
    else:
        _disturb_run(trial, chance, outcome)
    shutil.rmtree(trial.folder, ignore_errors=True)
    return outcome


def _disturb_run(trial: Trial, chance: random.Random, outcome: Outcome) -> None:
    name = chance.choice(list_subjects(trial.work))
    run, history = trial.folder / "run", [name]
    begin = ("train", *SUBJECTS[name], "--out", str(run))
    kind = ""
    for _ in range(chance.randint(6, 15)):
        is_there = (run / "config.json").exists()
        words = ("resume", str(run)) if is_there and chance.random() < 0.7 else begin
        moment, number = _draw_moment(chance), chance.choice(SIGNALS)
        strike = _strike(words, trial.folder / "log.txt", run, moment, number)
        kind = f"runs, struck at {moment.kind}"
        history.append(f"{number.name} at {moment.kind} {moment.call} {moment.after:.3g}: {strike.code}")
        outcome.tried[kind] += strike.has_hit
        if (fault := strike.find_fault()) is not None:
            outcome.fail(kind, "hang" if strike.code is None else "traceback", f"{'; '.join(history)}: {fault}")
            return
        if strike.code == 0:  # it was finished before it was struck
            break
    log = trial.folder / "last.txt"
    code = wait(start(("resume", str(run)) if (run / "config.json").exists() else begin, log))
    if code != 0:
        said = log.read_text(errors="replace")
        outcome.fail(kind, "lost", f"{'; '.join(history)}: it ended with {code}: {said}")
        return
    for verdict, what in compare(run, references(trial.work) / name):
        outcome.fail(kind, verdict, f"{'; '.join(history)}: {what}")


def _draw_moment(chance: random.Random) -> Moment:
    kind = chance.choice(("a time", "a file event", "a system call"))
    if kind == "a time":
        return Moment(kind, chance.uniform(0, LONGEST_SECONDS))
    if kind == "a file event":
        return Moment(kind, int(10 ** chance.uniform(0, 2.8)))
    call, most = chance.choice(list(SYSTEM_CALLS.items()))
    return Moment(kind, int(most ** chance.random()), call)


def _strike(words: Sequence[str], log: Path, run: Path, moment: Moment, number: signal.Signals) -> Strike:
    log.unlink(missing_ok=True)
    if moment.kind == "a system call":
        code = _strike_at_call(words, log, moment, number)
    else:
        pid = start(words, log)
        waiting = _wait_for_events if moment.kind == "a file event" else _wait_for_time
        code = waiting(pid, run, moment.after)
        if code is None:
            os.kill(pid, number)  # it is ours until it is waited for, dead or not
            code = wait(pid)
    return Strike(moment, number, code, log.read_text(errors="replace") if log.exists() else "")


def _strike_at_call(words: Sequence[str], log: Path, moment: Moment, number: signal.Signals) -> int | None:
    """Start a process that gets the signal as it makes a system call for the n-th time."""
    pid = start(words, log, held=True)
    os.waitpid(pid, os.WUNTRACED)
    what = f"{moment.call}:signal={number.name}:when={moment.after:.0f}"
    options = ["-f", "-o", os.devnull, "-e", f"trace={moment.call}", "-e", f"inject={what}"]
    tracer = subprocess.Popen(["strace", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    attached = tracer.stderr.readline()
    if "attached" not in attached:
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        raise RuntimeError(f"strace cannot attach to processes here: {attached}")
    os.kill(pid, signal.SIGCONT)
    code = wait(pid)
    tracer.kill()
    tracer.communicate()
    return code


def _wait_for_time(pid: int, run: Path, seconds: float) -> int | None:
    """How the process ended before that time; None if it goes on."""
    del run
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (code := poll(pid)) is not None:
            return code
        time.sleep(0.002)
    return None


def _wait_for_events(pid: int, run: Path, count: float) -> int | None:
    """How the process ended before so many events in its folder; None if it goes on."""
    with FolderWatch(run.parent) as watch:
        seen, until = 0, time.monotonic() + PATIENCE_SECONDS
        while seen < count and time.monotonic() < until:
            if (code := poll(pid)) is not None:
                return code
            seen += watch.count_events(0.01)
    return None


@dataclass
class FolderWatch:
    """Counts the events in a folder and all below it, by the kernel's inotify."""

    folder: Path

    def __enter__(self) -> "FolderWatch":
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.queue = self.libc.inotify_init1(os.O_NONBLOCK)
        self.places: dict[int, Path] = {}
        self._add(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.queue)

    def count_events(self, seconds: float) -> int:
        """How many there are in this time, or at once if there are some."""
        if not select.select([self.queue], [], [], seconds)[0]:
            return 0
        content, at, count = os.read(self.queue, 65_536), 0, 0
        while at < len(content):
            watch, mask, _, length = struct.unpack_from("iIII", content, at)
            name = os.fsdecode(content[at + 16 : at + 16 + length].rstrip(b"\0"))
            at, count = at + 16 + length, count + 1
            if mask & IN_ISDIR and mask & (IN_CREATE | IN_MOVED_TO) and watch in self.places:
                self._add(self.places[watch] / name)
        return count

    def _add(self, folder: Path) -> None:
        mask = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
        watch = self.libc.inotify_add_watch(self.queue, os.fsencode(folder), mask)
        if watch >= 0:
            self.places[watch] = folder
            with contextlib.suppress(OSError):  # folders that were there before it was watched
                for below in folder.iterdir():
                    if below.is_dir():
                        self._add(below)


def _disturb_sweep(trial: Trial, chance: random.Random, outcome: Outcome) -> None:
    """Kill drivers and workers of a sweep, then let it finish."""
    out, log, history = trial.folder / "sweep", trial.folder / "log.txt", ["sweep"]
    kind, code = "", None
    words = ("sweep", str(references(trial.work) / "grid.toml"), "--out", str(out), "--cores", "1")
    for _ in range(chance.randint(2, 4)):
        kind, number = chance.choice(("sweeps, driver", "sweeps, worker")), chance.choice(SIGNALS)
        pid = start(words, log)
        code = _wait_for_time(pid, out, chance.uniform(0, 5 * LONGEST_SECONDS))
        victims = [pid] if kind == "sweeps, driver" else list(find_processes(out))
        if code is None and victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(victims), number)
            outcome.tried[kind] += 1
            history.append(f"{number.name} to {kind}")
        if code is None and kind == "sweeps, worker":  # the driver may well go on
            code = _wait_for_time(pid, out, 1.0)
        if code is None:
            if kind == "sweeps, worker":
                os.kill(pid, signal.SIGTERM)
            if wait(pid) is None:
                outcome.fail(kind, "hang", f"{'; '.join(history)}: the driver did not end")
        if left := _wait_for_workers(out):
            outcome.fail(kind, "hang", f"{'; '.join(history)}: workers went on: {left}")
            return
    for _ in range(3):  # a run whose worker was killed has failed, and is tried again by the same command
        code = wait(start(words, log))
        if code == 0:
            break
    said = log.read_text(errors="replace")
    if code != 0 or "Traceback" in said:
        outcome.fail(kind, "lost" if code else "traceback", f"{'; '.join(history)}: ended with {code}: {said[-3_000:]}")
        return
    for reference in sorted((references(trial.work) / SWEEP / "runs").iterdir()):
        for verdict, what in compare(out / "runs" / reference.name, reference):
            outcome.fail(kind, verdict, f"{'; '.join(history)}: {reference.name}: {what}")


def _wait_for_workers(out: Path, seconds: float = 60.0) -> list[int]:
    """The workers that are left after some time without their driver."""
    until = time.monotonic() + seconds
    while (left := list(find_processes(out))) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
