"""All runs below a folder: which are found, what counts of them, and what is said about those that are damaged."""

import json
from pathlib import Path

import numpy as np
import pytest

from qemrl.config.serialize import to_json
from qemrl.experiments.runs import RunCollection, find_files, read_runs, relabel
from qemrl.training.config import configure
from qemrl.training.run_directory import RunDirectory

ENV = "probe/1"


def written(
    path: Path,
    returns: dict[int, dict[int, float | None]],
    preset: str = "qr-dqn",
    arm: str | None = None,
    env: str = ENV,
    done: bool = True,
) -> RunDirectory:
    """A run directory written by hand: returns by seed and step."""
    config = configure(preset, env, 3_000, seed=min(returns), num_seeds=len(returns))
    directory = RunDirectory.create(path, to_json(config), {} if arm is None else {"arm": arm})
    for step in sorted({step for by_step in returns.values() for step in by_step}):
        for seed, by_step in returns.items():
            if step in by_step:
                directory.append({"step": step, "seed": seed, "eval/mean_reward": by_step[step]})
    if done:
        directory.finish({"step": 3_000})
    return directory


def test_runs_of_a_sweep_and_of_several_seeds_become_cells_of_algorithm_and_task(tmp_path):
    written(tmp_path / "runs" / "b", {1: {1000: 3.0, 2000: 5.0}}, arm="qr-dqn+wide")
    written(tmp_path / "runs" / "a", {0: {1000: 1.0, 2000: 2.0}}, arm="qr-dqn+wide")
    written(tmp_path / "dqn", {4: {1000: 0.0}, 5: {1000: 8.0}}, preset="dqn")
    written(tmp_path / "other", {0: {1000: 7.0}}, env="probe/2")
    found = read_runs(tmp_path)
    assert [run.name for run in found.runs] == ["dqn", "other", "runs/a", "runs/b"]
    assert found.arms == ("dqn", "qr-dqn", "qr-dqn+wide")  # in the order of presets, variants after their preset
    assert found.envs == ("probe/1", "probe/2")
    assert not found.unreadable
    cells = found.cells()
    assert list(cells) == [("dqn", "probe/1"), ("qr-dqn", "probe/2"), ("qr-dqn+wide", "probe/1")]
    wide, dqn = cells["qr-dqn+wide", "probe/1"].curve, cells["dqn", "probe/1"].curve
    assert wide is not None
    assert dqn is not None
    assert (wide.label, wide.env, wide.seeds) == ("qr-dqn+wide", "probe/1", (0, 1))
    np.testing.assert_array_equal(wide.steps, [1000, 2000])
    np.testing.assert_array_equal(wide.returns, [[1.0, 2.0], [3.0, 5.0]])
    assert dqn.seeds == (4, 5)
    np.testing.assert_array_equal(dqn.final, [0.0, 8.0])


def test_a_single_run_directory_is_a_folder_of_runs_too(tmp_path):
    written(tmp_path, {0: {1000: 1.0}})
    assert [run.name for run in read_runs(tmp_path).runs] == ["."]


def test_unfinished_runs_count_only_where_none_is_finished(tmp_path):
    written(tmp_path / "a", {0: {1000: 1.0, 2000: 2.0, 3000: 3.0}})
    written(tmp_path / "b", {1: {1000: 9.0}}, done=False)
    written(tmp_path / "c", {0: {1000: 1.0, 2000: 2.0}}, preset="iqn", done=False)
    written(tmp_path / "d", {1: {1000: 4.0}}, preset="iqn", done=False)
    written(tmp_path / "e", {2: {}}, preset="iqn", done=False)
    cells = read_runs(tmp_path).cells()
    mixed, started = cells["qr-dqn", ENV], cells["iqn", ENV]
    assert [run.state for run in mixed.runs] == ["finished", "unfinished"]
    assert mixed.finished
    assert mixed.curve is not None
    assert mixed.curve.seeds == (0,)
    assert not started.finished
    assert started.curve is not None
    assert started.curve.seeds == (0, 1)
    np.testing.assert_array_equal(started.curve.returns, [[1.0], [4.0]])  # what all have


def test_without_a_common_evaluation_there_is_no_curve(tmp_path):
    written(tmp_path / "a", {0: {1000: 1.0}})
    written(tmp_path / "b", {1: {2000: 1.0}})
    written(tmp_path / "c", {0: {1000: None}}, preset="iqn")
    assert [cell.curve for cell in read_runs(tmp_path).cells().values()] == [None, None]


def test_damaged_runs_are_named_with_the_reason_and_do_not_stop_the_others(tmp_path):
    written(tmp_path / "good", {0: {1000: 1.0}})
    cut = written(tmp_path / "cut", {1: {1000: 1.0}})
    with (cut.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "seed": 1, "eval/mean')  # a line that is being written
    for name, line in (
        ("broken", "{"),
        ("foreign", '{"step": 2000, "seed": 7}'),
        ("infinite", '{"step": 2000, "seed": 2, "eval/mean_reward": Infinity}'),
        ("listed", "[1]"),
    ):
        with (written(tmp_path / name, {2: {1000: 1.0}}).path / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")
    timed = written(tmp_path / "timed", {2: {1000: 1.0}})
    (timed.path / "timing.jsonl").write_text('{"step": 10, "time/fps": 0}\n')
    failed = written(tmp_path / "unsaid", {2: {1000: 1.0}}, done=False)
    (failed.path / "FAILED").write_text("{}")
    for name, text in (
        ("empty", ""),
        ("no-run", "{}"),
        ("no-type", '{"config": {"a": 1}}'),
        ("number", '{"config": 3}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    for name, done in (("renamed", True), ("unknown", False)):
        named = written(tmp_path / name, {2: {1000: 1.0}}, done=done)
        record = json.loads((named.path / "config.json").read_text())
        record["config"]["preset"] = "rainbow"
        del record["digest"]  # as versions had it that kept none
        (named.path / "config.json").write_text(json.dumps(record))
    found = read_runs(tmp_path)
    assert [(run.name, run.state) for run in found.runs] == [
        ("cut", "finished"),
        ("good", "finished"),
        ("unsaid", "failed"),
    ]
    assert "FAILED cannot be read" in found.runs[-1].cause
    reasons = {each.name: each.reason for each in found.unreadable}
    assert "line 2, is not JSON" in reasons["broken"]
    assert "no seed of (2,)" in reasons["foreign"]
    assert "got inf" in reasons["infinite"]
    assert "no time/fps above 0" in reasons["timed"]
    assert 'preset is "rainbow" in config.json, but "qr-dqn" in DONE' in reasons["renamed"]
    assert "'rainbow', which does not exist" in reasons["unknown"]
    assert {"listed", "empty", "no-run", "no-type", "number"} < set(reasons)


def test_a_second_run_of_the_same_algorithm_task_and_seed_is_left_out(tmp_path):
    written(tmp_path / "first", {0: {1000: 1.0}})
    written(tmp_path / "second", {0: {1000: 2.0}, 1: {1000: 2.0}})
    found = read_runs(tmp_path)
    assert [run.name for run in found.runs] == ["first"]
    assert "first is of the same algorithm (qr-dqn), task (probe/1) and seed" in found.unreadable[0].reason


def test_hidden_folders_and_the_insides_of_runs_are_not_searched(tmp_path):
    written(tmp_path / "run", {0: {1000: 1.0}})
    written(tmp_path / "run" / "checkpoints" / "copy", {1: {1000: 1.0}})
    written(tmp_path / ".hidden" / "run", {2: {1000: 1.0}})
    assert list(find_files(tmp_path, "config.json")) == [tmp_path / "run" / "config.json"]


def test_failures_are_known_by_their_file_or_by_the_state_that_was_put_aside(tmp_path):
    told = written(tmp_path / "a", {0: {1000: 1.0}}, done=False)
    (told.path / "FAILED").write_text(json.dumps({"cause": "OSError: no space"}))
    aside = written(tmp_path / "b", {1: {1000: 1.0}}, done=False)
    (aside.path / "failed" / "step_000000001500").mkdir(parents=True)
    over = written(tmp_path / "c", {2: {1000: 1.0, 2000: 1.0}}, done=False)
    (over.path / "failed" / "step_000000001500").mkdir(parents=True)
    done = written(tmp_path / "d", {3: {1000: 1.0}})
    (done.path / "failed" / "step_000000001500").mkdir(parents=True)
    runs = read_runs(tmp_path).runs
    assert [run.state for run in runs] == ["failed", "failed", "unfinished", "finished"]
    assert [run.cause for run in runs] == ["OSError: no space", "numbers were not finite at step 1,500", "", ""]


def test_speed_is_the_median_and_time_counts_what_was_done_again(tmp_path):
    directory = written(tmp_path, {0: {1000: 1.0}, 1: {1000: 1.0}})
    # Records come every 1000 steps, of two seeds; the second is done again, and the last is short.
    for step, rate in ((1000, 100.0), (2000, 400.0), (2000, 200.0)):
        directory.append_timing({"step": step, "time/fps": rate, "machine": "small"})
    assert read_runs(tmp_path).runs[0].machines == ("small",)
    directory.append_timing({"step": 2500, "time/fps": 250.0, "machine": "large"})
    (run,) = read_runs(tmp_path).runs
    assert run.machines == ("small", "large")
    assert run.steps_per_second == 225.0
    assert run.seconds == 2000 / 100 + 2000 / 400 + 2000 / 200 + 1000 / 250
    assert (run.step, run.cause) == (1000, "")


def test_texts_name_runs_as_they_are_seen_from_the_folder():
    assert relabel("a/run/x, a/run-2/x and data/run", Path("a/run"), "run") == "run/x, a/run-2/x and data/run"
    assert relabel("/a/config.json is bad", Path("/a"), ".") == "./config.json is bad"


def test_a_folder_that_is_not_there_is_an_error_and_an_empty_one_has_no_runs(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        read_runs(tmp_path / "nowhere")
    assert read_runs(tmp_path) == RunCollection(tmp_path, (), ())
