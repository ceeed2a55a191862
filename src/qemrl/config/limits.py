"""Which numbers a configuration may hold: those that a device can count with."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from qemrl.config.serialize import is_record

LARGEST_COUNT = 2_000_000_000
"""Steps and whatever is counted in them are 32-bit integers on the device, with room for a whole iteration more."""

LARGEST_NUMBER = float(np.finfo(np.float32).max)


def check_count(name: str, value: int, largest: int = LARGEST_COUNT) -> None:
    """Raise unless there is at least one of something, and not too many."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > largest:
        raise ValueError(f"{name} must be at most {largest:,}, got {describe_count(value)}")


def check_numbers(record: Any, path: str = "") -> None:
    """Raise unless all numbers of a dataclass, and of those within, are such that a device can count with them.

    Args:
        record: The dataclass.
        path: Its dotted name, empty for what is not part of another.

    Raises:
        ValueError: One is too large or not finite; the message has its dotted name.
    """
    for name, value in _find_numbers(record, path):
        if isinstance(value, int) and abs(value) > LARGEST_COUNT:
            raise ValueError(f"{name} must be at most {LARGEST_COUNT:,}, got {describe_count(value)}")
        if not abs(value) <= LARGEST_NUMBER:
            raise ValueError(f"{name} must be finite in float32, got {value}")


def _find_numbers(value: Any, path: str) -> Iterator[tuple[str, int | float]]:
    if is_record(value):
        for field in dataclasses.fields(value):
            yield from _find_numbers(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, tuple):
        for item in value:
            yield from _find_numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def describe_count(value: int) -> str:
    """A whole number, of a long one how many digits it has."""
    digits = str(abs(value))
    return str(value) if len(digits) <= 20 else f"one with {len(digits)} digits"
