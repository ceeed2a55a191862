"""The sections of the page about how the runs were made: speed, settings, saved agents, and the paper's ledger."""

import json

import numpy as np

from qemrl.report import numbers
from qemrl.report.charts import distribution_charts
from qemrl.report.distributions import EPISODE_SEED, Predicted
from qemrl.report.drawing import NOTHING, Drawing
from qemrl.report.markup import Html, element, folded, joined, listed, paragraph, table

VERDICTS = ("holds", "fails", "depends")


def throughput(drawing: Drawing) -> Html | None:
    """Steps per second."""
    rows = []
    for (arm, env), cell in drawing.content.cells.items():
        speeds = [run.steps_per_second for run in cell.runs if run.steps_per_second is not None]
        if not speeds:
            continue
        middle = f"{float(np.median(speeds)):,.0f}"
        reach = f"{min(speeds):,.0f} to {max(speeds):,.0f}" if len(speeds) > 1 else NOTHING
        seconds = sum((run.seconds for run in cell.runs), 0.0)
        rows.append([drawing.named(arm), env, middle, reach, numbers.hours(seconds)])
    if not rows:
        return None
    rows.sort(key=lambda row: row[1])
    return joined(
        [
            paragraph(
                "Steps per second of a run, all its seeds together, evaluations included: the median over its records, "
                "then over runs. Runs that shared a machine slowed one another down."
            ),
            table("Throughput", ("algorithm", "task", "steps/s", "over runs", "time in all"), rows),
        ]
    )


def settings(drawing: Drawing) -> Html | None:
    """The settings in which algorithms differ, and all of them to unfold."""
    collection = drawing.content.collection
    if not collection.runs:
        return None
    found = drawing.content.settings
    if found:
        rows = [[setting.name, *(setting.values[arm] for arm in collection.arms)] for setting in found]
        shown = table("Settings in which algorithms differ on a task", ("setting", *collection.arms), rows, "texts")
    else:
        shown = paragraph("There is no task on which algorithms differ in their settings.")
    configs = []
    for arm in collection.arms:
        run = next(run for run in collection.runs if run.arm == arm)
        text = json.dumps(run.record["config"], indent=2, sort_keys=True, ensure_ascii=False)
        configs.append(folded(f"{arm}: all settings of {run.name}", element("pre", {"tabindex": "0"}, text)))
    return joined([shown, *configs])


def distributions(drawing: Drawing) -> Html | None:
    """What saved agents expect at the start of an episode, and what they got."""
    content = drawing.content
    if not content.predicted and not content.not_loaded:
        return None
    figures = [_agent(drawing, predicted) for predicted in content.predicted]
    parts = [
        paragraph(
            "Left: the distribution of the return that an agent predicts at the first observation of the episode "
            f"with seed {EPISODE_SEED}, as the probability of a return up to each value; the strong line is the action "
            "that it prefers, the thin ones are the others. Right: the returns of the episodes of its last evaluation, "
            "the same way. What is predicted is discounted and for one start; what was got is neither. So the two have "
            "different scales, and are alike only where episodes are short. One agent for each algorithm and task, "
            "that of the lowest seed."
        ),
        element("div", {"class": "charts small"}, *figures),
    ]
    if content.not_loaded:
        parts += [paragraph("Could not be loaded:"), listed(content.not_loaded)]
    return joined(parts)


def _agent(drawing: Drawing, predicted: Predicted) -> Html:
    expects, got = distribution_charts(predicted, drawing.arm(predicted.arm))
    plots = drawing.plot(expects)
    if got is not None:
        plots = element("div", {"class": "beside"}, plots, drawing.plot(got))
    title = element("figcaption", {}, f"{predicted.arm} on {predicted.env}")
    return element("figure", {}, title, plots, element("p", {"class": "about"}, _about(predicted)))


def _about(predicted: Predicted) -> str:
    best, q = predicted.actions[predicted.best], numbers.number(predicted.actions[predicted.best].q)
    prefers = f"prefers {best.name}, Q = {q}" if len(predicted.actions) > 1 else f"Q = {q}"
    sentences = [f"Seed {predicted.seed}, step {predicted.step:,}, γ = {predicted.discount:g}: {prefers}."]
    if predicted.kind == "scalar":
        sentences.append("It estimates Q only, so each action is one step.")
    if predicted.evaluated_at is None:
        sentences.append("The episodes of its evaluations were not kept.")
    else:
        mean = numbers.number(float(predicted.evaluation.mean()))
        count = len(predicted.evaluation)
        sentences.append(f"{count} episodes at step {predicted.evaluated_at:,}: mean {mean}.")
    return " ".join(sentences)


def ledger(drawing: Drawing) -> Html | None:
    """The claims of the paper that `qemrl reproduce` has checked below the folder."""
    claims = [(report["item"], claim) for report in drawing.content.claims for claim in report["claims"]]
    if not claims:
        return None
    rows = []
    for item, claim in claims:
        measured = claim["measured"]
        reach = "" if measured["low"] == measured["high"] else f" [{measured['low']:.4g}, {measured['high']:.4g}]"
        verdict = claim["verdict"]
        kind = {"class": verdict} if verdict in VERDICTS else {}
        number = f"{measured['value']:.4g}{reach}: {claim['meaning']}"
        rows.append([item, claim["name"], claim["where"], claim["statement"], number, element("span", kind, verdict)])
    counts = [f"{sum(claim['verdict'] == verdict for _, claim in claims)} {verdict}" for verdict in VERDICTS]
    head = ("item", "claim", "where", "what is claimed", "measured (95% interval)", "verdict")
    return joined(
        [
            paragraph(
                f"Results of `qemrl reproduce` below this folder: of {len(claims)} claims {', '.join(counts[:-1])} "
                f"and {counts[-1]}. A claim holds if the whole interval of what was measured is on its side of a "
                "threshold, fails if none of it is, and depends otherwise."
            ),
            table("Claims", head, rows, "wide"),
        ]
    )
