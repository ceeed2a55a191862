"""The sections of the page about the runs: overview, speed, settings, saved agents, and the paper's ledger."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qemrl.experiments.runs import RunRecord
from qemrl.experiments.statistics import Interval
from qemrl.report.charts import PageBuilder, distribution_charts
from qemrl.report.markup import (
    NOTHING,
    Html,
    bullet_list,
    element,
    fold,
    format_duration,
    format_number,
    join,
    paragraph,
    table,
)
from qemrl.report.predictions import EPISODE_SEED, AgentPrediction
from qemrl.training.machine import shorten_commit

VERDICTS = ("holds", "fails", "depends")


def overview(page: PageBuilder) -> Html:
    """How many runs of what there are, what they took, and what is wrong with some."""
    collection = page.content.collection
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
        ("Time", f"{format_duration(seconds)} of learning and evaluating, added up over runs"),
        ("Versions", "; ".join(_keep_distinct(_list_versions(run.record) for run in runs)) or NOTHING),
        ("Commit", "; ".join(_list_commits(runs)) or NOTHING),
        ("Machine", "; ".join(_list_machines(runs)) or "not recorded"),
        ("Checksums", _count_verified(runs)),
    ]
    rows = [piece for name, fact in facts for piece in (element("dt", {}, name), element("dd", {}, fact))]
    parts = [element("dl", {}, *rows)]
    if page.content.notes:
        parts += [element("h3", {}, "Before you compare"), bullet_list(page.content.notes)]
    failed = [(run.name, run.cause) for run in runs if run.state == "failed"]
    if failed:
        parts.append(table("Failed runs", ("run", "cause"), failed, "wide"))
    if collection.losses:
        parts.append(table("Lost or damaged", ("run", "what"), collection.losses, "wide"))
    if collection.unreadable:
        left_out = [(each.name, each.reason) for each in collection.unreadable]
        parts.append(table("Left out", ("folder", "reason"), left_out, "wide"))
    parts.append(fold(f"All {len(runs)} runs", _runs_table(page)))
    return join(*parts)


def _count_verified(runs: Sequence[RunRecord]) -> str:
    """Of how many finished runs it is known that their metrics are as they were written."""
    finished = [run for run in runs if run.state == "finished"]
    unverified = sum(not run.is_verified for run in finished)
    if not finished:
        return "kept when a run is finished"
    if not unverified:
        return "right for all finished runs"
    return f"{unverified} of {len(finished)} finished runs are unverified: none were kept, or they cannot be read"


def _keep_distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _list_commits(runs: Sequence[RunRecord]) -> list[str]:
    """The commits, shortened if there are several."""
    found = _keep_distinct(str(run.record.get("commit") or "not recorded") for run in runs)
    return found if len(found) == 1 else [shorten_commit(commit, 12) for commit in found]


def _list_versions(record: dict[str, Any]) -> str:
    versions = record.get("versions")
    others = [f"{name} {version}" for name, version in sorted(versions.items())] if isinstance(versions, dict) else []
    return ", ".join([f"qemrl {record.get('qemrl', 'not recorded')}", *others])


def _list_machines(runs: Sequence[RunRecord]) -> list[str]:
    """What computed the runs, and of how many that is not known, if it is known of some."""
    found = _keep_distinct(machine for run in runs for machine in run.machines)
    unknown = sum(not run.machines for run in runs)
    return [*found, *([f"not recorded for {unknown} run{'' if unknown == 1 else 's'}"] if found and unknown else [])]


def _runs_table(page: PageBuilder) -> Html:
    rows = []
    for run in page.content.collection.runs:
        last = [means[max(means)] for means in run.evaluations.values() if means]
        seeds = ", ".join(map(str, run.config.seeds))
        steps = f"{run.step:,} of {run.config.whole_steps:,}"
        score = format_number(sum(last) / len(last)) if last else "no evaluation yet"
        rows.append((run.name, run.arm, run.config.env_name, seeds, run.state, steps, score))
    head = ("run", "algorithm", "task", "seeds", "state", "steps", "last evaluation")
    return table("All runs", head, rows)


def throughput(page: PageBuilder) -> Html | None:
    """Steps per second."""
    rows = []
    for (arm, env), cell in page.content.cells.items():
        speeds = [run.steps_per_second for run in cell.runs if run.steps_per_second is not None]
        if not speeds:
            continue
        middle = f"{float(np.median(speeds)):,.0f}"
        reach = f"{min(speeds):,.0f} to {max(speeds):,.0f}" if len(speeds) > 1 else NOTHING
        seconds = sum((run.seconds for run in cell.runs), 0.0)
        rows.append([page.name(arm), env, middle, reach, format_duration(seconds)])
    if not rows:
        return None
    rows.sort(key=lambda row: row[1])
    return join(
        paragraph(
            "Steps per second of a run, all its seeds together, evaluations included: the median over its records, "
            "then over runs. Runs that shared a machine slowed one another down."
        ),
        table("Throughput", ("algorithm", "task", "steps/s", "over runs", "time in all"), rows),
    )


def settings(page: PageBuilder) -> Html | None:
    """The settings in which algorithms differ, and all of them to unfold."""
    collection = page.content.collection
    if not collection.runs:
        return None
    found = page.content.settings
    if found:
        rows = [[name, *(values[arm] for arm in collection.arms)] for name, values in found.items()]
        shown = table("Settings in which algorithms differ on a task", ("setting", *collection.arms), rows, "texts")
    else:
        shown = paragraph("There is no task on which algorithms differ in their settings.")
    configs = []
    for arm in collection.arms:
        run = next(run for run in collection.runs if run.arm == arm)
        text = json.dumps(run.record["config"], indent=2, sort_keys=True, ensure_ascii=False)
        configs.append(fold(f"{arm}: all settings of {run.name}", element("pre", {"tabindex": "0"}, text)))
    return join(shown, *configs)


def distributions(page: PageBuilder) -> Html | None:
    """What saved agents expect at the start of an episode, and what they got."""
    content = page.content
    if not content.predicted and not content.not_loaded:
        return None
    figures = [_agent_figure(page, predicted) for predicted in content.predicted]
    parts = [
        paragraph(
            "Left: the distribution of the return that an agent predicts at the first observation of the episode "
            f"with seed {EPISODE_SEED}, as the probability of a return up to each value; the bold line is the action "
            "that it prefers, the thin ones are the others. Right: the returns of the episodes of its last evaluation, "
            "the same way. What is predicted is discounted and for one start; what was got is neither. So the two have "
            "different scales, and are alike only where episodes are short. One agent for each algorithm and task, "
            "that of the lowest seed."
        ),
        element("div", {"class": "charts small"}, *figures),
    ]
    if content.not_loaded:
        parts += [paragraph("Could not be loaded:"), bullet_list(content.not_loaded)]
    return join(*parts)


def _agent_figure(page: PageBuilder, predicted: AgentPrediction) -> Html:
    expects, got = distribution_charts(predicted, page.number(predicted.arm))
    plots = page.add_chart(expects)
    if got is not None:
        plots = element("div", {"class": "beside"}, plots, page.add_chart(got))
    title = element("figcaption", {}, f"{predicted.arm} on {predicted.env}")
    return element("figure", {}, title, plots, element("p", {"class": "about"}, _describe_agent(predicted)))


def _describe_agent(predicted: AgentPrediction) -> str:
    best, q = predicted.actions[predicted.best], format_number(predicted.actions[predicted.best].q)
    prefers = f"prefers {best.name}, Q = {q}" if len(predicted.actions) > 1 else f"Q = {q}"
    sentences = [f"Seed {predicted.seed}, step {predicted.step:,}, γ = {predicted.discount:g}: {prefers}."]
    if predicted.kind == "scalar":
        sentences.append("It estimates Q only, so each action is one step.")
    if predicted.evaluated_at is None:
        sentences.append("The episodes of its evaluations were not kept.")
    else:
        mean = format_number(float(predicted.evaluation.mean()))
        count = len(predicted.evaluation)
        sentences.append(f"{count} episodes at step {predicted.evaluated_at:,}: mean {mean}.")
    return " ".join(sentences)


def ledger(page: PageBuilder) -> Html | None:
    """The claims of the paper that `qemrl reproduce` has checked below the folder."""
    claims = [(report["item"], claim) for report in page.content.claims for claim in report["claims"]]
    if not claims:
        return None
    rows = []
    for item, claim in claims:
        verdict = claim["verdict"]
        kind = {"class": verdict} if verdict in VERDICTS else {}
        number = f"{Interval(**claim['measured'])}: {claim['meaning']}"
        rows.append([item, claim["name"], claim["where"], claim["statement"], number, element("span", kind, verdict)])
    counts = [f"{sum(claim['verdict'] == verdict for _, claim in claims)} {verdict}" for verdict in VERDICTS]
    head = ("item", "claim", "where", "what is claimed", "measured (95% interval)", "verdict")
    return join(
        paragraph(
            f"Results of `qemrl reproduce` below this folder: of {len(claims)} claims {', '.join(counts[:-1])} "
            f"and {counts[-1]}. A claim holds if the whole interval of what was measured is on its side of a "
            "threshold, fails if none of it is, and depends otherwise."
        ),
        table("Claims", head, rows, "wide"),
    )
