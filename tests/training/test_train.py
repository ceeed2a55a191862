"""The one path of a training: what it builds, and that `learn` and a run in a directory learn the same."""

import os
import signal
from dataclasses import replace
from typing import Any, cast

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import qemrl
from qemrl.agents.value import NetworkConfig
from qemrl.cli.app import main
from qemrl.config.serialize import to_json
from qemrl.training.callbacks import Callback
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import Loop, make_loop
from qemrl.training.run_directory import RunDirectory
from qemrl.training.train import Stopped, train

BUILT = []
"""How many steps had been done, in all environments, when each one was built."""

STEPS = [0]


class CountedEnv(CartPoleEnv):
    """CartPole that says when it is built and stepped."""

    def __init__(self) -> None:
        super().__init__()
        BUILT.append(STEPS[0])

    def step(self, action):
        STEPS[0] += 1
        return super().step(action)


@pytest.fixture
def env_id():
    """An environment that counts how often it is built before the first step."""
    name, entry_point = "tests/counted-v0", cast("Any", CountedEnv)
    gymnasium.register(name, entry_point=entry_point, max_episode_steps=50, disable_env_checker=True)
    BUILT.clear()
    STEPS[0] = 0
    yield name
    del gymnasium.registry[name]


def built_before_the_first_step() -> int:
    return BUILT.count(0)


def tiny(env: str, num_envs: int = 1, num_seeds: int = 1) -> RunConfig:
    config = configure("dqn", env, 200, num_seeds=num_seeds, num_envs=num_envs)
    agent = replace(config.agent, network=NetworkConfig(widths=(8,)), batch_size=8, learning_starts=64)
    return replace(config, agent=agent, evaluation_episodes=3)


@pytest.mark.parametrize(("num_envs", "num_seeds"), [(1, 1), (4, 1), (2, 2)])
def test_each_environment_is_built_once_before_the_first_step(env_id, tmp_path, num_envs, num_seeds):
    config = tiny(env_id, num_envs, num_seeds)
    train(config, RunDirectory.create(tmp_path / "run", to_json(config), {}))
    assert built_before_the_first_step() == num_envs * num_seeds
    # Those of the evaluation are built when they are needed, and then they stay.
    assert len(BUILT) == num_envs * num_seeds + 3 * num_seeds


def test_the_command_checks_the_environment_that_it_learns_in(env_id, tmp_path, capsys):
    small = ("--network.widths", "8", "--batch-size", "8", "--learning-starts", "64", "--evaluation-episodes", "1")
    main(["train", "dqn", "--env", env_id, "--steps", "100", *small, "--out", str(tmp_path / "run")])
    assert "the replay takes up to" in capsys.readouterr().out
    assert built_before_the_first_step() == 1


def test_an_agent_learns_in_the_environment_that_it_was_made_with(env_id):
    overrides = {"network.widths": (8,), "batch_size": 8, "learning_starts": 64}
    qemrl.make("dqn", env=env_id, num_envs=2, overrides=overrides).learn(100, progress=False)
    assert len(BUILT) == 2


def test_an_agent_that_does_not_fit_leaves_no_environment_open(env_id, monkeypatch):
    closed = []
    monkeypatch.setattr(CountedEnv, "close", lambda self: closed.append(self))
    with pytest.raises(ValueError, match="continuous"):
        make_loop(configure("sac", env_id, 100))
    assert len(closed) == len(BUILT) == 1


@pytest.mark.parametrize("env", ["CartPole-v1", "probe/1"])
def test_without_a_directory_the_same_is_learned(env, tmp_path):
    config = tiny(env)
    kept, alone = make_loop(config), make_loop(config)
    train(config, RunDirectory.create(tmp_path / "run", to_json(config), {}), loop=kept)
    train(config, loop=alone)
    assert kept.step == alone.step == 200
    jax.tree.map(np.testing.assert_array_equal, kept.params(0), alone.params(0))


def test_a_callback_is_told_of_start_and_records_and_may_stop_a_run_without_a_directory():
    class Told(Callback):
        def __init__(self) -> None:
            self.started, self.steps = [], []

        def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
            self.started.append((config.env, loop.step, lost))

        def on_record(self, step, metrics):
            assert metrics["time/fps"] > 0
            assert not any(tag.startswith("eval/") for tag in metrics)
            self.steps.append(step)
            if self.steps[-1] == 80:
                os.kill(os.getpid(), signal.SIGTERM)

    config = replace(tiny("probe/1"), log_every=40, evaluate_every=40, checkpoint_every=40)
    told = Told()
    with pytest.raises(Stopped, match="stopped at step 80"):
        train(config, None, [told], evaluate=False)
    assert told.started == [("probe/1", 0, [])]
    assert told.steps == [40, 80]
