"""Runs with functions from Python, a schedule and a network: learned, logged, saved, resumed, and said when missing."""

import shutil
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import qemrl
from qemrl.cli.app import main
from qemrl.config.serialize import to_json, without_defaults
from qemrl.experiments.grid import Grid
from qemrl.experiments.sweep import Sweep
from qemrl.networks import torsos
from qemrl.training.callbacks import Callback
from qemrl.training.config import configure, create_run, read_config
from qemrl.training.run_directory import RunDirectory
from qemrl.training.train import LossWatch, train

SMALL = {"batch_size": 8, "learning_starts": 60, "replay.capacity": 300, "update_every": 2, "target_every": 20}
OFTEN = {"log_every": 20, "evaluate_every": 80, "checkpoint_every": 40, "evaluation_episodes": 1}


class Waves(eqx.Module):
    """A small network."""

    linear: eqx.nn.Linear

    def __init__(self, spec, key) -> None:
        self.linear = eqx.nn.Linear(spec.observation_shape[0], 6, key=key)

    def __call__(self, observation):
        return jnp.sin(jax.vmap(self.linear)(observation))


BURST = 90
"""After how many updates the rate becomes so large that no loss stays small."""


def rate(count):
    return optax.piecewise_constant_schedule(1e-3, {BURST: 1e8})(count)


GIVEN = {"network.torso": Waves, "optimizer.learning_rate": rate}


@pytest.fixture(scope="module")
def agent():
    """One with a network and a schedule from Python, which has learned a little."""
    overrides = {**SMALL, **GIVEN, "network.widths": (), "log_every": 20, "representation.num_quantiles": 5}
    return qemrl.make("qr-dqn", env="CartPole-v1", overrides=overrides).learn(120, progress=False)


@pytest.fixture(scope="module")
def saved(agent, tmp_path_factory):
    return agent.save(tmp_path_factory.mktemp("saved") / "run")


def test_what_was_handed_over_is_given_again_to_load_it(agent, saved):
    with pytest.raises(
        ValueError, match=r"network.torso was handed over from Python as `Waves`.*cannot be read"
    ) as said:
        qemrl.load(saved)
    assert 'qemrl.load(path, overrides={"network.torso": …, "optimizer.learning_rate": …})' in str(said.value)
    with pytest.raises(ValueError, match=r"optimizer.learning_rate was handed over from Python as `rate`"):
        qemrl.load(saved, overrides={"network.torso": Waves})
    with pytest.raises(ValueError, match=r"discount is stored with the run.*from Python: network.torso, optimizer"):
        qemrl.load(saved, overrides={**GIVEN, "discount": 0.5})
    loaded = qemrl.load(saved, overrides=GIVEN)
    observation = np.linspace(-1, 1, 4)
    np.testing.assert_array_equal(loaded.q(observation), agent.q(observation))
    config = read_config(RunDirectory(saved).config)
    assert to_json(config) == to_json(loaded.config)  # and it is written as it was
    assert saved == agent.save(saved)  # an agent replaces itself


def test_commands_say_what_is_missing_and_the_report_goes_on(saved, tmp_path, capsys):
    for command in ("resume", "evaluate", "show"):
        with pytest.raises(SystemExit) as caught:
            main([command, str(saved)])
        said = capsys.readouterr().err
        assert caught.value.code == 2, said
        assert "network.torso was handed over from Python as `Waves`" in said
        assert "Traceback" not in said
    main(["report", str(saved.parent), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert "qr-dqn" in page
    assert "handed over from Python" in page  # in the place of what the agent predicts


def test_a_loss_that_grows_without_bound_is_said_once(agent, saved):
    """The last to use the agent: it is useless afterwards."""
    going_on = qemrl.load(saved, overrides=GIVEN)
    with pytest.warns(UserWarning, match="the loss has grown from .* as it does in a run that diverges") as said:
        going_on.learn(260, progress=False)
    assert len(said) == 1
    assert agent.steps == 120


def test_a_loss_is_watched_across_a_resumption():
    records = [
        {"seed": 3, "step": step, "train/loss": loss} for step, loss in enumerate([None, 2.0, 1.0, 3.0, 2.0, 2.0])
    ]
    grown = {"seed": 3, "step": 9, "train/loss": 3e6}
    assert LossWatch(records[:5]).find_growth([grown]) is None  # too early to tell
    watch = LossWatch(records)
    for healthy in ({"train/loss": 9e5}, {"train/loss": None}, {"seed": 4}):
        assert watch.find_growth([grown | healthy]) is None
    assert "seed 3, step 9: the loss has grown from 2 in the first records to 3e+06" in str(watch.find_growth([grown]))
    assert watch.find_growth([grown]) is None
    assert LossWatch([*records, grown]).find_growth([grown]) is None  # it was said before the run was stopped
    large = [record | {"train/loss": 1e3} for record in records]
    assert LossWatch(large).find_growth([grown]) is None  # so are all its losses


@pytest.fixture
def _registered(monkeypatch):
    monkeypatch.setattr(torsos, "_REGISTERED", {})
    qemrl.register_network("waves", Waves)


LINEAR = {"optimizer.schedule": "linear", "optimizer.warmup_steps": 20, "optimizer.decay_steps": 160}


class CopiesAt(Callback):
    """Copies the folder of a run at the record of a step, as a crash would leave it."""

    def __init__(self, step, run, copy) -> None:
        self.step, self.run, self.copy = step, run, copy

    def on_record(self, step, metrics):
        if (step, metrics["seed"]) == (self.step, 0):
            shutil.copytree(self.run, self.copy)


@pytest.mark.usefixtures("_registered")
def test_a_registered_network_and_a_schedule_in_the_compiled_loop_and_what_is_logged(tmp_path, capsys):
    """Two seeds of an actor-critic, cut off and resumed: the same bytes, and at each record the rate of its step."""
    settings = {**SMALL, **OFTEN, **LINEAR, "network.torso": "waves", "random_steps": 40, "num_seeds": 2}
    del settings["target_every"]
    small = {"network.policy_widths": (), "network.critic_widths": (), "network.critic_hidden": (4,)}
    config = configure("sac", "jax/pendulum", 160, overrides=settings | small)
    whole, cut = create_run(tmp_path / "whole", config, {}), tmp_path / "cut"
    train(config, whole, [CopiesAt(100, whole.path, cut)])
    train(config, create_run(cut, config, {}))
    assert (cut / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()

    records = whole.read_metrics()
    peak = config.agent.optimizer.learning_rate
    for record in records:  # the warm-up is from step 60 to 80, the decay from there to 160
        step = record["step"]
        expected = 0.0 if step <= 60 else peak * min(step - 60, 20) / 20 * (1 if step <= 80 else (160 - step) / 80)
        assert record["train/learning_rate"] == pytest.approx(expected, rel=1e-5, abs=1e-12)
        assert not any(tag.startswith("explore/") for tag in record)
    assert {record["seed"] for record in records} == {0, 1}

    assert np.isfinite(qemrl.load(whole.path, 1).q(np.zeros(3)))
    torsos._REGISTERED.clear()  # as in another program
    for command in ("evaluate", "resume"):
        with pytest.raises(SystemExit) as caught:
            main([command, str(whole.path)])
        assert caught.value.code == 2
        assert "register it first: qemrl.register_network('waves', function)" in capsys.readouterr().err


@pytest.mark.usefixtures("_registered")
def test_what_is_scheduled_is_logged_by_value_agents_in_the_host_loop(tmp_path, capsys):
    out = tmp_path / "run"
    options = (
        SMALL | OFTEN | LINEAR | {"network.torso": "waves", "exploration.final": 0.2, "exploration.over_steps": 100}
    )
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train", "dqn", "--env", "CartPole-v1", "--exploration.begin-steps", "0", "--network.widths", "4"]
    main([*command, "--steps", "80", *words, "--out", str(out)])
    assert "warning" not in capsys.readouterr().err
    records = RunDirectory(out).read_metrics()
    assert [record["explore/epsilon"] for record in records] == pytest.approx([0.84, 0.68, 0.52, 0.36])
    assert [record["train/learning_rate"] for record in records] == pytest.approx([0.0, 0.0, 0.0, 1e-3])
    assert read_config(RunDirectory(out).config).agent.network.torso == "waves"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learning_starts": 5_000},
            r"nothing will be learned: .* after 5,000 steps \(--learning-starts\), .* has 400",
        ),
        (
            {"batch_size": 401, "learning_starts": 9},
            r"nothing will be learned: .* after 401 steps \(--batch-size\), and the run has 400",
        ),
        ({"learning_starts": 400}, "nothing will be learned: the first update comes after 400 steps"),
        ({"learning_starts": 399}, None),
        (
            {"batch_size": 65, "replay.capacity": 64, "learning_starts": 9},
            "a batch of 65 .* is larger than the replay, which holds 64",
        ),
    ],
)
def test_a_run_that_cannot_learn_says_so_before_it_starts(tmp_path, settings, message):
    config = configure("dqn", "CartPole-v1", 400, overrides=settings)
    (doubt,) = config.find_doubts() or (None,)
    sweep = Sweep(Grid(["dqn"], ["CartPole-v1"], 3, 400, settings), tmp_path)
    if message is None:
        assert doubt is None
        assert sweep.find_doubts() == []
    else:
        with pytest.raises(ValueError, match=message):
            raise ValueError(doubt)
        assert sweep.find_doubts() == [f"dqn on CartPole-v1: {doubt}"]  # once for three seeds


def test_the_command_warns_of_it_and_learning_in_portions_does_not(tmp_path, capsys):
    arguments = ["--steps", "40", "--network.widths", "4", "--evaluation-episodes", "1", "--out", str(tmp_path / "run")]
    main(["train", "dqn", "--env", "probe/1", *arguments])
    said = capsys.readouterr().err
    assert said.count("qemrl: warning: nothing will be learned: the first update comes after 500 steps") == 1
    agent = qemrl.make("dqn", env="probe/1", overrides={"network.widths": (4,)})
    agent.learn(20, progress=False).learn(20, progress=False)  # warnings are errors here


def test_ids_of_runs_without_a_schedule_are_as_they_were():
    agent = without_defaults(configure("qr-dqn", "CartPole-v1", 100).agent)
    assert agent["optimizer"] == {"type": "AdamConfig", "learning_rate": 1e-3}
    assert "torso" not in agent["network"]
    functions = replace(configure("qr-dqn", "CartPole-v1", 100).agent.network, torso=Waves)
    assert without_defaults(functions)["torso"] == {"type": "GivenFunction", "name": "Waves"}
