"""Files of runs that are damaged at random, by accident or by somebody who knows the format.

A damaged run may be refused, repaired, or read without what was lost, as long as that is said. It may not pass for a
whole run with other numbers, end a report of others, run code, or take memory without bound.
"""

import copy
import functools
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chaos.hostile import HOSTILE_JSON
from benchmarks.chaos.runs import compare, list_subjects, references, start, wait
from benchmarks.chaos.trials import Outcome, Trial, describe_error
from qemrl.experiments.runs import RunRecord, read_run, read_runs
from qemrl.report.content import gather
from qemrl.training import checkpoint
from qemrl.training.checkpoint import CheckpointError
from qemrl.training.files import compute_digest

FILES_PER_TRIAL = 20
HEALTHY = "healthy"
CANARY = "canary_of_chaos"
"""A module that lies in the working folder, and leaves a file if it is imported."""


class Damage(NamedTuple):
    """What was done to a run."""

    kind: str
    what: str
    is_forged: bool = False
    """Checksums were made to fit, so that nobody can tell."""


def try_damage(trial: Trial) -> Outcome:
    """Damage files, one in a run, and see what reads them."""
    chance, outcome = trial.chance, Outcome()
    folder = trial.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / f"{CANARY}.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n", encoding="utf-8")
    for index in range(FILES_PER_TRIAL):
        _try_one(trial, index, chance, outcome)
    if (folder / "executed").exists():
        outcome.fail("damaged files", "wrong", f"trial {trial.number}: the module that a file named was imported")
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _try_one(trial: Trial, index: int, chance: random.Random, outcome: Outcome) -> None:
    name = chance.choice(list_subjects(trial.work))
    reference, place = references(trial.work) / name, trial.folder / f"{index}"
    run, fate = place / "run", chance.choices(("read", "resumed", "evaluated"), (94, 3, 3))[0]
    # What is only read has the very files of the reference, but for the one that is damaged.
    shutil.copytree(reference, run, copy_function=os.link if fate == "read" else shutil.copy2)
    is_finished = chance.random() < 0.5
    if not is_finished:
        _unfinish(run)
    damage = _damage(run, chance)
    kind = f"damaged files, {damage.kind}"
    outcome.tried[kind] += 1

    def check(reader: Callable[[], str | None]) -> None:
        try:
            wrong = reader()
        except Exception as error:
            outcome.fail(kind, "traceback", f"{name}, {damage.what}: {describe_error(error)}")
        else:
            if wrong is not None:
                outcome.fail(kind, "wrong", f"{name}, {damage.what}: {wrong}")

    check(lambda: _read_checkpoints(run, reference, damage))
    if chance.random() < 0.2:
        shutil.copytree(references(trial.work) / list_subjects(trial.work)[0], place / HEALTHY, copy_function=os.link)
    check(lambda: _read_report(place, reference, damage))
    if fate == "resumed":
        check(lambda: _resume(run, reference, damage, trial.folder))
    if fate == "evaluated":
        check(lambda: _evaluate(run, damage, trial.folder))
    shutil.rmtree(place)


def _unfinish(run: Path) -> None:
    """Take a run back to when it had its last checkpoint but one, and had gone further."""
    for name in ("DONE", "SHA256SUMS"):
        (run / name).unlink(missing_ok=True)
    newest = max(checkpoint.list_steps(run / "checkpoints"))
    shutil.rmtree(run / "checkpoints" / f"step_{newest:012d}")


def _damage(run: Path, chance: random.Random) -> Damage:
    files = sorted(file for file in run.rglob("*") if file.is_file())
    # Few files are named by what they hold, and many are arrays: each kind gets its share.
    kinds = ("config.json", "metrics.jsonl", "timing.jsonl", "DONE", "SHA256SUMS", "manifest.json", "*.npy", "*.json")
    pattern = chance.choice(kinds)
    file = chance.choice([file for file in files if file.match(pattern)] or files)
    name = file.relative_to(run).as_posix()
    act = chance.choice(ACTS)
    if act is _forge and file.suffix not in (".json", ".jsonl") and file.name != "DONE":
        act = _flip
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)  # no longer that of the reference
    said = act(file, chance)
    return Damage(act.__name__.strip("_").replace("_", " "), f"{name}: {said}", act is _forge)


def _flip(file: Path, chance: random.Random) -> str:
    content = bytearray(file.read_bytes())
    if not content:
        return "empty"
    bit = chance.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    return f"bit {bit}"


def _cut(file: Path, chance: random.Random) -> str:
    content = file.read_bytes()
    size = chance.randrange(len(content) + 1)
    file.write_bytes(content[:size])
    return f"cut at {size} of {len(content)}"


def _cut_lines(file: Path, chance: random.Random) -> str:
    lines = file.read_bytes().splitlines(keepends=True)
    count = chance.randrange(len(lines) + 1)
    file.write_bytes(b"".join(lines[:count]))
    return f"cut after {count} of {len(lines)} lines"


def _shuffle_lines(file: Path, chance: random.Random) -> str:
    lines = file.read_bytes().splitlines(keepends=True)
    chance.shuffle(lines)
    file.write_bytes(b"".join(lines + lines[: chance.randrange(2)]))
    return "lines in another order"


def _append(file: Path, chance: random.Random) -> str:
    more = chance.randbytes(chance.choice((1, 10, 5_000)))
    with file.open("ab") as stream:
        stream.write(more)
    return f"{len(more)} bytes more"


def _overwrite(file: Path, chance: random.Random) -> str:
    content = bytearray(file.read_bytes())
    begin = chance.randrange(len(content) + 1)
    size = chance.choice((8, 512, 4_096))
    content[begin : begin + size] = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
    file.write_bytes(content)
    return f"{size} bytes at {begin}"


def _replace(file: Path, chance: random.Random) -> str:
    """Something else is in its place: nothing, a folder, a pipe, a link, a device, another file of the run."""
    content = file.read_bytes()
    file.unlink()
    what = chance.choice(("nothing", "a folder", "a pipe", "a link out", "a link in circles", "another file"))
    match what:
        case "a folder":
            file.mkdir()
        case "a pipe":
            os.mkfifo(file)
        case "a link out":
            file.symlink_to(chance.choice(("/dev/zero", "/etc/hostname", "/dev/null")))
        case "a link in circles":
            file.symlink_to(file.name)
        case "another file":
            others = [other for other in file.parent.iterdir() if other.is_file()]
            file.write_bytes(chance.choice(others).read_bytes() if others else content[::-1])
    return f"replaced by {what}"


def _forge(file: Path, chance: random.Random) -> str:
    """Change a value of a JSON file, and let its checksum fit."""
    if file.suffix == ".jsonl":
        lines = file.read_text(encoding="utf-8").splitlines()
        at = chance.randrange(len(lines))
        lines[at], said = _change(lines[at], chance)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"line {at + 1}: {said}"
    text, said = _change(file.read_text(encoding="utf-8"), chance)
    try:
        document = json.loads(text)
        if "digest" in document:
            document["digest"] = compute_digest(document)
            layout: dict[str, Any] = {"indent": 1} if file.name == "manifest.json" else {"indent": 2}
            text = json.dumps(document, sort_keys=True, **layout)
    except (ValueError, RecursionError, TypeError):
        pass
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return said


def _change(text: str, chance: random.Random) -> tuple[str, str]:
    """The text of a JSON document with one value changed, and what was changed."""
    document = copy.deepcopy(json.loads(text))
    places = list(_list_places(document))
    holder, key = chance.choice(places)
    hostile = chance.choice(HOSTILE_JSON)
    if chance.random() < 0.15:
        del holder[key]
        return json.dumps(document), f"without {key!r}"
    holder[key] = marker = "@@chaos@@"
    return json.dumps(document).replace(json.dumps(marker), hostile), f"{key!r} is {hostile[:60]}"


def _list_places(document: Any) -> Any:
    """Every value of a JSON document, as its holder and its key there."""
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from _list_places(document[key])


ACTS = (_flip, _flip, _cut, _cut_lines, _shuffle_lines, _append, _overwrite, _replace, _forge, _forge, _forge, _forge)


def _read_checkpoints(run: Path, reference: Path, damage: Damage) -> str | None:
    """What is wrong with the checkpoint that is found."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = checkpoint.load_latest(run / "checkpoints")
    except (CheckpointError, OSError):
        return None
    if found is None or damage.is_forged:
        return None
    whole = checkpoint.load_latest(reference / "checkpoints", step=found.step)
    assert whole is not None
    same = found.arrays.keys() == whole.arrays.keys() and all(
        found.arrays[name].tobytes() == whole.arrays[name].tobytes() for name in whole.arrays
    )
    return None if same and found.meta == whole.meta else f"checkpoint {found.step} was accepted with other content"


def _read_report(place: Path, reference: Path, damage: Damage) -> str | None:
    """What is wrong with what a report reads."""
    collection = read_runs(place)
    if (place / HEALTHY).exists():
        if HEALTHY not in [run.name for run in collection.runs] and "same algorithm" not in str(collection.unreadable):
            return f"the other run is not read: {collection.unreadable}"
        gather(place, False, 0, lambda _: None)
    found = next((run for run in collection.runs if run.name == "run"), None)
    whole = _read_reference(reference)
    if found is None or damage.is_forged or found.state != "finished" or found.losses:
        return None
    return _compare_records(found, whole)


@functools.cache
def _read_reference(reference: Path) -> RunRecord:
    return read_run(reference, reference.name)


def _compare_records(found: RunRecord, whole: RunRecord) -> str | None:
    if found.points == whole.points:
        return None
    return f"{len(found.points)} records pass for the {len(whole.points)} of a finished run"


WORDS = ("lost", "damaged", "goes back", "wrong", "unverified", "changed", "cannot", "passing over", "missing")
"""With one of which a command says that something is not as it was."""


def _resume(run: Path, reference: Path, damage: Damage, place: Path) -> str | None:
    """What is wrong with the run that is resumed."""
    if damage.is_forged and damage.what.startswith("config.json"):
        return None  # it is another run now, which may take years
    log = place / "resume.txt"
    log.unlink(missing_ok=True)
    code = wait(start(("resume", str(run)), log, place=place))
    said = log.read_text(errors="replace")
    if code not in (0, 1, 2) or "Traceback" in said:
        return f"resume ended with {code}: {said[-2_000:]}"
    if code == 0 and not damage.is_forged and "is finished" not in said:
        differences = list(compare(run, reference))
        if differences and not any(word in said for word in WORDS):
            return f"resumed without a word, and differs: {differences[:3]}; {said[-500:]}"
    return None


def _evaluate(run: Path, damage: Damage, place: Path) -> str | None:
    """What is wrong with the evaluation of its agent."""
    del damage
    log = place / "evaluate.txt"
    log.unlink(missing_ok=True)
    code = wait(start(("evaluate", str(run), "--episodes", "1"), log, place=place))
    said = log.read_text(errors="replace")
    return None if code in (0, 1, 2) and "Traceback" not in said else f"evaluate ended with {code}: {said[-2_000:]}"
