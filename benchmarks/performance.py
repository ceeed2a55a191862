"""The page docs/performance.md: what all benches measured, as Markdown tables.

It is made of bench.json alone, so it can be made again without measuring.
"""

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.actor_critic import Engine
from benchmarks.estimator import Comparison
from benchmarks.iterations import Overhead, Share
from benchmarks.representations import MEGABYTES, Memory
from benchmarks.scaling import Growth, Point
from benchmarks.tabular import TabularComparison
from benchmarks.turns import Speed
from benchmarks.value import TASKS
from qemrl.training.machine import shorten_commit


class Sheet(NamedTuple):
    """A table: of a column with `>` before its name, the cells are flush right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    holds: Sequence[bool | None] = ()
    """Whether each row keeps what is wanted of it; None where nothing is. Empty where nothing is wanted at all."""


class Section(NamedTuple):
    """What the page says of one bench."""

    title: str
    words: str
    sheets: Callable[[Mapping[str, Any]], list[Sheet]]
    """The tables of a report."""


INTRODUCTION = (
    "What things cost, us against others. `make bench` measures all of it and writes bench.json; `python -m "
    "benchmarks page` makes this page of that file again, without measuring. Nothing here is written by hand.",
    "Sides of a comparison are timed in turns. A ratio is the median over turns, each compared with its twin, so it "
    "need not be the quotient of the two medians beside it. What is wanted of it is in the column `at least` or `at "
    "most`, and how often that holds in the last column here:",
)

WIDTH = 120
"""Of lines of words."""


def make_page(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The page.

    Args:
        record: What bench.json holds: for each bench its command, date, commit and report.
    """
    there = [name for name in SECTIONS if name in record]
    sheets = {name: SECTIONS[name].sheets(record[name]["report"]) for name in there}
    parts = ["# Performance\n", *map(write_paragraph, INTRODUCTION), write_table(_sources(record, sheets))]
    if missing := [f"`python -m benchmarks {name}`" for name in SECTIONS if name not in record]:
        parts.append(write_paragraph(f"Not measured yet: {', '.join(missing)}."))
    for name in there:
        title, words, _ = SECTIONS[name]
        parts += [f"## {title}\n", write_paragraph(words)]
        if packages := record[name]["report"]["machine"].get("peer"):
            parts.append(write_paragraph(f"Peers: {packages.replace(' ', ', ')}."))
        for sheet in sheets[name]:
            parts += [f"### {sheet.title}\n", write_table(sheet)]
    return "\n".join(parts)


def write_paragraph(words: str) -> str:
    """Words in lines that are not too long."""
    return textwrap.fill(words, WIDTH, break_on_hyphens=False) + "\n"


def _sources(record: Mapping[str, Mapping[str, Any]], sheets: Mapping[str, list[Sheet]]) -> Sheet:
    """Where each bench's figures come from, and how many wanted ratios hold."""
    rows = []
    for name, made in sheets.items():
        entry = record[name]
        machine = ", ".join(f"{key} {value}" for key, value in entry["report"]["machine"].items() if key != "peer")
        judged = [each for sheet in made for each in sheet.holds if each is not None]
        kept = f"{sum(judged)} of {len(judged)}" if judged else ""
        # A commit may be marked as changed, or unknown where the package is installed.
        commit = "" if entry["commit"] is None else shorten_commit(entry["commit"], 7)
        rows.append((f"`{entry['command']}`", entry["date"], commit, machine, kept))
    return Sheet("", ("command", "date", "commit", "machine", ">holds"), rows)


def write_table(sheet: Sheet) -> str:
    """A table in Markdown, without its title."""
    rows, columns = [list(row) for row in sheet.rows], list(sheet.columns)
    if sheet.holds:
        columns.append("holds")
        words = {True: "yes", False: "**no**", None: ""}
        rows = [[*row, words[holds]] for row, holds in zip(rows, sheet.holds, strict=True)]
    names = [column.removeprefix(">") for column in columns]
    rules = ["---:" if column.startswith(">") else "---" for column in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (names, rules, *rows))


def _estimator(report: Mapping[str, Any]) -> list[Sheet]:
    lines = [Comparison(**(line | {"shape": tuple(line["shape"])})) for line in report["comparisons"]]
    columns = ("levels", "shape", "timed", "what", ">µs", "against", ">µs", ">ratio", ">at most")
    rows = [
        (
            line.levels,
            " x ".join(map(str, line.shape)),
            line.timed,
            line.what,
            f"{line.microseconds:.1f}",
            line.peer,
            f"{line.peer_microseconds:.1f}",
            f"{line.ratio:.3f}",
            line.most,
        )
        for line in lines
    ]
    return [Sheet("Time of a batch", columns, rows, [line.holds for line in lines])]


def _tabular(report: Mapping[str, Any]) -> list[Sheet]:
    lines = [TabularComparison(**line) for line in report["comparisons"]]
    columns = ("what", ">seeds", ">ours, steps/s", ">NumPy, steps/s", ">ratio", ">at least")
    rows = [
        (
            line.algorithm,
            str(line.seeds),
            f"{line.steps_per_second:,.0f}",
            f"{line.numpy_steps_per_second:,.0f}",
            f"{line.ratio:.1f}",
            f"{line.target:g}",
        )
        for line in lines
    ]
    return [Sheet("Steps per second of all seeds", columns, rows, [line.holds for line in lines])]


def _variance(report: Mapping[str, Any]) -> list[Sheet]:
    return [_overheads(report, "An update and the actions before it", "V estimated", "V fixed")]


def _representations(report: Mapping[str, Any]) -> list[Sheet]:
    lines = [Memory(**line) for line in report["memories"]]
    columns = ("settings", "representation", ">MB", "against", ">MB")
    rows = [
        (line.family, line.preset, f"{line.megabytes:,.1f}", line.peer, f"{line.peer_megabytes:,.1f}") for line in lines
    ]
    memory = Sheet(f"Memory of an update, at most {MEGABYTES:g} MB more", columns, rows, [line.holds for line in lines])
    return [_overheads(report, "An update", "representation", "against"), memory]


def _value(report: Mapping[str, Any]) -> list[Sheet]:
    title = "An update and the actions before it"
    titles = {name: task.title for name, task in TASKS.items()}
    return [_speeds(report, titles), _overheads(report, title, "with QEM", "without"), _shares(report)]


def _actor_critic(report: Mapping[str, Any]) -> list[Sheet]:
    return [
        _speeds(report, {}),
        _overheads(report, "An update", "with QEM", "without"),
        _shares(report),
        _engines(report),
    ]


def _speeds(report: Mapping[str, Any], titles: Mapping[str, str]) -> Sheet:
    lines = [Speed(**line) for line in report["speeds"]]
    columns = ("task", ">ours, steps/s", ">threads", "peer", ">steps/s", ">threads", ">ratio", ">at least")
    rows = [
        (
            titles.get(line.task, line.task) + (f", {line.seeds} seeds at once" if line.seeds > 1 else ""),
            f"{line.steps_per_second:,.0f}",
            str(line.threads),
            line.peer,
            f"{line.peer_steps_per_second:,.0f}",
            str(line.peer_threads),
            f"{line.ratio:.2f}",
            "" if line.target is None else f"{line.target:g}",
        )
        for line in lines
    ]
    return Sheet("Steps per second, learning included", columns, rows, [line.holds for line in lines])


def _overheads(report: Mapping[str, Any], title: str, ours: str, theirs: str) -> Sheet:
    lines = [Overhead(**line) for line in report["overheads"]]
    columns = ("settings", ours, ">ms", theirs, ">ms", ">ratio", ">at most")
    rows = [
        (
            line.family,
            line.preset,
            f"{line.milliseconds:.2f}",
            line.peer,
            f"{line.peer_milliseconds:.2f}",
            f"{line.ratio:.3f}",
            f"{line.limit:g}",
        )
        for line in lines
    ]
    return Sheet(title, columns, rows, [line.holds for line in lines])


def _shares(report: Mapping[str, Any]) -> Sheet:
    """The share of the roofline."""
    lines = [Share(**line) for line in report["shares"]]
    columns = ("update of", ">MFLOP", ">ms", ">GFLOP/s", ">peak, GFLOP/s", ">share")
    rows = [
        (
            line.task,
            f"{line.operations / 1e6:,.0f}",
            f"{line.milliseconds:.2f}",
            f"{line.gflops:.0f}",
            f"{line.peak_gflops:.0f}",
            f"{line.share:.0%}",
        )
        for line in lines
    ]
    return Sheet("Share of the peak of matrix products", columns, rows)


def _engines(report: Mapping[str, Any]) -> Sheet:
    lines = [Engine(**line) for line in report["engines"]]
    rows = [
        (line.name, f"{statistics.median(line.rates):,.0f}", f"{line.cores:.2f}", f"{line.ratio:.2f}") for line in lines
    ]
    return Sheet("Ways to run seeds of dsac-mlp", ("way", ">steps/s of all", ">cores busy", ">ratio"), rows)


def growth_sheets(report: Mapping[str, Any]) -> list[Sheet]:
    """A table for each thing that is counted: two rows for each agent, and a column for each number."""
    lines = [Growth(**(line | {"points": [Point(**point) for point in line["points"]]})) for line in report["growths"]]
    sheets = []
    for over in dict.fromkeys(line.over for line in lines):
        mine = [line for line in lines if line.over == over]
        numbers = [f">{point.number}" for point in mine[0].points]
        rows = [row for line in mine for row in _growth_rows(line)]
        sheets.append(Sheet(f"{report['env']} over {over}", (over, *numbers, ">exponent", ">ratio"), rows))
    return sheets


def _growth_rows(line: Growth) -> Iterable[Sequence[str]]:
    times = (_three_digits(point.milliseconds) for point in line.points)
    yield (f"{line.agent}: ms", *times, f"{line.exponent:.2f}", _three_digits(line.ratio))
    rates = (f"{point.steps_per_second:,.0f}" for point in line.points)
    yield (f"{line.agent}: steps/s", *rates, "", "")


def _three_digits(number: float) -> str:
    """The number with three digits that count, or with all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


SECTIONS: Mapping[str, Section] = {
    "value": Section(
        "Value agents",
        "QR-DQN against that of sb3-contrib (sb3), each at its better of one and two threads; what QEM adds; and how "
        "much of the machine's arithmetic an update of ours uses.",
        _value,
    ),
    "actor-critic": Section(
        "Actor-critics",
        "HalfCheetah, batches of 256, an update every step: against TQC and SAC of sb3-contrib and of SBX, each at its "
        "better of one and two threads; what QEM adds; how much of the machine's arithmetic an update of ours uses; "
        "and ways to run two seeds on two cores.",
        _actor_critic,
    ),
    "variance": Section(
        "Estimating V", "Agents that estimate V against the same agents with a V that is fixed.", _variance
    ),
    "representations": Section(
        "Representations",
        "An update of a fixed batch of 32 against one of the preset that each is derived from, and the arrays that it "
        "makes on its way.",
        _representations,
    ),
    "estimator": Section(
        "Estimators",
        "QEM alone, against the plain mean and against a forward pass of a small network: called from Python, or "
        "chained in one compiled program; and on PyTorch tensors, with one thread.",
        _estimator,
    ),
    "tabular": Section("Tabular learning", "FrozenLake with 128 quantiles against a plain loop in NumPy.", _tabular),
    "scaling": Section(
        "Scaling",
        "The time of a lap: four steps of each environment, and an update for each. Over seeds and environments that "
        "is in the compiled loop; over quantiles it is without the environment, and IQN has so many levels of each "
        "kind (N = N' = K). The exponent is that of the power of the number that fits the times best: with 1, twice "
        "the number takes twice the time. The ratio is the time with the largest number over that with the smallest.",
        growth_sheets,
    ),
}
"""What the page shows, in this order."""
