"""Returns of trained agents, as distributions to measure estimators on: `python -m qemrl.paper.recorded` records them anew."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

FILE = Path(__file__).with_name("recorded_returns.json")

AGENTS: tuple[tuple[str, str, int], ...] = (
    ("qr-dqn", "minatar/breakout", 60_000),
    ("qr-dqn", "minatar/asterix", 60_000),
    ("dsac-mlp", "jax/pendulum", 8_000),
)
"""Presets, environments, and steps of learning, with seed 0."""

EPISODES = 4_096
LEVELS = 256
"""So many quantiles are kept of so many episodes."""


@lru_cache(maxsize=1)
def recorded() -> dict[str, Float[np.ndarray, " n"]]:
    """The quantiles of the returns at midpoints, by what was played."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {entry["env"]: np.asarray(entry["quantiles"]) for entry in data}


def record(preset: str, env: str, steps: int) -> dict[str, Any]:
    """Train an agent, let it play, and keep the quantiles of its returns."""
    from qemrl import make
    from qemrl.estimators import midpoints

    agent = make(preset, env).learn(steps, progress=False)
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


def main() -> None:
    """Record all."""
    FILE.write_text(json.dumps([record(*agent) for agent in AGENTS]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
