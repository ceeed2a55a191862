"""Estimators under the names that the command line and the docs use."""

from typing import NamedTuple

from qemrl.estimators.estimated_variance import (
    CountedVariance,
    DecayingVariance,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
)
from qemrl.estimators.estimator import QEM, EmpiricalMean, Statistic
from qemrl.estimators.risk import CPW, CVaR, MeanStd, VaR, Wang
from qemrl.estimators.variance import BandVariance, TailVariance


class EstimatorPreset(NamedTuple):
    """An estimator and what it is for."""

    estimator: Statistic
    summary: str


ESTIMATORS: dict[str, EstimatorPreset] = {
    "mean": EstimatorPreset(EmpiricalMean(), "the plain mean of the quantiles, as in QR-DQN and IQN"),
    "qem": EstimatorPreset(QEM(), "order 4, equal variances"),
    "qem-atari": EstimatorPreset(QEM(variance=TailVariance(1.5)), "order 4, the paper's V on Atari"),
    "qem-mujoco": EstimatorPreset(QEM(variance=TailVariance(1.2)), "order 4, the paper's V on MuJoCo"),
    "qem-frozen-lake": EstimatorPreset(
        QEM(variance=BandVariance(1.5, 0.45, 0.55)), "order 4, the paper's V on FrozenLake"
    ),
    "qem-auto": EstimatorPreset(QEM(variance="auto"), "a line in the level, V from the spacing of the levels"),
    "qem-decay": EstimatorPreset(QEM(variance=DecayingVariance()), "V = 1.5 in the tails, which fades with time"),
    "qem-counts": EstimatorPreset(QEM(variance=CountedVariance()), "V = 1.5 in the tails, which fades with visits"),
    "qem-sparsity": EstimatorPreset(QEM(variance=SparsityVariance()), "V from the slope of an EMA network's quantiles"),
    "qem-twin": EstimatorPreset(
        QEM(variance=SparsityVariance(source="twin")), "V from the slope of a twin's quantiles"
    ),
    "qem-heads": EstimatorPreset(QEM(variance=HeadsVariance()), "V from how much heads or critics disagree"),
    "qem-residuals": EstimatorPreset(QEM(variance=ResidualVariance()), "V from running moments of TD errors"),
    "qem-legendre": EstimatorPreset(QEM(basis="legendre"), "order 4 in shifted Legendre polynomials of the level"),
    "cvar": EstimatorPreset(CVaR(), "risk: the mean of the worst quarter of returns"),
    "var": EstimatorPreset(VaR(), "risk: the quantile at the level 0.25"),
    "wang": EstimatorPreset(Wang(), "risk: the levels shifted by Wang's transform, risk-averse"),
    "cpw": EstimatorPreset(CPW(), "risk: cumulative probability weighting, as in IQN"),
    "mean-std": EstimatorPreset(MeanStd(), "risk: the mean less a standard deviation"),
}
