"""Print the tables of docs/estimators.md: where QEM beats the plain mean, and where it does not."""

import numpy as np

import qemrl
from qemrl import DISTRIBUTIONS, QEM, EmpiricalMean, TailVariance, midpoints

PLAIN, LEGENDRE = EmpiricalMean(), QEM(4, basis="legendre")


def table(title: str, columns: dict, cell, digits: int) -> None:
    """Print a Markdown table with a row for each distribution; `cell` gives the number of a column in it."""
    print(f"\n{title}\n\n| distribution | {' | '.join(columns)} |\n|---|" + "---:|" * len(columns))
    for distribution in DISTRIBUTIONS.values():
        cells = [f"{float(cell(distribution, column)):.{digits}f}".replace("-", "−") for column in columns.values()]
        print(f"| {distribution.name} | {' | '.join(cells)} |")


def ratio(distribution, column) -> float:
    """Var(mean) / Var(QEM) at midpoints."""
    count, variance, noise = column
    return qemrl.efficiency(QEM(4, variance), distribution, midpoints(count), noise)


def bias(distribution, column) -> float:
    """The bias on exact quantiles at midpoints, in standard deviations."""
    estimator, count = column
    return qemrl.estimation_error(estimator, distribution, midpoints(count), qemrl.SGDNoise()).bias / distribution.std


def sampling(distribution, column) -> float:
    """The mean squared error that random levels cause on exact quantiles, over Var(Z)."""
    estimator, draw, count = column
    return (
        qemrl.sampling_error(estimator, distribution, draw, count, np.random.default_rng(0)).mse / distribution.std**2
    )


if __name__ == "__main__":
    noises = {"sample quantiles": qemrl.SampleQuantileNoise(), "SGD": qemrl.SGDNoise()}
    cells = {}
    for count, value in ((200, 1.5), (32, 1.2)):
        variance = TailVariance(value)
        models = {"independent, V true": qemrl.IndependentNoise(variance), **noises}
        cells |= {f"N={count}, {name}": (count, variance, noise) for name, noise in models.items()}
    table("Var(mean) / Var(QEM, order 4, the paper's V) at midpoints", cells, ratio, 3)

    named = {"mean": PLAIN, "order 2, V": QEM(2, TailVariance(1.2)), "order 4": QEM(4), "Legendre 4": LEGENDRE}
    table("Bias on exact quantiles, N=32", {k: (e, 32) for k, e in named.items()}, bias, 4)
    table("Bias on exact quantiles, N=200", {k: (e, 200) for k, e in named.items()}, bias, 4)

    uniform, stratified = qemrl.uniform_levels, qemrl.stratified_levels
    pairs = {"mean": (PLAIN, uniform), "QEM 2": (QEM(2), uniform), "QEM 4": (QEM(4), uniform)}
    pairs |= {"Legendre 4": (LEGENDRE, uniform), "antithetic": (PLAIN, qemrl.antithetic_levels)}
    pairs |= {"stratified": (PLAIN, stratified), "stratified QEM 4": (QEM(4), stratified)}
    pairs |= {"cumulative": (PLAIN, qemrl.cumulative_levels)}
    pairs |= {"midpoints": (PLAIN, lambda _, shape: np.tile(midpoints(shape[-1]), (shape[0], 1)))}
    for count in (8, 32, 64):
        columns = {k: (estimator, draw, count) for k, (estimator, draw) in pairs.items()}
        table(f"Mean squared error / Var(Z) from random levels alone, K={count}", columns, sampling, 5)
