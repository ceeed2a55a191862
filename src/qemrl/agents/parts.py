"""Parts of an agent that can be chosen by name; their own settings are set behind that."""

from collections.abc import Mapping
from typing import Any

from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.estimators import ESTIMATORS
from qemrl.policies import AutomaticTemperature, FixedTemperature

PARTS: dict[str, Mapping[str, Any]] = {
    "estimator": {name: preset.estimator for name, preset in ESTIMATORS.items()},
    "ensemble": {
        "elementwise-min": ElementwiseMin(),
        "smallest-critic": SmallestCritic(),
        "pooled-truncation": PooledTruncation(),
        "averaged": Averaged(),
    },
    "temperature": {"fixed": FixedTemperature(), "automatic": AutomaticTemperature()},
}
"""By the field of the configuration that they fill, then by name."""
