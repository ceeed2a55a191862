"""Every named algorithm, whatever its family, and the agent that a configuration describes."""

from collections.abc import Callable
from typing import NamedTuple

from qemrl.agents.actor_critic import ActorCriticAgent
from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.actor_critic_presets import ACTOR_CRITIC_PRESETS
from qemrl.agents.agent import InspectableAgent
from qemrl.agents.names import SUMMARIES, EnvFamily
from qemrl.agents.value import ValueAgent, ValueConfig
from qemrl.agents.value_presets import VALUE_PRESETS
from qemrl.types import EnvSpec

AgentConfig = ValueConfig | ActorCriticConfig


class Preset(NamedTuple):
    """A named algorithm."""

    configure: Callable[[EnvFamily], AgentConfig]
    """Its settings in a family; in one that it is not for, those of `classic`."""

    summary: str


def _settings(name: str) -> Callable[[EnvFamily], AgentConfig]:
    def configure(family: EnvFamily) -> AgentConfig:
        if name in ACTOR_CRITIC_PRESETS:
            return ACTOR_CRITIC_PRESETS[name]("classic" if family in ("atari", "minatar") else family)
        return VALUE_PRESETS[name](family if family in ("atari", "minatar") else "classic")

    return configure


PRESETS: dict[str, Preset] = {name: Preset(_settings(name), summary) for name, summary in SUMMARIES.items()}
"""Every preset by its name, which is also its word on the command line and its page in the docs."""


def make_agent(config: AgentConfig, spec: EnvSpec) -> InspectableAgent:
    """The agent of a configuration for environments of this kind.

    Raises:
        UnsupportedEnvironment: Its actions are not for this family; the presets that are for it are named.
    """
    return ValueAgent(config, spec) if isinstance(config, ValueConfig) else ActorCriticAgent(config, spec)
