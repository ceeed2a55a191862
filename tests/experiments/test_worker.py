"""Processes that do runs: who they belong to, and what they import."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from qemrl.envs.gym.catalog import UnknownEnvironment
from qemrl.experiments.worker import FAILED, work, worker_command
from qemrl.training.config import configure, create_run
from qemrl.training.loops import ImportRefused

FLEETING = """
import os, pathlib, subprocess, sys
from qemrl.experiments.worker import worker_command
print(subprocess.Popen(worker_command(pathlib.Path(sys.argv[1])), stdout=subprocess.DEVNULL).pid, flush=True)
os._exit(0)
"""
"""A driver that dies as soon as it has started a worker."""


def test_a_worker_whose_driver_died_before_it_began_stops_at_once(tmp_path):
    run = create_run(tmp_path / "run", configure("dqn", "probe/1", 10**9), {})
    words = [sys.executable, "-c", FLEETING, str(run.path)]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    until = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(pid)
    assert not (run.path / "lock").exists()  # it had not begun


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout


def test_a_worker_is_of_the_process_that_its_command_names(tmp_path):
    run = create_run(tmp_path / "run", configure("dqn", "probe/1", 10**9), {})
    *words, parent, module = worker_command(run.path)
    assert (parent, module) == (str(os.getpid()), "")
    ended = subprocess.run([*words, "1", module], check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert not (run.path / "lock").exists()


def test_a_worker_imports_the_module_that_it_is_told_and_none_that_a_file_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.py").touch()
    (tmp_path / "named.py").write_text("raise SystemExit('imported')")
    for module, allowed in (("named", ""), ("named", "told"), ("told", "told")):
        run = create_run(tmp_path / f"{module}-{allowed}", configure("dqn", f"{module}:Unknown-v0", 40), {})
        with pytest.raises(ImportRefused if module == "named" else UnknownEnvironment) as raised:
            work(run.path, allowed)
        cause = json.loads((run.path / FAILED).read_text())["cause"]
        assert str(raised.value) in cause
        assert ("'named', which can do anything" in cause) == (module == "named")
        assert (module in sys.modules) == (module == "told")
    del sys.modules["told"]
