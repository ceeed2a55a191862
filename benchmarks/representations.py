"""What an update costs with each representation, against the preset that it is derived from, and its memory."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.iterations import DOMAINS, SPECS, Overhead, fixed_inputs, make_overhead, make_update
from benchmarks.machine import describe_machine
from benchmarks.timing import time_in_turns
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.types import EnvSpec

LIMITS: dict[str, dict[str, float]] = {
    "qr-dqn": {"nc-qr-dqn": 1.1, "er-dqn": 1.5, "spl-dqn": 1.5, "mmd-dqn": 2.5, "cr-dqn": 1.0},
    "iqn": {"fqf": 1.25, "ndqfn": 1.3},
}
"""How many times as long an update may take as that of the preset it is compared with."""

MEGABYTES = 100.0
"""How much more memory an update may take."""


@dataclass(frozen=True)
class Memory:
    """The arrays that an update makes on its way, in 10⁶ bytes, as the compiler plans them."""

    family: str
    preset: str
    megabytes: float
    peer: str
    peer_megabytes: float

    @property
    def holds(self) -> bool:
        """Whether it takes little more than its peer's."""
        return self.megabytes - self.peer_megabytes <= MEGABYTES


@dataclass(frozen=True)
class RepresentationReport:
    """All lines, and where they come from."""

    overheads: list[Overhead]
    memories: list[Memory]
    machine: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def run(rounds: int, tell: Callable[[str], None]) -> RepresentationReport:
    """Time the updates of each representation in turns with its peer's."""
    overheads, memories = [], []
    for family, task in DOMAINS:
        for peer, limits in LIMITS.items():
            tell(f"{peer} with the settings of {family}, and {', '.join(limits)}")
            configs = {name: PRESETS[name].configure(family) for name in (peer, *limits)}
            functions = {name: make_update(config, SPECS[task]) for name, config in configs.items()}
            times = time_in_turns(functions, jax.block_until_ready, rounds, seconds_per_turn=0.02)
            used = {name: temporary_megabytes(config, SPECS[task]) for name, config in configs.items()}
            for name, limit in limits.items():
                overheads.append(make_overhead(family, name, times[name], peer, times[peer], limit))
                memories.append(Memory(family, name, used[name], peer, used[peer]))
    return RepresentationReport(overheads, memories, describe_machine())


def temporary_megabytes(config: AgentConfig, spec: EnvSpec) -> float:
    """The memory of an update beside its inputs and outputs."""
    state, batch, key = fixed_inputs(config, spec)
    update = jax.jit(make_agent(config, spec).update)
    memory = update.lower(state, batch, key, np.int32(0)).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes / 1e6
