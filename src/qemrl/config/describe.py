"""The settings of a configuration as a list: their names, types, values and what their classes say about them."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from qemrl.config.override import FIXED
from qemrl.config.registry import AXES
from qemrl.config.serialize import choices, fits, is_function, is_record, name_function


class Setting(NamedTuple):
    """A setting, in words."""

    name: str
    """Its dotted name."""

    kind: str
    """What it takes: INT, FLOAT, {a,b}; NAME for a part, BOOL for a switch."""

    default: str
    """What it is."""

    doc: str
    """What its class says about it."""


class Group(NamedTuple):
    """The settings of a part."""

    title: str
    """The dotted name of the part; `run` and `agent` for those of the run and of the agent themselves."""

    doc: str
    settings: list[Setting]


def list_settings(config: Any) -> Iterator[Group]:
    """The settings of a run and of its agent, part by part."""
    yield from _list_groups(config, "", Group("run", "", []))


def _list_groups(record: Any, path: str, group: Group) -> Iterator[Group]:
    hints, docs = get_type_hints(type(record), include_extras=True), _field_docs(type(record))
    inner: list[tuple[Any, str, Group]] = []
    for field in dataclasses.fields(record):
        place = f"{path}.{field.name}" if path else field.name
        value, annotation, doc = getattr(record, field.name), hints[field.name], docs.get(field.name, "")
        if place == "agent":
            inner.append((value, "", Group("agent", "", [])))
        elif is_record(value):
            summary = (inspect.getdoc(type(value)) or "").partition("\n\n")[0]
            names = [_describe_part(place, value, annotation, doc)] if place in AXES else []
            inner.append((value, place, Group(place, " ".join(summary.split()), names)))
        elif place not in FIXED and not _holds_record(annotation):
            group.settings.append(Setting(place, _describe_type(annotation), _describe_value(value), doc))
    if group.settings:
        yield group
    for each in inner:
        yield from _list_groups(*each)


def _describe_part(path: str, part: Any, annotation: Any, doc: str) -> Setting:
    names = [name for name, each in AXES[path].parts.items() if fits(each, annotation)]
    return Setting(path, "NAME", AXES[path].name(part), f"{doc} One of {', '.join(names)}.".strip())


def _describe_type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return "|".join(_describe_type(member) for member in get_args(annotation) if not is_function(member))
    if get_origin(annotation) in (Annotated, Literal):
        return f"{{{','.join(choices(annotation))}}}"
    if get_origin(annotation) is tuple:
        return f"[{_describe_type(get_args(annotation)[0])} ...]"
    return "NONE" if annotation is type(None) else getattr(annotation, "__name__", str(annotation)).upper()


def _describe_value(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "empty"
    if callable(value):
        return f"the function {name_function(value)}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _holds_record(annotation: Any) -> bool:
    """Whether an annotation allows a dataclass, of which there is none here."""
    return any(_holds_record(member) for member in get_args(annotation)) or dataclasses.is_dataclass(annotation)


def _field_docs(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, or of those that it is derived from."""
    docs: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if dataclasses.is_dataclass(each)]):
        name = None
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        for statement in getattr(tree, "body", []):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name is not None:
                docs[name] = " ".join(str(statement.value.value).split())
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            name = target.id if isinstance(target, ast.Name) else None
    return docs
