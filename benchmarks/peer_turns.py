# pyright: reportMissingImports=false, reportMissingModuleSource=false
"""The peers' side of the benches: one turn of somebody else's agent.

Settings are those of `qemrl_value` and `qemrl_actor_critic`. It runs in a peer's virtual environment, where qemrl is
not: `python peer_turns.py TASK --seconds S --threads T` prints one line of JSON. So this module imports nothing of
ours, and what only peers have inside functions. JAX goes by XLA's flags, so whoever starts it sets these as well.
"""

import argparse
import json
import time
from typing import Any

LEARNING_STARTS = 1_000
"""Steps before the first update."""

WARM_UP = 200
"""Steps with learning before time is taken."""

VALUE: dict[str, Any] = {
    "batch_size": 32,
    "learning_starts": LEARNING_STARTS,
    "exploration_initial_eps": 0.05,
    "exploration_final_eps": 0.05,
    "device": "cpu",
    "seed": 0,
}
"""What the value tasks have in common. Epsilon is the same throughout: nearly all actions need the network."""

ACTOR_CRITIC: dict[str, Any] = {
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": LEARNING_STARTS,
    "learning_rate": 3e-4,
    "train_freq": 1,
    "gradient_steps": 1,
    "ent_coef": 0.2,
    "device": "cpu",
    "seed": 0,
}
"""What the actor-critic tasks have in common. The temperature is fixed, as ours."""

ACTOR_CRITIC_ENV = "HalfCheetah-v5"

CRITICS: dict[str, Any] = {"net_arch": [256, 256], "n_critics": 2}
"""The networks of the actor-critics."""

QUANTILES = 32
"""Of each critic of TQC."""


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
        **VALUE,
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
        **VALUE,
    )


def make_board_extractor() -> Any:
    """A class of features for small boards: one 3x3 convolution with 16 channels that keeps the board's size."""
    import gymnasium
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Board(BaseFeaturesExtractor):
        def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
            rows, columns, channels = observation_space.shape
            super().__init__(observation_space, features_dim=16 * rows * columns)
            self.convolution = torch.nn.Conv2d(channels, 16, kernel_size=3, padding=1)

        def forward(self, boards: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.convolution(boards.permute(0, 3, 1, 2))).flatten(1)

    return Board


def minatar() -> Any:
    """MinAtar's Breakout in NumPy, with its minimal set of actions, and the network and 3-step returns of ours."""
    import gymnasium
    from minatar.gym import register_envs
    from sb3_contrib import QRDQN

    register_envs()
    return QRDQN(
        "MlpPolicy",
        gymnasium.make("MinAtar/Breakout-v1"),
        learning_rate=3e-4,
        buffer_size=100_000,
        train_freq=4,
        n_steps=3,
        target_update_interval=1_000,
        policy_kwargs={"n_quantiles": 51, "net_arch": [128], "features_extractor_class": make_board_extractor()},
        **VALUE,
    )


def sb3_tqc() -> Any:
    """TQC of sb3-contrib, in PyTorch."""
    from sb3_contrib import TQC

    return TQC("MlpPolicy", ACTOR_CRITIC_ENV, policy_kwargs=CRITICS | {"n_quantiles": QUANTILES}, **ACTOR_CRITIC)


def sbx_tqc() -> Any:
    """TQC of SBX, in JAX."""
    from sbx import TQC

    return TQC("MlpPolicy", ACTOR_CRITIC_ENV, policy_kwargs=CRITICS | {"n_quantiles": QUANTILES}, **ACTOR_CRITIC)


def sbx_sac() -> Any:
    """SAC of SBX, in JAX."""
    from sbx import SAC

    return SAC("MlpPolicy", ACTOR_CRITIC_ENV, policy_kwargs=dict(CRITICS), **ACTOR_CRITIC)


VALUE_TASKS = {"cartpole": cartpole, "pong": pong, "minatar": minatar}
ACTOR_CRITIC_TASKS = {"sb3-tqc": sb3_tqc, "sbx-tqc": sbx_tqc, "sbx-sac": sbx_sac}
TASKS = VALUE_TASKS | ACTOR_CRITIC_TASKS


def take_turn(model: Any, seconds: float) -> dict[str, float]:
    """Steps per second, learning included, from shortly after the first update on; and cores that were busy."""
    begin = busy = 0.0

    def goes_on(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal begin, busy
        steps = local["self"].num_timesteps
        if steps == LEARNING_STARTS + WARM_UP:
            begin, busy = time.perf_counter(), time.process_time()
        return steps <= LEARNING_STARTS + WARM_UP or time.perf_counter() - begin < seconds

    model.learn(total_timesteps=2**31, callback=goes_on, log_interval=None)
    steps, elapsed = model.num_timesteps - LEARNING_STARTS - WARM_UP, time.perf_counter() - begin
    return {"steps_per_second": steps / elapsed, "cores": (time.process_time() - busy) / elapsed}


def main() -> None:
    """Time one task and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    print(json.dumps(take_turn(TASKS[arguments.task](), arguments.seconds)))


if __name__ == "__main__":
    main()
