"""Evaluations end: an episode that does not is cut, and that is said."""

import json
import warnings
from dataclasses import replace

import pytest

import qemrl
from qemrl.cli import main
from qemrl.config.serialize import without_defaults
from qemrl.training.config import configure
from qemrl.training.evaluation import CutEpisodeWarning

SMALL = {"network.widths": [4], "batch_size": 8, "learning_starts": 8, "replay.capacity": 64, "evaluation_max_steps": 3}


@pytest.mark.parametrize("env", ["probe/1", "qemrl.envs.gym.jax_adapter:qemrl/probe-1-v0"])
def test_episodes_that_end_at_the_limit_are_not_cut(env):
    agent = qemrl.make("qr-dqn", env, overrides=SMALL | {"evaluation_max_steps": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = agent.evaluate(2)
    assert (found.cut, found.lengths.tolist()) == (0, [1, 1])


@pytest.mark.parametrize("env", ["CartPole-v1", "jax/cartpole"])
def test_episodes_without_an_end_are_cut_and_training_says_so_once_and_evaluate_too(env, tmp_path, capsys):
    agent = qemrl.make("qr-dqn", env, overrides=SMALL | {"log_every": 20})
    with pytest.warns(CutEpisodeWarning) as told:
        agent.learn(40, tmp_path / "run", evaluate_every=20, evaluation_episodes=2, progress=False)
    assert len(told) == 1
    stored = [json.loads(file.read_text()) for file in sorted((tmp_path / "run" / "evaluations").glob("*.json"))]
    main(["evaluate", str(tmp_path / "run"), "--episodes", "2"])
    shown = capsys.readouterr()
    assert "episodes that had not ended and were cut: 2" in shown.out
    assert "warning: 2 of 2 evaluation episodes had not ended after 3 steps and were cut there" in shown.err
    assert [(each["step"], each["lengths"], each["cut"]) for each in stored] == [(20, [3, 3], 2), (40, [3, 3], 2)]


def test_the_limit_is_a_setting_that_changes_no_identity_where_it_is_the_default():
    config = configure("qr-dqn", "CartPole-v1", 100)
    assert config.evaluation_max_steps == 100_000
    assert "evaluation_max_steps" not in without_defaults(config)
    for wrong in (0, -1, 2**31):
        with pytest.raises(ValueError, match=f"evaluation_max_steps must be .*got {wrong}"):
            replace(config, evaluation_max_steps=wrong)
