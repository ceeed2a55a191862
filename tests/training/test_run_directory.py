"""The folder of a run."""

import errno
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qemrl
from qemrl.training import checkpoint
from qemrl.training.files import RunLockedError, RunWriteError, write_atomic
from qemrl.training.machine import file_commit
from qemrl.training.run_directory import ChangedConfigError, RunDirectory, RunExistsError

CONFIG = {"type": "Run", "steps": 10, "estimator": {"type": "QEM", "order": 4}, "sizes": (1, 2)}


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", CONFIG, {})


def test_a_new_run_says_what_was_asked_for_and_what_runs_it(tmp_path):
    run = RunDirectory.create(tmp_path / "deep" / "run", CONFIG, {"protocol": "sticky"})
    text = (run.path / "config.json").read_text()
    record = json.loads(text)
    assert record["config"] == run.config == {**CONFIG, "sizes": [1, 2]}
    assert record["extra"] == {"protocol": "sticky"}
    assert record["qemrl"] == qemrl.__version__
    versions = {"jax": jax.__version__, "numpy": np.__version__, "gymnasium": gymnasium.__version__}
    assert record["versions"] == versions | {"python": sys.version.split()[0]}
    assert text == json.dumps(record, indent=2, sort_keys=True) + "\n"
    assert [path.name for path in run.path.iterdir()] == ["config.json"]
    assert not run.done


def test_the_commit_is_that_of_the_package_and_of_nothing_around_it(tmp_path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    kept, installed = tmp_path / "kept.py", tmp_path / "installed.py"
    assert file_commit(kept) is None
    git("init")
    kept.touch()
    installed.touch()
    git("add", "kept.py")
    git("commit", "-m", "first")
    assert file_commit(kept) == git("rev-parse", "HEAD")
    assert file_commit(installed) is None
    assert file_commit(tmp_path / "missing" / "file.py") is None
    kept.write_text("changed")
    assert file_commit(kept) == git("rev-parse", "HEAD") + " with changes"


def test_the_same_configuration_opens_the_run_again(run):
    before = (run.path / "config.json").read_bytes()
    run.append({"step": 1})
    again = RunDirectory.create(run.path, CONFIG, {"protocol": "another"})
    assert again.config == run.config
    assert again.read_metrics() == [{"step": 1}]
    assert (run.path / "config.json").read_bytes() == before
    assert RunDirectory(run.path).config == run.config


def test_another_configuration_is_refused_field_by_field(run):
    other = {"type": "Run", "steps": True, "estimator": {"type": "QEM", "order": 3}, "sizes": [1, 3], "new": 1}
    with pytest.raises(RunExistsError) as caught:
        RunDirectory.create(run.path, other, {})
    message = str(caught.value)
    for part in [
        "estimator.order is 4 there, but 3 is asked for",
        "sizes is [1, 2] there, but [1, 3] is asked for",
        "steps is 10 there, but true is asked for",
        "new is only asked for",
        "--out",
        f"qemrl resume {run.path}",
    ]:
        assert part in message
    assert "type" not in message
    with pytest.raises(RunExistsError, match="sizes is only there"):
        RunDirectory.create(run.path, {key: CONFIG[key] for key in CONFIG if key != "sizes"}, {})


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        RunDirectory.create(tmp_path, CONFIG, {})
    with pytest.raises(ValueError, match="is a file"):
        RunDirectory.create(tmp_path / "thesis.tex", CONFIG, {})
    with pytest.raises(ValueError, match="holds no run"):
        RunDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_or_one_where_the_beginning_crashed_will_do(tmp_path):
    (tmp_path / ".config.json.99.tmp").write_text("{")
    assert RunDirectory.create(tmp_path, CONFIG, {}).config["steps"] == 10


@pytest.mark.parametrize("text", ["{", "[]", '{"versions": 1}', ""])
def test_a_damaged_config_is_named(run, text):
    (run.path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        RunDirectory(run.path)


def test_metrics_are_one_object_a_line_and_there_at_once(run):
    assert run.read_metrics() == []
    assert run.metrics_bytes == 0
    run.append({"step": 5, "rollout/ep_rew_mean": 1.5, "train/loss": np.float32(0.25)})
    line = b'{"step": 5, "rollout/ep_rew_mean": 1.5, "train/loss": 0.25}\n'
    assert (run.path / "metrics.jsonl").read_bytes() == line
    assert run.metrics_bytes == len(line)
    run.append({"step": np.int64(6), "a": jnp.float32(0.5), "b": [1, math.nan], "c": np.array([np.inf, 1]), "d": None})
    expected = {"step": 6, "a": 0.5, "b": [1, None], "c": [None, 1.0], "d": None}
    assert run.read_metrics()[1] == expected
    run.append_timing({"step": 6, "time/fps": 100.0})
    run.append_timing({"step": 7, "time/fps": 101.0})
    assert (run.path / "timing.jsonl").read_text().splitlines()[1] == '{"step": 7, "time/fps": 101.0}'
    assert len(run.read_metrics()) == 2
    assert [record["step"] for record in run.read_timing()] == [6, 7]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"a": 1}, "under 'step', got None"),
        ({"step": -1}, "got -1"),
        ({"step": True}, "got True"),
        ({"step": 1.0}, "got 1.0"),
        ({"step": 1, "a": {"b": object()}}, r"\['a'\]\['b'\] holds a object"),
        ({"step": 1, "a": {1: 2}}, r"names must be text, got 1 in \['a'\]"),
    ],
)
def test_a_record_that_is_none_is_refused(run, record, message):
    with pytest.raises(ValueError, match=message):
        run.append(record)
    assert run.metrics_bytes == 0


def test_a_resumed_file_equals_the_uninterrupted_one_byte_for_byte(run):
    for step in (0, 1):
        run.append({"step": step, "x": step / 3})
    at_checkpoint = run.metrics_bytes
    for step in (2, 3):
        run.append({"step": step, "x": step / 3})
    whole = (run.path / "metrics.jsonl").read_bytes()
    run.truncate_metrics(at_checkpoint)
    assert [record["step"] for record in run.read_metrics()] == [0, 1]
    run.append({"step": 2, "x": 2 / 3})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "x": 0.')  # killed here
    run.truncate_metrics(at_checkpoint)
    for step in (2, 3):
        run.append({"step": step, "x": step / 3})
    assert (run.path / "metrics.jsonl").read_bytes() == whole
    run.truncate_metrics(0)
    assert run.metrics_bytes == 0


@pytest.mark.parametrize("half", ['{"step": 3, "x": 0.', '{"step": 3}', "{" + " " * 10_000, "\x00"])
def test_half_a_last_line_is_not_read_and_the_next_line_takes_its_place(run, half):
    run.append({"step": 2})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(half)
    assert run.read_metrics() == [{"step": 2}]
    run.append({"step": 3})
    assert run.read_metrics() == [{"step": 2}, {"step": 3}]


def test_half_a_first_line_is_replaced(run):
    (run.path / "timing.jsonl").write_text('{"st')
    run.append_timing({"step": 0})
    assert (run.path / "timing.jsonl").read_text() == '{"step": 0}\n'


def test_a_damaged_line_in_the_middle_is_named(run):
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2, is not JSON"):
        run.read_metrics()


def write_metrics(run: RunDirectory, steps: range) -> None:
    for step in steps:
        run.append({"step": step, "seed": 0, "x": step / 3})
        run.append_timing({"step": step, "time/fps": 1.0, "machine": "a"})


@pytest.mark.parametrize("checksum", [True, False], ids=["with checksum", "of an older version"])
@pytest.mark.parametrize(
    ("damage", "loss"),
    [
        (lambda lines: [*lines[:2], lines[2][:9]], ["metrics.jsonl: what came after step 1 was lost"]),
        (lambda lines: lines[:2], ["metrics.jsonl: what came after step 1 was lost"]),
        (lambda lines: lines[:0], ["metrics.jsonl: what came after step 0 was lost"]),
        (lambda lines: [lines[0], lines[1].replace(b"{", b"["), *lines[2:]], ["metrics.jsonl: line 2 was damaged"]),
        (lambda lines: [lines[0].replace(b"seed", b"seef"), *lines[1:]], ["metrics.jsonl: line 1 was damaged"]),
        (lambda lines: [b"[" * 100_000 + b"\n", *lines[1:]], ["metrics.jsonl: line 1 was damaged"]),
    ],
    ids=["cut in a line", "cut", "gone", "a bit of the syntax", "a bit of a name", "nested"],
)
def test_metrics_that_were_damaged_before_the_checkpoint_are_mended_as_far_as_they_go(run, damage, loss, checksum):
    write_metrics(run, range(3))
    meta = {name: value for name, value in run.describe().items() if checksum or name == "metrics_bytes"}
    write_metrics(run, range(3, 5))
    assert run.has_metrics_of(meta)
    whole = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    changed = damage(whole[:3])
    longer = [*changed, *whole[3:]] if "line" in loss[0] else changed
    (run.path / "metrics.jsonl").write_bytes(b"".join(longer))
    assert not run.has_metrics_of(meta)
    assert run.restore_metrics(2, meta) == run.damage == run.describe()["damage"] == loss
    assert run.read_metrics() == [json.loads(line) for line in whole[:3] if line in changed]
    if "line" in loss[0]:
        assert (run.path / "metrics.jsonl.damaged").read_bytes() == b"".join(longer)


def test_a_number_that_was_changed_is_noticed(run):
    write_metrics(run, range(3))
    meta, file = run.describe(), run.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b"0.33", b"0.73"))
    assert not run.has_metrics_of(meta)
    assert run.restore_metrics(2, meta) == ["metrics.jsonl has a wrong checksum: some of its numbers may be wrong"]
    run.finish({"step": 2})
    assert RunDirectory(run.path).find_damage() == run.damage


def test_a_damaged_line_of_times_goes_when_the_run_is_resumed(run):
    write_metrics(run, range(1))
    (run.path / "timing.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    assert run.restore_metrics(0, run.describe()) == ["timing.jsonl: line 2 was damaged"]
    assert run.read_timing() == [{"step": 1}, {"step": 2}]


def test_lines_of_times_that_are_gone_are_counted(run):
    write_metrics(run, range(3))
    meta = run.describe()
    (run.path / "timing.jsonl").write_text('{"step": 0}\n{"step')
    assert run.restore_metrics(2, meta) == ["timing.jsonl has lost 2 of 3 lines"]
    (run.path / "timing.jsonl").unlink()
    assert run.restore_metrics(2, meta) == ["timing.jsonl has lost 3 of 3 lines"]


def test_what_changes_in_a_finished_run_is_noticed(run):
    write_metrics(run, range(3))
    run.append_timing({"step": 2, "time/fps": 5.0})
    run.finish({"step": 2})
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=run.path, capture_output=True, check=False)
    assert checked.returncode == 0
    assert run.is_verified
    assert run.find_damage() == []
    for name in ("metrics.jsonl", "timing.jsonl"):
        file = run.path / name
        content = file.read_bytes()
        file.write_bytes(content.replace(b"2", b"3"))
        assert run.find_damage() == [f"{name} is not what it was when the run finished: its checksum is another"]
        file.unlink()
        assert run.find_damage() == [f"{name} is missing"]
        file.write_bytes(content)
    for text, message in [("{", "cannot be read"), ("[" * 100_000, "nested too deeply"), ("[]", "no JSON object")]:
        (run.path / "DONE").write_text(text)
        [sentence] = RunDirectory(run.path).find_damage()
        assert message in sentence
    run.finish({"step": 2})
    (run.path / "SHA256SUMS").unlink()
    assert "unverified" in run.find_damage()[0]


def test_a_changed_setting_is_named(run):
    file = run.path / "config.json"
    whole = file.read_text()
    file.write_text(whole.replace('"order": 4', '"order": 6'))
    with pytest.raises(ChangedConfigError, match="its checksum is wrong"):
        RunDirectory(run.path)
    checkpoint.save(run.checkpoints, 7, {}, {"config": run.config})
    with pytest.raises(
        ChangedConfigError, match=r"estimator.order is 6 in config.json, but 4 in the checkpoint of step 7"
    ):
        RunDirectory(run.path)
    file.write_text(whole)
    run.finish({"step": 10})
    assert RunDirectory(run.path).config == run.config
    other = RunDirectory.create(run.path.parent / "other", CONFIG | {"steps": 11}, {})
    shutil.copy(other.path / "config.json", file)
    with pytest.raises(ChangedConfigError, match=r"steps is 11 in config.json, but 10 in DONE"):
        RunDirectory(run.path)


def test_a_run_without_checksums_is_read_as_unverified(run):
    record = json.loads((run.path / "config.json").read_text())
    del record["digest"]
    (run.path / "config.json").write_text(json.dumps(record))
    (run.path / "DONE").write_text('{"step": 10}')
    old = RunDirectory(run.path)
    assert not old.is_verified
    assert old.find_damage() == []


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "checkpoints", "DONE"])
def test_a_link_out_of_a_run_is_refused_and_a_pipe_does_not_block(run, name, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (run.path / name).symlink_to(outside)
    with pytest.raises(ValueError, match=rf"{name} is a link that leads out of the run, to .*outside"):
        RunDirectory(run.path)
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    with pytest.raises(ValueError, match=rf"{name} is neither a file nor a folder; remove it"):
        RunDirectory(run.path)
    (run.path / name).unlink()
    (run.path / "kept").mkdir()
    (run.path / name).symlink_to("kept")
    RunDirectory(run.path)


def test_an_evaluation_that_was_changed_or_is_a_pipe_is_refused(run):
    file = run.write_evaluation("a", {"returns": [1.0, 2.0]})
    assert run.read_evaluation("a") == {"returns": [1.0, 2.0]}
    file.write_text(file.read_text().replace("2.0", "3.0"))
    with pytest.raises(ValueError, match=r"a.json has a wrong checksum"):
        run.read_evaluation("a")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="not a regular file"):
        run.read_evaluation("a")


def test_evaluations_and_the_end_are_written_as_wholes(run):
    path = run.write_evaluation("step_10", {"returns": np.array([1.0, 2.0]), "episodes": [{"length": 3}]})
    assert path == run.path / "evaluations" / "step_10.json"
    assert run.read_evaluation("step_10") == {"returns": [1.0, 2.0], "episodes": [{"length": 3}]}
    assert run.write_evaluation("step_10", {}) == path
    assert run.read_evaluation("step_10") == {}
    assert run.read_evaluation("step_11") is None
    for name in ("", "a/b", "..", ".hidden", "../x"):
        with pytest.raises(ValueError, match="name of an evaluation"):
            run.write_evaluation(name, {})
    assert [item.name for item in path.parent.iterdir()] == ["step_10.json"]
    assert not run.done
    run.finish({"steps": 10})
    assert RunDirectory(run.path).done
    assert run.read_done() == {"steps": 10, "config": run.config}
    assert run.checkpoints == run.path / "checkpoints"


def test_a_second_process_is_told_who_holds_the_run(run):
    program = """
        import sys
        from pathlib import Path
        from qemrl.training.run_directory import RunDirectory
        from qemrl.training.files import RunLockedError
        run = RunDirectory(Path(sys.argv[1]))
        try:
            with run.lock():
                pass
        except RunLockedError as error:
            print(error)
        print("waiting", flush=True)
        sys.stdin.readline()
        with run.lock():
            print("held", flush=True)
            sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        with run.lock():
            assert f"is being written by process {os.getpid()} on " in other.stdout.readline()
            assert other.stdout.readline() == "waiting\n"
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match=f"process {other.pid} on "), run.lock():
            pass
        other.kill()
        other.wait()
        with run.lock():
            pass


def test_a_lock_is_held_against_the_same_process_and_released_by_an_error(run):
    with run.lock(), pytest.raises(RunLockedError), RunDirectory(run.path).lock():
        pass
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock():
        pass


def test_what_a_killed_process_left_half_written_is_removed_by_the_next(run):
    run.write_evaluation("seed_0", {"returns": [1.0]})
    halves = [run.path / ".DONE.1.tmp", run.path / "evaluations" / ".seed_0.json.1.tmp"]
    for half in halves:
        half.write_text("{")
    with run.lock():
        assert not any(half.exists() for half in halves)
    assert (run.path / "evaluations" / "seed_0.json").exists()


def test_writing_replaces_a_file_and_a_failure_leaves_it(tmp_path):
    write_atomic(tmp_path / "a", "ü")
    write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").touch()
    with pytest.raises(RunWriteError, match="b could not be written"):
        write_atomic(tmp_path / "b", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@contextmanager
def tiny_files() -> Iterator[None]:
    """No file of this process can grow beyond 1000 bytes; not for a whole test, since pytest writes one too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_part_way_says_so_and_leaves_whole_lines(run):
    while run.metrics_bytes < 970:
        run.append({"step": 1, "x": 0.25})
    before = run.read_metrics()
    with (
        tiny_files(),
        pytest.raises(
            RunWriteError, match=r"metrics.jsonl could not be written: the disk or a quota is full"
        ) as caught,
    ):
        run.append({"step": 2, "x": "y" * 100})
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert run.read_metrics() == before
    assert (run.path / "metrics.jsonl").read_bytes().endswith(b"\n")
    with tiny_files(), pytest.raises(RunWriteError, match="DONE could not be written: the disk or a quota is full"):
        run.finish({"text": "x" * 2000})
    assert sorted(path.name for path in run.path.iterdir()) == ["SHA256SUMS", "config.json", "metrics.jsonl"]


FULL = """
    import shutil, sys
    from pathlib import Path
    from qemrl.training.run_directory import RunDirectory
    from qemrl.training.files import RunWriteError

    run = RunDirectory.create(Path(sys.argv[1]) / "run", {}, {})
    count = 0
    try:
        while True:
            run.append({"step": count, "x": "y" * 300})
            count += 1
    except RunWriteError as error:
        print(error.__cause__.errno, error)
    assert count == len(run.read_metrics()) > 100
    try:
        run.finish({"x": "y" * 9000})
    except RunWriteError as error:
        print(error.__cause__.errno, error)
    print(sorted(path.name for path in run.path.iterdir()))
"""


def test_a_full_disk_says_so_and_leaves_whole_lines(tmp_path):
    mount = f'mount -t tmpfs -o size=100k tmpfs "{tmp_path}" && exec "$@"'  # in sight of that process alone
    prefix = ["unshare", "-rm", "sh", "-c", mount, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not let tests mount a file system")
    command = [*prefix, sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    first, second, rest = result.stdout.splitlines()
    assert first.startswith(
        f"{errno.ENOSPC} {tmp_path}/run/metrics.jsonl could not be written: the disk or a quota is full"
    )
    assert second.startswith(
        f"{errno.ENOSPC} {tmp_path}/run/SHA256SUMS could not be written: the disk or a quota is full"
    )
    assert rest == "['config.json', 'metrics.jsonl']"  # there was no room for the checksums either
