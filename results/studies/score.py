"""Scores the arms of a study by the rule in its README.md: `python results/studies/score.py classic-settings`."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent


class Rule(NamedTuple):
    """How returns become a score."""

    scales: dict[str, tuple[float, float]]
    """By environment, the returns that count as 0 and as 1."""
    last: int
    """How many evaluations count."""


RULES = {
    "iqn-settings": Rule({"minatar/breakout": (0.0, 10.7), "minatar/space_invaders": (0.0, 50.6)}, 3),
    "classic-settings": Rule(
        {"CartPole-v1": (0.0, 500.0), "Acrobot-v1": (-500.0, -70.0), "MountainCar-v0": (-200.0, -106.0)}, 6
    ),
}


def read_scores(study: str) -> dict[str, np.ndarray]:
    """Scores [environments, seeds] by arm."""
    rule, found = RULES[study], defaultdict(dict)
    for run in sorted((HERE / study / "runs").iterdir()):
        config = json.loads((run / "config.json").read_text())["config"]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        returns = [record["eval/mean_reward"] for record in records if "eval/mean_reward" in record]
        low, high = rule.scales[config["env"]]
        arm = run.name.partition("_")[0].partition("+")[2]
        found[arm][config["env"], config["seed"]] = (np.mean(returns[-rule.last :]) - low) / (high - low)
    table = {}
    for arm, scores in found.items():
        seeds = sorted({seed for _, seed in scores})
        table[arm] = np.array([[scores[env, seed] for seed in seeds] for env in rule.scales])
    return table


def main(study: str) -> None:
    """Print a row for each arm."""
    table = read_scores(study)
    best = max(table, key=lambda arm: table[arm].mean())
    print(f"| arm | score | less than the best ± s.e. | {' | '.join(RULES[study].scales)} |")
    print("|---|---:|---:|" + "---:|" * len(RULES[study].scales))
    for arm, scores in sorted(table.items(), key=lambda each: -each[1].mean()):
        differences = (table[best] - scores).mean(axis=0)  # environments are fixed, seeds are paired
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        less = "" if arm == best else f"{differences.mean():.3f} ± {error:.3f}"
        print(f"| `{arm}` | {scores.mean():.3f} | {less} | {' | '.join(f'{x:.3f}' for x in scores.mean(axis=1))} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
