"""The paper's mathematics: from the quantiles of a return distribution to Q and its moments.

Everything here works on NumPy, JAX and PyTorch arrays and imports neither JAX nor PyTorch.
"""

from qemrl.estimators.diagnostics import (
    BiasVariance,
    crossing_rate,
    efficiency,
    estimation_error,
    paper_condition,
    r_squared,
    sampling_error,
    variance_reduction,
)
from qemrl.estimators.distributions import DISTRIBUTIONS, Distribution, normal_mixture
from qemrl.estimators.estimated_variance import (
    CountedVariance,
    DecayingVariance,
    EstimatedVariance,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
    VarianceInputs,
)
from qemrl.estimators.estimator import QEM, EmpiricalMean, Estimator, Moments, Statistic
from qemrl.estimators.levels import (
    CumulativeLevels,
    antithetic_levels,
    cumulative_levels,
    midpoints,
    stratified_levels,
    uniform_levels,
)
from qemrl.estimators.noise import IndependentNoise, Noise, SampleQuantileNoise, SGDNoise
from qemrl.estimators.presets import ESTIMATORS, EstimatorPreset
from qemrl.estimators.risk import CPW, CVaR, MeanStd, VaR, Wang
from qemrl.estimators.variance import (
    BandVariance,
    ConstantVariance,
    SpacingVariance,
    TailVariance,
    VarianceModel,
    cells,
)

__all__ = [
    "CPW",
    "DISTRIBUTIONS",
    "ESTIMATORS",
    "QEM",
    "BandVariance",
    "BiasVariance",
    "CVaR",
    "ConstantVariance",
    "CountedVariance",
    "CumulativeLevels",
    "DecayingVariance",
    "Distribution",
    "EmpiricalMean",
    "EstimatedVariance",
    "Estimator",
    "EstimatorPreset",
    "HeadsVariance",
    "IndependentNoise",
    "MeanStd",
    "Moments",
    "Noise",
    "ResidualVariance",
    "SGDNoise",
    "SampleQuantileNoise",
    "SpacingVariance",
    "SparsityVariance",
    "Statistic",
    "TailVariance",
    "VaR",
    "VarianceInputs",
    "VarianceModel",
    "Wang",
    "antithetic_levels",
    "cells",
    "crossing_rate",
    "cumulative_levels",
    "efficiency",
    "estimation_error",
    "midpoints",
    "normal_mixture",
    "paper_condition",
    "r_squared",
    "sampling_error",
    "stratified_levels",
    "uniform_levels",
    "variance_reduction",
]
