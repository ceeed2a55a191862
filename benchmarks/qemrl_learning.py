"""Our side of the learning bench: a run of one seed, in a process of its own.

`python -m benchmarks.qemrl_learning TASK --seed S --steps N --every E --episodes K` prints a line of JSON, as
`peer_learning` does for the peers: the steps at which the agent was evaluated, the returns of the episodes there, and
the seconds of training until then. Who starts it decides on the number of threads.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.peer_learning import Clock, read_arguments
from qemrl.agents.presets import make_agent
from qemrl.training.config import configure
from qemrl.training.loops import Evaluator, make_envs, make_loop

MINATAR = "benchmarks.minatar_package:MinAtarPackage/Breakout-v1"


class Task(NamedTuple):
    """What is learned, and with which settings where they are not the preset's own."""

    preset: str
    env: str
    overrides: Mapping[str, Any] = MappingProxyType({})


GREEDY = {"exploration.begin_steps": 0, "exploration.final": 0.01, "exploration.evaluation": 0.0}
"""As the peers: epsilon falls from the first step on, to 0.01, and evaluations have none."""

CARTPOLE = GREEDY | {
    "exploration.over_steps": 10_000,
    "network.widths": (256, 256),
    "optimizer.learning_rate": 1e-3,
    "replay.capacity": 50_000,
    "replay.n_step": 1,
    "batch_size": 64,
    "update_every": 4,
    "target_every": 100,
    "learning_starts": 500,
}

TASKS: Mapping[str, Task] = {
    "qr-dqn-cartpole": Task("qr-dqn", "CartPole-v1", CARTPOLE),
    "iqn-cartpole": Task("iqn", "CartPole-v1", CARTPOLE | {"double": True}),
    "qr-dqn-minatar": Task(
        "qr-dqn",
        MINATAR,
        GREEDY
        | {
            "exploration.over_steps": 100_000,
            "network.widths": (128,),
            "optimizer.learning_rate": 3e-4,
            "replay.capacity": 100_000,
            "replay.n_step": 3,
            "batch_size": 32,
            "update_every": 4,
            "target_every": 1_000,
            "learning_starts": 1_000,
        },
    ),
    "sac-hopper": Task("sac", "Hopper-v5"),
    "sac-half-cheetah": Task("sac", "HalfCheetah-v5"),
    "tqc-half-cheetah": Task(
        "tqc",
        "HalfCheetah-v5",
        {
            "ensemble.size": 2,
            "ensemble.drop": 2,
            "network.critic_widths": (256,),
            "network.critic_hidden": (256,),
        },
    ),
}


def learn(task: Task, seed: int, steps: int, every: int, episodes: int) -> dict[str, list[Any]]:
    """A whole run; the clock stands still while it is evaluated."""
    config, clock = configure(task.preset, task.env, steps, seed, overrides=task.overrides), Clock()
    envs = make_envs(config)
    loop, evaluator = make_loop(config, envs), Evaluator(config, make_agent(config.agent, envs.spec))
    for until in range(every, steps + 1, every):
        loop.advance(until, False, lambda: False)
        clock.stop()
        returns = evaluator.evaluate(loop.params(0), seed, until, episodes).returns
        clock.go_on(until, returns.tolist())
    loop.close()
    return clock.curve


def main() -> None:
    """Learn one task and print the curve."""
    given = read_arguments(tuple(TASKS), __doc__)
    print(json.dumps(learn(TASKS[given.task], given.seed, given.steps, given.every, given.episodes)))


if __name__ == "__main__":
    main()
