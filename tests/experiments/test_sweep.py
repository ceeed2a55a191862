"""Sweeps: every run comes to the same end, whoever does it and however often somebody is killed.

The sweeps of this file share compiled programs and one sweep that nothing happened to; see tests/conftest.py.
"""

import ast
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from qemrl.cli.app import main
from qemrl.cli.console import print_table
from qemrl.cli.sweep import status_table
from qemrl.experiments.engines import EndedRun, LocalEngine, Needs
from qemrl.experiments.grid import Grid
from qemrl.experiments.ray_engine import LOOPBACK
from qemrl.experiments.sweep import RunStatus, State, Sweep
from qemrl.experiments.worker import FAILED
from qemrl.training import checkpoint

QEMRL = Path(sys.executable).parent / "qemrl"
GRID = """
presets = ["dqn", "qem-dqn"]
envs = ["probe/2"]
seeds = 2
steps = 1600

[overrides]
network.widths = [8]
batch_size = 8
learning_starts = 40
log_every = 40
evaluate_every = 400
checkpoint_every = 160
evaluation_episodes = 2
"""
SMALL = {
    "network": {"widths": [8]},
    "batch_size": 8,
    "learning_starts": 40,
    "log_every": 40,
    "evaluate_every": 40,
    "checkpoint_every": 40,
    "evaluation_episodes": 2,
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    file = tmp_path_factory.mktemp("grid") / "grid.toml"
    file.write_text(GRID)
    return file


@pytest.fixture(scope="module")
def finished(grid, tmp_path_factory):
    """The folder of a sweep that nothing happened to; its programs are compiled when it is there."""
    out = tmp_path_factory.mktemp("finished")
    process = start(grid, out)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "4 finished" in said
    return out


@pytest.fixture(scope="module")
def untouched(finished):
    """The files of a sweep that nothing happened to."""
    return files(finished)


def start(grid: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    words = [QEMRL, "sweep", str(grid), "--out", str(out), *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(out: Path) -> dict[str, bytes]:
    """All that a sweep has to show for itself: no clocks, no logs, and of the checkpoints the last."""
    found = {}
    for run in sorted((out / "runs").iterdir()):
        assert (run / "DONE").exists(), run
        last = max(path.name for path in (run / "checkpoints").iterdir())
        for path in sorted(run.rglob("*")):
            name = path.relative_to(run)
            if path.is_file() and name.parts[0] not in ("timing.jsonl", "SHA256SUMS", "log.txt", "lock"):
                if name.parts[0] == "checkpoints" and name.parts[1] != last:
                    continue
                found[f"{run.name}/{name}"] = path.read_bytes()
        record = json.loads(found[f"{run.name}/config.json"])  # the commit may change while tests are written
        found[f"{run.name}/config.json"] = json.dumps([record["config"], record["extra"]]).encode()
    return found


def records(out: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in out.glob("runs/*/metrics.jsonl"))


def wait_for_records(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    while records(out) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_runs_end_the_same_after_three_kills(grid, untouched, tmp_path):
    chance = random.Random(7)
    for kill in range(3):
        process = start(grid, tmp_path)
        wait_for_records(tmp_path, records(tmp_path) + chance.randint(10, 40), process)
        if kill == 1:  # a run, too, not only who drives it; the others go on
            ours = [pid for pid in children(process.pid) if pid != process.pid]
            os.kill(chance.choice(ours), signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.communicate()
    process = start(grid, tmp_path)
    said, errors = process.communicate()
    assert process.returncode == 0, said + errors
    assert files(tmp_path) == untouched


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_finished_sweep_is_left_alone(grid, finished, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    main(["sweep", str(grid), "--out", str(out)])
    assert "4 runs in" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    # One that is lost is done again, and nothing else.
    lost, *kept = sorted((out / "runs").iterdir())
    (lost / "DONE").unlink()
    main(["sweep", str(grid), "--out", str(out)])
    assert (lost / "DONE").exists()
    for run in kept:
        times = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        assert times == {path: when for path, when in before.items() if run in path.parents}


@pytest.mark.usefixtures("finished")
def test_failures_are_listed_with_their_cause_and_stop_nobody(tmp_path, capsys):
    file = tmp_path / "grid.toml"
    rate = '[overrides."dqn+wild"]\noptimizer.learning_rate = 1e38\n'
    file.write_text(GRID.replace('"dqn", "qem-dqn"', '"dqn+wild", "dqn"').replace("seeds = 2", "seeds = 1") + rate)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(file), "--out", str(out)])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "1 finished" in said.out
    assert "1 failed" in said.out
    assert "NonFiniteTrainingError: seed 0 met a number that is not finite" in said.err
    assert "1 of 2 runs failed; try them again with: qemrl sweep" in said.err
    (failed,) = out.glob(f"runs/*/{FAILED}")
    assert "Traceback" in json.loads(failed.read_text())["traceback"]


@pytest.mark.usefixtures("finished")
def test_a_folder_that_is_in_the_way_is_a_failure_of_that_run_only(tmp_path):
    sweep = Sweep(Grid(["dqn"], ["probe/2"], 2, 40, SMALL), tmp_path)
    first, second = sweep.statuses
    first.mkdir(parents=True)
    (first / "something").touch()
    statuses = sweep.drive(LocalEngine(1), dict.fromkeys(sweep.statuses, Needs(0)), lambda _: None, lambda: False)
    assert [status.state for status in statuses] == [State.FAILED, State.FINISHED]
    assert "is not empty and holds no run" in (statuses[0].cause or "")
    assert statuses[1].step == 40
    assert statuses[1].score is not None
    assert second.exists()


class Pretended:
    """An engine that finishes a run whenever it is asked, and keeps to two at a time."""

    def __init__(self) -> None:
        self.going: list[Path] = []
        self.most = 0
        self.order: list[Path] = []
        self.stopped = False

    @property
    def cores(self) -> int:
        return 2

    def has_room(self, needs: Needs) -> bool:
        return len(self.going) < 2 and needs.memory_bytes < 100

    def start(self, path: Path, needs: Needs) -> None:
        del needs
        self.going.append(path)
        self.order.append(path)
        self.most = max(self.most, len(self.going))

    def poll(self) -> list[EndedRun]:
        if not self.going:
            return []
        path = self.going.pop(0)
        (path / "DONE").write_text("{}")
        return [EndedRun(path, None)]

    def interrupt(self, path: Path) -> None:
        self.going.remove(path)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


def test_runs_are_handed_over_in_order_and_only_where_there_is_room(tmp_path):
    sweep = Sweep(Grid(["dqn", "qr-dqn"], ["probe/1"], 3, 40, SMALL), tmp_path)
    engine = Pretended()
    seen: list[int] = []
    statuses = sweep.drive(
        engine,
        dict.fromkeys(sweep.statuses, Needs(1)),
        lambda statuses: seen.append(sum(each.state is State.FINISHED for each in statuses)),
        lambda: False,
    )
    assert engine.order == list(sweep.statuses)
    assert engine.most == 2
    assert seen[-1] == len(statuses) == 6
    assert json.loads((tmp_path / "grid.json").read_text())["presets"] == ["dqn", "qr-dqn"]


def test_asked_to_stop_it_starts_nothing_more(tmp_path):
    sweep = Sweep(Grid(["dqn"], ["probe/1"], 5, 40, SMALL), tmp_path)
    engine = Pretended()
    statuses = sweep.drive(
        engine, dict.fromkeys(sweep.statuses, Needs(1)), lambda _: None, lambda: len(engine.order) >= 2
    )
    assert engine.stopped
    states = [status.state for status in statuses]
    assert states.count(State.WAITING) == 3


def test_the_local_engine_keeps_to_its_cores_and_to_memory(tmp_path):
    engine = LocalEngine(3)
    engine.memory = 100.0
    assert engine.has_room(Needs(10**12, cpus=9))  # alone it may try
    process = subprocess.Popen(["true"])
    engine.running[tmp_path / "a"] = (process, Needs(60))
    assert engine.has_room(Needs(40))
    assert not engine.has_room(Needs(41))
    assert engine.has_room(Needs(40, cpus=2))
    assert not engine.has_room(Needs(40, cpus=3))
    engine.running[tmp_path / "b"] = (process, Needs(1, cpus=2))
    assert not engine.has_room(Needs(1))
    process.wait()


def test_the_table_of_runs_fits_a_terminal_and_is_whole_elsewhere(capsys):
    env = "minatar/space_invaders"
    runs = Grid(("iqn+stratified", "qr-dqn"), (env,), seeds=1, steps=10_000_000).runs()
    statuses = [RunStatus(run, Path("x"), State.FINISHED, 10_000_000, 12_345.6, -1234.5) for run in runs]
    shown = status_table(statuses, 1)
    terminal = io.StringIO()
    Console(width=80, file=terminal).print(shown)
    assert f"iqn+stratified {env}    0 finished 100%  12,346 -1,234.5" in terminal.getvalue()
    assert "… and 1 more" in terminal.getvalue()
    shown.columns[1].header = "a long name of an environment " * 4
    print_table(shown)
    assert shown.columns[1].header in capsys.readouterr().out


def test_two_processes_cannot_drive_one_sweep(tmp_path):
    grid = Grid(["dqn"], ["probe/1"], 1, 40, SMALL)
    sweep = Sweep(grid, tmp_path)
    with sweep._lock(), pytest.raises(Exception, match="is being driven by process"):
        Sweep(grid, tmp_path).drive(Pretended(), {}, lambda _: None, lambda: False)


@pytest.mark.usefixtures("finished")
def test_ctrl_c_saves_and_says_how_to_go_on(grid, tmp_path):
    process = start(grid, tmp_path)
    wait_for_records(tmp_path, 20, process)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate()
    assert process.returncode == 130
    assert "stopped, and saved; resume: qemrl sweep" in errors
    assert "stopped" in said
    begun = [run for run in (tmp_path / "runs").iterdir() if (run / "metrics.jsonl").exists()]
    for run in begun:
        if not (run / "DONE").exists():
            found = checkpoint.load_latest(run / "checkpoints")
            assert found is not None
            lines = (run / "metrics.jsonl").read_bytes()
            assert found.meta["metrics_bytes"] == len(lines)


@pytest.mark.usefixtures("finished")
def test_the_dry_run_counts_runs_hours_memory_and_storage(tmp_path, monkeypatch, capsys):
    file = tmp_path / "grid.toml"
    # Markup in a name is shown as it is, and a package of the working folder is none.
    reward = '[overrides."CartPole-v1"]\nenv_kwargs.sutton_barto_reward = "[/red]"\n'
    file.write_text(GRID.replace('"probe/2"', '"CartPole-v1", "probe/2"').replace('"dqn", "qem-dqn"', '"dqn"') + reward)
    (tmp_path / "optax.py").write_text("raise SystemExit('the working folder was searched for a package')")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    main(["sweep", str(file), "--out", str(out), "--dry-run", "--trial-seconds", "0.2"])
    said = capsys.readouterr().out
    assert "4 runs, 0 of them finished, 4 to do" in said
    assert sum(line.rstrip().endswith("a trial") for line in said.splitlines()) == 2
    assert "core-hours" in said
    assert "sutton_barto_reward=[/red]" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.toml"], "there is no file nothing.toml"),
        (["minitar"], "did you mean 'minatar'"),
        (["minatar", "--address", "auto"], "--address is for --engine ray"),
        (["minatar", "--gpus-per-run", "1"], "--gpus-per-run is for --engine ray"),
        (["minatar", "--engine", "ray", "--address", "auto", "--cores", "2"], "--cores is for this machine"),
        (["modules.toml", "--dry-run"], "modules.toml: the environment, a.b:C-v0, would import the module 'a.b'"),
        (["minatar", "--cores", "0"], "--cores must be at least 1"),
        (["minatar", "--cpus-per-run", "0"], "--cpus-per-run must be at least 1"),
        (["minatar", "--memory-per-run", "0"], "--memory-per-run must be positive"),
        (
            ["minatar", "--memory-per-run", "inf"],
            "--memory-per-run must be positive, and at most 1,000,000 GB; got inf",
        ),
        (["minatar", "--retries", "1000000000000"], "--retries must be at least 0 and at most 1,000,000"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("modules.toml").write_text('presets = ["dqn"]\nenvs = ["a.b:C-v0"]\nseeds = 1\nsteps = 10\n')
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *words, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def cluster():
    """Tells a cluster what to do, and gives its address."""
    words = [sys.executable, "-m", "benchmarks.chaos.ray_cluster"]
    variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(what: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            while True:
                said = process.stdout.readline()
                assert said, "the cluster has ended"
                if said.startswith(LOOPBACK):
                    return said.strip()

        yield tell
        process.stdin.close()


def test_ray_ends_the_same_after_a_node_and_the_driver_were_killed(untouched, cluster, tmp_path):
    """Two of the runs, one on each node: that of the first node is done again on the second, where the other is."""
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID.replace('"dqn", "qem-dqn"', '"dqn"'))
    cluster("add")
    address = cluster("add")
    options = ("--engine", "ray", "--address", address, "--memory-per-run", "0.5")
    process = start(grid, out, *options)
    wait_for_records(out, 10, process)
    cluster("kill node")
    wait_for_records(out, 55, process)  # of 80: more than one run has
    process.kill()
    process.communicate()
    process = start(grid, out, *options)
    said, errors = process.communicate()
    assert process.returncode == 0, said + errors
    found = files(out)
    assert len(list((out / "runs").iterdir())) == 2
    assert found == {name: content for name, content in untouched.items() if name.startswith("dqn_")}


STARTED_HERE = """
from pathlib import Path
from qemrl.experiments.ray_engine import RayEngine

def listening():
    \"\"\"Local addresses, in the kernel's hexadecimal, of sockets that listen.\"\"\"
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {words[1] for words in lines if words[3] == "0A"}

def find_folders():
    \"\"\"Where a process of the cluster imports from.\"\"\"
    import sys
    return sys.path

before = listening()
engine = RayEngine(None, 1)
remote = engine.ray.get(engine.ray.remote(find_folders).remote())
new = {address.partition(":")[0] for address in listening() - before}
engine.close()
print((sorted(new), remote))
"""


def test_a_cluster_that_is_started_here_listens_on_the_loopback_interface_only_and_imports_nothing_from_here(tmp_path):
    words = [sys.executable, "-c", STARTED_HERE]
    result = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    addresses, folders = ast.literal_eval(result.stdout.splitlines()[-1])
    assert not {"", ".", str(tmp_path)} & set(folders)
    found = set(addresses)
    assert found  # it does listen
    assert found <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"), ("nowhere", "HOST:PORT or `auto`, got 'nowhere'")],
)
def test_a_cluster_that_is_not_there_is_said_so(address, message, grid, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(grid), "--out", str(tmp_path / "out"), "--engine", "ray", "--address", address])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
