"""Every named algorithm, whatever its family, and the agent that a configuration describes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from qemrl.agents.actor_critic import ActorCriticAgent
from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.actor_critic_presets import ACTOR_CRITIC_PRESETS, ACTOR_CRITIC_SETTINGS
from qemrl.agents.agent import InspectableAgent
from qemrl.agents.names import MUJOCO_TASKS, SUMMARIES, EnvFamily
from qemrl.agents.value import ValueAgent, ValueConfig
from qemrl.agents.value_presets import VALUE_PRESETS, VALUE_SETTINGS
from qemrl.types import EnvSpec

AgentConfig = ValueConfig | ActorCriticConfig

Config = TypeVar("Config", ValueConfig, ActorCriticConfig)
NamedSettings = dict[str, tuple[tuple[EnvFamily, ...], Callable[[Config], Config]]]
"""Sets of settings by name: the families that they are for, and what they change."""


@dataclass(frozen=True)
class Preset:
    """A named algorithm."""

    name: str
    summary: str

    def configure(self, family: EnvFamily, settings: str | None = None) -> AgentConfig:
        """Its settings in a family, or a named set of them; in a family that it is not for, those of `classic`.

        Raises:
            ValueError: There are no settings of that name for this preset and family; those that there are are named.
        """
        if self.name in ACTOR_CRITIC_PRESETS:
            task = family if family in MUJOCO_TASKS else "classic"
            config, named = ACTOR_CRITIC_PRESETS[self.name](task), ACTOR_CRITIC_SETTINGS
            return self._change(config, named, task, settings)
        discrete = family if family == "atari" or family == "minatar" else "classic"
        return self._change(VALUE_PRESETS[self.name](discrete), VALUE_SETTINGS, discrete, settings)

    def _change(self, config: Config, named: NamedSettings[Config], family: EnvFamily, settings: str | None) -> Config:
        if settings is None:
            return config
        fitting = [name for name, (families, _) in named.items() if family in families]
        if settings not in fitting:
            there = f"there are {', '.join(fitting)}" if fitting else "there are no others than the default"
            raise ValueError(f"{self.name} has no settings {settings!r} for this environment ({family}); {there}")
        return named[settings][1](config)


PRESETS: dict[str, Preset] = {name: Preset(name, summary) for name, summary in SUMMARIES.items()}
"""Every preset by its name, which is also its word on the command line and its page in the docs."""


def make_agent(config: AgentConfig, spec: EnvSpec) -> InspectableAgent:
    """The agent of a configuration for environments of this kind.

    Raises:
        UnsupportedEnvironment: Its actions are not for this family; the presets that are for it are named.
    """
    return ValueAgent(config, spec) if isinstance(config, ValueConfig) else ActorCriticAgent(config, spec)
