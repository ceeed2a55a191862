"""Quantile-based distributional reinforcement learning with a pluggable estimator of Q."""

from qemrl import estimators
from qemrl.estimators import *  # noqa: F403

__version__ = "0.1.0"
__all__ = ["__version__", "estimators"]
__all__ += estimators.__all__
