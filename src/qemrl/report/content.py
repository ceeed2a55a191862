"""What a report shows: all that is read and computed before the page and the figures are made of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qemrl.experiments.runs import (
    Cell,
    RunCollection,
    RunRecord,
    Unreadable,
    explain,
    find_files,
    make_printable,
    read_runs,
)
from qemrl.report.markup import NOTHING
from qemrl.report.predictions import AgentPrediction, find_saved_agents, predict_returns
from qemrl.report.results import Place, Results, compute_results
from qemrl.training.files import open_regular, parse_json

AXES = ("env", "seed", "num_seeds")
"""Settings that tell runs of one algorithm apart."""

MOST_BESIDE = 6
"""How many tasks are shown beside one another."""


Settings = Mapping[str, Mapping[str, str]]
"""Settings in which algorithms differ: by name and algorithm, as text."""


@dataclass(frozen=True)
class Content:
    """All that a report shows."""

    collection: RunCollection
    cells: Mapping[Place, Cell]
    results: Results
    settings: Settings
    nearest: Mapping[str, str]
    """To each algorithm but the first, the one of those before it that it differs from in the fewest settings."""

    predicted: Sequence[AgentPrediction]
    not_loaded: Sequence[str]
    """Saved agents that could not be loaded, and why."""

    claims: Sequence[Mapping[str, Any]]
    """The reports of `qemrl reproduce`."""

    notes: Sequence[str]
    """What readers should know before they compare."""

    @property
    def few_envs(self) -> tuple[str, ...]:
        """The tasks, if they are so few that differences are shown for each; else none."""
        return tuple(self.collection.envs) if len(self.collection.envs) <= MOST_BESIDE else ()


def gather(folder: Path, agents: bool, seed: int, tick: Callable[[str], None], allow_imports: bool = False) -> Content:
    """The content of a report about a folder.

    Args:
        folder: Holds runs, results of `qemrl reproduce`, or both, at any depth.
        agents: Whether saved agents are loaded for their return distributions.
        seed: Of the bootstrap.
        tick: Called with the name of what is being done.
        allow_imports: Whether modules that runs name for their environments may be imported.

    Raises:
        ValueError: There is nothing to report.
    """
    tick("reading runs")
    collection = read_runs(folder)
    claims, damaged = _read_claims(folder)
    collection = replace(collection, unreadable=(*collection.unreadable, *damaged))
    if not collection.runs and not claims:
        reasons = "".join(f"; {each.name}: {each.reason}" for each in collection.unreadable)
        raise ValueError(
            f"{folder} holds neither runs nor results of `qemrl reproduce` that can be read{reasons}. Make some with "
            f"`qemrl sweep GRID --out {folder}`, or name another folder"
        )
    cells = collection.cells()
    tick("computing intervals")
    numbers = compute_results(cells, seed)
    predicted, not_loaded = [], []
    for run in find_saved_agents(cells.values()) if agents else ():
        tick(f"loading {run.name}")
        try:
            predicted.append(predict_returns(run, allow_imports))
        except (Exception, SystemExit) as error:  # also what the module of an environment does
            not_loaded.append(f"{run.name}: {explain(error, run.path, run.name).reason}")
    settings = find_differing_settings(collection)
    nearest = find_nearest(collection.arms, settings)
    return Content(collection, cells, numbers, settings, nearest, predicted, not_loaded, claims, _write_notes(cells))


def _read_claims(folder: Path) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    found, damaged = [], []
    for file in find_files(folder, "claims.json"):
        name = make_printable(file.parent.relative_to(folder).as_posix())
        try:
            with open_regular(file) as stream:
                report = parse_json(stream.read())
            claims = [
                {key: str(claim[key]) for key in ("name", "where", "statement", "meaning", "verdict")}
                | {"measured": {end: float(claim["measured"][end]) for end in ("value", "low", "high")}}
                for claim in report["claims"]
            ]
            found.append({"item": str(report["item"]), "claims": claims})
        except Exception as error:  # nobody can list what a damaged file leads to
            damaged.append(Unreadable(name, make_printable(f"claims.json cannot be read: {error!r}")))
    return found, damaged


def find_differing_settings(collection: RunCollection) -> Settings:
    """The settings in which algorithms differ on a task; where one depends on the task, each value names its tasks."""
    values: dict[str, dict[Place, set[str]]] = {}
    for run in collection.runs:
        for name, value in flatten_config(run.record["config"]).items():
            values.setdefault(name, {}).setdefault((run.arm, run.config.env_name), set()).add(value)
    places = sorted({(run.arm, run.config.env_name) for run in collection.runs})
    found = {}
    for name, there in sorted(values.items()):
        texts = {place: " or ".join(sorted(there.get(place, {NOTHING}))) for place in places}
        if any(len({text for (_, other), text in texts.items() if other == env}) > 1 for env in collection.envs):
            found[name] = {arm: _join_values(arm, texts) for arm in collection.arms}
    return found


def _join_values(arm: str, texts: Mapping[Place, str]) -> str:
    """The value of a setting for one algorithm, with its tasks if there are several values."""
    envs: dict[str, list[str]] = {}
    for (other, env), text in texts.items():
        if other == arm:
            envs.setdefault(text, []).append(env)
    if len(envs) == 1:
        return next(iter(envs))
    return "; ".join(f"{text} ({', '.join(tasks)})" for text, tasks in sorted(envs.items()))


def find_nearest(arms: Sequence[str], settings: Settings) -> dict[str, str]:
    """To each algorithm but the first, that of those before it from which it differs in the fewest settings."""

    def distance(one: str, other: str) -> int:
        return sum(values[one] != values[other] for values in settings.values())

    return {arm: min(arms[:place], key=partial(distance, arm)) for place, arm in enumerate(arms) if place}


def flatten_config(config: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """A configuration as text by dotted name; the type of a part stands under the name of the part."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if key == "type":
            if above:
                found[above.removesuffix(".")] = str(value)
        elif isinstance(value, Mapping):
            found |= flatten_config(value, f"{above}{key}.")
        elif above or key not in AXES:
            found[f"{above}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _write_notes(cells: Mapping[Place, Cell]) -> list[str]:
    """Sentences, each with the algorithms and tasks that it is true of."""
    said: dict[str, list[str]] = {}
    for (arm, env), cell in cells.items():
        place = f"{arm} on {env}"
        waiting = [run for run in cell.runs if run.state != "finished"]
        if cell.last is None:
            said.setdefault("No evaluation yet that all runs share, so in no figure or table", []).append(place)
            continue
        if not cell.finished:
            so_far = f"{place} (at step {int(cell.last.steps[-1]):,})"
            said.setdefault("No finished run, so results are those so far", []).append(so_far)
        elif waiting:
            part = f"{place} ({len(waiting)} of {len(cell.runs)})"
            said.setdefault("Unfinished and failed runs beside finished ones count only as thin lines", []).append(part)
        if len(cell.last.seeds) == 1:
            said.setdefault("One seed that counts, so no interval", []).append(place)
        mixed = _find_mixed_settings(cell.runs)
        if mixed:
            text = f"{place} ({', '.join(mixed)})"
            said.setdefault("Runs of one algorithm and task with different settings", []).append(text)
    return [f"{what}: {'; '.join(places)}." for what, places in said.items()]


def _find_mixed_settings(runs: Sequence[RunRecord]) -> list[str]:
    """The settings in which runs of one algorithm on one task differ, besides the seed."""
    configs = [flatten_config(run.record["config"]) for run in runs]
    names = sorted({name for config in configs for name in config})
    return [name for name in names if len({config.get(name) for config in configs}) > 1]
