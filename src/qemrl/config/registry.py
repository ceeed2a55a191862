"""Parts of an agent that can be chosen by name; their own settings are set behind that."""

from collections.abc import Mapping
from typing import Any

from qemrl.agents.policies import AutomaticTemperature, FixedTemperature
from qemrl.agents.target_networks import EMA, Online, Snapshots
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.estimators import ESTIMATORS
from qemrl.exploration import BonusExploration, CountBonus, EpsilonGreedy, LeftTruncatedStdBonus, QEMStdBonus, StdBonus

PARTS: dict[str, Mapping[str, Any]] = {
    "estimator": {name: preset.estimator for name, preset in ESTIMATORS.items()},
    "averaging": {"online": Online(), "ema": EMA(), "snapshots": Snapshots()},
    "exploration": {
        "epsilon-greedy": EpsilonGreedy(),
        "dltv": BonusExploration(LeftTruncatedStdBonus()),
        "dltv-released": BonusExploration(LeftTruncatedStdBonus(released=True)),
        "qem-std-bonus": BonusExploration(QEMStdBonus()),
        "std-bonus": BonusExploration(StdBonus()),
        "count": BonusExploration(CountBonus()),
    },
    "ensemble": {
        "elementwise-min": ElementwiseMin(),
        "smallest-critic": SmallestCritic(),
        "pooled-truncation": PooledTruncation(),
        "averaged": Averaged(),
    },
    "temperature": {"fixed": FixedTemperature(), "automatic": AutomaticTemperature()},
}
"""By the field of the configuration that they fill, then by name."""
