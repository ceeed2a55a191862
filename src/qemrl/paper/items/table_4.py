"""The minimum of the paper's f over random levels and variances, and what f > 0 is worth.

The paper takes f > 0 as its condition for QEM to have less variance than the plain mean, and reports the smallest
f among 100,000 trials. `paper_condition` is f to the letter; `variance_reduction` is what decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qemrl.estimators import paper_condition, variance_reduction
from qemrl.experiments.statistics import Interval, mean_interval, share_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim
from qemrl.plotting import style as figures
from qemrl.plotting.style import LOOKS, LineStyle, level_line

PRINTED: dict[tuple[int, int], float] = {
    (32, 2): 0.614,
    (32, 5): 4.778,
    (32, 20): 43.143,
    (128, 2): 0.932,
    (128, 5): 7.707,
    (128, 20): 76.489,
    (500, 2): 1.082,
    (500, 5): 9.357,
    (500, 20): 96.473,
}
"""The paper's minima, by the number of quantiles N and the largest variance M."""

SIZES = {"smoke": (3, 1_000), "small": (4, 20_000), "paper": (5, 100_000)}
"""Blocks, and trials in each; the paper has one block of 100,000."""

RARE = 0.001
"""The rule for "never": in less than one draw of a thousand."""

CHUNK = 1_000_000


@dataclass(frozen=True)
class Cell:
    """f in blocks of trials, for one number of quantiles and one range of variances."""

    minima: Float[np.ndarray, " blocks"]
    means: Float[np.ndarray, " blocks"]


def random_problems(
    rng: np.random.Generator, trials: int, count: int, largest: int
) -> Iterator[tuple[Float[np.ndarray, "some n"], Float[np.ndarray, "some n"]]]:
    """Levels, uniform on (0, 1), and variances, uniform on [1, `largest`], in chunks that fit into memory."""
    rows = max(1, CHUNK // count)
    for start in range(0, trials, rows):
        shape = (min(rows, trials - start), count)
        yield rng.random(shape), rng.uniform(1, largest, shape)


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """The minima for variances on [1, M] and on [1, M + 1], next to the printed ones."""
    rng = np.random.default_rng(seed)
    blocks, trials = SIZES[scale]
    total = 2 * sum(count for count, _ in PRINTED)
    stated, wider, work = {}, {}, 0
    for count, largest in PRINTED:
        for cells, end in ((stated, largest), (wider, largest + 1)):
            cells[count, largest] = _cell(rng, blocks, trials, count, end)
            work += count
            tick(0.98 * work / total)
    shares = _wrong_shares(rng, blocks * trials)
    tick(1.0)
    rows = [_row(key, stated[key], wider[key], trials) for key in PRINTED]
    within = [sum(row[f"printed_within_{name}"] == "yes" for row in rows) for name in ("stated", "wider")]
    notes = [
        f"Minima are over {trials:,} trials, their range over {blocks} blocks of trials; the levels are drawn anew in "
        "each trial. A minimum falls as trials are added, so only the scale with the paper's 100,000 compares.",
        f"{within[0]} of the 9 printed minima lie within the range for [1, M], {within[1]} within that for [1, M + 1].",
        "f is not positive by necessity: all v = 1, which [1, M] allows, gives f ≤ 0 for any levels. The smallest f of "
        f"all trials with v from [1, M] is {min(float(cell.minima.min()) for cell in stated.values()):.3f}.",
    ]
    return Result(rows, _draw(stated, wider), [*_claims(stated, shares)], notes)


def _cell(rng: np.random.Generator, blocks: int, trials: int, count: int, largest: int) -> Cell:
    minima, means = np.empty(blocks), np.empty(blocks)
    for block in range(blocks):
        values = np.concatenate([paper_condition(*each) for each in random_problems(rng, trials, count, largest)])
        minima[block], means[block] = values.min(), values.mean()
    return Cell(minima, means)


def _wrong_shares(rng: np.random.Generator, trials: int) -> dict[int, Interval]:
    """By order, the share of draws with f > 0 in which QEM has more variance than the mean; N = 32, M = 2."""
    wrong, met = {2: 0, 4: 0}, 0
    for levels, variances in random_problems(rng, trials, 32, 2):
        promised = paper_condition(levels, variances) > 0
        met += int(promised.sum())
        for order in wrong:
            wrong[order] += int((promised & (variance_reduction(levels, variances, order) < 0)).sum())
    return {order: share_interval(hits, met) for order, hits in wrong.items()}


def _row(key: tuple[int, int], stated: Cell, wider: Cell, trials: int) -> dict[str, str | int | float]:
    row: dict[str, str | int | float] = {"quantiles": key[0], "largest": key[1], "trials": trials}
    row["printed"] = PRINTED[key]
    for name, cell in (("stated", stated), ("wider", wider)):
        low, high = float(cell.minima.min()), float(cell.minima.max())
        row[f"{name}_lowest"], row[f"{name}_highest"] = low, high
        row[f"{name}_mean_f"] = float(cell.means.mean())
        row[f"printed_within_{name}"] = "yes" if low <= PRINTED[key] <= high else "no"
    return row


def _claims(stated: dict[tuple[int, int], Cell], shares: dict[int, Interval]) -> Iterator[Claim]:
    yield check_claim(
        "f-is-positive",
        "Appendix E.1",
        "With random levels and random variances the smallest f among many trials is positive.",
        "the expected minimum over a block of trials is above 0 for each N and M",
        min((mean_interval(cell.minima) for cell in stated.values()), key=lambda interval: interval.value),
        "the mean of the blocks' minima, for the N and M where it is smallest",
        above=0.0,
    )
    yield check_claim(
        "printed-minima",
        "Table 4",
        "The table lists the smallest f among trials with variances from [1, M].",
        "no minimum exceeds the mean: E[f] for N = 500 and M = 5 is above the printed 9.357",
        mean_interval(stated[500, 5].means),
        "the mean of f for N = 500 and variances from [1, 5]",
        above=PRINTED[500, 5],
    )
    for order, share in shares.items():
        yield check_claim(
            f"f-implies-less-variance-order-{order}",
            "Proposition 4.2(ii)",
            f"Where f > 0, QEM of order {order} has less variance than the plain mean.",
            f"it has more in less than {RARE:.1%} of the draws with f > 0 (random levels, N = 32, M = 2)",
            share,
            "share of the draws with f > 0 in which QEM has more variance",
            below=RARE,
        )


def _draw(stated: dict[tuple[int, int], Cell], wider: dict[tuple[int, int], Cell]) -> Figure:
    """Our minima over the printed ones: a printed value is right where the marks are at one."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axis = figure.subplots()
    level_line(axis, 1.0)
    _draw_ranges(axis, stated, LOOKS[0], -0.13, "v uniform on [1, M], as the paper says")
    _draw_ranges(axis, wider, LOOKS[2], 0.13, "v uniform on [1, M + 1]")
    axis.set_xticks(range(len(PRINTED)), [f"M = {largest}" for _, largest in PRINTED])
    for place, count in enumerate((32, 128, 500)):
        axis.text(3 * place + 1, -0.09, f"N = {count}", transform=axis.get_xaxis_transform(), ha="center", va="top")
    for edge in (2.5, 5.5):
        axis.axvline(edge, color=figures.MUTED, lw=0.4)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.set_ylabel("smallest f of our trials / printed minimum")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _draw_ranges(axis: Axes, cells: dict[tuple[int, int], Cell], look: LineStyle, shift: float, label: str) -> None:
    ratios = np.array([cells[key].minima / printed for key, printed in PRINTED.items()])
    places = np.arange(len(ratios)) + shift
    axis.vlines(places, ratios.min(1), ratios.max(1), color=look.color, lw=1.5)
    axis.plot(places, ratios.mean(1), ls="", marker=look.marker, color=look.color, ms=4.5, label=label)
