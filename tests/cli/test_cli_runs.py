"""The commands train, resume and evaluate."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import qemrl
from qemrl.agents.presets import PRESETS
from qemrl.agents.value import ValueConfig
from qemrl.cli.app import main
from qemrl.training import checkpoint
from qemrl.training.config import read_config
from qemrl.training.machine import summarize_machine
from qemrl.training.run_directory import RunDirectory

QEMRL = Path(sys.executable).parent / "qemrl"
TINY = (
    *("--network.widths", "8", "--representation.num-quantiles", "8", "--learning-starts", "64", "--batch-size", "8"),
    *("--log-every", "100", "--evaluate-every", "100", "--checkpoint-every", "100", "--evaluation-episodes", "2"),
)


def configured(folder: Path):
    return read_config(RunDirectory(folder).config)


def fails(capsys, *arguments: str) -> str:
    """What a command says that ends with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    said = capsys.readouterr()
    assert caught.value.code == 2, said
    return said.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two seeds, with TensorBoard."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    main(
        ["train", "qem-dqn", "--env", "CartPole-v1", "--steps", "200", "--num-seeds", "2", *TINY, "--tensorboard"]
        + ["--estimator.variance.value", "1.2", "--replay.n-step", "3", "--double", "--out", str(folder)]
    )
    return folder


def test_options_reach_the_configuration(run):
    config = configured(run)
    assert isinstance(config.agent, ValueConfig)
    assert config.seeds == (0, 1)
    assert config.agent.network.widths == (8,)
    assert config.agent.estimator == qemrl.QEM(variance=qemrl.TailVariance(1.2))
    assert config.agent.replay.n_step == 3
    assert config.agent.double


def test_a_run_leaves_records_evaluations_a_checkpoint_and_a_mark(run):
    records = RunDirectory(run).read_metrics()
    assert [record["step"] for record in RunDirectory(run).read_timing()] == sorted({r["step"] for r in records})
    assert {record["machine"] for record in RunDirectory(run).read_timing()} == {summarize_machine()}
    assert [(record["step"], record["seed"]) for record in records] == [(100, 0), (100, 1), (200, 0), (200, 1)]
    assert all("eval/mean_reward" in record and "bad_step" not in record for record in records)
    assert len(list((run / "evaluations").iterdir())) == 4
    assert json.loads((run / "DONE").read_text())["step"] == 200


def read_events(folder: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return [(tag, it.step, it.value) for tag in events.Tags()["scalars"] for it in events.Scalars(tag)]


def test_a_finished_run_says_so_and_goes_on_when_asked(run, tmp_path, capsys):
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", run, folder], check=True)
    before = (folder / "metrics.jsonl").read_bytes()
    for further in ((), ("--steps", "200"), ("--steps", "100")):
        main(["resume", str(folder), *further])
        assert f"{folder} is finished: 200 steps are done" in capsys.readouterr().out
    assert (folder / "metrics.jsonl").read_bytes() == before
    # lines that were undone must not come back in TensorBoard
    main(["resume", str(folder), "--steps", "300"])
    assert "from step 200 to 300" in capsys.readouterr().out
    assert configured(folder).steps == 300
    assert json.loads((folder / "DONE").read_text())["step"] == 300
    assert (folder / "metrics.jsonl").read_bytes().startswith(before)
    for seed in (0, 1):
        events = read_events(folder / "tensorboard" / f"seed_{seed}")
        expected = [
            (record["step"], record["eval/mean_reward"])
            for record in RunDirectory(folder).read_metrics()
            if record["seed"] == seed
        ]
        found = [(step, value) for tag, step, value in events if tag == "eval/mean_reward"]
        assert found == expected
        assert {tag for tag, _, _ in events} >= {"time/fps", "train/loss", "dist/q", "rollout/ep_rew_mean"}


def unfinished_copy(run: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-r", run, folder], check=True)
    (folder / "DONE").unlink()
    return folder


def test_damaged_metrics_are_made_again_where_a_checkpoint_allows_it(run, tmp_path, capsys):
    folder = unfinished_copy(run, tmp_path / "copy")
    content = (run / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[:-10] + b"?" + content[-9:])
    main(["resume", str(folder)])
    assert "goes back from step 200 to 100" in capsys.readouterr().out
    for name in ("metrics.jsonl", "DONE"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()
    assert RunDirectory(folder).find_damage() == []


def test_damaged_metrics_that_cannot_be_made_again_are_said_and_the_run_is_finished(run, tmp_path, capsys):
    folder = unfinished_copy(run, tmp_path / "copy")
    (folder / "metrics.jsonl").write_bytes(b"?" + (run / "metrics.jsonl").read_bytes())
    main(["resume", str(folder)])
    assert "metrics.jsonl: line 1 was damaged" in capsys.readouterr().out
    assert RunDirectory(folder).find_damage() == ["metrics.jsonl: line 1 was damaged"]
    assert [record["seed"] for record in RunDirectory(folder).read_metrics()] == [1, 0, 1]


def test_damaged_evaluations_and_best_parameters_are_made_again_or_said(run, tmp_path, capsys):
    folder = unfinished_copy(run, tmp_path / "copy")
    (folder / "evaluations" / "seed_1_step_000000000200.json").write_text("{")
    main(["resume", str(folder)])
    assert "goes back from step 200 to 100" in capsys.readouterr().out
    for file in (*(run / "evaluations").iterdir(), run / "metrics.jsonl", run / "DONE"):
        assert (folder / file.relative_to(run)).read_bytes() == file.read_bytes()
    (folder / "DONE").unlink()
    (folder / "evaluations" / "seed_0_step_000000000100.json").unlink()
    (folder / "timing.jsonl").write_text("")
    for manifest in folder.glob("best/*/manifest.json"):
        manifest.write_text("{")
    shutil.rmtree(min((folder / "checkpoints").iterdir()))
    main(["resume", str(folder)])
    said = capsys.readouterr().out
    (best,) = (run / "best").iterdir()
    for sentence in (
        "evaluations/seed_0_step_000000000100.json: damaged or lost",
        f"best: the parameters of step {int(best.name.removeprefix('step_'))} are damaged",
        "timing.jsonl has lost 2 of 2 lines",
    ):
        assert sentence in said
        assert sentence in RunDirectory(folder).find_damage()


@pytest.mark.parametrize("command", ["resume", "evaluate", "export"])
def test_a_changed_setting_ends_a_command(run, tmp_path, capsys, command):
    folder = unfinished_copy(run, tmp_path / "copy")
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"discount": 0.99', '"discount": 0.19'))
    rest = ("--out", str(tmp_path / "out")) if command == "export" else ()
    assert "agent.discount is 0.19 in config.json, but 0.99 in" in fails(capsys, command, str(folder), *rest)
    # with a checksum of its own, so that only the checkpoint knows better
    checkpoints = tmp_path / "checkpoints"
    (folder / "checkpoints").rename(checkpoints)
    (folder / "config.json").write_bytes((run / "config.json").read_bytes())
    record = RunDirectory(folder)
    record.replace_config({**record.config, "agent": {**record.config["agent"], "discount": 0.19}})
    checkpoints.rename(folder / "checkpoints")
    with pytest.raises(SystemExit) as caught:
        main([command, str(folder), *rest])
    assert caught.value.code
    assert "agent.discount is 0.19 in config.json, but 0.99 in step_000000000200" in capsys.readouterr().err


def test_a_run_cannot_be_shortened(run, tmp_path, capsys):
    folder = unfinished_copy(run, tmp_path / "copy")
    assert "further than the 200 steps that are planned; got 100" in fails(
        capsys, "resume", str(folder), "--steps", "100"
    )


def test_evaluation_prints_one_json_object_and_leaves_the_run_alone(run, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    film, out = tmp_path / "film.gif", tmp_path / "out.json"
    main(["evaluate", str(run), "--episodes", "3", "--json", "--video", str(film), "--out", str(out)])
    said = capsys.readouterr().out
    data = json.loads(said)
    assert said.count("\n") == 1
    assert json.loads(out.read_text()) == data
    assert [each["seed"] for each in data["seeds"]] == [0, 1]
    for each in data["seeds"]:
        assert len(each["returns"]) == 3
        assert each["mean"] == pytest.approx(np.mean(each["returns"]))
        assert each["min"] <= each["mean"] <= each["max"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    with Image.open(film) as picture:
        assert picture.size == (600, 400)
        assert getattr(picture, "n_frames", 1) > 3


def test_evaluation_of_one_seed_shows_a_table(run, capsys):
    main(["evaluate", str(run), "--episodes", "2", "--seed-of-run", "1"])
    said = capsys.readouterr().out
    assert "after 200 steps" in " ".join(said.split())
    assert "± std" in said
    assert "has the seeds (0, 1), not 7" in fails(capsys, "evaluate", str(run), "--seed-of-run", "7")


def test_a_film_that_fails_is_a_warning(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    main(["evaluate", str(run), "--episodes", "1", "--json", "--video", str(tmp_path / "film.mp4")])
    said = capsys.readouterr()
    assert json.loads(said.out)["video"] is None
    assert "no video was written" in said.err
    assert "pip install 'qemrl[video]'" in said.err
    assert list(tmp_path.iterdir()) == []


def test_evaluation_reads_parameters_only_and_checks_them(run, tmp_path, capsys):
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-r", run, folder], check=True)
    newest = max((folder / "checkpoints").iterdir())
    for file in newest.glob("*replay*"):
        file.unlink()
    main(["evaluate", str(folder), "--episodes", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["step"] == 200
    parameters = next(newest.glob("*params*"))
    parameters.write_bytes(parameters.read_bytes()[:-1] + b"\x07")
    main(["evaluate", str(folder), "--episodes", "1", "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["step"] == 100
    assert "qemrl: warning: passing over a damaged checkpoint" in said.err


def test_parameters_of_a_compiled_run_are_found_for_each_seed(tmp_path):
    import jax

    from qemrl.training.config import configure
    from qemrl.training.loops import describe_environment, make_loop, read_params

    config = configure("dqn", "probe/1", 100, num_seeds=2)
    loop = make_loop(config)
    checkpoint.save(tmp_path, 0, loop.arrays(), {})
    for index, seed in enumerate(config.seeds):
        found = read_params(config, describe_environment(config), tmp_path, seed)
        assert found is not None
        jax.tree.map(np.testing.assert_array_equal, found, (0, loop.params(index)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a preset first: qemrl train PRESET --env ID; presets: dqn, c51"),
        (("qem-dgn", "--env", "CartPole-v1"), "there is no preset 'qem-dgn'; did you mean 'qem-dqn'?"),
        (("dqn",), "name an environment: --env CartPole-v1"),
        (("dqn", "--env"), "--env and --out need a value"),
        (("dqn", "--env", "CartPol-v1"), "did you mean CartPole-v1"),
        (("dqn", "--env", "jax/cartpol"), "did you mean 'jax/cartpole'"),
        (("dqn", "--env", "Pendulum-v1"), "actor-critic presets are for continuous ones: sac, td3, dsac"),
        (
            ("dqn", "--env", "CartPole-v1", "--replay.nstep", "3"),
            "no setting 'replay.nstep' here: replay is ReplayConfig; did you mean 'replay.n_step'?",
        ),
        (("dqn", "--env", "CartPole-v1", "--n-step=3"), "did you mean 'replay.n_step'?"),
        (
            ("dqn", "--env", "CartPole-v1", "--estimator.order", "3"),
            "there is no setting 'estimator.order' here: estimator is EmpiricalMean",
        ),
        (("dqn", "--env", "CartPole-v1", "--estimator", "qem"), "Scalar has none; use EmpiricalMean with it"),
        (("qr-dqn", "--env", "CartPole-v1", "--estimator", "qme"), "no estimator 'qme'; did you mean 'qem'?"),
        (("dqn", "--env", "CartPole-v1", "--discount", "2"), "discount must be in (0, 1], got 2.0"),
        (("dqn", "--env", "CartPole-v1", "--num-envs", "x"), "num_envs: expects int, got 'x'"),
        (
            ("dqn", "--env", "CartPole-v1", "--protocol", "paper"),
            "protocol is for Atari games, and CartPole-v1 is none",
        ),
        (("dqn", "--env", "CartPole-v1", "--tensorbord"), "no option --tensorbord; did you mean --tensorboard?"),
        (("dqn", "--env", "CartPole-v1", "--tensorboard", "maybe"), "tensorboard: expects bool, got 'maybe'"),
        (("dqn", "stray", "--env", "CartPole-v1"), "`stray` stands alone; options begin with --"),
        (("dqn", "--env", "CartPole-v1", "--steps"), "steps: expects int, got ''"),
        (("dqn", "--env", "CartPole-v1", "--replay.capacity", "2000000000", "--num-seeds", "1000"), "(--num-seeds)"),
    ],
)
def test_what_is_wrong_is_said_before_a_run_begins(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "train", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_another_run_is_left_alone(run, tmp_path, capsys):
    said = fails(capsys, "train", "dqn", "--env", "CartPole-v1", "--out", str(run))
    assert "holds a run of another configuration" in said
    assert f"qemrl resume {run}" in said
    (tmp_path / "letter.txt").write_text("mine")
    assert "is not empty and holds no run" in fails(
        capsys, "train", "dqn", "--env", "CartPole-v1", "--out", str(tmp_path)
    )
    assert "holds no run" in fails(capsys, "resume", str(tmp_path))
    assert "holds no run" in fails(capsys, "evaluate", str(tmp_path))


def test_a_run_that_is_being_written_is_not_written_twice(run, tmp_path, capsys):
    folder = unfinished_copy(run, tmp_path / "copy")
    with RunDirectory(folder).lock():
        assert "is being written by process" in fails(capsys, "resume", str(folder))


CONFIG = """
presets = ["qr-dqn", "qr-dqn+double"]
envs = ["CartPole-v1"]
seeds = [4, 5]
steps = 60

[overrides]
discount = 0.9
"exploration.final" = 0.2

[overrides."qr-dqn+double"]
double = true
"""


def test_a_file_gives_settings_and_options_beside_it_win(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("grid.toml").write_text(CONFIG)
    said = helped(capsys, "train", "qr-dqn+double", "--config", "grid.toml", "--discount", "0.8", "--help")
    for text in ("γ. (default: 0.8)", "The final ε. (default: 0.2)", "The first seed. (default: 4)", "(default: 60)"):
        assert text in said
    assert "(double Q-learning). (default: true)" in said
    said = helped(capsys, "train", "qr-dqn+double", "--config", "grid.toml", "--no-double", "--help")
    assert "(double Q-learning). (default: false)" in said
    for text, words, message in (
        (CONFIG, (), "grid.toml has qr-dqn, qr-dqn+double; say which with a preset"),
        (CONFIG.replace("4, 5", "4, 6"), ("qr-dqn",), "a run has consecutive ones; give --seed and --num-seeds"),
        (CONFIG.replace("discount", "discuont"), ("qr-dqn",), "did you mean 'discount'?"),
        (f"colour = 1\n{CONFIG}", ("qr-dqn",), "a grid has no key 'colour'"),
        (CONFIG, ("qr-dqn", "--config"), "--config needs a file"),
        (CONFIG.replace("CartPole", "os:CartPole"), ("qr-dqn",), "if you trust it, say --env os:CartPole-v1"),
    ):
        Path("grid.toml").write_text(text)
        assert message in fails(capsys, "train", *words, *([] if "--config" in words else ["--config", "grid.toml"]))
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def helped(capsys, *arguments: str) -> str:
    with contextlib.suppress(SystemExit):
        main(arguments)
    said = capsys.readouterr().out.replace("│", " ")
    assert arguments[0] != "train" or all(len(line) <= 80 for line in said.splitlines())
    return " ".join(said.split())


def test_help_shows_every_option_with_the_defaults_of_preset_and_environment(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["train", "--help"])
    said = capsys.readouterr().out
    assert "usage: qemrl train PRESET --env ID" in said
    for name, preset in PRESETS.items():
        assert name in said
        assert preset.summary in said
    said = helped(capsys, "train", "qem-dqn", "--env", "ALE/Pong-v5", "--help")
    assert "--replay.capacity INT How many transitions are kept, of all environments together; the oldest" in said
    for option in (
        *("--steps INT", "--seed INT", "--num-seeds INT", "--num-envs INT", "--tensorboard", "--double, --no-double"),
        *("--estimator.order INT", "--estimator.variance.value FLOAT", "--protocol.sticky-actions FLOAT"),
        *("--network.dueling, --network.no-dueling", "--optimizer.max-gradient-norm FLOAT|NONE"),
        *("--representation.num-quantiles INT N. (default: 200)", "--network.hidden [INT ...]", "--protocol NAME"),
        "--estimator NAME How a return distribution becomes Q, or a risk measure in its place: in acting and in the",
        "One of mean, qem, qem-atari,",
        "(default: qem-atari)",
        "exploration options: A random allowed action with probability ε",
    ):
        assert option in said, option
    said = helped(capsys, "train", "iqn", "--env", "minatar/breakout", "--estimator", "qem-frozen-lake", "--help")
    assert "--representation.acting-levels {uniform,stratified,cumulative,midpoints}" in said
    assert "--estimator.variance.low FLOAT The lower end of the band. (default: 0.45)" in said
    assert "--representation.num-acting-levels INT K: how many levels Q is estimated from" in said
    assert "defaults are those of small tasks" in helped(capsys, "train", "sac", "--help")
    assert "--wandb PROJECT Track the run in this project" in helped(capsys, "train", "sac", "--help")
    resume = helped(capsys, "resume", "--help")
    assert all(option in resume for option in ("--steps", "--tensorboard", "--wandb", "--wandb-tags"))
    assert "--video" in helped(capsys, "evaluate", "--help")
    for command in ("evaluate", "show"):
        assert "--checkpoint best|last|STEP" in helped(capsys, command, "--help")


def test_a_run_begins_where_the_command_says_and_nothing_goes_wrong_in_a_pipe(tmp_path):
    arguments = (
        "train",
        "--env",
        "jax/catch",
        "dqn",
        "--steps",
        "8",
        "--learning-starts",
        "100",
        "--replay.capacity",
        "100",
    )
    intervals = ("--log-every", "4", "--evaluate-every", "4", "--checkpoint-every", "4", "--evaluation-episodes", "2")
    done = subprocess.run(
        [QEMRL, *arguments, *intervals, "--seed", "5"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first == "run directory: runs/dqn/jax_catch/seed_5"
    assert lines[0] == "dqn on jax/catch: 8 steps, seed 5, compiled loop"
    assert "MB" in lines[1]
    assert [line.split("  ")[0] for line in lines[2:]] == ["step 4 of 8", "step 8 of 8"]
    assert "qemrl evaluate runs/dqn/jax_catch/seed_5" in last
    assert (tmp_path / "runs/dqn/jax_catch/seed_5/DONE").exists()
