"""TOML files that anybody may have written: plain data of a size and a depth that make sense, or an error."""

import re
import tomllib
from pathlib import Path
from typing import Any

MOST_BYTES = 1_000_000
MOST_CHARACTERS = 1_000
"""Of a name or a text."""

DEEPEST = 20
"""How many tables and lists may be inside one another."""

_PART = r"""\.[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_DEEP_NAME = re.compile(f"(?:{_PART}){{{DEEPEST}}}")
"""A dotted name of more parts than that, for which `tomllib` would take memory that grows with their square."""


def read_toml(file: Path) -> dict[str, Any]:
    """The table that a file holds.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is no file, or what `parse_toml` refuses.
    """
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file but a folder, a pipe or a device")
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{file} has more than {MOST_BYTES:,} bytes; is it the right file?")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not TOML: {error}; TOML is text in UTF-8") from error
    return parse_toml(text, str(file))


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """The table that a text is; `file` is what to call it.

    Raises:
        ValueError: It is not TOML, nested too deeply, or has a number or a text of a size that nobody means.
    """
    if found := _DEEP_NAME.search(text):
        raise ValueError(f"{file}: a name has more than {DEEPEST} parts: …{found[0][:40]}…")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{file}: tables and lists are nested more than {DEEPEST} deep") from None
    except ValueError as error:  # also a number of more digits than Python reads
        raise ValueError(f"{file} is not TOML: {error}") from error
    _check(data, file, "", 0)
    return data


def abbreviate(value: Any) -> str:
    """A value as an error message has it: its first characters, if there are many."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _check(value: Any, file: str, place: str, depth: int) -> None:
    """Raise unless a value is small enough to work with and to talk about."""
    where = f"{file}: {place}".removesuffix(": ")
    if depth > DEEPEST:
        raise ValueError(f"{where} is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        for name, item in value.items():
            if len(name) > MOST_CHARACTERS or not name.isprintable():
                raise ValueError(f"{where}: {abbreviate(name)} is no name: it is too long, or cannot be printed")
            _check(item, file, f"{place}.{name}" if place else name, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, file, place, depth + 1)
    elif isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"{where} has {len(value):,} characters, and at most {MOST_CHARACTERS:,} are read")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where} is a whole number of {value.bit_length()} bits, and TOML has 64")
