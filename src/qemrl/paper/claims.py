"""What an item of the paper is: something to run, which gives numbers, a figure and verdicts on claims.

A claim's rule is written down with the claim, in the module of its item, and knows nothing of the results: it
compares a measured interval with a threshold.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[str, ...] = get_args(Scale)
"""Seconds, to see that it runs; a minute, for a first answer; the size that results are reported at."""

Verdict = Literal["holds", "fails", "depends"]


@dataclass(frozen=True)
class Claim:
    """A statement that can be right or wrong, and what was measured of it."""

    name: str
    """A word for tables, unique within its item."""

    where: str
    """Where the paper says it; "ours" for statements of this project."""

    statement: str
    """What is claimed, in our words."""

    rule: str
    """What decides, in words."""

    measured: Interval
    """The number that decides, with its 95% interval."""

    meaning: str
    """What the number is, with its unit."""

    verdict: Verdict


def judge(measured: Interval, *, above: float | None = None, below: float | None = None) -> Verdict:
    """`holds` if the interval is on the claimed side of the threshold, `fails` if none of it is, else `depends`."""
    if (above is None) == (below is None):
        raise ValueError("a claim has one threshold: above or below")
    if above is not None:
        holds, fails = measured.low > above, measured.high <= above
    else:
        assert below is not None
        holds, fails = measured.high < below, measured.low >= below
    return "holds" if holds else "fails" if fails else "depends"


@dataclass(frozen=True)
class Result:
    """What running an item gives."""

    rows: list[dict[str, Any]]
    """The numbers, one dictionary a row, all with the same keys."""

    figure: Figure
    """The figure, ready to be saved."""

    claims: list[Claim]
    """The verdicts."""

    notes: list[str] = field(default_factory=list)
    """What a reader should know: what was repaired, left out, approximated."""


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper, or one of our own."""

    name: str
    """The word after `qemrl reproduce`."""

    where: str
    """Its place in the paper, or "ours"."""

    summary: str
    """What it shows, in a line."""

    run: Callable[[Scale, int, Callable[[float], None]], Result]
    """Takes the scale, a seed, and a function to be told the share of the work that is done (0 to 1)."""
