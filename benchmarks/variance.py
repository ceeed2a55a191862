"""What it costs to estimate V: iterations of agents that do, against the same agents with a V that is fixed."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from benchmarks.iterations import SPECS, Overhead, act_in_turn, fixed_inputs, make_overhead
from benchmarks.machine import describe_machine
from benchmarks.timing import time_in_turns
from qemrl.agents.names import EnvFamily
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.agents.q_estimator import MOMENTS_EVERY
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import (
    QEM,
    CountedVariance,
    DecayingVariance,
    EstimatedVariance,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
)
from qemrl.training.compiled_loop import scan_or_once
from qemrl.types import EnvSpec

LIMIT = 1.1
"""How many times as long an iteration may take."""

MODELS: dict[str, EstimatedVariance] = {
    "decay": DecayingVariance(),
    "counts": CountedVariance(),
    "slope of an EMA network": SparsityVariance(),
    "TD residuals": ResidualVariance(),
    "TD residuals, GLS": ResidualVariance(full=True),
    "slope of a twin": SparsityVariance(source="twin"),
    "heads": HeadsVariance(),
}


@dataclass(frozen=True)
class Case:
    """An agent, and the models of V that it is timed with."""

    family: EnvFamily
    task: str
    preset: str
    models: tuple[str, ...]
    heads: int = 1
    iterations: int = MOMENTS_EVERY
    """How many are timed at once. With all of them, a look at TD errors is in them once; with one, none is."""


CASES = (
    Case("minatar", "minatar", "qem-dqn", ("decay", "counts", "slope of an EMA network", "TD residuals")),
    Case("minatar", "minatar", "qem-dqn", ("TD residuals, GLS",)),
    Case("minatar", "minatar", "qem-dqn", ("slope of a twin", "heads"), heads=2),
    Case("minatar", "minatar", "iqem-dqn", ("slope of an EMA network", "TD residuals")),
    Case("atari", "pong", "qem-dqn", ("slope of an EMA network",), iterations=1),
    Case("half-cheetah", "half-cheetah", "qem-dsac-mlp", ("slope of a twin", "heads", "TD residuals")),
)


@dataclass(frozen=True)
class VarianceReport:
    """All lines, and where they come from."""

    overheads: list[Overhead]
    machine: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def configurations(case: Case) -> dict[str, AgentConfig]:
    """The agent with the V of its preset, then with each model."""
    config: Any = PRESETS[case.preset].configure(case.family)
    if case.heads > 1:
        assert isinstance(config.representation, FixedQuantiles)
        config = replace(config, representation=replace(config.representation, num_heads=case.heads))
    assert isinstance(config.estimator, QEM)
    estimator = config.estimator
    changed = {name: replace(config, estimator=replace(estimator, variance=MODELS[name])) for name in case.models}
    return {"fixed V": config} | changed


def make_iterations(config: AgentConfig, spec: EnvSpec, count: int) -> Callable[[], Any]:
    """A call of so many compiled iterations: an update, and as many single actions as there are between updates."""
    agent = make_agent(config, spec)
    first, batch, key = fixed_inputs(config, spec)
    seen = batch.observation[: config.update_every, None]

    @jax.jit
    def iterations(state: Any, batch: Any, seen: Any) -> Any:
        def iterate(learned: Any, number: Any) -> tuple[Any, Any]:
            actions = act_in_turn(agent, learned[0], seen, key)
            now = state._replace(params=learned[0], optimizer=learned[1])
            params, learning, update = agent.update(now, batch, jax.random.fold_in(key, number), number + 1)
            return (params, learning), (actions, update.loss)

        return scan_or_once(iterate, (state.params, state.optimizer), count)

    return lambda: iterations(first, batch, seen)


def run(rounds: int, tell: Callable[[str], None]) -> VarianceReport:
    """Time all cases, each model in turns with the V that is fixed."""
    lines = []
    for case in CASES:
        tell(f"{case.preset} with the settings of {case.family}: {', '.join(case.models)}")
        spec = SPECS[case.task]
        functions = {
            name: make_iterations(config, spec, case.iterations) for name, config in configurations(case).items()
        }
        times = time_in_turns(functions, jax.block_until_ready, rounds, seconds_per_turn=0.02)
        fixed = times["fixed V"]
        peer = "fixed V" if case.heads == 1 else f"fixed V, {case.heads} heads"
        for name in case.models:
            line = make_overhead(case.family, f"{case.preset}, V: {name}", times[name], peer, fixed, LIMIT)
            lines.append(
                replace(
                    line,
                    milliseconds=line.milliseconds / case.iterations,
                    peer_milliseconds=line.peer_milliseconds / case.iterations,
                )
            )
    return VarianceReport(lines, describe_machine())
