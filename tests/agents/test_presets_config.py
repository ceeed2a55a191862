"""Configurations of presets: the published numbers, JSON there and back, and what is refused."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.actor_critic_presets import ACTOR_CRITIC_PRESETS, ACTOR_CRITIC_SETTINGS
from qemrl.agents.names import MUJOCO_TASKS, SETTINGS, EnvFamily, mujoco_task
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.policies import AutomaticTemperature, Deterministic, FixedTemperature, TanhGaussian
from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.agents.value_presets import VALUE_PRESETS, VALUE_SETTINGS
from qemrl.config.serialize import from_json, to_json
from qemrl.distributional.atoms import Categorical, GaussianHistogram, Scalar
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import CPW, QEM, CVaR, EmpiricalMean, MeanStd, TailVariance, VaR, Wang
from qemrl.exploration import BonusExploration, EpsilonGreedy, LeftTruncatedStdBonus, QEMStdBonus, SqrtLogDecay
from qemrl.replay import ReplayConfig
from qemrl.training.config import REGISTRY, configure, env_family, read_config

ENVS = {
    "atari": "ALE/Pong-v5",
    "minatar": "minatar/breakout",
    "classic": "CartPole-v1",
    "ant": "Ant-v5",
    "half-cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "swimmer": "Swimmer-v5",
    "humanoid": "Humanoid-v5",
}
DOMAINS = tuple(ENVS)
NETWORKS_OF_LEVELS = ("dsac", "dsac-iqn", "qem-dsac", "qem-dsac-iqn")
PLAIN_QUANTILES = ("dsac-mlp", "qem-dsac-mlp")


def test_every_domain_and_every_family_is_covered_here():
    assert set(DOMAINS) == {name for each in get_args(EnvFamily) for name in (get_args(each) or (each,))}
    assert set(PRESETS) == set(VALUE_PRESETS) | set(ACTOR_CRITIC_PRESETS)
    assert not set(VALUE_PRESETS) & set(ACTOR_CRITIC_PRESETS)


@pytest.mark.parametrize("family", DOMAINS)
@pytest.mark.parametrize("preset", PRESETS)
def test_configurations_come_back_from_json_as_they_were(preset, family):
    config = configure(preset, ENVS[family], steps=1000, seed=3, num_seeds=2)
    assert config.agent == PRESETS[preset].configure(family)
    text = json.dumps(to_json(config))
    assert read_config(json.loads(text)) == config
    assert from_json(json.loads(json.dumps(to_json(config.agent))), REGISTRY) == config.agent


def comes_back(config) -> bool:
    return from_json(json.loads(json.dumps(to_json(config))), REGISTRY) == config


@pytest.mark.parametrize("preset", VALUE_PRESETS)
def test_switches_of_value_agents_come_back_from_json_too(preset):
    plain = VALUE_PRESETS[preset]("classic")
    config = replace(
        plain,
        double=not plain.munchausen,
        network=NetworkConfig("mlp", (8, 4), (16,), dueling=True, noisy=True),
        optimizer=AdamConfig(0.1, 0.2, 10.0),
        replay=ReplayConfig(10, 3, True, 0.5, 0.4),
    )
    assert config != plain
    assert comes_back(config)


@pytest.mark.parametrize("preset", ACTOR_CRITIC_PRESETS)
def test_switches_of_actor_critics_come_back_from_json_too(preset):
    plain = ACTOR_CRITIC_PRESETS[preset]("classic")
    config = replace(
        plain,
        network=ActorCriticNetworkConfig("mlp", (8, 4), (), (16, 8), layer_norm=not plain.network.layer_norm),
        optimizer=AdamConfig(0.1, 0.2, 10.0),
        replay=ReplayConfig(10, 3, True, 0.5, 0.4),
        target_policy=not plain.target_policy,
        polyak=0.5,
        policy_every=3,
        random_steps=0,
        clip_rewards=True,
    )
    assert config != plain
    assert comes_back(config)


@pytest.mark.parametrize(
    "settings",
    [
        *({"ensemble": each} for each in (ElementwiseMin(3, "first"), SmallestCritic(4), PooledTruncation(3, 1))),
        *({"estimator": each} for each in (CVaR(0.1), VaR(0.3), Wang(-0.5), CPW(0.8), MeanStd(2.0))),
        {"ensemble": Averaged(2)},
        {"policy": TanhGaussian(-5.0, 1.0)},
        {"policy": Deterministic(0.2, 0.3, 0.4), "temperature": FixedTemperature(0.0)},
        {"temperature": AutomaticTemperature(0.5, -3.0)},
        {"representation": ImplicitQuantiles(gate="sigmoid", layer_norm=True)},
    ],
)
def test_every_part_of_an_actor_critic_comes_back_from_json(settings):
    config = ActorCriticConfig(**settings)
    assert config != ActorCriticConfig()
    assert comes_back(config)


QEM_AND_PARENTS = {
    "qem-dqn": "qr-dqn",
    "iqem-dqn": "iqn",
    "qem-dsac": "dsac",
    "qem-dsac-iqn": "dsac-iqn",
    "qem-dsac-mlp": "dsac-mlp",
}


@pytest.mark.parametrize("family", DOMAINS)
def test_qem_presets_differ_from_their_parents_in_the_estimator_alone(family):
    for child, parent in QEM_AND_PARENTS.items():
        one, other = PRESETS[child].configure(family), PRESETS[parent].configure(family)
        assert isinstance(one.estimator, QEM)
        assert other.estimator == EmpiricalMean()
        assert replace(one, estimator=other.estimator) == other


def test_exploring_presets_differ_from_their_parents_in_the_exploration_alone():
    parents = {"qr-dqn-dltv": "qr-dqn", "qem-dqn-dltv": "qem-dqn", "qem-dqn-var": "qem-dqn"}
    for family in ("atari", "minatar", "classic"):
        for child, parent in parents.items():
            one, other = VALUE_PRESETS[child](family), VALUE_PRESETS[parent](family)
            assert replace(one, exploration=other.exploration) == other
            assert isinstance(one.exploration, BonusExploration)
            assert one.exploration.schedule == SqrtLogDecay(50.0)  # the paper's c
            assert one.exploration.random_steps is None
            assert one.exploration.bonus == (
                QEMStdBonus(QEM(4, TailVariance(1.5))) if child.endswith("var") else LeftTruncatedStdBonus()
            )


def test_the_atari_settings_are_those_of_the_papers_table():
    """Order 4, V = 1.5 in the tails, 200 quantiles; 64 / 64 / 32 levels of the released code; lr 5e-5, ε 0.01/32."""
    qem, iqem = VALUE_PRESETS["qem-dqn"]("atari"), VALUE_PRESETS["iqem-dqn"]("atari")
    assert qem.estimator == QEM(order=4, variance=TailVariance(1.5))
    assert iqem.estimator == QEM(order=4)
    assert qem.representation == FixedQuantiles(200, 1.0)
    assert iqem.representation == ImplicitQuantiles(64, 64, 32, "uniform", "uniform", 64, kappa=1.0)
    assert VALUE_PRESETS["c51"]("atari").representation == Categorical(51, -10.0, 10.0)
    assert VALUE_PRESETS["dqn"]("atari").representation == Scalar(1.0)
    assert qem.optimizer == AdamConfig(5e-5, 0.01 / 32, 10.0)  # the clip is DQN Zoo's
    assert iqem.optimizer == AdamConfig(5e-5, 0.01 / 32)
    assert (qem.learning_starts, iqem.learning_starts) == (50_000, 20_000)
    for config in (qem, iqem):
        assert (config.discount, config.batch_size, config.update_every) == (0.99, 32, 4)
        assert config.replay == ReplayConfig(1_000_000)
        assert config.network.hidden == (512,)
        assert config.clip_rewards
        assert isinstance(config.exploration, EpsilonGreedy)
        assert config.exploration.final == 0.01
        assert config.exploration.begin_steps == config.learning_starts
    assert VALUE_PRESETS["c51"]("atari").optimizer == AdamConfig(2.5e-4, 0.01 / 32, 10.0)


def test_the_named_minatar_settings_are_those_of_revisiting_rainbow():
    """51 quantiles, lr 1e-4 for distributions, replay 100k, learning and target after 1000, an update every 4."""
    for preset, rate in (("dqn", 2.5e-4), ("c51", 1e-4), ("qr-dqn", 1e-4), ("qem-dqn", 1e-4), ("iqn", 1e-4)):
        config = configure(preset, "minatar/breakout", 1000, overrides={"settings": "revisiting-rainbow"}).agent
        assert config.optimizer == AdamConfig(rate, 0.01 / 32)
        assert config.network == NetworkConfig(widths=(), initializer="fan-average")
        assert config.replay == ReplayConfig(100_000)
        assert (config.learning_starts, config.target_every) == (1000, 1000)
        assert (config.update_every, config.batch_size) == (4, 32)
    assert PRESETS["dqn"].configure("minatar").representation == Scalar(kappa=None)
    assert PRESETS["qr-dqn"].configure("minatar").representation == FixedQuantiles(51)


def test_named_settings_are_the_base_of_others_and_fit_only_their_family():
    pong = {"settings": "one-machine", "optimizer.learning_rate": 2e-4}
    config = configure("qr-dqn", "PongNoFrameskip-v4", 1000, overrides=pong).agent
    assert config.optimizer == AdamConfig(2e-4, 0.01 / 32, 10.0)
    assert config.replay == ReplayConfig(200_000, 3)
    hopper = configure("tqc", "Hopper-v5", 1000, overrides={"settings": "tianshou"}).agent
    assert replace(hopper, optimizer=AdamConfig(3e-4, 1e-8)) == PRESETS["tqc"].configure("hopper")
    for preset, env, name in (("qr-dqn", "CartPole-v1", "one-machine"), ("sac", "Pendulum-v1", "tianshou")):
        with pytest.raises(ValueError, match=rf"{preset} has no settings '{name}' .*no others than the default"):
            configure(preset, env, 1000, overrides={"settings": name})
    with pytest.raises(ValueError, match=r"'one-machin' for this environment .atari.; there are one-machine"):
        configure("dqn", "ALE/Pong-v5", 1000, overrides={"settings": "one-machin"})
    assert set(SETTINGS) == set(VALUE_SETTINGS) | set(ACTOR_CRITIC_SETTINGS)


@pytest.mark.parametrize("family", MUJOCO_TASKS)
@pytest.mark.parametrize("preset", ACTOR_CRITIC_PRESETS)
def test_the_mujoco_settings_are_those_of_the_papers_table(preset, family):
    """Learning rate 3e-4, γ = 0.99, batch 256, Polyak 0.005, 10,000 steps first; an update for each step."""
    config = ACTOR_CRITIC_PRESETS[preset](family)
    assert PRESETS[preset].configure(family) == config
    assert config.optimizer == AdamConfig(3e-4, 1e-8)
    assert (config.discount, config.batch_size, config.polyak, config.update_every) == (0.99, 256, 0.005, 1)
    assert (config.learning_starts, config.random_steps) == (10_000, 10_000)
    assert config.replay == ReplayConfig(1_000_000)
    assert config.network.policy_widths == (256, 256)
    assert not config.clip_rewards
    if preset not in ("td3", "tqc"):
        assert config.temperature == FixedTemperature(0.05 if family == "humanoid" else 0.2)
        assert config.policy == TanhGaussian(-20.0, 2.0)
        assert config.ensemble == ElementwiseMin(2, "min")
        assert config.policy_every == 1
    if preset in NETWORKS_OF_LEVELS:
        assert (config.network.critic_widths, config.network.critic_hidden) == ((256,), (256,))
        assert config.network.layer_norm
    assert config.target_policy == (preset not in ("sac", "tqc"))


@pytest.mark.parametrize("family", MUJOCO_TASKS)
def test_the_mujoco_quantiles_are_those_of_the_papers_table(family):
    """32 of them, 64 cosines, order 4, V = 1.2 in the tails."""
    for preset in NETWORKS_OF_LEVELS:
        levels = "cumulative" if preset.endswith("iqn") else "midpoints"
        wanted = ImplicitQuantiles(32, 32, 32, levels, levels, 64, "sigmoid", True, 1.0)
        assert ACTOR_CRITIC_PRESETS[preset](family).representation == wanted
    for preset in PLAIN_QUANTILES:
        assert ACTOR_CRITIC_PRESETS[preset](family).representation == FixedQuantiles(32, 1.0)
    for preset in ("sac", "td3"):
        assert ACTOR_CRITIC_PRESETS[preset](family).representation == Scalar(None)  # the squared error
    for preset in ("qem-dsac", "qem-dsac-iqn", "qem-dsac-mlp"):
        assert ACTOR_CRITIC_PRESETS[preset](family).estimator == QEM(order=4, variance=TailVariance(1.2))


@pytest.mark.parametrize("family", MUJOCO_TASKS)
def test_tqc_has_the_settings_of_its_own_paper(family):
    """Five critics of 25 atoms; five dropped for each on Hopper, none on HalfCheetah, two elsewhere; α is learned."""
    config = ACTOR_CRITIC_PRESETS["tqc"](family)
    assert config.representation == FixedQuantiles(25, 1.0)
    assert config.ensemble == PooledTruncation(5, {"hopper": 5, "half-cheetah": 0}.get(family, 2))
    assert config.temperature == AutomaticTemperature(1.0, None)
    assert (*config.network.critic_widths, *config.network.critic_hidden) == (512, 512, 512)
    assert not config.network.layer_norm


@pytest.mark.parametrize("family", MUJOCO_TASKS)
def test_td3_has_the_settings_of_its_own_paper_but_the_learning_rate(family):
    """Noise 0.1 to explore; 0.2, cut at 0.5, on the target's action; the policy and the targets every other update."""
    config = ACTOR_CRITIC_PRESETS["td3"](family)
    assert config.policy == Deterministic(0.1, 0.2, 0.5)
    assert config.temperature == FixedTemperature(0.0)
    assert config.ensemble == ElementwiseMin(2, "first")
    assert config.policy_every == 2


def test_tasks_without_a_table_have_smaller_networks_and_the_same_algorithm():
    for preset in ACTOR_CRITIC_PRESETS:
        small, table = ACTOR_CRITIC_PRESETS[preset]("classic"), ACTOR_CRITIC_PRESETS[preset]("walker2d")
        assert max(small.network.policy_widths) < max(table.network.policy_widths)
        settings = ("network", "optimizer", "replay", "batch_size", "learning_starts", "random_steps")
        assert replace(small, **{name: getattr(table, name) for name in settings}) == table


def test_a_family_has_the_settings_of_classic_where_it_is_not_at_home():
    """CartPole's for a DQN on Ant, and the small task's for an actor-critic on Atari."""
    for preset in VALUE_PRESETS:
        assert {PRESETS[preset].configure(task) for task in MUJOCO_TASKS} == {PRESETS[preset].configure("classic")}
    for preset in ACTOR_CRITIC_PRESETS:
        for family in ("atari", "minatar"):
            assert PRESETS[preset].configure(family) == PRESETS[preset].configure("classic")


@pytest.mark.parametrize(
    ("env", "task"),
    [
        ("HalfCheetah-v5", "half-cheetah"),
        ("HalfCheetah-v4", "half-cheetah"),
        ("Ant-v5", "ant"),
        ("Walker2d-v5", "walker2d"),
        ("Walker2d-v4", "walker2d"),
        ("Hopper-v3", "hopper"),
        ("Swimmer-v5", "swimmer"),
        ("Humanoid-v5", "humanoid"),
        ("some_package:Humanoid-v5", "humanoid"),
        ("HumanoidStandup-v5", None),
        ("InvertedPendulum-v5", None),
        ("Pendulum-v1", None),
        ("Ant", None),
        ("ant-v5", None),
        ("ALE/Ant-v5", None),
        ("jax/pendulum", None),
        ("", None),
    ],
)
def test_a_mujoco_task_is_known_by_its_name_in_any_version(env, task):
    assert mujoco_task(env) == task


@pytest.mark.parametrize(
    ("env", "family"),
    [
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("minatar/asterix", "minatar"),
        ("jax/catch", "classic"),
        ("HalfCheetah-v4", "half-cheetah"),
        ("HumanoidStandup-v5", "classic"),
        ("jax/pendulum", "classic"),
    ],
)
def test_an_environment_has_the_settings_of_its_domain(env, family):
    assert env_family(env) == family
    for preset in ("dqn", "qem-dsac"):
        assert configure(preset, env, 100).agent == PRESETS[preset].configure(family)


def test_a_preset_that_is_not_there_gets_a_suggestion():
    with pytest.raises(ValueError, match="no preset 'qem-dqm'; did you mean 'qem-dqn'"):
        configure("qem-dqm", "CartPole-v1", 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": QEM(), "representation": Scalar()}, "QEM needs quantiles, and Scalar has none"),
        ({"estimator": QEM(), "representation": GaussianHistogram()}, "QEM needs quantiles, and GaussianHistogram has"),
        ({"estimator": QEM(), "representation": Categorical(3)}, "QEM needs at least 4 quantiles, got num_atoms=3"),
        (
            {"estimator": QEM(order=4), "representation": FixedQuantiles(3)},
            "QEM needs at least 4 quantiles, got num_quantiles=3",
        ),
        ({"estimator": QEM(), "representation": ImplicitQuantiles(num_acting_levels=3)}, "got num_acting_levels=3"),
        ({"discount": 0.0}, "discount must be in"),
        ({"discount": 1.1}, "1.1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"target_every": 10, "update_every": 4}, "target_every must be a multiple of update_every, got 10 and 4"),
    ],
)
def test_agents_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ValueConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": QEM(), "representation": Scalar()}, "QEM needs quantiles, and Scalar has none"),
        ({"estimator": CVaR(), "representation": Scalar()}, "CVaR needs a return distribution, and Scalar has none"),
        (
            {"estimator": QEM(order=4), "representation": FixedQuantiles(3)},
            "QEM needs at least 4 quantiles, got num_quantiles=3",
        ),
        (
            {"estimator": QEM(order=4), "representation": ImplicitQuantiles(8, 3, 8)},
            "QEM needs at least 4 quantiles, got num_target_levels=3",
        ),
        ({"ensemble": PooledTruncation(), "representation": Scalar()}, "pools atoms, and Scalar has none"),
        ({"policy": Deterministic()}, "a deterministic policy has no entropy to weigh"),
        ({"policy": Deterministic(), "temperature": AutomaticTemperature()}, "use FixedTemperature"),
        ({"discount": 0.0}, "discount and polyak must be in"),
        ({"polyak": 0.0}, "discount and polyak must be in"),
        ({"polyak": 1.5}, "1.5"),
        ({"policy_every": 0}, "policy_every must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"update_every": 0}, "update_every must be at least 1"),
        ({"learning_starts": 0}, "learning_starts must be at least 1"),
        ({"random_steps": -1}, "random_steps must not be negative, got -1"),
    ],
)
def test_actor_critics_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ActorCriticConfig(**settings)


@pytest.mark.parametrize("settings", [{"learning_rate": 0.0}, {"epsilon": -1.0}, {"max_gradient_norm": 0.0}])
def test_optimizers_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="must be positive"):
        AdamConfig(**settings)
