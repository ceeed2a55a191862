"""What commands share: how they speak to whoever called them."""

import json
from pathlib import Path

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table


class UsageError(Exception):
    """The user can put it right; the message says how."""


def require(condition: bool, message: str) -> None:
    """Raise a `UsageError` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def working(what: str) -> Status:
    """A sign of life in a terminal, while something runs that takes seconds."""
    return Console(stderr=True).status(f"{what} …")


def table(title: str, *columns: str) -> Table:
    """An empty table that fits into 80 characters; a column with `>` before its name is flush right."""
    empty = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    for column in columns:
        empty.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return empty


def write_json(data: dict, path: Path | None) -> None:
    """Write data to a file, if one is given, and say so."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        print(f"wrote {path}")
