"""What a trial is made of: its randomness, and what it says when it is over."""

import random
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["lost", "wrong", "traceback", "hang"]


@dataclass
class Outcome:
    """What a trial tried, by kind, and what did not hold."""

    tried: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)

    def fail(self, kind: str, verdict: Verdict, what: str) -> None:
        """Something did not hold."""
        self.failures.append({"kind": kind, "verdict": verdict, "what": what[:4_000]})

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {"tried": dict(self.tried), "failures": self.failures}


@dataclass(frozen=True)
class Trial:
    """One trial of a part of the campaign."""

    part: str
    number: int
    seed: int
    work: Path
    """A folder for what all trials share; what one trial makes goes into folders of its own below it."""

    @property
    def chance(self) -> random.Random:
        """The trial's randomness, from the beginning."""
        return random.Random(f"{self.seed} {self.part} {self.number}")

    @property
    def folder(self) -> Path:
        """A folder for this trial alone."""
        return self.work / f"{self.part}-{self.number}"


def describe_error(error: BaseException) -> str:
    """The traceback of an error, its end if it is long."""
    return "".join(traceback.format_exception(error))[-3_000:]
