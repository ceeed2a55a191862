"""Comparisons: what the numbers are, and what is trained, taken over and resumed."""

import csv
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qemrl.agents.value import NetworkConfig
from qemrl.config.serialize import to_json
from qemrl.experiments import compare as comparing
from qemrl.experiments.compare import (
    ComparisonRequest,
    compare,
    evaluate_often,
    plan,
    prepare,
    subtract,
    write_comparison,
)
from qemrl.experiments.runs import build_curve, read_run
from qemrl.plotting.curves import Curve
from qemrl.replay.config import ReplayConfig
from qemrl.training.config import configure
from qemrl.training.loops import ImportRefused
from qemrl.training.run_directory import RunDirectory
from qemrl.training.train import Stopped, train

ENV = "probe/1"
T_OF_TWO_PAIRS, T_OF_THREE = 12.7062047364, 4.30265272991
"""Student's quantile at 0.975 with 1 and with 2 degrees of freedom, from tables."""


class Callback:
    """Counts records, and asks the process to stop at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.began, self.steps = stop_at, [], []

    def on_start(self, config, loop, lost):
        assert not lost
        self.began.append((config.preset, loop.step))

    def on_record(self, step, metrics):
        self.steps.append(step)
        assert metrics["time/fps"] > 0
        if step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)


def tiny(preset: str, steps: int = 400):
    """A run of seconds, with ten evaluations."""
    config = configure(preset, ENV, steps, seed=3, num_seeds=2)
    agent = replace(config.agent, network=NetworkConfig(widths=(16,)), replay=ReplayConfig(capacity=400))
    agent = replace(agent, learning_starts=64, batch_size=16, target_every=40)
    intervals = {"log_every": 40, "evaluate_every": 40, "checkpoint_every": 200, "evaluation_episodes": 2}
    return replace(config, agent=agent, **intervals)


def written(path: Path, preset: str, steps: int, returns: dict[int, dict[int, float | None]]) -> RunDirectory:
    """A finished run directory written by hand: returns by seed and step."""
    first, count = min(returns), len(returns)
    config = configure(preset, ENV, steps, seed=first, num_seeds=count)
    directory = RunDirectory.create(path, to_json(config), {})
    for step in sorted({step for by_step in returns.values() for step in by_step}):
        for seed, by_step in returns.items():
            record = {"step": step, "seed": seed, "rollout/ep_rew_mean": None if step == 10 else step / 10}
            if step in by_step:
                record["eval/mean_reward"] = by_step[step]
            directory.append(record)
    for rate in (10.0, 1000.0, 3000.0):
        directory.append_timing({"step": 10, "time/fps": rate})
    directory.finish({})
    return directory


@pytest.fixture
def two_runs(tmp_path) -> list[RunDirectory]:
    first = written(tmp_path / "qr-dqn", "qr-dqn", 40, {0: {10: 0.0, 20: 2.0, 40: 4.0}, 1: {10: 1.0, 20: 1.0, 40: 5.0}})
    other = written(tmp_path / "qem-dqn", "qem-dqn", 40, {0: {20: 3.0, 40: 5.0}, 1: {20: 2.0, 40: 8.0}})
    return [first, other]


def test_a_curve_is_read_from_the_evaluations_that_all_seeds_have(tmp_path):
    returns = {4: {10: 1.0, 20: 2.0, 30: None, 40: 4.0}, 5: {10: 5.0, 20: 6.0, 30: 7.0}}
    directory = written(tmp_path / "run", "iqn", 40, returns)
    run = read_run(directory.path, "run")
    curve = build_curve(run.arm, run.config.env, run.evaluations)
    assert curve is not None
    assert (curve.label, curve.env, curve.seeds) == ("iqn", ENV, (4, 5))
    assert curve.steps.tolist() == [10, 20]
    assert curve.returns.tolist() == [[1.0, 2.0], [5.0, 6.0]]


def test_a_run_without_an_evaluation_has_no_curve(tmp_path):
    directory = written(tmp_path / "run", "iqn", 40, {0: {}})
    with pytest.raises(ValueError, match="has no seed that lacks nothing: seed 0: no finite evaluation at step 40"):
        compare([directory])
    (directory.path / "DONE").unlink()
    with pytest.raises(ValueError, match="no evaluation yet"):
        compare([directory])


def test_a_seed_that_lacks_an_evaluation_is_left_out_of_a_comparison(tmp_path):
    whole = written(tmp_path / "whole", "iqn", 40, {0: {20: 1.0, 40: 4.0}, 1: {20: 2.0, 40: 5.0}})
    cut = written(tmp_path / "cut", "qr-dqn", 40, {0: {20: 1.0, 40: 6.0}, 1: {20: 2.0, 40: None}})
    found = compare([whole, cut])
    assert found.steps == 40
    assert found.differences[0].seeds == (0,)
    assert found.results[1].run.losses == (
        "seed 1: no finite evaluation at step 40; left out of the curve and of the last evaluations",
    )


def test_differences_are_paired_by_seed_and_have_students_interval():
    steps = np.array([1, 2])
    first = Curve("a", ENV, steps, np.array([[0.0, 1.0], [0.0, 10.0], [0.0, 20.0]]), (0, 1, 2))
    # In another order, and with a seed that the first has not: differences are 2, 3 and 4 at the end.
    other = Curve("b", ENV, steps, np.array([[0.0, 24.0], [0.0, 3.0], [0.0, 13.0], [0.0, 99.0]]), (2, 0, 1, 7))
    difference = subtract(other, first)
    assert set(difference.seeds) == {0, 1, 2}
    reach = T_OF_THREE * 1 / np.sqrt(3)
    assert difference.final == pytest.approx((3.0, 3 - reach, 3 + reach))
    assert difference.average == pytest.approx((1.5, 1.5 - reach / 2, 1.5 + reach / 2))
    assert difference.final.verdict == "higher"
    assert subtract(first, other).final.verdict == "lower"


@pytest.mark.parametrize(("ends", "verdict"), [((1.0, 3.0), "no significant difference"), ((5.0, 5.1), "higher")])
def test_an_interval_with_zero_in_it_shows_no_difference(ends, verdict):
    steps = np.array([1])
    zero = Curve("a", ENV, steps, np.zeros((2, 1)))
    difference = subtract(Curve("b", ENV, steps, np.array(ends)[:, None]), zero)
    assert difference.final.verdict == verdict
    reach = T_OF_TWO_PAIRS * abs(ends[0] - ends[1]) / 2
    assert difference.final.high - difference.final.value == pytest.approx(reach)


def test_one_seed_shows_nothing_and_strangers_cannot_be_subtract():
    one = Curve("a", ENV, np.array([1]), np.array([[1.0]]), (0,))
    assert subtract(one, replace(one, returns=np.array([[9.0]]))).final.verdict == "one seed shows nothing"
    with pytest.raises(ValueError, match="cannot be paired"):
        subtract(one, replace(one, seeds=(1,)))
    with pytest.raises(ValueError, match="cannot be paired"):
        subtract(one, replace(one, steps=np.array([2])))


def test_a_comparison_of_runs_that_are_there(two_runs, tmp_path):
    comparison = compare(two_runs)
    first, other = comparison.results
    assert first.final == pytest.approx((4.5, 4.5 - T_OF_TWO_PAIRS * 0.5, 4.5 + T_OF_TWO_PAIRS * 0.5))
    assert first.run.steps_per_second == 1000.0
    assert other.average.value == pytest.approx(4.5)
    (difference,) = comparison.differences
    assert difference.final == pytest.approx((2.0, 2 - T_OF_TWO_PAIRS, 2 + T_OF_TWO_PAIRS))
    paths = write_comparison(comparison, tmp_path / "out")
    assert [path.name for path in paths] == ["figure.png", "figure.svg", "data.csv", "comparison.json"]
    with paths[2].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert rows[0] == {
        "preset": "qr-dqn",
        "seed": "0",
        "step": "10",
        "eval/mean_reward": "0.0",
        "rollout/ep_rew_mean": "",
    }
    numbers = json.loads(paths[3].read_text())
    assert numbers["differences"][0]["verdict"] == "no significant difference"
    hashes = {run["config_hash"] for run in numbers["runs"]}
    assert len(hashes) == 2
    assert all(len(found) == 16 for found in hashes)
    assert numbers["runs"][0]["commit"] == two_runs[0].record["commit"]


@pytest.mark.usefixtures("two_runs")
def test_a_plan_takes_what_is_there_and_says_what_does_not_fit(tmp_path):
    presets = ("qr-dqn", "qem-dqn")
    assert [config.preset for config in plan(ComparisonRequest(presets), tmp_path)] == list(presets)
    for asked, message in [
        (ComparisonRequest(presets, env="probe/2"), "--env probe/1, and probe/2 is asked for"),
        (ComparisonRequest(presets, steps=50), "--steps 40, and 50 is asked for"),
        (ComparisonRequest((*presets, "iqn")), "say --env and --steps"),
        (ComparisonRequest((*presets, "iqn"), ENV, 60, 0, 2), "--steps 40, and 60"),
        (ComparisonRequest((*presets, "iqn"), ENV, 40, 0, None), "the same seeds"),
        (ComparisonRequest(("qr-dqn",)), "two or more"),
        (ComparisonRequest(("qr-dqn", "qr-dqn")), "different presets"),
        (ComparisonRequest(("qr-dqn", "qem-dq"), ENV, 40), "did you mean 'qem-dqn'"),
    ]:
        with pytest.raises(ValueError, match=message):
            plan(asked, tmp_path)


def test_a_module_that_a_run_names_is_imported_only_if_that_is_allowed_or_asked_for(tmp_path):
    env = "strange_worlds:World-v0"
    for preset in ("dqn", "qr-dqn"):
        RunDirectory.create(tmp_path / preset, to_json(configure(preset, env, 100)), {})
    asked = ComparisonRequest(("dqn", "qr-dqn"))
    with pytest.raises(ImportRefused, match="would import the module 'strange_worlds'"):
        plan(asked, tmp_path)
    for trusting in (replace(asked, allow_imports=True), replace(asked, env=env)):
        assert [config.env for config in plan(trusting, tmp_path)] == [env, env]


def test_settings_hold_for_all_presets_and_must_exist_for_all(tmp_path):
    presets = ("dqn", "qr-dqn")
    settings = {"optimizer.learning-rate": "1e-2", "log_every": 200, "evaluate_every": 200}
    asked = ComparisonRequest(presets, ENV, 400, overrides=settings)
    plain = plan(replace(asked, overrides={}), tmp_path)
    for config, before in zip(plan(asked, tmp_path), plain, strict=True):
        agent = replace(before.agent, optimizer=replace(before.agent.optimizer, learning_rate=1e-2))
        assert config.agent == agent
        assert (config.evaluate_every, before.evaluate_every) == (200, 20)
    lacking = replace(asked, overrides={"representation.num_quantiles": 8})
    with pytest.raises(ValueError, match=r"dqn: there is no setting 'representation.num_quantiles' here"):
        plan(lacking, tmp_path)
    for config in plain:
        prepare(config, tmp_path / config.preset)
    same = replace(asked, overrides={"discount": 0.99})
    assert plan(same, tmp_path) == plain
    with pytest.raises(ValueError, match=r"other settings: agent.optimizer.learning_rate is 0.001 there, but 0.01"):
        plan(replace(asked, overrides={"optimizer.learning_rate": 1e-2}), tmp_path)


def test_short_runs_are_evaluated_often_and_long_ones_as_their_family_has_it():
    long = configure("qr-dqn", "minatar/breakout", 1_000_000)
    assert evaluate_often(long) == long
    short = evaluate_often(configure("qr-dqn", "minatar/breakout", 100_000))
    assert (short.log_every, short.evaluate_every, short.checkpoint_every) == (2_000, 10_000, 50_000)
    for steps in (10, 137, 4_000, 44_444):
        config = evaluate_often(configure("dqn", "CartPole-v1", steps))
        assert sum(config.is_evaluated(step) for step in range(4, config.whole_steps + 1, 4)) <= 30
        assert config.evaluate_every <= max(4, steps / comparing.LEAST_EVALUATIONS)


def test_an_interrupted_comparison_resumes_and_a_finished_one_is_not_trained_again(tmp_path):
    configs = [tiny("qr-dqn"), tiny("dqn")]
    stopping, whole = Callback(stop_at=200), Callback()
    directories = [prepare(config, tmp_path / config.preset) for config in configs]
    with pytest.raises(Stopped):
        train(configs[0], directories[0], [stopping])
    assert not directories[0].done
    for config in plan(ComparisonRequest(("qr-dqn", "dqn")), tmp_path):
        train(config, prepare(config, tmp_path / config.preset), [whole])
    assert whole.began == [("qr-dqn", 200), ("dqn", 0)]
    assert all(prepare(config, tmp_path / config.preset).done for config in configs)
    comparison = compare(directories)
    assert [len(result.curve.steps) for result in comparison.results] == [10, 10]
    assert comparison.results[0].curve.seeds == (3, 4)
    assert comparison.differences[0].seeds == (3, 4)


def test_an_unknown_environment_leaves_no_folder(tmp_path):
    config = configure("dqn", "CartPole-v0815", 100)
    with pytest.raises(ValueError, match="CartPole"):
        prepare(config, tmp_path / "dqn")
    assert not list(tmp_path.iterdir())
