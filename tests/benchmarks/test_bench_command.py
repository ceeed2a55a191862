"""The command `python -m benchmarks`: help, mistakes, and one benchmark from end to end."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import estimator

ROOT = Path(__file__).parents[2]


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_help_names_benchmarks_and_options():
    for arguments, expected in {
        ("--help",): ["estimator", "tabular", "value", "actor-critic", "page", "--seconds", "--again"],
        ("tabular", "--help"): ["--seeds", "--steps", "--json-file"],
        ("estimator", "--help"): ["--rounds", "--no-pytorch", "--json-file"],
    }.items():
        result = run(*arguments)
        assert result.returncode == 0, result.stderr
        for word in expected:
            assert word in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("estimatr",), "there is no benchmark `estimatr`; did you mean `python -m benchmarks estimator`?"),
        (("xyzzy",), "there is no benchmark `xyzzy`; choose from estimator, tabular"),
        (("estimator", "--rounds", "0"), "--rounds must be at least 1; got 0"),
        (("tabular", "--steps", "15"), "--steps must be a multiple of 10; got 15"),
        (("--seconds", "0"), "--seconds must be positive; got 0"),
    ],
)
def test_a_mistake_gets_a_hint_and_exit_code_2(arguments, message, tmp_path):
    result = run(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_one_benchmark_prints_and_writes_every_ratio(tmp_path):
    result = run("estimator", "--rounds", "2", "--no-pytorch", "--json-file", "deep/bench.json", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "deep" / "bench.json").read_text())
    lines = report["comparisons"]
    assert {(line["levels"], tuple(line["shape"]), line["timed"]) for line in lines} == {
        ("fixed", (32, 18, 200), "called"),
        ("fixed", (32, 18, 200), "chained"),
        ("fixed", (256, 32), "called"),
        ("fixed", (256, 32), "chained"),
        ("sampled", (256, 32), "called"),
        ("sampled", (256, 32), "chained"),
    }
    for line in lines:
        assert line["ratio"] > 0
        assert f"{line['ratio']:.3f}" in result.stdout
    assert sum(line["limit"] is not None for line in lines) == 4


def test_calls_on_tensors_are_timed_with_one_thread_and_keep_to_limits_of_time_or_of_a_ratio():
    import torch

    threads = torch.get_num_threads()
    lines = {line.what: line for line in estimator.time_torch(rounds=1, compiled=False)}
    assert torch.get_num_threads() == threads
    assert [line.most for line in lines.values()] == ["1.5", "15 µs", "250 µs"]
    slow = replace(lines["QEM, random levels"], microseconds=251.0)
    assert slow.holds is False
    assert replace(slow, microseconds=249.0).holds
    assert replace(lines["QEM, fixed levels"], ratio=1.6).holds is False
