"""The look of every figure: colors, line styles, labels, and the one way to save it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK = "#222222"
MUTED = "#8a8a8a"
COLORS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "purple": "#cc79a7", "sky": "#56b4e9"}
"""Okabe and Ito's colors, which readers with any color vision can tell apart."""

STYLE: Any = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "svg.hashsalt": "qemrl",
    "svg.fonttype": "none",
}

PRESET_COLORS = {
    "qr-dqn": COLORS["blue"],
    "qem-dqn": COLORS["orange"],
    "iqn": COLORS["sky"],
    "iqem-dqn": COLORS["purple"],
    "c51": COLORS["green"],
    "dqn": INK,
}
"""A preset has the same color in every figure."""

LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
"""Line styles, by the order of the labels: curves can also be told apart in gray."""

LONGEST_LABEL = 24
"""The longest label in figures, in characters."""


class LineStyle(NamedTuple):
    """A color, a marker and a line style: any one of them tells series apart, also in gray."""

    color: str
    marker: str
    line: str | tuple = "-"


LOOKS: tuple[LineStyle, ...] = (
    LineStyle(INK, "o", "-"),
    LineStyle(COLORS["blue"], "s", "--"),
    LineStyle(COLORS["orange"], "^", "-."),
    LineStyle(COLORS["green"], "D", ":"),
    LineStyle(COLORS["purple"], "v", "--"),
    LineStyle(COLORS["sky"], "P", "-"),
)
"""As many styles as the paper's figures have series."""


def choose_line_styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """The style of each label's line, without markers; presets have their own colors, others what is left."""
    free = [color for color in PRESET_COLORS.values() if color not in {PRESET_COLORS.get(label) for label in labels}]
    styles: dict[str, LineStyle] = {}
    for place, label in enumerate(labels):
        color = PRESET_COLORS.get(label) or (
            free.pop(0) if free else list(PRESET_COLORS.values())[place % len(PRESET_COLORS)]
        )
        styles[label] = LineStyle(color, "", LINES[place % len(LINES)])
    return styles


def shorten_labels(names: Iterable[str]) -> dict[str, str]:
    """Names as figures can have them: not too long, without signs that cannot be drawn, and still all different."""
    found: dict[str, str] = {}
    for name in names:
        plain = "".join(sign if sign.isprintable() else " " for sign in name)
        short = plain if len(plain) <= LONGEST_LABEL else f"{plain[: LONGEST_LABEL - 1]}…"
        label = short.replace("$", r"\$")  # what stands between two of them would be taken for a formula
        others = sum(other.startswith(label) for other in found.values()) if label in found.values() else 0
        found[name] = f"{label} ({others + 1})" if others else label
    return found


def format_steps(count: float) -> str:
    """A number of steps: 250k, 1.5M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if abs(count) >= size:
            return f"{count / size:.4g}{unit}"
    return f"{count:g}"


def entry(look: LineStyle, label: str) -> Line2D:
    """A line of a legend."""
    return Line2D([], [], color=look.color, marker=look.marker, ls=look.line, ms=4, label=label)


def level_line(axis: Axes, value: float) -> None:
    """A horizontal line behind the data, at the value that they are compared with."""
    axis.axhline(value, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)


def upright_line(axis: Axes, value: float) -> None:
    """A vertical line behind the data, at the value that they are compared with."""
    axis.axvline(value, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)


def light_grid(axis: Axes, direction: Literal["x", "y", "both"]) -> None:
    """Thin grid lines behind the data, for reading values along the axis `direction`."""
    axis.grid(axis=direction, lw=0.3, color=MUTED, alpha=0.5)
    axis.set_axisbelow(True)


def heading(figure: Figure, text: str) -> None:
    """A line above all panels."""
    figure.suptitle(text, fontsize=9, color=INK)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as PNG and SVG; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with mpl.rc_context(STYLE):
        figure.savefig(paths[0], dpi=200, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths
