"""Var(plain mean) / Var(QEM) as it should be: independent errors, variances known exactly.

This is the question of Proposition 4.2(ii) and Table 4 with the right variance, [(X'V⁻¹X)⁻¹]₁₁, given the levels.
For random levels it is one side only: the plain mean also carries the error of the draw of the levels, which QEM
removes for the most part (see the item `iqn-variance`).
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from qemrl.estimators import midpoints, variance_reduction
from qemrl.experiments.statistics import mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim, count_share
from qemrl.paper.items.table_4 import RARE, random_problems
from qemrl.plotting.style import LOOKS, heading, level_line

COUNTS = (32, 128, 500)
LARGEST = (2, 5, 20)
ORDERS = (2, 3, 4)
TRIALS = {"smoke": 1_000, "small": 6_000, "paper": 50_000}

Key = tuple[str, int, int, int]
Ratios = dict[Key, Float[np.ndarray, " trials"]]
"""The ratio in each trial, by kind of levels, order, number of quantiles and largest variance."""


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """The ratio for midpoints and random levels, orders 2 to 4, and variances uniform on [1, M]."""
    rng = np.random.default_rng(seed)
    ratios: Ratios = {}
    work = 0
    for count in COUNTS:
        for largest in LARGEST:
            for kind in ("midpoints", "random"):
                for order, values in variance_ratios(rng, TRIALS[scale], count, largest, kind).items():
                    ratios[kind, order, count, largest] = values
            work += count
            tick(work / (len(LARGEST) * sum(COUNTS)))
    notes = [
        "The ratio is given the levels: for random levels it leaves out the error that their draw causes.",
        "Orders 2 to 4 see the same levels and variances.",
        "At midpoints order 2 wins by the Gauss-Markov theorem, for any variances. Order 4 wins in these draws, but "
        "not always: not with the paper's V = 1.2 in the tails at N = 32 (see the item correlated-noise).",
    ]
    return Result([_row(key, values) for key, values in ratios.items()], _draw(ratios), [*_claims(ratios)], notes)


def variance_ratios(
    rng: np.random.Generator, trials: int, count: int, largest: int, kind: str
) -> dict[int, Float[np.ndarray, " trials"]]:
    """Var(mean) / Var(QEM) of each trial, by order; above one where QEM has less variance."""
    chunks: dict[int, list[np.ndarray]] = {order: [] for order in ORDERS}
    for levels, variances in random_problems(rng, trials, count, largest):
        used = np.broadcast_to(midpoints(count), levels.shape) if kind == "midpoints" else levels
        plain = variances.mean(-1) / count
        for order in ORDERS:
            chunks[order].append(plain / (plain - variance_reduction(used, variances, order)))
    return {order: np.concatenate(parts) for order, parts in chunks.items()}


def _row(key: Key, values: Float[np.ndarray, " trials"]) -> dict[str, str | int | float]:
    kind, order, count, largest = key
    mean = mean_interval(values)
    return {
        "levels": kind,
        "order": order,
        "quantiles": count,
        "largest": largest,
        "trials": len(values),
        "minimum": float(values.min()),
        "mean": mean.value,
        "mean_low": float(mean.low),
        "mean_high": float(mean.high),
        "share_below_1": float((values < 1).mean()),
    }


def _claims(ratios: Ratios) -> Iterator[Claim]:
    meaning = "share of the draws in which QEM has more variance than the plain mean"
    for order in (2, 4):
        draws = np.concatenate([v for (kind, o, _, _), v in ratios.items() if kind == "midpoints" and o == order])
        yield check_claim(
            f"midpoints-order-{order}",
            "Proposition 4.2(ii)",
            f"At midpoints, with unequal and known variances, QEM of order {order} has less variance.",
            f"it has more in less than {RARE:.1%} of the draws over all N and M",
            count_share(draws < 1),
            meaning,
            below=RARE,
        )
    for order in (2, 4):
        yield check_claim(
            f"random-levels-order-{order}",
            "Appendix E.1",
            f"With the random levels of IQN, QEM of order {order} has less variance all the same.",
            f"it has more in less than {RARE:.1%} of the draws with N = 32 and M = 2",
            count_share(ratios["random", order, 32, 2] < 1),
            meaning,
            below=RARE,
        )


def _draw(ratios: Ratios) -> Figure:
    """Where the ratio lies, by levels (rows), number of quantiles (columns), order and largest variance."""
    kinds = {"midpoints": "fixed midpoints", "random": "random levels"}
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots(2, len(COUNTS), sharex=True, sharey=True)
    for row, kind in enumerate(kinds):
        for axis, count in zip(axes[row], COUNTS, strict=True):
            _draw_panel(axis, ratios, kind, count)
        axes[row, 0].set_ylabel(f"{kinds[kind]}\nVar(mean) / Var(QEM)")
    for column, count in enumerate(COUNTS):
        axes[0, column].set_title(f"N = {count} quantiles")
        axes[1, column].set_xlabel("largest variance M")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ORDERS), fontsize=8)
    heading(figure, "Mean and range of 95% of the draws; above the line QEM has less variance")
    return figure


def _draw_panel(axis: Axes, ratios: Ratios, kind: str, count: int) -> None:
    level_line(axis, 1.0)
    for place, (order, look) in enumerate(zip(ORDERS, LOOKS, strict=False)):
        draws = np.array([ratios[kind, order, count, largest] for largest in LARGEST])
        places = np.arange(len(LARGEST)) + 0.2 * (place - 1)
        low, high = np.quantile(draws, [0.025, 0.975], axis=1)
        axis.vlines(places, low, high, color=look.color, lw=1.2)
        axis.plot(places, draws.mean(1), ls="", marker=look.marker, color=look.color, ms=4.5, label=f"order {order}")
    axis.set_yscale("log")
    axis.set_xticks(range(len(LARGEST)), [str(largest) for largest in LARGEST])
    axis.set_xlim(-0.5, len(LARGEST) - 0.5)
    axis.set_yticks([0.5, 0.7, 1, 1.4, 2])
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())
