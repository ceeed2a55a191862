"""The errors of estimators whose weights are known: exact for given levels, averaged over draws of levels.

For distributions with atoms the means and covariances of learned quantiles are simulated: formulas of first order have
infinite slopes there. They are found at the levels of a grid, and between them joined by straight lines.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from qemrl.estimators import (
    QEM,
    ConstantVariance,
    Distribution,
    EmpiricalMean,
    EstimatedVariance,
    Estimator,
    IndependentNoise,
    Noise,
    SampleQuantileNoise,
    SGDNoise,
    SpacingVariance,
    SparsityVariance,
    TailVariance,
    VarianceInputs,
    VarianceModel,
    midpoints,
    stratified_levels,
    uniform_levels,
)
from qemrl.estimators.basis import BasisName
from qemrl.paper.claims import Scale, Tick, scale_tick
from qemrl.paper.items.v_study_distributions import all_distributions, names_with_atoms

DRAWS = {"smoke": 40, "small": 400, "paper": 2_000}
"""Draws of levels."""

REPEATS = {"smoke": 2, "small": 20, "paper": 100}
"""How many times as many for auto."""

COPIES = {"smoke": 500, "small": 4_000, "paper": 20_000}
"""Samples, and chains, that the errors of distributions with atoms are simulated with."""

REGRESSED = 2_000
"""Steps of such a chain: of 0.1 standard deviations each, enough to forget where it began."""

BLOCKS = 20
"""The number of blocks of draws of levels; their variation gives intervals."""

GRID = midpoints(64)
"""The levels at which learned quantiles are simulated."""

TABLE = 16_384
"""The number of quantiles of a distribution that returns are drawn from."""

NOISES: dict[str, Noise | None] = {
    "none": None,
    "independent": IndependentNoise(),
    "sample quantiles": SampleQuantileNoise(50),
    "SGD": SGDNoise(0.1),
}
"""What quantiles err by: nothing, a standard deviation each, as in 50 returns, as with steps of 0.1."""


class Condition(NamedTuple):
    """Where the levels come from, and how many there are."""

    sampler: str
    num_levels: int

    def __str__(self) -> str:
        return f"{self.sampler} {self.num_levels}"

    def draw(self, rng: np.random.Generator, draws: int) -> Float[np.ndarray, "draws n"]:
        """Levels, one set for each draw; midpoints are the same in all and given once for each block."""
        if self.sampler == "midpoints":
            return np.tile(midpoints(self.num_levels), (BLOCKS, 1))
        sample = {"uniform": uniform_levels, "stratified": stratified_levels}[self.sampler]
        return np.clip(sample(rng, (draws, self.num_levels)), 1e-4, 1 - 1e-4)


CONDITIONS = tuple(
    Condition(*pair)
    for pair in (("midpoints", 32), ("stratified", 8), ("stratified", 32), ("uniform", 8), ("uniform", 32))
)


class Arm(NamedTuple):
    """An estimator, with words for tables on its V and on what is averaged before it."""

    estimator: Estimator
    variance: str = "I"
    averaging: str = "none"

    @property
    def columns(self) -> dict[str, str | int]:
        """What the arm is made of, for tables."""
        qem = self.estimator if isinstance(self.estimator, QEM) else None
        order, basis = (1, "") if qem is None else (qem.order, qem.basis)
        return {"order": order, "basis": basis, "variance_model": self.variance, "averaging": self.averaging}


def exact_arms() -> dict[str, Arm]:
    """Every estimator, order, basis and V whose weights do not depend on chance but that of the levels.

    The slopes that the sparsity rule needs are those of the distribution itself: what a perfect EMA network would know.
    """
    arms = {
        "mean": Arm(EmpiricalMean()),
        "auto": Arm(QEM(2, SpacingVariance(), "legendre"), "spacing"),
        "cells": Arm(QEM(1, SpacingVariance(1.0), "legendre"), "cells"),
    }
    models: dict[str, VarianceModel | EstimatedVariance] = {
        "I": ConstantVariance(),
        "tail 1.5": TailVariance(1.5),
        "spacing": SpacingVariance(),
        "slope": SparsityVariance(1),
        "slope²": SparsityVariance(2),
        "slope, GLS": SparsityVariance(1, full=True),
        "slope², GLS": SparsityVariance(2, full=True),
    }
    bases: tuple[BasisName, ...] = ("hermite", "legendre")
    for (name, model), basis, order in product(models.items(), bases, (2, 3, 4)):
        if (name, basis, order) != ("spacing", "legendre", 2):  # which is auto
            arms[f"{basis[0].upper()}{order} {name}"] = Arm(QEM(order, model, basis), name)
    return arms


class Errors(NamedTuple):
    """Of one estimator on one distribution, block by block, in units of the distribution's variance."""

    bias: float
    """The mean error over all draws."""
    squares: Float[np.ndarray, " blocks"]
    """The mean square of the error that is left without noise."""
    variance: Float[np.ndarray, " blocks"]
    """The variance that the noise causes."""

    @property
    def mse(self) -> Float[np.ndarray, " blocks"]:
        return self.squares + self.variance


Measure = Callable[[Float[np.ndarray, "draws n"]], tuple[np.ndarray, np.ndarray]]
Key = tuple[str, str, str, str]
"""Condition, noise, distribution, arm."""


def repeat_auto_errors(
    distributions: dict[str, Distribution], scale: Scale, rng: np.random.Generator, tick: Tick
) -> dict[Key, Errors]:
    """The plain mean and auto, with many more draws: whether one is 1% worse than the other takes them."""
    arms, times = {name: arm for name, arm in exact_arms().items() if name in ("mean", "auto")}, REPEATS[scale]
    rounds = [
        exact_errors(distributions, scale, rng, scale_tick(tick, number / times, 1 / times), arms)
        for number in range(times)
    ]
    return {
        key: Errors(
            float(np.mean([found[key].bias for found in rounds])),
            np.concatenate([found[key].squares for found in rounds]),
            np.concatenate([found[key].variance for found in rounds]),
        )
        for key in rounds[0]
    }


def exact_errors(
    distributions: dict[str, Distribution],
    scale: Scale,
    rng: np.random.Generator,
    tick: Tick,
    arms: dict[str, Arm] | None = None,
) -> dict[Key, Errors]:
    """The given arms, or all, under all conditions and noises; all see the same levels."""
    results: dict[Key, Errors] = {}
    arms, done = arms or exact_arms(), 0
    for condition in CONDITIONS:
        levels = condition.draw(rng, DRAWS[scale])
        fixed = {name: weights for name, arm in arms.items() if (weights := _weights(arm, levels, None)) is not None}
        for name, distribution in distributions.items():
            values = distribution.quantile(levels)
            measures = {noise: _measure(distribution, noise, levels, values, scale) for noise in NOISES}
            for label, arm in arms.items():
                weights = fixed.get(label)
                weights = _weights(arm, levels, values) if weights is None else weights
                assert weights is not None
                for noise, measure in measures.items():
                    estimates, spread = measure(weights)
                    errors = (estimates - distribution.mean).reshape(BLOCKS, -1)
                    spread = spread.reshape(BLOCKS, -1).mean(-1)
                    key = (str(condition), noise, name, label)
                    results[key] = Errors(float(errors.mean()), (errors**2).mean(-1), spread)
            done += 1
            tick(done / (len(CONDITIONS) * len(distributions)))
    return results


def _weights(
    arm: Arm, levels: Float[np.ndarray, "draws n"], ema: Float[np.ndarray, "draws n"] | None
) -> Float[np.ndarray, "draws n"] | None:
    """The weights of the mean; None where V is to be estimated from `ema`, which is not given."""
    estimator = arm.estimator
    if not estimator.needs:
        return estimator.weights(levels)[..., 0, :]
    return None if ema is None else cast("QEM", estimator).weights(levels, None, VarianceInputs(ema=ema))[..., 0, :]


def _measure(
    distribution: Distribution,
    noise: str,
    levels: Float[np.ndarray, "draws n"],
    values: Float[np.ndarray, "draws n"],
    scale: Scale,
) -> Measure:
    """What gives the mean and the variance of an estimate, from its weights."""
    model = NOISES[noise]
    if model is not None and distribution.name in names_with_atoms() and not isinstance(model, IndependentNoise):
        simulated = _simulate(distribution.name, noise, scale)
        return lambda weights: simulated.errors(weights, levels)
    covariance = None if model is None else model.covariance(distribution, levels)

    def measure(weights: Float[np.ndarray, "draws n"]) -> tuple[np.ndarray, np.ndarray]:
        estimates = (weights * values).sum(-1)
        if covariance is None:
            return estimates, np.zeros(len(weights))
        return estimates, (weights * (covariance @ weights[..., None])[..., 0]).sum(-1)

    return measure


class Simulation(NamedTuple):
    """Learned quantiles at the grid's levels."""

    mean: Float[np.ndarray, " grid"]
    covariance: Float[np.ndarray, "grid grid"]

    def errors(
        self, weights: Float[np.ndarray, "draws n"], levels: Float[np.ndarray, "draws n"]
    ) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
        """The mean and the variance of Σ weights · quantiles."""
        shares = project_to_grid(weights, levels)
        return shares @ self.mean, ((shares @ self.covariance) * shares).sum(-1)


def project_to_grid(
    weights: Float[np.ndarray, "draws n"], levels: Float[np.ndarray, "draws n"]
) -> Float[np.ndarray, "draws grid"]:
    """The weights of the grid's levels that give the same sums of values which are linear between them."""
    place = np.clip(levels * len(GRID) - 0.5, 0, len(GRID) - 1)
    below = np.minimum(place.astype(int), len(GRID) - 2)
    share = place - below
    shares = np.zeros((len(weights), len(GRID)))
    rows = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)
    np.add.at(shares, (rows, below), weights * (1 - share))
    np.add.at(shares, (rows, below + 1), weights * share)
    return shares


def simulate_samples(distribution: Distribution, num_samples: int, copies: int, seed: int) -> Simulation:
    """The quantiles of samples of returns."""
    ranks = np.random.default_rng(seed).random((copies, num_samples))
    found = np.quantile(distribution.quantile(ranks), GRID, axis=-1, method="hazen").T
    return Simulation(found.mean(0), np.cov(found.T))


def simulate_regression(distribution: Distribution, step: float, chains: int, steps: int, seed: int) -> Simulation:
    """The quantiles of regression with a constant step, at its end."""
    table = jnp.asarray(distribution.quantile(midpoints(TABLE)), jnp.float32)
    levels = jnp.asarray(GRID, jnp.float32)[None]
    key = jax.random.key(seed)

    def learn(values: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        returns = table[jax.random.randint(jax.random.fold_in(key, number), (chains, 1), 0, TABLE)]
        return values + step * (levels - (returns < values).astype(jnp.float32)), None

    first = jnp.tile(jnp.asarray(distribution.quantile(GRID), jnp.float32), (chains, 1))
    found = np.asarray(jax.jit(lambda: jax.lax.scan(learn, first, jnp.arange(steps))[0])(), np.float64)
    return Simulation(found.mean(0), np.cov(found.T))


@lru_cache(maxsize=64)
def _simulate(name: str, noise: str, scale: Scale) -> Simulation:
    distribution = next(each for each in all_distributions().values() if each.name == name)
    model, copies = NOISES[noise], COPIES[scale]
    if isinstance(model, SampleQuantileNoise):
        return simulate_samples(distribution, model.num_samples, copies, seed=1)
    assert isinstance(model, SGDNoise)
    return simulate_regression(distribution, model.step, copies, REGRESSED, seed=1)
