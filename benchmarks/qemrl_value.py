"""Our side of the value bench: one turn of one task, in a process of its own.

`python -m benchmarks.qemrl_value TASK --seconds S --seeds K` prints a line of JSON, as `peer_turns` does for the peer.
Who starts it decides on the number of threads, with XLA's flags.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.turns import Turn
from qemrl.agents.value import NetworkConfig
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.envs.gym.atari import protocol_for
from qemrl.exploration import EpsilonGreedy
from qemrl.replay.config import ReplayConfig
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import Loop, make_loop

WARM_UP = 200
"""Steps with learning before time is taken, on the host."""

CHUNK = 5_000
"""Steps of a call of the compiled loop."""

EPSILON = EpsilonGreedy(initial=0.05, final=0.05)
"""The same from beginning to end, as the peer's, so that nearly all actions need the network."""


def settings(task: str, num_seeds: int = 1) -> RunConfig:
    """The run of a task: in everything that costs time the same as the peer's.

    Raises:
        ValueError: There is no such task.
    """
    if task not in _SETTINGS:
        raise ValueError(f"there is no task {task!r}: choose from {', '.join(_SETTINGS)}")
    return _SETTINGS[task](num_seeds)


def _cartpole(num_seeds: int) -> RunConfig:
    config = configure("qr-dqn", "CartPole-v1", steps=1, num_seeds=num_seeds)
    agent = replace(
        config.agent,
        representation=FixedQuantiles(200),
        exploration=EPSILON,
        network=NetworkConfig(widths=(64, 64)),
        replay=ReplayConfig(capacity=50_000),
        batch_size=32,
        update_every=1,
        target_every=500,
        learning_starts=1_000,
    )
    return replace(config, agent=agent)


def _pong(num_seeds: int) -> RunConfig:
    config = configure("qr-dqn", "PongNoFrameskip-v4", steps=1, num_seeds=num_seeds)
    agent = replace(config.agent, exploration=EPSILON, replay=ReplayConfig(capacity=20_000), learning_starts=1_000)
    return replace(config, agent=agent, protocol=protocol_for(config.env, "sb3"))


def _minatar(num_seeds: int) -> RunConfig:
    config = configure("qr-dqn", "minatar/breakout", steps=1, num_seeds=num_seeds)
    return replace(config, agent=replace(config.agent, exploration=EPSILON))


_SETTINGS: dict[str, Callable[[int], RunConfig]] = {"cartpole": _cartpole, "pong": _pong, "minatar": _minatar}

TASKS = tuple(_SETTINGS)
"""What can be timed."""


def take_turn(task: str, seconds: float, num_seeds: int = 1) -> Turn:
    """Steps per second of all seeds together, learning included and compilation not."""
    config = settings(task, num_seeds)
    loop = make_loop(replace(config, evaluation_episodes=1))
    warm, measure = (CHUNK, measure_compiled) if config.is_compiled else (WARM_UP, measure_host)
    loop.advance(config.schedule.first_update + warm, False, lambda: False)
    rate, cores = measure(loop, seconds)
    return Turn(num_seeds * rate, cores)


def measure_host(loop: Loop, seconds: float) -> Turn:
    """The schedule of a loop that stops at any step, in steps of each seed."""

    def run(start: float) -> None:
        loop.advance(2**31, False, lambda: time.perf_counter() - start >= seconds)

    return _measure(loop, run)


def measure_compiled(loop: Loop, seconds: float) -> Turn:
    """The schedule of a loop that runs in chunks."""

    def run(start: float) -> None:
        while time.perf_counter() - start < seconds:
            loop.advance(loop.step + CHUNK, False, lambda: False)

    return _measure(loop, run)


def _measure(loop: Loop, run: Callable[[float], None]) -> Turn:
    steps, busy, start = loop.mean_step, time.process_time(), time.perf_counter()
    run(start)
    seconds = time.perf_counter() - start
    return Turn((loop.mean_step - steps) / seconds, (time.process_time() - busy) / seconds)


def main() -> None:
    """Time one task and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(take_turn(arguments.task, arguments.seconds, arguments.seeds)._asdict()))


if __name__ == "__main__":
    main()
