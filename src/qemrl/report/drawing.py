"""What the sections of the page share."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qemrl.report.charts import LineStyle, looks
from qemrl.report.content import Content
from qemrl.report.markup import Html, element

NOTHING = "–"
"""Stands where there is no number."""


@dataclass
class Drawing:
    """What sections share: the content, how algorithms look, and the charts that the script is to draw."""

    content: Content
    charts: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def looks(self) -> dict[str, LineStyle]:
        """How algorithms look, in their order."""
        arms = self.content.collection.arms
        # Figures know only those that have been evaluated; these choose their colors first, to look the same there.
        evaluated = dict.fromkeys(arm for arm, _ in self.content.results.final)
        found = looks([*evaluated, *(arm for arm in arms if arm not in evaluated)])
        return {arm: found[arm] for arm in arms}

    def arm(self, name: str) -> int:
        """The number of an algorithm in the style sheet and in the data."""
        return self.content.collection.arms.index(name)

    def plot(self, chart: dict[str, Any]) -> Html:
        """The place of a chart."""
        self.charts.append(chart)
        return element("div", {"class": "plot", "data-chart": str(len(self.charts) - 1)})

    def named(self, arm: str, against: str = "") -> Html:
        """The name of an algorithm, with a sample of its line, and that of one that is subtracted."""
        return element("span", {"class": "name"}, self.swatch(arm), f"{arm} − {against}" if against else arm)

    def swatch(self, arm: str) -> Html:
        """A sample of an algorithm's line."""
        dash = self.looks[arm].dash
        line = element("path", {"class": "line", "d": "M0 5H26"} | ({"stroke-dasharray": dash} if dash else {}))
        kind = f"swatch arm-{self.arm(arm)}"
        return element("svg", {"class": kind, "width": "26", "height": "10", "aria-hidden": "true"}, line)

    def legend(self) -> list[Html]:
        """A button for each algorithm, which takes it out of all charts and puts it in again."""
        return [
            element("button", button("arm") | {"data-arm": str(self.arm(arm))}, self.swatch(arm), arm)
            for arm in self.content.collection.arms
        ]


def button(kind: str, pressed: bool = True) -> dict[str, str | None]:
    """The attributes of a button that stays pressed."""
    return {"type": "button", "class": kind, "aria-pressed": "true" if pressed else "false"}
