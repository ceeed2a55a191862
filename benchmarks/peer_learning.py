# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
"""The peers' side of the learning bench: a run of one seed of somebody else's agent.

Settings are those of `qemrl_learning`. It runs in a peer's virtual environment, where qemrl is not, prints one line of
JSON as that does, and imports nothing of ours but its neighbor `peer_turns`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peer_turns import make_board_extractor

QR_DQN: dict[str, Any] = {
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.01,
    "train_freq": 4,
    "gradient_steps": 1,
    "device": "cpu",
}

ADAM_EPSILON = 0.01 / 32

SAC: dict[str, Any] = {
    "learning_rate": 3e-4,
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": 10_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "device": "cpu",
}


def now() -> tuple[float, float]:
    """The clock on the wall, and the processor time of this process."""
    return time.perf_counter(), time.process_time()


class Clock:
    """The seconds of training, and the curve that comes of them; evaluations do not count."""

    def __init__(self) -> None:
        self.curve: dict[str, list[Any]] = {"steps": [], "returns": [], "seconds": [], "cpu_seconds": []}
        self.spent, self.start = (0.0, 0.0), now()

    def stop(self) -> None:
        """Training is interrupted."""
        wall, cpu = now()
        self.spent = self.spent[0] + wall - self.start[0], self.spent[1] + cpu - self.start[1]

    def go_on(self, step: int, returns: list[float]) -> None:
        """It goes on, after an evaluation."""
        self.curve["steps"].append(step)
        self.curve["returns"].append([float(each) for each in returns])
        self.curve["seconds"].append(self.spent[0])
        self.curve["cpu_seconds"].append(self.spent[1])
        self.start = now()


def learn_sb3(make: Any, make_env: Any, seed: int, steps: int, every: int, episodes: int) -> dict[str, list[Any]]:
    """A run of Stable-Baselines3, sb3-contrib or SBX."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    clock, env = Clock(), Monitor(make_env())
    env.reset(seed=seed + 10_000)
    model = make(Monitor(make_env()), steps, seed)

    def evaluate(local: dict[str, Any], _: dict[str, Any]) -> bool:
        step = local["self"].num_timesteps
        if step % every == 0:
            clock.stop()
            played: Any = evaluate_policy(model, env, episodes, deterministic=True, return_episode_rewards=True)
            clock.go_on(step, played[0])
        return True

    model.learn(total_timesteps=steps, callback=evaluate, log_interval=None)
    return clock.curve


def qr_dqn_cartpole(
    seed: int, steps: int, every: int, episodes: int, kind: Any = None, **options: Any
) -> dict[str, list[Any]]:
    """QR-DQN of sb3-contrib, or of another class with further options."""
    import gymnasium
    from sb3_contrib import QRDQN

    def make(env: Any, steps: int, seed: int) -> Any:
        return (kind or QRDQN)(
            "MlpPolicy",
            env,
            learning_rate=1e-3,
            buffer_size=50_000,
            learning_starts=500,
            batch_size=64,
            target_update_interval=100,
            exploration_fraction=10_000 / steps,
            policy_kwargs={"n_quantiles": 51, "net_arch": [256, 256], "optimizer_kwargs": {"eps": ADAM_EPSILON}},
            seed=seed,
            **QR_DQN,
            **options,
        )

    return learn_sb3(make, lambda: gymnasium.make("CartPole-v1"), seed, steps, every, episodes)


def qr_dqn_minatar(seed: int, steps: int, every: int, episodes: int) -> dict[str, list[Any]]:
    """QR-DQN of sb3-contrib."""
    import gymnasium
    import minatar_package  # noqa: F401 it registers the environment
    from sb3_contrib import QRDQN

    def make(env: Any, steps: int, seed: int) -> Any:
        network = {"n_quantiles": 51, "net_arch": [128], "features_extractor_class": make_board_extractor()}
        return QRDQN(
            "MlpPolicy",
            env,
            learning_rate=3e-4,
            buffer_size=100_000,
            learning_starts=1_000,
            batch_size=32,
            n_steps=3,
            target_update_interval=1_000,
            exploration_fraction=100_000 / steps,
            policy_kwargs=network | {"optimizer_kwargs": {"eps": ADAM_EPSILON}},
            seed=seed,
            **QR_DQN,
        )

    return learn_sb3(make, lambda: gymnasium.make("MinAtarPackage/Breakout-v1"), seed, steps, every, episodes)


def learn_mujoco(
    name: str, env_id: str, options: dict[str, Any], seed: int, steps: int, every: int, episodes: int
) -> dict[str, list[Any]]:
    """An actor-critic of SBX."""
    import gymnasium
    import sbx

    def make(env: Any, _: int, seed: int) -> Any:
        return getattr(sbx, name)("MlpPolicy", env, seed=seed, **SAC, **options)

    return learn_sb3(make, lambda: gymnasium.make(env_id), seed, steps, every, episodes)


def sac_hopper(*run: int) -> dict[str, list[Any]]:
    """SAC of SBX on Hopper."""
    return learn_mujoco("SAC", "Hopper-v5", {"ent_coef": 0.2}, *run)


def sac_half_cheetah(*run: int) -> dict[str, list[Any]]:
    """SAC of SBX on HalfCheetah."""
    return learn_mujoco("SAC", "HalfCheetah-v5", {"ent_coef": 0.2}, *run)


def tqc_half_cheetah(*run: int) -> dict[str, list[Any]]:
    """TQC of SBX, which learns its temperature, on HalfCheetah."""
    network = {"policy_kwargs": {"net_arch": [256, 256], "n_critics": 2, "n_quantiles": 25}}
    return learn_mujoco("TQC", "HalfCheetah-v5", {"top_quantiles_to_drop_per_net": 2, **network}, *run)


def iqn_cartpole(
    seed: int,
    steps: int,
    every: int,
    episodes: int,
    network: Any = None,
    policy_kind: Any = None,
    look: Callable[[Any, Any], None] | None = None,
) -> dict[str, list[Any]]:
    """IQN of tianshou, which chooses the target's action with the online network.

    Args:
        seed: Of everything.
        steps: How long to learn.
        every: Steps between evaluations.
        episodes: Episodes in one.
        network: A class in the place of tianshou's network.
        policy_kind: A class in the place of its policy.
        look: Called with the policy and the replay in the end.
    """
    import gymnasium
    import torch
    from tianshou.algorithm import IQN
    from tianshou.algorithm.modelfree.iqn import IQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import ImplicitQuantileNetwork
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    clock = Clock()
    torch.manual_seed(seed)
    envs, tests = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")]) for _ in range(2))
    features = Net(state_shape=(4,), hidden_sizes=[256, 256])
    model = (network or ImplicitQuantileNetwork)(preprocess_net=features, action_shape=2)
    policy = (policy_kind or IQNPolicy)(
        model=model,
        action_space=gymnasium.spaces.Discrete(2),
        sample_size=32,
        online_sample_size=32,
        target_sample_size=32,
    )
    adam = AdamOptimizerFactory(lr=1e-3, eps=ADAM_EPSILON)
    agent = IQN(policy=policy, optim=adam, gamma=0.99, num_quantiles=32, target_update_freq=25)
    buffer = VectorReplayBuffer(50_000, 1)
    acting = Collector(agent, envs, buffer, exploration_noise=True)
    judging = Collector(agent, tests, exploration_noise=False)
    acting.reset(gym_reset_kwargs={"seed": seed})
    judging.reset(gym_reset_kwargs={"seed": seed + 10_000})
    for step in range(0, steps, 4):
        policy.set_eps_training(max(0.01, 1 - 0.99 * step / 10_000))
        with policy_within_training_step(policy):
            acting.collect(n_step=4)
            if step + 4 > 500:
                with torch_train_mode(agent):
                    agent.update(buffer, 64)
        if (step + 4) % every == 0:
            clock.stop()
            returns = judging.collect(n_episode=episodes, reset_before_collect=True).returns
            clock.go_on(step + 4, returns.tolist())
    if look is not None:
        look(policy, buffer)
    return clock.curve


TASKS = {
    "qr-dqn-cartpole": qr_dqn_cartpole,
    "iqn-cartpole": iqn_cartpole,
    "qr-dqn-minatar": qr_dqn_minatar,
    "sac-hopper": sac_hopper,
    "sac-half-cheetah": sac_half_cheetah,
    "tqc-half-cheetah": tqc_half_cheetah,
}


def read_arguments(tasks: tuple[str, ...], about: str | None) -> argparse.Namespace:
    """What is to be learned, from the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("task", choices=tasks)
    for name in ("seed", "steps", "every", "episodes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Learn one task and print the curve."""
    given = read_arguments(tuple(TASKS), __doc__)
    import torch

    torch.set_num_threads(1)
    print(json.dumps(TASKS[given.task](given.seed, given.steps, given.every, given.episodes)))


if __name__ == "__main__":
    main()
