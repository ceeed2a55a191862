"""Frozen dataclasses as JSON and back.

A dataclass becomes {"type": "ClassName", field: ...}; its fields may hold text, numbers, truth values, None, paths,
tuples, and frozen dataclasses. Annotations say what a JSON value is turned back into: a list into a tuple, text into a
path. Nothing is imported by name: a file can only make the classes that a registry lists. Of a function a file keeps
the name alone (`GivenFunction`).
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from qemrl.config.suggestions import suggestion

Registry = Mapping[str, type]
"""The classes that may be made, by the name that stands under "type"."""

_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class GivenFunction:
    """What stands in a file for a function that was handed over from Python: its name, which nothing is made from."""

    name: str

    def __call__(self, *arguments: Any) -> NoReturn:
        """Raise: the function is not there."""
        del arguments
        raise ValueError(f"the function `{self.name}` was handed over from Python and cannot be read from a file")


def find_given(record: Any, path: str = "") -> Iterator[tuple[str, GivenFunction]]:
    """The functions that are missing in what was read from a file, by the dotted names of their fields."""
    if isinstance(record, GivenFunction):
        yield path, record
    elif is_record(record):
        for field in dataclasses.fields(record):
            yield from find_given(getattr(record, field.name), _below(path, field.name))


def to_json(value: Any) -> Any:
    """The value as what `json.dumps` takes; ValueError names the field that cannot be stored."""
    return _write(value, "")


def from_json(data: Any, registry: Registry) -> Any:
    """The value that `to_json` wrote; ValueError names the class or field that is unknown, missing or of a wrong kind.

    A field that is absent takes its default, so that what was written before a field existed can still be read.
    """
    return _read(data, Any, registry, "")


def without_defaults(value: Any) -> Any:
    """The value as `to_json` writes it, less all fields that hold their defaults.

    What identifies a configuration: it stays the same when a class gets a field that has a default.
    """
    if type(value) is tuple:
        return [without_defaults(item) for item in value]
    if not is_record(value):
        return to_json(value)
    kept = [field.name for field in dataclasses.fields(value) if not is_default(value, field)]
    return {_TYPE: type(value).__name__} | {name: without_defaults(getattr(value, name)) for name in kept}


def read_value(data: Any, annotation: Any, path: str) -> Any:
    """A JSON value as a field of this annotation holds it; ValueError names the field and what it expects.

    Text that is annotated with a function is one of the names that the function gives. In files it need not be: they
    are read without such annotations, and a name may be known elsewhere.
    """
    return _read(data, annotation, {}, path)


def is_default(record: Any, field: dataclasses.Field) -> bool:
    """Whether a field is as its class has it."""
    if not field.init:
        return True
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return default is not dataclasses.MISSING and getattr(record, field.name) == default


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass of settings, and not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type | GivenFunction)


def _write(value: Any, path: str) -> Any:
    if is_record(value):
        return _write_record(value, path)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is float and not math.isfinite(value):
        raise ValueError(f"{_place(path)}: {value} is not finite, and JSON has only finite numbers")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if type(value) is tuple:
        return [_write(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if callable(value):
        return {_TYPE: GivenFunction.__name__, "name": name_function(value)}
    kind = type(value).__name__
    raise ValueError(
        f"{_place(path)}: a value of type {kind} cannot be stored, got {value!r}; "
        "use text, a number, a tuple, a path, a function, or a frozen dataclass"
    )


def name_function(function: Any) -> str:
    """What a function is called, in a file and in messages: `exponential_decay.schedule`."""
    if isinstance(function, GivenFunction):
        return function.name
    if isinstance(function, functools.partial):
        return name_function(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__).replace(".<locals>", "")


def _write_record(value: Any, path: str) -> dict[str, Any]:
    name = type(value).__name__
    if not value.__dataclass_params__.frozen:
        raise ValueError(f"{_place(path)}: {name} is not frozen; declare it with @dataclass(frozen=True)")
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    if _TYPE in fields:
        raise ValueError(f"{_place(path)}: {name} has a field {_TYPE!r}, where the class is stored; rename the field")
    return {_TYPE: name} | {field: _write(getattr(value, field), _below(path, field)) for field in fields}


def _read(data: Any, annotation: Any, registry: Registry, path: str) -> Any:
    if get_origin(annotation) is Annotated and isinstance(data, str) and data not in choices(annotation):
        raise _not_a_choice(path, data, choices(annotation))
    annotation = plain_annotation(annotation)
    if isinstance(data, dict):
        record = _read_record(data, registry, path)
        if not fits(record, annotation):
            raise wrong_kind(path, annotation, type(record).__name__)
        return record
    if get_origin(annotation) in (Union, types.UnionType):
        return _read_union(data, annotation, registry, path)
    if isinstance(data, list):
        return _read_tuple(data, annotation, registry, path)
    return _read_scalar(data, annotation, path)


def _read_record(data: dict[str, Any], registry: Registry, path: str) -> Any:
    if _TYPE not in data:
        raise ValueError(f"{_place(path)}: an object needs the name of its class under {_TYPE!r}, got {data!r}")
    name = data[_TYPE]
    known = {**registry, GivenFunction.__name__: GivenFunction}
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{_place(path)}: unknown class {name!r}; {suggestion(str(name), registry)}")
    cls = known[name]
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for field in data:
        if field != _TYPE and field not in fields:
            raise ValueError(f"{_place(path)}: {name} has no field {field!r}; {suggestion(field, fields)}")
    for field in fields.values():
        optional = not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        if field.name not in data and not optional:
            raise ValueError(f"{_place(path)}: {name} needs the field {field.name!r}, which is missing")
    hints = get_type_hints(cls)
    values = {
        field: _read(data[field], hints[field], registry, _below(path, field)) for field in fields if field in data
    }
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from error


def _read_union(data: Any, annotation: Any, registry: Registry, path: str) -> Any:
    # The member of the very type of the value comes first, so that 3 stays whole where `float | int` is asked for.
    # What is read is never a function: those come from Python, and a file has a `GivenFunction` in their place.
    readable = [member for member in get_args(annotation) if not is_function(member)]
    if len(readable) == 1:
        return _read(data, readable[0], registry, path)
    members = sorted(readable, key=lambda member: member is not type(data))
    errors = []
    for member in members:
        try:
            return _read(data, member, registry, path)
        except ValueError as error:
            if member is not type(None):
                errors.append(error)
    if len(errors) == 1 and isinstance(data, list):
        raise errors[0]
    raise wrong_kind(path, annotation, data)


def _read_tuple(data: list[Any], annotation: Any, registry: Registry, path: str) -> tuple[Any, ...]:
    if annotation in (Any, tuple):
        members = [Any] * len(data)
    elif get_origin(annotation) is tuple:
        members = list(get_args(annotation))
        if members[-1:] == [...]:
            members = members[:1] * len(data)
    else:
        raise wrong_kind(path, annotation, data)
    if len(members) != len(data):
        raise ValueError(f"{_place(path)}: expects {len(members)} items, got {len(data)}: {data!r}")
    pairs = enumerate(zip(data, members, strict=True))
    return tuple(_read(item, member, registry, f"{path}[{index}]") for index, (item, member) in pairs)


def _read_scalar(data: Any, annotation: Any, path: str) -> Any:
    kind = type(data)
    if kind is float and not math.isfinite(data):
        raise ValueError(f"{_place(path)}: {data} is not finite")
    if annotation is Any and (data is None or kind in (str, int, float, bool)):
        return data
    if annotation is None or annotation is type(None):
        if data is None:
            return None
    elif get_origin(annotation) is Literal:
        if any(data == choice and kind is type(choice) for choice in get_args(annotation)):
            return data
        raise _not_a_choice(path, data, choices(annotation))
    elif annotation in (str, int, float, bool) and kind is annotation:
        return data
    elif annotation is float and kind is int and abs(data) <= 2**53:
        return float(data)
    elif kind is str and annotation in (Path, PurePath):
        return annotation(data)
    raise wrong_kind(path, annotation, data)


def fits(record: Any, annotation: Any) -> bool:
    """Whether a dataclass may stand in a field of this annotation."""
    annotation = plain_annotation(annotation)
    if annotation is Any:
        return True
    if get_origin(annotation) in (Union, types.UnionType):
        return any(fits(record, member) for member in get_args(annotation))
    if is_function(annotation):
        return callable(record)
    if getattr(annotation, "_is_protocol", False) and not getattr(annotation, "_is_runtime_protocol", False):
        return True  # nobody can tell
    return isinstance(annotation, type) and isinstance(record, annotation)


def is_function(annotation: Any) -> bool:
    """Whether a field of this annotation holds a function."""
    return annotation is Callable or get_origin(annotation) is Callable


def choices(annotation: Any) -> tuple[str, ...]:
    """The texts that a field takes: those of a `Literal`, or by the function that text is annotated with."""
    if get_origin(annotation) is Annotated:
        return annotation.__metadata__[0]()
    return tuple(str(choice) for choice in get_args(annotation))


def plain_annotation(annotation: Any) -> Any:
    """The annotation without type variables, notes, and the parameters of a generic dataclass."""
    if get_origin(annotation) is Annotated:
        return plain_annotation(annotation.__origin__)
    if isinstance(annotation, TypeVar) or annotation is object:
        return Any
    origin = get_origin(annotation)
    return origin if origin is not None and dataclasses.is_dataclass(origin) else annotation


def wrong_kind(path: str, annotation: Any, got: Any) -> ValueError:
    """The error that says what a field expects, and what it got."""
    return ValueError(f"{_place(path)}: expects {describe_annotation(annotation)}, got {got!r}")


def describe_annotation(annotation: Any) -> str:
    """A type as people write it."""
    wanted = "a path" if annotation is Path else getattr(annotation, "__name__", None)
    if wanted is None or get_args(annotation):
        wanted = str(annotation).replace("typing.", "")
    return wanted


def _not_a_choice(path: str, value: Any, known: tuple[str, ...]) -> ValueError:
    return ValueError(f"{_place(path)}: {value!r} is none of the choices; {suggestion(str(value), known)}")


def _place(path: str) -> str:
    return path or "the value"


def _below(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
