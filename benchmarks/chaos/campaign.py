"""The campaign: trials of all parts on all cores, until its time is over; a file keeps what was tried and failed."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.runs import PATIENCE_SECONDS
from benchmarks.machine import describe_machine
from qemrl.experiments.worker import thread_variables
from qemrl.training.files import write_atomic
from qemrl.training.machine import code_commit

SHARES: Mapping[str, float] = {"kills": 0.83, "damage": 0.1, "calls": 0.04, "cluster": 0.03}
"""What part of the time each part gets."""

TRIAL_SECONDS = 4 * PATIENCE_SECONDS
"""What a trial may take before it counts as one that hangs."""

AHEAD_SECONDS = 10.0
"""What a trial is taken to last while it goes on."""

MOST_FAILURES = 1_000
"""How many failures are described; all are counted."""

COUNTERS = ("trials", "tried", "failed")

Tell = Callable[[str], None]


@dataclass
class Record:
    """What a campaign has tried so far."""

    seed: int
    trials: Counter[str] = field(default_factory=Counter)
    """The number of the next trial of each part."""

    seconds: dict[str, float] = field(default_factory=dict)
    """What they took."""

    tried: Counter[str] = field(default_factory=Counter)
    """By kind."""

    failed: Counter[str] = field(default_factory=Counter)
    """By kind and verdict, with a colon between them."""

    failures: list[dict[str, Any]] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)

    def add(self, part: str, number: int, outcome: Mapping[str, Any]) -> None:
        """Count what a trial tried."""
        self.tried.update(outcome["tried"])
        for failure in outcome["failures"]:
            self.failed[f"{failure['kind']}: {failure['verdict']}"] += 1
            if len(self.failures) < MOST_FAILURES:
                self.failures.append({"trial": f"{part}:{number}", **failure})

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        counters = {name: dict(sorted(getattr(self, name).items())) for name in COUNTERS}
        seconds = {part: round(spent) for part, spent in self.seconds.items()}
        rest = {"failures": self.failures, "commits": self.commits}
        return {"seed": self.seed, "seconds": seconds, **counters, **rest}


def read_record(file: Path) -> Record | None:
    """The record of a campaign; None if there is no file."""
    if not file.exists():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    counters = {name: Counter(found[name]) for name in COUNTERS}
    rest = {name: found[name] for name in ("seconds", "failures", "commits")}
    return Record(found["seed"], **counters, **rest)


def write_record(record: Record, file: Path) -> None:
    """Keep the record, and on which machine it was made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps({**record.as_json(), "machine": describe_machine(())}, indent=1) + "\n")


def prepare(work: Path, names: Sequence[str]) -> None:
    """Do the runs of these names that nobody disturbs, in a process of their own.

    Raises:
        RuntimeError: One of them fails, or something is missing on this machine.
    """
    if shutil.which("strace") is None:
        raise RuntimeError("the campaign needs strace, from the system's packages, and so Linux")
    work.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "benchmarks.chaos.runs", str(work), *names]
    done = subprocess.run(words, env=variables(work), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-3_000:])


def variables(work: Path) -> dict[str, str]:
    """The variables of all processes: one thread each, and programs that are compiled once."""
    programs = {
        "JAX_COMPILATION_CACHE_DIR": str(work / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return {**os.environ, **thread_variables(1), **programs}


class Worker:
    """A process that does trials of a part, one after the other."""

    def __init__(self, part: str, seed: int, work: Path) -> None:
        words = [sys.executable, "-m", "benchmarks.chaos.worker", part, str(seed), str(work)]
        self.log = (work / f"{part}.err").open("ab")
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=variables(work),
            start_new_session=True,
            bufsize=0,
        )

    def attempt(self, part: str, number: int) -> dict[str, Any] | None:
        """The outcome of a trial; a process that dies of it, or takes too long, is one too. None if it was stopped."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{number}\n".encode())
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                is_answered = selector.select(TRIAL_SECONDS)
            answer = self.process.stdout.readline() if is_answered else b""
        except OSError:
            is_answered, answer = [()], b""
        if answer:
            return json.loads(answer)
        verdict = "traceback" if is_answered else "hang"
        code = self.process.wait(10) if is_answered else None
        self.close()
        if code in (-signal.SIGINT, -signal.SIGTERM):
            return None
        what = f"the process that did trial {number} " + (f"ended with {code}" if is_answered else "did not answer")
        return {"tried": {}, "failures": [{"kind": f"{part}, the process", "verdict": verdict, "what": what}]}

    def kill(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and let go of what belongs to it."""
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                stream.close()


def run(record: Record, file: Path, work: Path, seconds: float, cores: int, parts: Sequence[str], tell: Tell) -> None:
    """Do trials for so long, or until Ctrl-C; what they find is kept after each of them."""
    lock, stop, until = threading.Lock(), threading.Event(), time.monotonic() + seconds
    record.commits = list(dict.fromkeys([*record.commits, code_commit() or "unknown"]))
    begun = Counter(record.trials)
    spent = {part: record.seconds.get(part, 0.0) for part in parts}

    def work_on_core(workers: dict[str, Worker]) -> None:
        while time.monotonic() < until and not stop.is_set():
            with lock:
                part = min(parts, key=lambda name: spent[name] / SHARES[name])
                number, begun[part] = begun[part], begun[part] + 1
                spent[part] += AHEAD_SECONDS  # so that the next core takes another part
            start = time.monotonic()
            if part not in workers or workers[part].process.poll() is not None:
                workers[part] = Worker(part, record.seed, work)
            outcome = workers[part].attempt(part, number)
            if outcome is None or stop.is_set():
                break
            with lock:
                record.trials[part] = max(record.trials[part], number + 1)
                took = time.monotonic() - start
                record.seconds[part] = record.seconds.get(part, 0.0) + took
                spent[part] += took - AHEAD_SECONDS
                record.add(part, number, outcome)
                write_record(record, file)
                tell(f"{part} {number}: {sum(record.tried.values()):,} tried, {sum(record.failed.values()):,} failed")
        for worker in workers.values():
            worker.close()

    on_cores: list[dict[str, Worker]] = [{} for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        try:
            list(pool.map(work_on_core, on_cores))
        finally:
            stop.set()
            for worker in [each for workers in on_cores for each in list(workers.values())]:
                worker.kill()


def repeat(part: str, number: int, seed: int, work: Path) -> dict[str, Any]:
    """The outcome of one trial, done again."""
    worker = Worker(part, seed, work)
    try:
        return worker.attempt(part, number) or {"tried": {}, "failures": []}
    finally:
        worker.close()


def list_rows(record: Record) -> list[list[str]]:
    """The table: for each kind what was tried, and what failed in which way."""
    rows = []
    for kind in sorted({*record.tried, *(name.rpartition(": ")[0] for name in record.failed)}):
        counts = [record.failed[f"{kind}: {verdict}"] for verdict in ("lost", "wrong", "traceback", "hang")]
        rows.append([kind, f"{record.tried[kind]:,}", *map(str, counts)])
    return rows
