"""Tunings: ranges, trials that repeat whatever happens to who drives them, and what is left in the end.

Runs are imagined, but for one tuning of the command line: an engine writes the records that their settings lead to.
"""

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qemrl.cli.app import main
from qemrl.cli.runs import NOT_SETTINGS, read_options
from qemrl.cli.studies import COMPARE_OPTIONS
from qemrl.cli.tune import _list_options
from qemrl.config.describe import list_settings
from qemrl.experiments import sweep
from qemrl.experiments.engines import EndedRun, Needs
from qemrl.experiments.grid import read_grid
from qemrl.experiments.ranges import Bounds, Choices, default_ranges, read_range, read_ranges, read_ranges_file
from qemrl.experiments.tune import UNPRUNED_TRIALS, Tuner, Tuning, write_results
from qemrl.experiments.worker import FAILED
from qemrl.training.config import configure, read_config
from qemrl.training.files import RunLockedError
from qemrl.training.run_directory import RunDirectory, RunExistsError

ENV, STEPS, TRIALS = "probe/2", 400, 13
TINY = {
    "network.widths": "8",
    "learning_starts": 40,
    "log_every": 40,
    "evaluate_every": 80,
    "checkpoint_every": 200,
    "evaluation_episodes": 2,
}
RANGES = {"optimizer.learning_rate": "1e-5:1e-1:log", "replay.n_step": "1:5", "batch_size": "8,16"}


def make_tuning(ranges: dict[str, Any] = RANGES, **settings: Any) -> Tuning:
    fixed = TINY | settings
    config = configure("dqn", ENV, STEPS, overrides=fixed)
    return Tuning("dqn", ENV, STEPS, 2, fixed, read_ranges(ranges, config), seed=3)


def score(config: Any, step: int) -> float:
    """What an imagined run scores: most with a learning rate of 1e-3 and long returns."""
    rate, n_step = config.agent.optimizer.learning_rate, config.agent.replay.n_step
    return step / STEPS * (10 - (math.log10(rate) + 3) ** 2 + n_step / 5) + config.seed / 10


class DeathError(Exception):
    """What drives the tuning is gone."""


class Imagined:
    """An engine whose runs get from one evaluation to the next whenever it is asked; it dies when it is told."""

    def __init__(self, cores: int = 2, dies_at: int | None = None, causes: dict[str, str] | None = None) -> None:
        self.cores, self.dies_at, self.causes = cores, dies_at, causes or {}
        self.damages: dict[str, bytes] = {}
        """What is left of the metrics of a run at its end."""

        self.going: list[Path] = []
        self.interrupted: list[EndedRun] = []
        self.asked = 0
        self.started: list[str] = []

    def has_room(self, needs: Needs) -> bool:
        return len(self.going) + needs.cpus <= self.cores

    def start(self, path: Path, needs: Needs) -> None:
        del needs
        self.going.append(path)
        self.started.append(f"{path.parent.name}/{path.name}")
        (path / "checkpoints").mkdir(exist_ok=True)
        (path / FAILED).unlink(missing_ok=True)

    def poll(self) -> list[EndedRun]:
        self.asked += 1
        if self.asked == self.dies_at:
            raise DeathError
        stopped, self.interrupted = self.interrupted, []
        return stopped + [ended for path in list(self.going) if (ended := self._advance(path))]

    def _advance(self, path: Path) -> EndedRun | None:
        run = RunDirectory(path)
        config, last = read_config(run.config), max((each["step"] for each in run.read_metrics()), default=0)
        cause = self.causes.get(f"{path.parent.name}/{path.name}")
        if cause is not None and last >= STEPS // 2:
            (path / FAILED).write_text(json.dumps({"cause": cause}))
            self.going.remove(path)
            return EndedRun(path, cause)
        step = last + config.evaluate_every
        run.append({"step": step, "seed": config.seed, "eval/mean_reward": score(config, step)})
        run.append_timing({"step": step, "time/fps": 100.0})
        if step < config.whole_steps:
            return None
        damaged = self.damages.get(f"{path.parent.name}/{path.name}")
        if damaged is not None:
            (path / "metrics.jsonl").write_bytes(damaged)
        run.finish({"step": step})
        self.going.remove(path)
        return EndedRun(path, None)

    def interrupt(self, path: Path) -> None:
        self.going.remove(path)
        self.interrupted.append(EndedRun(path, None))

    def stop(self) -> None:
        self.going.clear()

    def close(self) -> None:
        pass


def drive(
    folder: Path, engine: Imagined, trials: int = TRIALS, tuning: Tuning | None = None, workers: int = 1
) -> Tuner:
    tuner = Tuner(tuning or make_tuning(), folder, trials)
    tuner.drive(
        engine, lambda runs: {run.path: Needs(0) for run in runs}, workers, lambda _: None, should_stop=lambda: False
    )
    return tuner


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch):
    """Imagined runs take no time: they are looked at whenever their engine is asked."""
    monkeypatch.setattr(sweep, "POLL_EVERY_SECONDS", 0.0)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A tuning that nothing happened to, of one run at a time, each of which is looked at when it has ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "POLL_EVERY_SECONDS", 1e9)
        return drive(tmp_path_factory.mktemp("untouched"), Imagined(cores=1))


def tell(tuner: Tuner) -> list[Any]:
    """All that a study knows about its trials, but for clocks."""
    return [(each.state, each.params, each.value, each.intermediate_values) for each in tuner._list_trials()]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("optimizer.learning_rate", "1e-5:2e-3:log", Bounds(1e-5, 2e-3, log=True)),
        ("discount", "0.9:1", Bounds(0.9, 1.0)),
        ("replay.n_step", "1:5", Bounds(1, 5)),
        ("target_every", "1e2:1e4:log", Bounds(100, 10_000, log=True)),
        ("optimizer.max_gradient_norm", "none,10", Choices((None, 10.0))),
        ("batch_size", [32, 64], Choices((32, 64))),
        ("double", "true,false", Choices((True, False))),
        ("estimator", "qem, mean", Choices(("qem", "mean"))),
        ("network.widths", "64,128 128", Choices(("64", "128 128"))),
    ],
)
def test_a_range_is_read_as_its_setting_is_and_written_as_it_is_read(name, text, expected):
    config = configure("qem-dqn", "CartPole-v1", 1_000)
    found = read_range(text, config, name)
    assert found == expected
    assert read_range(str(found), config, name) == found


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("optimizer.lerning_rate", "1:2", "did you mean 'optimizer.learning_rate'"),
        ("replay.n_step", "1.5:3", "range.replay.n_step: expects int, got 1.5"),
        ("replay.n_step", "5:1", "the first bound must be below the second, got '5:1'"),
        ("optimizer.learning_rate", "0:1:log", "must be above zero"),
        ("optimizer.learning_rate", "1:2:lin", "must be low:high or low:high:log"),
        ("optimizer.learning_rate", "1e-3", "two or more choices"),
        ("batch_size", "8,8", "there twice"),
        ("batch_size", "8,x", "range.batch_size: expects int, got 'x'"),
        ("estimator", "1:2", "is not a number"),
        ("seed", "0:5", "is the same in all trials"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(name, text, message):
    with pytest.raises(ValueError, match=message):
        read_range(text, configure("dqn", ENV, STEPS), name)


def test_a_file_of_ranges_is_named_where_it_makes_no_sense(tmp_path):
    file = tmp_path / "ranges.toml"
    for text, message in [
        ("", "ranges.toml has no range"),
        ('batch_size = [["x"], 16]', "ranges.toml: range.batch_size: expects int"),
        ("batch_size = 3", "ranges.toml: range.batch_size must be low:high"),
        ("batch_size = nan", "ranges.toml: range.batch_size must be low:high"),
        ("optimizer = { learning_rate = '1:inf' }", "ranges.toml: range.optimizer.learning_rate: inf is not finite"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_ranges_file(file, configure("dqn", ENV, STEPS))


@pytest.mark.parametrize(
    ("ranges", "settings", "message"),
    [
        ({"discount": "0.9:1.5"}, {}, "range.discount: 1.5 is no value for it: .*discount must be in"),
        ({"estimator": "mean,qme"}, {}, "range.estimator: qme is no value for it"),
        ({"discount": "0.9:1"}, {"discount": 0.9}, "discount has a range and a value, 0.9"),
        ({}, {}, "no range to search"),
    ],
)
def test_values_that_no_trial_may_have_are_refused_before_the_first(ranges, settings, message):
    with pytest.raises(ValueError, match=message):
        make_tuning(ranges, **settings)


@pytest.mark.parametrize(
    ("preset", "env"),
    [("dqn", "ALE/Pong-v5"), ("qem-dqn", "minatar/asterix"), ("qem-dqn-dltv", "CartPole-v1"), ("tqc", "Hopper-v5")],
)
def test_default_ranges_go_together_and_no_setting_is_taken_for_a_mistyped_option(preset, env):
    config = configure(preset, env, 1_000, num_envs=4)
    ranges = default_ranges(config)
    assert len(ranges) >= 4
    chance = np.random.default_rng(0)
    for _ in range(4):
        drawn = {name: chance.choice(np.array(each.ends)).item() for name, each in ranges.items()}
        configure(preset, env, 1_000, num_envs=4, overrides=drawn)
    words = [f"--{setting.name}" for group in list_settings(config) for setting in group.settings]
    for own in (NOT_SETTINGS, COMPARE_OPTIONS, _list_options()):
        assert len(read_options(words, own)) == len(words)


def test_a_tuning_finds_what_is_good_prunes_what_is_not_and_says_so(untouched):
    statuses = untouched.statuses
    best = untouched.best
    assert best is not None
    assert len(statuses) == TRIALS
    assert abs(math.log10(best.params["optimizer.learning_rate"]) + 3) < 0.5
    config = read_config(RunDirectory(untouched.folder / f"trials/{best.number:04d}/seed_0").config)
    late = [score(config, step) for step in range(240, STEPS + 1, 80)]
    assert best.by_seed == pytest.approx([np.mean(late), np.mean(late) + 0.1])
    assert best.value == pytest.approx(np.mean(late) + 0.05)
    # Median pruning by hand: below the median of what the trials before had finished with, at a third of the run.
    pruned = [status for status in statuses if status.state == "pruned"]
    assert pruned
    for number, (_, _, _, means) in enumerate(tell(untouched)):
        before = [tell(untouched)[other][3] for other in range(number) if statuses[other].state == "finished"]
        falls = [
            step
            for step in means
            if STEPS / 3 < step < STEPS
            and len(before) >= UNPRUNED_TRIALS
            and max(value for at, value in means.items() if at <= step) < np.median([each[step] for each in before])
        ]
        assert falls == ([max(means)] if statuses[number].state == "pruned" else [])
        kept = untouched.folder / f"trials/{number:04d}/seed_0/checkpoints"
        assert kept.exists() == (number == best.number)


def test_the_results_are_files_that_others_read(untouched):
    paths = write_results(untouched)
    names = ["trials.csv", "best.toml", "history.png", "history.svg", "importance.png", "importance.svg"]
    assert [path.name for path in paths] == names
    assert all(path.stat().st_size for path in paths)
    best = untouched.best
    assert best is not None
    runs = read_grid(paths[1]).runs()
    assert [run.config.seed for run in runs] == [0, 1]
    for run in runs:
        trial = untouched.folder / f"trials/{best.number:04d}/seed_{run.config.seed}"
        assert run.config == read_config(RunDirectory(trial).config)
    with paths[0].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == [status.state for status in untouched.statuses]
    assert float(rows[best.number]["value"]) == best.value
    importance = untouched.importance()
    assert max(importance, key=lambda name: importance[name]) == "optimizer.learning_rate"
    assert sum(importance.values()) == pytest.approx(1)


def test_the_same_command_repeats_all_trials_however_often_it_dies_and_whenever_it_looks(untouched, tmp_path):
    for dies_at in (2, 23, 19):
        with pytest.raises(DeathError):
            drive(tmp_path, Imagined(dies_at=dies_at))
    begun = len(Tuner(make_tuning(), tmp_path, TRIALS)._list_trials())
    resumed = Imagined()
    assert tell(drive(tmp_path, resumed)) == tell(untouched)
    assert resumed.started[0] == f"{begun - 1:04d}/seed_0"  # what was finished is left alone
    # One that is pruned is stopped where it is, and here it is soon looked at.
    number = next(status.number for status in untouched.statuses if status.state == "pruned")
    reached = [RunDirectory(path / f"trials/{number:04d}/seed_1") for path in (tmp_path, untouched.folder)]
    assert [run.done for run in reached] == [False, True]


def test_a_tuning_grows_and_nobody_else_may_drive_or_change_it(tmp_path):
    first = drive(tmp_path, Imagined(), trials=2)
    before, engine = tell(first), Imagined()
    assert tell(drive(tmp_path, engine, trials=3))[:2] == before
    assert engine.started == ["0002/seed_0", "0002/seed_1"]
    assert drive(tmp_path, Imagined(dies_at=1), trials=2).statuses[2].state == "finished"
    for other, message in (
        (make_tuning(discount=0.9), "config.agent.discount is 0.99 there, but 0.9 is asked for"),
        (make_tuning({"replay.n_step": "1:5"}), "ranges.batch_size is only there"),
    ):
        with pytest.raises(RunExistsError, match=message):
            Tuner(other, tmp_path, 3)
    with first._lock(), pytest.raises(RunLockedError, match=r"the tuning in .* is being driven by process"):
        drive(tmp_path, Imagined())


def test_settings_that_diverge_or_do_not_go_together_are_pruned_and_failures_tried_again(tmp_path):
    diverged = "NonFiniteTrainingError: seed 1 met a number that is not finite at step 200"
    causes = {"0000/seed_1": diverged, "0002/seed_0": "OSError: the disk is full"}
    ranges = {"discount": "0.9:0.99", "update_every": "1,3", "target_every": "30,50"}
    tuning = make_tuning(ranges, log_every=60, evaluate_every=60, checkpoint_every=60)
    statuses = drive(tmp_path, Imagined(causes=causes), 6, tuning).statuses
    assert statuses[-1].state == "failed"  # it keeps the only place
    assert "the disk is full" in (statuses[-1].cause or "")
    again = Imagined()
    statuses = drive(tmp_path, again, 6, tuning).statuses
    assert again.started[0] == "0002/seed_0"
    refused = [each for each in statuses if (each.params["update_every"], each.params["target_every"]) == (3, 50)]
    assert refused
    for status in refused:
        assert status.state == "pruned"
        assert "target_every must be a multiple of update_every" in (status.cause or "")
    assert (statuses[0].state, statuses[0].cause) == ("pruned", diverged)
    assert {status.state for status in statuses} == {"finished", "pruned"}


def test_a_trial_with_a_run_that_lost_its_metrics_has_failed_and_the_others_go_on(tmp_path):
    engine = Imagined()
    engine.damages = {
        "0001/seed_0": b'{"step": 80, "seed": 0, "eval/mean_reward": 1.0}\n',
        "0002/seed_1": b"[" * 100_000 + b"\n",
    }
    statuses = drive(tmp_path, engine, trials=4, workers=4).statuses
    assert [status.state for status in statuses] == ["finished", "failed", "failed", "finished"]
    assert "it cannot be read: its metrics end at step 80 of 400" in (statuses[1].cause or "")
    assert "nested too deeply" in (statuses[2].cause or "")


def test_trials_run_side_by_side(tmp_path):
    engine = Imagined(cores=4)
    tuner = drive(tmp_path, engine, trials=4, workers=2)
    assert engine.started[:4] == ["0000/seed_0", "0000/seed_1", "0001/seed_0", "0001/seed_1"]
    assert [status.state for status in tuner.statuses] == ["finished"] * 4


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a preset first"),
        (("dqn",), "name an environment"),
        (("dqn", "--env", ENV), "name a folder for the tuning: --out DIR"),
        (("dqn", "--env", ENV, "--out", "o", "--trials", "0"), "--trials must be at least 1; got 0"),
        (("dqn", "--env", ENV, "--out", "o", "--trails", "5"), "no option --trails; did you mean --trials?"),
        (("dqn", "--env", ENV, "--out", "o", "--cores", "x"), "cores: expects int | None, got 'x'"),
        (("dqn", "--env", ENV, "--out", "o", "--address", "auto"), "--address is for --engine ray"),
        (("dqn", "--env", ENV, "--out", "o", "--range.n-step", "1:5"), "did you mean 'replay.n_step'"),
        (("dqn", "--env", ENV, "--out", "o", "--ranges", "r.toml"), "r.toml"),
        (("dqn", "--env", "Pendulum-v1", "--out", "o"), "has continuous actions"),
    ],
)
def test_what_is_wrong_is_said_before_a_tuning_begins(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "tune", *words)
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_extra_is_named_and_help_is_there(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setenv("COLUMNS", "80")
    assert "pip install 'qemrl[tune]'" in fails(capsys, "tune", "dqn", "--env", ENV, "--out", "o")
    main(["tune", "--help"])
    main(["tune", "sac", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "--trials INT",
        "--range.NAME RANGE",
        "polyak 0.001:0.05:log",
        "--optimizer.epsilon FLOAT",
        "--workers",
    ):
        assert text in said


def test_the_command_tunes_and_train_takes_the_best(tmp_path, monkeypatch, capsys):
    """Two trials in processes of their own, then the best of them in this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "POLL_EVERY_SECONDS", 0.2)
    Path("ranges.toml").write_text('optimizer.learning_rate = "1e-4:1e-3:log"\nbatch_size = [8, 16]\n')
    words = ["tune", "dqn", "--env", ENV, "--trials", "2", "--num-seeds", "1", "--cores", "1", "--steps", "80"]
    for name, value in TINY.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--checkpoint-every", "80", "--ranges", "ranges.toml", "--out", "out"]
    main(words)
    said = capsys.readouterr().out
    for text in (
        "2 trials of 1 seeds, 1 at a time",
        "trial 1 of 2: finished",
        "The best of 2 trials",
        "wrote out/best.toml",
    ):
        assert text in said
    main(words)  # nothing is done again
    assert "trial 1 of 2" not in capsys.readouterr().out
    best = read_grid("out/best.toml")
    main(["train", "--config", "out/best.toml", "--batch-size", "12", "--out", "run"])
    trial = read_config(RunDirectory(next(Path("out/trials").glob("*/seed_0/checkpoints")).parent).config)
    config = read_config(RunDirectory(Path("run")).config)
    assert config.agent.batch_size == 12
    assert config.agent.optimizer == trial.agent.optimizer
    assert (config.preset, config.env, config.steps, config.seeds) == ("dqn", ENV, 80, (0,))
    assert best.runs()[0].config == trial
    assert (Path("run") / "DONE").exists()
