"""Every named algorithm of the DQN family, with the settings of each family.

A preset is a function from a family to a configuration. The families: `atari` has the settings of the paper's table 2
and, where the table is silent, of DQN Zoo; `minatar` has the network of the MinAtar paper, and `classic` is everything
else, both with what studies chose (results/studies). docs/settings.py knows the source of each setting.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from qemrl.agents.names import EnvFamily
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.atoms import Categorical, GaussianHistogram, Scalar
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.expectiles import Expectiles
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.monotone import NonCrossingQuantiles, NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, TailVariance
from qemrl.exploration import BonusExploration, EpsilonGreedy, HeadSampling, LeftTruncatedStdBonus, QEMStdBonus
from qemrl.replay.config import ReplayConfig

DiscreteFamily = Literal["atari", "minatar", "classic"]
"""The families in which actions are discrete."""

SHARED: dict[DiscreteFamily, ValueConfig] = {
    "atari": ValueConfig(
        exploration=EpsilonGreedy(begin_steps=50_000, over_steps=1_000_000),
        network=NetworkConfig(widths=(), hidden=(512,)),
        replay=ReplayConfig(capacity=1_000_000),
        clip_rewards=True,
    ),
    "minatar": ValueConfig(
        exploration=EpsilonGreedy(begin_steps=1_000, over_steps=250_000),
        network=NetworkConfig(widths=(128,)),
        replay=ReplayConfig(capacity=100_000, n_step=3),
        target_every=1_000,
        learning_starts=1_000,
    ),
    "classic": ValueConfig(
        exploration=EpsilonGreedy(final=0.05, begin_steps=500, over_steps=20_000),
        network=NetworkConfig(widths=(256, 256)),
        replay=ReplayConfig(capacity=50_000, n_step=3),
        batch_size=64,
        update_every=1,
        target_every=500,
        learning_starts=500,
    ),
}
"""What all presets of a family have in common."""

MINATAR_RATE = 3e-4
ATARI_QEM = QEM(order=4, variance=TailVariance(1.5))


def dqn(family: DiscreteFamily) -> ValueConfig:
    """DQN (Mnih et al., 2015) with Adam, and with half the squared error on MinAtar, which is better there."""
    optimizer = {
        "atari": AdamConfig(6.25e-5, epsilon=1.5e-4),
        "minatar": AdamConfig(MINATAR_RATE),
        "classic": AdamConfig(1e-3, epsilon=1.5e-4),
    }[family]
    representation = Scalar(kappa=None) if family == "minatar" else Scalar()
    return replace(SHARED[family], representation=representation, optimizer=optimizer)


def c51(family: DiscreteFamily) -> ValueConfig:
    """C51 (Bellemare et al., 2017)."""
    bound = {"atari": 10.0, "minatar": 100.0, "classic": 100.0}[family]
    optimizer = {
        "atari": AdamConfig(2.5e-4, max_gradient_norm=10.0),
        "minatar": AdamConfig(MINATAR_RATE),
        "classic": AdamConfig(1e-3),
    }[family]
    return replace(SHARED[family], representation=Categorical(51, -bound, bound), optimizer=optimizer)


def _count(family: DiscreteFamily) -> int:
    """How many quantiles or particles there are."""
    return 200 if family == "atari" else 51


def qr_dqn(family: DiscreteFamily) -> ValueConfig:
    """QR-DQN (Dabney et al., 2018a)."""
    optimizer = {
        "atari": AdamConfig(5e-5, max_gradient_norm=10.0),
        "minatar": AdamConfig(MINATAR_RATE),
        "classic": AdamConfig(1e-3),
    }[family]
    return replace(SHARED[family], representation=FixedQuantiles(_count(family)), optimizer=optimizer)


def qem_dqn(family: DiscreteFamily) -> ValueConfig:
    """QR-DQN with QEM: order 4, V = 1.5 in the tails (section 6 and table 2 of the QEM paper)."""
    return replace(qr_dqn(family), estimator=ATARI_QEM)


def iqn(family: DiscreteFamily) -> ValueConfig:
    """IQN (Dabney et al., 2018b), with twice QR-DQN's learning rate on MinAtar, where it learns more slowly."""
    levels = ImplicitQuantiles() if family == "atari" else ImplicitQuantiles(32, 32, 32)
    optimizer = AdamConfig({"atari": 5e-5, "minatar": 2 * MINATAR_RATE, "classic": 1e-3}[family])
    shared = SHARED[family]
    if family == "atari":
        exploration = EpsilonGreedy(begin_steps=20_000, over_steps=1_000_000)
        shared = replace(shared, exploration=exploration, learning_starts=20_000)
    return replace(shared, representation=levels, optimizer=optimizer)


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


def m_iqn(family: DiscreteFamily) -> ValueConfig:
    """Munchausen IQN (Vieillard et al., 2020): IQN with soft targets and the policy's log-probability as a reward."""
    return replace(iqn(family), munchausen=True)


def fqf(family: DiscreteFamily) -> ValueConfig:
    """FQF (Yang et al., 2019): IQN's network and settings, at fractions that a second network proposes."""
    return replace(iqn(family), representation=ProposedFractions())


def fqf_uniform(family: DiscreteFamily) -> ValueConfig:
    """FQF with fractions that stay uniform: what proposing them adds can only be seen beside it."""
    levels = ImplicitQuantiles(32, 32, 32, "midpoints", "midpoints")
    return replace(iqn(family), representation=levels)


def nc_qr_dqn(family: DiscreteFamily) -> ValueConfig:
    """NC-QR-DQN (Zhou et al., 2020): QR-DQN with quantiles that cannot cross."""
    return replace(qr_dqn(family), representation=NonCrossingQuantiles(_count(family)))


def ndqfn(family: DiscreteFamily) -> ValueConfig:
    """NDQFN (Zhou et al., 2021): increments on a grid of levels, interpolated, with IQN's settings."""
    levels = NonDecreasingQuantiles() if family == "atari" else NonDecreasingQuantiles(32, 32, 32)
    return replace(iqn(family), representation=levels)


def spl_dqn(family: DiscreteFamily) -> ValueConfig:
    """SPL-DQN (Luo et al., 2022): a monotone spline as the quantile function, with QR-DQN's settings."""
    return replace(qr_dqn(family), representation=SplineQuantiles(_count(family)))


def er_dqn(family: DiscreteFamily) -> ValueConfig:
    """ER-DQN (Rowland et al., 2019): expectiles, with targets imputed from them, and QR-DQN's settings."""
    return replace(qr_dqn(family), representation=Expectiles())


def er_dqn_naive(family: DiscreteFamily) -> ValueConfig:
    """ER-DQN without imputation: expectiles are taken for samples, and distributions lose their variance."""
    return replace(qr_dqn(family), representation=Expectiles(imputation=False))


def mmd_dqn(family: DiscreteFamily) -> ValueConfig:
    """MMD-DQN (Nguyen-Tang et al., 2021): particles, with QR-DQN's settings."""
    return replace(qr_dqn(family), representation=Particles(_count(family)))


def cr_dqn(family: DiscreteFamily) -> ValueConfig:
    """CR-DQN (Lhéritier and Bondoux, 2021): QR-DQN with the Cramér distance as its loss."""
    return replace(qr_dqn(family), representation=FixedQuantiles(_count(family), 0.0, loss_function="cramer"))


def hl_gauss(family: DiscreteFamily) -> ValueConfig:
    """HL-Gauss (Farebrother et al., 2024): C51's network as a classifier of a smeared scalar target."""
    config = c51(family)
    assert isinstance(config.representation, Categorical)
    bound = config.representation.high
    return replace(config, representation=GaussianHistogram(51, -bound, bound))


def bootstrapped_dqn(family: DiscreteFamily) -> ValueConfig:
    """Bootstrapped DQN (Osband et al., 2016): ten heads with double targets, one of which acts for an episode."""
    config = dqn(family)
    return replace(config, representation=Bootstrapped(config.representation), exploration=HeadSampling(), double=True)


def bootstrapped_qr_dqn(family: DiscreteFamily) -> ValueConfig:
    """The same with QR-DQN's heads and settings; ours."""
    config = qr_dqn(family)
    return replace(config, representation=Bootstrapped(config.representation), exploration=HeadSampling(), double=True)


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
    "m-iqn": m_iqn,
    "fqf": fqf,
    "fqf-uniform": fqf_uniform,
    "nc-qr-dqn": nc_qr_dqn,
    "ndqfn": ndqfn,
    "spl-dqn": spl_dqn,
    "er-dqn": er_dqn,
    "er-dqn-naive": er_dqn_naive,
    "mmd-dqn": mmd_dqn,
    "cr-dqn": cr_dqn,
    "hl-gauss": hl_gauss,
    "bootstrapped-dqn": bootstrapped_dqn,
    "bootstrapped-qr-dqn": bootstrapped_qr_dqn,
}
"""The family by name."""


def one_machine(config: ValueConfig) -> ValueConfig:
    """Atari on one core: 3-step returns, a replay that fits into 2 GB, and an ε that falls within 100,000 steps."""
    exploration = config.exploration
    if isinstance(exploration, EpsilonGreedy):
        exploration = replace(exploration, begin_steps=10_000, over_steps=100_000)
    return replace(
        config,
        exploration=exploration,
        optimizer=replace(config.optimizer, learning_rate=1e-4, max_gradient_norm=10.0),
        replay=replace(config.replay, capacity=200_000, n_step=3),
        target_every=2_000,
        learning_starts=10_000,
    )


def revisiting_rainbow(config: ValueConfig) -> ValueConfig:
    """MinAtar as in Revisiting Rainbow: no hidden layer, Glorot's initializer, one step, an update every 4."""
    head = getattr(config.representation, "head", config.representation)
    rate = 2.5e-4 if isinstance(head, Scalar) else 1e-4
    return replace(
        config,
        network=replace(config.network, widths=(), initializer="fan-average", layer_norm=False),
        optimizer=AdamConfig(rate),
        replay=replace(config.replay, n_step=1),
        update_every=4,
    )


VALUE_SETTINGS: dict[str, tuple[tuple[EnvFamily, ...], Callable[[ValueConfig], ValueConfig]]] = {
    "one-machine": (("atari",), one_machine),
    "revisiting-rainbow": (("minatar",), revisiting_rainbow),
}
"""Other settings by name: the families that they are for, and what they change."""
