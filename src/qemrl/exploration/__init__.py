"""How estimates of Q become actions.

An exploration is a frozen record with `start`, which gives the state it keeps for the environments side by side, and
`choose`. It sees the whole situation, the return distributions included, so that bonuses need no other way in.
"""

from qemrl.exploration.epsilon_greedy import EpsilonGreedy
from qemrl.exploration.novelty import Novelty
from qemrl.exploration.optimism import Optimism
from qemrl.exploration.schedules import LinearDecay, PowerDecay, SqrtLogDecay
from qemrl.exploration.situation import Exploration, Situation, allowed, best, greedy
from qemrl.exploration.spreads import LeftTruncatedSpread, PlainSpread, QEMSpread

__all__ = [
    "EpsilonGreedy",
    "Exploration",
    "LeftTruncatedSpread",
    "LinearDecay",
    "Novelty",
    "Optimism",
    "PlainSpread",
    "PowerDecay",
    "QEMSpread",
    "Situation",
    "SqrtLogDecay",
    "allowed",
    "best",
    "greedy",
]
