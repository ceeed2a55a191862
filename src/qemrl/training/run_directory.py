"""The folder of a run: what was asked for, what was measured, what was saved, and whether it is finished.

config.json       the configuration, and the versions that ran it, with a checksum
metrics.jsonl     one JSON object a line; the same, byte for byte, however often the run was interrupted
timing.jsonl      the same for what depends on the clock and the machine
checkpoints/      the last two, with all that is needed to go on (see `checkpoint`)
best/             one more, of the parameters alone: those that had the highest mean over the seeds in an evaluation
evaluations/      NAME.json
tensorboard/      event files, if they are asked for
wandb.json        the project and runs of Weights & Biases, if the run is tracked there
DONE              the summary of a finished run, with its configuration
SHA256SUMS        checksums of the metrics and times of a finished run, as `sha256sum --check` reads them
lock              held by the process that writes
"""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from qemrl.training.checkpoint import read_metas
from qemrl.training.files import (
    compute_digest,
    explain_errors,
    format_json,
    hash_file,
    hold_lock,
    make_plain,
    parse_json,
    read_object,
    write_atomic,
)
from qemrl.training.lines import append_line, is_record, read_lines, read_start, remove_damaged_lines
from qemrl.training.machine import code_commit

SUMS = "SHA256SUMS"
WRONG_NUMBERS = "metrics.jsonl has a wrong checksum: some of its numbers may be wrong"
METRICS_TAGS = ("step", "seed")
"""What every line of metrics.jsonl has."""


class RunExistsError(Exception):
    """The folder holds a run of another configuration."""


class ChangedConfigError(ValueError):
    """The configuration of a run is not the one that it was run with."""

    def __init__(self, path: Path, changes: Iterable[str]) -> None:
        super().__init__(
            f"{path / 'config.json'} was changed or damaged: {'; '.join(changes)}. Restore it from a copy; for other "
            "settings, begin another run"
        )


class RunDirectory:
    """The folder of a run that has been created; `RunDirectory.create` makes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []
        """What was found to be lost when the run was resumed, a sentence each; checkpoints and DONE keep it."""

        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"{path} holds no run: there is no config.json; begin one with `qemrl train --out {path}`")
        _refuse_strange_items(path)
        try:
            self.record: dict[str, Any] = parse_json(file.read_bytes())
            self.config: dict[str, Any] = self.record["config"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} cannot be read ({error!r}); restore it, or choose another folder") from error
        self._require_config()

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
        with explain_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        _write_config(path, _provenance() | {"config": dict(config_json), "extra": dict(extra)})
        return cls(path)

    def replace_config(self, config_json: Mapping[str, Any]) -> None:
        """Put another configuration into config.json; the run is then no longer finished."""
        # In this order: a run that is not marked as finished and has nothing left to do is merely marked again.
        (self.path / "DONE").unlink(missing_ok=True)
        self.record["config"] = self.config = dict(config_json)
        _write_config(self.path, self.record)

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
    def is_verified(self) -> bool:
        """Whether there are checksums of what is there: versions before 0.1 kept none."""
        return "digest" in self.record

    def read_done(self) -> dict[str, Any]:
        """The summary of a finished run; empty if it is not finished.

        Raises:
            ValueError: It cannot be read.
        """
        return read_object(self.path / "DONE") or {}

    def find_damage(self) -> list[str]:
        """What is known to be lost or changed of a finished run, a sentence each."""
        try:
            done = self.read_done()
        except (OSError, ValueError) as error:
            return [str(error)]
        told = done.get("damage", [])
        damage = [str(sentence) for sentence in (told if isinstance(told, list) else [told])]
        if "config" in done:  # else it is not finished, or was by a version that kept no checksums
            damage += self.find_changes().values()
        return damage

    def find_changes(self) -> dict[str, str]:
        """Which files of a finished run are not what its checksums are of, and a sentence about each, by name."""
        try:
            sums = (self.path / SUMS).read_text(encoding="ascii")
        except (OSError, ValueError):
            return {SUMS: f"{SUMS} cannot be read: {self._metrics.name} and {self._timing.name} are unverified"}
        changes = {}
        for file in (self._metrics, self._timing):
            if file.exists() and f"{hash_file(file)}  {file.name}\n" not in sums:
                changes[file.name] = f"{file.name} is not what it was when the run finished: its checksum is another"
            elif not file.exists() and f"  {file.name}\n" in sums:
                changes[file.name] = f"{file.name} is missing"
        return changes

    @property
    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl, all of which is on disk."""
        try:
            with self._metrics.open("rb") as file:
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def describe(self) -> dict[str, Any]:
        """What a checkpoint keeps of the run directory, for `has_metrics_of` and `restore_metrics`."""
        size = self.metrics_bytes
        digest = hashlib.sha256(self._metrics.read_bytes() if size else b"").hexdigest()
        known = {"metrics_bytes": size, "metrics_sha256": digest, "config": self.config}
        return known | ({"damage": self.damage} if self.damage else {})

    def has_metrics_of(self, meta: Mapping[str, Any]) -> bool:
        """Whether metrics.jsonl still begins with what it was at a checkpoint with these metadata."""
        size = meta["metrics_bytes"]
        there = read_start(self._metrics, size)
        if len(there) < size:
            return False
        if "metrics_sha256" in meta:
            return hashlib.sha256(there).hexdigest() == meta["metrics_sha256"]
        *lines, rest = there.split(b"\n")
        return not rest and all(is_record(line, METRICS_TAGS) for line in lines)

    def restore_metrics(self, step: int, meta: Mapping[str, Any]) -> list[str]:
        """Take metrics.jsonl back to the checkpoint of a step with these metadata, from which the run goes on.

        Lines that cannot be read go from it and from timing.jsonl; a copy of the file stays beside it.

        Returns:
            What is lost, a sentence each.
        """
        found = []
        if self.has_metrics_of(meta):
            self.truncate_metrics(meta["metrics_bytes"])
        else:
            is_short = self.metrics_bytes < meta["metrics_bytes"]
            found = remove_damaged_lines(self._metrics, METRICS_TAGS, step)
            if is_short:
                found.append(f"metrics.jsonl: what came after step {self._last_step():,} was lost")
            found = found or [WRONG_NUMBERS]
        untimed = remove_damaged_lines(self._timing, ("step",), None)
        steps, timed = ({each["step"] for each in read()} for read in (self.read_metrics, self.read_timing))
        if steps - timed and not untimed:
            untimed = [f"timing.jsonl has lost {len(steps - timed):,} of {len(steps):,} lines"]
        self.damage = list(dict.fromkeys([*meta.get("damage", ()), *untimed, *found]))
        return self.damage

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl: the step, and values by tag, none of which may depend on the clock.

        Arrays become lists, and numbers that are not finite null, as JSON has none.
        """
        append_line(self._metrics, record)

    def append_timing(self, record: Mapping[str, Any]) -> None:
        """Add a line to timing.jsonl: the step, and values by tag, which may depend on the clock and the machine."""
        append_line(self._timing, record)

    def truncate_metrics(self, size: int) -> None:
        """Take metrics.jsonl back to its first bytes, which end with a line."""
        with explain_errors(self._metrics), self._metrics.open("a+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def replace_metrics(self, records: Iterable[Mapping[str, Any]], timing: Iterable[Mapping[str, Any]]) -> None:
        """Write metrics.jsonl and timing.jsonl anew."""
        write_atomic(self._metrics, "".join(map(format_json, records)))
        write_atomic(self._timing, "".join(map(format_json, timing)))

    def read_metrics(self, size: int | None = None) -> list[dict[str, Any]]:
        """The records of metrics.jsonl; a last line that is being written, or was cut by a crash, is left out.

        With a size, only those are read that were there at the checkpoint with these `metrics_bytes`.
        """
        return read_lines(self._metrics, size)

    def read_timing(self) -> list[dict[str, Any]]:
        """The records of timing.jsonl, in the same way; a part that was done again is there twice."""
        return read_lines(self._timing)

    def read_evaluation(self, name: str) -> dict[str, Any] | None:
        """What evaluations/NAME.json holds; None if there is no such file.

        Raises:
            ValueError: It cannot be read, or has a wrong checksum.
        """
        file = self.path / "evaluations" / f"{name}.json"
        found = read_object(file)
        if found is None or "digest" not in found:
            return found
        if found.pop("digest") != compute_digest(found):
            raise ValueError(f"{file} has a wrong checksum; remove it, or restore it from a copy")
        return found

    def write_evaluation(self, name: str, data: Mapping[str, Any]) -> Path:
        """The file evaluations/NAME.json, written with the data; one of the same name is replaced."""
        if not name or Path(name).name != name or name.startswith("."):
            raise ValueError(f"the name of an evaluation must be a valid file name, got {name!r}")
        folder = self.path / "evaluations"
        with explain_errors(folder):
            folder.mkdir(exist_ok=True)
        plain = make_plain(data, "")
        write_atomic(folder / f"{name}.json", format_json(plain | {"digest": compute_digest(plain)}, indent=2))
        return folder / f"{name}.json"

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished, with checksums of what reports read."""
        files = [file for file in (self._metrics, self._timing) if file.exists()]
        write_atomic(self.path / SUMS, "".join(f"{hash_file(file)}  {file.name}\n" for file in files))
        damage = {"damage": self.damage} if self.damage else {}
        write_atomic(self.path / "DONE", format_json({**summary, **damage, "config": self.config}, indent=2))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run: nobody else can while this is open. A process that dies lets go of it.

        What a process that was killed had not yet put in its place (see `write_atomic`) is removed.
        """
        with explain_errors(self.path / "lock"):
            file = (self.path / "lock").open("a+b", buffering=0)
        with file, hold_lock(file, f"{self.path} is being written"):
            for half in (*self.path.glob(".*.tmp"), *self.path.glob("evaluations/.*.tmp")):
                half.unlink()
            yield

    def _last_step(self) -> int:
        """The step of the last line of metrics.jsonl; 0 if there is none."""
        return max((record["step"] for record in self.read_metrics()), default=0)

    def _require_config(self) -> None:
        """Raise if config.json is not what was written, or not that of the run which was finished."""
        changes = []
        with contextlib.suppress(OSError, ValueError):  # `find_damage` says what is wrong with DONE
            witness = self.read_done().get("config", self.config)
            changes = find_differences(self.config, witness, "", "in config.json", "in DONE")
        if not changes and self.record.get("digest") in (None, compute_digest(self.record)):
            return
        for step, meta in read_metas(self.checkpoints):
            witness, where = meta.get("config", self.config), f"in the checkpoint of step {step}"
            changes = changes or find_differences(self.config, witness, "", "in config.json", where)
        raise ChangedConfigError(self.path, changes or ["its checksum is wrong"])

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _timing(self) -> Path:
        return self.path / "timing.jsonl"


def _refuse_strange_items(folder: Path) -> None:
    """Raise if something in the folder of a run leads out of it, or is neither a file nor a folder."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_symlink() and not _leads_into(Path(item.path), folder):
                raise ValueError(
                    f"{item.path} is a link that leads out of the run, to {os.readlink(item.path)}; put what it leads "
                    "to in its place"
                )
            if not item.is_file() and not item.is_dir():
                raise ValueError(f"{item.path} is neither a file nor a folder; remove it")


def _leads_into(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # in circles
        return False


def _write_config(folder: Path, record: Mapping[str, Any]) -> None:
    """Write config.json, with its checksum."""
    sealed = {**record, "digest": compute_digest(record)}
    write_atomic(folder / "config.json", json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False) + "\n")


def _as_read(data: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(data), allow_nan=False))


def find_differences(
    one: Any, other: Any, place: str, where: str = "there", elsewhere: str = "is asked for"
) -> list[str]:
    """What differs between two configurations, field by field, and where it does."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted({*one, *other}):
            below = f"{place}.{key}" if place else key
            if key not in one or key not in other:
                found.append(f"{below} is only {elsewhere.removeprefix('is ') if key in other else where}")
            else:
                found += find_differences(one[key], other[key], below, where, elsewhere)
        return found
    # `1 == True`, but not as text
    if json.dumps(one) == json.dumps(other):
        return []
    return [f"{place} is {json.dumps(one)} {where}, but {json.dumps(other)} {elsewhere}"]


def _provenance() -> dict[str, Any]:
    import qemrl  # here, because the package may import this module before it knows its version

    names = ("jax", "numpy", "gymnasium")
    return {
        "qemrl": qemrl.__version__,
        "commit": code_commit(),
        "versions": {name: metadata.version(name) for name in names} | {"python": platform.python_version()},
    }
