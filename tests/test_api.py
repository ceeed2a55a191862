"""The library in five calls."""

import importlib
import inspect
import signal
import sys
import threading

import gymnasium
import jaxtyping
import numpy as np
import pytest

import qemrl
from qemrl.agents.value import ValueConfig
from qemrl.training import checkpoint
from qemrl.training.callbacks import show_progress
from qemrl.training.config import configure
from qemrl.training.run_directory import RunDirectory, RunExistsError
from qemrl.training.train import NonFiniteTrainingError

TINY = {"network.widths": (8,), "batch_size": 8, "learning_starts": 64, "representation.num_quantiles": 8}
OBSERVATIONS = np.random.default_rng(0).uniform(-0.2, 0.2, (5, 4)).astype(np.float32)


def make(**further):
    return qemrl.make("qem-dqn", env="CartPole-v1", seed=3, overrides=TINY | further)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An agent that has learned, and where it was saved."""
    agent = make().learn(200, progress=False)
    return agent, agent.save(tmp_path_factory.mktemp("agents") / "first")


def test_an_agent_predicts_the_same_before_it_is_saved_and_after_it_is_loaded(saved):
    agent, path = saved
    loaded = qemrl.load(path)
    assert loaded.steps == agent.steps == 200
    np.testing.assert_array_equal(loaded.q(OBSERVATIONS), agent.q(OBSERVATIONS))
    np.testing.assert_array_equal(loaded.predict(OBSERVATIONS), agent.q(OBSERVATIONS).argmax(-1))
    for left, right in zip(
        loaded.predict_distribution(OBSERVATIONS), agent.predict_distribution(OBSERVATIONS), strict=True
    ):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(
        loaded.predict(OBSERVATIONS, deterministic=False, seed=1),
        agent.predict(OBSERVATIONS, deterministic=False, seed=1),
    )


def test_the_shapes_are_those_of_the_observations(saved):
    agent, _ = saved
    action = agent.predict(OBSERVATIONS[0])
    assert action.shape == ()
    assert gymnasium.spaces.Discrete(2).contains(action)
    assert agent.predict(OBSERVATIONS).shape == (5,)
    assert agent.predict_distribution(OBSERVATIONS[0]).values.shape == (2, 8)
    assert agent.predict_distribution(OBSERVATIONS).values.shape == (5, 2, 8)
    np.testing.assert_allclose(agent.predict_distribution(OBSERVATIONS).levels, (np.arange(8) + 0.5) / 8, rtol=1e-6)


def test_learning_goes_on_from_a_file_bit_for_bit(saved, tmp_path):
    _, path = saved
    loaded = qemrl.load(path).learn(100, progress=False)
    straight = make().learn(300, progress=False)
    assert loaded.steps == straight.steps == 300
    folders = [each.save(tmp_path / name) for each, name in ((loaded, "loaded"), (straight, "straight"))]
    left, right = (checkpoint.load_latest(RunDirectory(folder).checkpoints) for folder in folders)
    assert left is not None
    assert right is not None
    # where the sums of a record begin is the one thing that differs
    names = [name for name in left.arrays if "agent/[2]" not in name and "episodes/" not in name]
    assert len(names) > 20
    for name in names:
        np.testing.assert_array_equal(left.arrays[name], right.arrays[name], err_msg=name)


def test_an_agent_is_saved_over_what_it_was_and_over_nothing_else(saved, tmp_path):
    agent = qemrl.load(saved[1])
    path = agent.save(tmp_path / "a")
    agent.learn(20, progress=False).save(path)
    assert qemrl.load(path).steps == 220
    with pytest.raises(RunExistsError, match=r"agent\.discount is 0\.99 there, but 0\.5 is asked for"):
        make(discount=0.5).save(path)


def test_evaluation_repeats_and_does_not_change_the_agent(saved):
    agent, _ = saved
    before = agent.q(OBSERVATIONS)
    first, second = agent.evaluate(3), agent.evaluate(3)
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.returns, first.lengths)  # one for each step
    assert first.mean == first.returns.mean()
    assert agent.steps == 200
    np.testing.assert_array_equal(agent.q(OBSERVATIONS), before)
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        agent.evaluate(0)


def test_masks_are_honored(saved):
    agent, _ = saved
    for action in (0, 1):
        mask = np.arange(2) == action
        assert (agent.predict(OBSERVATIONS, mask=mask) == action).all()
        assert agent.predict(OBSERVATIONS[0], mask=mask) == action
        assert (agent.predict(OBSERVATIONS, deterministic=False, mask=mask) == action).all()
    with pytest.raises(ValueError, match="allows no action"):
        agent.predict(OBSERVATIONS, mask=np.zeros(2, bool))


def test_wrong_observations_are_named(saved):
    agent, _ = saved
    with pytest.raises(ValueError, match=r"CartPole-v1 has observations of shape \(4,\).* got shape \(3,\)"):
        agent.predict(np.zeros(3))
    with pytest.raises(ValueError, match=r"got shape \(2, 2, 4\)"):
        agent.predict(np.zeros((2, 2, 4)))
    with pytest.raises(ValueError, match="not finite"):
        agent.predict(np.full(4, np.nan))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "qem-dgn"}, "did you mean 'qem-dqn'"),
        ({"env": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"env": "minatar/brekout"}, "did you mean 'minatar/breakout'"),
        ({"env": "Pendulum-v1"}, "actor-critic presets are for continuous ones: sac, td3, dsac"),
        ({"overrides": {"replay.nstep": 3}}, "there is no setting 'replay.nstep' here.*; did you mean 'replay.n_step'"),
        ({"overrides": {"discount": 2.0}}, "discount must be in"),
        ({"env": "minatar/breakout", "num_envs": 3}, "3 environments do not fit an update every 4 steps"),
    ],
)
def test_what_is_mistyped_or_does_not_fit_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        qemrl.make(**{"preset": "qem-dqn", "env": "CartPole-v1"} | arguments)


def test_overrides_reach_the_settings():
    agent = make(**{"replay.n_step": 3, "estimator.order": 2, "double": True})
    assert agent.config.agent.replay.n_step == 3
    assert isinstance(agent.config.agent, ValueConfig)
    assert agent.config.agent.double
    assert agent.config.agent.estimator == qemrl.QEM(order=2, variance=qemrl.TailVariance(1.5))


def test_records_come_at_whole_iterations_for_any_number_of_environments():
    config = configure("qem-dqn", "CartPole-v1", 5_000, num_envs=20)
    assert (config.log_every, config.evaluate_every, config.checkpoint_every) == (1_000, 5_000, 10_000)
    config = configure("qem-dqn", "minatar/breakout", 5_000, num_envs=8)
    assert config.log_every % 8 == 0
    assert config.evaluate_every == 5 * config.log_every


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(NonFiniteTrainingError, match="seed 3 met a number that is not finite at step"):
        make(**{"optimizer.learning_rate": 1e30}).learn(1_000, progress=False)


def test_an_interrupt_stops_between_two_iterations_and_the_agent_can_go_on(saved):
    agent = qemrl.load(saved[1])
    agent.learn(4, progress=False)  # compiled before the clock runs
    timer = threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="stopped at step"):
        agent.learn(10_000_000, progress=False)
    timer.join()
    stopped = agent.steps
    assert 200 < stopped < 10_000_000
    assert agent.learn(40, progress=False).steps == stopped + 40


def test_progress_is_silent_on_demand_and_one_line_in_a_pipe(saved, capsys):
    config = saved[0].config
    record = {"step": config.whole_steps, "seed": 3, "rollout/ep_rew_mean": 12.5, "eval/mean_reward": 100.0}
    for visible, said in (
        (False, ""),
        (True, f"step {config.whole_steps} of {config.whole_steps}  50 steps/s  evaluation return 100.0\n"),
    ):
        for callback in show_progress(visible, introduce=False):
            callback.on_start(config, saved[0]._start(), [])
            callback.on_progress(10.0)
            callback.on_record(config.whole_steps, record | {"time/fps": 50.0})
        assert capsys.readouterr().out == said


@pytest.mark.parametrize(("extra", "module"), [("torch", "qemrl.torch"), ("sb3", "qemrl.integrations.sb3")])
def test_a_module_whose_extra_is_missing_names_it(monkeypatch, extra, module):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=rf"{module} needs a package .*pip install 'qemrl\[{extra}\]'"):
        importlib.import_module(module)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": None}, "a preset is given by its name, such as 'qem-dqn', got None"),
        ({"seed": 2.5}, r"seed must be a whole number, got 2\.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"seed": 10**30}, "seed must be from 0 to 4294967295, got 1000"),
        ({"overrides": 3}, "overrides must be a dict of values by name, got 3"),
        ({"overrides": {3: 1}}, "overrides must have names for keys, got 3"),
        ({"overrides": {"replay": {None: 1}}}, r"overrides\['replay'\] must have names for keys, got None"),
        ({"overrides": {"replay": True}}, "replay"),
        ({"env_kwargs": [1]}, r"env_kwargs must be a dict of values by name, got \[1\]"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(settings, message):
    make = inspect.unwrap(qemrl.make)  # as outside of tests, where nothing checks types before it
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        make(**{"preset": "qr-dqn", "env": "jax/cartpole"} | settings)
    assert not isinstance(raised.value, jaxtyping.TypeCheckError)
