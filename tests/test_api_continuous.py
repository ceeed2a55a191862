"""The library in five calls, with continuous actions and with measures of risk."""

import numpy as np
import pytest

import qemrl
from qemrl.experiments.episodes import watch_episode, write_episode

TINY = {
    "network.policy_widths": (8,),
    "network.critic_widths": (8,),
    "network.critic_hidden": (8,),
    "representation.num_quantiles": 8,
    "batch_size": 8,
    "learning_starts": 64,
    "random_steps": 64,
}
OBSERVATIONS = np.array([[1, 0, 0], [0, 1, -2], [-1, 0, 4]], np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An agent that has learned, and where it was saved."""
    agent = qemrl.make("qem-dsac-mlp", env="Pendulum-v1", seed=3, overrides=TINY).learn(150, progress=False)
    return agent, agent.save(tmp_path_factory.mktemp("agents") / "first")


def test_an_agent_predicts_the_same_before_it_is_saved_and_after_it_is_loaded(saved):
    agent, path = saved
    loaded = qemrl.load(path)
    np.testing.assert_array_equal(loaded.predict(OBSERVATIONS), agent.predict(OBSERVATIONS))
    np.testing.assert_array_equal(loaded.q(OBSERVATIONS), agent.q(OBSERVATIONS))
    before, after = (each.predict(OBSERVATIONS, deterministic=False, seed=1) for each in (agent, loaded))
    np.testing.assert_array_equal(before, after)


def test_actions_are_in_the_units_of_the_environment(saved):
    agent, _ = saved
    actions = agent.predict(OBSERVATIONS)
    assert (actions.shape, actions.dtype) == ((3, 1), np.float32)
    assert agent.predict(OBSERVATIONS[0]).shape == (1,)
    drawn = np.stack([agent.predict(OBSERVATIONS, deterministic=False, seed=seed) for seed in range(40)])
    assert np.abs(drawn).max() <= 2
    assert np.abs(drawn).max() > 1  # beyond the [−1, 1] in which the agent thinks
    assert drawn.std(0).min() > 0.05


def test_learning_goes_on_from_a_file_bit_for_bit(saved):
    _, path = saved
    ends = [qemrl.load(path).learn(40, progress=False) for _ in range(2)]
    straight = qemrl.make("qem-dsac-mlp", env="Pendulum-v1", seed=3, overrides=TINY).learn(190, progress=False)
    for agent in ends:
        assert agent.steps == 190
        np.testing.assert_array_equal(agent.predict(OBSERVATIONS), straight.predict(OBSERVATIONS))
        np.testing.assert_array_equal(agent.q(OBSERVATIONS), straight.q(OBSERVATIONS))


def test_the_distribution_is_that_of_the_preferred_action_or_of_a_given_one(saved):
    agent, _ = saved
    dist = agent.predict_distribution(OBSERVATIONS)
    assert dist.values.shape == (3, 1, 16)  # two critics with eight quantiles each
    np.testing.assert_allclose(dist.levels, np.tile((np.arange(8) + 0.5) / 8, 2), rtol=1e-6)
    preferred = agent.predict_distribution(OBSERVATIONS, action=agent.predict(OBSERVATIONS))
    np.testing.assert_allclose(preferred.values, dist.values, rtol=1e-4, atol=1e-5)
    other = agent.predict_distribution(OBSERVATIONS[0], action=np.array([-2.0]))
    assert other.values.shape == (1, 16)
    assert not np.allclose(other.values, dist.values[0])
    critics = dist.values[:, 0].reshape(3, 2, 8)
    least = agent.config.agent.estimator.mean(critics, (np.arange(8) + 0.5) / 8).min(1)
    np.testing.assert_allclose(agent.q(OBSERVATIONS)[:, 0], least, rtol=1e-4)


def test_a_measure_of_risk_decides_among_actions_of_the_policy(saved):
    agent, _ = saved

    def worth(actions):
        values = agent.predict_distribution(OBSERVATIONS, action=actions).values.reshape(3, 2, 8)
        return qemrl.CVaR(0.25).mean(values, (np.arange(8) + 0.5) / 8).min(1)

    careful = agent.predict(OBSERVATIONS, risk=qemrl.CVaR(0.25))
    np.testing.assert_array_equal(careful, agent.predict(OBSERVATIONS, risk=qemrl.CVaR(0.25)))
    assert (worth(careful) >= worth(agent.predict(OBSERVATIONS)) - 1e-5).all()
    assert (worth(careful) > worth(agent.predict(OBSERVATIONS))).any()


def test_a_measure_of_risk_decides_among_all_actions_of_a_value_agent():
    small = {"network.widths": (8,), "representation.num_quantiles": 8}
    agent = qemrl.make("qr-dqn", env="CartPole-v1", overrides=small)
    observations = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    dist = agent.predict_distribution(observations)
    otherwise = 0
    for risk in (qemrl.CVaR(0.1), qemrl.VaR(0.9), qemrl.Wang(0.75), qemrl.CPW(), qemrl.MeanStd(2.0)):
        chosen = agent.predict(observations, risk=risk)
        worth = np.asarray(risk.mean(dist.values, dist.levels))
        np.testing.assert_allclose(worth[np.arange(400), chosen], worth.max(-1), rtol=1e-5, atol=1e-6)
        otherwise += (chosen != agent.predict(observations)).sum()
    assert otherwise > 10
    only = np.tile([True, False], (400, 1))
    assert not agent.predict(observations, mask=only, risk=qemrl.CVaR(0.1)).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": [True]}, "a mask is for discrete actions"),
        ({"risk": 0.1}, r"risk must be a measure such as qemrl.estimators.CVaR\(0.1\), got 0.1"),
        ({"risk": qemrl.CVaR(0.1), "deterministic": False}, "leave `deterministic` as it is"),
    ],
)
def test_what_does_not_fit_is_named(saved, arguments, message):
    with pytest.raises(ValueError, match=message):
        saved[0].predict(OBSERVATIONS, **arguments)


def test_an_action_of_another_shape_is_named(saved):
    with pytest.raises(ValueError, match=r"expected actions of shape \(3, 1\), .* got shape \(3,\)"):
        saved[0].predict_distribution(OBSERVATIONS, action=np.zeros(3))


def test_an_agent_of_expected_returns_knows_no_risk():
    agent = qemrl.make("sac", env="Pendulum-v1", overrides={"network.policy_widths": (8,)})
    with pytest.raises(ValueError, match="CVaR needs a return distribution, and Scalar has none"):
        agent.predict(OBSERVATIONS, risk=qemrl.CVaR(0.1))


def test_an_episode_shows_what_each_critic_expects(saved, tmp_path):
    episode = watch_episode(saved[0], seed=1, predictions=3)
    assert episode.curves == ("critic 1", "critic 2")
    assert episode.actions.shape == (200, 1)
    assert episode.q.shape == (200, 1)
    prediction = episode.predictions[1]
    assert (prediction.values.shape, prediction.levels.shape) == ((2, 8), (2, 8))
    assert prediction.q_qem is not None
    assert prediction.chosen == prediction.q_mean.argmin()
    np.testing.assert_allclose(prediction.q_qem.min(), episode.q[prediction.step, 0], rtol=1e-4)
    paths = {path.name: path for path in write_episode(episode, tmp_path)}
    assert paths["data.csv"].read_text().startswith("step,action_0,reward,q\n")
    rows = paths["distributions.csv"].read_text().splitlines()
    assert rows[0] == "step,chosen,critic,level,value,prob,qem_fit"
    assert len(rows) == 1 + 3 * 2 * 8
    assert paths["figure.png"].stat().st_size > 10_000
