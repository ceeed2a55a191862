"""The actor-critic bench: its counts are those of the networks, sides are alike, and turns are compared right."""

import json
import os
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import actor_critic, command, peer_turns, qemrl_actor_critic, turns
from benchmarks.__main__ import main
from benchmarks.actor_critic import ALONE, CONTESTS, PAIRS, Engine, make_engines, make_speeds, operations, worth_another
from benchmarks.iterations import SPECS, Overhead, Share, random_batch
from benchmarks.peers import SBX, PeerError
from benchmarks.qemrl_actor_critic import FAMILY, PRESETS_TIMED, agent, settings
from benchmarks.roofline import product_operations
from benchmarks.turns import Turn
from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.policies import FixedTemperature
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.training.loops import describe_environment

SPEC = SPECS[FAMILY]

PROGRAM = """
import sys, time
name, other = sys.argv[1:]
print("greetings")
print("ready", flush=True)
assert sys.stdin.readline() == "go\\n"
open(name, "w").close()
end = time.time() + 20
while not __import__("os").path.exists(other) and time.time() < end:
    time.sleep(0.01)
print('{"steps_per_second": %d, "cores": 0.5}' % (10 if time.time() < end else 0))
"""
"""A turn that comes to something only if another one is taken at the same time."""


def test_operations_of_an_update_are_those_of_its_layers():
    # policy: forward for target and loss, gradients of weights and, behind the first layer, of inputs;
    # critics: forward in target, their own loss and the policy's, gradients of weights and inputs, of the action too
    policy, first = 17 * 256 + 256 * 256 + 256 * 12, 17 * 256
    for preset, outputs in (("sac", 1), ("dsac-mlp", 32)):
        critic, joined = 23 * 256 + 256 * 256 + 256 * outputs, 23 * 256
        assert operations(preset) == 2 * 256 * (4 * policy - first + 2 * (6 * critic - joined))


def test_a_critic_that_sees_levels_does_its_last_layers_for_each_of_them():
    # hidden layer and output of two critics: three times forward, twice backward in each of the two losses, less the
    # gradients of weights in the policy's
    last = 32 * (256 * 256 + 256)
    assert operations("dsac-iqn") > 2 * 256 * 2 * 6 * last


def test_products_are_counted_as_often_as_they_are_computed():
    matrix = np.ones((4, 4), np.float32)

    def product(x):
        return x @ x

    once = product_operations(product, matrix)
    assert once == 2 * 4**3
    assert product_operations(jax.vmap(product), matrix[None].repeat(3, 0)) == 3 * once
    assert product_operations(lambda x: jax.lax.fori_loop(0, 5, lambda _, y: y @ x, x), matrix) == 5 * once
    assert product_operations(lambda x: jax.lax.cond(x[0, 0] > 0, product, lambda y: y, x), matrix) == once
    with pytest.raises(ValueError, match="while are not counted"):
        product_operations(lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 9, product, x), matrix)
    with pytest.raises(ValueError, match="conv_general_dilated are not counted"):
        product_operations(lambda x: jax.lax.conv(x, x, (1, 1), "SAME"), matrix[None, None])


def test_pairs_differ_in_the_estimator_alone():
    for preset, peer, limit, _ in PAIRS:
        ours, theirs = agent(preset), agent(peer)
        assert ours.estimator != theirs.estimator
        assert ours == replace(theirs, estimator=ours.estimator)
        assert Overhead("", preset, 1.0, peer, 1.0, limit, limit).holds
    assert [pair.limit for pair in PAIRS] == [1.01, 1.05]


def test_a_random_batch_has_actions_in_the_box():
    batch = random_batch(SPEC, 8, 0)
    assert batch.action.shape == (8, 6)
    assert batch.action.dtype == np.float32
    assert np.abs(batch.action).max() <= 1


def test_the_shapes_that_are_timed_are_those_of_the_environment():
    spec = describe_environment(settings("sac"))
    assert (spec.observation_shape, spec.observation_dtype) == (SPEC.observation_shape, SPEC.observation_dtype)
    assert spec.box == SPEC.box


def test_all_sides_have_the_same_settings():
    shared = peer_turns.ACTOR_CRITIC
    assert peer_turns.ACTOR_CRITIC_ENV == qemrl_actor_critic.ENV
    assert {contest.peer for contest in CONTESTS} == set(peer_turns.ACTOR_CRITIC_TASKS)
    assert {contest.preset for contest in CONTESTS} == set(PRESETS_TIMED)
    for preset in PRESETS_TIMED:
        config = settings(preset).agent
        assert isinstance(config, ActorCriticConfig)
        assert config.temperature == FixedTemperature(shared["ent_coef"])
        assert (config.batch_size, config.replay.capacity) == (shared["batch_size"], shared["buffer_size"])
        assert config.update_every == shared["train_freq"] == shared["gradient_steps"] == 1
        assert config.learning_starts == config.random_steps == peer_turns.LEARNING_STARTS
        assert not config.replay.prioritized
        assert config.ensemble.size == peer_turns.CRITICS["n_critics"] == 2
        widths = config.network.critic_widths + config.network.critic_hidden
        assert list(config.network.policy_widths) == list(widths) == peer_turns.CRITICS["net_arch"]
    assert settings("dsac-mlp").agent.representation == FixedQuantiles(peer_turns.QUANTILES)
    assert f"jax=={jax.__version__}" in SBX[1]


def test_our_side_counts_steps_while_it_learns_and_says_when_it_is_warm(monkeypatch):
    monkeypatch.setattr(qemrl_actor_critic, "LEARNING_STARTS", 256)
    monkeypatch.setattr(qemrl_actor_critic, "WARM_UP", 2)
    said = []
    rate, cores = qemrl_actor_critic.take_turn("sac", 0.2, warm=lambda: said.append("warm"))
    assert said == ["warm"]
    assert rate > 0
    assert cores > 0


def test_contests_are_between_the_best_thread_counts():
    sides = {
        ("dsac-mlp", 1): [100.0, 200.0, 300.0],
        ("dsac-mlp", 2): [90.0, 90.0, 90.0],
        ("sac", 1): [50.0],
        ("sac", 2): [10.0, 24.0, 12.0],
        ("sb3-tqc", 1): [10.0, 50.0, 100.0],
        ("sb3-tqc", 2): [99.0],  # given up after the first turn
        ("sbx-tqc", 2): [100.0, 100.0, 100.0],
        ("sbx-sac", 2): [10.0, 20.0, 10.0],
    }
    over_sb3, over_sbx, sac = make_speeds(sides)
    assert (over_sb3.peer, over_sb3.threads, over_sb3.peer_threads) == ("sb3-tqc", 1, 1)
    assert (over_sb3.steps_per_second, over_sb3.peer_steps_per_second) == (200.0, 50.0)
    assert over_sb3.ratio == 4.0  # of 10, 4 and 3
    assert (over_sb3.target, over_sb3.holds) == (4.0, True)
    assert (over_sbx.ratio, over_sbx.target, over_sbx.holds) == (2.0, 1.5, True)
    assert (sac.threads, sac.ratio, sac.target, sac.holds) == (2, 1.2, 1.2, True)
    assert set(sac.rates) == {"sac, 1 thread", "sac, 2 threads", "sbx-sac, 2 threads"}


def test_after_the_first_round_a_side_keeps_its_better_thread_count():
    turns_taken = {
        ("dsac-mlp", 1): [Turn(9.0, 1.0)],
        ("sb3-tqc", 1): [Turn(5.0, 1.0)],
        ("dsac-mlp", 2): [Turn(8.0, 2.0)],  # one of the engines, which are compared in every round
        ("sb3-tqc", 2): [Turn(6.0, 2.0)],
    }
    assert worth_another(turns_taken) == [("dsac-mlp", 1), ("dsac-mlp", 2), ("sb3-tqc", 2)]


def test_engines_are_compared_turn_by_turn():
    alone = [Turn(100.0, 1.8), Turn(100.0, 1.9), Turn(50.0, 1.7)]
    many, single = make_engines({"many": [Turn(150.0, 2.0), Turn(120.0, 1.9), Turn(40.0, 2.0)], ALONE: alone})
    assert (many.name, many.rates, many.cores, many.ratio) == ("many", [150.0, 120.0, 40.0], 2.0, 1.2)
    assert (single.name, single.cores, single.ratio) == (ALONE, 1.8, 1.0)


def test_turns_at_once_start_together(tmp_path):
    names = [str(tmp_path / name) for name in ("one", "other")]
    commands = [[sys.executable, "-c", PROGRAM, *order] for order in (names, names[::-1])]
    assert turns.turns_at_once(commands, dict(os.environ)) == [Turn(10.0, 0.5), Turn(10.0, 0.5)]


def test_a_turn_that_fails_among_others_says_why_and_leaves_none_waiting():
    waits = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]
    fails = [sys.executable, "-c", "raise SystemExit('no room')"]
    with pytest.raises(PeerError, match=r"(?s)failed with.*no room"):
        turns.turns_at_once([waits, fails], dict(os.environ))
    with pytest.raises(PeerError, match="should end with its steps per second"):
        turns.turns_at_once([waits], dict(os.environ))


def test_one_thread_is_asked_of_xla_beside_what_was_asked_before(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/nowhere")
    assert turns.environment_for(1)["XLA_FLAGS"] == f"--xla_dump_to=/tmp/nowhere {turns.SINGLE_THREAD}"
    assert turns.environment_for(2)["XLA_FLAGS"] == "--xla_dump_to=/tmp/nowhere"


def test_no_time_at_all_and_no_place_for_peers_are_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for option, value, message in (
        ("--seconds", "0", "--seconds must be positive"),
        ("--peers-folder", str(tmp_path / "file"), "choose another --peers-folder"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["actor-critic", option, value])
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="takes seconds, got 0"):
        actor_critic.run(0.0, tmp_path, print)


def test_the_report_is_shown_and_is_plain_data(capsys):
    sides = {(name, 1): [rate] for name, rate in (("dsac-mlp", 400.0), ("sb3-tqc", 80.0), ("sbx-tqc", 320.0))}
    sides |= {("sac", 2): [500.0], ("sbx-sac", 2): [400.0]}
    overheads = [Overhead(FAMILY, "qem-dsac-mlp", 10.0, "dsac-mlp", 9.9, 1.03, 1.01)]
    shares = [Share("dsac-iqn", 15_000_000_000, 150.0, 100.0, 250.0, 0.4)]
    engines = [Engine("many", [600.0], 2.0, 1.5), Engine(ALONE, [400.0], 1.5, 1.0)]
    report = actor_critic.ActorCriticReport(make_speeds(sides), overheads, shares, engines, {})
    command.show_actor_critic(report)
    shown = capsys.readouterr().out
    for text in ("dsac-mlp / TQC of sb3-contrib", "5.00", "4 ✓", "1.25", "1.5 ✗", "1.01 ✗", "15,000", "40%"):
        assert text in shown
    for text in ("many", "600", "1.50", ALONE, "Most steps: many."):
        assert text in shown
    data = json.loads(json.dumps(report.as_json()))
    assert data["seeds_engine"] == "many"
    assert [line["ratio"] for line in data["speeds"]] == [5.0, 1.25, 1.25]
