"""Keeping what items give: folders that are whole or not there, the ledger, and the command."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from qemrl.cli.app import main
from qemrl.experiments.statistics import Interval
from qemrl.paper import reproduce
from qemrl.paper.catalog import BY_NAME, ITEMS
from qemrl.paper.claims import Claim, Item, Result, judge

QEMRL = Path(sys.executable).parent / "qemrl"
ROOT = Path(__file__).parents[2]


def toy(fail: bool = False) -> Item:
    def run(scale, seed, tick) -> Result:
        if fail:
            raise KeyboardInterrupt
        tick(1.0)
        figure = Figure(figsize=(2, 2))
        figure.subplots().plot([0, seed])
        measured = Interval(0.5, 0.4, 0.6)
        claim = Claim("toy", "nowhere", "it is big", "above 0.1", measured, "size", judge(measured, above=0.1))
        return Result([{"scale": scale, "seed": seed}], figure, [claim], ["a note"])

    return Item("toy", "nowhere", "a toy", run)


def quiet(share: float) -> None:
    assert 0 <= share <= 1


def test_an_item_leaves_data_figure_and_claims(tmp_path):
    folder = reproduce.run_item(toy(), "smoke", 3, tmp_path, quiet)
    assert sorted(path.name for path in folder.iterdir()) == ["claims.json", "data.csv", "figure.png", "figure.svg"]
    with (folder / "data.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"scale": "smoke", "seed": "3"}]
    report = json.loads((folder / "claims.json").read_text())
    assert report["claims"][0]["verdict"] == "holds"
    assert report["claims"][0]["measured"] == {"value": 0.5, "low": 0.4, "high": 0.6}
    assert (report["scale"], report["seed"], report["notes"]) == ("smoke", 3, ["a note"])


def test_what_is_done_depends_on_scale_and_seed(tmp_path):
    assert not reproduce.is_done(tmp_path, toy(), "smoke", 3)
    reproduce.run_item(toy(), "smoke", 3, tmp_path, quiet)
    assert reproduce.is_done(tmp_path, toy(), "smoke", 3)
    assert not reproduce.is_done(tmp_path, toy(), "small", 3)
    assert not reproduce.is_done(tmp_path, toy(), "smoke", 4)


def test_an_interrupted_run_keeps_the_results_before_it(tmp_path):
    reproduce.run_item(toy(), "smoke", 3, tmp_path, quiet)
    before = (tmp_path / "toy" / "claims.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        reproduce.run_item(toy(fail=True), "smoke", 4, tmp_path, quiet)
    assert (tmp_path / "toy" / "claims.json").read_bytes() == before


def test_the_ledger_lists_the_claims_of_what_was_run(tmp_path):
    assert reproduce.ledger(tmp_path, [toy()]).count("\n") == 2
    reproduce.run_item(toy(), "smoke", 3, tmp_path, quiet)
    line = reproduce.ledger(tmp_path, [toy()]).splitlines()[-1]
    assert line == "| toy | toy | nowhere | it is big | 0.5 [0.4, 0.6]: size | **holds** |"


@pytest.mark.parametrize(
    ("measured", "thresholds", "verdict"),
    [
        (Interval(2.0, 1.5, 2.5), {"above": 1.0}, "holds"),
        (Interval(2.0, 0.5, 3.5), {"above": 1.0}, "depends"),
        (Interval(0.5, 0.1, 0.9), {"above": 1.0}, "fails"),
        (Interval.exact(1.0), {"above": 1.0}, "fails"),
        (Interval(0.5, 0.1, 0.9), {"below": 1.0}, "holds"),
        (Interval(2.0, 1.0, 3.0), {"below": 1.0}, "fails"),
        (Interval(1.0, 0.5, 1.5), {"below": 1.0}, "depends"),
    ],
)
def test_a_verdict_needs_the_whole_interval(measured, thresholds, verdict):
    assert judge(measured, **thresholds) == verdict


def test_a_claim_has_one_threshold():
    with pytest.raises(ValueError, match="one threshold"):
        judge(Interval.exact(1.0))
    with pytest.raises(ValueError, match="one threshold"):
        judge(Interval.exact(1.0), above=0.0, below=2.0)


def test_every_item_of_the_catalog_is_there_under_its_name():
    assert len(BY_NAME) == len(ITEMS) == 15
    for item in ITEMS:
        assert item.summary


def test_the_command_runs_an_item_and_skips_it_the_second_time(tmp_path, monkeypatch, capsys):
    command = ("reproduce", "model-selection", "--scale", "smoke", "--out", "here")
    first = subprocess.run([QEMRL, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "here" / "model-selection" / "figure.png").exists()
    monkeypatch.chdir(tmp_path)
    main(command)
    assert "already there" in capsys.readouterr().out


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def run(scale, seed, tick) -> Result:
        del scale, seed
        tick(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it goes on")

    monkeypatch.setitem(BY_NAME, "endless", Item("endless", "nowhere", "a toy", run))
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "endless", "--out", str(tmp_path)])
    assert ended.value.code == 130
    assert "finished: nothing. The same command goes on from there." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_ledger_in_the_docs_is_that_of_the_committed_results():
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    assert reproduce.ledger(ROOT / "results" / "paper", ITEMS) in page
    for item in ITEMS:
        report = reproduce.read_report(ROOT / "results" / "paper", item.name)
        assert report is not None
        assert report["scale"] == "paper", item.name
