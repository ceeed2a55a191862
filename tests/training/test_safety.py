"""What happens to a run when something happens to its process, its disk or its numbers."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qemrl.cli.app import main
from qemrl.replay import HostReplay
from qemrl.replay.config import ReplayConfig
from qemrl.training import checkpoint
from qemrl.types import EnvSpec, Step

QEMRL = Path(sys.executable).parent / "qemrl"
SHORT = (
    *("--steps", "2000", "--num-seeds", "2", "--log-every", "100"),
    *("--evaluate-every", "550", "--checkpoint-every", "230", "--evaluation-episodes", "2", "--batch-size", "16"),
)
TINY = ("--network.widths", "16", *SHORT)
HOST = ("qem-dqn", "--env", "CartPole-v1", "--replay.prioritized", "--replay.n-step", "3", *TINY)
COMPILED = ("td3", "--env", "jax/pendulum", "--network.policy-widths", "16", "--learning-starts", "300", *SHORT)
"""The other loop, the other family of agents. Sweeps of `dqn` in the compiled loop are killed in test_sweep.py."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def start(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    # The compiled programs are the same in all processes: they are compiled once.
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        [QEMRL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def stop_after(process: subprocess.Popen[str], run: Path, lines: int, number: signal.Signals, delay: float) -> str:
    """What the process says on its standard error when a signal comes `delay` seconds after so many records."""
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
    return said


def damage_newest(run: Path) -> None:
    newest = max((run / "checkpoints").glob("step_*"))
    file = max(newest.glob("*.npy"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def assert_same(run: Path, other: Path) -> None:
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    files = {path.name: path.read_bytes() for path in (run / "evaluations").iterdir()}
    assert files
    assert files == {path.name: path.read_bytes() for path in (other / "evaluations").iterdir()}
    best = {path.relative_to(run): path.read_bytes() for path in (run / "best").rglob("*.*")}
    assert len({path.parent for path in best}) == 1
    assert best == {path.relative_to(other): path.read_bytes() for path in (other / "best").rglob("*.*")}
    left, right = (checkpoint.load_latest(each / "checkpoints") for each in (run, other))
    assert left is not None
    assert right is not None
    assert left.step == right.step == 2000
    assert left.arrays.keys() == right.arrays.keys()
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(array, right.arrays[name], err_msg=name)
    assert (run / "DONE").read_bytes() == (other / "DONE").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "events"),
    [
        (HOST, [(3, signal.SIGKILL), (12, signal.SIGTERM), (21, signal.SIGINT)]),
        (COMPILED, [(3, signal.SIGTERM), (20, signal.SIGKILL)]),
    ],
    ids=["host loop", "compiled loop"],
)
def test_a_run_that_is_killed_stopped_and_damaged_ends_as_if_nothing_had_happened(tmp_path, cache, arguments, events):
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    whole = start(cache, "train", *arguments, "--out", str(quiet))
    said = whole.communicate()
    assert whole.returncode == 0, said
    chance = random.Random(len(events))
    command = ("train", *arguments, "--out", str(stormy))
    for lines, number in events:
        process = start(cache, *command)
        said = stop_after(process, stormy, lines + chance.randrange(3), number, chance.uniform(0, 0.1))
        if number != signal.SIGKILL:
            assert f"resume: qemrl resume {stormy}" in said
        command = ("resume", str(stormy))
    damage_newest(stormy)
    last = start(cache, *command)
    said = last.communicate()[1]
    assert last.returncode == 0, said
    assert "passing over a damaged checkpoint" in said
    assert_same(stormy, quiet)


SPOILT = """
import gymnasium, numpy as np

class Spoilt(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), float("nan") if self.steps == 50 else 0.0, False, False, {}

gymnasium.register("Spoilt-v0", entry_point=Spoilt)
"""


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    said = capsys.readouterr().err
    assert caught.value.code == 1, said
    return said


def test_a_reward_that_is_not_finite_stops_the_run_with_its_step_and_state(tmp_path, monkeypatch, capsys):
    (tmp_path / "spoilt_env.py").write_text(SPOILT)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    intervals = ("--log-every", "20", "--evaluate-every", "200", "--checkpoint-every", "40", "--steps", "200")
    said = fails(capsys, "dqn", "--env", "spoilt_env:Spoilt-v0", "--network.widths", "4", *intervals, "--out", str(run))
    assert "step 49: the reward of environment 0 (spoilt_env:Spoilt-v0) is nan" in said
    assert checkpoint.load_latest(run / "failed") is not None
    kept = checkpoint.load_latest(run / "checkpoints")
    assert kept is not None
    assert kept.step == 40
    assert not (run / "DONE").exists()


@pytest.mark.parametrize("env", ["CartPole-v1", "jax/cartpole"])
def test_a_loss_that_is_not_finite_stops_the_run_in_both_loops(tmp_path, capsys, env):
    run = tmp_path / "run"
    intervals = ("--log-every", "100", "--evaluate-every", "400", "--checkpoint-every", "100", "--steps", "400")
    learning = ("--learning-starts", "104", "--optimizer.learning-rate", "1e30", "--evaluation-episodes", "1")
    said = fails(capsys, "dqn", "--env", env, "--network.widths", "4", *intervals, *learning, "--out", str(run))
    assert "seed 0 met a number that is not finite at step 1" in said
    assert "--optimizer.learning-rate" in said
    assert checkpoint.load_latest(run / "failed") is not None
    kept = checkpoint.load_latest(run / "checkpoints")
    assert kept is not None
    assert kept.step == 100


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint_whole(tmp_path, capsys):
    run = tmp_path / "run"
    intervals = ("--log-every", "400", "--evaluate-every", "4000", "--checkpoint-every", "400", "--steps", "4000")
    settings = ("--network.widths", "4", "--learning-starts", "100000")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, before[1]))  # of 16 bytes for each observation
    try:
        said = fails(capsys, "dqn", "--env", "CartPole-v1", *settings, *intervals, "--out", str(run))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the checkpoint of step 1200 could not be written" in said
    assert "make room on the disk, then resume the run" in said
    kept = checkpoint.load_latest(run / "checkpoints")
    assert kept is not None
    assert kept.step == 800


@pytest.mark.parametrize("stacked", [1, 2])
def test_a_cut_keeps_two_episodes_apart_in_one_environment_and_not_in_the_other(stacked):
    shape = (2,) if stacked == 1 else (2, 1)
    replay = HostReplay(EnvSpec("x", shape, "float32", 2, stacked_frames=stacked), 2, ReplayConfig(20, n_step=3), 1.0)
    nothing = np.zeros(2, bool)

    def add(time: int) -> None:
        # stacks of the last two numbers
        observation = np.array([[time - 1, time]] * 2, np.float32).reshape(2, *shape)
        replay.add(Step(observation, np.zeros(2, int), np.ones(2), nothing, nothing, observation + np.float32(1)))

    replay.end_episodes(np.array([True, False]))  # of nothing: nothing happens
    add(1)
    add(2)
    replay.end_episodes(np.array([True, False]))
    add(11)
    add(12)
    batch, _ = replay.sample(np.arange(8, dtype=np.uint32))
    np.testing.assert_array_equal(batch.reward.reshape(4, 2), [[2, 3], [1, 3], [2, 2], [1, 1]])
    np.testing.assert_array_equal(batch.discount, np.ones(8))
    np.testing.assert_array_equal(batch.next_observation.reshape(4, 2, 2)[:, 0], [[2, 3], [2, 3], [12, 13], [12, 13]])
    np.testing.assert_array_equal(batch.observation.reshape(4, 2, 2)[:, 0], [[0, 1], [1, 2], [10, 11], [11, 12]])
