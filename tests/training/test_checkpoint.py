"""Checkpoints: whole or not there, whatever happens."""

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qemrl.training import checkpoint
from qemrl.training.checkpoint import CheckpointError, CheckpointWarning, load_latest, read_metas, save
from qemrl.training.files import compute_digest
from qemrl.training.pytrees import flatten, unflatten

GRID = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ARRAYS = {
    "bool": np.array([True, False, True]),
    "uint8": np.arange(256, dtype=np.uint8),
    "uint32": np.array([2**32 - 1, 0], np.uint32),
    "int64": np.array([[-(2**63)], [2**63 - 1]]),
    "float32": GRID,
    "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
    "scalar": np.array(3, np.int32),
    "empty": np.zeros((0, 4), np.float32),
    "every second": np.arange(10)[::2],
    "backwards": GRID[:, ::-1, 1:3],
    "fortran": np.asfortranarray(GRID[0]),
    "transposed": GRID.transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.float32(2), (3, 5)),
    "a/b": np.ones(1),
    "a_b": np.zeros(2),
    "['a'].b[0]/../../c": np.ones(3),
    "": np.ones(4),
    "ü" * 200: np.ones(5),
    "big endian": np.arange(3, dtype=">i4"),
}
META = {"bytes": 12, "nested": {"list": [1, None, True, 2**100], "text": "ü\n"}, "loss": 0.1}


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        save(folder, step, {"a": np.full(1000, step), "b": np.full(5, step % 256, np.uint8)}, {"is": step}, keep)


def run(program: str, *words: Any, prefix: tuple[str, ...] = ()) -> str:
    command = [*prefix, sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_arrays_and_meta_come_back_bit_for_bit(tmp_path):
    path = save(tmp_path / "checkpoints", 12345, ARRAYS, META)
    assert path == tmp_path / "checkpoints" / "step_000000012345"
    loaded = load_latest(tmp_path / "checkpoints")
    assert loaded is not None
    assert (loaded.step, loaded.meta, loaded.path) == (12345, META, path)
    assert set(loaded.arrays) == set(ARRAYS)
    assert all(same(loaded.arrays[name], array) for name, array in ARRAYS.items())
    assert loaded.arrays["float32"].flags.writeable


def test_the_files_are_plain_npy_and_the_manifest_describes_them(tmp_path):
    path = save(tmp_path, 7, ARRAYS, META)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["meta"]) == (1, 7, META)
    assert len(list(path.iterdir())) == len(ARRAYS) + 1
    for name, array in ARRAYS.items():
        entry = manifest["arrays"][name]
        content = (path / entry["file"]).read_bytes()
        assert same(np.load(path / entry["file"], allow_pickle=False), array)
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert (entry["dtype"], tuple(entry["shape"])) == (array.dtype.str, array.shape)


@pytest.mark.parametrize("array", [np.arange(100_003), np.arange(200_006)[::2], np.arange(90_000).reshape(300, 300).T])
def test_arrays_larger_than_a_chunk_come_back(tmp_path, array, monkeypatch):
    monkeypatch.setattr(checkpoint, "_CHUNK_BYTES", 1000)
    save(tmp_path, 0, {"a": array}, {})
    loaded = load_latest(tmp_path)
    assert loaded is not None
    np.testing.assert_array_equal(loaded.arrays["a"], array)


def test_numbers_in_meta_need_not_be_finite_and_tuples_become_lists(tmp_path):
    save(tmp_path, 0, {}, {"loss": (math.inf, -math.inf), "nan": math.nan})
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.meta["loss"] == [math.inf, -math.inf]
    assert math.isnan(loaded.meta["nan"])


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.asarray(jnp.ones(2, jnp.bfloat16)), "bfloat16"),
        (np.array([object()]), "object"),
        (np.zeros(2, [("x", np.float32)]), "x"),
        (np.array(["a"]), "U1"),
    ],
)
def test_a_dtype_that_npy_cannot_hold_is_refused_before_anything_is_written(tmp_path, array, dtype):
    with pytest.raises(ValueError, match=f"'moment' has dtype .*{dtype}.*cannot hold"):
        save(tmp_path / "new", 0, {"moment": array}, {})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("step", "meta", "keep", "message"),
    [
        (-1, {}, 2, "step=-1"),
        (0, {}, 0, "keep=0"),
        (0, {"a": np.ones(2)}, 2, "must be JSON: .*ndarray"),
        (0, {"a": [{1: 2}]}, 2, "must have text for keys"),
    ],
)
def test_what_no_checkpoint_can_be_made_of_is_refused(tmp_path, step, meta, keep, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path, step, {}, meta, keep)


def test_the_newest_are_kept_and_leftovers_removed(tmp_path):
    stale = tmp_path / ".step_000000000001.99.tmp"
    stale.mkdir()
    (stale / "00000_a.npy").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    saved(tmp_path, 1, 5, 10, 200)
    assert names(tmp_path) == ["notes.txt", "step_000000000010", "step_000000000200"]
    saved(tmp_path, 201, keep=3)
    assert len(names(tmp_path)) == 4
    saved(tmp_path, 10**12, 10**12 + 1, keep=1)
    assert names(tmp_path) == ["notes.txt", f"step_{10**12 + 1}"]


def test_a_run_that_went_back_leaves_nothing_of_its_former_future(tmp_path):
    saved(tmp_path, 1, 2, 3)
    saved(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step_000000000002"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    saved(tmp_path, 1, 2)
    save(tmp_path, 2, {"a": np.ones(3)}, {"second": True})
    assert names(tmp_path) == ["step_000000000001", "step_000000000002"]
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"second": True}


def test_a_crash_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "step_000000000001").rename(tmp_path / "step_000000000001.old")
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1
    saved(tmp_path, 1, 2, keep=1)
    assert names(tmp_path) == ["step_000000000002"]


def test_an_empty_folder_or_none_has_no_checkpoint(tmp_path):
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None
    (tmp_path / ".step_000000000001.99.tmp").mkdir()
    assert load_latest(tmp_path) is None


def damages(path: Path) -> list[tuple[Path, bytes | None]]:
    """Every file without its end, without anything, with one byte changed here and there, and gone."""
    found: list[tuple[Path, bytes | None]] = []
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        found += [(file, content[:-1]), (file, b""), (file, content + b"x"), (file, None)]
        for place in {*range(0, len(content), max(1, len(content) // 40)), len(content) - 1}:
            found.append((file, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]))
    return found


def test_a_damaged_file_is_noticed_and_the_checkpoint_before_is_used(tmp_path):
    saved(tmp_path, 1, 2)
    cases = damages(tmp_path / "step_000000000002")
    assert len(cases) > 100
    for file, content in cases:
        before = file.read_bytes()
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.warns(CheckpointWarning, match=rf"step_000000000002: .*{file.name}"):
            loaded = load_latest(tmp_path)
        assert loaded is not None
        assert (loaded.step, loaded.meta, loaded.arrays["a"][0]) == (1, {"is": 1}, 1)
        file.write_bytes(before)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 2


def test_an_error_lists_what_is_wrong_when_nothing_is_whole(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "step_000000000001" / "manifest.json").unlink()
    shutil.copytree(tmp_path / "step_000000000001", tmp_path / "step_000000000003")
    shutil.copy(tmp_path / "step_000000000002" / "manifest.json", tmp_path / "step_000000000003")
    (tmp_path / "step_000000000002" / "00000_a.npy").write_bytes(b"")
    message = "(?s)is that of step 2.*00000_a.npy has 0 bytes, not .*step_000000000001.*restore one"
    with pytest.warns(CheckpointWarning) as warned, pytest.raises(CheckpointError, match=message):
        load_latest(tmp_path)
    assert len(warned) == 3


def test_a_format_from_the_future_is_an_error_even_with_an_older_checkpoint(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    saved(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"has format 2, from a later version .* up to 1; upgrade"):
        load_latest(tmp_path)


def test_too_little_room_is_noticed_before_anything_is_written(tmp_path):
    saved(tmp_path, 1)
    free = shutil.disk_usage(tmp_path).free
    enormous = np.broadcast_to(np.uint8(0), (2 * free,))  # takes no memory
    with pytest.raises(
        CheckpointError, match=r"step 2 .*is full \([\d,.]+ MB needed, [\d,.]+ MB free\).*000001, is unt"
    ):
        save(tmp_path, 2, {"a": enormous}, {})
    assert names(tmp_path) == ["step_000000000001"]


FULL = """
    import resource, signal, sys
    from pathlib import Path
    import numpy as np
    from qemrl.training.checkpoint import CheckpointError, load_latest, save

    folder = Path(sys.argv[1])
    save(folder, 1, {"a": np.ones(1000)}, {})
    if sys.argv[2] == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    arrays = {f"a{i}": np.zeros(10**i, np.uint8) for i in range(8 if sys.argv[2] == "limit" else 6)}
    try:
        save(folder, 2, arrays, {})
    except CheckpointError as error:
        print(error.__cause__.errno, error)
    print([path.name for path in folder.iterdir()], load_latest(folder).step)
    save(folder, 3, {"a": np.ones(1000)}, {})  # there is room again
    print(load_latest(folder).step)
"""


def check_full(output: str, number: int) -> None:
    message, rest, last = output.splitlines()
    assert message.startswith(f"{number} the checkpoint of step 2 could not be written")
    assert "the disk or a quota is full" in message
    assert rest == "['step_000000000001'] 1"
    assert last == "3"


def test_a_write_that_fails_part_way_leaves_the_checkpoint_before(tmp_path):
    check_full(run(FULL, tmp_path, "limit"), errno.EFBIG)


def test_a_disk_that_is_full_part_way_leaves_the_checkpoint_before(tmp_path):
    # A file system of this process alone, with room for bytes but not for as many files: `df` does not see it coming.
    mount = f'mount -t tmpfs -o size=4m,nr_inodes=10 tmpfs "{tmp_path}" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system does not let tests mount a file system")
    check_full(run(FULL, tmp_path, "disk", prefix=prefix), errno.ENOSPC)


def test_any_other_failure_is_told_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(hashlib, "sha256", lambda: 1 / 0)
    with pytest.raises(CheckpointError, match=r"step 2 .*ZeroDivisionError.*000001, is untouched; remove the cause"):
        saved(tmp_path, 2)
    monkeypatch.setattr(hashlib, "sha256", interrupt)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["step_000000000001"]


def interrupt() -> None:
    raise KeyboardInterrupt


KILLED = """
    import os, random, signal, sys, time, warnings
    from pathlib import Path
    import numpy as np
    from qemrl.training.checkpoint import load_latest, save

    warnings.filterwarnings("error", module="qemrl")
    folder, random = Path(sys.argv[1]), random.Random(0)
    begun = time.monotonic()
    save(folder, 1, {str(i): np.full((200, 500), 1, np.int32) for i in range(4)}, {"step": 1})
    usual = time.monotonic() - begun
    reached, halves, trials = 1, 0, 0
    enough = lambda: trials >= 10 and reached >= 5 and halves >= 5
    while trials < 100 and time.monotonic() - begun < (4 if enough() else 40):  # longer on a busy machine
        trials += 1
        child = os.fork()
        if not child:
            step = reached
            while True:  # every third save repeats its step
                step += step % 3 != 0 or not (folder / f"step_{step:012d}").exists() or random.random() < 0.5
                arrays = {str(i): np.full((200, 500), step, np.int32)[:, ::1 + i % 2] for i in range(4)}
                save(folder, step, arrays, {"step": step}, keep=1 + trials % 2)
        time.sleep(random.uniform(0.0, 3 * usual))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        halves += any(path.name.startswith(".") for path in folder.iterdir())
        assert all(len(list(path.iterdir())) == 5 for path in folder.glob("step_*"))
        latest = load_latest(folder)
        assert latest.step >= reached and latest.meta == {"step": latest.step}
        assert len(latest.arrays) == 4 and all((a == latest.step).all() for a in latest.arrays.values())
        reached = latest.step
    print(trials, reached, halves)
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint_in_sight(tmp_path):
    trials, reached, halves = map(int, run(KILLED, tmp_path / "checkpoints").split())
    assert trials >= 10
    assert reached >= 5
    assert halves >= 5  # the kills did come in the middle of saving


class State(NamedTuple):
    network: eqx.nn.MLP
    optimizer: Any
    key: jax.Array
    other: dict[str, Any]


@eqx.filter_jit
def learned(seed: jax.Array) -> tuple[Any, ...]:
    """A network, the state of its optimizer after an update, and keys of all kinds; compiled, which is faster."""
    key = jax.random.key(seed)
    network = eqx.nn.MLP(3, 2, 4, 2, key=key)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    params = eqx.filter(network, eqx.is_array)
    with jax.numpy_dtype_promotion("standard"):  # which Optax needs
        _, opt_state = optimizer.update(jax.tree.map(jnp.sin, params), optimizer.init(params), params)
    kinds = [jax.random.key(seed, impl=impl) for impl in ("rbg", "unsafe_rbg")]
    return network, opt_state, key, [jax.random.split(key, (2, 3)), *kinds]


def state(seed: int) -> State:
    network, optimizer, key, keys = learned(jnp.asarray(seed))
    other = {
        "keys": keys,
        "numpy": np.arange(seed, seed + 3),
        "scalar": np.float32(seed),
        "flags": jnp.array([True, False]),
        "count": 3,
        "none": None,
        "function": jnp.tanh,
    }
    return State(network, optimizer, key, other)


def test_pytrees_come_back_bit_for_bit_through_a_checkpoint(tmp_path):
    original = state(1)
    save(tmp_path, 0, flatten(original), {})
    loaded = load_latest(tmp_path)
    assert loaded is not None
    back = unflatten(state(2), loaded.arrays)
    assert jax.tree.structure(back) == jax.tree.structure(original)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(original), strict=True):
        assert type(one) is type(other)
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            assert one.dtype == other.dtype
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert same(np.asarray(one), np.asarray(other)) if eqx.is_array_like(one) else one is other
    assert (jax.random.bits(back.key, (4,)) == jax.random.bits(original.key, (4,))).all()
    np.testing.assert_array_equal(back.network(jnp.ones(3)), original.network(jnp.ones(3)))


def test_a_template_may_hold_shapes_instead_of_arrays():
    original = state(1)
    shapes = eqx.filter_eval_shape(lambda: (original.network, original.optimizer, original.key))
    network, optimizer, key = unflatten(shapes, flatten(tuple(original[:3])))
    assert eqx.tree_equal((network, optimizer), tuple(original[:2]))
    assert key == original.key
    with pytest.raises(ValueError, match="has no values"):
        flatten(shapes)


def test_what_is_no_array_stays_as_it_is_in_the_template():
    assert unflatten({"a": jnp.zeros(2), "b": 5}, flatten({"a": jnp.ones(2), "b": 4}))["b"] == 5
    assert list(flatten({"a": jnp.ones(2), "b": 4, "c": jnp.tanh, "d": None})) == ["['a']"]


def test_a_restored_array_does_not_change_with_the_one_it_came_from():
    room = np.zeros(40_064, np.uint8)
    start = -room.ctypes.data % 64  # JAX shares memory that is aligned
    source = room[start : start + 40_000].view(np.float32)
    tree = unflatten(jnp.ones(10_000, jnp.float32), {"": source})
    source += 1
    assert (tree == 0).all()


def test_arrays_that_were_flattened_do_not_change_when_their_buffer_is_donated():
    array = jnp.arange(100_000, dtype=jnp.float32)
    arrays = flatten([array])
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(array))
    assert same(arrays["[0]"], np.arange(100_000, dtype=np.float32))


TEMPLATE = {"a": jnp.zeros(2), "key": jax.random.key(0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.zeros(3, np.float32)}, r"\['a'\] is float32\[3\], but float32\[2\] is expected"),
        ({"a": np.zeros(2, np.int32)}, r"\['a'\] is int32\[2\], but float32\[2\]"),
        ({"a": jax.random.key(0)}, r"missing \['a'\]; left over \['a'\]\|threefry"),
        ({"key": np.zeros(2, np.uint32)}, r"missing \['key'\]; left over \['key'\];"),
        ({"key": jax.random.key(0, impl="rbg")}, r"\['key'\] is key<rbg>\[\], but key<fry>\[\]"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, r"\['key'\] is key<fry>\[3\], but key<fry>\[\]"),
        ({"b": np.zeros(1)}, r"missing nothing; left over \['b'\]"),
        ({"a": None}, r"missing \['a'\]; left over nothing"),
        ({f"b{i}": np.zeros(1) for i in range(9)}, r"\['b4'\] and 4 more"),
    ],
)
def test_arrays_that_do_not_fit_the_template_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        unflatten(TEMPLATE, flatten(TEMPLATE | change))


def test_data_that_make_no_key_are_named():
    with pytest.raises(ValueError, match="threefry2x32 does not hold the data of keys"):
        unflatten(jax.random.key(0), {"|threefry2x32": np.zeros(3, np.uint32)})


def test_a_dtype_that_jax_does_not_have_is_named():
    with pytest.raises(ValueError, match=r"\[0\] is int64, which JAX has only with jax_enable_x64"):
        unflatten([jax.ShapeDtypeStruct((2,), np.int64)], {"[0]": np.zeros(2, np.int64)})


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": "nonsense"},
        {"shape": [2**40]},
        {"shape": [-1]},
        {"shape": "3"},
        {"order": "K"},
        {"bytes": "12"},
        {"file": 7},
    ],
    ids=str,
)
def test_a_manifest_that_lies_about_an_array_is_refused_before_memory_is_taken(tmp_path, change):
    path = save(tmp_path, 1, {"x": np.arange(3.0)}, {})
    forge(path, lambda document: document["arrays"]["x"].update(change))
    with pytest.raises(CheckpointError, match="describes an array that cannot be"), pytest.warns(CheckpointWarning):
        load_latest(tmp_path)


@pytest.mark.parametrize(
    "change", [{"arrays": []}, {"meta": 1}, {"step": "1"}, {"format": "1"}, {"format": None}], ids=str
)
def test_a_manifest_with_other_fields_is_refused(tmp_path, change):
    forge(save(tmp_path, 1, {}, {}), lambda document: document.update(change))
    with pytest.raises(CheckpointError, match=r"manifest\.json"), pytest.warns(CheckpointWarning):
        load_latest(tmp_path)
    assert list(read_metas(tmp_path)) == []


def forge(path: Path, change: Callable[[dict], None]) -> None:
    """Change a manifest, with the checksum that goes with it."""
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    sealed = document | {"digest": compute_digest(document)}
    (path / "manifest.json").write_text(json.dumps(sealed, sort_keys=True, indent=1))


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path):
    path = save(tmp_path, 1, {"x": np.arange(3.0)}, {})
    for name in ("00000_x.npy", "manifest.json"):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(CheckpointError, match="not a regular file"), pytest.warns(CheckpointWarning):
            load_latest(tmp_path)
