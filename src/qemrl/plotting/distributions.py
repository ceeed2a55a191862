"""Return distributions along an episode, as records and drawn: what an agent expects, with Q by the mean and by QEM.

Where actions are discrete there is a distribution for each of them; where they are continuous there is one action, the
policy's, and a distribution by each critic. Both are called curves here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qemrl.plotting import style

PALETTE = (*(style.COLORS[name] for name in ("blue", "orange", "green", "purple", "sky")), style.INK)
"""The colors of curves; if there are more actions, those that are chosen least share the gray."""

Frame = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class StepPrediction:
    """What the agent expects at one step of an episode, for each curve."""

    step: int
    chosen: int
    """The curve of the action that was chosen; of critics the one that expects least."""

    frame: Frame | None
    levels: Float[np.ndarray, "curves n"]
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
    """`quantiles`, other `values` at levels, `categorical`, or `scalar` (an agent without return distributions)."""

    curves: tuple[str, ...]
    """What each curve is called."""

    q: Float[np.ndarray, "steps actions"]
    """As the agent itself estimates it; one for continuous actions."""

    actions: Int[np.ndarray, " steps"] | Float[np.ndarray, "steps components"]
    rewards: Float[np.ndarray, " steps"]
    predictions: list[StepPrediction]
    note: str
    """Why there are no frames; empty if there are."""


def draw_episode(episode: Episode) -> Figure:
    """Frames, return distributions below them, then Q of each action and the actions over the episode."""
    colors = choose_colors(episode)
    predictions, scalar = episode.predictions, episode.kind == "scalar"
    actions = 0.16 if episode.actions.ndim == 1 else 0.8
    has_frames = any(prediction.frame is not None for prediction in predictions)
    heights = {"frame": 0.85 * has_frames, "dist": 0.0 if scalar else 1.7, "q": 1.15, "actions": actions}
    rows = [name for name, height in heights.items() if height]
    with mpl.rc_context(style.STYLE):
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
        style.heading(figure, episode.title)
    return figure


def choose_colors(episode: Episode) -> dict[int, str]:
    """The color of each curve; where there are too many, those of the actions chosen least are gray."""
    actions = range(len(episode.curves))
    often: Counter[int] = Counter(episode.actions.tolist() if episode.actions.ndim == 1 else [])
    ranked = sorted(actions, key=lambda action: (-often[action], action))[: len(PALETTE)]
    colored = dict(zip(sorted(ranked), PALETTE, strict=False))
    return {action: colored.get(action, style.MUTED) for action in actions}


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
        return f"{place}{curves[action]}: Q {format_q(prediction.q_mean[action])}"
    fit = f"R² {prediction.r_squared[action]:.3f}, crossing {prediction.crossing_rate[action]:.0%}"
    return (
        f"{place}{curves[action]}, {fit}\n"
        f"Q {format_q(prediction.q_mean[action])} mean, {format_q(prediction.q_qem[action])} QEM"
    )


def format_q(value: float) -> str:
    """A number with three decimals, fewer where it is large."""
    return f"{value:.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3}f}"


def _draw_distribution(axis: Axes, prediction: StepPrediction, colors: dict[int, str], column: int) -> None:
    # The chosen action comes last, and so on top.
    order = sorted(colors, key=lambda action: (action == prediction.chosen, colors[action] != style.MUTED))
    for action in order:
        width = 1.4 if action == prediction.chosen else 0.7
        if prediction.probs is not None:
            axis.step(prediction.values[action], prediction.probs[action], where="mid", color=colors[action], lw=width)
            axis.axvline(prediction.q_mean[action], color=colors[action], lw=width / 2, ls=(0, (2, 2)))
            continue
        levels = prediction.levels[action]
        axis.plot(levels, prediction.values[action], ".", color=colors[action], ms=4.5, alpha=0.5, mew=0)
        if prediction.fit is not None:
            axis.plot(levels, prediction.fit[action], color=colors[action], lw=width)
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
        axis.grid(axis="y", lw=0.3, color=style.MUTED, alpha=0.4)


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
        colors = {0: style.INK}
    for action in sorted(colors, key=lambda action: colors[action] != style.MUTED):
        marker = "o" if len(steps) == 1 else None
        axis.plot(steps, episode.q[:, action], color=colors[action], lw=0.9, marker=marker, ms=3)
    for number, prediction in enumerate(episode.predictions, 1):
        axis.axvline(prediction.step, color=style.MUTED, lw=0.7, ls=(0, (3, 3)), zorder=0)
        above = axis.get_xaxis_transform()
        axis.text(prediction.step, 1.02, str(number), transform=above, ha="center", fontsize=7, color=style.INK)
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
    named = [action for action, color in colors.items() if color != style.MUTED]
    handles = [Line2D([], [], color=colors[action], lw=2, label=episode.curves[action]) for action in named]
    if len(named) < len(colors):
        handles.append(Line2D([], [], color=style.MUTED, lw=2, label="other actions"))
    if episode.kind == "quantiles":
        handles.append(Line2D([], [], marker=".", label="quantiles (line: QEM fit)", color=style.INK, ls=""))
        handles.append(Line2D([], [], marker="o", mfc="white", ms=4, label="Q by the mean", color=style.INK, ls=""))
        handles.append(Line2D([], [], marker="D", ms=3.4, label="Q by QEM", color=style.INK, ls=""))
    if episode.kind == "values":
        handles.append(Line2D([], [], marker=".", label="values by level", color=style.INK, ls=""))
        handles.append(Line2D([], [], marker="o", mfc="white", ms=4, label="Q", color=style.INK, ls=""))
    if episode.kind == "categorical":
        handles.append(Line2D([], [], color=style.INK, lw=0.9, ls=(0, (2, 2)), label="Q"))
    return handles
