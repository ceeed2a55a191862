"""What the FrozenLake item is made of: the truth, training runs, and fixed points."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from qemrl.estimators import QEM, BandVariance, ConstantVariance, EmpiricalMean, Estimator, TailVariance, midpoints
from qemrl.paper.claims import Tick
from qemrl.tabular import (
    DiscreteDistribution,
    Geometric,
    History,
    Learning,
    Quantiles,
    Solution,
    Steps,
    TabularMDP,
    categorical_fixed_point,
    expectile_fixed_point,
    frozen_lake,
    learn,
    quantile_fixed_point,
    return_distribution,
    solve,
    start_distances,
    start_error,
    temporal_std,
)

QUANTILES, RECORD = 128, 1_000
"""Table 1's number of quantiles; steps between records."""

LEARNING_RATE = Steps((0.05, 0.025, 0.0125), (50_000, 100_000))
EPSILON = Geometric(0.9, 100)
VARIANTS: dict[str, Literal["steps", "episodes"]] = {"literal": "steps", "repaired": "episodes"}


def make_estimators(gap: float) -> dict[str, Estimator]:
    """The estimators that are compared; `gap` is the level at which the return jumps from zero."""
    return {
        "mean": EmpiricalMean(),
        "QEM, V = I": QEM(),
        "QEM, V of the paper": QEM(variance=BandVariance(1.5, 0.45, 0.55)),
        "QEM, V at the gap": QEM(variance=BandVariance(1.5, max(gap - 0.05, 0.0), gap + 0.05)),
    }


class Truth(NamedTuple):
    """What is known exactly."""

    mdp: TabularMDP
    solution: Solution
    returns: DiscreteDistribution

    @property
    def value(self) -> float:
        """V* of the first state."""
        return float(self.solution.v[self.mdp.start])

    @property
    def gap(self) -> float:
        """The level at which the quantile function of the return jumps from zero."""
        return float(self.returns.cdf(np.array([0.0]))[0])


class Arm(NamedTuple):
    """One estimator in one variant, over all seeds."""

    errors: Float[np.ndarray, "seeds t"]
    """Q̂ less V* in the first state."""
    distances: Float[np.ndarray, "seeds t"]
    """W₁ to the true distribution of the return."""
    moves: Float[np.ndarray, " seeds"]
    """The standard deviation of Q̂ over the last third of training."""
    optimal: Float[np.ndarray, " seeds"]
    """One where the first action is the optimal one in the end."""
    history: History

    @property
    def late_errors(self) -> Float[np.ndarray, " seeds"]:
        """The mean |Q̂ − V*| over the last third of training."""
        return np.abs(self.errors[:, -(self.errors.shape[1] // 3) :]).mean(-1)


def find_truth() -> Truth:
    """The process, its solution, and the distribution of the return from the start."""
    mdp = frozen_lake()
    solution = solve(mdp)
    return Truth(mdp, solution, return_distribution(mdp, solution.policy, mdp.start))


def control(truth: Truth, variant: str, estimator: Estimator, streams: list[int], steps: int, tick: Tick) -> Arm:
    """One estimator in one variant, trained with every seed and measured in the first state."""
    representation = Quantiles(QUANTILES, estimator)
    learning = Learning(representation, steps, LEARNING_RATE, EPSILON, VARIANTS[variant], record_every=RECORD)
    history = learn(truth.mdp, learning, streams, tick=tick)
    start = truth.mdp.start
    best = history.q[:, -1, start].argmax(-1)
    moving = temporal_std(history, len(history.steps) // 3)[:, start]
    return Arm(
        start_error(truth.mdp, history, truth.value),
        start_distances(truth.mdp, history, representation, truth.returns),
        np.take_along_axis(moving, best[:, None], -1)[:, 0].astype(np.float64),
        (best == truth.solution.policy[start]).astype(np.float64),
        history,
    )


def evaluate(truth: Truth, streams: list[int], steps: int) -> dict[str, Float[np.ndarray, " seeds"]]:
    """The error of Q̂(S) in the end when the optimal policy is followed; the learned quantiles are the same for all."""
    learning = Learning(Quantiles(QUANTILES), steps, LEARNING_RATE, record_every=steps)
    history = learn(truth.mdp, learning, streams, truth.solution.policy)
    start = truth.mdp.start
    rows = history.rows[:, -1, truth.solution.policy[start]].astype(np.float64)
    return {name: e.mean(rows, midpoints(QUANTILES)) - truth.value for name, e in make_estimators(truth.gap).items()}


def _candidates(gap: float) -> list[Estimator]:
    """Every estimator that may repair a fixed point: orders 1 to 6, both bases, four models of V."""
    variances = [ConstantVariance(), TailVariance(1.5), BandVariance(1.5, 0.45, 0.55)]
    variances += [BandVariance(1.5, max(gap - 0.05, 0.0), gap + 0.05)]
    return [QEM(order, v, basis) for order in range(1, 7) for v in variances for basis in ("hermite", "legendre")]


class Point(NamedTuple):
    """What dynamic programming with a representation of size `size` makes of Q(S)."""

    representation: str
    size: int
    mean: float
    """Q by the plain mean, less V*."""
    order_4: float
    """Q by QEM of order 4, less V*; for other representations the same as `mean`."""
    best: float
    """The smallest error of all estimators, in absolute value."""


def fixed_points(truth: Truth) -> list[Point]:
    """Where dynamic programming ends with 8 to 512 quantiles, 51 categories and 11 expectiles."""
    mdp, policy, start = truth.mdp, truth.solution.policy, truth.mdp.start
    points = []
    for size in (8, 32, 128, 512):
        values, levels = quantile_fixed_point(mdp, policy, size)[start], midpoints(size)
        best = min(abs(float(e.mean(values, levels)) - truth.value) for e in _candidates(truth.gap))
        mean, order_4 = (float(e.mean(values, levels)) - truth.value for e in (EmpiricalMean(), QEM()))
        points.append(Point("quantiles", size, mean, order_4, best))
    support = np.linspace(-0.5, 1.5, 51)
    means = {
        ("categories", 51): float(categorical_fixed_point(mdp, policy, support)[start] @ support),
        ("expectiles", 11): float(expectile_fixed_point(mdp, policy, 11)[start, 5]),
    }
    for (name, size), mean in means.items():
        error = mean - truth.value
        points.append(Point(name, size, error, error, abs(error)))
    return points
