# pyright: reportMissingImports=false
"""Policies of tianshou with estimators of ours: with the plain mean they are their parents (`make test-peers`)."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tianshou.algorithm import FQF, IQN, QRDQN
from tianshou.algorithm.modelfree.fqf import FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import FractionProposalNetwork, FullQuantileFunction, ImplicitQuantileNetwork
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

import qemrl
from qemrl.integrations.tianshou import (
    QEMFQFPolicy,
    QEMIQNPolicy,
    QEMQRDQNPolicy,
    StratifiedQuantileNetwork,
    stratify,
)

ACTIONS = gymnasium.spaces.Discrete(2)
COUNT = 8
KINDS = ("qr-dqn", "iqn", "fqf")


def make(kind: str, estimator: Any = None) -> Any:
    """An agent of tianshou, with an estimator of ours if one is given."""
    torch.manual_seed(0)
    adam, ours = AdamOptimizerFactory(lr=1e-3), {} if estimator is None else {"estimator": estimator}
    if kind == "qr-dqn":
        model = Net(state_shape=4, action_shape=2, hidden_sizes=[16], softmax=False, num_atoms=COUNT)
        options = {"model": model, "action_space": ACTIONS}
        policy = QEMQRDQNPolicy(num_quantiles=COUNT, **ours, **options) if ours else QRDQNPolicy(**options)
        return QRDQN(policy=policy, optim=adam, num_quantiles=COUNT, target_update_freq=10)
    features = Net(state_shape=4, hidden_sizes=[16])
    if kind == "iqn":
        model = ImplicitQuantileNetwork(preprocess_net=features, action_shape=2)
        options = {"model": model, "action_space": ACTIONS, "sample_size": COUNT}
        policy = QEMIQNPolicy(**ours, **options) if ours else IQNPolicy(**options)
        return IQN(policy=policy, optim=adam, num_quantiles=COUNT, target_update_freq=10)
    model = FullQuantileFunction(preprocess_net=features, action_shape=2)
    fractions = FractionProposalNetwork(COUNT, features.output_dim)
    options = {"model": model, "fraction_model": fractions, "action_space": ACTIONS}
    policy = QEMFQFPolicy(**ours, **options) if ours else FQFPolicy(**options)
    slow = RMSpropOptimizerFactory(lr=1e-5)
    return FQF(policy=policy, optim=adam, fraction_optim=slow, num_fractions=COUNT, target_update_freq=10)


def learn(agent: Any, steps: int = 1_000) -> Any:
    """Some steps on CartPole, an update every 4."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 tianshou draws from it
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    buffer = VectorReplayBuffer(1_000, 1)
    collector = Collector(agent, envs, buffer, exploration_noise=True)
    collector.reset(gym_reset_kwargs={"seed": 1})
    agent.policy.set_eps_training(0.1)
    with policy_within_training_step(agent.policy):
        for _ in range(0, steps, 4):
            collector.collect(n_step=4)
            with torch_train_mode(agent):
                agent.update(buffer, 16)
    return agent


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_plain_mean_an_agent_learns_what_its_parent_does(kind):
    ours, parent = learn(make(kind, qemrl.EmpiricalMean())), learn(make(kind))
    pairs = zip(ours.policy.parameters(), parent.policy.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("estimator", [qemrl.QEM(2), qemrl.QEM(4, qemrl.TailVariance(1.5)), qemrl.CVaR(0.3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_greedy_by_the_estimator(kind, estimator):
    agent = learn(make(kind, estimator), 200)
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad(), torch_train_mode(agent.policy, enabled=False):
        result = agent.policy(Batch(obs=observations, info=Batch()))
    values, levels, probs = result.logits.numpy(), qemrl.midpoints(COUNT), None
    if kind == "iqn":
        levels = result.taus.numpy()[:, None, :]
    elif kind == "fqf":
        ends = result.fractions.taus.numpy()
        levels, probs = result.fractions.tau_hats.numpy()[:, None, :], np.diff(ends)[:, None, :]
    expected = estimator.mean(values.astype(float), np.asarray(levels, float), probs).argmax(-1)
    assert np.mean(result.act == expected) > 0.98  # but for ties in single precision


@pytest.mark.parametrize("kind", KINDS)
def test_actions_that_are_masked_are_not_chosen(kind):
    policy = make(kind, qemrl.QEM(2)).policy
    mask = np.tile([[True, False]], (16, 1))
    observations = Batch(obs=np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32), mask=mask)
    with torch.no_grad():
        assert not policy(Batch(obs=observations, info=Batch())).act.any()


def test_a_stratified_network_is_its_parent_at_one_level_in_each_stratum(monkeypatch):
    def network(kind: Any) -> Any:
        torch.manual_seed(0)
        return kind(preprocess_net=Net(state_shape=4, hidden_sizes=[16]), action_shape=2)

    drawn, observations = torch.rand(5, COUNT), torch.randn(5, 4)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: drawn)
    (values, levels), _ = network(StratifiedQuantileNetwork)(observations, COUNT)
    assert torch.equal((levels * COUNT).floor(), torch.arange(COUNT).expand(5, -1).float())
    monkeypatch.setattr(torch, "rand", lambda *_, **__: stratify(drawn))
    (expected, at), _ = network(ImplicitQuantileNetwork)(observations, COUNT)
    assert torch.equal(values, expected)
    assert torch.equal(levels, at)
