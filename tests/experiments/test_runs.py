"""All runs below a folder: which are found, what counts of them, and what is said about those that are damaged."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from qemrl.config.serialize import to_json
from qemrl.experiments.runs import RunCollection, explain, find_files, read_runs, relabel
from qemrl.training.config import configure
from qemrl.training.run_directory import RunDirectory

ENV = "probe/1"


def written(
    path: Path,
    returns: Mapping[int, Mapping[int, float | None]],
    preset: str = "qr-dqn",
    arm: str | None = None,
    env: str = ENV,
    done: bool = True,
) -> RunDirectory:
    """A run directory written by hand: returns by seed and step, the last of which is that of the run if it is done."""
    steps = max((step for by_step in returns.values() for step in by_step), default=3_000) if done else 3_000
    config = configure(preset, env, steps, seed=min(returns), num_seeds=len(returns))
    directory = RunDirectory.create(path, to_json(config), {} if arm is None else {"arm": arm})
    for step in sorted({step for by_step in returns.values() for step in by_step}):
        for seed, by_step in returns.items():
            if step in by_step:
                directory.append({"step": step, "seed": seed, "eval/mean_reward": by_step[step]})
    if done:
        directory.finish({"step": steps})
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
    cut = written(tmp_path / "cut", {1: {1000: 1.0}}, done=False)
    with (cut.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "seed": 1, "eval/mean')  # a line that is being written
    for name, line in (
        ("broken", "{"),
        ("foreign", '{"step": 2000, "seed": 7}'),
        ("infinite", '{"step": 2000, "seed": 2, "eval/mean_reward": Infinity}'),
        ("large", f'{{"step": 2000, "seed": 2, "eval/mean_reward": {"9" * 400}}}'),
        ("larger", f'{{"step": {"9" * 5000}, "seed": 2}}'),
        ("nested", "[" * 100_000),
        ("twice", '{"step": 1000, "seed": 2, "eval/mean_reward": 3.0}'),
        ("listed", "[1]"),
    ):
        with (written(tmp_path / name, {2: {1000: 1.0}}, done=False).path / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")
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
        ("cut", "unfinished"),
        ("good", "finished"),
        ("unsaid", "failed"),
    ]
    assert "FAILED cannot be read" in found.runs[-1].cause
    reasons = {each.name: each.reason for each in found.unreadable}
    assert "line 2, is not JSON" in reasons["broken"]
    assert "no seed from 2 to 2" in reasons["foreign"]
    assert "got inf" in reasons["infinite"]
    assert "line 2, is not JSON: it holds a number of more than 308 digits" in reasons["large"]
    assert "308 digits" in reasons["larger"]
    assert "nested too deeply" in reasons["nested"]
    assert "line 2: step 1000 of seed 2 was there before" in reasons["twice"]
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
    directory = written(tmp_path, {0: {1000: 1.0}, 1: {1000: 1.0}}, done=False)
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


def strip_checksums(directory: RunDirectory) -> None:
    """Make a run what it would be if an earlier version had written it."""
    record = json.loads((directory.path / "config.json").read_bytes())
    del record["digest"]
    (directory.path / "config.json").write_text(json.dumps(record))
    done = json.loads((directory.path / "DONE").read_bytes())
    del done["config"]
    (directory.path / "DONE").write_text(json.dumps(done))
    (directory.path / "SHA256SUMS").unlink()


def cut_lines(directory: RunDirectory, start: int, end: int | None = None) -> None:
    lines = (directory.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    del lines[start:end]
    (directory.path / "metrics.jsonl").write_bytes(b"".join(lines))


def test_a_finished_run_whose_metrics_were_changed_is_left_out_where_checksums_tell(tmp_path):
    for name, seed in (("changed", 0), ("cut", 1), ("gone", 2), ("whole", 3), ("mended", 4)):
        written(tmp_path / name, {seed: {1000: 1.0, 2000: 2.0}}, done=name != "mended")
    file = tmp_path / "changed" / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b"2.0", b"9.0"))
    cut_lines(RunDirectory(tmp_path / "cut"), 1)
    (tmp_path / "gone" / "metrics.jsonl").unlink()
    mended = RunDirectory(tmp_path / "mended")
    mended.damage = ["metrics.jsonl has a wrong checksum: some of its numbers may be wrong"]
    mended.finish({"step": 3_000})
    found = read_runs(tmp_path)
    assert [(run.name, run.is_verified, run.losses) for run in found.runs] == [("whole", True, ())]
    reasons = {each.name: each.reason for each in found.unreadable}
    assert "changed: metrics.jsonl is not what it was when the run finished" in reasons["changed"]
    assert "its checksum is another" in reasons["cut"]
    assert "metrics.jsonl is missing" in reasons["gone"]
    assert "some of its numbers may be wrong" in reasons["mended"]


def test_steps_that_a_seed_lacks_do_not_shorten_the_curve_of_the_others_and_are_said(tmp_path):
    steps = {1000: 1.0, 2000: 2.0, 3000: 3.0}
    two = written(tmp_path / "two", {0: steps, 1: steps})
    hole = written(tmp_path / "hole", {2: steps})
    short = written(tmp_path / "short", {3: steps})
    other = written(tmp_path / "other", {4: steps})
    for run in (two, hole, short, other):
        strip_checksums(run)
    cut_lines(two, -1)  # seed 1 at step 3000
    cut_lines(hole, 1, 2)
    record = json.loads((hole.path / "config.json").read_text())
    record["config"]["evaluate_every"] = 1000  # all that tells of the step that no seed has
    (hole.path / "config.json").write_text(json.dumps(record))
    cut_lines(short, 0)
    found = read_runs(tmp_path)
    assert not found.unreadable
    assert found.losses == (
        ("hole", "seed 2: no finite evaluation at step 2,000; left out of the curve"),
        ("short", "seed 3: no finite evaluation at step 3,000; left out of the curve and of the last evaluations"),
        ("two", "seed 1: no finite evaluation at step 3,000; left out of the curve and of the last evaluations"),
    )
    assert not any(run.is_verified for run in found.runs)
    cell = found.cells()["qr-dqn", ENV]
    assert cell.curve is not None
    assert cell.last is not None
    assert cell.curve.seeds == (0, 4)
    np.testing.assert_array_equal(cell.curve.steps, [1000, 2000, 3000])
    assert cell.last.seeds == (0, 2, 4)
    np.testing.assert_array_equal(cell.last.steps, [3000])


def test_where_all_seeds_lack_something_the_last_evaluations_count_alone(tmp_path):
    for seed in (0, 1):
        written(tmp_path / str(seed), {seed: {1000: 1.0, 2000: None, 3000: 3.0 + seed}})
    cell = read_runs(tmp_path).cells()["qr-dqn", ENV]
    assert cell.curve is None
    assert cell.last is not None
    np.testing.assert_array_equal(cell.last.returns, [[3.0], [4.0]])
    written(tmp_path / "2", {2: {1000: 1.0, 2000: 2.0, 3000: 3.0}})
    cell = read_runs(tmp_path).cells()["qr-dqn", ENV]
    assert cell.curve is not None
    assert cell.curve.seeds == (2,)
    np.testing.assert_array_equal(cell.curve.steps, [1000, 2000, 3000])


def test_an_unfinished_run_has_a_gap_where_a_seed_is_behind_by_more_than_its_newest_step(tmp_path):
    written(tmp_path / "a", {0: {1000: 1.0, 2000: 2.0, 3000: 3.0}, 1: {1000: 1.0, 2000: 2.0}}, done=False)
    written(tmp_path / "b", {2: {1000: 1.0, 2000: 2.0, 3000: 3.0}, 3: {1000: 1.0}}, done=False)
    found = read_runs(tmp_path)
    assert found.losses == (
        ("b", "seed 3: no finite evaluation at step 2,000; left out of the curve and of the last evaluations"),
    )
    curve = found.cells()["qr-dqn", ENV].curve
    assert curve is not None
    assert (curve.seeds, curve.steps.tolist()) == ((0, 1, 2), [1000, 2000])


def test_damaged_times_do_not_cost_the_returns(tmp_path):
    for name, seed in (("verified", 0), ("zero", 1)):
        run = written(tmp_path / name, {seed: {3000: 1.0}}, done=False)
        run.append_timing({"step": 3000, "time/fps": 10.0})
        run.finish({"step": 3000})
        (run.path / "timing.jsonl").write_text('{"step": 10, "time/fps": 0}\n')
    strip_checksums(RunDirectory(tmp_path / "zero"))
    found = read_runs(tmp_path)
    assert [(run.steps_per_second, run.seconds, run.evaluations[run.config.seed]) for run in found.runs] == [
        (None, 0.0, {3000: 1.0})
    ] * 2
    assert [name for name, _ in found.losses] == ["verified", "zero"]
    assert "timing.jsonl is not what it was" in found.losses[0][1]
    assert (
        "zero/timing.jsonl, line 1, has no step ≥ 0 or no time/fps above 0; no time of it counts" in found.losses[1][1]
    )


def test_an_end_that_cannot_be_read_or_is_of_an_earlier_step_is_said(tmp_path):
    for name, seed, text in (("broken", 0, "{"), ("early", 1, '{"step": 500}'), ("strange", 2, '{"damage": 5}')):
        run = written(tmp_path / name, {seed: {1000: 1.0}})
        (run.path / "DONE").write_text(text)
    found = read_runs(tmp_path)
    assert [(run.state, run.is_verified, run.gaps) for run in found.runs] == [("finished", False, ())] * 3
    assert "DONE cannot be read" in found.losses[0][1]
    assert found.losses[1][1] == "DONE is of step 500, and the configuration of 1,000 steps"
    assert found.losses[2][1] == "5"


def test_steps_and_seeds_are_counted_before_anything_is_made_of_them(tmp_path):
    for name, field, value in (("seeds", "num_seeds", 3 * 10**8), ("steps", "steps", 10**300)):
        run = written(tmp_path / name, {0: {1000: 1.0}})
        strip_checksums(run)
        record = json.loads((run.path / "config.json").read_text())
        record["config"][field] = value
        (run.path / "config.json").write_text(json.dumps(record))
    far = written(tmp_path / "far", {1: {1000: 1.0}})
    strip_checksums(far)
    record = json.loads((far.path / "config.json").read_text())
    record["config"] |= {"steps": 2 * 10**9, "evaluate_every": 1}
    (far.path / "config.json").write_text(json.dumps(record))
    found = read_runs(tmp_path)
    assert "num_seeds must be at most 10,000, got 300000000" in found.unreadable[0].reason
    assert "steps must be at most 2,000,000,000, got one with 301 digits" in found.unreadable[1].reason
    (gap,) = found.runs[0].gaps
    assert (gap.first, gap.missing) == (1, 2 * 10**9 - 1)


def test_names_that_no_file_could_hold_become_escapes(tmp_path):
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/odd\xff\x1b"))
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    written(odd / "good", {0: {1000: 1.0}})
    (odd / "config").mkdir()
    (odd / "config" / "config.json").write_text('{"config": "\\ud800"}')
    found = read_runs(tmp_path)
    assert found.runs[0].name == "odd\\udcff\\x1b/good"
    assert "surrogates not allowed" in found.unreadable[0].reason
    found.unreadable[0].reason.encode()


def test_an_error_that_nobody_thought_of_leaves_one_run_out(tmp_path):
    run = written(tmp_path / "bad", {0: {1000: 1.0}})
    written(tmp_path / "good", {1: {1000: 1.0}})
    run.path.joinpath("metrics.jsonl").unlink()
    run.path.joinpath("metrics.jsonl").mkdir()
    found = read_runs(tmp_path)
    assert [each.name for each in found.runs] == ["good"]
    assert explain(RecursionError("too deep"), tmp_path, "x").reason == "a file is damaged: RecursionError('too deep')"
