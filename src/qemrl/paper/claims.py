"""What an item of the paper is: something to run, which gives numbers, a figure and verdicts on claims.

A claim's rule is written down with the claim, in the module of its item, and knows nothing of the results: it
compares a measured interval with a threshold.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped
from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval, share_interval

Scale = Literal["smoke", "small", "paper"]
"""Seconds, to see that it runs; a minute, for a first answer; the size that results are reported at."""

Verdict = Literal["holds", "fails", "depends"]

Tick = Callable[[float], None]
"""Told the share of the work that is done, from 0 to 1."""


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


def check_claim(
    name: str,
    where: str,
    statement: str,
    rule: str,
    measured: Interval,
    meaning: str,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Claim:
    """A claim with the verdict of its rule, which is a threshold that the measured number is above or below."""
    return Claim(name, where, statement, rule, measured, meaning, judge(measured, above=above, below=below))


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


def count_share(hits: Shaped[np.ndarray, " n"]) -> Interval:
    """The share of hits, which are true or one, with its interval."""
    return share_interval(int(hits.sum()), len(hits))


def interval_columns(interval: Interval) -> dict[str, float]:
    """An interval as columns of a table."""
    return {end: float(number) for end, number in interval._asdict().items()}


def scale_tick(tick: Tick, start: float, share: float) -> Tick:
    """What tells `tick` of a part of the work, which begins at `start` and is `share` of the whole."""
    return lambda done: tick(start + share * done)


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

    run: Callable[[Scale, int, Tick], Result]
    """Takes the scale, a seed, and what is to be told of progress."""
