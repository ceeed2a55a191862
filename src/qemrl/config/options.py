"""The settings of a run as options of the command line.

Which options there are, and what they are when nothing is said, depends on preset and environment. So the classes that
tyro reads are made when these are known: one for each dataclass within the configuration, with the fields of what is
really there, and its values as defaults.
"""

import ast
import dataclasses
import difflib
import inspect
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro

from qemrl.cli.console import UsageError

FIXED = {"agent", "env", "preset", "protocol.name"}
"""What is no option: it is chosen by name before."""

Fields = dict[str, tuple[Any, Any]]
"""The annotation and the default of each further option."""


def parse(config: Any, further: Fields, arguments: Sequence[str], prog: str, description: str) -> tuple[Any, Any]:
    """The configuration with what the arguments change in it, and the further options.

    Args:
        config: A dataclass with a dataclass `agent`, whose fields are options without a prefix.
        further: Options that are no settings.
        arguments: What was typed.
        prog: How the command is called.
        description: What `--help` says first.

    Raises:
        ValueError: A dataclass does not accept a value.
    """
    run, agent = _narrowed(config, ""), _narrowed(config.agent, "")
    fields = [(name, *it) for part in (further, run, agent) for name, it in part.items()]
    options = _make("Options", {name: (kind, default) for name, kind, default in fields})
    _check_names(options, arguments, prog)
    parsed = tyro.cli(options, args=list(arguments), prog=prog, description=description)
    changed = dataclasses.replace(config, agent=_changed(config.agent, parsed, ""), **_changes(config, parsed, ""))
    return changed, parsed


def option(name: str) -> str:
    """The option of a field at a dotted path."""
    return f"--{name.replace('_', '-')}"


def _narrowed(record: Any, path: str) -> Fields:
    """The fields of a dataclass, with the types of what they hold and with what they hold as defaults."""
    hints, docs = get_type_hints(type(record)), _docs(type(record))
    found: Fields = {}
    for field in dataclasses.fields(record):
        place = f"{path}{field.name}"
        value = getattr(record, field.name)
        if place in FIXED:
            continue
        if _is_record(value):
            found[field.name] = _nested(value, place, docs.get(field.name, ""))
        elif not _is_record_type(hints[field.name]):
            help_text = tyro.conf.arg(help=docs.get(field.name, ""))
            found[field.name] = (Annotated[hints[field.name], help_text], value)
    return found


def _nested(value: Any, place: str, doc: str) -> tuple[Any, Any]:
    kind = _make(type(value).__name__, _narrowed(value, f"{place}."))
    what = (inspect.getdoc(type(value)) or "").partition("\n\n")[0]
    kind.__doc__ = f"{doc} Here: {what}" if doc else what
    return kind, dataclasses.field(default_factory=kind)


def _make(name: str, fields: Fields) -> type:
    made = [
        (field, kind, default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default))
        for field, (kind, default) in fields.items()
    ]
    return dataclasses.make_dataclass(name, made, frozen=True)


def _changes(record: Any, parsed: Any, path: str) -> dict[str, Any]:
    """What the parsed options say of a dataclass's fields."""
    changes = {}
    for field in dataclasses.fields(record):
        place, value = f"{path}{field.name}", getattr(record, field.name)
        if place in FIXED or not hasattr(parsed, field.name):
            continue
        given = getattr(parsed, field.name)
        changes[field.name] = _changed(value, given, f"{place}.") if _is_record(value) else given
    return changes


def _changed(record: Any, parsed: Any, path: str) -> Any:
    return dataclasses.replace(record, **_changes(record, parsed, path))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_record_type(annotation: Any) -> bool:
    """Whether an annotation allows a dataclass, of which there is none here."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is_record_type(part) for part in get_args(annotation))
    return dataclasses.is_dataclass(annotation)


def _docs(kind: type) -> dict[str, str]:
    """What stands in quotes below each field of a dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    docs, name = {}, None
    for statement in getattr(tree, "body", []):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name is not None:
            docs[name] = " ".join(str(statement.value.value).split())
        name = None
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
    return docs


def _check_names(options: type, arguments: Sequence[str], prog: str) -> None:
    """Name the nearest option where one is mistyped."""
    known = {"--help", *_names(options, "")}
    for word in arguments:
        if not word.startswith("--"):
            continue
        name = word.partition("=")[0].replace("_", "-")
        if name not in known:
            near = _nearest(name, known)
            hint = f"did you mean {near[0]}?" if near else f"`{prog} --help` shows all"
            raise UsageError(f"there is no option {name} here; {hint}")


def _names(options: type, path: str) -> Iterator[str]:
    for field in dataclasses.fields(options):
        kind = field.type
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _names(kind, f"{path}{field.name}.")
            continue
        yield option(f"{path}{field.name}")
        if get_args(kind)[:1] == (bool,):
            yield option(f"{path}no-{field.name}")


def _nearest(name: str, known: set[str]) -> list[str]:
    """The option that is most likely meant; first one called so in some group, as --replay.n-step for --n-step."""
    last = {each.removeprefix("--").rpartition(".")[2]: each for each in sorted(known)}
    typed = name.removeprefix("--").rpartition(".")[2]
    if typed in last:
        return [last[typed]]
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return near or [last[each] for each in difflib.get_close_matches(typed, last, n=1, cutoff=0.6)]
