"""The newest lines of a run that is going on: what they say, and what is passed over."""

import os

import pytest

from qemrl.experiments.records import Progress, read_progress
from qemrl.experiments.worker import FAILED, cause_of_failure


def test_progress_is_read_from_the_newest_lines_that_say_something(tmp_path):
    assert read_progress(tmp_path) is None
    (tmp_path / "timing.jsonl").write_text('{"step": 10, "time/fps": 5.0}\n{"step": 20, "time/fps": 6.0}\n{"st')
    assert read_progress(tmp_path) == Progress(20, 6.0, None)
    metrics = '{"step": 20, "seed": 0, "eval/mean_reward": 1.5}\n{"step": 30, "seed": 0, "rollout/ep_rew_mean": 9}\n'
    (tmp_path / "metrics.jsonl").write_text(metrics)
    assert read_progress(tmp_path) == Progress(30, 6.0, 1.5)
    (tmp_path / "metrics.jsonl").write_text('{"step": 20, "seed": 0, "eval/mean_reward": 0.0}\n')
    assert read_progress(tmp_path) == Progress(20, 6.0, 0.0)


@pytest.mark.parametrize(
    "line", ["[" * 20_000, "9" * 400, '{"step": "x", "time/fps": "y"}', '{"step": -1}', "[]", "null"]
)
def test_lines_that_make_no_sense_are_passed_over(tmp_path, line):
    (tmp_path / "timing.jsonl").write_text(f'{{"step": 10, "time/fps": 5.0}}\n{line}\n')
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 10, "eval/mean_reward": 2}}\n{line}\n')
    assert read_progress(tmp_path) == Progress(10, 5.0, 2)
    (tmp_path / "timing.jsonl").write_text('{"step": 10, "time/fps": {}}\n')
    assert read_progress(tmp_path) == Progress(10, None, 2)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    for name in ("timing.jsonl", FAILED):
        os.mkfifo(tmp_path / name)
    assert read_progress(tmp_path) is None
    assert "cannot be read" in (cause_of_failure(tmp_path) or "")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"cause": "\\ud800"}', "[]", "{}", "9" * 5000, "{"])
def test_a_cause_that_cannot_be_read_is_said_to_be_unknown(tmp_path, text):
    assert cause_of_failure(tmp_path) is None
    (tmp_path / FAILED).write_text(text)
    assert cause_of_failure(tmp_path) == f"unknown: {tmp_path / FAILED} cannot be read"
