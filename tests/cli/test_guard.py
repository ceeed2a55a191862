"""What stands between commands and the terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qemrl.cli.app import main
from qemrl.cli.guard import Outlet, guard
from qemrl.envs.gym.host_envs import make_host_envs
from qemrl.training.checkpoint import CheckpointError
from qemrl.training.config import configure
from qemrl.training.machine import MemoryShortageError
from qemrl.training.train import catch_stop_signals

ENVIRONMENT = """
import gymnasium

class Broken(gymnasium.Env):
    def __init__(self):
        raise KeyError("no such model")

gymnasium.register("Broken-v0", Broken)

class Late(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, raises):
        self.raises = raises

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low, {}

    def step(self, action):
        if self.raises:
            raise KeyError("no such state")
        return self.observation_space.low, None, False, False, {}

gymnasium.register("Late-v0", Late)
"""
RUN = (
    *("train", "dqn", "--env", "probe/1", "--network.widths", "8"),
    *("--learning-starts", "8", "--batch-size", "8", "--log-every", "400", "--evaluate-every", "400"),
    *("--checkpoint-every", "400", "--evaluation-episodes", "1", "--out", "run"),
)


def ends(capsys, *arguments: str) -> tuple[object, str]:
    """The exit code of a command, and what it says on its standard error."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code, capsys.readouterr().err


def raise_error(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("seven is too many"), None),
        (MemoryShortageError("too large"), 2),
        (FileNotFoundError(2, "No such file", "[red]x[/red]"), 2),
        (MemoryError("8 GB"), 2),
        (CheckpointError("damaged"), 1),
        (TypeError("a defect"), None),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_a_defect_its_traceback(error, code, capsys):
    with pytest.raises(type(error) if code is None else SystemExit) as end, guard():
        raise_error(error)
    if code is not None:
        assert end.value.code == code
        said = capsys.readouterr().err
        assert said.startswith("qemrl: ")
        assert said.count("\n") == 1


def test_a_value_error_of_this_package_is_a_message_and_one_of_another_package_a_defect(capsys):
    with pytest.raises(SystemExit) as end, guard():
        configure("qem-dgn", "CartPole-v1", 10)
    assert end.value.code == 2
    assert "did you mean 'qem-dqn'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="do not sum to 1"), guard():
        np.random.default_rng(0).choice(2, p=[0.1, 0.1])


def test_code_of_an_environment_that_raises_is_named_as_such(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken_env.py").write_text(ENVIRONMENT)
    with pytest.raises(SystemExit) as end, guard():
        make_host_envs("broken_env:Broken-v0", 1)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "the environment raised KeyError: 'no such model'" in said
    assert f"{tmp_path / 'broken_env.py'}, line 6" in said
    code, said = ends(capsys, "train", "dqn", "--env", "broken_env:Broken-v0", "--out", "run")
    assert (code, "the environment raised" in said) == (2, True)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        ("true", "the environment raised KeyError: 'no such state'"),
        ("false", "step 1: step of environment 0: the reward must be a number"),
    ],
)
def test_what_an_environment_does_wrong_in_the_middle_of_a_run_stops_it(raises, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken_env.py").write_text(ENVIRONMENT)
    words = ("--env", "broken_env:Late-v0", "--env-kwargs.raises", raises, "--network.widths", "8", "--out", "run")
    code, told = ends(capsys, "train", "dqn", *words, "--steps", "8", "--learning-starts", "8")
    assert (code, said in told) == (1, True), told
    assert Path("run/config.json").exists()


def write_run(env: str, **settings: object) -> None:
    """A run that has not begun, of an environment that cannot be made here."""
    from qemrl.config.serialize import to_json
    from qemrl.training.run_directory import RunDirectory

    config = configure("dqn", "CartPole-v1", 10, overrides=settings)
    RunDirectory.create(Path("run"), {**to_json(config), "env": env}, {})


@pytest.mark.parametrize(
    ("env", "settings", "said"),
    [
        ("Unknown-v0", {}, "unknown environment"),
        ("no_such_module:X-v0", {}, "needs the module 'no_such_module'"),
        ("CartPole-v1", {"replay.capacity": 2_000_000_000}, "GB of memory"),
    ],
)
def test_resume_and_evaluate_say_what_is_wrong_with_a_run_in_the_same_way(
    env, settings, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_run(env, **settings)
    monkeypatch.setattr("qemrl.training.machine.available_bytes", lambda: 10**9)
    code, told = ends(capsys, "resume", "run", "--allow-imports", "--steps", "20")
    assert (code, said in told) == (2, True), told
    assert json.loads(Path("run/config.json").read_bytes())["config"]["steps"] == 10
    code, told = ends(capsys, "evaluate", "run", "--allow-imports")
    assert code == 2, told


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_every_signal_that_asks_to_stop_is_noted_once_and_its_handler_comes_back(number):
    before = signal.getsignal(number)
    with catch_stop_signals() as signals:
        signal.raise_signal(number)
        assert signals == [number]
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_stop_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals == []
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_outlet_falls_silent_when_its_reader_is_gone():
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        outlet = Outlet(stream)
        os.close(read)
        print("nobody reads this", file=outlet, flush=True)
        print("nor this", file=outlet, flush=True)
        assert outlet.writable()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def test_a_run_whose_readers_go_away_is_finished(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "qemrl", *RUN, "--steps", "800"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    assert process.wait(120) == 0
    assert (tmp_path / "run" / "DONE").exists()


def wait_for_records(process: subprocess.Popen[bytes], metrics: Path, leader: int) -> None:
    """Read what the terminal shows until there are records."""
    os.set_blocking(leader, False)
    until = time.monotonic() + 120
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None
        assert time.monotonic() < until
        try:
            os.read(leader, 65536)
        except BlockingIOError:
            time.sleep(0.02)


def test_a_closed_terminal_does_not_lose_a_run(tmp_path):
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "qemrl", *RUN, "--steps", "100000000"],
        cwd=tmp_path,
        env=environment(),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        wait_for_records(process, tmp_path / "run" / "metrics.jsonl", leader)
        os.close(leader)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))
    assert not (tmp_path / "run" / "DONE").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--num-envs", "0"), "num_envs must be at least 1, got 0"),
        (("--num-envs", "1e9"), "num_envs must be at most 100,000, got 1000000000"),
        (("--num-seeds", "300000000"), "num_seeds must be at most 10,000, got 300000000"),
        (("--network.widths", "0"), "network: widths must be at least 1 each, got 0"),
        (("--network.widths", "-3"), "network: widths must be at least 1 each, got -3"),
        (("--network.widths", "1000000000"), "the state of the networks of qem-dqn on probe/1 needs"),
        (("--representation.num-quantiles", "1e9"), "GB of memory"),
        (("--batch-size", "1e9"), "an update of qem-dqn on probe/1 needs"),
        (("--batch-size", "1e12"), "batch_size must be at most 2,000,000,000, got 1000000000000"),
        (("--replay.capacity", "1e15"), "replay.capacity must be at most 2,000,000,000"),
        (("--replay.n-step", "100000"), "n_step must be at least 1 and at most 1,000, got 100000"),
        (("--steps", "1e30"), "steps: a whole number of 31 digits is too large"),
        (("--steps", "9" * 400), "steps: a whole number of 400 digits is too large"),
        (("--seed", "-1"), "seeds must lie in [0, 2³²), got -1"),
        (("--seed", str(2**63)), "seed: a whole number of 19 digits is too large"),
        (("--discount", "nan"), "discount: nan is not finite"),
        (("--optimizer.epsilon", "1e300"), "optimizer.epsilon must be finite in float32, got 1e+300"),
        (("--evaluation-episodes", "1e9"), "evaluation_episodes must be at most 100,000"),
        (("--env", ".x:y"), "'.x:y' names no environment"),
        (("--env", ":"), "':' names no environment"),
        (("--env", "module:"), "'module:' names no environment"),
        (("--config", "/dev/zero"), "--config takes a TOML file, and /dev/zero is a device"),
        (("--",), "`--` has no name"),
        (("--=", "3"), "`--=` has no name"),
        (("--.x", "3"), "`--.x` has no name"),
        (("--out", "a\udcff"), r"'a\udcff' holds bytes that are no text in UTF-8"),
        (("--out", "a\0b"), "holds bytes that are no text"),
        (("--out", "x" * 300), "choose another path"),
        (("--estimator", "[/red]"), "there is no estimator '[/red]'"),
    ],
)
def test_a_hostile_value_is_named_before_anything_is_made(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qemrl.training.machine.available_bytes", lambda: 10**9)
    monkeypatch.setattr("qemrl.training.loops.CompiledLoop", lambda *_: pytest.skip("a loop is made"))
    code, told = ends(capsys, "train", "qem-dqn", "--env", "probe/1", "--steps", "8", *arguments)
    assert (code, said in told) == (2, True), told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fits", "--trials", "1000000000000"), "--trials must be at most 1,000,000,000"),
        (("fits", "--quantiles", "1000000000"), "--quantiles must be at most 10,000"),
        (("fits", "--noise", "nan"), "--noise must be finite"),
        (("fits", "--seed", str(2**63)), "--seed must be below 2³²"),
        (("reproduce", "table-4", "--seed", "9" * 400), "--seed must be below 2³²"),
        (("evaluate", "run", "--episodes", "1000000000"), "--episodes must be at most 100,000"),
        (("show", "run", "--episode-seed", str(2**63)), "--episode-seed must be below 2³²"),
        (("demo", "--steps", "1e30"), "too large"),
        (("compare", "dqn", "c51", "--env", "probe/1", "--steps", "8", "--out", "o", "--num-seeds", "1e9"), "10,000"),
        (("resume", "[red]x[/red]"), "[red]x[/red] holds no run"),
        (("[red]x[/red]",), "`qemrl` has no command `[red]x[/red]`"),
    ],
)
def test_a_hostile_value_of_another_command_is_named(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, told = ends(capsys, *arguments)
    assert (code, said in told) == (2, True), told
    assert not list(tmp_path.iterdir())
