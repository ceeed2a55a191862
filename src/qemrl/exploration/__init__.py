"""How estimates of Q become actions.

An exploration is a frozen record with `start`, which gives the state it keeps for the environments side by side, and
`select_action`. It sees the whole context, the return distributions included, so that bonuses need no other way in.
"""

from qemrl.exploration.bonus import BonusExploration
from qemrl.exploration.context import ActionContext, Exploration, allowed, best, greedy
from qemrl.exploration.counts import CountBonus
from qemrl.exploration.epsilon_greedy import EpsilonGreedy
from qemrl.exploration.schedules import LinearDecay, PowerDecay, SqrtLogDecay
from qemrl.exploration.std_bonuses import LeftTruncatedStdBonus, QEMStdBonus, StdBonus

__all__ = [
    "ActionContext",
    "BonusExploration",
    "CountBonus",
    "EpsilonGreedy",
    "Exploration",
    "LeftTruncatedStdBonus",
    "LinearDecay",
    "PowerDecay",
    "QEMStdBonus",
    "SqrtLogDecay",
    "StdBonus",
    "allowed",
    "best",
    "greedy",
]
