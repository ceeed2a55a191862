"""The programs in examples/."""

import csv
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import qemrl
from qemrl.experiments.episodes import play_episode
from qemrl.training.run_directory import RunDirectory

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"network.widths": (8,), "replay.capacity": 100, "learning_starts": 64, "batch_size": 16}
STATES = 12


def saved(path: Path, preset: str, overrides: dict) -> Path:
    """A finished run of an agent as it begins."""
    folder = qemrl.make(preset, env="jax/catch", seed=1, overrides=SMALL | overrides).save(path)
    RunDirectory(folder).finish({})
    return folder


def test_the_noise_of_trained_agents(tmp_path, capsys):
    program = runpy.run_path(str(EXAMPLES / "noise_of_trained_agents.py"))
    run = saved(tmp_path / "runs" / "a", "iqn", {"representation.num_acting_levels": 16})
    saved(tmp_path / "runs" / "fixed", "qr-dqn", {})
    program["main"]([str(tmp_path / "runs"), "--out", str(tmp_path / "noise.csv"), "--states", str(STATES)])
    assert "| iqn | jax/catch | 1 |" in capsys.readouterr().out
    with (tmp_path / "noise.csv").open(encoding="utf-8") as file:
        (line,) = csv.DictReader(file)  # levels that are not drawn have no noise
    number = {name: float(line[name]) for name in line if name not in ("arm", "env")}
    assert number["states"] == STATES  # of more than one episode
    for name in ("mean", "stratified", "qem"):
        assert 0 < number[f"{name}_own"] < number[f"{name}_error"]
        assert 0 <= number[f"{name}_flips"] <= 1

    # The variance of the mean of independent levels is that of one over their number.
    agent = qemrl.load(run)
    observations = [moment.observation for seed in (0, 1) for moment in play_episode(agent, seed, render=False)]
    network = agent.params.network
    features = network.torso(jnp.stack(observations[:STATES]))
    values = np.asarray(network.head(features, jnp.asarray(qemrl.midpoints(1024), jnp.float32)[None], None), np.float64)
    q = values.mean(1)
    assert number["gap"] == pytest.approx(np.diff(np.sort(q, axis=-1)[:, -2:]).mean(), rel=1e-4)
    assert number["mean_error"] == pytest.approx(values.var(1).mean() / 16, rel=0.5)
    own = values - values.mean(-1, keepdims=True)
    assert number["mean_own"] == pytest.approx(own.var(1).mean() / 16, rel=0.5)


def test_without_levels_that_are_drawn_there_is_no_noise(tmp_path, capsys):
    program = runpy.run_path(str(EXAMPLES / "noise_of_trained_agents.py"))
    saved(tmp_path / "fixed", "qr-dqn", {})
    with pytest.raises(SystemExit):
        program["main"]([str(tmp_path)])
    assert "holds no finished run with a checkpoint whose levels are drawn" in capsys.readouterr().err


def test_a_qr_dqn_in_one_file_learns_with_any_estimator():
    program = runpy.run_path(str(EXAMPLES / "pytorch_qr_dqn.py"))
    episodes: list[tuple[int, float]] = []
    networks = [
        program["train"](estimator, 1_200, 0, lambda step, total: episodes.append((step, total)))
        for estimator in (qemrl.EmpiricalMean(), qemrl.QEM())
    ]
    assert len(episodes) > 20
    observations = torch.zeros(5, 4)
    for network, estimator in zip(networks, (qemrl.EmpiricalMean(), qemrl.QEM()), strict=True):
        with torch.no_grad():
            quantiles = network(observations)
        assert quantiles.shape == (5, 2, 51)
        q = estimator.mean(quantiles.numpy(), qemrl.midpoints(51))
        np.testing.assert_array_equal(network.greedy(observations), q.argmax(-1))


def test_its_loss_is_that_of_the_agents():
    program = runpy.run_path(str(EXAMPLES / "pytorch_qr_dqn.py"))
    generator = np.random.default_rng(0)
    values, target = (generator.normal(size=(3, 51)).astype(np.float32) * 3 for _ in range(2))
    errors = target[:, None, :] - values[:, :, None]
    huber = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5)
    expected = (np.abs(qemrl.midpoints(51)[None, :, None] - (errors < 0)) * huber).mean(-1).sum(-1).mean()
    found = program["quantile_huber_loss"](torch.tensor(values), torch.tensor(target))
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


def test_a_network_of_ones_own_learns():
    program = runpy.run_path(str(EXAMPLES / "own_network.py"))
    agent = program["train"](560, 0, progress=False)
    start = jax.tree.leaves(program["FourierFeatures"](agent.spec, jax.random.key(0)))
    learned = jax.tree.leaves(agent.params.network.torso.reader)
    assert [leaf.shape for leaf in learned] == [leaf.shape for leaf in start]
    assert np.abs(learned[1]).max() > 1e-3  # the phases begin at zero
    assert agent.q(np.zeros(4)).shape == (2,)
