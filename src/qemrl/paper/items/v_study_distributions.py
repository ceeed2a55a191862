"""Return distributions that estimators are measured on, each with a standard deviation of one.

Some are measured returns of trained agents: `python -m qemrl.paper.items.v_study_distributions` measures them anew.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from qemrl.estimators import DISTRIBUTIONS, Distribution, midpoints, normal_mixture
from qemrl.paper.items.frozen_lake_study import find_truth

FLAT = 1e-3
"""The least slope of a quantile function, in standard deviations: inside an atom quantiles hardly err."""

FINE = 65_536

FILE = Path(__file__).with_name("measured_returns.json")

AGENTS: tuple[tuple[str, str, int], ...] = (
    ("qr-dqn", "minatar/breakout", 60_000),
    ("qr-dqn", "minatar/asterix", 60_000),
    ("dsac-mlp", "jax/pendulum", 8_000),
)
"""Presets, environments, and steps of learning, with seed 0, whose returns are measured."""

EPISODES = 4_096
LEVELS = 256
"""Episodes that are played, and quantiles that are kept of their returns."""


@lru_cache(maxsize=1)
def measured_returns() -> dict[str, Float[np.ndarray, " n"]]:
    """The quantiles of the agents' returns at midpoints, by environment."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {entry["env"]: np.asarray(entry["quantiles"]) for entry in data}


def measure_returns(preset: str, env: str, steps: int) -> dict[str, Any]:
    """Train an agent, let it play, and keep the quantiles of its returns."""
    from qemrl import make
    from qemrl.paper.agent_runs import find_settings

    agent = make(preset, env, overrides=find_settings(preset, env)).learn(steps, progress=False)
    returns = agent.evaluate(EPISODES).returns
    quantiles = np.quantile(returns, midpoints(LEVELS), method="hazen")
    return {
        "preset": preset,
        "env": env,
        "steps": steps,
        "episodes": EPISODES,
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "quantiles": [round(float(value), 4) for value in quantiles],
    }


def piecewise_distribution(name: str, quantiles: Float[np.ndarray, " n"]) -> Distribution:
    """Quantiles at midpoints, joined by straight lines; constant beyond the ends."""
    levels, quantiles = midpoints(len(quantiles)), np.sort(quantiles)
    scale = float(np.interp(midpoints(FINE), levels, quantiles).std())
    quantiles = quantiles / scale
    slopes = np.concatenate([[0.0], np.diff(quantiles) * len(quantiles), [0.0]])
    mean = float(np.interp(midpoints(FINE), levels, quantiles).mean())
    return Distribution(
        name,
        lambda at: np.interp(at, levels, quantiles),
        lambda at: np.maximum(slopes[np.searchsorted(levels, at)], FLAT),
        mean,
        1.0,
    )


def standardize(name: str, distribution: Distribution) -> Distribution:
    """The distribution in units of its standard deviation."""
    return Distribution(
        name,
        lambda levels: distribution.quantile(levels) / distribution.std,
        lambda levels: distribution.sparsity(levels) / distribution.std,
        distribution.mean / distribution.std,
        1.0,
    )


def names_with_atoms() -> set[str]:
    """The names of the distributions that are made of returns which come in lumps."""
    return {"FrozenLake", *measured_returns()}


@lru_cache(maxsize=1)
def all_distributions() -> dict[str, Distribution]:
    """Six known ones, another mixture, FrozenLake's return, and returns of trained agents."""
    known = {name: standardize(distribution.name, distribution) for name, distribution in DISTRIBUTIONS.items()}
    known["mixture"] = standardize("Mixture 0.7/0.3", DISTRIBUTIONS["mixture"])
    equal = normal_mixture((0.5, 0.5), (-3.0, 3.0), (1.0, 1.0))
    known["equal mixture"] = standardize("Mixture 0.5/0.5", equal)
    known["frozen-lake"] = piecewise_distribution("FrozenLake", find_truth().returns.quantile(midpoints(LEVELS)))
    return known | {env: piecewise_distribution(env, quantiles) for env, quantiles in measured_returns().items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps([measure_returns(*agent) for agent in AGENTS]) + "\n", encoding="utf-8")
