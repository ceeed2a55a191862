"""Ranges of settings, which a tuning draws from: `1e-5:2e-3:log`, `1:5` or `32,64,128`, by dotted name."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qemrl.agents.value import ValueConfig
from qemrl.config.override import convert, find_annotation, flatten, union_members
from qemrl.experiments.grid import RESERVED
from qemrl.experiments.toml_files import read_toml
from qemrl.training.config import RunConfig

Value = bool | int | float | str | None
"""A value of a range, as a file holds it; parts and tuples are text."""


@dataclass(frozen=True)
class Bounds:
    """All numbers from one bound to another, both included: whole ones if the bounds are."""

    low: int | float
    high: int | float
    log: bool = False
    """Whether the logarithm is drawn uniformly instead of the number."""

    def __str__(self) -> str:
        return f"{self.low}:{self.high}{':log' * self.log}"

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values that must be valid if all are to be."""
        return self.low, self.high


@dataclass(frozen=True)
class Choices:
    """Some values."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ",".join(
            str(value).lower() if value is None or isinstance(value, bool) else str(value) for value in self.values
        )

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values that must be valid if all are to be."""
        return self.values


Range = Bounds | Choices

VALUE_RANGES = {
    "optimizer.learning_rate": "1e-5:2e-3:log",
    "optimizer.epsilon": "1e-8:1e-2:log",
    "batch_size": "32,64,128",
    "replay.n_step": "1:5",
    "exploration.final": "0.005:0.1:log",
}
"""What is searched for value agents that have these settings, and the steps between copies to the target network."""

ACTOR_CRITIC_RANGES = {
    "optimizer.learning_rate": "1e-4:3e-3:log",
    "batch_size": "64,128,256,512",
    "discount": "0.95,0.98,0.99,0.995",
    "polyak": "1e-3:5e-2:log",
}
"""What is searched for actor-critics."""

TARGET_FACTORS = (0.25, 0.5, 1, 2, 4)
"""How many times as many steps between copies to the target network as a preset has."""


def default_ranges(config: RunConfig) -> dict[str, Range]:
    """The ranges of the agent's family, all of whose values go together."""
    agent = config.agent
    if not isinstance(agent, ValueConfig):
        return {name: read_range(text, config, name) for name, text in ACTOR_CRITIC_RANGES.items()}
    found = {}
    for name, text in VALUE_RANGES.items():
        if not name.startswith("exploration.") or hasattr(agent.exploration, name.rpartition(".")[2]):
            found[name] = read_range(text, config, name)
    whole = math.lcm(agent.update_every, config.num_envs)
    steps = {max(1, round(factor * agent.target_every / whole)) * whole for factor in TARGET_FACTORS}
    return found | {"target_every": Choices(tuple(sorted(steps)))}


def read_ranges(given: Mapping[str, Any], config: RunConfig) -> dict[str, Range]:
    """Ranges by dotted name, as the command line or a file has them, for the settings of a configuration.

    Raises:
        ValueError: There is no such setting, and the nearest is named; or a range makes no sense.
    """
    return {name: read_range(value, config, name) for name, value in flatten(given).items()}


def read_ranges_file(file: Path, config: RunConfig) -> dict[str, Range]:
    """The ranges of a TOML file: text as on the command line, or a list of choices.

    Raises:
        ValueError: As `read_ranges`, or there are none; the file is named.
    """
    given = read_toml(file)
    if not given:
        raise ValueError(f'{file} has no range; one is: optimizer.learning_rate = "1e-5:2e-3:log"')
    try:
        return read_ranges(given, config)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def read_range(given: Any, config: RunConfig, name: str) -> Range:
    """The range of a setting: `low:high`, `low:high:log`, or choices as a list or with commas between them."""
    if name in RESERVED:
        raise ValueError(f"range.{name}: {name} is the same in all trials; ranges are of other settings")
    annotation = find_annotation(config, name)
    if isinstance(given, str) and ":" in given:
        return _read_bounds(given, annotation, name)
    choices = given.split(",") if isinstance(given, str) else given
    if not isinstance(choices, Sequence) or len(choices) < 2:
        raise ValueError(
            f"range.{name} must be low:high, low:high:log or two or more choices a,b,c; got {given!r}. To set "
            f"{name} for all trials, leave out `range.`"
        )
    values = tuple(read_plain(choice, annotation, f"range.{name}") for choice in choices)
    if len(set(map(repr, values))) < len(values):
        raise ValueError(f"range.{name}: a choice is there twice, got {given!r}")
    return Choices(values)


def _read_bounds(text: str, annotation: Any, name: str) -> Bounds:
    low_text, high_text, *rest = text.split(":")
    if rest not in ([], ["log"]):
        raise ValueError(f"range.{name} must be low:high or low:high:log, got {text!r}")
    kinds = union_members(annotation)
    if not {int, float} & set(kinds):
        raise ValueError(f"range.{name}: {name} is not a number; give choices, a,b,c; got {text!r}")
    kind = float if float in kinds else int
    low, high = (convert(end.strip(), kind, f"range.{name}") for end in (low_text, high_text))
    if not low < high:
        raise ValueError(f"range.{name}: the first bound must be below the second, got {text!r}")
    if rest and not low > 0:
        raise ValueError(f"range.{name}: a logarithmic range must be above zero, got {text!r}")
    return Bounds(low, high, bool(rest))


def read_plain(given: Any, annotation: Any, name: str) -> Value:
    """A value as its field holds it, if that is a number, text or nothing; else as it is written."""
    text = " ".join(map(str, given)) if isinstance(given, list) else given.strip() if isinstance(given, str) else given
    kinds = {str, int, float, bool, type(None)}
    if not kinds & set(union_members(annotation)):
        return text
    value = convert(text, annotation, name)
    return value if type(value) in kinds else text
