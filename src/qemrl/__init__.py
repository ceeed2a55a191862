"""Quantile-based distributional reinforcement learning with a pluggable estimator of Q."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qemrl import estimators
from qemrl.estimators import *  # noqa: F403

if TYPE_CHECKING:
    from qemrl.api import Evaluation as Evaluation
    from qemrl.api import TrainableAgent as TrainableAgent
    from qemrl.api import load as load
    from qemrl.api import make as make
    from qemrl.api import register_network as register_network

__version__ = "0.1.0"
__all__ = ["Evaluation", "TrainableAgent", "__version__", "estimators", "load", "make", "register_network"]
__all__ += estimators.__all__


def __getattr__(name: str) -> Any:
    """Agents are imported when they are asked for: the estimators need no JAX, and JAX takes a second."""
    if name in ("Evaluation", "TrainableAgent", "load", "make", "register_network"):
        return getattr(import_module("qemrl.api"), name)
    raise AttributeError(f"module 'qemrl' has no attribute {name!r}")
