"""The agents of sb3-contrib with estimators of ours: with the plain mean they are their parents."""

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN, TQC
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from stable_baselines3.common.callbacks import BaseCallback

import qemrl
from qemrl.estimators import Statistic
from qemrl.integrations.sb3 import QEMQRDQN, QEMTQC, MlpPolicy

QR_DQN = {
    "learning_rate": 1e-3,
    "learning_starts": 100,
    "batch_size": 16,
    "train_freq": 4,
    "target_update_interval": 50,
    "exploration_fraction": 0.5,
    "policy_kwargs": {"n_quantiles": 11, "net_arch": [16]},
    "seed": 3,
    "device": "cpu",
}
TQC_OPTIONS = {
    "learning_starts": 50,
    "batch_size": 16,
    "policy_kwargs": {"n_quantiles": 9, "net_arch": [16]},
    "seed": 3,
    "device": "cpu",
}


QEM4 = qemrl.QEM()


def make_qr_dqn(estimator: Statistic = QEM4, **options) -> QEMQRDQN:
    return QEMQRDQN("MlpPolicy", "CartPole-v1", estimator=estimator, **copy.deepcopy({**QR_DQN, **options}))


def assert_equal_parameters(one, other) -> None:
    pairs = zip(one.policy.state_dict().items(), other.policy.state_dict().items(), strict=True)
    for (name, left), (other_name, right) in pairs:
        assert name == other_name
        torch.testing.assert_close(left, right, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("options", [{}, {"n_steps": 3, "max_grad_norm": 1.0}])
def test_with_the_plain_mean_qr_dqn_learns_what_its_parent_does(options):
    ours = make_qr_dqn(qemrl.EmpiricalMean(), **options).learn(1_000)
    parent = QRDQN("MlpPolicy", "CartPole-v1", **{**QR_DQN, **options}).learn(1_000)
    assert ours._n_updates == parent._n_updates > 200
    assert_equal_parameters(ours, parent)


@pytest.mark.parametrize("options", [{}, {"ent_coef": 0.2, "n_steps": 2, "use_sde": True}])
def test_with_the_plain_mean_tqc_learns_what_its_parent_does(options):
    options = {**TQC_OPTIONS, **options}
    # One after the other: an agent of Stable-Baselines3 seeds all of PyTorch when it is made.
    ours = QEMTQC("MlpPolicy", "Pendulum-v1", estimator=qemrl.EmpiricalMean(), **copy.deepcopy(options)).learn(200)
    parent = TQC("MlpPolicy", "Pendulum-v1", **copy.deepcopy(options)).learn(200)
    assert_equal_parameters(ours, parent)


@pytest.mark.parametrize(
    "estimator", [qemrl.QEM(2, qemrl.TailVariance(3.0)), qemrl.CVaR(0.2), qemrl.MeanStd(1.0)], ids=str
)
def test_actions_and_targets_are_those_of_the_estimator(estimator):
    model = make_qr_dqn(estimator).learn(200)
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    assert model.replay_buffer is not None
    batch = model.replay_buffer.sample(32)
    with torch.no_grad():
        quantiles = model.quantile_net(torch.tensor(observations)).transpose(1, 2).numpy()
        following = model.quantile_net_target(batch.next_observations).transpose(1, 2).numpy()
    greedy = estimator.mean(quantiles, qemrl.midpoints(11)).argmax(-1)
    np.testing.assert_array_equal(model.predict(observations, deterministic=True)[0], greedy)
    best = estimator.mean(following, qemrl.midpoints(11)).argmax(-1)
    chosen = following[np.arange(32), best]
    expected = batch.rewards.numpy() + (1 - batch.dones.numpy()) * 0.99 * chosen
    np.testing.assert_allclose(model.bellman_target(batch), expected, rtol=1e-5)


def test_estimators_disagree_about_some_actions():
    """Or the test above could not fail."""
    model = make_qr_dqn().learn(200)
    observations = torch.tensor(np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32))
    with torch.no_grad():
        quantiles = model.quantile_net(observations).transpose(1, 2).numpy()
    actions = {
        tuple(each.mean(quantiles, qemrl.midpoints(11)).argmax(-1))
        for each in (qemrl.EmpiricalMean(), qemrl.QEM(2, qemrl.TailVariance(3.0)), qemrl.CVaR(0.2))
    }
    assert len(actions) == 3


def test_the_policy_of_tqc_maximizes_the_estimate():
    model = QEMTQC("MlpPolicy", "Pendulum-v1", estimator=qemrl.QEM(3), **TQC_OPTIONS).learn(60)
    parent = QEMTQC("MlpPolicy", "Pendulum-v1", estimator=qemrl.EmpiricalMean(), **TQC_OPTIONS).learn(60)
    quantiles = torch.randn(4, 2, 9)
    expected = qemrl.QEM(3).mean(quantiles.numpy(), qemrl.midpoints(9))
    np.testing.assert_allclose(model.estimate(quantiles), expected, rtol=1e-5, atol=1e-6)
    left, right = (next(iter(each.actor.parameters())) for each in (model, parent))
    assert not torch.equal(left, right)


@pytest.mark.parametrize("kind", ["qr-dqn", "tqc"])
def test_a_saved_agent_goes_on_with_its_estimator(kind, tmp_path):
    estimator = qemrl.QEM(2, qemrl.TailVariance(1.5))
    if kind == "qr-dqn":
        model, env = make_qr_dqn(estimator, exploration="dltv").learn(150), "CartPole-v1"
    else:
        model, env = QEMTQC("MlpPolicy", "Pendulum-v1", estimator=estimator, **TQC_OPTIONS).learn(80), "Pendulum-v1"
    model.save(tmp_path / "agent")
    loaded = type(model).load(tmp_path / "agent", env=gymnasium.make(env))
    assert loaded.estimator == estimator
    assert_equal_parameters(model, loaded)
    observations = np.random.default_rng(0).normal(size=(8, *(loaded.observation_space.shape or ()))).astype(np.float32)
    before, after = (each.predict(observations, deterministic=True)[0] for each in (model, loaded))
    np.testing.assert_array_equal(before, after)
    loaded.learn(60)


def test_a_policy_alone_is_saved_with_its_estimator(tmp_path):
    model = make_qr_dqn(qemrl.CVaR(0.2)).learn(120)
    model.policy.save(str(tmp_path / "policy"))
    policy = MlpPolicy.load(str(tmp_path / "policy"))
    assert policy.estimator == qemrl.CVaR(0.2)
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(observations)[0], model.policy.predict(observations)[0])


@pytest.mark.parametrize("exploration", ["dltv", "qem-std-bonus"])
def test_a_bonus_of_the_spread_decides_in_training_and_not_in_evaluation(exploration):
    model = make_qr_dqn(exploration=exploration).learn(150)
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        quantiles = model.quantile_net(torch.tensor(observations)).transpose(1, 2).numpy()
    q = qemrl.QEM().mean(quantiles, qemrl.midpoints(11))
    factor = 50 * np.sqrt(np.log(model.num_timesteps) / model.num_timesteps)
    if exploration == "dltv":
        ordered = np.sort(quantiles)
        std = np.sqrt((np.maximum(ordered - ordered[..., 5:6], 0) ** 2).sum(-1) / 22)
    else:
        std = np.sqrt(qemrl.QEM().moments(quantiles, qemrl.midpoints(11)).variance)
    with torch.no_grad():
        found = model.optimistic_values(torch.tensor(observations))
    np.testing.assert_allclose(found, q + factor * std, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(model.predict(observations)[0], (q + factor * std).argmax(-1))
    np.testing.assert_array_equal(model.predict(observations, deterministic=True)[0], q.argmax(-1))
    assert np.ndim(model.predict(observations[0])[0]) == 0


def test_callbacks_and_other_policies_work_as_for_the_parent():
    class Count(BaseCallback):
        calls = 0

        def _on_step(self) -> bool:
            self.calls += 1
            return self.calls < 120

    callback = Count()
    make_qr_dqn().learn(1_000, callback=callback)
    assert callback.calls == 120
    spaces: dict[str, Any] = {"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Box(-1, 1, (3,))}

    class Pair(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(spaces)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), float(action), bool(self.np_random.random() < 0.1), False, {}

    QEMQRDQN("MultiInputPolicy", Pair(), **QR_DQN).learn(130)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QEMQRDQN(QRDQNPolicy, "CartPole-v1"), "QRDQNPolicy takes the plain mean; give 'MlpPolicy'"),
        (lambda: make_qr_dqn(qemrl.QEM(6), policy_kwargs={"n_quantiles": 5}), "order 6 needs at least 6 levels, got 5"),
        (lambda: make_qr_dqn(qemrl.QEM(variance=qemrl.ResidualVariance())), "estimates V while learning"),
        (lambda: make_qr_dqn(bonus_scale=-1.0), "bonus_scale must be finite and not negative, got -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
