"""The sections of the page that say what came of the runs."""

from collections.abc import Mapping, Sequence

from qemrl.report import numbers
from qemrl.report.charts import all_positive, curve_charts, profile_chart
from qemrl.report.content import Content
from qemrl.report.drawing import NOTHING, Drawing, button
from qemrl.report.markup import Html, Piece, element, folded, joined, listed, paragraph, table
from qemrl.report.results import GOALS, RESAMPLES, Estimate, Reached

MARK_WIDTH = 150
"""Of the small drawing of an interval, in pixels."""


def learning_curves(drawing: Drawing) -> Html | None:
    """The curves, with the buttons that change them."""
    charts = curve_charts(drawing.content)
    if not charts:
        return None
    switches = [_switch("log-steps", "steps on a log scale", False)]
    if all_positive(charts):
        switches.append(_switch("log-returns", "returns on a log scale", False))
    switches.append(_switch("seeds", "single seeds", True))
    gap = element("span", {"class": "gap"})
    controls = {"class": "controls stay", "role": "group", "aria-label": "What the curves show"}
    figures = [
        element("figure", {}, element("figcaption", {}, chart["title"]), drawing.plot(chart)) for chart in charts
    ]
    return joined(
        [
            paragraph(
                "Mean evaluation return over seeds; thin lines are single seeds, and from three seeds on the shaded "
                "band is Student's 95% interval of the mean at each evaluation; where it is very wide, the frame cuts "
                "it. Point at a chart, or focus it and use the arrow keys, for the numbers. A click on an algorithm "
                "takes it out of all charts."
            ),
            element("div", controls, *drawing.legend(), gap, *switches),
            element("div", {"class": "charts one" if len(charts) == 1 else "charts"}, *figures),
        ]
    )


def _switch(name: str, label: str, pressed: bool) -> Html:
    return element("button", button("switch", pressed) | {"data-switch": name}, label)


def final_scores(drawing: Drawing) -> Html | None:
    """The last evaluations, and their differences from an algorithm of the reader's choice."""
    content = drawing.content
    final = content.results.final
    if not final:
        return None
    arms = content.collection.arms
    envs = [env for env in content.collection.envs if any((arm, env) in final for arm in arms)]
    rows = [[drawing.named(arm), *(_final(content, arm, env) for env in envs)] for arm in arms]
    parts = [
        paragraph(
            "Mean of the last evaluation over seeds, with Student's 95% interval in brackets. Seeds that count are in "
            "parentheses."
        ),
        table("Last evaluation", ("algorithm", *envs), rows),
    ]
    if content.results.differences:
        choices = [("the one before it that is nearest in settings", content.nearest)]
        choices += [(baseline, {arm: baseline for arm in arms if arm != baseline}) for baseline in arms]
        options, tables = [], []
        for label, pairs in choices:
            if any(content.results.gains(pairs, env) for env in envs):
                options.append(element("option", {"value": str(len(options))}, label))
                tables.append(_differences(drawing, label, pairs, len(tables)))
        choice = element("select", {"id": "baseline", "autocomplete": "off"}, *options)
        parts += [
            element("h3", {}, "Paired differences"),
            paragraph(
                "Runs of the same seed are paired; only tasks on which both were last evaluated at the same step are "
                "compared. An interval that lies on one side of zero is marked in words. These are many comparisons: "
                "about one interval in twenty misses the truth by chance."
            ),
            element("div", {"class": "controls"}, element("label", {"for": "baseline"}, "Compared with"), choice),
            *tables,
        ]
    return joined(parts)


def _scale(content: Content, env: str) -> float:
    """How large the returns of a task are: all numbers about it have the same digits."""
    return max(abs(estimate.value) for (_, other), estimate in content.results.final.items() if other == env)


def _final(content: Content, arm: str, env: str) -> Html:
    cell = content.cells.get((arm, env))
    if cell is None or cell.curve is None:
        return _cell(None, 1.0)
    so_far = "" if cell.finished else f", so far, at step {int(cell.curve.steps[-1]):,}"
    return _cell(content.results.final[arm, env], _scale(content, env), f"({len(cell.curve.seeds)}{so_far})")


def _cell(estimate: Estimate | None, scale: float, *more: Piece) -> Html:
    """A cell of a table with a number, its interval and what else is to be said; `scale` sets how many digits."""
    if estimate is None:
        return element("td", {}, NOTHING)
    spaced = [piece for each in more for piece in (" ", each)]
    interval = element("span", {"class": "ci"}, numbers.interval(estimate, scale))
    return element("td", {}, numbers.number(estimate.value, scale), " ", interval, *spaced)


def _differences(drawing: Drawing, label: str, pairs: Mapping[str, str], place: int) -> Html:
    """The table of the differences of pairs of algorithms; of several tables, the first is shown."""
    content = drawing.content
    by_task = {env: content.results.gains(pairs, env) for env in content.collection.envs}
    by_task = {env: found for env, found in by_task.items() if found}
    overall = content.results.gains(pairs, None)
    head: list[Piece] = ["algorithm", *by_task, *(["all tasks, normalized"] if overall else [])]
    rows = []
    for arm, against in pairs.items():
        if any(arm in found for found in by_task.values()):
            cells = [_difference(found.get(arm), _scale(content, env)) for env, found in by_task.items()]
            cells.append(_difference(overall.get(arm), 1.0))
            rows.append([drawing.named(arm, against), *cells][: len(head)])
    attributes: dict[str, str | None] = {"data-baseline": str(place)}
    return element("div", attributes | ({"hidden": None} if place else {}), table(f"Minus {label}", head, rows))


def _difference(estimate: Estimate | None, scale: float) -> Html:
    if estimate is None or not estimate.shown:
        return _cell(estimate, scale)
    return _cell(estimate, scale, element("span", {"class": estimate.shown}, estimate.shown))


def aggregates(drawing: Drawing) -> Html | None:
    """Statistics of normalized scores over tasks."""
    results = drawing.content.results
    if not results.final:
        return None
    found = results.aggregates
    reasons = listed(f"{env}: {reason}." for env, reason in results.left_out.items())
    if found is None:
        none = paragraph("There is no task on which all algorithms have been evaluated at the same last step.")
        return joined([none, folded("What is missing", reasons)])
    low, high = _reach([estimate for by_arm in found.statistics.values() for estimate in by_arm.values()])
    rows = []
    for arm in found.profiles:
        estimates = [by_arm[arm] for by_arm in found.statistics.values()]
        cells = [_cell(estimate, 1.0, _mark(estimate, low, high, drawing.arm(arm))) for estimate in estimates]
        rows.append([drawing.named(arm), *cells])
    ends = [(env, numbers.number(bottom), numbers.number(top)) for env, (bottom, top) in found.references.items()]
    parts = [
        paragraph(
            "Last evaluations are normalized task by task: 0 is the lowest evaluation that any algorithm's mean had "
            "at any step, 1 is the last evaluation of the best algorithm's mean. IQM is the mean of the middle half of "
            "all runs; mean and median are of the tasks' means. Brackets are 95% intervals of a stratified bootstrap "
            f"({RESAMPLES:,} draws): runs are redrawn within each task, so they say how other seeds would have turned "
            "out, not other tasks."
        ),
        table("Normalized scores over tasks", ("algorithm", *found.statistics), rows),
        paragraph(f"All drawings reach from {numbers.number(low, 1.0)} to {numbers.number(high, 1.0)}."),
        folded("What 0 and 1 stand for", table("Returns that are normalized to", ("task", "0", "1"), ends)),
    ]
    if results.left_out:
        parts.append(folded("Tasks that are left out here", reasons))
    return joined(parts)


def _reach(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """The least and the largest end of all intervals, a little apart if they are the same."""
    ends = [end for each in estimates for end in (each.value, each.low, each.high) if end is not None]
    low, high = min(ends), max(ends)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _mark(estimate: Estimate, low: float, high: float, arm: int) -> Html:
    """The interval as a line with a dot, between the ends of the column."""

    def at(value: float) -> str:
        return f"{5 + (value - low) / (high - low) * (MARK_WIDTH - 10):.1f}"

    parts = [element("path", {"class": "rail", "d": f"M{at(low)} 7H{at(high)}"})]
    if estimate.low is not None and estimate.high is not None:
        parts.append(element("path", {"class": "line", "d": f"M{at(estimate.low)} 7H{at(estimate.high)}"}))
    parts.append(element("circle", {"class": "dot", "cx": at(estimate.value), "cy": "7", "r": "3.5"}))
    size = {"width": str(MARK_WIDTH), "height": "14", "aria-hidden": "true"}
    return element("svg", {"class": f"mark arm-{arm}"} | size, *parts)


def profiles(drawing: Drawing) -> Html | None:
    """The performance profiles."""
    chart = profile_chart(drawing.content)
    if chart is None:
        return None
    legend = element("div", {"class": "controls", "role": "group", "aria-label": "Algorithms"}, *drawing.legend())
    return joined(
        [
            paragraph(
                "The share of runs that end above each normalized score, averaged over tasks; a line that lies above "
                "another is better at that score. Bands are 95% intervals of the same bootstrap, at each score for "
                "itself."
            ),
            legend,
            element("div", {"class": "charts one"}, element("figure", {}, drawing.plot(chart))),
        ]
    )


def improvement(drawing: Drawing) -> Html | None:
    """The matrix of probabilities of improvement."""
    found = drawing.content.results.improvement
    if not found:
        return None
    arms = [arm for arm in drawing.content.collection.arms if any(arm in pair for pair in found)]
    rows = [[drawing.named(row), *(_probability(found.get((row, column))) for column in arms)] for row in arms]
    return joined(
        [
            paragraph(
                "How probably a run of the algorithm of the row ends above one of the column's on the same task, "
                "averaged over the tasks that both have; ties count half, so 0.5 says that neither is better. Brackets "
                "are bootstrap intervals. Bold: the interval leaves out 0.5."
            ),
            table("P(row ends above column)", ("algorithm", *arms), rows, "matrix"),
        ]
    )


def _probability(estimate: Estimate | None) -> Html:
    if estimate is None:
        return element("td", {}, NOTHING)
    decided = estimate.low is not None and estimate.high is not None and not estimate.low <= 0.5 <= estimate.high
    shade = f"heat-{round(10 * estimate.value)}"
    shown = f"{estimate.value:.2f}"
    ends = "" if estimate.low is None else f"[{estimate.low:.2f}, {estimate.high:.2f}]"
    main = element("strong", {}, shown) if decided else shown
    return element("td", {"class": shade}, main, element("span", {"class": "ci"}, ends))


def efficiency(drawing: Drawing) -> Html | None:
    """How soon scores were reached, and the area under the curves."""
    results = drawing.content.results
    if not results.average:
        return None
    rows = []
    for (arm, env), average in results.average.items():
        reached = [_reached(each) for each in results.reached[arm, env]]
        rows.append([drawing.named(arm), env, *reached, _cell(average, _scale(drawing.content, env))])
    rows.sort(key=lambda row: row[1])
    goals = [f"steps to {goal:.0%}" for goal in GOALS]
    return joined(
        [
            paragraph(
                "The median over seeds of the first step whose evaluation is at least so far up from the lowest mean "
                "evaluation of the task to the best algorithm's last one, and how many seeds got there. The area is "
                "that under the evaluation curve divided by its length: a return averaged over steps, with Student's "
                "95% interval; curves of different lengths are not comparable by it."
            ),
            table("Sample efficiency", ("algorithm", "task", *goals, "area under the curve"), rows),
        ]
    )


def _reached(reached: Reached) -> Html:
    count = f" ({reached.runs} of {reached.of})"
    steps = "not reached" if reached.median == float("inf") else numbers.steps(reached.median)
    return element("td", {}, steps, element("span", {"class": "ci"}, count))
