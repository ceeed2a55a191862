"""Every named algorithm of the SAC family, with the settings of each family.

The six MuJoCo tasks are families of their own. What they share is the paper's table 3 and, where that is silent, DSAC's
code: one environment instead of ten, so that each step is followed by its update. `classic` is everything else: small
networks and batches for small tasks.
"""

from collections.abc import Callable
from dataclasses import replace

from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.names import MUJOCO_TASKS, EnvFamily
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.policies import AutomaticTemperature, Deterministic, FixedTemperature
from qemrl.distributional.atoms import Scalar
from qemrl.distributional.ensembles import ElementwiseMin, PooledTruncation
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, TailVariance
from qemrl.replay.config import ReplayConfig

MUJOCO = ActorCriticConfig(representation=Scalar(kappa=None))
CLASSIC = replace(
    MUJOCO,
    network=ActorCriticNetworkConfig(policy_widths=(64, 64), critic_widths=(64,), critic_hidden=(64,)),
    optimizer=AdamConfig(1e-3, 1e-8),
    replay=ReplayConfig(100_000),
    batch_size=64,
    learning_starts=1_000,
    random_steps=1_000,
)
DSAC_LEVELS = ImplicitQuantiles(32, 32, 32, "midpoints", "midpoints", gate="sigmoid", layer_norm=True)
TEMPERATURES: dict[EnvFamily, float] = {"humanoid": 0.05}
"""The weight of the entropy where it is not 0.2."""

DROPPED: dict[EnvFamily, int] = {"hopper": 5, "half-cheetah": 0}
"""How many atoms TQC drops for each critic where it is not 2."""


def sac(family: EnvFamily) -> ActorCriticConfig:
    """SAC with a fixed temperature (Haarnoja et al., 2018), as the QEM paper uses it."""
    shared = CLASSIC if family == "classic" else MUJOCO
    return replace(shared, temperature=FixedTemperature(TEMPERATURES.get(family, 0.2)))


def td3(family: EnvFamily) -> ActorCriticConfig:
    """TD3 (Fujimoto et al., 2018) with SAC's learning rate."""
    return replace(
        sac(family),
        ensemble=ElementwiseMin(policy="first"),
        policy=Deterministic(),
        temperature=FixedTemperature(0.0),
        target_policy=True,
        policy_every=2,
    )


def dsac(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with fixed quantiles (Ma et al., 2020): a network of the level, evaluated at the midpoints."""
    shared = sac(family)
    network = replace(shared.network, layer_norm=True)
    return replace(shared, representation=DSAC_LEVELS, network=network, target_policy=True)


def dsac_iqn(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with random levels, each of which counts by the interval that it stands for."""
    levels = replace(DSAC_LEVELS, learning_levels="cumulative", acting_levels="cumulative")
    return replace(dsac(family), representation=levels)


def tqc(family: EnvFamily) -> ActorCriticConfig:
    """TQC (Kuznetsov et al., 2020) with its own temperature and networks."""
    shared = sac(family)
    wide = replace(shared.network, critic_widths=(512,), critic_hidden=(512, 512))
    return replace(
        shared,
        representation=FixedQuantiles(25),
        ensemble=PooledTruncation(5, DROPPED.get(family, 2)),
        temperature=AutomaticTemperature(),
        network=shared.network if family == "classic" else wide,
    )


def qem_dsac(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with QEM in the policy's Q: order 4, V = 1.2 in the tails (table 3 of the QEM paper)."""
    return replace(dsac(family), estimator=QEM(order=4, variance=TailVariance(1.2)))


def qem_dsac_iqn(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with random levels and QEM, V evaluated at each level."""
    return replace(dsac_iqn(family), estimator=qem_dsac(family).estimator)


def dsac_mlp(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with critics that are plain dense layers with an output for each quantile."""
    return replace(sac(family), representation=FixedQuantiles(32), target_policy=True)


def qem_dsac_mlp(family: EnvFamily) -> ActorCriticConfig:
    """The same with QEM in the policy's Q."""
    return replace(dsac_mlp(family), estimator=qem_dsac(family).estimator)


def dsac_fqf(family: EnvFamily) -> ActorCriticConfig:
    """DSAC with levels that a network proposes for state and action, each of which counts by its interval."""
    fractions = ProposedFractions(
        gate="sigmoid", layer_norm=True, fraction_widths=(128, 128), fraction_rate=1e-5, weigh_targets=True
    )
    return replace(dsac(family), representation=fractions)


ACTOR_CRITIC_PRESETS: dict[str, Callable[[EnvFamily], ActorCriticConfig]] = {
    "sac": sac,
    "td3": td3,
    "dsac": dsac,
    "dsac-iqn": dsac_iqn,
    "tqc": tqc,
    "qem-dsac": qem_dsac,
    "qem-dsac-iqn": qem_dsac_iqn,
    "dsac-mlp": dsac_mlp,
    "qem-dsac-mlp": qem_dsac_mlp,
    "dsac-fqf": dsac_fqf,
}
"""The family by name."""


def tianshou(config: ActorCriticConfig) -> ActorCriticConfig:
    """The learning rate of tianshou's MuJoCo curves, which learn Hopper several times as fast at first."""
    return replace(config, optimizer=replace(config.optimizer, learning_rate=1e-3))


ACTOR_CRITIC_SETTINGS: dict[str, tuple[tuple[EnvFamily, ...], Callable[[ActorCriticConfig], ActorCriticConfig]]] = {
    "tianshou": (MUJOCO_TASKS, tianshou)
}
"""Other settings by name: the families that they are for, and what they change."""
