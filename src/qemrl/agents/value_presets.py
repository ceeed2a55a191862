"""Every named algorithm of the DQN family, with the settings of each domain.

A preset is a function from a domain to a configuration. The domains: `atari` has the settings of the paper's table 2
and, where the table is silent, of DQN Zoo; `minatar` those of Revisiting Rainbow (Obando-Ceron and Castro, 2021);
`classic` is everything else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from qemrl.agents.optimiser import AdamConfig
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.estimators import QEM, TailVariance
from qemrl.exploration import EpsilonGreedy, LeftTruncatedSpread, Optimism, QEMSpread
from qemrl.replay.config import ReplayConfig
from qemrl.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar

Numbered = Literal["atari", "minatar", "classic"]
"""The domains in which actions are numbered."""

SHARED: dict[Numbered, ValueConfig] = {
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
"""What all presets of a domain have in common."""


def dqn(domain: Numbered) -> ValueConfig:
    """DQN (Mnih et al., 2015) with Adam and the Huber loss."""
    rate = {"atari": 6.25e-5, "minatar": 2.5e-4, "classic": 1e-3}[domain]
    return replace(SHARED[domain], representation=Scalar(), optimiser=AdamConfig(rate, epsilon=1.5e-4))


def c51(domain: Numbered) -> ValueConfig:
    """C51 (Bellemare et al., 2017)."""
    bound = {"atari": 10.0, "minatar": 100.0, "classic": 100.0}[domain]
    optimiser = AdamConfig({"atari": 2.5e-4, "minatar": 2.5e-4, "classic": 1e-3}[domain])
    return replace(SHARED[domain], representation=Categorical(51, -bound, bound), optimiser=optimiser)


def qr_dqn(domain: Numbered) -> ValueConfig:
    """QR-DQN (Dabney et al., 2018a)."""
    count = {"atari": 200, "minatar": 51, "classic": 51}[domain]
    optimiser = AdamConfig({"atari": 5e-5, "minatar": 1e-4, "classic": 1e-3}[domain])
    return replace(SHARED[domain], representation=FixedQuantiles(count), optimiser=optimiser)


def qem_dqn(domain: Numbered) -> ValueConfig:
    """QR-DQN with QEM: order 4, V = 1.5 in the tails (section 6 and table 2 of the QEM paper)."""
    return replace(qr_dqn(domain), estimator=QEM(order=4, variance=TailVariance(1.5)))


def iqn(domain: Numbered) -> ValueConfig:
    """IQN (Dabney et al., 2018b)."""
    levels = ImplicitQuantiles() if domain == "atari" else ImplicitQuantiles(32, 32, 32)
    optimiser = AdamConfig({"atari": 5e-5, "minatar": 1e-4, "classic": 1e-3}[domain])
    return replace(SHARED[domain], representation=levels, optimiser=optimiser)


def iqem_dqn(domain: Numbered) -> ValueConfig:
    """IQN with QEM on the acting levels: order 4, equal variances, as in the released code."""
    return replace(iqn(domain), estimator=QEM(order=4))


def qr_dqn_dltv(domain: Numbered) -> ValueConfig:
    """QR-DQN that explores by DLTV (Mavrin et al., 2019)."""
    return replace(qr_dqn(domain), exploration=Optimism(LeftTruncatedSpread()))


def qem_dqn_dltv(domain: Numbered) -> ValueConfig:
    """QEM-DQN that explores by DLTV (section 5.3 of the QEM paper)."""
    return replace(qem_dqn(domain), exploration=Optimism(LeftTruncatedSpread()))


def qem_dqn_var(domain: Numbered) -> ValueConfig:
    """QEM-DQN that explores by the standard deviation that QEM finds (section 5.3 of the QEM paper)."""
    config = qem_dqn(domain)
    assert isinstance(config.estimator, QEM)
    return replace(config, exploration=Optimism(QEMSpread(config.estimator)))


VALUE_PRESETS: dict[str, Callable[[Numbered], ValueConfig]] = {
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
