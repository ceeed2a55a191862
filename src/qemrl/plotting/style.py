"""The look of every figure, and the one way to save it."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#222222"
MUTED = "#8a8a8a"
COLORS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "purple": "#cc79a7", "sky": "#56b4e9"}
"""Okabe and Ito's colors, which readers with any color vision tell apart."""

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


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `figure` as PNG and SVG; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with mpl.rc_context(STYLE):
        figure.savefig(paths[0], dpi=200, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths
