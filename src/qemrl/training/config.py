"""What a run is: enough to do it again."""

import difflib
from dataclasses import dataclass
from typing import Any

from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.env_families import EnvFamily, mujoco_task
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.policies import AutomaticTemperature, Deterministic, FixedTemperature, TanhGaussian
from qemrl.agents.presets import PRESETS, AgentConfig
from qemrl.agents.target_networks import EMA, Online, Snapshots
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.config.serialize import from_json
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.distributional.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.envs.gym.atari import AtariProtocol, protocol_for
from qemrl.envs.gym.host_envs import is_atari
from qemrl.envs.jax.registry import is_jax_env
from qemrl.estimators import (
    CPW,
    QEM,
    BandVariance,
    ConstantVariance,
    CountedVariance,
    CVaR,
    DecayingVariance,
    EmpiricalMean,
    HeadsVariance,
    MeanStd,
    ResidualVariance,
    SpacingVariance,
    SparsityVariance,
    TailVariance,
    VaR,
    Wang,
)
from qemrl.exploration import (
    BonusExploration,
    CountBonus,
    EpsilonGreedy,
    LeftTruncatedStdBonus,
    LinearDecay,
    PowerDecay,
    QEMStdBonus,
    SqrtLogDecay,
    StdBonus,
)
from qemrl.replay.config import ReplayConfig
from qemrl.training.schedule import StepSchedule, make_step_schedule


@dataclass(frozen=True)
class RunConfig:
    """A run: an agent, an environment, seeds, and how often what is done. Steps are agent steps of each seed."""

    preset: str
    """The preset that the agent came from."""

    env: str
    """The id of the environment."""

    agent: AgentConfig
    """All settings of the agent."""

    steps: int
    """How many steps each seed learns for."""

    seed: int = 0
    """The first seed."""

    num_seeds: int = 1
    """How many seeds are learned: `seed`, `seed` + 1, …"""

    num_envs: int = 1
    """Environments side by side, for each seed."""

    log_every: int = 1_000
    """Steps between records."""

    evaluate_every: int = 5_000
    """Steps between evaluations; there is always one at the end."""

    evaluation_episodes: int = 20
    """Episodes in an evaluation."""

    checkpoint_every: int = 10_000
    """Steps between checkpoints; there is always one at the end."""

    protocol: AtariProtocol | None = None
    """How Atari games are played; None for other environments."""

    asynchronous: bool = False
    """Step Gymnasium environments in processes of their own; pays for slow ones."""

    def __post_init__(self) -> None:
        for name in ("steps", "num_seeds", "num_envs", "log_every", "evaluate_every", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed <= 2**32 - self.num_seeds:
            raise ValueError(f"seeds must lie in [0, 2³²), got {self.seed}")
        schedule = self.schedule
        for name in ("log_every", "evaluate_every", "checkpoint_every"):
            unit, of = (
                (schedule.steps, "an iteration's steps") if name == "log_every" else (self.log_every, "log_every")
            )
            if getattr(self, name) < 1 or getattr(self, name) % unit:
                raise ValueError(f"{name} must be a multiple of {of}, {unit}; got {getattr(self, name)}")
        if (self.protocol is not None) != is_atari(self.env):
            raise ValueError(f"a protocol is for Atari games; {self.env} with {self.protocol}")

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(range(self.seed, self.seed + self.num_seeds))

    @property
    def schedule(self) -> StepSchedule:
        """How steps and updates interleave."""
        agent = self.agent
        return make_step_schedule(
            self.num_envs, agent.update_every, agent.target_every, agent.learning_starts, agent.batch_size
        )

    @property
    def whole_steps(self) -> int:
        """The steps in whole iterations."""
        return self.schedule.whole(self.steps)

    @property
    def is_compiled(self) -> bool:
        """Whether the environment runs in the compiled loop."""
        return is_jax_env(self.env)

    def next_record(self, step: int) -> int:
        """The step of the record after `step`."""
        return min((step // self.log_every + 1) * self.log_every, self.whole_steps)

    def is_evaluated(self, step: int) -> bool:
        """Whether there is an evaluation at `step`."""
        return step % self.evaluate_every == 0 or step >= self.whole_steps

    def is_saved(self, step: int) -> bool:
        """Whether there is a checkpoint at `step`."""
        return step % self.checkpoint_every == 0 or step >= self.whole_steps


REGISTRY: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        RunConfig,
        ValueConfig,
        NetworkConfig,
        ActorCriticConfig,
        ActorCriticNetworkConfig,
        AdamConfig,
        ReplayConfig,
        EpsilonGreedy,
        BonusExploration,
        LeftTruncatedStdBonus,
        QEMStdBonus,
        StdBonus,
        CountBonus,
        SqrtLogDecay,
        PowerDecay,
        LinearDecay,
        Online,
        EMA,
        Snapshots,
        Scalar,
        Categorical,
        FixedQuantiles,
        ImplicitQuantiles,
        EmpiricalMean,
        QEM,
        ConstantVariance,
        TailVariance,
        BandVariance,
        SpacingVariance,
        DecayingVariance,
        CountedVariance,
        SparsityVariance,
        HeadsVariance,
        ResidualVariance,
        CVaR,
        VaR,
        Wang,
        CPW,
        MeanStd,
        ElementwiseMin,
        SmallestCritic,
        PooledTruncation,
        Averaged,
        TanhGaussian,
        Deterministic,
        FixedTemperature,
        AutomaticTemperature,
        AtariProtocol,
    )
}
"""What a configuration may hold."""


@dataclass(frozen=True)
class _Intervals:
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    evaluation_episodes: int

    def fitted(self, iteration: int) -> "_Intervals":
        """The same in multiples of an iteration's steps, none of them more often."""
        log = -(-self.log_every // iteration) * iteration
        evaluate, save = (every // self.log_every * log for every in (self.evaluate_every, self.checkpoint_every))
        return _Intervals(log, evaluate, save, self.evaluation_episodes)


_MUJOCO = _Intervals(1_000, 5_000, 25_000, 10)
_INTERVALS: dict[EnvFamily, _Intervals] = {
    "classic": _Intervals(1_000, 5_000, 10_000, 20),
    "minatar": _Intervals(10_000, 50_000, 100_000, 20),
    "atari": _Intervals(5_000, 250_000, 250_000, 10),
}


def env_family(env: str) -> EnvFamily:
    """Whose settings an environment gets."""
    if is_atari(env):
        return "atari"
    return "minatar" if env.startswith("minatar/") else mujoco_task(env) or "classic"


def default_steps(env: str) -> int:
    """For how long is enough to learn something there."""
    return {"classic": 50_000, "minatar": 1_000_000, "atari": 10_000_000}.get(env_family(env), 1_000_000)


def configure(preset: str, env: str, steps: int, seed: int = 0, num_seeds: int = 1, num_envs: int = 1) -> RunConfig:
    """The run of a preset on an environment with the settings of its family.

    Raises:
        ValueError: There is no such preset; the nearest is named.
    """
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(PRESETS)}"
        raise ValueError(f"there is no preset {preset!r}: {hint}")
    family = env_family(env)
    agent = PRESETS[preset].configure(family).fitted(num_envs)
    schedule = make_step_schedule(
        num_envs, agent.update_every, agent.target_every, agent.learning_starts, agent.batch_size
    )
    intervals = _INTERVALS.get(family, _MUJOCO).fitted(schedule.steps)
    return RunConfig(
        preset=preset,
        env=env,
        agent=agent,
        steps=steps,
        seed=seed,
        num_seeds=num_seeds,
        num_envs=num_envs,
        log_every=intervals.log_every,
        evaluate_every=intervals.evaluate_every,
        checkpoint_every=intervals.checkpoint_every,
        evaluation_episodes=intervals.evaluation_episodes,
        protocol=protocol_for(env) if family == "atari" else None,
    )


def read_config(data: Any) -> RunConfig:
    """The configuration of a run directory's config.json."""
    config = from_json(data, REGISTRY)
    if not isinstance(config, RunConfig):
        raise ValueError(f"a run's configuration is a RunConfig, got {type(config).__name__}")
    return config
