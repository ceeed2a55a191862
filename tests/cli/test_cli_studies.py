"""The commands `demo`, `compare` and `show`, in real processes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qemrl import api
from qemrl.agents.value import ValueConfig
from qemrl.exploration import EpsilonGreedy

QEMRL = Path(sys.executable).parent / "qemrl"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    if arguments[0] == "demo":
        del environment["XLA_FLAGS"]  # of the tests: users see the demo first, and its programs are as they get them
    return subprocess.run([QEMRL, *arguments], capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_the_demo_trains_draws_and_does_not_train_again(tmp_path):
    first = run("demo", "--steps", "1200", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "step 1,200 of 1,200" in first.stdout
    again = run("demo", "--steps", "1200", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "step 1,200 of 1,200" not in again.stdout
    for preset in ("qr-dqn", "qem-dqn"):
        assert f"{preset}: finished already, in demo/{preset}" in again.stdout
        assert (tmp_path / "demo" / preset / "DONE").exists()
    for result in (first, again):
        assert "minatar/breakout, 1,200 steps, 2 seeds with 95% intervals" in result.stdout
        assert "Minus qr-dqn, by pairs of seeds" in result.stdout
        assert "wrote demo/figure.png" in result.stdout
    numbers = json.loads((tmp_path / "demo" / "comparison.json").read_text())
    assert [run["preset"] for run in numbers["runs"]] == ["qr-dqn", "qem-dqn"]
    with (tmp_path / "demo" / "data.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    evaluated = {(row["preset"], row["seed"], row["step"]) for row in rows if row["eval/mean_reward"]}
    assert len(evaluated) == 2 * 2 * 12
    agent = api.load(tmp_path / "demo" / "qr-dqn", seed=1).config.agent
    assert isinstance(agent, ValueConfig)
    assert isinstance(agent.exploration, EpsilonGreedy)
    assert agent.exploration.over_steps == 300


def test_show_prints_the_numbers_and_writes_the_figure(tmp_path):
    small = {"network.widths": (16,), "replay.capacity": 400}
    api.make("qem-dqn", env="CartPole-v1", overrides=small).save(tmp_path / "run")
    result = run("show", "run", "--moments", "3", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "qem-dqn on CartPole-v1, seed 0: an episode of" in result.stdout
    for word in ("Q mean", "Q QEM", "R²", "crossing"):
        assert word in result.stdout
    for name in ("figure.png", "figure.svg", "data.csv", "distributions.csv"):
        assert f"wrote run/show/{name}" in result.stdout
        assert (tmp_path / "run" / "show" / name).stat().st_size > 0


def test_an_agent_without_distributions_is_said_to_have_none(tmp_path, capsys, monkeypatch):
    from qemrl.cli import app as cli

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    small = {"network.widths": (16,), "replay.capacity": 400}
    api.make("dqn", env="CartPole-v1", overrides=small).save(tmp_path / "run")
    cli.main(["show", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert "A scalar agent has no return distribution" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"figure.png", "figure.svg", "data.csv"}


def test_the_help_of_compare_names_its_options_and_those_of_train(capsys, monkeypatch):
    from qemrl.cli import app as cli

    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["compare", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "qemrl compare PRESET PRESET",
        "--out DIR",
        "--num-seeds K",
        "--settings NAME",
        "setting of `qemrl train`",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "qr-dqn", "--env", "probe/1", "--steps", "10", "--out", "o"), "two or more different presets"),
        (("compare", "qr-dqn", "qem-dq", "--env", "probe/1", "--steps", "10", "--out", "o"), "did you mean 'qem-dqn'"),
        (("compare", "qr-dqn", "qem-dqn", "--out", "o"), "there is no run in o/qr-dqn yet; to train it, say --env"),
        (("compare", "qr-dqn", "dqn", "--env", "prob/1", "--steps", "9", "--out", "o"), "prob/1"),
        (("compare", "qr-dqn", "dqn", "--env", "probe/1", "--steps", "10"), "name a folder for the comparison: --out"),
        (("compare", "dqn", "c51", "--env", "probe/1", "--steps", "x", "--out", "o"), "steps: expects int | None"),
        (
            ("compare", "c51", "dqn", "--env", "probe/1", "--steps", "9", "--out", "o", "--batchsize", "8"),
            "c51: there is no setting 'batchsize' here; did you mean 'batch_size'?",
        ),
        (("show", "nowhere"), "nowhere holds no run"),
        (("show", "nowhere", "--moments", "0"), "--moments must be between 1 and 12; got 0"),
        (("demo", "--steps", "0"), "steps must be at least 1, got 0"),
    ],
)
def test_a_mistake_gets_a_hint_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    from qemrl.cli import app as cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(SystemExit) as exit_:
        cli.main(list(arguments))
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
