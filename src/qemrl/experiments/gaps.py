"""Gaps: evaluations that a run should have, and has not, because lines of its metrics were lost or hold no number."""

from collections.abc import Mapping, Set
from typing import NamedTuple

MOST_NAMED = 8
"""How many seeds a sentence names."""


class Gap(NamedTuple):
    """What some seeds of a run lack."""

    seeds: tuple[int, ...]
    first: int
    """The first step without an evaluation of these seeds."""

    missing: int
    """At how many steps there is none."""

    has_last: bool
    """Whether there is one at the last step of all."""

    def __str__(self) -> str:
        named = ", ".join(map(str, self.seeds[:MOST_NAMED])) + ", …" * (len(self.seeds) > MOST_NAMED)
        more = f" and {self.missing - 1:,} more" if self.missing > 1 else ""
        left_out = "left out of the curve" if self.has_last else "left out of the curve and of the last evaluations"
        return f"seed {named}: no finite evaluation at step {self.first:,}{more}; {left_out}"


def find_gaps(evaluations: Mapping[int, Mapping[int, float]], due: Set[int], regular: range) -> tuple[Gap, ...]:
    """The gaps in evaluations by seed and step; seeds that lack the same are in one.

    Args:
        evaluations: What there is.
        due: Steps at which each seed should have one.
        regular: More of them. It may be far longer than the files are, and is not walked through.
    """
    others = sorted(step for step in due if step not in regular)
    total = len(others) + len(regular)
    if not total:
        return ()
    last = max([*others[-1:], *regular[-1:]])
    seeds: dict[tuple[int, int, bool], list[int]] = {}
    for seed, there in evaluations.items():
        count = total - sum(step in due or step in regular for step in there)
        if count:
            # What is there is looked at once at most, so that this ends soon.
            missing = (next((step for step in steps if step not in there), last) for steps in (regular, others))
            seeds.setdefault((min(missing), count, last in there), []).append(seed)
    return tuple(Gap(tuple(found), *what) for what, found in seeds.items())
