"""Training agents for items: all seeds of an arm in one program, which is inspected after each part of the run."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qemrl.paper.claims import Tick
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig
from qemrl.training.loops import make_loop


def look_every(config: RunConfig, steps: int, episodes: int) -> RunConfig:
    """The run with a record every `steps` steps, which may have an evaluation of `episodes` episodes."""
    every = {"log_every": steps, "evaluate_every": steps, "checkpoint_every": steps}
    return replace(config, **every, evaluation_episodes=episodes)


def train(config: RunConfig, evaluate: bool, tick: Tick) -> Iterator[tuple[CompiledLoop, list[dict[str, Any]]]]:
    """Train to the end; after each record the run comes out, with what it recorded of each seed."""
    run = make_loop(config)
    assert isinstance(run, CompiledLoop)
    while run.step < config.whole_steps:
        records = run.advance(config.next_record(run.step), evaluate, lambda: False)
        assert records is not None
        yield run, records
        tick(run.step / config.whole_steps)
