"""Numbers with their uncertainty."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from scipy import special

from qemrl.estimators.backend import Array


class Interval(NamedTuple):
    """An estimate with the ends of its 95% confidence interval; exact numbers have both ends at the estimate."""

    value: float
    low: float
    high: float

    @staticmethod
    def exact(value: float) -> "Interval":
        """A number that is not an estimate."""
        return Interval(float(value), float(value), float(value))

    @staticmethod
    def unbounded(value: float) -> "Interval":
        """An estimate from a single run, which shows nothing of its uncertainty."""
        return Interval(float(value), -math.inf, math.inf)

    @property
    def bounded(self) -> bool:
        """Whether the uncertainty is known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def excludes(self, value: float) -> bool:
        """Whether the value lies outside of the interval."""
        return not self.low <= value <= self.high

    @property
    def verdict(self) -> str:
        """What the interval of a difference shows, in words."""
        if not self.bounded:
            return "one seed shows nothing"
        if not self.excludes(0.0):
            return "no significant difference"
        return "higher" if self.value > 0 else "lower"

    def format_ends(self, spec: str = ".4g") -> str:
        """The ends in brackets, each in the format `spec`; nothing if they are not known."""
        return f"[{self.low:{spec}}, {self.high:{spec}}]" if self.bounded else ""

    def __str__(self) -> str:
        ends = "" if self.low == self.high else self.format_ends()
        return f"{self.value:.4g} {ends}".rstrip()


def mean_interval(samples: Float[Array, " n"]) -> Interval:
    """The mean of independent samples with Student's interval, which is unbounded for a single one."""
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 1 or not len(samples):
        raise ValueError(f"an interval needs a list of at least one sample, got the shape {samples.shape}")
    mean = float(samples.mean())
    if len(samples) == 1:
        return Interval.unbounded(mean)
    reach = float(special.stdtrit(len(samples) - 1, 0.975) * samples.std(ddof=1) / math.sqrt(len(samples)))
    return Interval(mean, mean - reach, mean + reach)


def share_interval(hits: int, trials: int) -> Interval:
    """The share of hits among independent trials with Wilson's interval."""
    if not 0 <= hits <= trials or trials < 1:
        raise ValueError(f"got {hits} hits in {trials} trials")
    z = float(special.ndtri(0.975))
    share = hits / trials
    center = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    low, high = max(0.0, center - reach), min(1.0, center + reach)
    return Interval(share, 0.0 if hits == 0 else low, 1.0 if hits == trials else high)


def ratio_of_variances_interval(first: Float[Array, " n"], second: Float[Array, " n"]) -> Interval:
    """Var(first) / Var(second) of paired samples, with the interval of a jackknife on its logarithm."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (first, second))
    if first.shape != second.shape or first.ndim != 1 or len(first) < 3:
        raise ValueError(f"got samples of the shapes {first.shape} and {second.shape}; at least three pairs are needed")
    count = len(first)

    def leave_one_out(samples: np.ndarray) -> np.ndarray:
        centered = samples - samples.mean()
        return (centered**2).sum() - centered**2 * count / (count - 1)

    pseudo = np.log(leave_one_out(first)) - np.log(leave_one_out(second))
    error = math.sqrt((count - 1) / count * ((pseudo - pseudo.mean()) ** 2).sum())
    value = first.var() / second.var()
    reach = float(special.stdtrit(count - 1, 0.975)) * error
    return Interval(float(value), float(value * math.exp(-reach)), float(value * math.exp(reach)))


def jackknife_interval(measure: Callable[..., float], *samples: Shaped[Array, "n ..."]) -> Interval:
    """A number computed from independent samples, with the interval of leaving out one at a time.

    Args:
        measure: From arrays whose first axis is that of the samples to a number that is smooth in their averages.
        samples: Arrays of at least three samples; samples at the same place belong together.
    """
    count = len(samples[0])
    if count < 3:
        raise ValueError(f"at least three samples are needed, got {count}")
    value = measure(*samples)
    others = np.array([measure(*(np.delete(each, k, axis=0) for each in samples)) for k in range(count)])
    error = math.sqrt((count - 1) / count * float(((others - others.mean()) ** 2).sum()))
    reach = float(special.stdtrit(count - 1, 0.975)) * error
    return Interval(float(value), float(value - reach), float(value + reach))
