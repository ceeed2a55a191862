"""Scores the arms of the study by the rule in README.md: `python results/studies/minatar-settings/score.py`."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LEVELS = {"minatar/breakout": 10.7, "minatar/space_invaders": 50.6}
"""What Ensemble DQN has after 1,000,000 frames."""

HIDDEN = ("hidden", "n-step", "rate", "norm", "every-2", "every-1")
FRAMES, LAST = 500_000, 3

Curves = dict[tuple[str, str], dict[int, list[tuple[int, float]]]]


def read_curves() -> Curves:
    """The evaluations of each arm and game, by seed."""
    curves: Curves = defaultdict(dict)
    for run in sorted((HERE / "runs").iterdir()):
        config = json.loads((run / "config.json").read_text())["config"]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        arm = run.name.partition("_")[0].removeprefix("qr-dqn+")
        points = [(each["step"], each["eval/mean_reward"]) for each in records if "eval/mean_reward" in each]
        curves[arm, config["env"]][config["seed"]] = points
    return curves


def score(curve: list[tuple[int, float]], frames: float) -> float:
    """The mean of the last evaluations within so many frames."""
    within = [value for step, value in curve if step <= frames]
    return float(np.mean(within[-LAST:]))


def main() -> None:
    """Print a line for each arm."""
    curves, speeds = read_curves(), json.loads((HERE / "speeds.json").read_text())
    limits = {env: min(FRAMES / speeds[env][arm] for arm in HIDDEN) for env in LEVELS}
    table: dict[str, np.ndarray] = {}
    ends: dict[str, np.ndarray] = {}
    for arm in ("flat", *HIDDEN):
        by_game = [
            [
                [score(curve, frames) / LEVELS[env] for curve in curves[arm, env].values()]
                for frames in (speeds[env][arm] * limits[env], FRAMES)
            ]
            for env in LEVELS
        ]
        table[arm], ends[arm] = np.array(by_game)[:, 0], np.array(by_game)[:, 1]
    best = max(table, key=lambda arm: table[arm].mean())
    print("arm      score   less than best ± s.e.   breakout  space_invaders   at 500,000   frames/s")
    for arm, scores in sorted(table.items(), key=lambda each: -each[1].mean()):
        differences = (table[best] - scores).mean(axis=0)  # games are fixed, seeds are paired
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        breakout, invaders = scores.mean(axis=1)
        speed = speeds["minatar/breakout"][arm]
        print(
            f"{arm:8s} {scores.mean():.3f}   {differences.mean():6.3f} ± {error:.3f}          "
            f"{breakout:.3f}     {invaders:.3f}            {ends[arm].mean():.3f}        {speed:,.0f}"
        )


if __name__ == "__main__":
    main()
