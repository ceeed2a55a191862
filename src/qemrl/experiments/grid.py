"""Grids: every algorithm on every environment with every seed, as a value or as a small TOML file.

    presets = ["qr-dqn", "iqn", "iqn+stratified"]
    envs = ["minatar/breakout", "minatar/asterix"]
    seeds = 5
    steps = 500_000

    [overrides]
    update_every = 8

    [overrides.iqn]
    representation.share_levels = true

    [overrides."iqn+stratified"]
    representation.acting_levels = "stratified"

An algorithm is a preset, or `PRESET+NAME`, a variant of it. Overrides are settings of `qemrl train` by their dotted
names; a table of them that bears the name of a preset holds for the preset and its variants, one with the name of a
variant or an environment for that alone. The more specific one wins: preset, then variant, then environment.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qemrl.config.limits import check_count
from qemrl.config.override import flatten
from qemrl.config.serialize import without_defaults
from qemrl.config.suggestions import suggestion
from qemrl.experiments.builtin_grids import builtin_grids
from qemrl.experiments.toml_files import abbreviate, parse_toml, read_toml
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import check_import


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(is_right(item) for item in value)


def _are_names(value: Any) -> bool:
    return _is_list(value, lambda item: isinstance(item, str))


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "presets": (_are_names, "a list of names"),
    "envs": (_are_names, "a list of names"),
    "seeds": (lambda value: _is_whole(value) or _is_list(value, _is_whole), "a number of seeds or a list of them"),
    "steps": (lambda value: _is_whole(value) or (isinstance(value, float) and value.is_integer()), "a whole number"),
    "overrides": (lambda value: isinstance(value, dict), "a table of settings"),
}
"""The keys of a file, and what stands there."""

KEYS = tuple(KINDS)
RESERVED = ("preset", "env", "seed", "num_seeds", "steps", "agent")
"""The settings of a run that the grid itself gives."""

MOST_RUNS = 100_000

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of a grid: one algorithm, one environment, one seed."""

    arm: str
    """The algorithm's name in the grid."""

    config: RunConfig

    @cached_property
    def id(self) -> str:
        """A hash of all settings that are not their classes' defaults: new fields with defaults leave it as it is."""
        return _hash(without_defaults(self.config))

    @property
    def name(self) -> str:
        """The name of its folder: what it is, for people, then its id."""
        env = re.sub(r"[^\w.+-]", "-", self.config.env_name)
        return f"{self.arm}_{env}_seed-{self.config.seed}_{self.id}"


@dataclass(frozen=True)
class Grid:
    """A grid of runs.

    Raises:
        ValueError: Something in it makes no sense; the message says what, and what would.
    """

    presets: Sequence[str]
    """Presets, and variants `PRESET+NAME` of them."""

    envs: Sequence[str]
    """Ids of environments."""

    seeds: int | Sequence[int]
    """How many seeds, counted from zero, or the seeds themselves."""

    steps: int
    """How many steps each run learns for."""

    overrides: Overrides = field(default_factory=dict)
    """Settings by name, and tables of them for some of the runs."""

    def __post_init__(self) -> None:
        for name in ("presets", "envs"):
            _require_names(name, getattr(self, name))
        for arm in self.presets:
            if not re.fullmatch(r"[a-z0-9-]+(\+[\w.-]+)?", arm):
                raise ValueError(
                    f"presets: {arm!r} is neither a preset nor PRESET+NAME, with a name of letters, digits"
                )
        # Before they are made: a number may be far too large for a list.
        count = self.seeds if isinstance(self.seeds, int) else len(self.seeds)
        if count < 1:
            raise ValueError(f"seeds must be a number of seeds or a list of them, got {self.seeds!r}")
        if count * len(self.envs) * len(self.presets) > MOST_RUNS:
            raise ValueError(
                f"seeds: {count:,} of them, {len(self.envs):,} environments and {len(self.presets):,} presets are more "
                f"than {MOST_RUNS:,} runs, the most that a grid has"
            )
        _require_distinct("seeds", self.seed_list)
        for seed in self.seed_list:
            if not 0 <= seed < 2**32:
                raise ValueError(f"seeds must lie in [0, 2³²), got {seed}")
        check_count("steps", self.steps)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    def runs(self) -> list[Run]:
        """Every run, seed by seed: whenever a sweep stops, all algorithms have about as many seeds."""
        first, *others = self.seed_list
        runs = [Run(arm, self.config(arm, env, first)) for env in self.envs for arm in self.presets]
        _require_differences(runs)
        described = [(run, without_defaults(run.config)) for run in runs]
        return runs + [_give_seed(run, spec, seed) for seed in others for run, spec in described]

    def config(self, arm: str, env: str, seed: int) -> RunConfig:
        """The configuration of one run."""
        try:
            return configure(_preset(arm), env, self.steps, seed, overrides=self.settings(arm, env))
        except ValueError as error:
            raise ValueError(f"{arm} on {env}: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """The grid as plain data; `Grid(**data)` is the grid again."""
        lists = {"presets": list(self.presets), "envs": list(self.envs), "seeds": list(self.seed_list)}
        return {**lists, "steps": self.steps, "overrides": dict(self.overrides)}

    def settings(self, arm: str, env: str) -> dict[str, Any]:
        """The settings of a run by their dotted names; neither arm nor environment need be of the grid."""
        scopes = {*self.presets, *(_preset(each) for each in self.presets), *self.envs, _preset(arm), arm, env}
        general = {name: value for name, value in self.overrides.items() if name not in scopes}
        layers: list[Overrides] = [general]
        for scope in dict.fromkeys((_preset(arm), arm, env)):
            layer = self.overrides.get(scope, {})
            if not isinstance(layer, Mapping):
                raise ValueError(f"overrides: {scope} must be a table of settings, got {layer!r}")
            layers.append(layer)
        settings: dict[str, Any] = {}
        for layer in layers:
            for name in layer:
                if "+" in name or "/" in name:
                    raise ValueError(f"overrides: no run is called {name!r}; {suggestion(name, scopes)}")
                if name.replace("-", "_") in RESERVED:
                    raise ValueError(f"overrides: {name} is the grid's own; say it with {', '.join(KEYS[:-1])}")
            settings |= flatten(layer)
        return settings


def read_grid(file: str | Path, allow_imports: bool = False) -> Grid:
    """The grid of a TOML file, or the built-in grid of that name.

    Args:
        file: The file, or the name.
        allow_imports: Whether modules that it names for environments (`module:id`) may be imported later on, which can
            do anything.

    Raises:
        ImportRefused: It names a module, and imports are not allowed.
        ValueError: Something in it makes no sense; the message says what, and what would.
    """
    path = Path(file)
    if not path.exists() and path.name == str(file):
        ready = builtin_grids()
        if path.stem not in ready:
            raise ValueError(
                f"there is no file {file} and no built-in grid of that name; {suggestion(path.stem, ready)}"
            )
        data = parse_toml(ready[path.stem], str(file))
    else:
        data = read_toml(path)
    for key in data:
        if key not in KEYS:
            raise ValueError(f"{file}: a grid has no key {key!r}; {suggestion(key, KEYS)}")
    missing = [key for key in KEYS[:-1] if key not in data]
    if missing:
        raise ValueError(f"{file}: a grid needs {', '.join(KEYS[:-1])}; missing: {', '.join(missing)}")
    for key, value in data.items():
        is_right, kind = KINDS[key]
        if not is_right(value):
            raise ValueError(f"{file}: {key} must be {kind}, got {abbreviate(value)}")
    data["steps"] = int(data["steps"])
    try:
        grid = Grid(**data)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    for env in grid.envs:
        check_import(env, f"{file}: the environment", allow_imports)
    return grid


def _hash(spec: Mapping[str, Any]) -> str:
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _give_seed(run: Run, spec: Mapping[str, Any], seed: int) -> Run:
    """The run with another seed, of which its settings that are not defaults say nothing but the seed anew."""
    other = Run(run.arm, replace(run.config, seed=seed))
    rest = {name: value for name, value in spec.items() if name != "seed"}
    # What the property would find: to describe the same agent again for each seed takes longer than all else.
    vars(other)["id"] = _hash(rest | {"seed": seed} if seed else rest)
    return other


def _preset(arm: str) -> str:
    return arm.partition("+")[0]


def _require_differences(runs: Sequence[Run]) -> None:
    """Raise if two runs with the same seed are the same."""
    seen: dict[str, Run] = {}
    for run in runs:
        twin = seen.setdefault(run.id, run)
        if twin is not run:
            raise ValueError(
                f"{twin.arm} and {run.arm} are the same on {twin.config.env_name}: give {run.arm} settings of its own "
                f'under [overrides."{run.arm}"], or leave it out'
            )


def _require_names(name: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not values or not all(isinstance(value, str) and value for value in values):
        raise ValueError(f"{name} must be a list of at least one name, got {abbreviate(values)}")
    for value in values:
        if not value.isprintable():
            raise ValueError(f"{name}: {value!r} has characters that cannot be printed")
    _require_distinct(name, values)


def _require_distinct(name: str, values: Sequence[Any]) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{name}: {value!r} is there twice")
        seen.add(value)
