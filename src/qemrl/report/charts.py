"""The data of the charts that the page's script draws, and what the sections of the page share to place them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from qemrl.experiments.runs import Cell
from qemrl.plotting.style import LineStyle, choose_line_styles
from qemrl.report.content import Content
from qemrl.report.markup import Html, button, element
from qemrl.report.predictions import AgentPrediction

MOST_POINTS = 250
"""How many points of a line the page keeps; more could not be told apart."""

IN_DARK = {
    "#0072b2": "#3a97dd",
    "#d55e00": "#f07b2a",
    "#56b4e9": "#8ad3ff",
    "#cc79a7": "#e09cc2",
    "#009e73": "#1fbf92",
    "#222222": "#e6e8ea",
}
"""The colors on a dark background, where some of them would be hard to see."""


@dataclass
class PageBuilder:
    """What sections share: the content, the lines of algorithms, and the charts that the script is to draw."""

    content: Content
    charts: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def styles(self) -> dict[str, LineStyle]:
        """The lines of algorithms, in their order; the same as in figures."""
        arms = self.content.collection.arms
        # Figures know only those that have been evaluated; these choose their colors first, to be the same there.
        evaluated = dict.fromkeys(arm for arm, _ in self.content.results.final)
        found = choose_line_styles([*evaluated, *(arm for arm in arms if arm not in evaluated)])
        return {arm: found[arm] for arm in arms}

    def number(self, arm: str) -> int:
        """The number of an algorithm in the style sheet and in the data."""
        return self.content.collection.arms.index(arm)

    def add_chart(self, chart: dict[str, Any]) -> Html:
        """The place of a chart, which is added to those that the script draws."""
        self.charts.append(chart)
        return element("div", {"class": "plot", "data-chart": str(len(self.charts) - 1)})

    def name(self, arm: str, against: str = "") -> Html:
        """The name of an algorithm, with a sample of its line, and that of one that is subtracted."""
        return element("span", {"class": "name"}, self.swatch(arm), f"{arm} − {against}" if against else arm)

    def swatch(self, arm: str) -> Html:
        """A sample of an algorithm's line."""
        dash = svg_dash(self.styles[arm])
        line = element("path", {"class": "line", "d": "M0 5H26"} | ({"stroke-dasharray": dash} if dash else {}))
        kind = f"swatch arm-{self.number(arm)}"
        return element("svg", {"class": kind, "width": "26", "height": "10", "aria-hidden": "true"}, line)

    def legend(self) -> list[Html]:
        """A button for each algorithm, which takes it out of all charts and puts it in again."""
        return [
            element("button", button("arm") | {"data-arm": str(self.number(arm))}, self.swatch(arm), arm)
            for arm in self.content.collection.arms
        ]


def dark_color(style: LineStyle) -> str:
    """The color of a line on a dark background."""
    return IN_DARK.get(style.color.lower(), style.color)


def svg_dash(style: LineStyle) -> str:
    """The lengths of strokes and gaps of a line in SVG; empty for a solid one."""
    return "" if isinstance(style.line, str) else " ".join(f"{2 * length:g}" for length in style.line[1])


def curve_charts(content: Content) -> list[dict[str, Any]]:
    """A chart of learning curves for each task that has been evaluated."""
    arms = content.collection.arms
    charts = []
    for env in content.collection.envs:
        cells = [cell for (_, other), cell in content.cells.items() if other == env]
        series = [_curve_series(arms.index(cell.arm), cell) for cell in cells if cell.curve is not None]
        if series:
            label = f"Learning curves on {env}: evaluation return over steps; the table of final scores has the ends"
            axes = {"xLabel": "steps", "yLabel": "evaluation return", "at": "step {}", "toggles": True}
            charts.append({"title": env, "label": label, "series": series} | axes)
    return charts


def all_positive(charts: Iterable[dict[str, Any]]) -> bool:
    """Whether returns can have a logarithmic axis."""
    return all(
        value > 0
        for chart in charts
        for series in chart["series"]
        for line in (series, *series["thin"])
        for value in line["y"]
    )


def _curve_series(arm: int, cell: Cell) -> dict[str, Any]:
    assert cell.curve is not None
    curve = cell.curve
    kept = _thin(len(curve.steps))
    found: dict[str, Any] = {
        "arm": arm,
        "x": curve.steps[kept].tolist(),
        "y": round_digits(curve.returns[:, kept].mean(0)),
    }
    if curve.band is not None:
        found["low"], found["high"] = (round_digits(ends[kept]) for ends in curve.band)
    found["thin"] = []
    for run in cell.runs:
        for means in run.evaluations.values():
            steps = sorted(means)
            if steps and (len(curve.seeds) > 1 or len(cell.runs) > 1):
                chosen = [steps[place] for place in _thin(len(steps))]
                found["thin"].append({"x": chosen, "y": round_digits(means[step] for step in chosen)})
    return found


def profile_chart(content: Content) -> dict[str, Any] | None:
    """The chart of performance profiles, if there are any."""
    aggregates = content.results.aggregates
    if aggregates is None:
        return None
    series = []
    for arm, profile in aggregates.profiles.items():
        place = content.collection.arms.index(arm)
        line: dict[str, Any] = {
            "arm": place,
            "x": round_digits(aggregates.thresholds),
            "y": round_digits(profile.share),
            "stepped": True,
        }
        if profile.bounded:
            line |= {"low": round_digits(profile.low), "high": round_digits(profile.high)}
        series.append(line)
    label = "Performance profiles: the share of runs above each normalized score"
    axes = {"xLabel": "normalized score", "yLabel": "share of runs above", "at": "above {}", "share": True}
    return {"label": label, "series": series, "yRange": [0, 1.02], "height": 320} | axes


def distribution_charts(predicted: AgentPrediction, arm: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A chart of what an agent expects for each action, and one of what it got, if that was kept."""
    lines = []
    for place, action in enumerate(predicted.actions):
        kept = _thin(len(action.returns))
        x, y = round_digits(action.returns[kept]), round_digits(action.shares[kept])
        if predicted.kind != "quantiles":  # the first step begins at zero
            x, y = [x[0], *x], [0.0, *y]
        line = {"arm": None, "kind": "other", "x": x, "y": y}
        if place == predicted.best:
            line |= {"arm": arm, "plain": True, "kind": "mean"}
        lines.append(line | {"stepped": predicted.kind != "quantiles"})
    lines.sort(key=lambda line: line["arm"] is not None)  # the preferred one on top
    place = f"{predicted.arm} on {predicted.env}"
    shared = {"yLabel": "share up to", "share": True, "yRange": [0, 1.02], "height": 190}
    left = {"xLabel": "discounted return", "xRange": _widen([value for line in lines for value in line["x"]])}
    expects = {"label": f"What {place} expects", "series": lines} | left | shared
    if not len(predicted.evaluation):
        return expects, None
    values, counts = np.unique(predicted.evaluation, return_counts=True)
    shares = np.cumsum(counts) / len(predicted.evaluation)
    low, high = _widen(values)
    x, y = [low, *round_digits(values), high], [0.0, *round_digits(shares), 1.0]
    line = {"arm": arm, "plain": True, "stepped": True, "x": x, "y": y}
    right = {"xLabel": "return", "xRange": [low, high]}
    return expects, {"label": f"What {place} got", "series": [line]} | right | shared


def _widen(values: Sequence[float] | Float[np.ndarray, " n"]) -> list[float]:
    """The ends of an axis, a little beyond the values."""
    low, high = float(min(values)), float(max(values))
    margin = 0.06 * (high - low) or 1.0
    return round_digits([low - margin, high + margin])


def _thin(count: int) -> list[int]:
    """The points of a line that the page keeps, equally far apart, the first and the last included."""
    if count <= MOST_POINTS:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(int)).tolist()


def round_digits(values: Iterable[float]) -> list[float]:
    """Numbers with six digits, which is more than a screen shows."""
    return [float(f"{value:.6g}") for value in values]
