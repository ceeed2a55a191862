"""The folder of a run: what was asked for, what was measured, what was saved, and whether it is finished.

config.json       the configuration, and the versions that ran it
metrics.jsonl     one JSON object a line; the same, byte for byte, however often the run was interrupted
timing.jsonl      the same for what depends on the clock and the machine
checkpoints/      the last two, with all that is needed to go on (see `checkpoint`)
best/             one more, of the parameters alone: those that had the highest mean over the seeds in an evaluation
evaluations/      NAME.json
tensorboard/      event files, if they are asked for
wandb.json        the project and runs of Weights & Biases, if the run is tracked there
DONE              the summary of a finished run
lock              held by the process that writes
"""

import contextlib
import fcntl
import json
import math
import os
import platform
import socket
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from qemrl.training.checkpoint import FULL_DISK, sync_folder
from qemrl.training.machine import code_commit


class RunExistsError(Exception):
    """The folder holds a run of another configuration."""


class RunLockedError(Exception):
    """Another process writes this run."""


class RunWriteError(Exception):
    """A file of a run could not be written."""


class RunDirectory:
    """The folder of a run that has been created; `RunDirectory.create` makes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"{path} holds no run: there is no config.json; begin one with `qemrl train --out {path}`")
        try:
            self.record: dict[str, Any] = json.loads(file.read_bytes())
            self.config: dict[str, Any] = self.record["config"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} cannot be read ({error!r}); restore it, or choose another folder") from error

    @classmethod
    def create(cls, path: Path, config_json: Mapping[str, Any], extra: Mapping[str, Any]) -> "RunDirectory":
        """A new run, or the run of the same configuration that is there already.

        Args:
            path: The folder; it is created if necessary.
            config_json: The configuration as JSON, which identifies the run.
            extra: What else is worth keeping in config.json; it is not compared.

        Raises:
            RunExistsError: The folder holds a run of another configuration.
            ValueError: There is something in the folder, but no run.
        """
        if (path / "config.json").exists():
            run = cls(path)
            differences = find_differences(run.config, _as_read(config_json), "")
            if differences:
                raise RunExistsError(
                    f"{path} holds a run of another configuration: {'; '.join(differences)}. Choose another folder "
                    f"with --out, or resume that run: qemrl resume {path}"
                )
            return run
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; choose a folder with --out")
        # A crash in this very function may have left a temporary file.
        if path.is_dir() and any(not item.match(".config.json.*.tmp") for item in path.iterdir()):
            raise ValueError(f"{path} is not empty and holds no run; choose another folder with --out")
        with _explain_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        record = _provenance() | {"config": dict(config_json), "extra": dict(extra)}
        write_atomic(path / "config.json", json.dumps(record, indent=2, sort_keys=True, allow_nan=False) + "\n")
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints; it may not exist yet."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The folder of the checkpoint that did best; it may not exist."""
        return self.path / "best"

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "DONE").exists()

    @property
    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl, all of which is on disk: what a checkpoint keeps for `truncate_metrics`."""
        try:
            with self._metrics.open("rb") as file:
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl: the step, and values by tag, none of which may depend on the clock.

        Arrays become lists, and numbers that are not finite null, as JSON has none.
        """
        _append(self._metrics, record)

    def append_timing(self, record: Mapping[str, Any]) -> None:
        """Add a line to timing.jsonl: the step, and values by tag, which may depend on the clock and the machine."""
        _append(self._timing, record)

    def truncate_metrics(self, size: int) -> None:
        """Take metrics.jsonl back to `metrics_bytes` of the checkpoint from which the run goes on."""
        with _explain_errors(self._metrics), self._metrics.open("a+b") as file:
            there = file.seek(0, os.SEEK_END)
            if not 0 <= size <= there:
                raise ValueError(
                    f"{self._metrics} has {there} bytes, but had {size} at the checkpoint: lines were lost; "
                    "restore the file from a copy, or begin the run again elsewhere with --out"
                )
            file.seek(max(size - 1, 0))
            if size and file.read(1) != b"\n":
                raise ValueError(f"no line of {self._metrics} ends at byte {size}; was the file edited?")
            file.truncate(size)
            os.fsync(file.fileno())

    def replace_metrics(self, records: Iterable[Mapping[str, Any]], timing: Iterable[Mapping[str, Any]]) -> None:
        """Write metrics.jsonl and timing.jsonl anew."""
        write_atomic(self._metrics, "".join(map(_json, records)))
        write_atomic(self._timing, "".join(map(_json, timing)))

    def read_metrics(self, size: int | None = None) -> list[dict[str, Any]]:
        """The records of metrics.jsonl; a last line that is being written, or was cut by a crash, is left out.

        With a size, only those are read that were there at the checkpoint with these `metrics_bytes`.
        """
        return _read_lines(self._metrics, size)

    def read_timing(self) -> list[dict[str, Any]]:
        """The records of timing.jsonl, in the same way; a part that was done again is there twice."""
        return _read_lines(self._timing)

    def read_evaluation(self, name: str) -> dict[str, Any] | None:
        """What evaluations/NAME.json holds; None if there is no such file."""
        file = self.path / "evaluations" / f"{name}.json"
        return json.loads(file.read_bytes()) if file.exists() else None

    def write_evaluation(self, name: str, data: Mapping[str, Any]) -> Path:
        """The file evaluations/NAME.json, written with the data; one of the same name is replaced."""
        if not name or Path(name).name != name or name.startswith("."):
            raise ValueError(f"the name of an evaluation must be a valid file name, got {name!r}")
        folder = self.path / "evaluations"
        with _explain_errors(folder):
            folder.mkdir(exist_ok=True)
        write_atomic(folder / f"{name}.json", _json(data, indent=2))
        return folder / f"{name}.json"

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_atomic(self.path / "DONE", _json(summary, indent=2))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run: nobody else can while this is open. A process that dies lets go of it.

        What a process that was killed had not yet put in its place (see `write_atomic`) is removed.
        """
        with _explain_errors(self.path / "lock"):
            file = (self.path / "lock").open("a+b", buffering=0)
        with file, hold_lock(file, f"{self.path} is being written"):
            for half in (*self.path.glob(".*.tmp"), *self.path.glob("evaluations/.*.tmp")):
                half.unlink()
            yield

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _timing(self) -> Path:
        return self.path / "timing.jsonl"


@contextlib.contextmanager
def hold_lock(file: Any, busy: str) -> Iterator[None]:
    """Hold a file that is open for appending, and write into it who does; `busy` is said if somebody else does.

    Raises:
        RunLockedError: Another process holds it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().decode().strip() or "that has just begun"
        raise RunLockedError(
            f"{busy} by process {holder}; wait for it, stop it, or choose another folder with --out"
        ) from None
    try:
        with _explain_errors(Path(file.name)):
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        # Unlocked explicitly, because a forked child that is still alive shares the lock.
        fcntl.flock(file, fcntl.LOCK_UN)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there as a whole or not at all, and on disk when this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _explain_errors(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into one that says which file it was and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            message = f"{path} could not be written: the disk or a quota is full; make room, then resume the run"
        else:
            message = f"{path} could not be written: {error}"
        raise RunWriteError(message) from error


def _append(path: Path, record: Mapping[str, Any]) -> None:
    line = _json(record).encode()
    step = json.loads(line).get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"a record needs a whole number ≥ 0 under 'step', got {step!r}")
    with _explain_errors(path), path.open("a+b", buffering=0) as file:
        size = _end_of_lines(file)
        file.truncate(size)
        try:
            rest = line
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            file.truncate(size)  # no half lines, also on a full disk
            raise


def _read_lines(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """The whole lines of a file, or of its first bytes; none if there is no file."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes()[:size].split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
    return records


def _end_of_lines(file: Any) -> int:
    """Where the last whole line ends; what comes after was cut by a crash."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        block = file.read(end - start)
        if b"\n" in block:
            return start + block.rindex(b"\n") + 1
        end = start
    return 0


def _json(data: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(_plain(data, ""), indent=indent, allow_nan=False) + "\n"


def _plain(value: Any, place: str) -> Any:
    """A value as JSON has it: arrays as lists, and null for a number that is not finite."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"names must be text, got {key!r} in {place or 'the record'}")
        return {key: _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, place) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), place)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"{place or 'the record'} holds a {type(value).__name__}, which is not JSON: {value!r}")


def _as_read(data: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(data), allow_nan=False))


def find_differences(there: Any, asked: Any, place: str) -> list[str]:
    """What differs between two configurations, field by field."""
    if isinstance(there, dict) and isinstance(asked, dict):
        found = []
        for key in sorted({*there, *asked}):
            below = f"{place}.{key}" if place else key
            if key not in there or key not in asked:
                found.append(f"{below} is only {'asked for' if key in asked else 'there'}")
            else:
                found += find_differences(there[key], asked[key], below)
        return found
    # `1 == True`, but not as text
    if json.dumps(there) == json.dumps(asked):
        return []
    return [f"{place} is {json.dumps(there)} there, but {json.dumps(asked)} is asked for"]


def _provenance() -> dict[str, Any]:
    import qemrl  # here, because the package may import this module before it knows its version

    names = ("jax", "numpy", "gymnasium")
    return {
        "qemrl": qemrl.__version__,
        "commit": code_commit(),
        "versions": {name: metadata.version(name) for name in names} | {"python": platform.python_version()},
    }
