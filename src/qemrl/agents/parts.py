"""Parts of an agent that can be chosen by name; their own settings are set behind that."""

from collections.abc import Mapping
from typing import Any

from qemrl.agents.averaging import Online, SlowCopy, Snapshots
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.estimators import ESTIMATORS
from qemrl.exploration import EpsilonGreedy, LeftTruncatedSpread, Novelty, Optimism, PlainSpread, QEMSpread
from qemrl.policies import AutomaticTemperature, FixedTemperature

PARTS: dict[str, Mapping[str, Any]] = {
    "estimator": {name: preset.estimator for name, preset in ESTIMATORS.items()},
    "averaging": {"online": Online(), "slow-copy": SlowCopy(), "snapshots": Snapshots()},
    "exploration": {
        "epsilon-greedy": EpsilonGreedy(),
        "dltv": Optimism(LeftTruncatedSpread()),
        "dltv-released": Optimism(LeftTruncatedSpread(released=True)),
        "qem-spread": Optimism(QEMSpread()),
        "plain-spread": Optimism(PlainSpread()),
        "count": Optimism(Novelty()),
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
