"""Settings by dotted name, put into a configuration: what the command line, `qemrl.make` and grids have in common.

`steps`, `estimator`, `estimator.order`, `optimizer.learning-rate`: settings of the run and of its agent, without a
prefix, dashes as good as underscores. A value is text as it is typed, or of the type that the field has; a list or
several words for a tuple, `none` for nothing, a name for a part (see `registry`). `no_double` switches `double` off.

All is collected first: parts are chosen by name, then their settings are changed, and the result is built and
checked once. So it does not matter in which order settings are given.
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints, runtime_checkable

import equinox as eqx
import numpy as np

from qemrl.agents.names import EnvFamily
from qemrl.config.registry import AXES, make_part
from qemrl.config.serialize import fits, is_record, plain_annotation, read_value, wrong_kind
from qemrl.config.suggestions import suggestion
from qemrl.envs.gym.atari import protocol_for

FIXED = ("preset", "env", "env_kwargs", "env_is_given", "agent")
"""Fields of a run that are not settings: they are given before."""


@runtime_checkable
class RunSettings(Protocol):
    """What is overridden: a dataclass with the settings of a run, and in `agent` those of its agent."""

    @property
    def env(self) -> str:
        """The id of the environment."""
        ...

    @property
    def agent(self) -> Any:
        """The settings of the agent."""
        ...

    @property
    def family(self) -> EnvFamily:
        """Whose settings the environment has."""
        ...


Config = TypeVar("Config", bound=RunSettings)


def override(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration of a preset with other settings.

    Raises:
        ValueError: A setting is unknown, or cannot have this value; the message names both, and what would work.
    """
    draft, given = _Draft(config), flatten(settings)
    values = dict(given)
    for path in [*(path for path in AXES if path in given), *(path for path in sorted(given) if path not in AXES)]:
        if _is_part(draft, path, given[path]):
            owner, field = draft.locate(path)
            owner.fields[field] = _drafted(_choose_part(config, draft, path, values.pop(path)))
    for path in values:
        name, value = _read_switch(draft, path, given)
        owner, field = draft.locate(name)
        owner.fields[field] = convert(value, owner.annotation(field), name)
    return draft.build()


def flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values by dotted name, with underscores; tables within tables become dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{above}{name.replace('-', '_')}"
        found |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def find_annotation(config: RunSettings, name: str) -> Any:
    """The annotation of a setting by its dotted name; ValueError names the nearest if there is none."""
    owner, field = _Draft(config).locate(name)
    return owner.annotation(field)


def union_members(annotation: Any) -> list[Any]:
    """The types that an annotation allows: those of a union, or the one that it is."""
    union = get_origin(annotation) in (Union, types.UnionType)
    return [plain_annotation(member) for member in get_args(annotation)] if union else [annotation]


def convert(value: Any, annotation: Any, path: str) -> Any:
    """The value as a field of this annotation holds it; ValueError names the field, the value and the type."""
    if not isinstance(value, str | list | tuple | int | float | np.generic | None) and fits(value, annotation):
        return value  # a dataclass, or a function where that is what the field holds
    found = read_value(_parse(value, plain_annotation(annotation)), annotation, path)
    if type(found) is int and abs(found) >= 2**63:  # too large even for the arithmetic that checks it
        raise ValueError(f"{path}: a whole number of {len(str(abs(found)))} digits is too large")
    return found


class _Draft:
    """A dataclass that is being changed: its class, and its fields, in which dataclasses are drafts in turn."""

    def __init__(self, record: Any) -> None:
        self.kind = type(record)
        fields = [field.name for field in dataclasses.fields(record) if field.init]
        self.fields = {name: _drafted(getattr(record, name)) for name in fields}

    def annotation(self, field: str) -> Any:
        return get_type_hints(self.kind, include_extras=True)[field]

    def build(self, path: str = "") -> Any:
        """The dataclass, made from the inside out, and checked by its classes."""
        values = {name: _built(held, _below(path, name)) for name, held in self.fields.items()}
        try:
            return self.kind(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}" if path else str(error)) from error

    def names(self, path: str = "") -> Iterator[str]:
        """The dotted names of all settings."""
        for name, held in self.fields.items():
            below = _below(path, name)
            if isinstance(held, _Draft):
                yield from held.names(below)
            if below in AXES or not (isinstance(held, _Draft) or name in FIXED):
                yield below

    def find(self, path: str) -> tuple["_Draft", str] | None:
        """The dataclass that a dotted name leads to, if there is one, and the field in it, which may be unknown."""
        *above, field = path.split(".")
        first = [*above, field][0]
        owner = self if first in self.fields and first not in FIXED else self.fields["agent"]
        for name in above:
            owner = owner.fields.get(name)
            if not isinstance(owner, _Draft):
                return None
        return owner, field

    def locate(self, path: str) -> tuple["_Draft", str]:
        """The dataclass that holds a setting, and the field in it; ValueError names the nearest if there is none."""
        owner, field = self.find(path) or (None, "")
        if owner is not None and field in owner.fields and path not in FIXED:
            return owner, field
        within = f": {path.rpartition('.')[0]} is {owner.kind.__name__}" if owner is not None and "." in path else ""
        hint = suggestion(path, self.names(), "`qemrl train PRESET --env ID --help` shows all")
        raise ValueError(f"there is no setting {path!r} here{within}; {hint}")


def _drafted(value: Any) -> Any:
    return _Draft(value) if is_record(value) else value


def _built(held: Any, path: str) -> Any:
    return held.build(path) if isinstance(held, _Draft) else held


def _below(path: str, name: str) -> str:
    if name == "agent" and not path:
        return ""
    return f"{path}.{name}" if path else name


def _is_part(draft: _Draft, path: str, value: Any) -> bool:
    """Whether a setting stands for a whole part: one of an axis, or a dataclass of settings."""
    owner, field = draft.find(path) or (None, "")
    if path in AXES and isinstance(value, str):
        return owner is None or field in owner.fields
    return is_record(value) or (owner is not None and isinstance(owner.fields.get(field), _Draft))


def _read_switch(draft: _Draft, path: str, given: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and the value of a setting; `no_double` is `double`, set to false."""
    owner, field = draft.find(path) or (None, "")
    switch = field.removeprefix("no_")
    if owner is None or field in owner.fields or switch not in owner.fields or owner.annotation(switch) is not bool:
        return path, given[path]
    name = path.removesuffix(field) + switch
    if name in given or convert(given[path], bool, path) is not True:
        raise ValueError(f"{path} switches {name} off: it needs no value, and not {name} beside it")
    return name, False


def _choose_part(config: RunSettings, draft: _Draft, path: str, value: Any) -> Any:
    owner, field = draft.locate(path)
    annotation = owner.annotation(field)
    if isinstance(value, eqx.Module):
        kind = type(value).__name__
        raise ValueError(f"{path}: give a function that makes the module from spec and key; got a {kind} itself")
    if is_record(value) or callable(value):
        if not fits(value, annotation):
            raise wrong_kind(path, annotation, type(value).__name__)
        return value
    present = _built(owner.fields[field], path)
    if path == "protocol" and present is None:
        raise ValueError(f"protocol is for Atari games, and {config.env} is none")
    if path not in AXES:
        names = ", ".join(_Draft(present).names(path))
        raise ValueError(f"{path} is not one setting but several: {names}; got {value!r}")
    names = [name for name, part in AXES[path].parts.items() if fits(part, annotation)]
    if value not in names:
        raise ValueError(f"there is no {path} {value!r}; {suggestion(str(value), names)}")
    if path == "protocol":
        return protocol_for(config.env, value)
    estimator = _built(draft.fields["agent"].fields["estimator"], "estimator")
    return make_part(path, value, present, type(config.agent), config.family, estimator)


def _parse(value: Any, annotation: Any) -> Any:
    """A value as JSON has it, if it is text or a number that can be read so; else the value itself."""
    value = value.item() if isinstance(value, np.generic) else value
    members = union_members(annotation)
    if isinstance(value, str) and type(None) in members and value.lower() == "none":
        return None
    for member in members:
        if get_origin(member) is tuple and isinstance(value, str | list | tuple):
            items = value.replace(",", " ").split() if isinstance(value, str) else value
            inner = get_args(member)
            kinds = inner[:1] * len(items) if inner[-1:] == (...,) else inner
            padded = [*kinds, *inner[-1:] * (len(items) - len(kinds))]
            return [_parse(item, kind) for item, kind in zip(items, padded, strict=False)]
    if isinstance(value, str) and not {str, Path} & set(members):
        value = _parse_word(value, members)
    if type(value) is float and int in members and float not in members and value.is_integer():
        return int(value)
    return value


def _parse_word(word: str, members: list[Any]) -> Any:
    for member in members:
        if get_origin(member) is Literal:
            return next((choice for choice in get_args(member) if str(choice) == word), word)
    if bool in members:
        return {"": True, "true": True, "false": False}.get(word.lower(), word)
    for number in (int, float) if {int, float} & set(members) else ():
        try:
            return number(word)
        except ValueError:
            continue
    return word
