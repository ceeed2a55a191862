"""The command line: in a real process where it is about one, else where the tests run."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qemrl
from qemrl.agents.names import SUMMARIES
from qemrl.cli import app
from qemrl.cli.app import COMMANDS, main
from qemrl.paper.catalog import ITEMS

QEMRL = Path(sys.executable).parent / "qemrl"


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run([QEMRL, *arguments], capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_list_shows_every_preset_and_item_and_answers_without_jax():
    result = run("list")
    assert result.returncode == 0
    for name, summary in SUMMARIES.items():
        assert f"{name} " in result.stdout
        assert summary in result.stdout
    for name, preset in qemrl.ESTIMATORS.items():
        assert name in result.stdout
        assert preset.summary in result.stdout
    for item in ITEMS:
        assert item.name in result.stdout
        assert item.summary in result.stdout
    loaded = (
        "import sys, qemrl.cli.app; qemrl.cli.app.main(['list']); print(sorted({'jax', 'torch'} & set(sys.modules)))"
    )
    fast = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert fast.stdout.splitlines()[-1] == "[]"


def test_help_and_version(capsys):
    result = run("--help")
    assert result.returncode == 0, result.stderr
    for word in COMMANDS:
        assert word in result.stdout
    for arguments, expected in {
        ("reproduce", "--help"): ["--scale", "--out", "--seed", "--again"],
        ("fits", "--help"): ["--out", "--quantiles", "--noise", "--trials", "--seed"],
    }.items():
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        said = capsys.readouterr().out
        for word in expected:
            assert word in said
    main(["--version"])
    assert qemrl.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lst",), "has no command `lst`; did you mean `qemrl list`?"),
        (("xyzzy",), "has no command `xyzzy`; try `qemrl --help`"),
        (("fits", "--sed", "3"), "--seed"),
        (("fits", "--seed", "three"), "--seed"),
        (("fits", "--seed", "-3"), "--seed"),
        (("fits", "--quantiles", "3"), "--quantiles must be at least 4, the highest order; got 3"),
        (("fits", "--noise", "-1.0"), "--noise"),
        (("fits", "--trials", "0"), "--trials must be at least 1; got 0"),
        (("reproduce", "frozen-lak"), "there is no item `frozen-lak`; did you mean `frozen-lake`?"),
        (("reproduce", "table-4", "--scale", "huge"), "--scale"),
        (("reproduce",), "Missing from qemrl reproduce"),
        ((), "list"),
    ],
)
def test_a_mistake_gets_a_hint_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("lst",), ("fits", "--seed", "three"), ("fits", "--trials", "0")])
def test_a_mistake_ends_a_process_with_exit_code_2_and_no_traceback(arguments, tmp_path):
    result = run(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_output_folder_that_is_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").write_text("data")
    with pytest.raises(SystemExit) as ended:
        main(["fits", "--out", "occupied", "--trials", "10"])
    assert ended.value.code == 2
    assert "occupied" in capsys.readouterr().err
    assert (tmp_path / "occupied").read_text() == "data"


def test_fits_draws_the_same_figure_and_table_from_the_same_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = run("fits", "--out", "first", "--trials", "200", "--seed", "0", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "QEM, order 4" in result.stdout
    for name, seed in (("again", "0"), ("other", "1")):
        main(["fits", "--out", name, "--trials", "200", "--seed", seed])
        assert "QEM, order 4" in capsys.readouterr().out
    for file in ("figure.png", "figure.svg", "data.csv"):
        first, again, other = ((tmp_path / name / file).read_bytes() for name in ("first", "again", "other"))
        assert first == again, file
        assert first != other, file
    with (tmp_path / "first" / "data.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    for row in rows:
        assert 0 < float(row["rmse_fixed"]) < 0.15
        if row["estimator"] == "mean":
            assert row["r_squared"] == ""
            assert float(row["rmse_random"]) > 1.8 * float(row["rmse_fixed"])
        else:
            assert 0 < float(row["r_squared"]) < 1


def test_an_interrupt_that_an_import_turns_into_another_error_is_an_interrupt(monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(app, "_check_command", fail)
    with pytest.raises(SystemExit) as end:
        app.main(["list"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "qemrl: interrupted\n"


def test_an_interrupt_ends_fits_without_a_traceback(tmp_path):
    process = subprocess.Popen(
        [QEMRL, "fits", "--trials", "1000000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # The command imports Matplotlib; what it does after that takes much longer than the test.
    while "/matplotlib/" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "qemrl: interrupted"
    assert not list(tmp_path.iterdir())


def test_a_reader_that_goes_away_leaves_no_traceback():
    pipe = f"'{QEMRL}' list | head -n 1"
    result = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Agents")
    assert result.stderr == ""
