"""What the presets reach on classic control: `python results/value/classic/table.py` prints a table of the runs here.

The return of a seed is the mean of its last six evaluations; the interval is Student's, over the seeds.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

LAST = 6
SOLVED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "MountainCar-v0": -110.0}
"""Gymnasium's own thresholds."""


def main() -> None:
    """Print a row for each preset and task."""
    curves: dict[tuple[str, str], list[list[tuple[int, float]]]] = defaultdict(list)
    for run in sorted((Path(__file__).parent / "runs").iterdir()):
        config = json.loads((run / "config.json").read_text())["config"]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        curve = [(record["step"], record["eval/mean_reward"]) for record in records if "eval/mean_reward" in record]
        curves[config["env"], config["preset"]].append(curve)
    print("| task | preset | seeds | return, last six evaluations | evaluations that solve it | first at (steps) |")
    print("|---|---|---:|---|---|---|")
    for env, solved in SOLVED.items():
        for (task, preset), seeds in curves.items():
            if task == env and len(seeds) > 1:  # one has no interval
                print(_row(env, preset, seeds, solved))


def _row(env: str, preset: str, seeds: list[list[tuple[int, float]]], solved: float) -> str:
    ends = np.array([np.mean([value for _, value in curve[-LAST:]]) for curve in seeds])
    half = stats.t.ppf(0.975, len(ends) - 1) * ends.std(ddof=1) / np.sqrt(len(ends))
    above = [value >= solved for curve in seeds for _, value in curve]
    first = [next((f"{step:,}" for step, value in curve if value >= solved), "never") for curve in seeds]
    interval = f"{ends.mean():.1f} [{ends.mean() - half:.1f}, {ends.mean() + half:.1f}]".replace("-", "−")
    return f"| {env} | {preset} | {len(seeds)} | {interval} | {sum(above)} of {len(above)} | {', '.join(first)} |"


if __name__ == "__main__":
    main()
