"""Settings by name: the command line, `make` and grids give the same configuration, or the same error."""

import itertools
import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qemrl
from qemrl.agents.names import ACTOR_CRITICS, SUMMARIES
from qemrl.agents.presets import PRESETS
from qemrl.agents.target_networks import EMA
from qemrl.agents.value import ValueConfig
from qemrl.cli.runs import NOT_SETTINGS, read_options
from qemrl.config.describe import list_settings
from qemrl.config.override import override
from qemrl.config.registry import AXES, collect_classes
from qemrl.config.serialize import from_json, to_json
from qemrl.distributional.atoms import Categorical, Scalar
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, CVaR, EmpiricalMean, HeadsVariance, SparsityVariance, TailVariance
from qemrl.experiments.grid import Grid
from qemrl.experiments.sweep import Sweep
from qemrl.exploration import (
    BonusExploration,
    CountBonus,
    EpsilonGreedy,
    PowerDecay,
    QEMStdBonus,
    SqrtLogDecay,
    StdBonus,
)
from qemrl.training.config import REGISTRY, RunConfig, configure, create_run, read_config
from qemrl.training.run_directory import RunExistsError

RESULTS = Path(__file__).parents[2] / "results"


def from_words(preset: str, env: str, words: str) -> RunConfig:
    return configure(preset, env, 1000, overrides=read_options(shlex.split(words), NOT_SETTINGS))


def from_grid(preset: str, env: str, settings: dict[str, Any]) -> RunConfig:
    return Grid([preset], [env], 1, 1000, settings).runs()[0].config


def agent(preset: str, env: str = "CartPole-v1", **settings: Any) -> Any:
    """The agent of a preset with other settings; two underscores stand for a dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return configure(preset, env, 1000, overrides=named).agent


SAME = [
    ("qr-dqn", "--estimator qem --estimator.order 2", {"estimator": "qem", "estimator.order": 2}),
    ("qr-dqn", "--optimizer.learning-rate 1e-2", {"optimizer": {"learning-rate": 0.01}}),
    ("qr-dqn", "--log-every 5e2 --evaluate-every=500", {"log_every": 500.0, "evaluate-every": 500}),
    ("qr-dqn", "--network.widths 8 16 --network.hidden", {"network.widths": [8, 16], "network": {"hidden": []}}),
    ("qr-dqn", "--network.widths 8,16", {"network": {"widths": (8, 16)}}),
    ("qr-dqn", "--double --network.no-dueling --replay.prioritized true", {"double": True, "replay.prioritized": True}),
    ("qem-dqn", "--no-double --network.noisy false", {"double": False, "network.noisy": False}),
    ("qr-dqn", "--optimizer.max-gradient-norm 10", {"optimizer.max_gradient_norm": 10}),
    ("qr-dqn", "--optimizer.max-gradient-norm none", {}),
    ("qr-dqn", "--exploration dltv --exploration.schedule linear",
     {"exploration": "dltv", "exploration.schedule": "linear"}),
    ("qr-dqn", "--estimator qem-sparsity --estimator.variance.power 1",
     {"estimator": "qem-sparsity", "estimator.variance.power": 1}),
    ("qr-dqn", "--num-envs 8", {"num_envs": 8}),
    ("c51", "--representation.low -50 --representation.high 50", {"representation": {"low": -50, "high": 50.0}}),
    ("iqn", "--representation.acting-levels stratified", {"representation.acting_levels": "stratified"}),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "words", "settings"), SAME, ids=lambda value: value if "-" in str(value) else "")
def test_words_values_and_grids_give_the_same_configuration(preset, words, settings):
    typed = from_words(preset, "jax/catch", words)
    assert typed == from_grid(preset, "jax/catch", settings)
    assert replace(typed, steps=1) == qemrl.make(preset, env="jax/catch", overrides=settings).config
    assert repr(read_config(json.loads(json.dumps(to_json(typed))))) == repr(typed)  # and numbers are of their types


WRONG = [
    ("--optimizer.learning-rate abc", {"optimizer.learning_rate": "abc"},
     "optimizer.learning_rate: expects float, got 'abc'"),
    ("--learning-rate 1e-3", {"learning_rate": 1e-3},
     "there is no setting 'learning_rate' here; did you mean 'optimizer.learning_rate'?"),
    ("--log-every 1.5", {"log_every": 1.5}, "log_every: expects int, got 1.5"),
    ("--log-every inf", {"log_every": float("inf")}, "log_every: inf is not finite"),
    ("--batch-size none", {"batch_size": "none"}, "batch_size: expects int, got 'none'"),
    ("--double maybe", {"double": "maybe"}, "double: expects bool, got 'maybe'"),
    ("--network.widths 8 x", {"network.widths": [8, "x"]}, "network.widths[1]: expects int, got 'x'"),
    ("--network.torso mpl", {"network.torso": "mpl"},
     "network.torso: 'mpl' is none of the choices; did you mean 'mlp'?"),
    ("--optimizer.max-gradient-norm big", {"optimizer.max_gradient_norm": "big"},
     "optimizer.max_gradient_norm: expects float | None, got 'big'"),
    ("--estimator qme", {"estimator": "qme"}, "there is no estimator 'qme'; did you mean 'qem'?"),
    ("--estimator qem --estimator.order 9", {"estimator": "qem", "estimator.order": 9},
     "estimator: order must be between 1 and 6, got 9"),
    ("--estimator.order 3", {"estimator.order": 3}, "no setting 'estimator.order' here: estimator is EmpiricalMean"),
    ("--discount 2", {"discount": 2}, "discount must be in (0, 1], got 2.0"),
    ("--estimator qem-heads", {"estimator": "qem-heads"}, "num_heads"),
    ("--double --no-double", {"double": True, "no-double": True}, "no_double switches double off"),
    ("--no-double false", {"no_double": False}, "no_double switches double off"),
    ("--ensemble averaged", {"ensemble": "averaged"}, "there is no setting 'ensemble' here"),
    ("--num-envs 0", {"num_envs": 0}, "num_envs must be at least 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "settings", "message"), WRONG, ids=[words for words, *_ in WRONG])
def test_what_is_wrong_is_said_in_the_same_words_everywhere(words, settings, message):
    said = []
    for attempt in (
        lambda: from_words("qr-dqn", "jax/catch", words),
        lambda: from_grid("qr-dqn", "jax/catch", settings),
        lambda: qemrl.make("qr-dqn", env="jax/catch", overrides=settings),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            attempt()
        said.append(str(caught.value).removeprefix("qr-dqn on jax/catch: "))
    assert len(set(said)) == 1


def test_the_order_of_settings_never_matters():
    settings = {
        "estimator": "qem-heads",
        "estimator.order": "3",
        "representation.num-heads": 3,
        "exploration.schedule.power": 1,
        "exploration.schedule": "power",
        "exploration": "qem-std-bonus",
    }
    expected = configure("qr-dqn", "jax/catch", 1000, overrides=settings)
    assert isinstance(expected.agent, ValueConfig)
    assert expected.agent.representation == FixedQuantiles(51, num_heads=3)
    assert expected.agent.estimator == QEM(3, HeadsVariance())
    assert expected.agent.exploration == BonusExploration(QEMStdBonus(QEM(4)), PowerDecay(power=1.0))
    for order in itertools.islice(itertools.permutations(settings.items()), 0, None, 31):  # each is first, and last
        assert configure("qr-dqn", "jax/catch", 1000, overrides=dict(order)) == expected
    # Intervals that fit only together.
    for order in itertools.permutations({"log_every": 300, "evaluate_every": 600, "checkpoint_every": 900}.items()):
        assert configure("dqn", "jax/catch", 1000, overrides=dict(order)).log_every == 300


@pytest.mark.parametrize(
    ("preset", "env"), [(name, "Hopper-v5" if name in ACTOR_CRITICS else "CartPole-v1") for name in SUMMARIES]
)
def test_naming_the_parts_that_are_there_changes_nothing(preset, env):
    config = configure(preset, env, 1000)
    parts = {path: axis.name(getattr(config.agent, path)) for path, axis in AXES.items() if hasattr(config.agent, path)}
    assert len(parts) in (4, 5)
    for path, name in parts.items():
        assert name in AXES[path].parts
        assert override(config, {path: name}) == config
    assert override(config, parts) == config


def test_a_part_of_the_kind_that_is_there_keeps_what_was_set_before():
    assert agent("qr-dqn", exploration="epsilon-greedy").exploration == EpsilonGreedy(
        final=0.05, begin_steps=500, over_steps=20_000
    )
    assert agent("tqc", "Hopper-v5", ensemble="pooled-truncation").ensemble == PooledTruncation(5, 5)
    assert agent("td3", "Hopper-v5", ensemble="elementwise-min").ensemble == ElementwiseMin(2, "first")
    assert agent("qem-dqn", estimator="qem-atari").estimator == QEM(4, TailVariance(1.5))


def test_another_part_is_what_preset_and_environment_would_give_it():
    for env in ("CartPole-v1", "minatar/breakout", "ALE/Pong-v5"):
        assert agent("qr-dqn-dltv", env, exploration="epsilon-greedy") == agent("qr-dqn", env)
        assert agent("qr-dqn", env, exploration="dltv") == agent("qr-dqn-dltv", env)
        assert agent("qem-dqn", env, exploration="dltv") == agent("qem-dqn-dltv", env)
        assert agent("qem-dqn", env, exploration="qem-std-bonus") == agent("qem-dqn-var", env)
        assert agent("qr-dqn", env, estimator="qem-atari") == agent("qem-dqn", env)
        assert agent("iqn", env, estimator="qem") == agent("iqem-dqn", env)
        assert agent("qr-dqn", env, representation="categorical").representation == agent("c51", env).representation
        assert agent("c51", env, representation="scalar").representation == agent("dqn", env).representation
        assert agent("dqn", env, representation="quantiles").representation == agent("qr-dqn", env).representation
        assert agent("dqn", env, representation="implicit-quantiles").representation == agent("iqn", env).representation
    assert agent("dqn", averaging="ema").averaging == EMA()
    assert agent("sac", "Hopper-v5", representation="implicit-quantiles").representation.num_levels == 32
    assert agent("dsac", "Hopper-v5", representation="scalar").representation == Scalar(None)
    assert agent("tqc", "Humanoid-v5", temperature="fixed").temperature.value == 0.05
    assert agent("sac", "Ant-v5", policy="deterministic", temperature__value=0).policy == agent("td3", "Ant-v5").policy
    assert agent("qem-dsac", "Ant-v5", estimator__variance="band").estimator.variance.low == 0.45
    assert agent("qr-dqn", "Ant-v5", estimator="qem", estimator__variance="tail").estimator == QEM(4, TailVariance(1.5))
    assert agent("dsac", "Ant-v5", estimator="qem", estimator__variance="tail").estimator == QEM(4, TailVariance(1.2))


def test_another_part_takes_over_what_both_have_in_common():
    assert agent("dsac-mlp", "Hopper-v5", ensemble="pooled-truncation").ensemble == PooledTruncation(2, 5)
    assert agent("tqc", "Hopper-v5", ensemble="elementwise-min").ensemble == ElementwiseMin(5, "min")
    assert agent("tqc", ensemble="smallest-critic").ensemble == SmallestCritic(5)
    assert agent("sac", ensemble="averaged").ensemble == Averaged(2)
    config = configure("qr-dqn", "CartPole-v1", 1000)
    own = BonusExploration(CountBonus(bits=8), PowerDecay(), 7, "warm-up", 0.5)
    config = replace(config, agent=replace(config.agent, exploration=own))
    assert override(config, {"exploration": "count"}) == config
    other, plain = (override(config, {"exploration": name}).agent for name in ("std-bonus", "epsilon-greedy"))
    assert isinstance(other, ValueConfig)
    assert isinstance(plain, ValueConfig)
    assert other.exploration == replace(own, bonus=StdBonus())
    assert plain.exploration == EpsilonGreedy(final=0.05, begin_steps=500, over_steps=20_000, evaluation=0.5)


def test_a_bonus_by_qem_is_by_the_agents_own_qem_if_that_can_be():
    bonus = agent("qr-dqn", estimator="qem-mujoco", exploration="qem-std-bonus").exploration.bonus
    assert bonus == QEMStdBonus(QEM(4, TailVariance(1.2)))
    heads = {"estimator": "qem-heads", "representation__num_heads": 2, "exploration": "qem-std-bonus"}
    assert agent("qr-dqn", **heads).exploration.bonus == QEMStdBonus(QEM(4))  # a bonus has nothing to estimate V from
    assert agent("qr-dqn", exploration="qem-std-bonus").exploration.bonus == QEMStdBonus(QEM(4, TailVariance(1.5)))


def test_names_that_differ_in_a_setting_are_different_parts():
    """An estimator's name stands for its V; only what no name speaks of is kept."""
    assert agent("qem-dqn", estimator="qem").estimator == QEM()
    assert agent("qem-dqn", estimator="qem-mujoco").estimator == QEM(4, TailVariance(1.2))
    assert agent("iqem-dqn", estimator="qem-legendre").estimator == QEM(basis="legendre")
    config = configure("qem-dqn", "CartPole-v1", 1000, overrides={"estimator.order": 3})
    assert override(config, {"estimator": "qem-atari"}) == config
    assert override(config, {"estimator": "qem-mujoco"}).agent.estimator == QEM(4, TailVariance(1.2))
    twin = {"estimator": "qem-twin", "representation__num_heads": 2}
    assert agent("qr-dqn", **twin).estimator == QEM(variance=SparsityVariance(source="twin"))
    released = agent("qr-dqn-dltv", exploration="dltv-released").exploration
    assert released.bonus.released
    assert released == BonusExploration(released.bonus, SqrtLogDecay(50.0, 2_000_000), count_from="warm-up")


def test_an_atari_protocol_is_named_and_then_set():
    found = from_words("dqn", "PongNoFrameskip-v4", "--protocol.noop-max 5 --protocol sb3").protocol
    assert found is not None
    assert (found.name, found.life_loss, found.noop_max) == ("sb3", "new_episode", 5)
    with pytest.raises(ValueError, match="sticky"):
        from_words("dqn", "PongNoFrameskip-v4", "--protocol machado")
    with pytest.raises(ValueError, match="no protocol 'papper'; did you mean 'paper'"):
        from_words("dqn", "ALE/Pong-v5", "--protocol papper")


def test_parts_can_be_values_and_numbers_those_of_numpy():
    found = agent("qr-dqn", estimator=CVaR(0.1), network__widths=np.array([8, 4]).tolist(), batch_size=np.int64(16))
    assert (found.estimator, found.network.widths, found.batch_size) == (CVaR(0.1), (8, 4), 16)
    assert type(found.batch_size) is int

    def variance(levels):
        return levels * 0 + 1

    assert agent("qem-dqn", estimator__variance=variance).estimator.variance is variance
    with pytest.raises(ValueError, match=r"estimator: expects .*, got 'Scalar'"):
        agent("qr-dqn", estimator=Scalar())
    with pytest.raises(ValueError, match=r"replay is not one setting but several: replay.capacity, .*; got 'big'"):
        agent("qr-dqn", replay="big")


@pytest.mark.parametrize("name", ["preset", "env", "agent", "agent.double", "type", ""])
def test_what_is_no_setting_cannot_be_set(name):
    with pytest.raises(ValueError, match=f"there is no setting '{name}' here"):
        configure("dqn", "jax/catch", 1000, overrides={name: "x"})


def test_an_axis_has_only_the_parts_that_the_agent_can_have():
    with pytest.raises(ValueError, match="Categorical has no quantiles; use quantiles, or Scalar"):
        agent("sac", representation="categorical")
    for preset in PRESETS:
        config = configure(preset, "CartPole-v1", 1000)
        names = {setting.name for group in list_settings(config) for setting in group.settings}
        assert ("ensemble" in names) == (preset in ACTOR_CRITICS)
        for name in names - set(AXES) - {"steps"}:
            with pytest.raises(ValueError, match=rf"(no setting '{name}x'|{re.escape(name)})"):
                override(config, {f"{name}x": "1"})


def test_every_listed_setting_can_be_set_to_what_it_is():
    """The text in the help, typed as an option, gives the same configuration."""
    for preset, env in (("qem-dqn-var", "ALE/Pong-v5"), ("iqn", "minatar/breakout"), ("tqc", "Hopper-v5")):
        config = configure(preset, env, 1000)
        listed = [setting for group in list_settings(config) for setting in group.settings]
        texts = {setting.name: setting.default.replace("empty", "") for setting in listed}
        assert len(texts) > 40
        assert override(config, texts) == config
        assert all(setting.doc for setting in listed)


def test_the_classes_of_files_are_those_that_annotations_and_axes_lead_to():
    @dataclass(frozen=True)
    class Odd:
        either: "tuple[QEM | Scalar, ...] | None" = None

    assert {QEM, Scalar, Odd} <= set(collect_classes(Odd).values())
    assert {EmpiricalMean, Categorical, ImplicitQuantiles, HeadsVariance, RunConfig} <= set(REGISTRY.values())
    assert all(to_json(part)["type"] in REGISTRY for axis in AXES.values() for part in axis.parts.values())
    assert "Path" not in REGISTRY


@dataclass(frozen=True)
class Restless(EpsilonGreedy):
    """A part that the library does not have."""

    share: float = 0.5
    """How much of it."""


def test_a_new_part_takes_its_class_and_one_line(monkeypatch):
    axis = AXES["exploration"]
    monkeypatch.setitem(AXES, "exploration", replace(axis, parts={**axis.parts, "restless": Restless()}))
    config = from_words("qr-dqn", "CartPole-v1", "--exploration restless --exploration.share 1")
    assert isinstance(config.agent, ValueConfig)
    assert config.agent.exploration == Restless(share=1.0)
    assert config == from_grid("qr-dqn", "CartPole-v1", {"exploration": "restless", "exploration.share": 1})
    registry = collect_classes(RunConfig)
    assert from_json(json.loads(json.dumps(to_json(config))), registry) == config
    assert any(setting.name == "exploration.share" for group in list_settings(config) for setting in group.settings)


def test_every_kept_run_can_be_read():
    files = sorted(RESULTS.rglob("config.json"))
    assert len(files) >= 102
    for file in files:
        data = json.loads(file.read_text())["config"]
        assert holds(json.loads(json.dumps(to_json(read_config(data)))), data)


def holds(whole: Any, part: Any) -> bool:
    """Whether all that was written is read; fields that did not exist then have their defaults."""
    if isinstance(part, dict):
        return set(part) <= set(whole) and all(holds(whole[key], part[key]) for key in part)
    return whole == part


def test_a_kept_sweep_is_known_to_be_finished():
    """Its folders bear the ids of an earlier rule; runs are found by their settings."""
    folder = RESULTS / "campaign" / "minatar"
    sweep = Sweep(Grid(**json.loads((folder / "grid.json").read_text())), folder)
    assert len(sweep.runs) == 75
    assert sweep.missing == []


def test_a_run_that_was_written_before_a_field_existed_is_the_same_run(tmp_path):
    run = Grid(["qr-dqn"], ["jax/catch"], 1, 1000).runs()[0]
    file = create_run(tmp_path / run.name, run.config, {"arm": run.arm}).path / "config.json"
    record = json.loads(file.read_text())
    del record["config"]["agent"]["representation"]["num_heads"], record["config"]["asynchronous"], record["digest"]
    file.write_text(json.dumps(record))
    assert create_run(tmp_path / run.name, run.config, {}).record == record
    with pytest.raises(RunExistsError, match="batch_size is 64 there, but 32 is asked for"):
        create_run(tmp_path / run.name, override(run.config, {"batch_size": 32}), {})
    (tmp_path / "runs").mkdir()
    (tmp_path / run.name).rename(tmp_path / "runs" / "qr-dqn_with-another-id")
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.json").write_text("{}")
    statuses = Sweep(Grid(["qr-dqn", "dqn"], ["jax/catch"], 1, 1000), tmp_path).statuses
    first, second = (path.name for path in statuses)
    assert first == "qr-dqn_with-another-id"
    assert second.startswith("dqn_jax-catch_seed-0_")
