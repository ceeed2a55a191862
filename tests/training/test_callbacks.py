"""Callbacks and trackers, `learn` with a run directory, and the checkpoints that can be loaded."""

import io
import json
import os
import re
import shutil
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import qemrl
from qemrl.cli.app import main
from qemrl.training import checkpoint
from qemrl.training.callbacks import HOOKS, Callback, CallbackList, ProgressBar
from qemrl.training.config import configure
from qemrl.training.loops import make_loop
from qemrl.training.run_directory import RunDirectory, RunExistsError
from qemrl.training.tensorboard import TensorBoardCallback
from qemrl.training.train import train
from qemrl.training.wandb import WandbCallback, read_stored

# Intervals none of which divides another.
TINY = {"network.widths": (8,), "batch_size": 8, "learning_starts": 64, "representation.num_quantiles": 8} | {
    "log_every": 100,
    "evaluate_every": 150,
    "checkpoint_every": 70,
    "evaluation_episodes": 2,
}
OPTIONS = [
    word for name, value in TINY.items() for word in (f"--{name}", "8" if name == "network.widths" else str(value))
]


def make(**further: Any) -> qemrl.TrainableAgent:
    return qemrl.make("qem-dqn", env="CartPole-v1", seed=3, overrides=TINY | further)


class Told:
    """A callback that keeps what it is told, and stops a run at a hook."""

    def __init__(self, stop_at: str = "", step: int = 0) -> None:
        self.events: list[tuple[str, Any]] = []
        self.stop_at, self.step = stop_at, step

    def _answer(self, hook: str, step: int) -> np.bool_ | None:
        self.events.append((hook, step))
        return np.bool_(False) if hook == self.stop_at and step >= self.step else None

    def on_record(self, step, metrics):
        assert metrics["step"] == step
        assert metrics["time/fps"] > 0
        return self._answer("record", step)

    def on_evaluation(self, step, result):
        assert len(result.returns) == len(result.lengths) == 2
        assert (result.mean, result.std) == (result.returns.mean(), result.returns.std())
        return self._answer("evaluation", step)

    def on_checkpoint(self, step, path):
        assert checkpoint.list_steps(path.parent)[-1] == step
        return self._answer("checkpoint", step)

    def on_end(self, reason):
        self.events.append(("end", reason))

    def steps(self, hook: str) -> list[int]:
        return [step for name, step in self.events if name == hook]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """An agent that has learned in a folder, in two parts, and what a callback was told of the first."""
    folder, told = tmp_path_factory.mktemp("learned") / "run", Told()
    agent = make().learn(400, folder, callback=told, tensorboard=True, progress=False)
    first = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "DONE")}
    return agent.learn(200, out=folder, progress=False), folder, told, first


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run that do not depend on the clock or on who ran it."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    others = ("timing.jsonl", "SHA256SUMS", "lock", "config.json", "tensorboard")
    return {str(name): path.read_bytes() for name, path in files.items() if name.parts[0] not in others}


def test_learn_and_the_command_write_the_same_bytes(learned, tmp_path):
    _, folder, _, first = learned
    other = tmp_path / "run"
    arguments = ["--env", "CartPole-v1", "--seed", "3", *OPTIONS, "--out", str(other)]
    main(["train", "qem-dqn", "--steps", "4e2", *arguments])
    assert {name: (other / name).read_bytes() for name in first} == first
    main(["resume", str(other), "--steps", "6e2"])
    assert contents(other) == contents(folder)
    assert {"DONE", "metrics.jsonl"} < set(contents(folder))
    assert [json.loads((each / "config.json").read_text())["config"] for each in (folder, other)] == [
        json.loads((folder / "config.json").read_text())["config"]
    ] * 2


def test_intervals_need_not_divide_one_another(learned):
    _, folder, told, _ = learned
    assert told.steps("record") == [100, 150, 200, 300, 400]
    assert told.steps("evaluation") == [150, 300, 400]
    assert told.steps("checkpoint") == [70, 140, 210, 280, 350, 400]
    assert told.events[-1] == ("end", "finished")
    assert told.events.index(("record", 150)) + 1 == told.events.index(("evaluation", 150))
    records = RunDirectory(folder).read_metrics()
    assert [record["step"] for record in records] == [100, 150, 200, 300, 400, 450, 500, 600]
    # A checkpoint between two records takes nothing away from the sums of the second.
    episodes = [(record["rollout/episodes"], record["rollout/ep_len_mean"]) for record in records]
    assert sum(count * (length or 0) for count, length in episodes) > 600 - 100
    assert [record["train/updates"] for record in records] == [100 - 64, 50, 50, 100, 100, 50, 50, 100]
    with pytest.raises(ValueError, match=r"evaluate_every must be a multiple .*, 4, such as 100 or 104; got 102"):
        configure("dqn", "minatar/breakout", 100, overrides={"evaluate_every": 102})


def test_the_best_checkpoint_is_that_of_the_best_evaluation(learned, capsys):
    agent, folder, _, _ = learned
    means = {record["step"]: record.get("eval/mean_reward", -1.0) for record in RunDirectory(folder).read_metrics()}
    best = max(means, key=lambda step: means[step])
    loaded = qemrl.load(folder, checkpoint="best")
    assert loaded.steps == best
    assert loaded.evaluate(2).mean == means[best]
    assert not list((folder / "best").rglob("*replay*"))
    with pytest.raises(ValueError, match="parameters only, which can predict but not go on learning"):
        loaded.learn(100, progress=False)
    main(["evaluate", str(folder), "--episodes", "2", "--checkpoint", "best", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["seeds"][0]["mean"]) == (best, means[best])
    older = qemrl.load(folder, checkpoint=560)
    assert older.steps == 560
    older.learn(40, progress=False)  # all that it needs is there
    np.testing.assert_array_equal(older.q(np.zeros(4)), agent.q(np.zeros(4)))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (70, r"has no checkpoint of step 70; there are: \d+ \(best\), 600, 560"),
        ("newest", r"checkpoint \(last, best, or the step of one\): expects int, got 'newest'"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(learned, wanted, message):
    with pytest.raises(ValueError, match=message):
        qemrl.load(learned[1], checkpoint=wanted)


def test_a_run_without_a_best_checkpoint_says_so(learned, tmp_path):
    path = qemrl.load(learned[1]).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"has no best checkpoint: .*; take the last one"):
        qemrl.load(path, checkpoint="best")
    # What was learned before is saved with the agent, and `save` replaces nothing that it need not.
    assert (path / "metrics.jsonl").read_bytes() == (learned[1] / "metrics.jsonl").read_bytes()
    assert {file.name for file in (path / "evaluations").iterdir()} == {
        file.name for file in (learned[1] / "evaluations").iterdir()
    }
    assert learned[0].save(learned[1]) == learned[1]
    assert (learned[1] / "DONE").exists()


def test_a_callback_that_returns_false_stops_the_run_which_is_saved(tmp_path):
    agent = make()
    for hook, at, stops in (("record", 1, 100), ("evaluation", 1, 150), ("checkpoint", 160, 210)):
        told, quiet, run = Told(hook, at), Told(), tmp_path / hook
        assert agent.learn(400, run, callback=[told, quiet], progress=False).steps == stops
        assert told.events[-1] == quiet.events[-1] == ("end", "callback")
        assert quiet.steps("checkpoint")[-1] == stops
        assert not (run / "DONE").exists()
        assert qemrl.load(run).steps == stops
        assert RunDirectory(run).read_metrics()[0]["step"] == 100


def test_what_is_learned_in_memory_is_written_when_there_is_a_folder(learned, tmp_path):
    _, folder, _, _ = learned
    agent = make().learn(400, evaluate_every=150, progress=False)
    assert agent.evaluate(2).seed == 3
    agent.learn(200, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    timed = [record["step"] for record in RunDirectory(tmp_path / "run").read_timing()]
    assert timed == [record["step"] for record in RunDirectory(tmp_path / "run").read_metrics()]


def test_a_run_goes_on_in_its_own_folder_and_in_no_other(learned, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(learned[1], run)
    shutil.copytree(learned[1], other)
    loaded = qemrl.load(run)
    with pytest.raises(RunExistsError, match=r"qemrl.load\('.*other'\).learn\(50, out='.*other'\)"):
        loaded.learn(50, out=other, progress=False)
    behind = qemrl.load(run)
    behind.learn(10, progress=False)
    assert loaded.learn(40, out=run, evaluation_episodes=3, progress=False).steps == 640
    assert len(json.loads((run / "evaluations" / "seed_3_step_000000000640.json").read_text())["returns"]) == 3
    assert (run / "metrics.jsonl").read_bytes().startswith((other / "metrics.jsonl").read_bytes())
    with pytest.raises(RunExistsError, match="holds another run, or this one gone on"):
        behind.learn(10, out=run, progress=False)


def test_an_interrupt_saves_what_is_learned_and_callbacks_hear_of_it(learned, tmp_path):
    class Interrupt(Told):
        def on_record(self, step, metrics):
            del metrics
            if step == 700:
                signal.raise_signal(signal.SIGINT)

    shutil.copytree(learned[1], tmp_path / "run")
    agent, told = qemrl.load(tmp_path / "run"), Interrupt()
    with pytest.raises(KeyboardInterrupt, match="stopped at step 700"):
        agent.learn(1000, out=tmp_path / "run", callback=told, progress=False)
    assert told.events[-1] == ("end", "stopped")
    assert qemrl.load(tmp_path / "run").steps == 700
    assert agent.learn(10, out=tmp_path / "run", progress=False).steps == 710


def test_every_hook_may_be_left_out_and_none_may_be_mistyped():
    class Mistyped:
        def on_records(self, step, metrics):
            del step, metrics

    agent = make()
    for wrong, message in (
        (Mistyped(), f"Mistyped has on_records, which is no hook of a callback; hooks: {', '.join(HOOKS)}"),
        (print, r"a callback is an object with some of the hooks .*; got <built-in function print>"),
        (Told, "got the class Told, not an object"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.learn(100, callback=wrong, progress=False)
    assert agent.steps == 0
    assert HOOKS == ("on_start", "on_progress", "on_record", "on_evaluation", "on_checkpoint", "on_end")


def test_every_callback_hears_the_end_and_progress_can_stop_a_run(monkeypatch):
    class Failing:
        def on_end(self, reason):
            raise RuntimeError(reason)

    class Impatient(Callback):
        def on_progress(self, step):
            return step < 5

    monkeypatch.setattr("qemrl.training.train.PROGRESS_EVERY", 0.0)
    told = Told()
    loop = make_loop(make().config)
    with pytest.raises(RuntimeError, match="callback"):
        train(configure("qem-dqn", "CartPole-v1", 100, overrides=TINY), None, [Failing(), told, Impatient()], loop)
    assert told.events == [("end", "callback")]
    assert 5 <= loop.step < 100


def test_what_is_wrong_is_said_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="name one with out="):
        make().learn(100, tensorboard=True)
    with pytest.raises(ValueError, match=r"steps: expects int, got 1\.5"):
        make().learn(1.5, out)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    asked: tuple[dict[str, Any], ...] = ({"tensorboard": True}, {"wandb": "p"})
    for further in asked:
        with pytest.raises(ValueError, match=r"needs a package that is not installed; run: pip install"):
            make().learn(100, out, **further)
    for words, message in (
        (("--wandb-offline",), "options of Weights & Biases need a project: --wandb PROJECT"),
        (("--wandb",), "--wandb needs a value"),
        (("--wandb", "p"), "pip install 'qemrl[wandb]'"),
    ):
        with pytest.raises(SystemExit):
            main(["train", "dqn", "--env", "CartPole-v1", *words, "--out", str(out)])
        assert message in capsys.readouterr().err
    assert not out.exists()


def test_an_agent_says_what_it_is(learned):
    said = repr(learned[0])
    assert said.startswith("<qem-dqn on CartPole-v1, seed 3, 600 steps: representation quantiles, estimator qem-atari,")
    assert "policy tanh-gaussian, temperature fixed>" in repr(qemrl.make("sac", env="Pendulum-v1"))


def test_commands_take_steps_as_they_are_written_in_papers(tmp_path, capsys):
    for words in (("compare", "dqn", "--out", str(tmp_path), "--steps", "1e5"), ("demo", "--steps", "1.5")):
        with pytest.raises(SystemExit):
            main(words)
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "a comparison takes two or more different presets, got: dqn" in said  # and no word about steps
    assert "steps: expects int, got 1.5" in said


def test_times_are_whole_in_a_terminal_of_80_columns():
    out, now = io.StringIO(), [0.0]
    bar = ProgressBar(Console(width=80, force_terminal=True, color_system=None, file=out), introduce=False)
    bar.progress.live.auto_refresh = False
    bar.progress.get_time = lambda: now[0]
    config = configure("qem-dqn-dltv", "PongNoFrameskip-v4", 10_000_000, num_seeds=2)
    bar.on_start(config, make()._start(), [])
    for step in range(250_000, 5_000_001, 250_000):
        now[0] += 2_000.0
        for seed in config.seeds:
            bar.on_record(step, {"step": step, "seed": seed, "time/fps": 1_234.5, "eval/mean_reward": -1_234.5 - seed})
    bar.progress.refresh()
    bar.on_end("stopped")
    lines = [line for line in re.sub(r"\x1b\[\??\d*[A-Za-z]", "", out.getvalue()).split("\r") if "50%" in line]
    assert len(lines[-1].rstrip()) <= 80
    name, *_, steps, share, rate, elapsed, left, _, _, score = lines[-1].split()
    assert name.startswith("qem-")
    assert (steps, share, rate, score) == ("5,000,000", "50%", "1,234/s", "-1,235.0")
    assert re.fullmatch(r"\d+:\d\d:\d\d", elapsed)  # by the real clock
    assert left == "11:06:40"


def read_wandb(file: Path) -> list[Any]:
    """The records of an offline run, when its last one has come to the disk, which W&B does not wait for."""
    until = time.monotonic() + 30
    while not (records := parse_wandb(file.read_bytes())) or not records[-1].HasField("exit"):
        assert time.monotonic() < until
        time.sleep(0.05)
    return records


def parse_wandb(content: bytes) -> list[Any]:
    """W&B's own messages out of a log in blocks of 32 KiB, as LevelDB has it."""
    from wandb.proto import wandb_internal_pb2

    place, parts, records = 7, b"", []
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4) and place <= len(content):  # a whole record, or the last part of one
            records.append(vars(wandb_internal_pb2)["Record"].FromString(parts))
            parts = b""
    return records


def read_history(records: list[Any]) -> dict[int, dict[str, Any]]:
    """What was logged at each step."""
    rows = [each.history for each in records if each.HasField("history")]
    return {row.step.num: {".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows}


def test_a_run_is_tracked_in_weights_and_biases_and_goes_on_in_the_same_runs(learned, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("WANDB_DIR", raising=False)
    run = tmp_path / "run"
    shutil.copytree(learned[1], run)
    tracker = WandbCallback("project", "somebody", "group", ["one", "two"], mode="offline")
    qemrl.load(run).learn(100, out=run, wandb=tracker, progress=False)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == ""
    stored = json.loads((run / "wandb.json").read_text())
    main(["resume", str(run), "--steps", "800"])
    assert json.loads((run / "wandb.json").read_text()) == stored
    first, second = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    assert first.name == second.name == f"run-{stored['runs']['3']}.wandb"
    records = read_wandb(first)
    (began,) = (each.run for each in records if each.HasField("run"))
    assert (began.project, began.entity, began.run_group, list(began.tags)) == (
        *("project", "somebody", "group"),
        ["one", "two"],
    )
    config = {item.key: json.loads(item.value_json) for item in began.config.update}
    assert config["preset"] == "qem-dqn"
    assert config["seed"] == 3
    assert str(tmp_path) not in str(began)
    assert not any(os.uname().nodename in str(each) for each in records)

    # What was there before is told, too; it goes on from there.
    rows, later = read_history(records), read_history(read_wandb(second))
    metrics = {record["step"]: record for record in RunDirectory(run).read_metrics()}
    assert list(rows) + list(later) == list(metrics)
    assert list(later) == [750, 800]
    for step, row in (rows | later).items():
        for tag in ("train/loss", "eval/mean_reward", "rollout/episodes"):
            assert row.get(tag) == metrics[step].get(tag)
    assert rows[700]["eval/returns._type"] == "histogram"
    assert sum(rows[700]["eval/returns.values"]) == 2
    assert rows[700]["time/fps"] > 0
    film = first.parent / "files" / rows[700]["video.path"]
    assert film.read_bytes()[4:8] == b"ftyp"  # as all MP4 files begin


def test_tensorboard_has_what_the_file_has(learned):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert issubclass(TensorBoardCallback, Callback)
    events = EventAccumulator(str(learned[1] / "tensorboard" / "seed_3")).Reload()
    found = {event.step: event.value for event in events.Scalars("eval/mean_reward")}
    records = RunDirectory(learned[1]).read_metrics()
    assert found == {r["step"]: r["eval/mean_reward"] for r in records if "eval/mean_reward" in r}
    assert len(CallbackList([]).callbacks) == 0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"project": "p"}',
        '{"project": "p", "entity": null, "group": 3, "tags": [], "mode": null, "runs": {}}',
    ],
)
def test_a_damaged_file_about_tracking_says_what_to_do(tmp_path, text):
    directory = RunDirectory.create(tmp_path / "run", {"type": "RunConfig"}, {})
    assert read_stored(directory) is None
    (directory.path / "wandb.json").write_text(text)
    with pytest.raises(ValueError, match=r"wandb.json .*; remove it, to go on without tracking"):
        read_stored(directory)
