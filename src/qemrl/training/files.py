"""Files of runs: written as a whole or not at all, held by one process, and read without trust in what they hold."""

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import json
import math
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a write that say that there is no room: on the disk, in the user's quota, or by the file size limit."""

MOST_LEVELS = 100
"""How deep lists and objects may lie within one another in JSON."""

_LONG_NUMBER = re.compile(rb"\d{309}")


class RunLockedError(Exception):
    """Another process writes this run."""


class RunWriteError(Exception):
    """A file of a run could not be written."""


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
        with explain_errors(Path(file.name)):
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
        with explain_errors(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into one that says which file it was and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            message = f"{path} could not be written: the disk or a quota is full; make room, then resume the run"
        else:
            message = f"{path} could not be written: {error}"
        raise RunWriteError(message) from error


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> io.FileIO:
    """A file to read; a pipe or a device in its place is refused, and not waited for.

    Raises:
        OSError: There is no such file, or it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return io.FileIO(descriptor, "r")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file; remove it", str(path))


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file.

    Raises:
        ValueError: There is something else in it.
    """
    try:
        with open_regular(path) as file:
            found = parse_json(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} cannot be read: it holds no JSON object")
    return found


def parse_json(text: bytes) -> Any:
    """What a JSON text holds, which can then be computed with, walked through and printed.

    Raises:
        ValueError: It is none, or it holds what only malice explains: numbers that are larger than any float, text
            that is not Unicode, or lists in lists, a hundred levels deep.
    """
    if _LONG_NUMBER.search(text):
        raise ValueError("it holds a number of more than 308 digits")
    try:
        found = json.loads(text.decode())
        if text.count(b"[") + text.count(b"{") > MOST_LEVELS and _has_more_levels(found):
            raise RecursionError
        if b"\\u" in text:  # half of a surrogate pair cannot be encoded
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError as error:  # whose representation holds all of the text
        raise ValueError(f"it is not Unicode: {error}") from None
    return found


def _has_more_levels(value: Any) -> bool:
    """Whether a value has lists or objects within one another, more than `MOST_LEVELS` deep."""
    level = [value]
    for _ in range(MOST_LEVELS):
        nested = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = list(itertools.chain.from_iterable(nested))
    return bool(level)


def compute_digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON document, but for the entry `digest`, in which it is kept."""
    return hashlib.sha256(format_canonical({key: document[key] for key in document if key != "digest"})).hexdigest()


def format_canonical(document: Any) -> bytes:
    """The one text in JSON of a document, in which names are in order."""
    return json.dumps(document, sort_keys=True, indent=1).encode("ascii")


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def format_json(data: Mapping[str, Any], indent: int | None = None) -> str:
    """The text in JSON of values by name, which may be arrays."""
    return json.dumps(make_plain(data, ""), indent=indent, allow_nan=False) + "\n"


def make_plain(value: Any, place: str) -> Any:
    """A value as JSON has it: arrays as lists, and null for a number that is not finite."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"names must be text, got {key!r} in {place or 'the record'}")
        return {key: make_plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(item, place) for item in value]
    if hasattr(value, "tolist"):
        return make_plain(value.tolist(), place)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"{place or 'the record'} holds a {type(value).__name__}, which is not JSON: {value!r}")
