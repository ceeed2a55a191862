"""The settings of the SAC family."""

from dataclasses import dataclass, field
from typing import ClassVar

from qemrl.agents.optimizer import AdamConfig, first_update
from qemrl.agents.policies import FixedTemperature, Policy, TanhGaussian, Temperature
from qemrl.agents.q_estimator import check_estimator
from qemrl.distributional.atoms import Categorical
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.ensembles import ElementwiseMin, Ensemble
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.distributional.representation import Representation
from qemrl.estimators import EmpiricalMean, Statistic
from qemrl.networks.layers import check_widths
from qemrl.networks.torsos import NetworkFunction, TorsoName
from qemrl.replay.config import ReplayConfig


@dataclass(frozen=True)
class ActorCriticNetworkConfig:
    """The networks of policy and critics."""

    torso: TorsoName | NetworkFunction = "auto"
    """What reads the observation: `nature`, `minatar`, `mlp` or a registered network; `auto` goes by its shape.

    From Python also a function from the environment's spec and a key to an Equinox module. The policy and each critic
    have their own.
    """

    policy_widths: tuple[int, ...] = (256, 256)
    """The dense layers of the policy."""

    critic_widths: tuple[int, ...] = (256,)
    """The dense layers of a critic on observation and action, before a level's embedding joins, if there is one."""

    critic_hidden: tuple[int, ...] = (256,)
    """The dense layers of a critic after that."""

    layer_norm: bool = False
    """A LayerNorm before each ReLU of a critic, as in DSAC."""

    def __post_init__(self) -> None:
        for name in ("policy_widths", "critic_widths", "critic_hidden"):
            check_widths(name, getattr(self, name))


@dataclass(frozen=True)
class ActorCriticConfig:
    """An agent of the SAC family. Steps are agent steps: decisions, summed over environments."""

    target_every: ClassVar[None] = None
    """Target networks move with every update, and there is nothing to wait for."""

    representation: Representation = field(default_factory=FixedQuantiles)
    """How a critic holds a return distribution."""

    estimator: Statistic = field(default_factory=EmpiricalMean)
    """How a critic's return distribution becomes the Q that the policy maximizes."""

    ensemble: Ensemble = field(default_factory=ElementwiseMin)
    """How many critics there are, and how they become one."""

    policy: Policy = field(default_factory=TanhGaussian)
    """What kind of policy it is."""

    temperature: Temperature = field(default_factory=FixedTemperature)
    """The weight of the policy's entropy."""

    network: ActorCriticNetworkConfig = field(default_factory=ActorCriticNetworkConfig)
    optimizer: AdamConfig = field(default_factory=lambda: AdamConfig(3e-4, 1e-8))
    """Of the critics, the policy and a learned temperature, each with its own state."""

    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(1_000_000))

    target_policy: bool = False
    """Whether targets bootstrap from an EMA of the policy (DSAC, TD3) instead of the policy itself (SAC, TQC)."""

    polyak: float = 0.005
    """How far target networks move toward the online ones with each update of the policy."""

    policy_every: int = 1
    """Updates of the critics for each of the policy and the target networks; TD3 has two."""

    discount: float = 0.99
    """γ."""

    batch_size: int = 256
    """Transitions per update."""

    update_every: int = 1
    """Steps per update."""

    learning_starts: int = 10_000
    """Steps before the first update."""

    random_steps: int = 10_000
    """Steps with actions drawn uniformly from the whole box, before the policy acts."""

    clip_rewards: bool = False
    """Learn from rewards clipped to [−1, 1]; returns are reported with the rewards as they are."""

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1 or not 0 < self.polyak <= 1:
            raise ValueError(f"discount and polyak must be in (0, 1], got {self.discount} and {self.polyak}")
        for name in ("batch_size", "update_every", "learning_starts", "policy_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.random_steps < 0:
            raise ValueError(f"random_steps must not be negative, got {self.random_steps}")
        check_estimator(self.estimator, self.representation, self.ensemble.size, discrete=False)
        if self.representation.content == "distribution" or isinstance(self.representation, Categorical):
            kind = self.representation.name
            raise ValueError(
                f"critics are joined level by level, and {kind} has no quantiles; use quantiles, or Scalar"
            )
        if isinstance(self.representation, Bootstrapped):
            raise ValueError(
                "critics are an ensemble already, which learns from every transition: use what a head holds"
            )
        if self.ensemble.pools_atoms and self.representation.content == "mean":
            ensemble, kind = type(self.ensemble).__name__, type(self.representation).__name__
            raise ValueError(f"{ensemble} pools atoms, and {kind} has none; use quantiles with it")
        if not self.policy.has_entropy and self.temperature != FixedTemperature(0.0):
            raise ValueError("a deterministic policy has no entropy to weigh; use FixedTemperature(0) with it")
        self.optimizer.check_decay(self.first_update)

    @property
    def num_masked(self) -> int:
        """None of the critics has a mask that says what it learns from."""
        return 0

    @property
    def first_update(self) -> int:
        """The step of the first update."""
        return first_update(self.learning_starts, self.batch_size, self.update_every)

    def fit_num_envs(self, num_envs: int) -> "ActorCriticConfig":
        """The same for any number of environments."""
        del num_envs
        return self
