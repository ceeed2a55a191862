"""The campaign of faults: it finds nothing in a minute, and would say so if it did."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.chaos.campaign import Record, Worker, list_rows, read_record, write_record
from benchmarks.chaos.kills import FolderWatch, Moment, Strike
from benchmarks.chaos.runs import compare, find_processes
from qemrl.training import checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the campaign needs strace and inotify")


def test_a_short_campaign_tries_everything_finds_nothing_and_goes_on_with_the_next_trials(tmp_path, capsys):
    words = ["chaos", "--minutes", "0.001", "--cores", "3", "--seed", "10", "--subjects", "compiled-loop"]
    words += [
        "--parts",
        "kills",
        "damage",
        "calls",
        "--work",
        str(tmp_path / "work"),
        "--out",
        str(tmp_path / "c.json"),
    ]
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().out
    assert ended.value.code == 0, said
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["trials"] == {"kills": 1, "damage": 1, "calls": 1}
    assert found["failures"] == []
    kinds = ("runs, struck", "damaged files", "calls")
    assert all(any(kind.startswith(start) for kind in found["tried"]) for start in kinds)
    assert "seed 10" in said
    with pytest.raises(SystemExit):
        main([*words[:-4], "--parts", "damage", *words[-4:]])
    assert json.loads((tmp_path / "c.json").read_text())["trials"]["damage"] > 1


def make_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "DONE").write_text("{}")
    checkpoint.save(folder / "checkpoints", 1, {"w": np.arange(3.0)}, {})
    return folder


def test_what_differs_from_the_undisturbed_run_is_found(tmp_path):
    whole = make_run(tmp_path / "whole")
    same, other = (shutil.copytree(whole, tmp_path / name) for name in ("same", "other"))
    assert list(compare(same, whole)) == []
    (other / "DONE").unlink()
    (other / "metrics.jsonl").write_text("{}\n")
    (other / ".DONE.tmp").write_text("")
    checkpoint.save(other / "checkpoints", 1, {"w": np.arange(3.0) + 1}, {})
    assert list(compare(other, whole)) == [
        ("lost", "DONE is missing"),
        ("wrong", ".DONE.tmp is there, and is not in the undisturbed run"),
        ("wrong", "metrics.jsonl has other bytes"),
        ("wrong", "w in the last checkpoint differs"),
    ]
    shutil.rmtree(other / "checkpoints")
    assert ("lost", "the last checkpoint is missing") in list(compare(other, whole))


@pytest.mark.parametrize(
    ("code", "said", "fault"),
    [
        (-signal.SIGTERM, "", None),
        (128 + signal.SIGTERM, "stopped at step 3, and saved", None),
        (0, "finished", None),
        (128 + signal.SIGTERM, "", "it did not say"),
        (None, "", "it did not end"),
        (1, "some error", "it ended with 1"),
        (0, "Traceback (most recent call last)", "Traceback"),
        (
            0,
            "Exception ignored in: <f>\nTraceback (most recent call last):\n  f()\nKeyboardInterrupt: \nfinished",
            None,
        ),
    ],
)
def test_how_a_process_ends_that_was_struck_is_checked(code, said, fault):
    found = Strike(Moment("a time", 1.0), signal.SIGTERM, code, said).find_fault()
    assert (found is None) if fault is None else fault in (found or "")


def test_events_in_a_folder_and_in_new_folders_below_it_are_counted(tmp_path):
    with FolderWatch(tmp_path) as watch:
        assert watch.count_events(0.0) == 0
        (tmp_path / "new").mkdir()
        assert watch.count_events(1.0) == 1
        (tmp_path / "new" / "file").write_text("")
        assert watch.count_events(1.0) == 2  # made and closed


def test_a_trial_that_kills_its_process_is_a_failure(tmp_path):
    worker = Worker("nothing", 0, tmp_path)
    outcome = worker.attempt("nothing", 0)
    assert outcome is not None
    assert outcome["failures"][0]["verdict"] == "traceback"
    record = Record(0)
    record.add("nothing", 0, outcome)
    write_record(record, tmp_path / "record.json")
    found = read_record(tmp_path / "record.json")
    assert found is not None
    assert list_rows(found) == [["nothing, the process", "0", "0", "0", "1", "0"]]


def test_workers_of_sweeps_are_found_by_the_folder_of_their_run(tmp_path):
    words = ["-c", "import time; time.sleep(60)", "qemrl.experiments.worker", str(tmp_path / "runs" / "x")]
    with subprocess.Popen([sys.executable, *words]) as process:
        while str(tmp_path / "runs" / "x") not in Path(f"/proc/{process.pid}/cmdline").read_text():
            time.sleep(0.01)
        assert list(find_processes(tmp_path)) == [process.pid]
        assert list(find_processes(tmp_path / "other")) == []
        process.kill()
