"""The sections of the page about the results of the runs."""

from collections.abc import Mapping, Sequence

from qemrl.experiments.statistics import Interval
from qemrl.plotting.style import format_steps
from qemrl.report.charts import PageBuilder, all_positive, curve_charts, profile_chart
from qemrl.report.content import Content
from qemrl.report.markup import (
    NOTHING,
    Html,
    Piece,
    bullet_list,
    button,
    element,
    fold,
    format_ends,
    format_number,
    join,
    paragraph,
    table,
)
from qemrl.report.results import GOALS, RESAMPLES, Difference, StepsToGoal

MARK_WIDTH = 150
"""Of the small drawing of an interval, in pixels."""


def learning_curves(page: PageBuilder) -> Html | None:
    """The curves, with the buttons that change them."""
    charts = curve_charts(page.content)
    if not charts:
        return None
    switches = [_switch("log-steps", "steps on a log scale", False)]
    if all_positive(charts):
        switches.append(_switch("log-returns", "returns on a log scale", False))
    switches.append(_switch("seeds", "single seeds", True))
    gap = element("span", {"class": "gap"})
    controls = {"class": "controls stay", "role": "group", "aria-label": "What the curves show"}
    figures = [
        element("figure", {}, element("figcaption", {}, chart["title"]), page.add_chart(chart)) for chart in charts
    ]
    return join(
        paragraph(
            "Mean evaluation return over seeds; thin lines are single seeds, and from three seeds on the shaded "
            "band is Student's 95% interval of the mean at each evaluation; where it is very wide, the frame cuts "
            "it. Point at a chart, or focus it and use the arrow keys, for the numbers. A click on an algorithm "
            "takes it out of all charts."
        ),
        element("div", controls, *page.legend(), gap, *switches),
        element("div", {"class": "charts one" if len(charts) == 1 else "charts"}, *figures),
    )


def _switch(name: str, label: str, pressed: bool) -> Html:
    return element("button", button("switch", pressed) | {"data-switch": name}, label)


def final_scores(page: PageBuilder) -> Html | None:
    """The last evaluations, and their differences from an algorithm of the reader's choice."""
    content = page.content
    final = content.results.final
    if not final:
        return None
    arms = content.collection.arms
    envs = [env for env in content.collection.envs if any((arm, env) in final for arm in arms)]
    rows = [[page.name(arm), *(_final_cell(content, arm, env) for env in envs)] for arm in arms]
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
                tables.append(_differences_table(page, label, pairs, len(tables)))
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
    return join(*parts)


def _scale(content: Content, env: str) -> float:
    """How large the returns of a task are: all numbers about it have the same digits."""
    return max(abs(estimate.value) for (_, other), estimate in content.results.final.items() if other == env)


def _final_cell(content: Content, arm: str, env: str) -> Html:
    cell = content.cells.get((arm, env))
    if cell is None or cell.last is None:
        return _cell(None, 1.0)
    so_far = "" if cell.finished else f", so far, at step {int(cell.last.steps[-1]):,}"
    return _cell(content.results.final[arm, env], _scale(content, env), f"({len(cell.last.seeds)}{so_far})")


def _cell(estimate: Interval | None, scale: float, *more: Piece) -> Html:
    """A cell of a table with a number, its interval and what else is to be said; `scale` sets how many digits."""
    if estimate is None:
        return element("td", {}, NOTHING)
    spaced = [piece for each in more for piece in (" ", each)]
    interval = element("span", {"class": "ci"}, format_ends(estimate, scale))
    return element("td", {}, format_number(estimate.value, scale), " ", interval, *spaced)


def _differences_table(page: PageBuilder, label: str, pairs: Mapping[str, str], place: int) -> Html:
    """The table of the differences of pairs of algorithms; of several tables, the first is shown."""
    content = page.content
    by_task = {env: content.results.gains(pairs, env) for env in content.collection.envs}
    by_task = {env: found for env, found in by_task.items() if found}
    overall = content.results.gains(pairs, None)
    head: list[Piece] = ["algorithm", *by_task, *(["all tasks, normalized"] if overall else [])]
    rows = []
    for arm, against in pairs.items():
        if any(arm in found for found in by_task.values()):
            cells = [_difference_cell(found.get(arm), _scale(content, env)) for env, found in by_task.items()]
            cells.append(_difference_cell(overall.get(arm), 1.0))
            rows.append([page.name(arm, against), *cells][: len(head)])
    attributes: dict[str, str | None] = {"data-baseline": str(place)}
    return element("div", attributes | ({"hidden": None} if place else {}), table(f"Minus {label}", head, rows))


def _difference_cell(difference: Difference | None, scale: float) -> Html:
    if difference is None:
        return _cell(None, scale)
    interval = difference.interval
    words = [element("span", {"class": interval.verdict}, interval.verdict)] if interval.excludes(0.0) else []
    return _cell(interval, scale, *words)


def aggregates(page: PageBuilder) -> Html | None:
    """Statistics of normalized scores over tasks."""
    results = page.content.results
    if not results.final:
        return None
    found = results.aggregates
    reasons = bullet_list(f"{env}: {reason}." for env, reason in results.left_out.items())
    if found is None:
        none = paragraph("There is no task on which all algorithms have been evaluated at the same last step.")
        return join(none, fold("What is missing", reasons))
    low, high = _find_ends([estimate for by_arm in found.statistics.values() for estimate in by_arm.values()])
    rows = []
    for arm in found.profiles:
        estimates = [by_arm[arm] for by_arm in found.statistics.values()]
        cells = [_cell(estimate, 1.0, _draw_mark(estimate, low, high, page.number(arm))) for estimate in estimates]
        rows.append([page.name(arm), *cells])
    ends = [(env, format_number(bottom), format_number(top)) for env, (bottom, top) in found.references.items()]
    parts = [
        paragraph(
            "Last evaluations are normalized task by task: 0 is the lowest evaluation that any algorithm's mean had "
            "at any step, 1 is the last evaluation of the best algorithm's mean. IQM is the mean of the middle half of "
            "all runs; mean and median are of the tasks' means. Brackets are 95% intervals of a stratified bootstrap "
            f"({RESAMPLES:,} draws): runs are redrawn within each task, so they say how other seeds would have turned "
            "out, not other tasks."
        ),
        table("Normalized scores over tasks", ("algorithm", *found.statistics), rows),
        paragraph(f"All drawings reach from {format_number(low, 1.0)} to {format_number(high, 1.0)}."),
        fold("What 0 and 1 stand for", table("Returns that are normalized to", ("task", "0", "1"), ends)),
    ]
    if results.left_out:
        parts.append(fold("Tasks that are left out here", reasons))
    return join(*parts)


def _find_ends(estimates: Sequence[Interval]) -> tuple[float, float]:
    """The least and the largest end of all intervals, a little apart if they are the same."""
    ends = [end for each in estimates for end in (each if each.bounded else [each.value])]
    low, high = min(ends), max(ends)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _draw_mark(estimate: Interval, low: float, high: float, arm: int) -> Html:
    """The interval as a line with a dot, between the ends of the column."""

    def at(value: float) -> str:
        return f"{5 + (value - low) / (high - low) * (MARK_WIDTH - 10):.1f}"

    parts = [element("path", {"class": "rail", "d": f"M{at(low)} 7H{at(high)}"})]
    if estimate.bounded:
        parts.append(element("path", {"class": "line", "d": f"M{at(estimate.low)} 7H{at(estimate.high)}"}))
    parts.append(element("circle", {"class": "dot", "cx": at(estimate.value), "cy": "7", "r": "3.5"}))
    size = {"width": str(MARK_WIDTH), "height": "14", "aria-hidden": "true"}
    return element("svg", {"class": f"mark arm-{arm}"} | size, *parts)


def profiles(page: PageBuilder) -> Html | None:
    """The performance profiles."""
    chart = profile_chart(page.content)
    if chart is None:
        return None
    legend = element("div", {"class": "controls", "role": "group", "aria-label": "Algorithms"}, *page.legend())
    return join(
        paragraph(
            "The share of runs that end above each normalized score, averaged over tasks; a line that lies above "
            "another is better at that score. Bands are 95% intervals of the same bootstrap, at each score for "
            "itself."
        ),
        legend,
        element("div", {"class": "charts one"}, element("figure", {}, page.add_chart(chart))),
    )


def improvement(page: PageBuilder) -> Html | None:
    """The matrix of probabilities of improvement."""
    found = page.content.results.improvement
    if not found:
        return None
    arms = [arm for arm in page.content.collection.arms if any(arm in pair for pair in found)]
    rows = [[page.name(row), *(_probability_cell(found.get((row, column))) for column in arms)] for row in arms]
    return join(
        paragraph(
            "How likely a run of the row's algorithm is to end above one of the column's on the same task, "
            "averaged over the tasks that both have; ties count half, so 0.5 says that neither is better. Brackets "
            "are bootstrap intervals. Bold: the interval leaves out 0.5."
        ),
        table("P(row ends above column)", ("algorithm", *arms), rows, "matrix"),
    )


def _probability_cell(estimate: Interval | None) -> Html:
    if estimate is None:
        return element("td", {}, NOTHING)
    shown = f"{estimate.value:.2f}"
    main = element("strong", {}, shown) if estimate.excludes(0.5) else shown
    ends = element("span", {"class": "ci"}, estimate.format_ends(".2f"))
    return element("td", {"class": f"heat-{round(10 * estimate.value)}"}, main, ends)


def efficiency(page: PageBuilder) -> Html | None:
    """How soon scores were reached, and the area under the curves."""
    results = page.content.results
    if not results.average:
        return None
    rows = []
    for (arm, env), average in results.average.items():
        reached = [_goal_cell(each) for each in results.goals[arm, env]]
        rows.append([page.name(arm), env, *reached, _cell(average, _scale(page.content, env))])
    rows.sort(key=lambda row: row[1])
    goals = [f"steps to {goal:.0%}" for goal in GOALS]
    return join(
        paragraph(
            "The median over seeds of the first step whose evaluation is at least that far up from the lowest mean "
            "evaluation of the task to the best algorithm's last one, and how many seeds got there. The area is "
            "that under the evaluation curve divided by its length: a return averaged over steps, with Student's "
            "95% interval; curves of different lengths are not comparable by it."
        ),
        table("Sample efficiency", ("algorithm", "task", *goals, "area under the curve"), rows),
    )


def _goal_cell(goal: StepsToGoal) -> Html:
    count = f" ({goal.reached} of {goal.runs})"
    steps = "not reached" if goal.median == float("inf") else format_steps(goal.median)
    return element("td", {}, steps, element("span", {"class": "ci"}, count))
