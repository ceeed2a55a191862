"""Our side of the actor-critic bench: one turn of one preset on HalfCheetah, in a process of its own.

`python -m benchmarks.qemrl_actor_critic PRESET --seconds S` prints a line of JSON, as `peer_turns` does for the peers.
Who starts it decides on the number of threads, with XLA's flags. `--num-seeds` trains that many side by side, `--core`
keeps it on one core, and `--wait` makes it wait for others when it is warm.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace

from benchmarks.qemrl_value import WARM_UP, measure_host
from benchmarks.turns import Turn, wait_for_the_others
from qemrl.agents.presets import PRESETS, AgentConfig
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import make_loop

ENV = "HalfCheetah-v5"
FAMILY = "half-cheetah"

PRESETS_TIMED = ("dsac-mlp", "sac")
"""What is timed in the environment."""

LEARNING_STARTS = 1_000
"""Steps before the first update, in which actions are random."""


def agent(preset: str) -> AgentConfig:
    """The settings of a preset on HalfCheetah."""
    return PRESETS[preset].configure(FAMILY)


def settings(preset: str, num_seeds: int = 1) -> RunConfig:
    """The run of a preset: in everything that costs time the same as the peers'."""
    config = configure(preset, ENV, steps=1, num_seeds=num_seeds)
    started = replace(config.agent, learning_starts=LEARNING_STARTS, random_steps=LEARNING_STARTS)
    return replace(config, agent=started, evaluation_episodes=1)


def take_turn(preset: str, seconds: float, num_seeds: int = 1, warm: Callable[[], None] = lambda: None) -> Turn:
    """Steps per second of all seeds, learning included and compilation not; `warm` is called when the clock starts."""
    config = settings(preset, num_seeds)
    loop = make_loop(config)
    loop.advance(config.schedule.first_update + WARM_UP, False, lambda: False)
    warm()
    rate, cores = measure_host(loop, seconds)
    return Turn(num_seeds * rate, cores)


def main() -> None:
    """Time one preset and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=PRESETS_TIMED)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--num-seeds", type=int, default=1)
    parser.add_argument("--core", type=int)
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    if arguments.core is not None:
        # Before anything is computed: XLA makes as many threads as there are cores for the process to run on.
        os.sched_setaffinity(0, {arguments.core})
    warm = wait_for_the_others if arguments.wait else lambda: None
    print(json.dumps(take_turn(arguments.preset, arguments.seconds, arguments.num_seeds, warm)._asdict()))


if __name__ == "__main__":
    main()
