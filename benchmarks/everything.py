"""All benches, one after the other, and the file that keeps what they measured.

The file, bench.json, holds for each bench the command that measures it alone, the date, the commit and the report. It
is written after each bench, so what was measured stays if a later one fails or is interrupted.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import actor_critic, estimator, representations, scaling, tabular, value, variance
from qemrl.training.files import write_atomic
from qemrl.training.machine import code_commit

Tell = Callable[[str], None]

TABULAR = (10, 150_000)
"""Seeds and steps of the tabular bench; it takes seconds, so there is nothing to shorten."""

FIELDS = {"command", "date", "commit", "report"}
"""What is kept of a bench."""


class Bench(NamedTuple):
    """Something to measure."""

    name: str
    command: str
    """What measures it alone. With the same command it need not be measured again."""
    measure: Callable[[Tell], dict[str, Any]]
    """Gives the report as plain data, and tells what it does meanwhile."""


def all_benches(seconds: float, peers_folder: Path) -> list[Bench]:
    """Every bench, in the order in which they are measured: first those that start no other processes.

    Args:
        seconds: How long each library is timed in each task; what is timed in this process gets turns in proportion.
        peers_folder: Where the peers' virtual environments are, or are to be made.
    """
    estimator_rounds, variance_rounds = max(3, round(5 * seconds)), max(3, round(3 * seconds))
    seeds, steps = TABULAR
    return [
        Bench(
            "estimator",
            f"python -m benchmarks estimator --rounds {estimator_rounds}",
            lambda _: estimator.run(estimator_rounds).as_json(),
        ),
        Bench(
            "tabular",
            f"python -m benchmarks tabular --seeds {seeds} --steps {steps}",
            lambda _: tabular.run(seeds, steps).as_json(),
        ),
        Bench(
            "variance",
            f"python -m benchmarks variance --rounds {variance_rounds}",
            lambda tell: variance.run(variance_rounds, tell).as_json(),
        ),
        Bench(
            "representations",
            f"python -m benchmarks representations --rounds {variance_rounds}",
            lambda tell: representations.run(variance_rounds, tell).as_json(),
        ),
        Bench(
            "scaling",
            f"python -m benchmarks scaling --seconds {seconds:g}",
            lambda tell: scaling.run(seconds, tell).as_json(),
        ),
        Bench(
            "value",
            f"python -m benchmarks value --seconds {seconds:g}",
            lambda tell: value.run(seconds, peers_folder, tell).as_json(),
        ),
        Bench(
            "actor-critic",
            f"python -m benchmarks actor-critic --seconds {seconds:g}",
            lambda tell: actor_critic.run(seconds, peers_folder, tell).as_json(),
        ),
    ]


def missing(benches: Sequence[Bench], record: Mapping[str, Any]) -> list[Bench]:
    """Those that were not yet measured by the same command."""
    return [bench for bench in benches if bench.name not in record or record[bench.name]["command"] != bench.command]


def measure(benches: Sequence[Bench], path: Path, tell: Tell, finished: Callable[[str], None]) -> dict[str, Exception]:
    """Measure benches and keep what they give in the file, beside what is there of others; gives what failed, and why.

    Args:
        benches: What is measured, whether or not it is in the file.
        path: The file, bench.json.
        tell: Told what is being done.
        finished: Told the name of each that did not fail, when it is in the file.
    """
    failures: dict[str, Exception] = {}
    for bench in benches:
        tell(bench.name)
        try:
            report = bench.measure(lambda doing, name=bench.name: tell(f"{name}: {doing}"))
        except Exception as error:  # whatever it is, the others can still be measured
            failures[bench.name] = error
            continue
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        entry = {"command": bench.command, "date": today, "commit": code_commit(), "report": report}
        write(read(path) | {bench.name: entry}, path)
        finished(bench.name)
    return failures


def read(path: Path) -> dict[str, Any]:
    """What the file holds, by the name of the bench; nothing if there is no file.

    Raises:
        ValueError: The file holds something else.
    """
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if all(set(entry) >= FIELDS for entry in record.values()):
            return record
    except (ValueError, AttributeError, TypeError):
        pass
    raise ValueError(f"{path} is not what `python -m benchmarks` writes: move it away, or choose another --json-file")


def write(record: Mapping[str, Any], path: Path) -> None:
    """Write the file, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(record, indent=2) + "\n")
