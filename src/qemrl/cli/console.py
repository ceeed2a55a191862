"""What commands share: tables, status lines and errors that say what to do."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

WIDEST = 1_000
"""More characters than a line of any table has."""


def _read_steps(words: list[str]) -> int:
    from qemrl.config.override import convert

    return convert(words[0], int, "steps")


Steps = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_read_steps,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A number of steps as an option of a command, 100000 or 1e5."""

CheckpointName = Annotated[str, tyro.conf.arg(metavar="best|last|STEP")]
"""Which checkpoint of a run is meant, as an option of a command."""


class UsageError(Exception):
    """An error that the user can fix; the message says how."""


def require(condition: bool, message: str) -> None:
    """Raise a `UsageError` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_count(option: str, value: int, largest: int, least: int = 1) -> None:
    """Raise a `UsageError` unless a number is within bounds, of which the one above keeps it within memory."""
    require(value >= least, f"{option} must be at least {least}; got {value}")
    require(value <= largest, f"{option} must be at most {largest:,}; got {value}")


def require_seed(option: str, seed: int) -> None:
    """Raise a `UsageError` unless a number can be a seed."""
    require(seed >= 0, f"{option} must not be negative; got {seed}")
    require(seed < 2**32, f"{option} must be below 2³²; got {seed}")


def require_folder(out: Path) -> None:
    """Raise a `UsageError` unless results can be put into this folder, which need not be there yet."""
    require(not out.exists() or out.is_dir(), f"--out must be a folder, and {out} is a file")


def require_text(option: str, file: Path) -> None:
    """Raise a `UsageError` if a file that is to be read as text is a device, which may have no end."""
    device = file.is_char_device() or file.is_block_device()
    require(not device, f"{option} takes a TOML file, and {file} is a device")


def show_status(what: str) -> Status:
    """A sign of life in a terminal, while something runs that takes seconds."""
    return Console(stderr=True).status(f"{what} …")


def table(title: str, *columns: str) -> Table:
    """An empty table that fits into 80 characters; a column with `>` before its name is flush right."""
    empty = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    for column in columns:
        empty.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return empty


def print_table(shown: Table) -> None:
    """Print a table; whole, where there is no terminal whose width would cut it."""
    console = Console(width=None if Console().is_terminal else WIDEST)
    if shown.title is not None:  # not by the table, which would break it where a narrow table ends
        console.print(shown.title, style="table.title", highlight=False, markup=False)
        shown.title = None
    console.print(shown)


def write_json(data: dict, path: Path | None) -> None:
    """Write data to a file, if one is given, and say so."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        print(f"wrote {path}")


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Turn what cannot be done as it is asked for into a usage error, also where something has begun to run."""
    from qemrl.training.files import RunLockedError
    from qemrl.training.machine import MemoryShortageError
    from qemrl.training.run_directory import RunExistsError

    try:
        yield
    except (ValueError, MemoryShortageError, RunExistsError, RunLockedError) as error:
        raise UsageError(str(error)) from error
