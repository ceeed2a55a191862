"""Do our agents learn as well as others' do? The same task, the same settings, five seeds of each, side by side.

A run is a process on one core with one thread, which prints its curve; the curve is kept in a file, and what is there
is not run again. Runs of the two sides take turns. The rules were written before the first run:

- The return of a seed is the mean of its evaluations in the second half of the run.
- The ratio of returns is ours over the peer's, with the 95% interval of the logarithm (delta method, Welch's degrees of
  freedom). We are as good where the whole interval lies above 0.8, worse where it lies below, and else it is undecided;
  the minimal detectable effect is the ratio below 1 that the same spread would show with a power of 80%.
- The time to a threshold is the processor time of training, compilation included, until the first evaluation whose mean
  reaches it. Processes have one thread on one core, where it is the time on the clock less what other jobs take.
"""

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from scipy import special

from benchmarks.machine import describe_machine
from benchmarks.peers import MINATAR, SB3, SBX, TIANSHOU, PeerError, add_packages, last_lines, make_peer
from benchmarks.performance import Sheet, write_paragraph, write_table
from benchmarks.turns import environment_for
from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.plotting.curves import Curve
from qemrl.training.files import write_atomic
from qemrl.training.machine import code_commit

Tell = Callable[[str], None]

SEEDS = 5
SIDES = ("qemrl", "peer")

AS_GOOD = 0.8
"""What the interval of the ratio of returns must lie above."""


class Contest(NamedTuple):
    """What is learned by both sides, how long, and when it counts as learned."""

    title: str
    peer: str
    """A name of `PEERS`."""
    steps: int
    every: int
    """Steps between evaluations."""
    episodes: int
    threshold: float
    settings: str
    """What both sides have, in words."""


PEERS: Mapping[str, tuple[str, Sequence[Sequence[str]]]] = {
    "sb3-contrib": ("sb3", SB3),
    "tianshou": ("tianshou", TIANSHOU),
    "SBX": ("sbx", SBX),
}
"""The virtual environment of each peer, and what it holds."""

VALUE_SETTINGS = "51 quantiles, Adam with ε = 0.01/32, discount 0.99, ε from 1 to 0.01"
ACTOR_SETTINGS = (
    "layers of 256 and 256, learning rate 3e-4, batch 256, an update every step after 10,000 random ones, polyak 0.005"
)

CONTESTS: Mapping[str, Contest] = {
    "qr-dqn-cartpole": Contest(
        "QR-DQN, CartPole-v1",
        "sb3-contrib",
        40_000,
        2_000,
        20,
        475.0,
        f"{VALUE_SETTINGS} over 10,000 steps, layers of 256 and 256, learning rate 1e-3, batch 64, an update every 4 "
        "steps after 500, target every 100, replay of 50,000. What differs: we bring observations to [−1, 1] by the "
        "usual bounds of CartPole, as Dopamine does, and peers take them as they are",
    ),
    "iqn-cartpole": Contest(
        "IQN, CartPole-v1",
        "tianshou",
        40_000,
        2_000,
        20,
        475.0,
        "as QR-DQN, with 32 random levels for prediction, target and acting, and with double Q-learning, as tianshou",
    ),
    "qr-dqn-minatar": Contest(
        "QR-DQN, MinAtar Breakout",
        "sb3-contrib",
        200_000,
        10_000,
        20,
        5.0,
        f"{VALUE_SETTINGS} over 100,000 steps, a convolution of 16 channels and a layer of 128, learning rate 3e-4, "
        "batch 32, 3-step returns, an update every 4 steps after 1,000, target every 1,000, replay of 100,000; the "
        "`minatar` package, in our host loop",
    ),
    "sac-hopper": Contest("SAC, Hopper-v5", "SBX", 50_000, 5_000, 10, 300.0, f"{ACTOR_SETTINGS}, temperature 0.2"),
    "sac-half-cheetah": Contest(
        "SAC, HalfCheetah-v5", "SBX", 50_000, 5_000, 10, 2_000.0, f"{ACTOR_SETTINGS}, temperature 0.2"
    ),
    "tqc-half-cheetah": Contest(
        "TQC, HalfCheetah-v5",
        "SBX",
        50_000,
        5_000,
        10,
        2_000.0,
        f"{ACTOR_SETTINGS}, learned temperature, two critics of 25 quantiles each, of which the 2 largest are dropped",
    ),
}


class Run(NamedTuple):
    """One seed of one side."""

    contest: str
    side: str
    seed: int

    def path(self, folder: Path) -> Path:
        """The file of its curve."""
        return folder / self.contest / f"{self.side}_seed_{self.seed}.json"


def list_runs(contests: Sequence[str]) -> list[Run]:
    """All runs, sides in turns."""
    return [Run(contest, side, seed) for contest in contests for seed in range(SEEDS) for side in SIDES]


def measure(runs: Sequence[Run], folder: Path, peers_folder: Path, cores: Sequence[int], tell: Tell) -> dict[Run, str]:
    """Do runs, as many at once as there are cores, and keep their curves.

    Returns:
        Why runs failed, if some did.
    """
    for name in dict.fromkeys(run.contest for run in runs):  # installing is not for several at once
        tell(f"{name}: making virtual environments, some minutes the first time")
        program(Run(name, "peer", 0), peers_folder)
        program(Run(name, "qemrl", 0), peers_folder)

    def work(run: Run, core: int) -> None:
        tell(f"{run.contest}: {run.side}, seed {run.seed}")
        write_run(run, folder, peers_folder, core)

    return share_cores(runs, cores, work)


Job = TypeVar("Job")


def share_cores(jobs: Sequence[Job], cores: Sequence[int], work: Callable[[Job, int], None]) -> dict[Job, str]:
    """Do jobs, as many at once as there are cores, each with the number of its core; returns why some failed."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores:
        free.put(core)
    failed: dict[Job, str] = {}

    def do(job: Job) -> None:
        core = free.get()
        try:
            work(job, core)
        except PeerError as error:
            failed[job] = str(error)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(do, jobs))
    return failed


def program(run: Run, peers_folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that learns on one side, and its environment variables."""
    variables = environment_for(1)
    if run.side == "peer":
        python = make_peer(*PEERS[CONTESTS[run.contest].peer], peers_folder)
        return [str(python), "-I", str(Path(__file__).with_name("peer_learning.py"))], variables
    if run.contest == "qr-dqn-minatar":
        paths = [str(add_packages("minatar", MINATAR, peers_folder)), *filter(None, [variables.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return [sys.executable, "-m", "benchmarks.qemrl_learning"], variables


def write_run(run: Run, folder: Path, peers_folder: Path, core: int) -> None:
    """Learn, and keep the curve.

    Raises:
        PeerError: The process failed, or printed something else.
    """
    contest = CONTESTS[run.contest]
    command, variables = program(run, peers_folder)
    numbers = {"seed": run.seed, "steps": contest.steps, "every": contest.every, "episodes": contest.episodes}
    curve = learn_in_process([*command, run.contest], numbers, variables, core)
    machine = describe_machine(PEERS[contest.peer][1] if run.side == "peer" else ())
    write_curve(run.path(folder), {"contest": run.contest, "side": run.side, **numbers, "machine": machine, **curve})


def learn_in_process(
    command: Sequence[str], numbers: Mapping[str, int], variables: Mapping[str, str], core: int
) -> dict[str, Any]:
    """What a process on one core prints that is told these numbers.

    Raises:
        PeerError: It failed, or printed something else.
    """
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    words = [*keep_on(core), *command, *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(variables))
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise PeerError(f"`{' '.join([command[-1], *options])}` failed with\n{last_lines(done.stderr)}") from None


def write_curve(path: Path, record: Mapping[str, Any]) -> None:
    """Keep the curve of a run, with the commit that it is of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({**record, "commit": code_commit()}) + "\n")


def keep_on(core: int) -> list[str]:
    """What a command must begin with to stay on a core, where the system knows how."""
    return ["taskset", "--cpu-list", str(core)] if hasattr(os, "sched_setaffinity") else []


class Side(NamedTuple):
    """The curves of all seeds of one side."""

    steps: np.ndarray
    returns: Float[np.ndarray, "seeds points"]
    seconds: Float[np.ndarray, "seeds points"]
    """Processor time of training until then."""

    @property
    def scores(self) -> Float[np.ndarray, " seeds"]:
        """The return of each seed: the mean over the second half of the run."""
        return self.returns[:, self.steps > self.steps[-1] / 2].mean(axis=1)

    def times_to(self, threshold: float) -> Float[np.ndarray, " seeds"]:
        """Seconds until the first evaluation that reaches the threshold; infinity where none does."""
        reached = self.returns >= threshold
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), 0)
        return np.where(reached.any(axis=1), self.seconds[np.arange(len(first)), first], np.inf)


def read_side(contest: str, side: str, folder: Path) -> Side | None:
    """What is there of one side; None if it is less than two seeds."""
    paths = [Run(contest, side, seed).path(folder) for seed in range(SEEDS)]
    records: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    if len(records) < 2:
        return None
    returns = np.array([np.mean(record["returns"], axis=1) for record in records])
    return Side(np.array(records[0]["steps"]), returns, np.array([record["cpu_seconds"] for record in records]))


class Verdict(NamedTuple):
    """How the two sides of a contest compare."""

    contest: str
    ours: Side
    peer: Side
    ratio: Interval
    """Of returns, ours over the peer's."""
    detectable: float
    """The ratio below 1 that would be shown with a power of 80%."""
    reached: tuple[int, int]
    """How many seeds of each side reach the threshold."""
    speed: Interval | None
    """How many times as fast we reach it; None where not all seeds do."""

    @property
    def words(self) -> str:
        """The verdict."""
        if self.ratio.low > AS_GOOD:
            return "as good" if self.ratio.high >= 1 else "as good, and below 1"
        if self.ratio.high < AS_GOOD:
            return "worse"
        return f"undecided; a ratio of {self.detectable:.2f} would be shown"


def judge(contest: str, ours: Side, peer: Side) -> Verdict:
    """The verdict on a contest, by the rules at the top of this module."""
    threshold = CONTESTS[contest].threshold
    times = [side.times_to(threshold) for side in (ours, peer)]
    ratio, detectable = ratio_of_means(ours.scores, peer.scores)
    reached = (int(np.isfinite(times[0]).sum()), int(np.isfinite(times[1]).sum()))
    speed = None
    if reached == (len(times[0]), len(times[1])):
        speed = ratio_of_means(times[1], times[0])[0]
    return Verdict(contest, ours, peer, ratio, detectable, reached, speed)


def ratio_of_means(first: Float[np.ndarray, " m"], second: Float[np.ndarray, " n"]) -> tuple[Interval, float]:
    """The ratio of two means with its 95% interval, and the ratio below 1 that a power of 80% would show.

    The interval is Welch's, for the logarithm of the ratio, whose variance is that of the delta method.

    Raises:
        ValueError: A mean is not positive, and has no logarithm.
    """
    means = [float(np.mean(samples)) for samples in (first, second)]
    if min(means) <= 0:
        raise ValueError(f"a ratio needs positive means, got {means[0]:g} and {means[1]:g}")
    parts = [
        float(np.var(samples, ddof=1)) / (len(samples) * mean**2)
        for samples, mean in zip((first, second), means, strict=True)
    ]
    value, error = means[0] / means[1], np.sqrt(sum(parts))
    if error == 0:
        return Interval.exact(value), 1.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(samples) - 1) for part, samples in zip(parts, (first, second), strict=True)
    )
    reach = float(special.stdtrit(freedom, 0.975) * error)
    detectable = float(np.exp(-(special.stdtrit(freedom, 0.975) + special.stdtrit(freedom, 0.8)) * error))
    return Interval(value, float(value * np.exp(-reach)), float(value * np.exp(reach))), detectable


def read_verdicts(folder: Path) -> list[Verdict]:
    """The verdicts on all contests of which both sides have at least two seeds."""
    verdicts = []
    for contest in CONTESTS:
        ours, peer = (read_side(contest, side, folder) for side in SIDES)
        if ours is not None and peer is not None:
            verdicts.append(judge(contest, ours, peer))
    return verdicts


def make_curves(verdicts: Sequence[Verdict]) -> list[Curve]:
    """The curves of all contests, for a figure."""
    curves = []
    for verdict in verdicts:
        for side, label in zip((verdict.ours, verdict.peer), ("qemrl", "peer"), strict=True):
            ends = [mean_interval(column) for column in side.returns.T]
            band = (np.array([each.low for each in ends]), np.array([each.high for each in ends]))
            title = f"{CONTESTS[verdict.contest].title} ({CONTESTS[verdict.contest].peer})"
            curves.append(Curve(label, title, side.steps, side.returns, band=band))
    return curves


COLUMNS = (
    "task",
    "peer",
    "seeds",
    ">ours",
    ">peer's",
    "ratio of returns",
    "verdict",
    "threshold: reached by",
    ">seconds, ours",
    ">peer's",
    "times as fast",
)

INTRODUCTION = (
    "The same task, the same settings, five seeds of each side: `make bench-learning` runs what is missing in "
    "results/learning and writes this page. Nothing here is written by hand. The rules are those at the top of "
    "[learning.py](../benchmarks/learning.py), written before the first run: the return of a seed is the mean of its "
    "evaluations in the second half of the run; we are as good where the 95% interval of the ratio lies above 0.8.",
    "Seconds are processor time of training on one core with one thread, compilation included, until the first "
    "evaluation that reaches the threshold: the median over seeds. How many times as fast is a ratio of means, given "
    "where all seeds reach it. Runs of SAC and TQC were made beside other work, which took the processor time of SAC "
    "on Hopper from 190 up to 510 s: their returns can be compared, their times only roughly.",
)


def make_page(verdicts: Sequence[Verdict], figure: str) -> str:
    """The page docs/learning.md."""
    sheet = Sheet("Learning", COLUMNS, [_write_row(verdict) for verdict in verdicts])
    settings = [f"- **{CONTESTS[each.contest].title}**: {CONTESTS[each.contest].settings}." for each in verdicts]
    parts = [
        "# Learning beside the peers\n",
        write_paragraph(INTRODUCTION[0]),
        f"![Evaluation returns of qemrl and its peers]({figure})\n",
        write_table(sheet),
        write_paragraph(INTRODUCTION[1]),
        "## Settings\n",
        "\n".join(settings) + "\n",
    ]
    return "\n".join(parts)


def _write_row(verdict: Verdict) -> list[str]:
    contest = CONTESTS[verdict.contest]
    sides = (verdict.ours, verdict.peer)
    medians = [float(np.median(side.times_to(contest.threshold))) for side in sides]
    return [
        contest.title,
        contest.peer,
        f"{len(verdict.ours.scores)}, {len(verdict.peer.scores)}",
        *(f"{side.scores.mean():,.4g}" for side in sides),
        f"{verdict.ratio.value:.2f} {verdict.ratio.format_ends('.2f')}",
        verdict.words,
        f"{contest.threshold:,g}: {verdict.reached[0]}, {verdict.reached[1]}",
        *(f"{seconds:.0f}" if np.isfinite(seconds) else "–" for seconds in medians),
        "–" if verdict.speed is None else f"{verdict.speed.value:.1f} {verdict.speed.format_ends('.1f')}",
    ]
