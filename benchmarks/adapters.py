"""QEM in the peers' own agents on CartPole-v1: what it does to returns, and to the error of Q.

Five arms, five seeds each, 40,000 steps with the settings of the learning bench. The rules were written before the
first run:

- The return of a seed is the mean of its evaluations in the second half of the run. An arm is compared with the first
  of its peer by the ratio of returns, with the 95% interval of `learning.ratio_of_means`; where it holds 1 there is no
  significant difference, and the minimal detectable effect is said.
- The error of Q is the mean squared error from the draw of 32 levels at 200 observations of the replay after learning,
  against the mean over 4,096 midpoints, in units of the variance of Q; that of the gap between the two actions is in
  units of its mean square. What an arm removes is one minus its error over that of the plain mean at uniform levels in
  the same network, with Student's interval over seeds.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.learning import learn_in_process, ratio_of_means, share_cores, write_curve
from benchmarks.machine import describe_machine
from benchmarks.peers import TIANSHOU_TESTS, make_peer
from benchmarks.performance import Sheet, write_paragraph, write_table
from benchmarks.turns import environment_for
from qemrl.experiments.statistics import mean_interval

SEEDS = 5
NUMBERS = {"steps": 40_000, "every": 2_000, "episodes": 20}
ARMS = {
    "sb3-mean": ("sb3-contrib's QR-DQN", "the parent: plain mean"),
    "sb3-qem": ("sb3-contrib's QR-DQN", "QEM"),
    "tianshou-plain": ("tianshou's IQN", "the parent: plain mean, uniform levels"),
    "tianshou-stratified": ("tianshou's IQN", "plain mean, stratified levels"),
    "tianshou-qem": ("tianshou's IQN", "QEM, uniform levels"),
}
"""The agent of each arm, and what is in it; the first of each agent is what others are compared with."""


class Run(NamedTuple):
    """One seed of one arm."""

    arm: str
    seed: int

    def path(self, folder: Path) -> Path:
        """The file of its curve."""
        return folder / f"{self.arm}_seed_{self.seed}.json"


def measure(folder: Path, peers_folder: Path, cores: Sequence[int], tell: Callable[[str], None]) -> dict[Run, str]:
    """Do the runs that are missing, and keep their curves; returns why some failed."""
    runs = [Run(arm, seed) for seed in range(SEEDS) for arm in ARMS]
    missing = [run for run in runs if not run.path(folder).exists()]
    if not missing:
        return {}
    tell("making virtual environments, some minutes the first time")
    pythons = {"sb3": Path(sys.executable), "tianshou": make_peer("tianshou-tests", TIANSHOU_TESTS, peers_folder)}
    variables = environment_for(1)
    source = str(Path(__file__).parents[1] / "src")
    variables["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [variables.get("PYTHONPATH")])])

    def work(run: Run, core: int) -> None:
        tell(f"{run.arm}, seed {run.seed}")
        command = [str(pythons[run.arm.partition("-")[0]]), str(Path(__file__).with_name("adapter_run.py")), run.arm]
        numbers = {"seed": run.seed, **NUMBERS}
        curve = learn_in_process(command, numbers, variables, core)
        packages = TIANSHOU_TESTS if run.arm.startswith("tianshou") else ()
        write_curve(run.path(folder), {"arm": run.arm, **numbers, "machine": describe_machine(packages), **curve})

    return share_cores(missing, cores, work)


def read_arm(arm: str, folder: Path) -> list[dict[str, Any]]:
    """What is there of an arm, by seed."""
    paths = [Run(arm, seed).path(folder) for seed in range(SEEDS)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def score(record: dict[str, Any]) -> float:
    """The return of a seed."""
    means = np.mean(record["returns"], axis=1)
    return float(means[np.array(record["steps"]) > record["steps"][-1] / 2].mean())


COLUMNS = ("agent", "Q by", ">seeds", "return", "ratio to the parent", "error of Q", "removed", "of the gap", "removed")


def make_page(folder: Path) -> str:
    """The page docs/adapters.md."""
    found = {arm: read_arm(arm, folder) for arm in ARMS}
    rows = [_write_row(arm, found) for arm in ARMS if len(found[arm]) >= 2]
    parts = [
        "# QEM in the peers' own agents\n",
        write_paragraph(
            "CartPole-v1, 40,000 steps, five seeds of each arm: `python -m benchmarks adapters` runs what is missing "
            "in results/adapters and writes this page. Nothing here is written by hand. The rules are at the top of "
            "[adapters.py](../benchmarks/adapters.py), written before the first run. Intervals are of 95%."
        ),
        write_table(Sheet("Adapters", COLUMNS, rows)),
        write_paragraph(
            "The error of Q is that from the draw of 32 levels, in units of the variance of Q over observations; that "
            "of the gap between the two actions, which is what an action depends on, is in units of its mean square. "
            "What is removed is beside the plain mean at uniform levels in the same network. Fixed quantiles have none."
        ),
    ]
    return "\n".join(parts)


def _write_row(arm: str, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    agent, estimate = ARMS[arm]
    records, scores = found[arm], [score(record) for record in found[arm]]
    first = next(name for name, (other, _) in ARMS.items() if other == agent)
    end = mean_interval(np.array(scores))
    row = [agent, estimate, str(len(records)), f"{end.value:.0f} {end.format_ends('.0f')}"]
    if arm == first or len(found[first]) < 2:
        row.append("")
    else:
        parent = np.array([score(record) for record in found[first]])
        ratio, detectable = ratio_of_means(np.array(scores), parent)
        words = "" if ratio.excludes(1.0) else f", no significant difference ({detectable:.2f} would be shown)"
        row.append(f"{ratio.value:.2f} {ratio.format_ends('.2f')}{words}")
    for kind in ("error", "gap_error"):
        row += ["", ""] if f"{kind}_own" not in records[0] else _write_error(records, kind, arm == first)
    return row


def _write_error(records: list[dict[str, Any]], kind: str, is_first: bool) -> list[str]:
    own, plain = (np.array([record[f"{kind}_{name}"] for record in records]) for name in ("own", "plain"))
    error, removed = mean_interval(own), mean_interval(1 - own / plain)
    share = "" if is_first else f"{removed.value:.1%} {removed.format_ends('.1%')}"
    return [f"{error.value:.2g} {error.format_ends('.2g')}", share]
