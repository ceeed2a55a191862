"""What the paper's introduction says of other representations, and what QEM does on each of them.

Quantiles cross; forms that keep them from crossing are biased; splines are expensive; truncation ignores the tail;
categories overestimate the variance, and quantiles do not keep the mean. Fixed points and truncation are exact; the
rest is learned by the agents themselves, of processes whose truth is known, and of a game.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Result, Scale, Tick, interval_columns, scale_tick
from qemrl.paper.items import representations_exact as exact
from qemrl.paper.items import representations_learned as learned
from qemrl.paper.items.representations_claims import (
    MONOTONE,
    Histories,
    check_biases,
    check_costs,
    check_crossings,
    check_projections,
    check_qem,
)
from qemrl.paper.items.representations_game import GAME, Played, study_game
from qemrl.paper.items.representations_learned import learn_world, measure
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, heading, level_line, light_grid

LEARNERS = (
    "qr-dqn",
    "bootstrapped-qr-dqn",
    "iqn",
    "fqf-uniform",
    "fqf",
    "nc-qr-dqn",
    "ndqfn",
    "spl-dqn",
    "cr-dqn",
    "mmd-dqn",
    "c51",
    "hl-gauss",
    "er-dqn",
    "er-dqn-naive",
)
SOME = ("qr-dqn", "nc-qr-dqn", "ndqfn", "spl-dqn", "cr-dqn", "mmd-dqn", "c51", "er-dqn")
"""Those of the small scale; the game is not played there."""

PLAYERS = ("qr-dqn", "iqn", "fqf", "nc-qr-dqn", "ndqfn", "spl-dqn")


@dataclass(frozen=True)
class Size:
    """How much is done."""

    learners: tuple[str, ...]
    worlds: tuple[str, ...]
    seeds: int
    updates: int
    records: int
    random_processes: int
    draws: int
    players: tuple[str, ...]
    game_steps: int
    game_seeds: int
    places: int
    rollouts: int


SIZES = {
    "smoke": Size(("qr-dqn", "nc-qr-dqn"), ("chain",), 3, 200, 2, 2, 20, (), 0, 0, 0, 0),
    "small": Size(SOME, ("chain",), 4, 3_000, 3, 10, 500, (), 0, 0, 0, 0),
    "paper": Size(LEARNERS, ("FrozenLake", "chain"), 10, 10_000, 10, 20, 2_000, PLAYERS, 60_000, 3, 100, 64),
}


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """Fixed points, learning and the game."""
    size = SIZES[scale]
    processes = exact.list_processes(size.random_processes, seed)
    points = [point for process in processes for point in exact.find_fixed_points(process)]
    biases = {process.name: exact.find_truncation_biases(process) for process in processes}
    errors = exact.squared_errors(np.random.default_rng(seed), size.draws)
    tick(0.05)
    histories: Histories = {}
    work = len(size.worlds) * len(size.learners)
    for world in size.worlds:
        for preset in size.learners:
            histories[world, preset] = [*learn_world(preset, world, size.seeds, size.updates, size.records, seed)]
            tick(0.05 + (0.5 if size.players else 0.95) * len(histories) / work)
    games: dict[str, list[Played]] = {}
    for number, preset in enumerate(size.players):
        part = scale_tick(tick, 0.55 + 0.45 * number / len(size.players), 0.45 / len(size.players))
        games[preset] = [*study_game(preset, size.game_steps, size.game_seeds, size.places, size.rollouts, seed, part)]
    tick(1.0)
    rows = [*_exact_rows(points, biases, errors), *_learned_rows(histories), *_game_rows(games)]
    claims = [
        *check_crossings(histories, games),
        *check_biases(histories, games),
        *check_costs(),
        *check_projections(points, biases),
        *check_qem(histories, errors),
    ]
    return Result(rows, _draw(histories, points, biases), claims, _notes(size))


def _row(part: str, task: str, representation: str, measure: str, number: Interval) -> dict[str, Any]:
    what = {"part": part, "task": task, "representation": representation, "measure": measure}
    return what | interval_columns(number)


def _exact_rows(
    points: list[exact.FixedPoint],
    biases: dict[str, dict[int, float]],
    errors: dict[tuple[str, str], exact.SquaredErrors],
) -> Iterator[dict[str, Any]]:
    for point in points:
        name = f"{point.representation}, {point.setting}"
        yield _row("fixed point", point.process, name, "bias of the mean / std", Interval.exact(point.bias))
        yield _row("fixed point", point.process, name, "variance / true", Interval.exact(point.variance))
    for process, by_number in biases.items():
        for number, bias in by_number.items():
            name = f"{exact.TRUNCATED} quantiles, {number} dropped"
            yield _row("truncation", process, name, "bias of Q / std", Interval.exact(bias))
    for (distribution, name), pair in errors.items():
        for reader, value in pair._asdict().items():
            label = f"squared error of Q / variance, {'QEM' if reader == 'qem' else 'own mean'}"
            yield _row("exact network", distribution, name, label, Interval.exact(value))


def _learned_rows(histories: Histories) -> Iterator[dict[str, Any]]:
    for (world, preset), records in histories.items():
        for record in (records[len(records) // 2 - 1], records[-1]):
            for label, number in measure(world, record).items():
                yield _row(f"learned, {record.updates:,} updates", world, preset, label, number)


def _game_rows(games: dict[str, list[Played]]) -> Iterator[dict[str, Any]]:
    labels = ("neighbors that cross", "bias of Q / std", "|bias| of quantiles / std", "mean return of playing on")
    for preset, played in games.items():
        for label, values in zip(labels, zip(*played, strict=True), strict=True):
            yield _row("game", GAME, preset, label, mean_interval(np.array(values)))


def _notes(size: Size) -> list[str]:
    notes = [
        f"Learned: {size.seeds} seeds, {size.updates:,} updates, {learned.COUNT} quantiles, κ = 0, a dense layer of "
        f"{learned.WIDTH}. FrozenLake's reward is {learned.LAKE_SCALE:g}, and C51's support twice as wide as needed.",
        "The bias of quantiles includes that of the fixed point, which on FrozenLake with γ = 0.999 is large.",
        "Truncation is seen in evaluation. In control it is to offset the overestimation of the maximum, which is "
        "not there.",
        "IQN is read at midpoints, where nothing is drawn: what QEM does to levels that are is in iqn-variance.",
        "What is read off categories, expectiles and particles by QEM is ours: quantiles of their distributions.",
        "Costs are those of `make bench` on one machine: docs/performance.md.",
    ]
    if size.players:
        notes.append(
            f"{GAME}: {size.game_seeds} agents of each preset after {size.game_steps:,} steps, ε over a "
            f"quarter of them, at up to {size.places} states of the greedy policy with {size.rollouts} games played on "
            "from each. Policies differ, and so do the states."
        )
    return notes


GROUPS = {
    "free": ("qr-dqn", "bootstrapped-qr-dqn", "iqn", "fqf-uniform", "fqf"),
    "cannot cross": MONOTONE,
    "no order": ("cr-dqn", "mmd-dqn"),
    "no quantiles": ("c51", "hl-gauss", "er-dqn", "er-dqn-naive"),
}
"""Representations by their kind, as the figure colors them."""


def _draw(histories: Histories, points: list[exact.FixedPoint], biases: dict[str, dict[int, float]]) -> Figure:
    worlds = list(dict.fromkeys(world for world, _ in histories))
    figure = Figure(figsize=(8.6, 6.4), layout="constrained")
    axes = figure.subplots(2, 1 + len(worlds), squeeze=False)
    for column, world in enumerate(worlds):
        _draw_world(axes[0, column], axes[1, column], world, histories)
        axes[0, column].set_title(world)
    _draw_variances(axes[0, -1], points)
    _draw_truncation(axes[1, -1], biases)
    heading(figure, "What is learned of known returns (left), and what projections do to them (right)")
    return figure


def _draw_world(above: Axes, below: Axes, world: str, histories: Histories) -> None:
    """Above the error of Q, by the own mean and by QEM; below the bias of quantiles, with how often they cross."""
    shown = [preset for each, preset in histories if each == world]
    places = np.arange(len(shown))[::-1]
    colors = {name: look.color for look, group in zip(LOOKS, GROUPS.values(), strict=False) for name in group}
    for place, preset in zip(places, shown, strict=True):
        measures, color = measure(world, histories[world, preset][-1]), colors[preset]
        for axis, name, marker, face in (
            (above, "error of Q (rms) / std", "o", color),
            (above, "error of Q by QEM (rms) / std", "D", "white"),
            (below, "bias of quantiles (rms) / std", "o", color),
        ):
            if name in measures:
                value, low, high = measures[name]
                axis.hlines(place, max(low, 1e-4), high, color=color, lw=1.0)
                axis.plot(value, place, marker, color=color, ms=4, mfc=face, mew=0.8)
        if "neighbors that cross" in measures:
            share = measures["neighbors that cross"].value
            below.text(1.02, place, f"{share:.1%}", transform=below.get_yaxis_transform(), va="center", fontsize=6)
    below.text(1.02, len(shown) - 0.3, "cross", transform=below.get_yaxis_transform(), fontsize=6)
    for axis, label in ((above, "error of Q / std: ● own mean, ◇ QEM"), (below, "bias of quantiles / std")):
        axis.set(xscale="log", xlabel=label, yticks=places)
        axis.set_yticklabels(shown, fontsize=6)
        light_grid(axis, "x")


VARIANCES = (0.3, 0.5, 1.0, 2.0, 3.0)
"""Ticks of the ratios of variances."""


def _draw_variances(axis: Axes, points: list[exact.FixedPoint]) -> None:
    """The variance of fixed points, a point for each process."""
    settings = list(dict.fromkeys((each.representation, each.setting) for each in points))
    for place, (setting, look) in enumerate(zip(settings, _looks(len(settings)), strict=True)):
        values = [each.variance for each in points if (each.representation, each.setting) == setting]
        axis.plot(values, np.full(len(values), -place), "o", color=look, ms=3, alpha=0.6, mew=0)
        axis.plot(np.median(values), -place, "|", color=figures.INK, ms=10)
    axis.set(xscale="log", xlabel="its variance / true variance", yticks=-np.arange(len(settings)))
    axis.set_xticks(VARIANCES, labels=[f"{tick:g}" for tick in VARIANCES])
    axis.set_xticks([], minor=True)
    axis.set_yticklabels([f"{name}, {setting}" for name, setting in settings], fontsize=6)
    axis.axvline(1.0, color=figures.MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)
    axis.set_title("fixed points")


def _looks(count: int) -> list[str]:
    return [LOOKS[1].color] * 3 + [LOOKS[2].color] * 3 + [LOOKS[3].color] * (count - 6)


def _draw_truncation(axis: Axes, biases: dict[str, dict[int, float]]) -> None:
    """The bias of Q by how much is dropped, a line for each process."""
    for name, by_number in biases.items():
        named = name in ("FrozenLake", "chain")
        color = {"FrozenLake": LOOKS[1].color, "chain": LOOKS[2].color}.get(name, figures.MUTED)
        axis.plot([*by_number], [*by_number.values()], marker="o", ms=2.5, color=color, lw=1.4 if named else 0.6)
        if named:
            axis.text(
                exact.DROPPED[-1] + 0.15, by_number[exact.DROPPED[-1]], name, color=color, va="center", fontsize=7
            )
    level_line(axis, 0.0)
    axis.set(xlabel=f"dropped of {exact.TRUNCATED} quantiles", ylabel="bias of Q / std", title="truncation as in TQC")
    axis.set_xlim(right=exact.DROPPED[-1] + 1.6)
