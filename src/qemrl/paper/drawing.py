"""What the figures of several items share, from the one style of all figures."""

from qemrl.plotting.style import LOOKS, LineStyle, entry, heading, level_line, light_grid, upright_line

__all__ = ["LOOKS", "LineStyle", "entry", "heading", "level_line", "light_grid", "upright_line"]
