"""How much memory a run takes, from the shapes alone: nothing is made to find out."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from qemrl.agents.agent import InspectableAgent
from qemrl.replay.device import DeviceReplay
from qemrl.replay.host import HostReplay
from qemrl.training.config import RunConfig
from qemrl.training.machine import require_memory
from qemrl.types import EnvSpec

FLOAT_BYTES = 4


def replay_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """The memory that the replay of all seeds takes."""
    kind = DeviceReplay if config.is_compiled else HostReplay
    masked = config.agent.num_masked
    return config.num_seeds * kind.required_bytes(spec, config.num_envs, config.agent.replay, masked)


def network_bytes(config: RunConfig, agent: InspectableAgent) -> int:
    """The memory that the networks of all seeds take, with their targets, optimizers and the state of exploration."""
    state = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
    actor = jax.eval_shape(lambda: agent.init_actor(config.num_envs))
    arrays: list[Any] = jax.tree.leaves((state, actor))
    return config.num_seeds * sum(array.size * array.dtype.itemsize for array in arrays)


def update_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """The least memory that one update of all seeds takes: its batch, and the errors between all pairs of levels."""
    agent = config.agent
    observation = 2 * math.prod(spec.observation_shape) * jnp.dtype(spec.observation_dtype).itemsize
    errors = FLOAT_BYTES * agent.representation.num_members * agent.representation.num_pairs
    return config.num_seeds * agent.batch_size * (observation + errors)


def require_room(config: RunConfig, agent: InspectableAgent, spec: EnvSpec) -> None:
    """Raise unless the memory of a run is there.

    Raises:
        MemoryShortageError: It is not; the message says what would take how much of it.
    """
    run = f"of {config.preset} on {config.env}"
    seeds = "or fewer seeds at once (--num-seeds)"
    smaller = f"a smaller replay (--replay.capacity), {seeds}"
    require_memory(replay_bytes(config, spec), f"the replay {run}", f"give it {smaller}")
    smaller = f"smaller layers (--network…), fewer quantiles or atoms (--representation…), {seeds}"
    require_memory(network_bytes(config, agent), f"the state of the networks {run}", f"give them {smaller}")
    smaller = f"a smaller batch (--batch-size), fewer quantiles or atoms (--representation…), {seeds}"
    require_memory(update_bytes(config, spec), f"an update {run}", f"give it {smaller}")
