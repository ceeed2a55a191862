"""Presets made small, and loops around them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium

from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.policies import AutomaticTemperature, Deterministic, FixedTemperature, TanhGaussian
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.atoms import Categorical, Scalar
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.ensembles import PooledTruncation
from qemrl.distributional.expectiles import Expectiles
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.monotone import NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.envs.gym.host_envs import make_host_envs
from qemrl.envs.jax.env import JaxEnv
from qemrl.exploration import EpsilonGreedy
from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.host_loop import HostLoop
from qemrl.training.schedule import LoopSettings, make_step_schedule

DISCOUNT = 0.8
TEMPERATURE = 0.01
"""The answers of probes are those without entropy, whose share must be well below the tolerance."""

NAME = "contract/played-v0"

EXPLORERS = ("qr-dqn-dltv", "qem-dqn-dltv", "qem-dqn-var")
"""They learn what their parents learn, from whatever they do: tests/exploration is about the rest."""

MASKLESS = ("m-iqn",)
"""Munchausen rewards cannot be learned where actions are masked, as they are among the probes: see test_munchausen."""

LEARNERS = [preset for preset in PRESETS if preset not in (*EXPLORERS, *MASKLESS)]

SAME_PROGRAM = {
    "qr-dqn": "qem-dqn",
    "iqn": "iqem-dqn",
    "sac": "td3",
    "dsac": "qem-dsac-iqn",
    "qem-dsac": "qem-dsac-iqn",
    "dsac-iqn": "qem-dsac-iqn",
    "dsac-mlp": "tqc",
    "qem-dsac-mlp": "tqc",
    "fqf-uniform": "iqem-dqn",
    "er-dqn-naive": "er-dqn",
    "bootstrapped-qr-dqn": "bootstrapped-dqn",
    "cr-dqn": "mmd-dqn",
    "dsac-fqf": "qem-dsac-iqn",
}
"""Presets whose parts are those of others, which are in all contract tests; these are in that of the golden losses.

The mean of fixed quantiles and QEM of them are a product with a constant vector; that of levels that are drawn is QEM
without its regression. Of critics, one number is in `td3`, fixed quantiles are in `tqc`, levels and the paper's network
in `qem-dsac-iqn`, levels that are proposed in `fqf`; of policies, the Gaussian one is in the last two, and so are a
fixed temperature and one that is learned, target policies and none. Golden losses show that each preset has its own
weights and network.
"""

DISTINCT = [preset for preset in LEARNERS if preset not in SAME_PROGRAM]


def tiny(preset: str, kappa: float = 1.0) -> AgentConfig:
    """The preset with networks and a schedule for probes."""
    config = PRESETS[preset].configure("classic")
    config = replace(
        config,
        representation=_few_levels(config.representation, kappa),
        optimizer=replace(config.optimizer, learning_rate=2e-3),
        replay=ReplayConfig(capacity=12_000),
        discount=DISCOUNT,
        batch_size=32,
        update_every=4,
        learning_starts=100,
    )
    match config:
        case ValueConfig():
            return replace(
                config,
                # What is learned does not depend on how actions are chosen, but how soon the worse ones are does.
                exploration=EpsilonGreedy(final=0.6, over_steps=100, evaluation=0.0),
                network=NetworkConfig(widths=(32,)),
                target_every=40,
            )
        case ActorCriticConfig():
            return _tiny_actor_critic(config)


def _tiny_actor_critic(config: ActorCriticConfig) -> ActorCriticConfig:
    ensemble: Any = config.ensemble
    ensemble = replace(ensemble, size=2)
    temperature = config.temperature
    if isinstance(temperature, FixedTemperature):
        temperature = FixedTemperature(min(temperature.value, TEMPERATURE))
    elif isinstance(temperature, AutomaticTemperature):
        temperature = replace(temperature, initial=TEMPERATURE)
    return replace(
        config,
        ensemble=replace(ensemble, drop=1) if isinstance(ensemble, PooledTruncation) else ensemble,
        # As with the value agents: much noise, so that the critics soon know what other actions lead to.
        policy=Deterministic(noise=0.5) if isinstance(config.policy, Deterministic) else TanhGaussian(log_std_min=-1.2),
        temperature=temperature,
        network=ActorCriticNetworkConfig(
            policy_widths=(32,), critic_widths=(64,), critic_hidden=(32,), layer_norm=config.network.layer_norm
        ),
        optimizer=replace(config.optimizer, learning_rate=2.5e-3),
        polyak=0.1,
        random_steps=500,
    )


def _few_levels(representation: Any, kappa: float) -> Any:
    match representation:
        case Scalar():
            return representation
        case Categorical():
            return replace(representation, low=-20.0, high=20.0)
        case Expectiles() | Bootstrapped(head=Scalar()):
            return representation
        case Bootstrapped():
            return replace(representation, head=_few_levels(representation.head, kappa))
        case Particles():
            return replace(representation, num_particles=16)
        case SplineQuantiles():
            return replace(representation, num_quantiles=16, num_bins=6, kappa=kappa)
        case FixedQuantiles():
            return replace(representation, num_quantiles=16, kappa=0.0 if representation.kappa == 0 else kappa)
        case ProposedFractions():
            return replace(representation, num_fractions=12, num_cosines=16, kappa=kappa)
        case NonDecreasingQuantiles():
            few = replace(representation, num_levels=12, num_loss_levels=12, num_target_levels=12)
            return replace(few, num_cosines=16, kappa=kappa)
        case ImplicitQuantiles():
            # Where learning sees no other levels than the midpoints, acting must ask at the same ones.
            acting = 16 if representation.acting_levels == "uniform" else 8
            few = replace(representation, num_levels=8, num_target_levels=8, num_acting_levels=acting)
            return replace(few, num_cosines=16, kappa=kappa)


def compiled_loop(
    config: AgentConfig, env: JaxEnv, num_envs: int, seeds: tuple[int, ...], evaluation_episodes: int
) -> CompiledLoop:
    """The compiled loop around an agent of this configuration."""
    return CompiledLoop(
        make_agent(config, env.spec),
        env,
        DeviceReplay(env.spec, num_envs, config.replay, config.discount),
        _settings(config, num_envs, evaluation_episodes),
        seeds,
    )


def host_loop(config: AgentConfig, make: Callable[..., gymnasium.Env], num_envs: int, seed: int) -> HostLoop:
    """The host loop around an agent of this configuration, in environments that `make` gives one after the other."""
    gymnasium.registry.pop(NAME, None)
    entry_point: Any = make
    gymnasium.register(NAME, entry_point=entry_point, disable_env_checker=True)
    envs = make_host_envs(NAME, num_envs)
    return HostLoop(
        make_agent(config, envs.spec),
        envs,
        HostReplay(envs.spec, num_envs, config.replay, config.discount),
        _settings(config, num_envs, 2),
        seed,
        lambda count: make_host_envs(NAME, count),
    )


def _settings(config: AgentConfig, num_envs: int, evaluation_episodes: int) -> LoopSettings:
    schedule = make_step_schedule(
        num_envs, config.update_every, config.target_every, config.learning_starts, config.batch_size
    )
    return LoopSettings(schedule, config.batch_size, config.clip_rewards, evaluation_episodes, 100_000)
