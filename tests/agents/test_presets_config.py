"""Configurations of presets: the published numbers, JSON there and back, and what is refused."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from qemrl.agents.presets import PRESETS, Domain
from qemrl.agents.value import AdamConfig, NetworkConfig, ValueConfig
from qemrl.estimators import QEM, EmpiricalMean, TailVariance
from qemrl.replay import ReplayConfig
from qemrl.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.serialization import from_json, to_json
from qemrl.training.config import REGISTRY, configure, domain_of, read_config

DOMAINS = get_args(Domain)
ENVS = {"atari": "ALE/Pong-v5", "minatar": "minatar/breakout", "classic": "CartPole-v1"}


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("preset", PRESETS)
def test_configurations_come_back_from_json_as_they_were(preset, domain):
    config = configure(preset, ENVS[domain], steps=1000, seed=3, num_seeds=2)
    assert config.agent == PRESETS[preset].configure(domain)
    text = json.dumps(to_json(config))
    assert read_config(json.loads(text)) == config
    assert from_json(json.loads(json.dumps(to_json(config.agent))), REGISTRY) == config.agent


@pytest.mark.parametrize("preset", PRESETS)
def test_switches_come_back_from_json_too(preset):
    plain = PRESETS[preset].configure("classic")
    config = replace(
        plain,
        double=True,
        network=NetworkConfig("mlp", (8, 4), (16,), dueling=True, noisy=True),
        optimiser=AdamConfig(0.1, 0.2, 10.0),
        replay=ReplayConfig(10, 3, True, 0.5, 0.4),
    )
    assert config != plain
    assert from_json(json.loads(json.dumps(to_json(config))), REGISTRY) == config


@pytest.mark.parametrize("domain", DOMAINS)
def test_qem_presets_differ_from_their_parents_in_the_estimator_alone(domain):
    for child, parent in (("qem-dqn", "qr-dqn"), ("iqem-dqn", "iqn")):
        one, other = PRESETS[child].configure(domain), PRESETS[parent].configure(domain)
        assert isinstance(one.estimator, QEM)
        assert other.estimator == EmpiricalMean()
        assert replace(one, estimator=other.estimator) == other


def test_the_atari_settings_are_those_of_the_papers_table():
    """Order 4, V = 1.5 in the tails, 200 quantiles; 64 / 64 / 32 levels of the released code; lr 5e-5, ε 0.01/32."""
    qem, iqem = PRESETS["qem-dqn"].configure("atari"), PRESETS["iqem-dqn"].configure("atari")
    assert qem.estimator == QEM(order=4, variance=TailVariance(1.5))
    assert iqem.estimator == QEM(order=4)
    assert qem.representation == FixedQuantiles(200, 1.0)
    assert iqem.representation == ImplicitQuantiles(64, 64, 32, "uniform", "uniform", 64, 1.0)
    assert PRESETS["c51"].configure("atari").representation == Categorical(51, -10.0, 10.0)
    assert PRESETS["dqn"].configure("atari").representation == Scalar(1.0)
    for config in (qem, iqem):
        assert config.optimiser == AdamConfig(5e-5, 0.01 / 32)
        assert (config.discount, config.batch_size, config.update_every) == (0.99, 32, 4)
        assert config.replay == ReplayConfig(1_000_000)
        assert config.network.hidden == (512,)
        assert config.clip_rewards
        assert config.exploration.final == 0.01
    assert PRESETS["c51"].configure("atari").optimiser == AdamConfig(2.5e-4, 0.01 / 32)


def test_the_minatar_settings_are_those_of_revisiting_rainbow():
    """51 quantiles, lr 1e-4 for quantiles, replay 100k, learning and target after 1000, an update every 4."""
    config = PRESETS["qr-dqn"].configure("minatar")
    assert config.representation == FixedQuantiles(51)
    assert config.optimiser == AdamConfig(1e-4, 0.01 / 32)
    assert config.replay.capacity == 100_000
    assert (config.learning_starts, config.target_every, config.update_every, config.batch_size) == (1000, 1000, 4, 32)


@pytest.mark.parametrize(
    ("env", "domain"),
    [
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("minatar/asterix", "minatar"),
        ("jax/catch", "classic"),
    ],
)
def test_an_environment_has_the_settings_of_its_domain(env, domain):
    assert domain_of(env) == domain
    assert configure("dqn", env, 100).agent == PRESETS["dqn"].configure(domain)


def test_a_preset_that_is_not_there_gets_a_suggestion():
    with pytest.raises(ValueError, match="no preset 'qem-dqm': did you mean 'qem-dqn'"):
        configure("qem-dqm", "CartPole-v1", 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": QEM(), "representation": Scalar()}, "QEM estimates Q from quantiles, and Scalar has none"),
        ({"estimator": QEM(), "representation": Categorical()}, "Categorical has none"),
        ({"estimator": QEM(order=4), "representation": FixedQuantiles(3)}, "order 4 needs at least as many .* got 3"),
        ({"estimator": QEM(), "representation": ImplicitQuantiles(num_acting_levels=3)}, "got 3"),
        ({"discount": 0.0}, "discount must be in"),
        ({"discount": 1.1}, "1.1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"target_every": 10, "update_every": 4}, "target_every must be a multiple of update_every, got 10 and 4"),
    ],
)
def test_agents_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ValueConfig(**settings)


@pytest.mark.parametrize("settings", [{"learning_rate": 0.0}, {"epsilon": -1.0}, {"max_gradient_norm": 0.0}])
def test_optimisers_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="must be positive"):
        AdamConfig(**settings)
