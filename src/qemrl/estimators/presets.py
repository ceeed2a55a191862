"""Estimators under the names that the command line and the docs use."""

from typing import NamedTuple

from qemrl.estimators.estimator import QEM, EmpiricalMean, Estimator
from qemrl.estimators.variance import BandVariance, TailVariance


class EstimatorPreset(NamedTuple):
    """An estimator and what it is for."""

    estimator: Estimator
    summary: str


ESTIMATORS: dict[str, EstimatorPreset] = {
    "mean": EstimatorPreset(EmpiricalMean(), "the plain mean of the quantiles, as in QR-DQN and IQN"),
    "qem": EstimatorPreset(QEM(), "order 4, equal variances"),
    "qem-atari": EstimatorPreset(QEM(variance=TailVariance(1.5)), "order 4, the paper's V on Atari"),
    "qem-mujoco": EstimatorPreset(QEM(variance=TailVariance(1.2)), "order 4, the paper's V on MuJoCo"),
    "qem-frozen-lake": EstimatorPreset(
        QEM(variance=BandVariance(1.5, 0.45, 0.55)), "order 4, the paper's V on FrozenLake"
    ),
    "qem-legendre": EstimatorPreset(QEM(basis="legendre"), "order 4 in shifted Legendre polynomials of the level"),
}
