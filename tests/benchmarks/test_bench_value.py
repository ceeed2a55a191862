"""The value bench: its counts are those of the networks, its turns are read right, and it says what went wrong."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import command, peer_turns, peers, turns, value
from benchmarks.__main__ import main
from benchmarks.iterations import (
    DOMAINS,
    PAIRS,
    SPECS,
    Overhead,
    Share,
    make_iteration,
    make_update,
    measure_shares,
    random_batch,
)
from benchmarks.qemrl_value import TASKS, settings, take_turn
from benchmarks.roofline import layer_multiply_adds, matrix_multiply_peak, update_operations
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.exploration import EpsilonGreedy
from qemrl.training.loops import describe_environment

TINY = ValueConfig(representation=FixedQuantiles(8), network=NetworkConfig(widths=(16,)), batch_size=4, update_every=2)


def network(config: AgentConfig, task: str):
    return jax.eval_shape(make_agent(config, SPECS[task]).init, jax.random.key(0)).params.network


def test_multiply_adds_are_those_of_the_layers():
    # weights times places: 20 × 20, 9 × 9 and 7 × 7 pixels of the three feature maps, then dense layers
    maps = [400 * 32 * 8 * 8 * 4, 81 * 64 * 4 * 4 * 32, 49 * 64 * 3 * 3 * 64]
    pong = layer_multiply_adds(network(settings("pong").agent, "pong"), SPECS["pong"])
    assert pong == [*maps, 49 * 64 * 512, 512 * 6 * 200]
    board = layer_multiply_adds(network(settings("minatar").agent, "minatar"), SPECS["minatar"])
    assert board == [100 * 16 * 3 * 3 * 4, 1600 * 128, 128 * 3 * 51]
    cartpole = layer_multiply_adds(network(settings("cartpole").agent, "cartpole"), SPECS["cartpole"])
    assert cartpole == [4 * 64, 64 * 64, 64 * 2 * 200]


def test_operations_of_an_update_agree_with_those_that_xla_counts():
    # XLA also counts what is no product; at a large batch of wide layers that is little
    config = ValueConfig(representation=FixedQuantiles(32), network=NetworkConfig(widths=(256, 256)), batch_size=128)
    spec = SPECS["cartpole"]
    agent = ValueAgent(config, spec)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    lowered = jax.jit(agent.update).lower(state, random_batch(spec, 128, 0), jax.random.key(0), np.int32(0))
    counted = (lowered.compile().cost_analysis() or {})["flops"]
    assert update_operations(state.params.network, spec, 128) == pytest.approx(counted, rel=0.15)


def test_layers_that_see_many_levels_are_not_counted():
    implicit = network(ValueConfig(representation=ImplicitQuantiles(8, 8, 8)), "cartpole")
    with pytest.raises(ValueError, match="ImplicitHead are not counted"):
        layer_multiply_adds(implicit, SPECS["cartpole"])
    noisy = network(ValueConfig(network=NetworkConfig(noisy=True)), "cartpole")
    with pytest.raises(ValueError, match="only plain layers"):
        layer_multiply_adds(noisy, SPECS["cartpole"])


def test_a_share_of_the_peak_adds_up():
    assert matrix_multiply_peak(size=64, calls=2) > 0
    told = []
    (line,) = measure_shares({"cartpole": TINY}, 100.0, 2, told.append)
    assert told == ["an update of cartpole"]
    assert line.gflops == pytest.approx(line.operations / line.milliseconds / 1e6)
    assert line.share == pytest.approx(line.gflops / 100)


def test_an_iteration_makes_the_update_and_acts_as_often_as_there_are_steps_between():
    spec = SPECS["cartpole"]
    (params, _, update), actions = make_iteration(TINY, spec)()
    alone, _, same = make_update(TINY, spec)()
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert float(update.loss) == pytest.approx(float(same.loss), rel=1e-5)
    assert actions.shape == (2, 1)


def test_pairs_differ_in_the_estimator_alone():
    for preset, peer, limit in PAIRS:
        for family, _ in DOMAINS:
            ours, theirs = PRESETS[preset].configure(family), PRESETS[peer].configure(family)
            assert ours.estimator != theirs.estimator
            assert ours.representation == theirs.representation
            assert ours.network == theirs.network
            assert (ours.batch_size, ours.update_every) == (theirs.batch_size, theirs.update_every)
        assert Overhead("", preset, 1.0, peer, 1.0, limit, limit).holds
        assert not Overhead("", preset, 1.0, peer, 1.0, limit + 0.001, limit).holds


@pytest.mark.parametrize("task", [task for task in TASKS if task != "pong"])
def test_the_shapes_that_are_timed_are_those_of_the_environments(task):
    spec, shape = describe_environment(settings(task)), SPECS[task]
    assert (spec.observation_shape, spec.num_actions) == (shape.observation_shape, shape.num_actions)
    assert spec.observation_dtype == shape.observation_dtype


def test_both_sides_have_the_same_tasks_and_settings():
    assert tuple(peer_turns.VALUE_TASKS) == TASKS == tuple(value.TASKS)
    for task in TASKS:
        agent = settings(task).agent
        assert isinstance(agent, ValueConfig)
        assert agent.batch_size == peer_turns.VALUE["batch_size"]
        assert agent.learning_starts == peer_turns.LEARNING_STARTS
        assert isinstance(agent.exploration, EpsilonGreedy)
        assert agent.exploration.initial == agent.exploration.final == peer_turns.VALUE["exploration_initial_eps"]
    with pytest.raises(ValueError, match="no task 'atari': choose from cartpole, pong, minatar"):
        settings("atari")


def test_our_side_counts_steps_while_it_learns():
    rate, cores = take_turn("cartpole", 0.2)
    assert rate > 0
    assert cores > 0


def test_the_best_thread_counts_are_compared_turn_by_turn():
    sides = {
        ("qemrl 1", 1): [80.0, 100.0, 90.0],
        ("qemrl 1", 2): [10.0, 10.0, 1000.0],
        ("sb3", 1): [5.0, 5.0, 5.0],
        ("sb3", 2): [8.0, 20.0, 10.0],
    }
    line = value.make_speed("cartpole", 1, 8.0, sides)
    assert (line.threads, line.peer_threads) == (1, 2)
    assert (line.steps_per_second, line.peer_steps_per_second) == (90.0, 10.0)
    assert line.ratio == 9.0  # of 10, 5 and 9
    assert line.holds is True
    assert value.make_speed("cartpole", 1, 9.5, sides).holds is False
    assert value.make_speed("cartpole", 1, None, sides).holds is None
    assert json.loads(json.dumps(line.rates))["sb3, 2 threads"] == [8.0, 20.0, 10.0]


def test_a_turn_is_read_from_the_last_line():
    said = 'greetings\n{"steps_per_second": 12.5, "cores": 1.5}\n'
    assert turns.read_turn(said) == turns.Turn(12.5, 1.5)
    for output in ("", "nothing", "[]", '{"rate": 1}', '{"steps_per_second": 1}'):
        with pytest.raises(peers.PeerError, match="should end with its steps per second"):
            turns.read_turn(output)


def test_a_turn_that_fails_says_why():
    with pytest.raises(peers.PeerError, match="invalid choice: 'atari'"):
        turns.peer_turn(Path(sys.executable), "atari", 1.0, 1)
    with pytest.raises(peers.PeerError, match="ModuleNotFoundError"):  # here is no environment of the peer's
        turns.peer_turn(Path(sys.executable), "sbx-sac", 1.0, 1)


def test_an_environment_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(peers.PeerError, match="choose another --peers-folder"):
        peers.make_peer("peer", [], tmp_path / "file")


def test_a_finished_environment_is_used_again_and_another_one_is_not(tmp_path, monkeypatch):
    python = tmp_path / "peer" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    packages = [["first==1"], ["second==2"]]
    marker = {"python": sys.version, "packages": packages}
    (tmp_path / "peer" / peers.MARKER).write_text(json.dumps(marker))
    assert peers.make_peer("peer", packages, tmp_path) == python
    # Other packages are wanted: it is made anew, here by something that fails and says so
    monkeypatch.setattr(sys, "executable", str(tmp_path / "fails"))
    (tmp_path / "fails").write_text("#!/bin/sh\necho no room >&2\nexit 3\n")
    (tmp_path / "fails").chmod(0o755)
    with pytest.raises(peers.PeerError, match=r"(?s)-m venv .*no room.*--peers-folder"):
        peers.make_peer("peer", [["third==3"]], tmp_path)
    assert not python.exists()


def test_the_cache_of_the_user_holds_peers(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers.default_folder() == tmp_path / "qemrl" / "peers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert peers.default_folder() == tmp_path / ".cache" / "qemrl" / "peers"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_no_time_at_all_is_refused(seconds, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["value", "--seconds", seconds])
    assert exit_.value.code == 2
    assert "--seconds must be positive" in capsys.readouterr().err


def test_a_peer_that_cannot_be_made_is_a_usage_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main(["value", "--peers-folder", str(tmp_path / "file")])
    assert exit_.value.code == 2
    assert "choose another --peers-folder" in capsys.readouterr().err


def test_the_report_is_shown_and_is_plain_data(capsys):
    sides = {("qemrl 1", 1): [80.0], ("qemrl 3", 1): [120.0], ("sb3", 1): [5.0]}
    speeds = [value.make_speed("minatar", 1, 10.0, sides), value.make_speed("minatar", 3, None, sides)]
    overheads = [Overhead("atari", "qem-dqn", 10.0, "qr-dqn", 9.9, 1.03, 1.02)]
    shares = [Share("pong", 2_000_000_000, 20.0, 100.0, 250.0, 0.4)]
    report = value.ValueReport(speeds, overheads, shares, {})
    command.show_value(report)
    shown = capsys.readouterr().out
    for text in ("MinAtar Breakout", "3 seeds at once", "16.00", "10 ✓", "1.030", "1.02 ✗", "2,000", "40%"):
        assert text in shown
    assert json.loads(json.dumps(report.as_json()))["speeds"][0]["ratio"] == 16.0
