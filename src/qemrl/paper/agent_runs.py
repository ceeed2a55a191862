"""Training agents for items: all seeds of an arm in one program, which is inspected after each part of the run."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qemrl.agents.names import VALUE_AGENTS, EnvFamily
from qemrl.paper.claims import Tick
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, configure, env_family
from qemrl.training.loops import make_loop

SETTINGS: dict[EnvFamily, dict[str, Any]] = {
    "minatar": {"network.widths": (), "replay.n_step": 1, "optimizer.learning_rate": 1e-4},
    "classic": {
        "exploration.final": 0.01,
        "exploration.over_steps": 10_000,
        "replay.n_step": 1,
        "update_every": 4,
        "target_every": 100,
    },
}
"""Settings of value agents in items: what the presets had when the results under results/paper were made."""


def find_settings(preset: str, env: str) -> dict[str, Any]:
    """The settings of a preset in items that are not those of the preset itself by now."""
    return SETTINGS.get(env_family(env), {}) if preset in VALUE_AGENTS else {}


def configure_item(preset: str, env: str, steps: int, seed: int = 0, num_seeds: int = 1) -> RunConfig:
    """The run of a preset in an item."""
    return configure(preset, env, steps, seed, num_seeds, overrides=find_settings(preset, env))


def look_every(config: RunConfig, steps: int, episodes: int) -> RunConfig:
    """The run with a record every `steps` steps, which may have an evaluation of `episodes` episodes."""
    every = {"log_every": steps, "evaluate_every": steps, "checkpoint_every": steps}
    return replace(config, **every, evaluation_episodes=episodes)


def train(config: RunConfig, evaluate: bool, tick: Tick) -> Iterator[tuple[CompiledLoop, list[dict[str, Any]]]]:
    """Train to the end; after each record the run comes out, with what it recorded of each seed."""
    run = make_loop(config)
    assert isinstance(run, CompiledLoop)
    while run.step < config.whole_steps:
        records = run.advance(config.next_stop(run.step), evaluate, lambda: False)
        assert records is not None
        yield run, records
        tick(run.step / config.whole_steps)
