"""Every named algorithm of the DQN family, with the settings of each family.

A preset is a function from a family to a configuration. The families: `atari` has the settings of the paper's table 2
and, where the table is silent, of DQN Zoo; `minatar` those of Revisiting Rainbow (Obando-Ceron and Castro, 2021);
`classic` is everything else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.estimators import QEM, TailVariance
from qemrl.exploration import BonusExploration, EpsilonGreedy, LeftTruncatedStdBonus, QEMStdBonus
from qemrl.replay.config import ReplayConfig

DiscreteFamily = Literal["atari", "minatar", "classic"]
"""The families in which actions are discrete."""

SHARED: dict[DiscreteFamily, ValueConfig] = {
    "atari": ValueConfig(
        exploration=EpsilonGreedy(begin_steps=50_000, over_steps=1_000_000),
        network=NetworkConfig(hidden=(512,)),
        replay=ReplayConfig(capacity=1_000_000),
        clip_rewards=True,
    ),
    "minatar": ValueConfig(
        exploration=EpsilonGreedy(begin_steps=1_000, over_steps=250_000),
        replay=ReplayConfig(capacity=100_000),
        target_every=1_000,
        learning_starts=1_000,
    ),
    "classic": ValueConfig(
        exploration=EpsilonGreedy(begin_steps=500, over_steps=10_000),
        network=NetworkConfig(widths=(256, 256)),
        replay=ReplayConfig(capacity=50_000),
        batch_size=64,
        target_every=100,
        learning_starts=500,
    ),
}
"""What all presets of a family have in common."""


ATARI_QEM = QEM(order=4, variance=TailVariance(1.5))


def dqn(family: DiscreteFamily) -> ValueConfig:
    """DQN (Mnih et al., 2015) with Adam and the Huber loss."""
    rate = {"atari": 6.25e-5, "minatar": 2.5e-4, "classic": 1e-3}[family]
    return replace(SHARED[family], representation=Scalar(), optimizer=AdamConfig(rate, epsilon=1.5e-4))


def c51(family: DiscreteFamily) -> ValueConfig:
    """C51 (Bellemare et al., 2017)."""
    bound = {"atari": 10.0, "minatar": 100.0, "classic": 100.0}[family]
    optimizer = AdamConfig({"atari": 2.5e-4, "minatar": 2.5e-4, "classic": 1e-3}[family])
    return replace(SHARED[family], representation=Categorical(51, -bound, bound), optimizer=optimizer)


def qr_dqn(family: DiscreteFamily) -> ValueConfig:
    """QR-DQN (Dabney et al., 2018a)."""
    count = {"atari": 200, "minatar": 51, "classic": 51}[family]
    optimizer = AdamConfig({"atari": 5e-5, "minatar": 1e-4, "classic": 1e-3}[family])
    return replace(SHARED[family], representation=FixedQuantiles(count), optimizer=optimizer)


def qem_dqn(family: DiscreteFamily) -> ValueConfig:
    """QR-DQN with QEM: order 4, V = 1.5 in the tails (section 6 and table 2 of the QEM paper)."""
    return replace(qr_dqn(family), estimator=ATARI_QEM)


def iqn(family: DiscreteFamily) -> ValueConfig:
    """IQN (Dabney et al., 2018b)."""
    levels = ImplicitQuantiles() if family == "atari" else ImplicitQuantiles(32, 32, 32)
    optimizer = AdamConfig({"atari": 5e-5, "minatar": 1e-4, "classic": 1e-3}[family])
    return replace(SHARED[family], representation=levels, optimizer=optimizer)


def iqem_dqn(family: DiscreteFamily) -> ValueConfig:
    """IQN with QEM on the acting levels: order 4, equal variances, as in the released code."""
    return replace(iqn(family), estimator=QEM(order=4))


def qr_dqn_dltv(family: DiscreteFamily) -> ValueConfig:
    """QR-DQN that explores by DLTV (Mavrin et al., 2019)."""
    return replace(qr_dqn(family), exploration=BonusExploration(LeftTruncatedStdBonus()))


def qem_dqn_dltv(family: DiscreteFamily) -> ValueConfig:
    """QEM-DQN that explores by DLTV (section 5.3 of the QEM paper)."""
    return replace(qem_dqn(family), exploration=BonusExploration(LeftTruncatedStdBonus()))


def qem_dqn_var(family: DiscreteFamily) -> ValueConfig:
    """QEM-DQN that explores by the standard deviation that QEM finds (section 5.3 of the QEM paper)."""
    return replace(qem_dqn(family), exploration=BonusExploration(QEMStdBonus(ATARI_QEM)))


VALUE_PRESETS: dict[str, Callable[[DiscreteFamily], ValueConfig]] = {
    "dqn": dqn,
    "c51": c51,
    "qr-dqn": qr_dqn,
    "qem-dqn": qem_dqn,
    "iqn": iqn,
    "iqem-dqn": iqem_dqn,
    "qr-dqn-dltv": qr_dqn_dltv,
    "qem-dqn-dltv": qem_dqn_dltv,
    "qem-dqn-var": qem_dqn_var,
}
"""The family by name."""
