"""The data of the charts that the page's script draws."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from qemrl.experiments import curves
from qemrl.experiments.runs import Cell
from qemrl.report.content import Content
from qemrl.report.distributions import Predicted
from qemrl.report.results import estimate

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


@dataclass(frozen=True)
class LineStyle:
    """How the lines of an algorithm look."""

    color: str
    dark: str
    dash: str
    """Of SVG: the lengths of strokes and gaps; empty for a solid line."""


def looks(arms: Sequence[str]) -> dict[str, LineStyle]:
    """The looks of algorithms, the same as in figures."""
    found = {}
    for arm, (color, line) in curves.line_styles(list(arms)).items():
        dash = "" if isinstance(line, str) else " ".join(f"{2 * length:g}" for length in line[1])
        found[arm] = LineStyle(color, IN_DARK.get(color.lower(), color), dash)
    return found


def curve_charts(content: Content) -> list[dict[str, Any]]:
    """A chart of learning curves for each task that has been evaluated."""
    arms = content.collection.arms
    charts = []
    for env in content.collection.envs:
        cells = [cell for (_, other), cell in content.cells.items() if other == env]
        series = [_curve(arms.index(cell.arm), cell) for cell in cells if cell.curve is not None]
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


def _curve(arm: int, cell: Cell) -> dict[str, Any]:
    assert cell.curve is not None
    kept = _kept(len(cell.curve.steps))
    points = [estimate(samples) for samples in cell.curve.returns[:, kept].T]
    found: dict[str, Any] = {
        "arm": arm,
        "x": cell.curve.steps[kept].tolist(),
        "y": rounded(point.value for point in points),
    }
    ends = [(point.low, point.high) for point in points if point.low is not None and point.high is not None]
    if len(ends) == len(points) and len(cell.curve.seeds) >= curves.LEAST_FOR_BAND:
        found["low"], found["high"] = rounded(low for low, _ in ends), rounded(high for _, high in ends)
    found["thin"] = []
    for run in cell.runs:
        for means in run.evaluations.values():
            steps = sorted(means)
            if steps and (len(cell.curve.seeds) > 1 or len(cell.runs) > 1):
                chosen = [steps[place] for place in _kept(len(steps))]
                found["thin"].append({"x": chosen, "y": rounded(means[step] for step in chosen)})
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
            "x": rounded(aggregates.thresholds),
            "y": rounded(profile.share),
            "stepped": True,
        }
        if profile.low is not None and profile.high is not None:
            line |= {"low": rounded(profile.low), "high": rounded(profile.high)}
        series.append(line)
    label = "Performance profiles: the share of runs above each normalized score"
    axes = {"xLabel": "normalized score", "yLabel": "share of runs above", "at": "above {}", "share": True}
    return {"label": label, "series": series, "yRange": [0, 1.02], "height": 320} | axes


def distribution_charts(predicted: Predicted, arm: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A chart of what an agent expects for each action, and one of what it got, if that was kept."""
    lines = []
    for place, action in enumerate(predicted.actions):
        kept = _kept(len(action.returns))
        x, y = rounded(action.returns[kept]), rounded(action.shares[kept])
        if predicted.kind != "quantiles":  # the first step begins at zero
            x, y = [x[0], *x], [0.0, *y]
        line = {"arm": None, "kind": "other", "x": x, "y": y}
        if place == predicted.best:
            line |= {"arm": arm, "plain": True, "kind": "mean"}
        lines.append(line | {"stepped": predicted.kind != "quantiles"})
    lines.sort(key=lambda line: line["arm"] is not None)  # the preferred one on top
    place = f"{predicted.arm} on {predicted.env}"
    shared = {"yLabel": "share up to", "share": True, "yRange": [0, 1.02], "height": 190}
    left = {"xLabel": "discounted return", "xRange": _widened([value for line in lines for value in line["x"]])}
    expects = {"label": f"What {place} expects", "series": lines} | left | shared
    if not len(predicted.evaluation):
        return expects, None
    values, counts = np.unique(predicted.evaluation, return_counts=True)
    shares = np.cumsum(counts) / len(predicted.evaluation)
    low, high = _widened(values)
    x, y = [low, *rounded(values), high], [0.0, *rounded(shares), 1.0]
    line = {"arm": arm, "plain": True, "stepped": True, "x": x, "y": y}
    right = {"xLabel": "return", "xRange": [low, high]}
    return expects, {"label": f"What {place} got", "series": [line]} | right | shared


def _widened(values: Sequence[float] | Float[np.ndarray, " n"]) -> list[float]:
    """The ends of an axis, a little beyond the values."""
    low, high = float(min(values)), float(max(values))
    margin = 0.06 * (high - low) or 1.0
    return rounded([low - margin, high + margin])


def _kept(count: int) -> list[int]:
    """The points of a line that the page keeps, equally far apart, the first and the last included."""
    if count <= MOST_POINTS:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(int)).tolist()


def rounded(values: Iterable[float]) -> list[float]:
    """Numbers with six digits, which is more than a screen shows."""
    return [float(f"{value:.6g}") for value in values]
