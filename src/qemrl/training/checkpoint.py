"""Checkpoints: folders of arrays and JSON that are either whole or not there.

`step_000000012345/` holds one raw .npy file for each array, and `manifest.json` with the size and SHA-256 of each and
of itself. It is written under a hidden name, flushed to disk, and renamed, so that a crash at any moment leaves the
checkpoints before it as they were. Nothing is pickled.
"""

import contextlib
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qemrl.training.files import FULL_DISK, compute_digest, format_canonical, open_regular, parse_json, sync_folder

FORMAT = 1
"""The version of the format. Later ones keep `format` and `digest` in the manifest as they are."""

_CHUNK_BYTES = 1 << 22
_MANIFEST = "manifest.json"
# `.old` exists only for a moment while a checkpoint of the same step is replaced; it is as good as any other.
_NAME = re.compile(r"step_(\d{12,})(\.old)?")
_TEMPORARY = ".{}.tmp"


class CheckpointError(Exception):
    """A checkpoint could not be written, or none could be read."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged and was passed over, or an old one could not be removed."""


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    step: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    path: Path


def save(folder: Path, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], keep: int = 2) -> Path:
    """The folder of a new checkpoint, which is on disk when this returns; the `keep` newest stay.

    Checkpoints of later steps are removed: the run went back behind them. In `meta` numbers may be NaN or infinite, and
    tuples come back as lists.

    Raises:
        CheckpointError: It could not be written; the ones before it are untouched.
        ValueError: Something that a checkpoint cannot hold was given.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"a checkpoint needs step ≥ 0 and keep ≥ 1, got step={step} and keep={keep}")
    for name, array in arrays.items():
        _require_storable(name, array)
    meta = _require_json(meta)
    needed = len(format_canonical(meta)) + sum(array.nbytes + 4096 for array in arrays.values()) + 4096
    temporary = folder / _TEMPORARY.format(f"step_{step:012d}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(_TEMPORARY.format("step_*")):
            shutil.rmtree(stale)
        if shutil.disk_usage(folder).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        _write_files(temporary, step, arrays, meta)
        path = _put_in_place(temporary, folder / f"step_{step:012d}")
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, Exception):
            raise CheckpointError(_failure(folder, step, needed, error)) from error
        raise  # Ctrl-C
    _prune(folder, step, keep)
    return path


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, which may be damaged."""
    return sorted({_step(path) for path in _checkpoints(folder)})


def load_latest(
    folder: Path, wanted: Callable[[str], bool] = lambda _: True, step: int | None = None
) -> Checkpoint | None:
    """The newest checkpoint whose checksums are right, or None if there is none; damaged ones give a warning.

    Args:
        folder: Where the checkpoints are.
        wanted: Which arrays are read and checked, by name; all by default.
        step: Only a checkpoint of this step; of any by default.

    Raises:
        CheckpointError: There are some, but none is whole, or one was written by a later version of qemrl.
    """
    reasons = []
    for path in _checkpoints(folder):
        if step not in (None, _step(path)):
            continue
        try:
            return _read(path, wanted)
        except (_DamagedError, OSError) as error:
            reasons.append(f"{path.name}: {error}")
            warnings.warn(f"passing over a damaged checkpoint, {path}: {error}", CheckpointWarning, stacklevel=2)
    if reasons:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole ({'; '.join(reasons)}); restore one from a copy, or delete the folder "
            "to begin the run again"
        )
    return None


def read_metas(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The steps and metadata of the checkpoints whose manifests are whole, the newest first; no array is read."""
    for path in _checkpoints(folder):
        with contextlib.suppress(CheckpointError, _DamagedError, OSError):
            yield _step(path), _read_manifest(path)["meta"]


class _DamagedError(Exception):
    """A checkpoint is not whole."""


def _require_storable(name: str, array: np.ndarray) -> None:
    dtype = array.dtype
    if dtype.kind not in "biufc" or np.dtype(dtype.str) != dtype:
        raise ValueError(
            f"the array {name!r} has dtype {dtype}, which a .npy file cannot hold; "
            "convert it to a bool, integer, float or complex dtype of NumPy's own first"
        )


def _require_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    def text_keys(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) for key in value) and all(map(text_keys, value.values()))
        return not isinstance(value, list | tuple) or all(map(text_keys, value))

    meta = dict(meta)
    if not text_keys(meta):  # JSON would turn 1 into "1"
        raise ValueError(f"the metadata of a checkpoint must have text for keys, at all depths; got {meta!r}")
    try:
        return json.loads(format_canonical(meta))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata of a checkpoint must be JSON: {error}; got {meta!r}") from error


def _write_files(folder: Path, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    entries = {}
    for index, (name, array) in enumerate(arrays.items()):
        # The index makes the name unique, the rest of it is for people.
        readable = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[-60:]
        entries[name] = _write_array(folder / f"{index:05d}_{readable}.npy", array)
    document = {"format": FORMAT, "step": step, "arrays": entries, "meta": dict(meta)}
    with (folder / _MANIFEST).open("xb") as file:
        file.write(format_canonical(document | {"digest": compute_digest(document)}))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def _write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    digest, size, header = hashlib.sha256(), 0, io.BytesIO()
    layout = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(header, layout)
    with path.open("xb", buffering=0) as file:
        for chunk in itertools.chain([header.getbuffer()], _chunks(array)):
            digest.update(chunk)
            size += len(chunk)
            while chunk:
                chunk = chunk[file.write(chunk) :]
        os.fsync(file.fileno())
    return {
        "file": path.name,
        "sha256": digest.hexdigest(),
        "bytes": size,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "order": "F" if layout["fortran_order"] else "C",
    }


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array in the order that a .npy file has them; only views that are not contiguous are copied."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        yield from _pieces(array)
    elif array.size:
        flags: Any = ["external_loop", "buffered"]
        for part in np.nditer(array, flags, buffersize=max(1, _CHUNK_BYTES // array.itemsize), order="C"):
            yield from _pieces(np.ascontiguousarray(part))


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    """The memory of a contiguous array, piece by piece."""
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _CHUNK_BYTES):
        yield flat[start : start + _CHUNK_BYTES].data


def _put_in_place(temporary: Path, path: Path) -> Path:
    old = path.with_name(f"{path.name}.old")
    if path.exists():
        if old.exists():
            _discard(old)
        path.rename(old)
    temporary.rename(path)
    sync_folder(path.parent)
    return path


def _discard(path: Path) -> None:
    """Remove a checkpoint under a hidden name, so that a half-removed one is never seen."""
    hidden = path.with_name(_TEMPORARY.format(f"{path.name}.{os.getpid()}"))
    path.rename(hidden)
    shutil.rmtree(hidden)


def _prune(folder: Path, step: int, keep: int) -> None:
    older = itertools.count()
    for path in _checkpoints(folder):
        current = path.suffix != ".old" and _step(path) <= step
        if current and next(older) < keep:
            continue
        try:
            _discard(path)
        except OSError as error:
            warnings.warn(f"an old checkpoint, {path}, cannot be removed: {error}", CheckpointWarning, stacklevel=3)


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    found: Iterable[Path] = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in found if _NAME.fullmatch(path.name)]
    return sorted(named, key=lambda path: (_step(path), path.suffix != ".old"), reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removesuffix(".old").removeprefix("step_"))


def _failure(folder: Path, step: int, needed: int, error: Exception) -> str:
    free = "unknown"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB"
    full = isinstance(error, OSError) and error.errno in FULL_DISK
    reason = "the disk or a quota is full" if full else f"{type(error).__name__}: {error}"
    there = _checkpoints(folder)
    last = f"the checkpoint before it, {there[0]}, is untouched" if there else "there is no earlier checkpoint"
    advice = "make room on the disk" if full else "remove the cause"
    return (
        f"the checkpoint of step {step} could not be written to {folder}: {reason} "
        f"({needed / 1e6:,.1f} MB needed, {free} free); {last}; {advice}, then resume the run"
    )


def _read(path: Path, wanted: Callable[[str], bool]) -> Checkpoint:
    manifest = _read_manifest(path)
    entries = {name: entry for name, entry in manifest["arrays"].items() if wanted(name)}
    arrays = {name: _read_array(path, entry) for name, entry in entries.items()}
    return Checkpoint(manifest["step"], arrays, manifest["meta"], path)


def _read_manifest(path: Path) -> dict[str, Any]:
    with open_regular(path / _MANIFEST) as file:
        text = file.read()
    try:
        document = parse_json(text)
        # A file that is not byte for byte what would be written for its content has been changed.
        whole = document["digest"] == compute_digest(document) and text == format_canonical(document)
        too_new = document["format"] > FORMAT
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"{_MANIFEST} cannot be read: {error}") from error
    if not whole:
        raise _DamagedError(f"{_MANIFEST} has a wrong checksum")
    if too_new:
        raise CheckpointError(
            f"{path} has format {document['format']}, from a later version of qemrl than this one, which reads formats "
            f"up to {FORMAT}; upgrade qemrl"
        )
    if document.get("step") != _step(path):
        raise _DamagedError(f"{_MANIFEST} is that of step {document.get('step')}")
    if not isinstance(document.get("meta"), dict) or not isinstance(document.get("arrays"), dict):
        raise _DamagedError(f"{_MANIFEST} has no arrays or no meta")
    return document


def _require_entry(entry: Any) -> np.dtype:
    """The dtype of an array, if what the manifest says about it can be true; before any memory is taken for it."""
    match entry:
        case {
            "file": str(),
            "sha256": str(),
            "bytes": int(size),
            "dtype": str(name),
            "shape": [*shape],
            "order": order,
        }:
            try:
                dtype = np.dtype(name)
            except (TypeError, ValueError, SyntaxError):
                dtype = np.dtype(object)
            counts = all(type(length) is int and length >= 0 for length in shape)
            if counts and order in ("C", "F") and dtype.kind in "biufc" and math.prod(shape) * dtype.itemsize <= size:
                return dtype
    raise _DamagedError(f"{_MANIFEST} describes an array that cannot be: {str(entry)[:200]}")


def _read_array(folder: Path, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = _require_entry(entry)
    path = folder / Path(entry["file"]).name
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry["bytes"]:
            raise _DamagedError(f"{path.name} has {size} bytes, not {entry['bytes']}")
        array = np.empty(entry["shape"], dtype, order=entry["order"])
        # What the header says stands in the manifest as well, so that a damaged header is hashed, never parsed.
        digest.update(file.read(size - array.nbytes))
        for piece in _pieces(array):
            rest = piece
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
            digest.update(piece)
    if digest.hexdigest() != entry["sha256"]:
        raise _DamagedError(f"{path.name} has a wrong checksum")
    return array
