# pyright: reportMissingImports=false, reportMissingModuleSource=false
"""The peer's side of the value bench: one turn of QR-DQN of sb3-contrib, with the settings of `qemrl_value`.

It runs in the peer's virtual environment, where qemrl is not: `python sb3_value.py TASK --seconds S --threads T` prints
one line of JSON. So this module imports nothing of ours, and what only the peer has inside functions.
"""

import argparse
import json
import time
from typing import Any

LEARNING_STARTS = 1_000
"""Steps before the first update."""

WARM_UP = 200
"""Steps with learning before time is taken."""

SHARED: dict[str, Any] = {
    "batch_size": 32,
    "learning_starts": LEARNING_STARTS,
    "exploration_initial_eps": 0.05,
    "exploration_final_eps": 0.05,
    "device": "cpu",
    "seed": 0,
}
"""What all tasks have in common. Epsilon is the same throughout: nearly all actions need the network."""


def cartpole() -> Any:
    """CartPole with the network that MlpPolicy has by default, two layers of 64, and an update every step."""
    from sb3_contrib import QRDQN

    return QRDQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=5e-4,
        buffer_size=50_000,
        train_freq=1,
        target_update_interval=500,
        policy_kwargs={"n_quantiles": 200, "net_arch": [64, 64]},
        **SHARED,
    )


def pong() -> Any:
    """Pong with the usual preprocessing and the network that CnnPolicy has by default."""
    import ale_py
    import gymnasium
    from sb3_contrib import QRDQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=0), n_stack=4)
    return QRDQN(
        "CnnPolicy",
        envs,
        learning_rate=5e-5,
        buffer_size=20_000,
        train_freq=4,
        target_update_interval=10_000,
        policy_kwargs={"n_quantiles": 200},
        **SHARED,
    )


def minatar() -> Any:
    """MinAtar's Breakout in NumPy, with its minimal set of actions and the same small network as ours."""
    import gymnasium
    import torch
    from minatar.gym import register_envs
    from sb3_contrib import QRDQN
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Board(BaseFeaturesExtractor):
        """One 3x3 convolution with 16 channels that keeps the board's size."""

        def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
            rows, columns, channels = observation_space.shape
            super().__init__(observation_space, features_dim=16 * rows * columns)
            self.convolution = torch.nn.Conv2d(channels, 16, kernel_size=3, padding=1)

        def forward(self, boards: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.convolution(boards.permute(0, 3, 1, 2))).flatten(1)

    register_envs()
    return QRDQN(
        "MlpPolicy",
        gymnasium.make("MinAtar/Breakout-v1"),
        learning_rate=1e-4,
        buffer_size=100_000,
        train_freq=4,
        target_update_interval=1_000,
        policy_kwargs={"n_quantiles": 51, "net_arch": [], "features_extractor_class": Board},
        **SHARED,
    )


TASKS = {"cartpole": cartpole, "pong": pong, "minatar": minatar}


def steps_per_second(model: Any, seconds: float) -> float:
    """Steps per second, learning included, from shortly after the first update on."""
    begin = 0.0

    def goes_on(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal begin
        steps = local["self"].num_timesteps
        if steps == LEARNING_STARTS + WARM_UP:
            begin = time.perf_counter()
        return steps <= LEARNING_STARTS + WARM_UP or time.perf_counter() - begin < seconds

    model.learn(total_timesteps=2**31, callback=goes_on, log_interval=None)
    return (model.num_timesteps - LEARNING_STARTS - WARM_UP) / (time.perf_counter() - begin)


def main() -> None:
    """Time one task and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    rate = steps_per_second(TASKS[arguments.task](), arguments.seconds)
    print(json.dumps({"steps_per_second": rate}))


if __name__ == "__main__":
    main()
