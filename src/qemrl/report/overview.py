"""The first section of the page: which runs there are, what they took, and what is wrong with some."""

from collections.abc import Iterable, Sequence
from typing import Any

from qemrl.experiments.runs import RunRecord
from qemrl.report import numbers
from qemrl.report.drawing import NOTHING, Drawing
from qemrl.report.markup import Html, element, folded, joined, listed, table
from qemrl.training.machine import shorten_commit


def overview(drawing: Drawing) -> Html:
    """How many runs of what there are, what they took, and what is wrong with some."""
    collection = drawing.content.collection
    runs = collection.runs
    states = {state: sum(run.state == state for run in runs) for state in ("finished", "unfinished", "failed")}
    counts = [f"{count} {state}" for state, count in states.items()]
    seeds = sorted({seed for run in runs for seed in run.config.seeds})
    seconds = sum((run.seconds for run in runs), 0.0)
    total = sum(run.step * run.config.num_seeds for run in runs)
    facts: list[tuple[str, str]] = [
        ("Runs", ", ".join([*counts, f"{len(collection.unreadable)} left out"])),
        ("Algorithms", ", ".join(collection.arms) or NOTHING),
        ("Tasks", ", ".join(collection.envs) or NOTHING),
        ("Seeds", ", ".join(map(str, seeds)) or NOTHING),
        ("Steps", f"{total:,} over all runs and seeds"),
        ("Time", f"{numbers.hours(seconds)} of learning and evaluating, added up over runs"),
        ("Versions", "; ".join(_distinct(_versions(run.record) for run in runs)) or NOTHING),
        ("Commit", "; ".join(_commits(runs)) or NOTHING),
        ("Machine", "; ".join(_machines(runs)) or "not recorded"),
    ]
    rows = [piece for name, fact in facts for piece in (element("dt", {}, name), element("dd", {}, fact))]
    parts = [element("dl", {}, *rows)]
    if drawing.content.notes:
        parts += [element("h3", {}, "Before you compare"), listed(drawing.content.notes)]
    failed = [(run.name, run.cause) for run in runs if run.state == "failed"]
    if failed:
        parts.append(table("Failed runs", ("run", "cause"), failed, "wide"))
    if collection.unreadable:
        left_out = [(each.name, each.reason) for each in collection.unreadable]
        parts.append(table("Left out", ("folder", "reason"), left_out, "wide"))
    parts.append(folded(f"All {len(runs)} runs", _all_runs(drawing)))
    return joined(parts)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _commits(runs: Sequence[RunRecord]) -> list[str]:
    """The commits, shortened if there are several."""
    found = _distinct(str(run.record.get("commit") or "not recorded") for run in runs)
    return found if len(found) == 1 else [shorten_commit(commit, 12) for commit in found]


def _versions(record: dict[str, Any]) -> str:
    versions = record.get("versions")
    others = [f"{name} {version}" for name, version in sorted(versions.items())] if isinstance(versions, dict) else []
    return ", ".join([f"qemrl {record.get('qemrl', 'not recorded')}", *others])


def _machines(runs: Sequence[RunRecord]) -> list[str]:
    """What computed the runs, and of how many that is not known, if it is known of some."""
    found = _distinct(machine for run in runs for machine in run.machines)
    unknown = sum(not run.machines for run in runs)
    return [*found, *([f"not recorded for {unknown} run{'' if unknown == 1 else 's'}"] if found and unknown else [])]


def _all_runs(drawing: Drawing) -> Html:
    rows = []
    for run in drawing.content.collection.runs:
        last = [means[max(means)] for means in run.evaluations.values() if means]
        seeds = ", ".join(map(str, run.config.seeds))
        steps = f"{run.step:,} of {run.config.whole_steps:,}"
        score = numbers.number(sum(last) / len(last)) if last else "no evaluation yet"
        rows.append((run.name, run.arm, run.config.env, seeds, run.state, steps, score))
    head = ("run", "algorithm", "task", "seeds", "state", "steps", "last evaluation")
    return table("All runs", head, rows)
