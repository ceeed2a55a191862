"""Numbers as readers see them, on the page and in the figures."""

import math

from qemrl.report.results import Estimate


def number(value: float, scale: float | None = None) -> str:
    """A number with about three digits of what is as large as `scale`, by default of its own size."""
    size = abs(value if scale is None else scale)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}"
    return (text if float(text.replace(",", "")) else text.lstrip("-")).replace("-", "−")


def interval(estimate: Estimate, scale: float) -> str:
    """The ends of an interval in brackets; nothing if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{number(estimate.low, scale)}, {number(estimate.high, scale)}]"


def steps(count: float) -> str:
    """A number of steps: 250k, 1.5M."""
    if math.isinf(count):
        return "∞"
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return f"{count:g}"


def hours(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
