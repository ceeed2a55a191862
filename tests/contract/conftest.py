"""Both loops with each preset that has a program of its own, compiled and run once, for all contract tests to look at.

Compiling is what costs time here, not learning. So the probes are played in one environment (see `mixed_probes`),
agents are small (see `small_loops`), updates are those that the host loop has compiled, and XLA is told not to
optimize, but where a loop would then run for longer than it is compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mixed_probes import mixed_probes, shown
from small_loops import DISTINCT, LEARNERS, compiled_loop, host_loop, tiny

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.agent import AgentState
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.envs.gym.jax_adapter import JaxEnvAdapter
from qemrl.envs.jax.probes import BOX_PROBES, PROBES
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.host_loop import HostLoop
from qemrl.training.schedule import Accumulator, Keys
from qemrl.types import Batch, EnvSpec, ReturnDist

NUM_ENVS = 4
SEEDS = (3, 4, 3)

MARKS = (0, 400, 800, 8_000)
"""Where the compiled loop's state is taken."""

HOST_MARKS = (400, 600, 3_000)

SWITCHED = ("dqn", "c51", "iqem-dqn", "td3", "dsac-mlp")
"""Whose switches are tried. Those of the others are the same code, and compiling them takes long."""


@contextmanager
def optimized(wanted: bool) -> Iterator[None]:
    """Programs that are compiled in here are optimized, as little as in all tests, or not at all."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not wanted)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    with optimized(False):
        yield


class Learned(NamedTuple):
    """What an agent says of a probe's observations."""

    q: np.ndarray
    dist: ReturnDist
    actions: np.ndarray | None
    """The best ones, in the box of the mixed environment; None where actions are discrete."""


class CompiledRun(NamedTuple):
    """The compiled loop after its run."""

    loop: CompiledLoop
    states: dict[int, dict[str, np.ndarray]]
    bad_steps: list[int]
    programs: int
    """How many there were before any state was restored."""

    answers: list[dict[str, Learned]]
    """For each seed, by probe."""


class HostRun(NamedTuple):
    """The host loop after its run."""

    states: dict[int, dict[str, np.ndarray]]
    programs: tuple[int, int]
    answers: dict[str, Learned]


class System:
    """A preset in both loops, made when asked for. Loops are shared: a test restores the state that it starts from."""

    def __init__(self, preset: str) -> None:
        self.preset, self.config = preset, tiny(preset)
        continuous = isinstance(self.config, ActorCriticConfig)
        self.probes = tuple(BOX_PROBES if continuous else PROBES)
        self.host_probes = ("c5", "c6") if continuous else ("5", "6")
        self.keys = Keys.from_seed(SEEDS[0])
        self._generated: Any = None

    @cached_property
    def compiled(self) -> CompiledRun:
        return _run_compiled(self.preset, self.probes)

    @cached_property
    def spec(self) -> EnvSpec:
        """That of the host loop's environments."""
        return mixed_probes(self.host_probes).spec

    @cached_property
    def host(self) -> HostLoop:
        return host_loop(self.config, partial(JaxEnvAdapter, mixed_probes(self.host_probes)), NUM_ENVS, SEEDS[0])

    @cached_property
    def host_start(self) -> AgentState:
        """The agent before it has learned anything; the first to be asked for."""
        assert self.host.step == 0
        return jax.device_get(self.host.agent_state)

    @cached_property
    def host_run(self) -> HostRun:
        assert self.host_start is not None
        states = {}
        for mark in HOST_MARKS:
            self.host.advance(mark, False, lambda: False)
            states[mark] = _taken(self.host.arrays())
        programs = (_count_programs(self.host._learn), _count_programs(self.host._act))
        return HostRun(states, programs, _answers(self.host.agent, [self.host.agent_state.params], self.host_probes)[0])

    def learn(
        self, state: AgentState, batch: Batch, number: int = 0, as_users_get_it: bool = False
    ) -> tuple[Any, Any, float, np.ndarray]:
        """Params, learning, loss and priorities after the host loop's update of this number from this state.

        The update is the one that the host loop has compiled, or comes from the generator of code that users get.
        """
        params, learning, frozen = ([jnp.array(leaf) for leaf in jax.tree.leaves(part)] for part in state)
        arguments = learning, Accumulator.empty(), params, frozen, batch, np.int32(number), np.int32(0)
        update = self.host._learn
        if as_users_get_it:
            self._generated = self._generated or update.lower(*arguments).compile({"xla_cpu_use_fusion_emitters": True})
            update = self._generated
        params, learning, accumulator, priorities = update(*arguments)
        structures = self.host._structures
        return (
            jax.tree.unflatten(structures.params, params),
            jax.tree.unflatten(structures.optimizer, learning),
            float(accumulator.loss),
            np.asarray(priorities),
        )

    def targets(self, state: AgentState) -> dict[str, Any]:
        """The networks that a transition which goes on bootstraps from and that lag behind, by name."""
        if not isinstance(self.config, ActorCriticConfig):
            return {"frozen": state.target}
        critics, policy = state.optimizer.target_critics, state.optimizer.target_policy
        return {"target_critics": critics} | ({} if policy is None else {"target_policy": policy})

    def with_targets(self, state: AgentState, targets: dict[str, Any]) -> AgentState:
        """The state with these of its target networks in the place of its own."""
        if not isinstance(self.config, ActorCriticConfig):
            return state._replace(target=targets["frozen"])
        return state._replace(optimizer=state.optimizer._replace(**targets))

    def due(self, number: int) -> bool:
        """Whether target networks move with this update: every tenth for agents with refreshes, see `tiny`."""
        if not isinstance(self.config, ActorCriticConfig):
            return number > 0 and number % 10 == 0
        return number % 2 == 1 if self.preset == "td3" else True

    def where_targets_go(self, before: AgentState, after: AgentState) -> dict[str, Any]:
        """Target networks after an update with which they move: a copy of what was, or some way to what is."""
        if not isinstance(self.config, ActorCriticConfig):
            return {"frozen": before.params}
        online = {"target_critics": after.params.critics, "target_policy": after.params.policy}
        share = self.config.polyak
        return {
            name: jax.tree.map(lambda old, new: (1 - share) * old + share * new, slow, online[name])
            for name, slow in self.targets(before).items()
        }


def _count_programs(function: Any) -> int:
    return function._cache_size()


def _taken(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in arrays.items()}


def _answers(agent: Any, params: list[Any], names: tuple[str, ...]) -> list[dict[str, Learned]]:
    continuous = mixed_probes(names).spec.box is not None

    @jax.jit
    def ask(params, observation):
        actions = agent.greedy_action(params, observation, None, None) if continuous else None
        return agent.q_values(params, observation), agent.predict_distribution(params, observation), actions

    observations = [shown(names, name) for name in names]
    ends = np.cumsum([0, *(len(each) for each in observations)])
    places = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(names)}
    answers = []
    for each in params:
        q, (values, levels, probs), actions = jax.device_get(ask(each, np.concatenate(observations)))
        answers.append(
            {
                name: Learned(
                    q[place],
                    ReturnDist(values[place], levels, None if probs is None else probs[place]),
                    None if actions is None else actions[place],
                )
                for name, place in places.items()
            }
        )
    return answers


def _run_compiled(preset: str, probes: tuple[str, ...]) -> CompiledRun:
    config = tiny(preset, kappa=0.0)
    # Critics that are asked at levels compute much: what is saved in compiling them would be lost in running them.
    slow = isinstance(config, ActorCriticConfig) and isinstance(config.representation, ImplicitQuantiles)
    loop = compiled_loop(config, mixed_probes(probes), NUM_ENVS, SEEDS, 2)
    states, records = {0: _taken(loop.arrays())}, []
    with optimized(slow):
        for mark in MARKS[1:]:
            records += loop.advance(mark, mark == MARKS[-1]) or []
            states[mark] = _taken(loop.arrays())
    programs = _count_programs(loop._chunk)
    answers = _answers(loop.agent, [loop.params(index) for index in range(len(SEEDS))], probes)
    return CompiledRun(loop, states, [record["bad_step"] for record in records], programs, answers)


_system_of = cache(System)


@pytest.fixture(scope="session", params=DISTINCT)
def system(request: pytest.FixtureRequest) -> System:
    return _system_of(request.param)


@pytest.fixture(scope="session", params=LEARNERS)
def any_system(request: pytest.FixtureRequest) -> System:
    return _system_of(request.param)


@pytest.fixture(scope="session", params=SWITCHED)
def switched(request: pytest.FixtureRequest) -> System:
    return _system_of(request.param)
