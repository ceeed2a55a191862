"""Section 5.3 on tasks that run anywhere: does QEM's standard deviation explore better than DLTV, or than anything?

The paper's games take weeks. Here are tasks that chance alone does not solve, with a policy that is known to be the one
to find: deep sea, the sparse chain, the mountain car. All arms have the same network, replay and schedule.
"""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval, mean_interval, share_interval
from qemrl.paper.claims import Claim, Result, Scale, judge
from qemrl.paper.drawing import LOOKS, entry, heading, light_grid
from qemrl.paper.items.exploration_study import ARMS, TASKS, Outcome, Task, explore
from qemrl.plotting import style as figures

SEEDS = {"smoke": 2, "small": 8, "paper": 20}

HARD = "deep-sea-10"
"""The task that the project's own claims are about."""

MOST, HALF = 0.89, 0.5
"""The rules: "solved" is 18 of 20 seeds, "fails" is fewer than half of them."""

SOME = {"smoke": ARMS[:3]}
"""The arms of a scale that has not all of them: each is a program to compile."""

Outcomes = dict[tuple[str, str], Outcome]


def run(scale: Scale, seed: int, tick: Callable[[float], None]) -> Result:
    """Train every arm on every task."""
    tasks, arms, num_seeds = TASKS[scale], SOME.get(scale, ARMS), SEEDS[scale]
    whole = sum(task.steps for task in tasks) * len(arms)
    results: Outcomes = {}
    done = 0
    for task in tasks:
        for arm in arms:
            begun, share = done / whole, task.steps / whole
            results[task.name, arm] = explore(
                arm, task, seed * 1_000, num_seeds, lambda x, b=begun, s=share: tick(b + s * x)
            )
            done += task.steps
    tick(1.0)
    notes = [
        f"{num_seeds} seeds. Solved: the greedy policy is the one to be found at two of 100 looks in succession. "
        "Steps to solve are those to the first of them, and the whole run where there is none.",
        "Deep sea: 2,000 episodes; chain: 500; mountain car: 60,000 steps. 32 quantiles, a layer of 64 units, "
        "an update with 32 transitions every second step, Adam with 1e-3.",
        "epsilon falls from 1 to 0.05 over a tenth of the run. DLTV and QEM spread have c = 50, as published. "
        "Counts in acting fade over the run; in the reward they are worth 0.05/sqrt(n + 0.01), and nothing in "
        "acting. No setting was tried before the run with another value.",
    ]
    return Result(_rows(tasks, results), _draw(tasks, results), _claims(tasks, results), notes)


def _arms(results: Outcomes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(arm for _, arm in results))


def _rows(tasks: tuple[Task, ...], results: Outcomes) -> list[dict[str, Any]]:
    rows = []
    for task in tasks:
        for arm in _arms(results):
            outcome = results[task.name, arm]
            count = len(outcome.solved)
            measures = {
                "solved": share_interval(int(outcome.solved.sum()), count),
                "solved at the end": share_interval(int(outcome.kept.sum()), count),
                "steps to solve / steps": mean_interval(outcome.steps / task.steps),
            }
            for measure, interval in measures.items():
                ends = {end: float(number) for end, number in interval._asdict().items()}
                rows.append(
                    {"task": task.name, "steps": task.steps, "arm": arm, "seeds": count, "measure": measure, **ends}
                )
    return rows


def _claims(tasks: tuple[Task, ...], results: Outcomes) -> list[Claim]:
    def difference(one: str, other: str) -> Interval:
        """The mean over tasks of how much sooner `one` solves than `other`, as a share of the run, seed by seed."""
        per_task = [(results[task.name, other].steps - results[task.name, one].steps) / task.steps for task in tasks]
        return mean_interval(np.mean(per_task, axis=0))

    sooner = difference("QEM spread", "DLTV")
    claims = [
        Claim(
            "QEM explores better than DLTV",
            "Section 5.3",
            "QEM's variance as a bonus explores more efficiently than DLTV",
            "the mean over tasks of (steps of DLTV − steps of QEM) / steps of the run is above 0, seed by seed",
            sooner,
            "how much sooner QEM's spread solves than DLTV, as a share of the run",
            judge(sooner, above=0.0),
        )
    ]
    for arm in _arms(results)[1:]:
        gain = difference(arm, "ε-greedy")
        claims.append(
            Claim(
                f"{arm} against ε-greedy",
                "ours",
                f"{arm} solves these tasks sooner than ε-greedy",
                "the mean over tasks of (steps of ε-greedy − steps of it) / steps of the run is above 0, seed by seed",
                gain,
                "how much sooner it solves, as a share of the run",
                judge(gain, above=0.0),
            )
        )
    if HARD in {task.name for task in tasks}:
        claims += _claims_of_the_hard_one(results)
    return claims


def _claims_of_the_hard_one(results: Outcomes) -> list[Claim]:
    shares = {arm: float(results[HARD, arm].solved.mean()) for arm in ARMS}
    best = max(ARMS[1:], key=lambda arm: shares[arm])
    plain = results[HARD, "ε-greedy"].solved
    fails = share_interval(int(plain.sum()), len(plain))
    solved = Interval.exact(shares[best])
    return [
        Claim(
            "a bonus solves deep sea",
            "ours",
            f"at least one bonus solves {HARD} in at least 18 of 20 seeds",
            f"the largest share of solved seeds among the bonuses is above {MOST}",
            solved,
            f"share of seeds that solve it, {best}",
            judge(solved, above=MOST),
        ),
        Claim(
            "ε-greedy fails deep sea",
            "ours",
            f"ε-greedy does not solve {HARD}",
            f"its share of solved seeds is below {HALF}",
            fails,
            "share of seeds that solve it, ε-greedy",
            judge(fails, below=HALF),
        ),
    ]


def _draw(tasks: tuple[Task, ...], results: Outcomes) -> Figure:
    """The share of solved seeds, and the steps to solve, for each task and arm."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(7.2, 0.5 * len(tasks) + 1.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for place, arm in enumerate(_arms(results)):
            look, shift = LOOKS[place], (place - (len(_arms(results)) - 1) / 2) * 0.14
            for number, task in enumerate(tasks):
                outcome = results[task.name, arm]
                measures = (
                    (left, share_interval(int(outcome.solved.sum()), len(outcome.solved))),
                    (right, mean_interval(outcome.steps / task.steps)),
                )
                for axis, (value, low, high) in measures:
                    axis.plot([low, high], [number + shift] * 2, color=look.color, lw=1)
                    axis.plot(value, number + shift, color=look.color, marker=look.marker, ms=4, ls="")
        left.set(xlabel="share of seeds that solve the task", xlim=(-0.03, 1.03))
        right.set(xlabel="steps to solve / steps of the run", xlim=(-0.03, 1.03))
        left.set_yticks(range(len(tasks)), [task.name for task in tasks])
        left.invert_yaxis()
        for axis in (left, right):
            light_grid(axis, "x")
        handles = [entry(LOOKS[place]._replace(line=""), arm) for place, arm in enumerate(_arms(results))]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(ARMS), frameon=False, fontsize=8)
        heading(figure, "Exploration: which bonus finds what chance does not")
    return figure
