"""What the figures of several items share: how series look, and the line that a measure is compared with."""

from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qemrl.plotting import style as figures


class LineStyle(NamedTuple):
    """A color, a marker and a line style: any one of them tells series apart, also in gray."""

    color: str
    marker: str
    line: str = "-"


LOOKS: tuple[LineStyle, ...] = (
    LineStyle(figures.INK, "o", "-"),
    LineStyle(figures.COLORS["blue"], "s", "--"),
    LineStyle(figures.COLORS["orange"], "^", "-."),
    LineStyle(figures.COLORS["green"], "D", ":"),
    LineStyle(figures.COLORS["purple"], "v", "--"),
    LineStyle(figures.COLORS["sky"], "P", "-"),
)
"""As many looks as there are distributions."""


def entry(look: LineStyle, label: str) -> Line2D:
    """A line of a legend."""
    return Line2D([], [], color=look.color, marker=look.marker, ls=look.line, ms=4, label=label)


def level_line(axis: Axes, value: float) -> None:
    """A horizontal line behind the data, at the value that they are compared with."""
    axis.axhline(value, color=figures.MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)


def upright_line(axis: Axes, value: float) -> None:
    """A vertical line behind the data, at the value that they are compared with."""
    axis.axvline(value, color=figures.MUTED, lw=0.8, ls=(0, (4, 3)), zorder=0)


def light_grid(axis: Axes, direction: Literal["x", "y"]) -> None:
    """Thin grid lines behind the data, for reading values along the axis `direction`."""
    axis.grid(axis=direction, lw=0.3, color=figures.MUTED, alpha=0.5)
    axis.set_axisbelow(True)


def heading(figure: Figure, text: str) -> None:
    """A line above all panels."""
    figure.suptitle(text, fontsize=9, color=figures.INK)
