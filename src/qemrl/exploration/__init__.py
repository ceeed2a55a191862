"""How estimates of Q become discrete actions.

An exploration is a frozen record with `init`, which gives the state that it keeps for the environments, and
`select_action`. It sees the whole context, the return distributions included, so that bonuses need no other way in.
"""

from qemrl.exploration.bonus import (
    Bonus,
    BonusExploration,
    LeftTruncatedStdBonus,
    LinearDecay,
    PowerDecay,
    QEMStdBonus,
    SqrtLogDecay,
    StdBonus,
)
from qemrl.exploration.counts import CountBonus
from qemrl.exploration.epsilon_greedy import ActionContext, EpsilonGreedy, Exploration, greedy_action, mask_q
from qemrl.exploration.heads import HeadSampling

__all__ = [
    "ActionContext",
    "Bonus",
    "BonusExploration",
    "CountBonus",
    "EpsilonGreedy",
    "Exploration",
    "HeadSampling",
    "LeftTruncatedStdBonus",
    "LinearDecay",
    "PowerDecay",
    "QEMStdBonus",
    "SqrtLogDecay",
    "StdBonus",
    "greedy_action",
    "mask_q",
]
