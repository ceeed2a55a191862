"""Return distributions along an episode: what an agent expects, and what the mean and QEM make of it.

Where actions are discrete there is a distribution for each of them; where they are continuous there is one action, the
policy's, and a distribution by each critic. Both are called curves here.
"""

import contextlib
import csv
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.api import TrainableAgent
from qemrl.distributional.representations import Categorical, FixedQuantiles, ImplicitQuantiles
from qemrl.estimators import QEM, EmpiricalMean, crossing_rate, r_squared
from qemrl.experiments.episodes import CannotDrawError, Frame, Moment, play_episode
from qemrl.plotting import style as figures

MOST_CANDIDATES = 64
"""Of how many steps the observation is kept; an episode of Atari would else fill the memory."""

PALETTE = (*(figures.COLORS[name] for name in ("blue", "orange", "green", "purple", "sky")), figures.INK)
"""The colors of curves; if there are more actions, those that are chosen least share the gray."""


@dataclass(frozen=True)
class StepPrediction:
    """What the agent expects at one step of an episode, for each curve."""

    step: int
    chosen: int
    """The curve of the action that was chosen; of critics the one that expects least."""

    frame: Frame | None
    levels: Float[np.ndarray, "*curves n"]
    values: Float[np.ndarray, "curves n"]
    probs: Float[np.ndarray, "curves n"] | None
    """Of each value, where they are not all alike (C51)."""

    q_mean: Float[np.ndarray, " curves"]
    q_qem: Float[np.ndarray, " curves"] | None
    """QEM and what follows are for quantiles only."""

    fit: Float[np.ndarray, "curves n"] | None
    """The quantile function that QEM fitted, at the levels."""

    r_squared: Float[np.ndarray, " curves"] | None
    crossing_rate: Float[np.ndarray, " curves"] | None


@dataclass(frozen=True)
class Episode:
    """An episode, with a closer look at some of its steps."""

    title: str
    kind: str
    """`quantiles`, `categorical`, or `scalar` (an agent without return distributions)."""

    curves: tuple[str, ...]
    """What each curve is called."""

    q: Float[np.ndarray, "steps actions"]
    """As the agent itself estimates it; one for continuous actions."""

    actions: Int[np.ndarray, " steps"] | Float[np.ndarray, "steps components"]
    rewards: Float[np.ndarray, " steps"]
    predictions: list[StepPrediction]
    note: str
    """Why there are no frames; empty if there are."""


def watch(agent: TrainableAgent, seed: int, predictions: int = 5) -> Episode:
    """One evaluation episode, with so many predictions at steps equally far apart, the first and the last included."""
    if predictions < 1:
        raise ValueError(f"there must be at least one prediction, got {predictions}")
    note = ""
    try:
        log, candidates = _collect(play_episode(agent, seed, render=True), max(MOST_CANDIDATES, 2 * predictions))
    except CannotDrawError as error:
        note = str(error)
        log, candidates = _collect(play_episode(agent, seed, render=False), max(MOST_CANDIDATES, 2 * predictions))
    wanted = np.linspace(0, len(log) - 1, min(predictions, len(log)))
    chosen = sorted({min(candidates, key=lambda step: abs(step - place)) for place in wanted.tolist()})
    looks = [_glance(agent, step, candidates[step]) for step in chosen]
    rewards = np.array([reward for _, _, reward in log], np.float64)
    config = agent.config
    title = f"{config.preset} on {config.env}, seed {config.seed}: an episode of {len(log)} steps, "
    return Episode(
        title + f"return {rewards.sum():g}",
        kind_of(agent),
        _names(agent),
        np.array([q for q, _, _ in log], np.float64),
        np.array([action for _, action, _ in log]),
        rewards,
        looks,
        note,
    )


def _names(agent: TrainableAgent) -> tuple[str, ...]:
    config = agent.config.agent
    if isinstance(config, ActorCriticConfig):
        return tuple(f"critic {number + 1}" for number in range(config.ensemble.size))
    return tuple(f"action {number}" for number in range(agent.spec.num_actions))


def kind_of(agent: TrainableAgent) -> str:
    """What the agent's return distributions are: `quantiles`, `categorical`, or `scalar` for none."""
    match agent.config.agent.representation:
        case FixedQuantiles() | ImplicitQuantiles():
            return "quantiles"
        case Categorical():
            return "categorical"
        case _:
            return "scalar"


def _collect(
    moments: Generator[Moment, None, None], most: int
) -> tuple[list[tuple[np.ndarray, Any, float]], dict[int, Moment]]:
    """Q, action and reward of each step, and the moments of at most `most` steps, equally far apart, and the last."""
    log: list[tuple[np.ndarray, Any, float]] = []
    kept: dict[int, Moment] = {}
    every, last = 1, None
    with contextlib.closing(moments) as steps:
        for step, moment in enumerate(steps):
            log.append((moment.q, moment.action, moment.reward))
            if step % every == 0:
                kept[step] = moment
            if len(kept) == most:
                every *= 2
                kept = {at: other for at, other in kept.items() if at % every == 0}
            last = moment
    assert last is not None  # an episode has a step
    return log, kept | {len(log) - 1: last}


def _glance(agent: TrainableAgent, step: int, moment: Moment) -> StepPrediction:
    dist = agent.predict_distribution(moment.observation)
    values, levels = np.asarray(dist.values, np.float64), np.asarray(dist.levels, np.float64)
    if agent.spec.box is not None:  # the critics, which share their levels, are pooled there
        values, levels = values.reshape(len(_names(agent)), -1), levels.reshape(len(_names(agent)), -1)[0]
    chosen = moment.action if isinstance(moment.action, int) else int(values.mean(-1).argmin())
    shared = (step, chosen, moment.frame, levels, values)
    if dist.probs is not None:
        probs = np.asarray(dist.probs, np.float64)
        probs = probs / probs.sum(-1, keepdims=True)
        return StepPrediction(*shared, probs, (probs * values).sum(-1), None, None, None, None)
    mean, count = np.asarray(EmpiricalMean().mean(values, levels)), values.shape[-1]
    if kind_of(agent) == "scalar" or count < 2:
        return StepPrediction(*shared, None, mean, None, None, None, None)
    own = agent.config.agent.estimator
    qem = own.with_fixed_variance if isinstance(own, QEM) else QEM(order=min(4, count))
    with np.errstate(divide="ignore", invalid="ignore"):  # all quantiles alike: R² is then undefined
        share = np.asarray(r_squared(qem, values, levels))
    crossing = np.asarray(crossing_rate(values, levels))
    fit, estimate = np.asarray(qem.fit(values, levels)), np.asarray(qem.mean(values, levels))
    return StepPrediction(*shared, None, mean, estimate, fit, share, crossing)


def draw(episode: Episode) -> Figure:
    """Frames, return distributions below them, then Q of each action and the actions over the episode."""
    colors = _colors(episode)
    predictions, scalar = episode.predictions, episode.kind == "scalar"
    actions = 0.16 if episode.actions.ndim == 1 else 0.8
    has_frames = any(prediction.frame is not None for prediction in predictions)
    heights = {"frame": 0.85 * has_frames, "dist": 0.0 if scalar else 1.7, "q": 1.15, "actions": actions}
    rows = [name for name, height in heights.items() if height]
    with mpl.rc_context(figures.STYLE):
        size = (0.8 + 1.95 * max(len(predictions), 4), 1.0 + 1.35 * sum(heights.values()))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(len(rows), len(predictions), height_ratios=[heights[name] for name in rows])
        for column, prediction in enumerate(predictions):
            if has_frames:
                _draw_frame(figure.add_subplot(grid[rows.index("frame"), column]), prediction, column + 1)
            if not scalar:
                panel = figure.add_subplot(grid[rows.index("dist"), column])
                _draw_distribution(panel, prediction, colors, column)
                panel.set_title(_panel_title(prediction, column + 1, has_frames, episode.curves), fontsize=7.5)
        below = figure.add_subplot(grid[rows.index("q"), :])
        _draw_q(below, episode, colors)
        _draw_actions(figure.add_subplot(grid[rows.index("actions"), :], sharex=below), episode, colors)
        figure.legend(handles=_handles(episode, colors), loc="outside lower center", ncols=8, fontsize=7)
        figure.suptitle(episode.title, fontsize=9, color=figures.INK)
    return figure


def _colors(episode: Episode) -> dict[int, str]:
    """The color of each curve; where there are too many, those of the actions chosen least are gray."""
    actions = range(len(episode.curves))
    often: Counter[int] = Counter(episode.actions.tolist() if episode.actions.ndim == 1 else [])
    ranked = sorted(actions, key=lambda action: (-often[action], action))[: len(PALETTE)]
    colored = dict(zip(sorted(ranked), PALETTE, strict=False))
    return {action: colored.get(action, figures.MUTED) for action in actions}


def _draw_frame(axis: Axes, prediction: StepPrediction, number: int) -> None:
    if prediction.frame is not None:
        axis.imshow(prediction.frame, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[["top", "right"]].set_visible(True)
    axis.set_title(f"{number}: step {prediction.step}", fontsize=8)


def _panel_title(prediction: StepPrediction, number: int, has_frames: bool, curves: Sequence[str]) -> str:
    action = prediction.chosen
    place = "" if has_frames else f"{number}: step {prediction.step}\n"
    if prediction.q_qem is None or prediction.r_squared is None or prediction.crossing_rate is None:
        return f"{place}{curves[action]}: Q {rounded(prediction.q_mean[action])}"
    return (
        f"{place}{curves[action]}, R² {prediction.r_squared[action]:.3f}, crossing {prediction.crossing_rate[action]:.0%}\n"
        f"Q {rounded(prediction.q_mean[action])} mean, {rounded(prediction.q_qem[action])} QEM"
    )


def rounded(value: float) -> str:
    """A number with three decimals, fewer where it is large."""
    return f"{value:.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3}f}"


def _draw_distribution(axis: Axes, prediction: StepPrediction, colors: dict[int, str], column: int) -> None:
    # The chosen action comes last, and so on top.
    order = sorted(colors, key=lambda action: (action == prediction.chosen, colors[action] != figures.MUTED))
    for action in order:
        width = 1.4 if action == prediction.chosen else 0.7
        if prediction.probs is not None:
            axis.step(prediction.values[action], prediction.probs[action], where="mid", color=colors[action], lw=width)
            axis.axvline(prediction.q_mean[action], color=colors[action], lw=width / 2, ls=(0, (2, 2)))
            continue
        axis.plot(prediction.levels, prediction.values[action], ".", color=colors[action], ms=4.5, alpha=0.5, mew=0)
        if prediction.fit is not None:
            axis.plot(prediction.levels, prediction.fit[action], color=colors[action], lw=width)
        axis.plot(1.05, prediction.q_mean[action], "o", color=colors[action], mfc="white", ms=4, mew=0.9, clip_on=False)
        if prediction.q_qem is not None:
            axis.plot(1.13, prediction.q_qem[action], "D", color=colors[action], ms=3.4, clip_on=False)
    if prediction.probs is not None:
        _limit_to_mass(axis, prediction)
        axis.set_xlabel("return")
        axis.set_ylabel("probability" if column == 0 else "")
    else:
        axis.set_xlim(0, 1.17)
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axis.set_xlabel("level τ")
        axis.set_ylabel("return" if column == 0 else "")
        axis.grid(axis="y", lw=0.3, color=figures.MUTED, alpha=0.4)


def _limit_to_mass(axis: Axes, prediction: StepPrediction) -> None:
    """Leave out atoms at both ends that have next to no probability."""
    assert prediction.probs is not None
    atoms = prediction.values[0]
    held = np.flatnonzero(prediction.probs.max(0) > 0.002)
    margin = 2 * (atoms[1] - atoms[0])
    axis.set_xlim(atoms[held[0]] - margin, atoms[held[-1]] + margin)


def _draw_q(axis: Axes, episode: Episode, colors: dict[int, str]) -> None:
    steps = np.arange(len(episode.q))
    if episode.actions.ndim == 2:
        colors = {0: figures.INK}
    for action in sorted(colors, key=lambda action: colors[action] != figures.MUTED):
        marker = "o" if len(steps) == 1 else None
        axis.plot(steps, episode.q[:, action], color=colors[action], lw=0.9, marker=marker, ms=3)
    for number, prediction in enumerate(episode.predictions, 1):
        axis.axvline(prediction.step, color=figures.MUTED, lw=0.7, ls=(0, (3, 3)), zorder=0)
        above = axis.get_xaxis_transform()
        axis.text(prediction.step, 1.02, str(number), transform=above, ha="center", fontsize=7, color=figures.INK)
    axis.set_ylabel("Q")
    axis.set_xlim(-0.5, len(steps) - 0.5)
    axis.tick_params(labelbottom=False)


def _draw_actions(axis: Axes, episode: Episode, colors: dict[int, str]) -> None:
    """The chosen action of each step, as a ribbon; the components of continuous ones as lines."""
    axis.set_xlabel("step of the episode")
    if episode.actions.ndim == 2:
        axis.plot(episode.actions, lw=0.6)
        axis.set_ylabel("action")
        return
    ribbon = np.array([to_rgb(colors[action]) for action in episode.actions.tolist()])[None]
    length = len(episode.actions)
    axis.imshow(ribbon, aspect="auto", extent=(-0.5, length - 0.5, 0, 1), interpolation="nearest")
    axis.set_yticks([])
    axis.set_ylabel("chosen", rotation=0, ha="right", va="center", fontsize=7)


def _handles(episode: Episode, colors: dict[int, str]) -> list[Line2D]:
    named = [action for action, color in colors.items() if color != figures.MUTED]
    handles = [Line2D([], [], color=colors[action], lw=2, label=episode.curves[action]) for action in named]
    if len(named) < len(colors):
        handles.append(Line2D([], [], color=figures.MUTED, lw=2, label="other actions"))
    if episode.kind == "quantiles":
        handles.append(Line2D([], [], marker=".", label="quantiles (line: QEM fit)", color=figures.INK, ls=""))
        handles.append(Line2D([], [], marker="o", mfc="white", ms=4, label="Q by the mean", color=figures.INK, ls=""))
        handles.append(Line2D([], [], marker="D", ms=3.4, label="Q by QEM", color=figures.INK, ls=""))
    if episode.kind == "categorical":
        handles.append(Line2D([], [], color=figures.INK, lw=0.9, ls=(0, (2, 2)), label="Q"))
    return handles


def write(episode: Episode, folder: Path) -> list[Path]:
    """Save the figure, the steps (data.csv) and the distributions (distributions.csv); the paths are returned."""
    paths = figures.save(draw(episode), folder, "figure")
    steps = folder / "data.csv"
    columns = [f"q_{action}" for action in range(episode.q.shape[1])] if episode.actions.ndim == 1 else ["q"]
    components = episode.actions.reshape(len(episode.actions), -1).tolist()
    named = ["action"] if episode.actions.ndim == 1 else [f"action_{number}" for number in range(len(components[0]))]
    rows = enumerate(zip(components, episode.rewards.tolist(), episode.q.tolist(), strict=True))
    _write_csv(steps, ["step", *named, "reward", *columns], [[at, *a, r, *q] for at, (a, r, q) in rows])
    if episode.kind == "scalar":
        return [*paths, steps]
    table = folder / "distributions.csv"
    curve = "action" if episode.actions.ndim == 1 else "critic"
    header = ["step", "chosen", curve, "level", "value", "prob", "qem_fit"]
    _write_csv(table, header, [row for prediction in episode.predictions for row in _long(prediction)])
    return [*paths, steps, table]


def _long(prediction: StepPrediction) -> Iterator[list]:
    count = prediction.values.shape[-1]
    levels = np.broadcast_to(prediction.levels, prediction.values.shape)
    probs = np.full(prediction.values.shape, 1 / count) if prediction.probs is None else prediction.probs
    for action, index in np.ndindex(prediction.values.shape):
        fit = "" if prediction.fit is None else float(prediction.fit[action, index])
        numbers = [float(array[action, index]) for array in (levels, prediction.values, probs)]
        yield [prediction.step, prediction.chosen, action, *numbers, fit]


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
