"""Files of lines, metrics.jsonl and timing.jsonl: a JSON object a line, and never half of one."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qemrl.training.files import explain_errors, format_json, parse_json, write_atomic


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a file, after its last whole line.

    Raises:
        RunWriteError: It could not be written; the file is as it was.
        ValueError: It has no step, or something that JSON has not.
    """
    line = format_json(record).encode()
    step = json.loads(line).get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"a record needs a whole number ≥ 0 under 'step', got {step!r}")
    with explain_errors(path), path.open("a+b", buffering=0) as file:
        size = _end_of_lines(file)
        file.truncate(size)
        try:
            rest = line
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            file.truncate(size)  # no half lines, also on a full disk
            raise


def read_lines(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """The whole lines of a file, or of its first bytes; none if there is no file."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes()[:size].split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse_json(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
    return records


def read_start(path: Path, size: int | None) -> bytes:
    """The first bytes of a file; none if there is no file."""
    return path.read_bytes()[:size] if path.exists() else b""


def remove_damaged_lines(path: Path, tags: Sequence[str], last: int | None) -> list[str]:
    """Keep those lines of a file that are records, of steps up to the last if one is given; returns which were none.

    If there are any, the file as it was stays as NAME.damaged.
    """
    content = read_start(path, None)
    *lines, _ = content.split(b"\n")
    good = [is_record(line, tags) for line in lines]
    lost = [f"{path.name}: line {number} was damaged" for number, is_good in enumerate(good, start=1) if not is_good]
    kept = [line for line, is_good in zip(lines, good, strict=True) if is_good]
    if last is not None:
        kept = [line for line in kept if parse_json(line)["step"] <= last]
    if lost:
        write_atomic(path.with_name(f"{path.name}.damaged"), content)
    if len(kept) < len(lines):
        write_atomic(path, b"".join(line + b"\n" for line in kept))
    return lost


def is_record(line: bytes, tags: Sequence[str]) -> bool:
    """Whether a line can be one of metrics.jsonl or timing.jsonl, which have whole numbers for these tags."""
    try:
        record = parse_json(line)
        return all(type(record[tag]) is int for tag in tags) and all(
            _is_value(value) for tag, value in record.items() if tag != "machine"
        )
    except (ValueError, TypeError, KeyError):
        return False


def _is_value(value: Any) -> bool:
    """Whether a value can be that of a tag: null, a finite number, or a list of values."""
    if isinstance(value, list):
        return all(map(_is_value, value))
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf)


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
