"""What a sweep will cost, before it begins: core-hours, memory and storage, from speeds that were measured.

A speed is that of the runs in the folder, where there are some of the kind; else each kind of run is tried out for some
seconds in a process like those of the sweep. Environments whose observations look alike count as one kind.
"""

import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qemrl.config.serialize import to_json
from qemrl.envs.gym.catalog import split_id
from qemrl.experiments.engines import Needs
from qemrl.experiments.sweep import RunStatus, State
from qemrl.experiments.worker import PYTHON, thread_variables
from qemrl.training.config import RunConfig, read_config
from qemrl.training.loops import describe_environment, make_loop
from qemrl.training.memory import replay_bytes
from qemrl.training.run_directory import RunDirectory
from qemrl.types import EnvSpec

PROCESS_BYTES = 1_200_000_000
"""What a process takes besides its replay: 0.6 to 1.0 GB on MinAtar and MuJoCo, compilation included."""

KEPT_CHECKPOINTS = 2
RECORD_BYTES, EPISODE_BYTES = 700, 30
"""A record in metrics.jsonl and timing.jsonl, and an episode of an evaluation, on the disk."""

Kind = tuple[str, str, tuple[int, ...]]
"""Agent, family and shape of the observation: what speed depends on."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of a kind of run."""

    steps_per_second: float
    process_bytes: int
    """The most memory that the process took, less its replay."""

    state_bytes: int
    """A checkpoint, less the replay."""

    source: str
    """Where the speed is from: runs in the folder, or a trial."""


@dataclass(frozen=True)
class Forecast:
    """What the runs of one algorithm on one environment will cost."""

    arm: str
    env: str
    runs: int
    """How many are not finished."""

    measured: Measurement
    core_hours: float
    """Of all of them, from where they are."""

    memory_bytes: int
    """Of each."""

    storage_bytes: int
    """Of each, when it is finished."""


def estimate_needs(
    statuses: Sequence[RunStatus], cpus: int, gpus: float, memory_bytes: int | None
) -> dict[Path, Needs]:
    """What each run takes: the memory that is given, or else an estimate, and the module of its environment."""
    replays: dict[tuple[str, str], int] = {}
    needs = {}
    for status in statuses:
        config = status.run.config
        key = (status.run.arm, config.env_name)
        if memory_bytes is None and key not in replays:
            replays[key] = replay_bytes(config, describe_environment(config))
        memory = memory_bytes or PROCESS_BYTES + replays[key]
        needs[status.path] = Needs(memory, cpus, gpus, split_id(config.env)[0])
    return needs


def forecast(statuses: Sequence[RunStatus], cpus: int, seconds: float, tell: Callable[[str], None]) -> list[Forecast]:
    """What the rest of a sweep will cost, by algorithm and environment.

    Args:
        statuses: All runs of it.
        cpus: The threads of each run.
        seconds: How long a kind of run is tried out.
        tell: Called with what is being measured.
    """
    groups: dict[tuple[str, str], list[RunStatus]] = {}
    for status in statuses:
        groups.setdefault((status.run.arm, status.run.config.env_name), []).append(status)
    specs = {env: describe_environment(group[0].run.config) for (_, env), group in groups.items()}
    tried: dict[Kind, Measurement] = {}
    found = []
    for (arm, env), group in groups.items():
        left = [status for status in group if status.state is not State.FINISHED]
        if not left:
            continue
        config, spec = left[0].run.config, specs[env]
        kind = (arm, config.family, spec.observation_shape)
        if kind not in tried:
            tell(f"trying out {arm} on {env}")
            tried[kind] = measure(config, spec, cpus, seconds)
        measured = _measure_runs(group, tried[kind]) or tried[kind]
        steps = sum(status.run.config.whole_steps - status.step for status in left)
        hours = cpus * steps / measured.steps_per_second / 3600
        replay = replay_bytes(config, spec)
        memory, storage = measured.process_bytes + replay, estimate_storage(config, replay, measured)
        found.append(Forecast(arm, env, len(left), measured, hours, memory, storage))
    return found


def estimate_storage(config: RunConfig, replay: int, measured: Measurement) -> int:
    """The bytes of a finished run: its last checkpoints and its best, which has less, records and evaluations."""
    records = math.ceil(config.whole_steps / config.log_every)
    evaluations = math.ceil(config.whole_steps / config.evaluate_every)
    episodes = evaluations * config.evaluation_episodes
    kept = KEPT_CHECKPOINTS * (measured.state_bytes + replay) + measured.state_bytes
    return kept + records * RECORD_BYTES + episodes * EPISODE_BYTES


def _measure_runs(group: Sequence[RunStatus], tried: Measurement) -> Measurement | None:
    """The speed of runs of the group that have come some way, their evaluations included."""
    steps, seconds = 0, 0.0
    for status in group:
        if not (status.path / "config.json").exists():
            continue
        for before, after in itertools.pairwise(RunDirectory(status.path).read_timing()):
            covered = after["step"] - before["step"]
            if covered > 0 and after["time/fps"]:
                steps, seconds = steps + covered, seconds + covered / after["time/fps"]
    if not seconds:
        return None
    return replace(tried, steps_per_second=steps / seconds, source="runs")


def measure(config: RunConfig, spec: EnvSpec, cpus: int, seconds: float) -> Measurement:
    """What a short trial in a process of its own measures; evaluations are left out."""
    config = _shorten(config)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(to_json(config), file)
        file.flush()
        words = [*PYTHON, "qemrl.experiments.forecast", file.name, str(seconds)]
        result = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | thread_variables(cpus),
            stdin=subprocess.DEVNULL,
        )
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise ValueError(f"{config.preset} on {config.env_name} could not be tried out: {last[0]}")
    data = json.loads(result.stdout.splitlines()[-1])
    replay = replay_bytes(config, spec)
    process, state = max(0, data["peak_bytes"] - replay), max(0, data["checkpoint_bytes"] - replay)
    return Measurement(data["steps_per_second"], process, state, "a trial")


def _shorten(config: RunConfig) -> RunConfig:
    """The same run with a small replay, which learns from its first steps on."""
    agent = config.agent
    first = math.ceil(4 * max(agent.batch_size, config.num_envs) / agent.update_every) * agent.update_every
    capacity = max(2_000, 4 * first, 64 * config.num_envs * agent.replay.n_step)
    capacity = min(capacity - capacity % config.num_envs, agent.replay.capacity)
    agent = replace(
        agent, learning_starts=min(first, agent.learning_starts), replay=replace(agent.replay, capacity=capacity)
    )
    return replace(config, agent=agent)


def try_out(config: RunConfig, seconds: float) -> dict[str, float]:
    """The steps per second of a run, its memory and its checkpoint, measured here and now."""
    loop = make_loop(config)
    unit = config.schedule.steps
    loop.advance(config.schedule.whole(max(config.agent.learning_starts, 1) + 2 * unit), False, lambda: False)
    count, rate = 1, 0.0
    began = time.perf_counter()
    while True:
        start, before = time.perf_counter(), loop.step
        loop.advance(before + count * unit, False, lambda: False)
        now = time.perf_counter()
        rate = (loop.step - before) / (now - start)
        if now - began >= seconds and now - start >= seconds / 4:
            break
        count = min(2 * count, max(1, math.ceil(seconds * rate / unit)))
    checkpoint = sum(array.nbytes for array in loop.arrays().values())
    # Linux counts in kilobytes, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"steps_per_second": rate, "peak_bytes": peak, "checkpoint_bytes": checkpoint}


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as stored:
        print(json.dumps(try_out(read_config(json.load(stored)), float(sys.argv[2]))))
